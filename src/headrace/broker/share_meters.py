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
from headrace.core.types import MemberId, WallMs

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
        self.stuck_since: WallMs | None = None
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
        self._by_key: dict[ShareKey, ShareTraffic] = {}
        self._by_id: dict[
            int, ShareTraffic
        ] = {}  # of the key: hashing one costs more than counting

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
        meter: Meter | None = Meter.ACQUIRED
        if type(events[-1]) not in _OF_MEMBERS:
            meter = self._look_beside(events)
        one: ShareTraffic | None = None
        outcome: tuple[object, ...] = ()
        marks: tuple[Meter, ...] = ()
        notice: Notice | None = None
        for event in events:
            if isinstance(event, Settled):
                key, span, state, _, reason, hold = event
                if one is None or key is not one.key:
                    one, outcome = self.of(key), ()
                if outcome != (state, reason, hold):
                    outcome, marks = (state, reason, hold), _marks(state, reason, hold)
                    notice = self._notice(key, state, hold, marks)
                first, last = span.first, span.last
                for mark in marks:
                    one.counts[mark] += last - first + 1
                if notice is not None:
                    notice.add(first, last)
            elif isinstance(event, Acquired) and meter is not None:
                if one is None or event.key is not one.key:
                    one, outcome = self.of(event.key), ()
                self.touched.add(one)
                span = event.span
                taken = Meter.RENEWED if event.since is None else meter
                one.counts[taken] += span.last - span.first + 1

    def overtaken(self, key: ShareKey, records: int) -> None:
        """Retention removed records that the group had not finished."""
        self.of(key).counts[Meter.ARCHIVED_RETENTION] += records

    def taken(self) -> tuple[set[ShareTraffic], dict[About, Notice], Notice]:
        """What was touched and what happened since this was asked last, and what of it is left."""
        found = self.touched, self.notices, self.rest
        self.touched, self.notices, self.rest = set(), {}, Notice()
        return found

    def _look_beside(self, events: Sequence[Event]) -> Meter | None:
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
        return (
            Meter.RENEWED if LeaseSeen in kinds and LeaseAcquired not in kinds else Meter.ACQUIRED
        )

    def _forget(self, key: ShareKey) -> None:
        gone = self._by_key.pop(key, None)
        if gone is not None:
            self._by_id.pop(id(gone.key), None)
            self.touched.discard(gone)

    def _notice(
        self, key: ShareKey, state: State, hold: Hold | None, marks: tuple[Meter, ...]
    ) -> Notice | None:
        """What of this somebody should be told, if so."""
        if Meter.EXPIRED not in marks and Meter.ARCHIVED_LIMIT not in marks:
            return None
        about = (key, hold and hold.holder, hold and hold.ended, state)
        known = self.notices.get(about)
        if known is None:
            if len(self.notices) >= NOTICES_MAX:
                return self.rest
            known = self.notices[about] = Notice()
        return known


_OF_MEMBERS = (Settled, Acquired)


def _marks(state: State, reason: str | None, hold: Hold | None) -> tuple[Meter, ...]:
    """What is counted where records were settled so."""
    ended = None if hold is None else hold.ended
    if state is State.ACKNOWLEDGED:
        return (Meter.ACCEPTED,)
    if ended is Ended.COPIED:  # what became of them was counted when they were given up
        return (Meter.DEAD_LETTERS,)
    if ended is Ended.NOT_COPIED:
        return (Meter.WITHOUT_DEAD_LETTER,)
    if reason == NO_RECORD:
        return (Meter.ARCHIVED_GAP,)
    expired = ended is Ended.LOCK_EXPIRED
    given_back = Meter.EXPIRED if expired else Meter.RELEASED
    if state is State.AVAILABLE:
        return (given_back,)
    lost = (Meter.WITHOUT_DEAD_LETTER,) if state is State.ARCHIVED else ()
    if reason is not None and reason.startswith(LIMIT_REACHED):
        return (given_back, Meter.ARCHIVED_LIMIT, *lost)
    return (Meter.REJECTED, Meter.ARCHIVED_REJECTED, *lost)
