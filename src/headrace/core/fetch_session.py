"""Fetch sessions: what a consumer fetches, so that it need not say it every time. KIP-227.

Theory of operation: a complete request opens a session, when there is room; the requests that
follow name only partitions that changed, and the answers only those with news. Every request
consumes one epoch, so a lost or repeated one is noticed. Sessions belong to no connection; one that
was not used for `EVICTION_MS` makes room for any other, one that is older than that for a larger
one. All volatile: a client whose session is gone opens another.
Source: FetchSession, FetchSessionCacheShard (Kafka 4.3).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never
from uuid import UUID

from headrace.core.errors import Refused, Why
from headrace.core.types import MonoMs, elapsed_ms

OPEN, FINAL = 0, -1
NO_SESSION = 0
PARTITIONS_MAX = 10_000
EVICTION_MS = 120_000
_EPOCH_MAX = 2**31 - 1

# The topic by its id, or by its name in requests that know no ids; and the partition.
Key = tuple[UUID | str, int]


class Asked(NamedTuple):
    """What is asked of one partition; epochs are -1 when the client does not say."""

    topic: UUID | str
    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int
    max_bytes: int

    @property
    def key(self) -> Key:
        return self.topic, self.partition


class Told(NamedTuple):
    """What the client was told of one partition, and whether records came with it.

    Offsets are -1 with an error. `name` is the topic's when it was last seen: its id may be gone.
    """

    high_watermark: int
    start_offset: int
    code: int
    has_records: bool
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """A complete request is being answered: may it have a session, named `new_id`?"""

    new_id: int
    by_ids: bool
    asked: Sequence[Asked]
    now: MonoMs


@dataclass(frozen=True, slots=True)
class Continue:
    """A request of a session: what it asks in addition or anew, and what no longer."""

    session_id: int
    epoch: int
    by_ids: bool
    asked: Sequence[Asked]
    forgotten: Sequence[Key]
    now: MonoMs


@dataclass(frozen=True, slots=True)
class Close:
    """A request that ends a session, or replaces it by the next `Open`."""

    session_id: int


Command = Open | Continue | Close


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session that waits for its epoch 1."""

    session_id: int
    by_ids: bool
    asked: Sequence[Asked]
    now: MonoMs


@dataclass(frozen=True, slots=True)
class SessionMoved:
    """The session's next epoch, and what changed in it."""

    session_id: int
    next_epoch: int
    asked: Sequence[Asked]
    forgotten: Sequence[Key]
    now: MonoMs


