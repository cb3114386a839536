"""What a reader of a growing topic is held to: an account of every record and who read it.

It shares no code with what decides where readers start. It knows what producers, administrators
and members were answered, at the moment the answer left the broker, and what the application was
given. The group has started once a first offset of it is committed: from then on somebody else
could know that it exists.
"""

from collections import defaultdict
from dataclasses import dataclass, field

Place = tuple[str, int]

_TOLD_MAX = 5  # places with missing records that a failure names


@dataclass(slots=True)
class _Partition:
    """One partition as the auditor saw it; times in microseconds."""

    asked_us: int  # when its creation was asked for
    values: dict[int, bytes] = field(default_factory=dict)
    produced_us: dict[int, int] = field(default_factory=dict)  # when each was asked to be written
    read: set[int] = field(default_factory=set)
    is_committed: bool = False
    first_end: int | None = None  # where the first look for the end found it
    last_end: int = 0  # likewise the last, of those that nothing was committed before


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the records that were produced after the group had started.

    `lost` are those of partitions that came after the start, `before_look` those of older ones,
    written before their first reader looked for the end; `grown` is how many partitions came.
    """

    produced: int
    lost: int
    before_look: int
    grown: int


class GrowthAuditor:
    """The account of one group.

    Args:
        loses: whether partitions that come later are begun at their end, as `latest` does.
    """

    def __init__(self, *, loses: bool) -> None:
        self.failures: list[str] = []
        self.started_us: int | None = None
        self._loses = loses
        self._partitions: dict[Place, _Partition] = {}
        self._given: dict[str, int] = defaultdict(int)

    # ---- what the world tells

    def created(self, topic: str, first: int, count: int, asked_us: int) -> None:
        """A topic has `count` partitions, those from `first` on since now."""
        for number in range(first, count):
            self._partitions.setdefault((topic, number), _Partition(asked_us))

    def produced(self, place: Place, base: int, values: list[bytes], asked_us: int) -> None:
        """Records were written, and the producer is told so."""
        known = self._partitions[place]
        for offset, value in enumerate(values, base):
            known.values[offset] = value
            known.produced_us[offset] = asked_us

    def committed(self, place: Place, now_us: int) -> None:
        """An offset of the group is committed, and a member is told so."""
        if self.started_us is None:
            self.started_us = now_us
        self._partitions[place].is_committed = True

    def found(self, place: Place, offset: int, now_us: int) -> None:
        """A member is told that this is committed; by the broker itself, or in a lost answer."""
        known = self._partitions[place]
        if not known.is_committed:
            known.last_end = max(known.last_end, offset)
            self.committed(place, now_us)

    def looked(self, place: Place, end: int) -> None:
        """A member looked for the end of a partition, to begin there."""
        known = self._partitions[place]
        if known.is_committed:
            return  # no reason to begin there: what is lost by it is a failure
        if known.first_end is None:
            known.first_end = end
        known.last_end = max(known.last_end, end)

    def read(self, member: str, place: Place, offset: int, value: bytes) -> None:
        """The application was given a record."""
        known = self._partitions[place]
        if known.values.get(offset, value) != value:
            self._fail(f"{member} was given {value!r} as {place} @{offset}")
        known.read.add(offset)
        self._given[member] += 1

    # ---- what comes of it

    def missing(self) -> list[tuple[Place, int]]:
        """Records that nobody read yet although somebody has to."""
        return [
            (place, offset)
            for place, known in self._partitions.items()
            for offset in self._unread(known)
            if offset >= self._end_of_excused(known)
        ]

    def settle(self) -> Account:
        """Judge, once everybody had the time to read everything."""
        missing = self.missing()
        for place in sorted({place for place, _ in missing})[:_TOLD_MAX]:
            offsets = [offset for where, offset in missing if where == place]
            kind = "came after the start" if self._is_new(self._partitions[place]) else "is old"
            self._fail(
                f"{len(offsets)} records of {place[0]}-{place[1]}, which {kind}, were skipped: "
                f"{offsets[:_TOLD_MAX]}"
            )
        account = Account(0, 0, 0, 0)
        for place, known in self._partitions.items():
            if self._loses:
                self._look_for_what_cannot_be(place, known)
            unread = len(self._unread(known))
            is_new = self._is_new(known)
            account = Account(
                account.produced + sum(map(self._counts, known.produced_us.values())),
                account.lost + (unread if is_new else 0),
                account.before_look + (0 if is_new else unread),
                account.grown + is_new,
            )
        return account

    def _look_for_what_cannot_be(self, place: Place, known: _Partition) -> None:
        """The other direction: what lies before the first look can be nobody's."""
        if known.first_end is None or not self._is_new(known):
            return
        early = sorted(offset for offset in known.read if offset < known.first_end)
        if early:
            self._fail(f"{place} begins at {known.first_end}, and {early[:_TOLD_MAX]} were read")

    def _end_of_excused(self, known: _Partition) -> int:
        """Up to where records may be skipped."""
        return known.last_end if self._loses or not self._is_new(known) else 0

    def _unread(self, known: _Partition) -> list[int]:
        produced = known.produced_us
        return [o for o in known.values if o not in known.read and self._counts(produced[o])]

    def _counts(self, produced_us: int) -> bool:
        return self.started_us is not None and produced_us > self.started_us

    def _is_new(self, known: _Partition) -> bool:
        return self.started_us is not None and known.asked_us > self.started_us

    def _fail(self, what: str) -> None:
        self.failures.append(what)
