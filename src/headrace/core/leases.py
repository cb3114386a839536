"""Leases: ranges of records held by a session that outlives its process (design §6).

Theory of operation. A session is named by its reader (a Spark checkpoint), opened with a fencing
epoch, and acquires ranges under ascending numbers. All of it is durable, unlike the acquisition
locks of ordinary members: after a restart, of the reader or of the broker, the ranges of every
number not yet committed are claimed again. Dispositions are staged under a number and take effect
with its commit, together with the acceptance of the rest. They are staged by part: the tasks of a
batch each stage theirs, and one that is run again replaces what it staged itself. Source: the lease
protocol of docs/spark.md, whose failure matrix says what each crash point leaves behind.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import pairwise
from typing import NamedTuple, TypeVar, assert_never

from headrace.core.errors import Refused, Why
from headrace.core.share_words import DELAYED, ShareKey, Verdict
from headrace.core.types import MemberId, MonoMs, Now, Span

LeaseKey = tuple[str, str]  # group and session

PART_BYTES_MAX = 1_000  # of the name of a part
PARTS_MAX = 10_000  # that stage under one number
STAGED_MAX = 1_000_000  # ranges that are staged under one number
ACQUIRED_RANGES_MAX = 2_000  # that one command acquires, a few hundred more at most: 10 ms
ACQUIRED_PARTITIONS_MAX = 200  # that one command acquires records of: 10 ms
FREED_MAX = 2_000  # ranges that are freed in one step, and discarded: a millisecond
REASON_LENGTH_MAX = 10_000
DELAY_MS_MAX = 366 * 24 * 3_600_000

_SORTED_MAX = 10_000  # ranges that are sorted in one go
_LEASE = "lease/"  # what its name among the holders of records begins with


@dataclass(frozen=True, slots=True)
class Held:
    """A range on its `deliveries`-th delivery to the session."""

    key: ShareKey
    span: Span
    deliveries: int


@dataclass(frozen=True, slots=True)
class Staged:
    """What shall become of a range at the commit; if released, not before `delay_ms` after it."""

    key: ShareKey
    span: Span
    verdict: Verdict
    reason: str | None = None
    delay_ms: int = 0

    @property
    def strictness(self) -> tuple[Verdict, int, str]:
        """Of what several parts say of a record, the highest holds."""
        return self.verdict, self.delay_ms, self.reason or ""


@dataclass(frozen=True, slots=True)
class Acquisition:
    """All that was acquired under one number, and what was staged by part, by drivers of `epoch`.

    What drivers before those staged may be of a batch that was since cut into other tasks.
    """

    held: tuple[Held, ...]  # in order of share-partitions and offsets, as what a part staged
    parts: Mapping[str, tuple[Staged, ...]] = field(default_factory=dict)
    epoch: int = 0

    @property
    def ranges(self) -> int:
        """How many ranges are held and staged."""
        return len(self.held) + sum(map(len, self.parts.values()))

    def kept(self, epoch: int) -> Mapping[str, tuple[Staged, ...]]:
        """The parts that stay when a driver of `epoch` stages."""
        return self.parts if epoch == self.epoch else {}

    def with_part(self, name: str, staged: tuple[Staged, ...], epoch: int) -> "Acquisition":
        """It, when a part was staged by a driver of `epoch`; one that says nothing is not kept."""
        parts = {one: said for one, said in self.kept(epoch).items() if one != name}
        return Acquisition(self.held, {**parts, name: staged} if staged else parts, epoch)

    def is_changed_by(self, name: str, staged: Sequence[Staged], epoch: int) -> bool:
        """Whether it makes a difference that a part is staged by a driver of `epoch`."""
        return bool(staged) or name in self.parts or self.kept(epoch) != self.parts

    def without(self, keys: frozenset[ShareKey]) -> "Acquisition":
        """Return what is left when nothing is held of these share-partitions; most often itself."""
        held = _outside_of(keys, self.held)
        if len(held) == len(self.held):
            return self
        parts = {name: _outside_of(keys, part) for name, part in self.parts.items()}
        return Acquisition(held, parts, self.epoch)

    def columns(self) -> list[tuple[object, ...]]:
        """Return the long data that it consists of."""
        return [self.held, *self.parts.values()]


@dataclass(frozen=True, slots=True)
class LeaseOpened:
    """The session has a new driver; calls with an older epoch are fenced. Durable."""

    lease: LeaseKey
    epoch: int
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeaseAcquired:
    """Ranges were acquired under a number. Durable."""

    lease: LeaseKey
    seq: int
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class LeaseStaged:
    """A part staged dispositions under a number, in place of its earlier ones. Durable."""

    lease: LeaseKey
    seq: int
    part: str
    epoch: int
    staged: tuple[Staged, ...]


@dataclass(frozen=True, slots=True)
class LeaseCommitted:
    """Every number up to `seq` is settled. Durable."""

    lease: LeaseKey
    seq: int


@dataclass(frozen=True, slots=True)
class Remainders:
    """What is left of acquisitions without all that they have of some share-partitions.

    `pairs` are the acquisition as it was, and what is left of it.
    """

    keys: frozenset[ShareKey] = frozenset()
    pairs: tuple[tuple[Acquisition, Acquisition], ...] = ()

    def extended(self, acquisitions: Iterable[Acquisition]) -> "Remainders":
        """Return it with what is left of further acquisitions."""
        added = [(before, before.without(self.keys)) for before in acquisitions]
        return Remainders(self.keys, (*self.pairs, *added))


@dataclass(frozen=True, slots=True)
class LeaseDiscarded:
    """What the session had of some share-partitions went with their in-flight state. Durable.

    `left` is what is left of each number that had some of it.
    """

    lease: LeaseKey
    left: tuple[tuple[int, Acquisition], ...]


@dataclass(frozen=True, slots=True)
class LeaseForgotten:
    """The session is no more: its group was deleted. Durable."""

    lease: LeaseKey


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """The session made a call: it counts as a member of its group until then. Volatile."""

    lease: LeaseKey
    until: MonoMs


@dataclass(frozen=True, slots=True)
class LeaseRestored:
    """The whole state of a session, as its journal record has it. Only in recovery."""

    lease: LeaseKey
    epoch: int
    committed: int
    topics: tuple[str, ...]
    acquisitions: tuple[tuple[int, Acquisition], ...]


LeaseEvent = (
    LeaseOpened
    | LeaseAcquired
    | LeaseStaged
    | LeaseCommitted
    | LeaseDiscarded
    | LeaseRestored
    | LeaseSeen
)


@dataclass(slots=True)
class Lease:
    """One session's state, changed by `apply` alone."""

    key: LeaseKey
    epoch: int = 0
    committed: int = 0
    topics: tuple[str, ...] = ()
    acquisitions: dict[int, Acquisition] = field(default_factory=dict)
    seen_until: MonoMs | None = field(default=None, compare=False)  # volatile, as locks are

    @property
    def holder(self) -> MemberId:
        """Its name among the holders of records; too long for a member's id on the wire."""
        return MemberId(f"{_LEASE}{self.key[1]:>32}")

    @property
    def last_seq(self) -> int:
        """The highest number committed or acquired."""
        return max(self.committed, *self.acquisitions) if self.acquisitions else self.committed

    def is_member(self, now: Now) -> bool:
        """Whether its driver is at work, as far as can be told: what it holds, it may yet commit.

        It has no heartbeat; it counts for as long after a call as the locks of that call last.
        """
        return self.seen_until is not None and self.seen_until > now.mono

    def fence(self, epoch: int) -> Refused | None:
        """Refuse a driver that another one has replaced."""
        if epoch == self.epoch:
            return None
        return Refused(
            Why.STALE_EPOCH,
            f"Session {self.key[1]} was opened again at epoch {self.epoch}; this is epoch {epoch}: "
            "another driver runs on the same checkpoint.",
        )

    def check_new(self, seq: int) -> Refused | None:
        """Refuse a number that does not follow all known ones."""
        if seq > self.last_seq:
            return None
        return Refused(
            Why.INVALID_REQUEST,
            f"Acquisition {seq} is already committed; {self.last_seq} is the last.",
        )

    def check_part(self, seq: int, part: str, ranges: int) -> Refused | None:
        """Refuse a part of so many ranges of a number that is not outstanding, and too many."""
        acquisition = self.acquisitions.get(seq)
        if acquisition is None:
            return Refused(Why.INVALID_REQUEST, f"Acquisition {seq} is not outstanding.")
        beside = {name: one for name, one in acquisition.kept(self.epoch).items() if name != part}
        if len(beside) >= PARTS_MAX or len(part.encode()) > PART_BYTES_MAX:
            return Refused(
                Why.INVALID_REQUEST,
                f"A number is staged by at most {PARTS_MAX} parts, with names of at most "
                f"{PART_BYTES_MAX} bytes.",
            )
        if ranges + sum(map(len, beside.values())) > STAGED_MAX:
            return Refused(
                Why.INVALID_REQUEST,
                f"At most {STAGED_MAX} ranges are staged under a number; acquire fewer records.",
            )
        return None

    def apply(self, event: LeaseEvent) -> None:
        """The only place where the session changes."""
        match event:
            case LeaseOpened(_, epoch, topics):
                self.epoch, self.topics = epoch, topics
            case LeaseAcquired(_, seq, held):
                self.acquisitions[seq] = Acquisition(held)
            case LeaseStaged(_, seq, part, epoch, staged):
                self.acquisitions[seq] = self.acquisitions[seq].with_part(part, staged, epoch)
            case LeaseCommitted(_, seq):
                self.committed = max(self.committed, seq)
                for done in [number for number in self.acquisitions if number <= seq]:
                    del self.acquisitions[done]
            case LeaseDiscarded(_, left):
                # The numbers stay: a batch that is planned again under one must not be given other
                # records, which a sink that has that batch already would drop.
                self.acquisitions.update(left)
            case LeaseSeen(_, until):
                self.seen_until = until
            case LeaseRestored(_, epoch, committed, topics, acquisitions):
                self.epoch, self.committed, self.topics = epoch, committed, topics
                self.acquisitions = dict(acquisitions)
            case _:
                assert_never(event)


