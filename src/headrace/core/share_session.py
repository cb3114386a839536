"""Share sessions: what a member fetches, over which connection, at which epoch. KIP-932.

A session belongs to (group, member) and dies with the connection that opened it. Every ShareFetch
and ShareAcknowledge consumes one epoch, so a lost or repeated request is noticed. All volatile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from headrace.core.errors import Refused, Why
from headrace.core.types import MemberId, TopicPartition

OPEN, FINAL = 0, -1
PARTITIONS_MAX = 2_000
_EPOCH_MAX = 2**31 - 1

_TOO_MANY = Refused(Why.INVALID_REQUEST, f"a session holds {PARTITIONS_MAX} partitions")

SessionKey = tuple[str, MemberId]


@dataclass(frozen=True, slots=True)
class Continue:
    """A request of a member: epoch 0 opens, if it may, -1 ends, any other goes on."""

    key: SessionKey
    epoch: int
    connection: int
    added: Sequence[TopicPartition] = ()
    forgotten: Sequence[TopicPartition] = ()
    may_open: bool = True


@dataclass(frozen=True, slots=True)
class SessionMoved:
    """The session's next epoch and partitions."""

    key: SessionKey
    connection: int
    next_epoch: int
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session is gone; the member's records are to be released."""

    key: SessionKey


SessionEvent = SessionMoved | SessionEnded


@dataclass(frozen=True, slots=True)
class Session:
    """One session as its last request left it."""

    connection: int
    next_epoch: int
    partitions: tuple[TopicPartition, ...]


class ShareSessions:
    """All share sessions of a broker.

    Args:
        sessions_max: Sessions open at a time.
        connection_max: Those that one connection may have opened.
        is_member: Whether a group has the member of a session. Where too many sessions are open,
            that of a member takes the place of the oldest without one.
    """

    def __init__(
        self,
        sessions_max: int,
        connection_max: int = 1 << 31,
        is_member: Callable[[SessionKey], bool] = lambda _: False,
    ) -> None:
        self._sessions_max = sessions_max
        self._connection_max = connection_max
        self._is_member = is_member
        self._sessions: dict[SessionKey, Session] = {}
        self._of: dict[int, dict[SessionKey, None]] = {}  # by connection

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def sessions(self) -> Mapping[SessionKey, Session]:
        return self._sessions

    def decide(self, command: Continue) -> list[SessionEvent] | Refused:
        """The session after a request, or: not found, wrong epoch, too many."""
        known = self._sessions.get(command.key)
        if command.epoch == OPEN:
            if not command.may_open:
                return Refused(Why.SESSION_EPOCH, "an acknowledgement cannot open a session")
            partitions = _changed((), command)
            if len(partitions) > PARTITIONS_MAX:
                return _TOO_MANY
            opened = self._of.get(command.connection, {})
            if command.key not in opened and len(opened) >= self._connection_max:
                return Refused(
                    Why.SESSION_LIMIT,
                    f"this connection opened {len(opened)} share sessions already"
                    " (headrace.share.max.sessions.per.connection)",
                )
            moved = SessionMoved(command.key, command.connection, 1, partitions)
            if known is not None or len(self._sessions) < self._sessions_max:
                return [moved]
            replaced = self._replaceable(command.key)
            if replaced is None:
                return Refused(
                    Why.SESSION_LIMIT,
                    f"{self._sessions_max} share sessions are open already"
                    " (group.share.max.share.sessions)",
                )
            return [SessionEnded(replaced), moved]
        if known is None:
            return Refused(Why.SESSION_NOT_FOUND, "no share session of this member is open")
        if command.epoch == FINAL:
            return [SessionEnded(command.key)]
        if command.epoch != known.next_epoch:
            return Refused(
                Why.SESSION_EPOCH, f"epoch {known.next_epoch} was expected, not {command.epoch}"
            )
        following = 1 if command.epoch == _EPOCH_MAX else command.epoch + 1
        partitions = _changed(known.partitions, command)
        if len(partitions) > PARTITIONS_MAX:
            return _TOO_MANY
        return [SessionMoved(command.key, known.connection, following, partitions)]

    def _replaceable(self, key: SessionKey) -> SessionKey | None:
        """Return the oldest session without a member, for that of one; None where there is none."""
        if not self._is_member(key):
            return None
        return next((one for one in self._sessions if not self._is_member(one)), None)

    def disconnected(self, connection: int) -> list[SessionEvent]:
        """End every session that the closed connection had opened."""
        return [SessionEnded(key) for key in self._of.get(connection, ())]

    def apply(self, event: SessionEvent) -> None:
        """The only place where sessions change."""
        match event:
            case SessionMoved(key, connection, next_epoch, partitions):
                known = self._sessions.get(key)
                if known is None or known.connection != connection:
                    self._left(key)
                    self._of.setdefault(connection, {})[key] = None
                self._sessions[key] = Session(connection, next_epoch, tuple(partitions))
            case SessionEnded(key):
                self._left(key)
                self._sessions.pop(key, None)
            case _:
                assert_never(event)

    def _left(self, key: SessionKey) -> None:
        """The session belongs to its connection no longer."""
        known = self._sessions.get(key)
        if known is None:
            return
        opened = self._of[known.connection]
        del opened[key]
        if not opened:
            del self._of[known.connection]


def _changed(
    partitions: tuple[TopicPartition, ...], command: Continue
) -> tuple[TopicPartition, ...]:
    if not command.added and not command.forgotten:
        return partitions
    forgotten = set(command.forgotten)
    merged = dict.fromkeys((*partitions, *command.added))
    return tuple(partition for partition in merged if partition not in forgotten)
