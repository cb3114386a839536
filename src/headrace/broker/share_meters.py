"""What became of the records of share groups since the broker started, counted event by event.

A listener of the shards of share groups, which are told of events as they happen, once, and not of
those that a start replays. They count what was decided, of which a failing disk may keep nothing.
Counting must cost next to nothing: events of one command are alike in all but their offsets, so
what they mean is worked out once. Whoever wants to know more later (`ShareWatch`) finds here what
was touched, and which locks ended.
"""

from collections.abc import Sequence
from enum import IntEnum

from headrace.core.leases import LeaseAcquired, LeaseSeen
from headrace.core.runs import State
from headrace.core.settling import LIMIT_REACHED
from headrace.core.shard_words import Event, Forgotten, Restarted
from headrace.core.share_words import NO_RECORD, Acquired, Ended, Hold, Settled, ShareKey
from headrace.core.types import MemberId, MonoMs, WallMs

COUNTED = (Acquired, Settled, Forgotten)  # the events that change anything here
NOTICES_MAX = 1_000  # kinds of what happened that are told apart until somebody tells of them


class Meter(IntEnum):
    """What is counted, in records."""

    ACQUIRED = 0
    RENEWED = 1
    ACCEPTED = 2
    RELEASED = 3
    REJECTED = 4
    EXPIRED = 5
    ARCHIVED_REJECTED = 6
    ARCHIVED_LIMIT = 7
    ARCHIVED_RETENTION = 8
    ARCHIVED_GAP = 9
    DEAD_LETTERS = 10
    WITHOUT_DEAD_LETTER = 11


class ShareTraffic:
    """What became of the records of one share-partition.

    The window was first seen full at `full_since`, and stuck at `stuck_since` with SPSO `stuck_at`;
    `told` when the log says so. `dated` is the latest SPSO that was looked up, and its time.
    """

    __slots__ = ("counts", "dated", "full_since", "key", "stuck_at", "stuck_since", "told")

    def __init__(self, key: ShareKey) -> None:
        self.key = key
        self.counts = [0] * len(Meter)
        self.full_since: WallMs | None = None
        self.stuck_since: MonoMs | None = None
        self.stuck_at = -1
        self.told = False
        self.dated: tuple[int, int] | None = None


class Notice:
    """Records of one share-partition to which the same happened, with the same holder."""

    __slots__ = ("first", "last", "records")

    def __init__(self) -> None:
        self.first, self.last, self.records = -1, -1, 0

    def add(self, first: int, last: int) -> None:
        self.first = first if self.first < 0 else min(self.first, first)
        self.last = max(self.last, last)
        self.records += last - first + 1


# A share-partition, the holder, and what became of its records: why, and whether they were given up
About = tuple[ShareKey, MemberId | None, Ended | None, State]