def unused(acquisitions: Iterable[Acquisition]) -> list[tuple[object, ...]]:
    """Return the data of acquisitions that are no more, if it takes long to free."""
    columns = [column for one in acquisitions for column in one.columns()]
    return columns if sum(map(len, columns)) > FREED_MAX else []


def in_order(staged: Iterable[Staged]) -> tuple[Staged, ...]:
    """Return dispositions by share-partition and offset.

    What is in order already is sorted in one go. The rest is sorted in pieces that are merged: a
    thread that sorts a million of them in one go keeps the interpreter for half a second.
    """
    found: list[Staged] = []
    for _, ranges in sorted(_by_key(staged).items()):
        found += ranges
    return tuple(found)


def check_ranges(
    seq: int, held: Sequence[Held], staged: Sequence[Staged], at: int, until: int
) -> Refused | None:
    """Refuse dispositions of records that were not acquired under a number, or given twice.

    Looks at those numbered `at` to `until`, exclusive; both sequences are in order.
    """
    before = staged[at - 1] if at else None
    while at < until:
        key = staged[at].key
        stop = at + 1
        while stop < until and staged[stop].key == key:
            stop += 1
        ranges = staged[at:stop]
        if before is not None and before.key == key:
            ranges = (before, *ranges)
        elif before is not None and before.key > key:
            return Refused(Why.INVALID_REQUEST, f"Records {staged[at].span} are out of order.")
        for one, following in pairwise(ranges):
            if following.span.first <= one.span.last:
                return Refused(
                    Why.INVALID_REQUEST, f"Records {following.span} have two dispositions."
                )
        low = bisect_left(held, key, key=_key)
        outside = _outside(staged[at:stop], held, low, bisect_right(held, key, lo=low, key=_key))
        if outside is not None:
            return Refused(
                Why.INVALID_REQUEST,
                f"Records {outside.span} of partition {key.partition} were not acquired under "
                f"{seq}.",
            )
        before, at = staged[stop - 1], stop
    return None


