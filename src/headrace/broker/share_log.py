"""What the log tells of share groups: who comes and goes and why, locks that end, records given up.

Records are told of together, as `ShareWatch` finds them each second; members at once.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from headrace.broker.share_meters import About, Notice
from headrace.core.runs import State, Status
from headrace.core.shard_words import (
    AdminCommand,
    AlterShareOffsets,
    DeleteShareGroup,
    DeleteShareOffsets,
    Event,
    Restarted,
)
from headrace.core.share_admin import TO_POLICY
from headrace.core.share_group import GroupForgotten, Member, MemberGone, MemberSeen
from headrace.core.share_words import DELAYED, Ended, ShareKey
from headrace.core.types import MemberId, Now, WallMs, elapsed_ms

log = logging.getLogger("headrace.broker")

LINES_MAX = 10  # of one kind at a time; what is left is summed up in one more
_NAME_TOLD_MAX = 100  # characters of a name that strangers choose
_NAMES_TOLD_MAX = 10  # in one line

# The events that are told of.
TOLD = (MemberSeen, MemberGone, Restarted, GroupForgotten)
SESSIONS_PAUSE_MS = 10_000  # between two lines about sessions that were refused
Named = Callable[[ShareKey], str]  # a share-partition as people call it, as in `orders-3`


class ShareLog:
    """A listener of one shard of share groups, which knows members by their last heartbeat.

    Args:
        now: both clocks.
    """

    def __init__(self, now: Callable[[], Now]) -> None:
        self._now = now
        self._members: dict[tuple[str, MemberId], Member] = {}
        self._counts: dict[str, int] = {}  # members by group

    def tell(self, events: Sequence[Event]) -> None:
        """Events were decided and applied."""
        for event in events:
            if isinstance(event, MemberSeen):
                self._seen(event.group, event.member)
            elif isinstance(event, MemberGone):
                self._gone(event.group, event.member)
            elif isinstance(event, Restarted):  # nobody of before is known any more
                self._members.clear()
                self._counts.clear()
            elif isinstance(event, GroupForgotten):
                self._forget(event.group)

    def _seen(self, group: str, member: Member) -> None:
        key = (group, member.id)
        if key not in self._members:
            self._counts[group] = self._counts.get(group, 0) + 1
            log.info(
                "share group %s: member %s of client %s /%s joined and reads %d partitions; "
                "members: %d",
                group, member.id, member.client_id[:_NAME_TOLD_MAX] or "-", member.client_host,
                len(member.told), self._counts[group],
            )  # fmt: skip
        self._members[key] = member

    def _gone(self, group: str, id_: MemberId) -> None:
        member = self._members.pop((group, id_), None)
        if member is None:
            return
        left = self._counts[group] = self._counts[group] - 1
        silent = member.expires <= self._now().mono
        log.info(
            "share group %s: member %s %s; it read %d partitions; members: %d",
            group, id_, "was silent for its session timeout" if silent else "left",
            len(member.told), left,
        )  # fmt: skip
        if not left:
            del self._counts[group]
            log.info(
                "share group %s has no members left; what they hold comes back when their "
                "connections or locks end",
                group,
            )

    def _forget(self, group: str) -> None:
        for key in [key for key in self._members if key[0] == group]:
            del self._members[key]
        self._counts.pop(group, None)


def tell_notices(notices: Mapping[About, Notice], rest: Notice, named: Named) -> None:
    """Locks ended, and records were given up."""
    told = 0
    left = rest.records
    for (key, holder, ended, state), notice in notices.items():
        if told == LINES_MAX:
            left += notice.records
            continue
        told += 1
        log.warning(
            _EXPIRED if ended is Ended.LOCK_EXPIRED else _GIVEN_BACK,
            key.group, notice.records, named(key), notice.first, notice.last, holder, _FATES[state],
        )  # fmt: skip
    if left:
        log.warning("locks of %d further records ended, or their deliveries are used up", left)


_EXPIRED = "share group %s: locks of %d records of %s (%d to %d) ended while member %s had them; %s"
_GIVEN_BACK = "share group %s: %d records of %s (%d to %d) were given back by member %s; %s"
_LAST = "the delivery limit is reached, they"
_FATES = {
    State.AVAILABLE: "others get them now",
    State.ARCHIVING: f"{_LAST} go to the dead-letter topic, or are listed as archived if it "
    "takes none",
    State.ARCHIVED: f"{_LAST} are archived without a dead letter",
}


def tell_sessions(refused: int, opened: int) -> None:
    """Members ask for records, and get none."""
    log.warning(
        "%d requests of share consumers were refused, as %d share sessions are open already: they "
        "get no records; raise group.share.max.share.sessions, or end consumers",
        refused, opened,
    )  # fmt: skip


def tell_full(
    key: ShareKey, name: str, unfinished: int, first: int, status: Status | None, now: Now
) -> None:
    """A share-partition takes no new records for some time, because one is not finished."""
    log.warning(
        "share group %s: %s takes no new records: %d are unfinished, the first is offset %d, "
        "%s; see `headrace share browse %s`",
        key.group, name, unfinished, first, _state(status, now), key.group,
        extra={"group": key.group, "partition": name, "offset": first},
    )  # fmt: skip


def _state(status: Status | None, now: Now) -> str:
    if status is None:
        return "which nobody has"
    delivered = f"delivered {status.deliveries} times"
    if status.state is State.ACQUIRED and status.deadline is not None:
        left_ms = elapsed_ms(now.mono, status.deadline)
        until = time_text(WallMs(now.wall + left_ms))
        if status.holder == DELAYED:
            return f"{delivered}, released with a delay until {until}"
        return f"{delivered}, held by {status.holder} until {until}"
    if status.state is State.ARCHIVING:
        return f"{delivered}, its dead letter is yet to be written"
    return f"{delivered}, held by nobody"


def tell_room(key: ShareKey, name: str, start: int) -> None:
    """A share-partition that was full takes new records again."""
    log.warning(
        "share group %s: %s takes new records again; the first unfinished one is offset %d",
        key.group, name, start,
    )  # fmt: skip


def tell_administered(command: AdminCommand, reply: Any, by: str) -> None:
    """An administrator changed a group; the reply tells what of it was refused."""
    match command:
        case AlterShareOffsets(group, starts):
            done = [one for one, refused in zip(starts, reply, strict=True) if refused is None]
            if not done:
                return
            places = [f"{topic}-{index} at {_start_text(start)}" for topic, index, start in done]
            log.info("share group %s is set to begin %s by %s", group, _listed(places), by)
        case DeleteShareOffsets(group, topics):
            gone = [name for name, refused in zip(topics, reply, strict=True) if refused is None]
            if gone:
                log.info("share group %s: %s forgotten by %s", group, _listed(gone), by)
        case DeleteShareGroup(group):
            log.info("share group %s was deleted by %s", group, by, extra={"always": True})


def _start_text(start: int) -> str:
    return "share.auto.offset.reset" if start == TO_POLICY else str(start)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_TOLD_MAX
    return ", ".join(names[:_NAMES_TOLD_MAX]) + (f" and {more} more" if more > 0 else "")


def time_text(wall: WallMs) -> str:
    """A time of the calendar for people, in UTC to the second."""
    return f"{datetime.fromtimestamp(wall / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