class ShareMeters:
    """The counters of one broker, by share-partition."""

    def __init__(self) -> None:
        self.touched: set[ShareTraffic] = set()  # where records were acquired; taken by who looks
        self.notices: dict[About, Notice] = {}  # locks that ended, records given up; likewise
        self.rest = Notice()  # what is one too many for `notices`
        self.sessions_refused = 0  # as too many are open; likewise
        self._by_key: dict[ShareKey, ShareTraffic] = {}
        # By the id of the key: hashing it costs more than counting.
        self._by_id: dict[int, ShareTraffic] = {}

    def of(self, key: ShareKey) -> ShareTraffic:
        """The counters of a share-partition."""
        known = self._by_id.get(id(key))
        if known is not None:
            return known
        known = self._by_key.get(key)
        if known is None:
            known = self._by_key[key] = ShareTraffic(key)
        # A rebuilt machine has keys of its own. The one that is known by its id is kept alive.
        self._by_id.pop(id(known.key), None)
        known.key = key
        self._by_id[id(key)] = known
        return known

    def count(self, events: Sequence[Event]) -> None:
        """Events were decided and applied."""
        if not events:
            return
        kind = type(events[-1])
        given = _ACQUIRED if kind is Acquired or kind is Settled else self._look_beside(events)
        key: ShareKey | None = None
        like: tuple[State, str | None, Hold | None] | None = None
        for event in events:
            if type(event) is Acquired:
                if given is None:
                    continue
                at = event.key
                if at is not key or like is not None:
                    key, like = at, None
                    one = self.of(at)
                    self.touched.add(one)
                mark = _RENEWED if event.since is None else given
                one.counts[mark] += event.records
            elif type(event) is Settled:
                at, span, state, _, reason, hold = event
                if at is not key:
                    key, like = at, None
                    one = self.of(at)
                if like is None or like[0] is not state or like[2] is not hold or like[1] != reason:
                    like = state, reason, hold
                    marks, notice = _ACCEPTED, None
                    if state is not _ACKNOWLEDGED:
                        marks, notice = self._outcome(at, state, reason, hold)
                records = span.last - span.first + 1
                for mark in marks:
                    one.counts[mark] += records
                if notice is not None:
                    notice.add(span.first, span.last)

    def overtaken(self, key: ShareKey, records: int) -> None:
        """Retention removed records that the group had not finished."""
        self.of(key).counts[Meter.ARCHIVED_RETENTION] += records

    def taken(self) -> tuple[set[ShareTraffic], dict[About, Notice], Notice]:
        """What was touched and what happened since this was asked last, and what of it is left."""
        found = self.touched, self.notices, self.rest
        self.touched, self.notices, self.rest = set(), {}, Notice()
        return found

    def _look_beside(self, events: Sequence[Event]) -> int | None:
        """What acquisitions count as that come with events of another kind; None: as nothing.

        A lease that is asked again for what it has, or that renews it, acquires nothing; nor does
        one that takes its locks back when the broker starts.
        """
        kinds = {type(event) for event in events}
        if Forgotten in kinds:
            for event in events:
                if isinstance(event, Forgotten):
                    self._forget(event.key)
        if Restarted in kinds:
            return None
        renewed = LeaseSeen in kinds and LeaseAcquired not in kinds
        return _RENEWED if renewed else _ACQUIRED

    def _forget(self, key: ShareKey) -> None:
        gone = self._by_key.pop(key, None)
        if gone is not None:
            self._by_id.pop(id(gone.key), None)
            self.touched.discard(gone)

    def _outcome(
        self, key: ShareKey, state: State, reason: str | None, hold: Hold | None
    ) -> tuple[tuple[int, ...], Notice | None]:
        """What is counted, and where it is kept what of it somebody should be told.

        That is locks that ended, and records given up of which there will be a dead letter; of
        those without one others tell, with the list that they are in.
        """
        marks = _marks(state, reason, hold)
        if _EXPIRED not in marks and (_GIVEN_UP not in marks or state is _ARCHIVED):
            return marks, None
        about = (key, hold and hold.holder, hold and hold.ended, state)
        known = self.notices.get(about)
        if known is None:
            if len(self.notices) >= NOTICES_MAX:
                return marks, self.rest
            known = self.notices[about] = Notice()
        return marks, known


# Enumerations are looked up and added slowly, and this is asked of every acknowledgement.
_ACKNOWLEDGED, _AVAILABLE, _ARCHIVED = State.ACKNOWLEDGED, State.AVAILABLE, State.ARCHIVED
_LOCK_EXPIRED, _COPIED, _NOT_COPIED = Ended.LOCK_EXPIRED, Ended.COPIED, Ended.NOT_COPIED
_ACQUIRED, _RENEWED = int(Meter.ACQUIRED), int(Meter.RENEWED)
_EXPIRED, _GIVEN_UP = int(Meter.EXPIRED), int(Meter.ARCHIVED_LIMIT)
_ACCEPTED: tuple[int, ...] = (int(Meter.ACCEPTED),)
_WRITTEN = (int(Meter.DEAD_LETTERS),)
_LOST = (int(Meter.WITHOUT_DEAD_LETTER),)
_GAP = (int(Meter.ARCHIVED_GAP),)
_RELEASE, _EXPIRY = (int(Meter.RELEASED),), (_EXPIRED,)
_REJECTION = (int(Meter.REJECTED), int(Meter.ARCHIVED_REJECTED))


def _marks(state: State, reason: str | None, hold: Hold | None) -> tuple[int, ...]:
    """What is counted where records were settled so, and not accepted."""
    ended = None if hold is None else hold.ended
    given_back = _EXPIRY if ended is _LOCK_EXPIRED else _RELEASE
    if state is _AVAILABLE:
        return given_back
    if ended is _COPIED:  # what became of them was counted when they were given up
        return _WRITTEN
    if ended is _NOT_COPIED:
        return _LOST
    if reason == NO_RECORD:
        return _GAP
    lost = _LOST if state is _ARCHIVED else ()
    if reason is not None and reason.startswith(LIMIT_REACHED):
        return (*given_back, _GIVEN_UP, *lost)
    return (*_REJECTION, *lost)