class Claim(NamedTuple):
    """Records that a commit settles if the session still has them: as staged, or accepted."""

    held: Held
    span: Span
    staged: Staged | None


def claims(acquisition: Acquisition) -> Iterator[Claim]:
    """Yield every held range in parts: as staged, the strictest first, and the rest accepted."""
    staged = {key: _strictest(found) for key, found in _merged(acquisition.parts.values()).items()}
    of: ShareKey | None = None
    ranges: Sequence[Staged] = ()
    low = 0
    for held in acquisition.held:
        span = held.span
        if held.key is not of:
            of, ranges, low = held.key, staged.get(held.key, ()), 0
        at = first = span.first
        last = span.last
        while low < len(ranges) and ranges[low].span.last < first:
            low += 1
        for index in range(low, len(ranges)):
            one = ranges[index]
            begin, end = one.span.first, one.span.last
            if begin > last:
                break
            if at < begin:
                yield Claim(held, Span(at, begin - 1), None)
            whole = first <= begin and end <= last
            part = one.span if whole else Span(max(begin, first), min(end, last))
            yield Claim(held, part, one)
            at = end + 1
        if at <= last:
            rest = span if at == first else Span(at, last)
            yield Claim(held, rest, None)


def _merged(parts: Iterable[Sequence[Staged]]) -> dict[ShareKey, list[Staged]]:
    """Return what parts staged of each share-partition, by offset; each part is in order."""
    found: dict[ShareKey, list[list[Staged]]] = {}
    for part in parts:
        for key, ranges in _by_key(part).items():
            found.setdefault(key, []).append(ranges)
    return {
        key: lists[0] if len(lists) == 1 else list(merge(*lists, key=_first))
        for key, lists in found.items()
    }