@dataclass(frozen=True, slots=True)
class SessionTold:
    """What an answer told of partitions: their high watermarks and start offsets."""

    session_id: int
    told: Sequence[tuple[Key, Told]]


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session is gone."""

    session_id: int


Event = SessionOpened | SessionMoved | SessionTold | SessionEnded


@dataclass(slots=True)
class Session:
    """One session as its last request and answer left it; changed by `FetchSessions.apply` alone.

    `partitions` are in the order in which the next request looks at them.
    """

    by_ids: bool
    opened: MonoMs
    used: MonoMs
    next_epoch: int = 1
    partitions: dict[Key, Asked] = field(default_factory=dict)
    told: dict[Key, Told] = field(default_factory=dict)

    def is_news(self, key: Key, found: Told) -> bool:
        """Whether the client has to be told: records, an error, or an offset that moved."""
        if found.has_records or found.code:
            return True
        known = self.told.get(key)
        return (
            known is None
            or known.high_watermark != found.high_watermark
            or known.start_offset != found.start_offset
        )


class FetchSessions:
    """All fetch sessions of a broker, at most `sessions_max`."""

    def __init__(self, sessions_max: int) -> None:
        self._sessions_max = sessions_max
        self._sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Partitions of all sessions."""
        return sum(len(one.partitions) for one in self._sessions.values())

    def get(self, session_id: int) -> Session | None:
        """The session, if it is still there."""
        return self._sessions.get(session_id)

    def decide(self, command: Command) -> list[Event] | Refused:
        """What a request does to sessions; nothing when a new one finds no room."""
        match command:
            case Continue():
                return self._continue(command)
            case Close(session_id):
                return [SessionEnded(session_id)] if session_id in self._sessions else []
            case Open(new_id, by_ids, asked, now):
                if not asked or len(asked) > PARTITIONS_MAX or new_id in self._sessions:
                    return []
                opened = SessionOpened(new_id, by_ids, asked, now)
                if len(self._sessions) < self._sessions_max:
                    return [opened]
                evicted = self._evicted(len(asked), now)
                return [] if evicted is None else [SessionEnded(evicted), opened]
            case _:
                assert_never(command)

    def apply(self, event: Event) -> None:
        """The only place where sessions change."""
        match event:
            case SessionMoved(session_id, next_epoch, asked, forgotten, now):
                session = self._sessions[session_id]
                session.next_epoch, session.used = next_epoch, now
                _change(session, asked, forgotten)
            case SessionTold(session_id, told):
                # It may have ended while its request waited.
                if (gone := self._sessions.get(session_id)) is not None:
                    _tell(gone, told)
            case SessionOpened(session_id, by_ids, asked, now):
                session = self._sessions[session_id] = Session(by_ids, now, now)
                _change(session, asked, ())
            case SessionEnded(session_id):
                self._sessions.pop(session_id, None)
            case _:
                assert_never(event)

    def _continue(self, command: Continue) -> list[Event] | Refused:
        session_id = command.session_id
        session = self._sessions.get(session_id)
        if session is None:
            return Refused(Why.FETCH_SESSION_NOT_FOUND, f"no fetch session {session_id} is open")
        if command.epoch != session.next_epoch:
            return Refused(
                Why.FETCH_SESSION_EPOCH,
                f"epoch {session.next_epoch} was expected, not {command.epoch}",
            )
        if command.by_ids != session.by_ids:
            return Refused(
                Why.FETCH_SESSION_TOPIC_IDS, "a session names topics by id or by name, not by both"
            )
        following = 1 if command.epoch == _EPOCH_MAX else command.epoch + 1
        moved = SessionMoved(session_id, following, command.asked, command.forgotten, command.now)
        if not command.forgotten and len(session.partitions) + len(command.asked) <= PARTITIONS_MAX:
            return [moved]
        left = session.partitions.keys() | {one.key for one in command.asked}
        left -= set(command.forgotten)
        # Empty, it is of no use any more; too large, its client may ask without one.
        return [moved] if 0 < len(left) <= PARTITIONS_MAX else [SessionEnded(session_id)]

    def _evicted(self, size: int, now: MonoMs) -> int | None:
        """Which session makes room for one of `size` partitions."""
        if not self._sessions:
            return None
        oldest = min(self._sessions, key=lambda one: self._sessions[one].used)
        if elapsed_ms(self._sessions[oldest].used, now) > EVICTION_MS:
            return oldest
        smallest = min(
            (
                (len(session.partitions), session_id)
                for session_id, session in self._sessions.items()
                if elapsed_ms(session.opened, session.used) > EVICTION_MS
            ),
            default=None,
        )
        return smallest[1] if smallest is not None and smallest[0] < size else None


def _change(session: Session, asked: Sequence[Asked], forgotten: Sequence[Key]) -> None:
    for one in asked:
        session.partitions[one.key] = one
    for key in forgotten:
        session.partitions.pop(key, None)
        session.told.pop(key, None)


def _tell(session: Session, told: Sequence[tuple[Key, Told]]) -> None:
    for key, found in told:
        asked = session.partitions.get(key)
        if asked is None:
            continue
        session.told[key] = found
        if found.has_records:
            # To the end, so that the others have their turn before it (KIP-74).
            del session.partitions[key]
            session.partitions[key] = asked