def _strictest(ranges: list[Staged]) -> list[Staged]:
    """Of ranges in order, ones that do not overlap: of what is said of a record the strictest."""
    if all(one.span.last < following.span.first for one, following in pairwise(ranges)):
        return ranges
    found: list[Staged] = []
    open_: list[Staged] = []  # those that began, and may go on
    begun = 0
    edges = sorted({edge for one in ranges for edge in (one.span.first, one.span.last + 1)})
    for first, stop in pairwise(edges):
        while begun < len(ranges) and ranges[begun].span.first == first:
            open_.append(ranges[begun])
            begun += 1
        open_ = [one for one in open_ if one.span.last >= first]
        if open_:
            strictest = max(open_, key=lambda one: one.strictness)
            found.append(replace(strictest, span=Span(first, stop - 1)))
    return found


RangeT = TypeVar("RangeT", Held, Staged)


def _outside_of(keys: frozenset[ShareKey], ranges: tuple[RangeT, ...]) -> tuple[RangeT, ...]:
    """Return the ranges of other share-partitions than these."""
    key, is_gone, left = None, False, list[RangeT]()
    for held in ranges:
        if held.key is not key:  # hashing names costs more than all the rest
            key = held.key
            is_gone = key in keys
        if not is_gone:
            left.append(held)
    return ranges if len(left) == len(ranges) else tuple(left)


def _by_key(ranges: Iterable[RangeT]) -> dict[ShareKey, list[RangeT]]:
    """Return the ranges of each share-partition, by offset."""
    grouped: dict[ShareKey, list[RangeT]] = {}
    key, group = None, list[RangeT]()
    for one in ranges:
        if one.key is not key:  # most often there are few, and neighbours share them
            key = one.key
            group = grouped.setdefault(key, [])
        group.append(one)
    return {key: _sorted(group) for key, group in grouped.items()}


def _sorted(ranges: list[RangeT]) -> list[RangeT]:
    """Return ranges by offset."""
    if len(ranges) <= _SORTED_MAX or all(a.span.first <= b.span.first for a, b in pairwise(ranges)):
        return sorted(ranges, key=_first)
    pieces = (ranges[at : at + _SORTED_MAX] for at in range(0, len(ranges), _SORTED_MAX))
    return list(merge(*(sorted(one, key=_first) for one in pieces), key=_first))


def _key(one: Held | Staged) -> ShareKey:
    return one.key


def _first(one: Held | Staged) -> int:
    return one.span.first


def _last(one: Held | Staged) -> int:
    return one.span.last


def _outside(ranges: Sequence[Staged], held: Sequence[Held], at: int, stop: int) -> Staged | None:
    """Return the first of the sorted ranges that is not wholly within `held` from `at` to `stop`.

    That is sorted as well.
    """
    for one in ranges:
        reach, last = one.span.first, one.span.last
        if at < stop and held[at].span.last < reach:
            at += 1  # most often it is the next one
            if at < stop and held[at].span.last < reach:
                at = bisect_left(held, reach, at, stop, key=_last)
        index = at
        while reach <= last:
            if index == stop or held[index].span.first > reach:
                return one
            reach = held[index].span.last + 1
            index += 1
    return None


def told_holder(holder: MemberId) -> str:
    """A holder of records as people are told it: without what makes a lease's name long.

    >>> told_holder(Lease(("work", "checkpoint")).holder)
    'lease/checkpoint'
    >>> told_holder(DELAYED)
    'delayed'
    """
    if holder == DELAYED:
        return "delayed"
    if holder.startswith(_LEASE):
        return f"{_LEASE}{holder.removeprefix(_LEASE).lstrip()}"
    return holder
