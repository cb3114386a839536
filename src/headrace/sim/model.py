"""The reference model of one queue: an entry an offset, written from the state diagram of KIP-932.

It shares no code with the machine and knows no runs. Where the machine may choose (how many records
it gives at once) the model checks that the choice is allowed; everything else it predicts.
Leases are as docs/spark.md tells them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile

from headrace.sim.staged_model import StagedModel

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED, DELAYED = (
    "available", "acquired", "acknowledged", "archiving", "archived", "delayed",
)  # fmt: skip
LEASE = "lease"

NO_RECORD = "no record at this offset"
REMOVED = "removed from the log, by retention or an administrator, before it was finished"

Given = list[tuple[int, int, int]]  # first and last offset, delivery
Taken = list[tuple[int, int]]  # offset and delivery
Listed = tuple[int, int, str, str]  # offset, deliveries, reason and last holder
Ended = tuple[int, str, str]  # delivery, holder, and how it ended

_OUTCOMES = {"accept": "accepted", "reject": "rejected", "release": "released", "gap": "no record"}


@dataclass(frozen=True, slots=True)
class Ask:
    """Somebody wants `budget` of the records from `first` to `last`.

    `room` is how many new records may be in flight besides. Where more than asked for is right,
    `batch_ends` are the last offsets of the record batches. `isolates` where what is near the
    delivery limit shrinks.
    """

    holder: str
    first: int
    last: int
    budget: int
    room: int
    batch_ends: tuple[int, ...] = ()
    isolates: bool = False


@dataclass(slots=True)
class Cell:
    """One record. `stored` is the delivery that a crash takes an acquired record back to.

    `holder` has it, or had it last when it was archived.
    `leased` is the delivery under which an uncommitted number of the lease has the record. `lot`
    are the first and last of those that were delivered with it when redelivery began to shrink.
    """

    state: str = AVAILABLE
    deliveries: int = 0
    holder: str = ""
    until: int = 0
    stored: int = 0
    leased: int = 0
    reason: str = ""
    lot: tuple[int, int] | None = None

    @property
    def finished(self) -> bool:
        return self.state in (ACKNOWLEDGED, ARCHIVED)

    @property
    def delivered(self) -> tuple[str, int, tuple[int, int] | None]:
        return self.state, self.deliveries, self.lot


class Model:
    """One queue and one lease on it; offsets from 0 on."""

    def __init__(self, *, limit: int, lock_ms: int, dead_letters: bool, start: int = 0) -> None:
        self.cells: dict[int, Cell] = {}
        self.start = start
        self.end = start
        self.accepted: set[int] = set()
        self.leaving: set[str] = set()  # whose records are released in portions
        self.numbers: dict[int, list[int]] = {}
        self.staged = StagedModel()
        self.committed = 0  # the highest number that is
        self.listed: list[Listed] = []  # archived without a dead letter
        self.told: dict[int, list[Ended]] = {}  # every delivery that ended, since ever
        self._lock_ms = lock_ms
        self.set_policy(limit, dead_letters=dead_letters)

    def set_policy(self, limit: int, *, dead_letters: bool) -> None:
        """What is settled from now on is settled so."""
        self._limit = limit
        self._archive = ARCHIVING if dead_letters else ARCHIVED
        self._shrinks_from = max(2, -(-limit // 2))

    # ---- acquisitions

    def give(self, ask: Ask, given: Given, now: int) -> None:
        """The machine gave these: may it?"""
        taken = [(o, count) for first, last, count in given for o in range(first, last + 1)]
        assert [offset for offset, _ in taken] == sorted({offset for offset, _ in taken})
        wanted = self.wanted(ask)
        allowed = dict(wanted) if not ask.batch_ends else self._whole(ask)
        assert bool(taken) == bool(wanted), f"{taken} for {ask}, of {wanted}"
        assert set(taken) <= allowed.items(), f"{taken} for {ask}, of {allowed}"
        if ask.batch_ends:
            self._check_batches(ask, taken)
        elif not ask.isolates:
            assert taken == wanted, f"{taken} for {ask}, not {wanted}"
        near = self._check_shrinking(ask, taken) if ask.isolates and taken else None
        for first, last, count in given:
            self.extend(last + 1)
            for offset in range(first, last + 1):
                assert offset not in self.accepted, f"{offset} was accepted, and is given again"
                self.lock(self.cells[offset], ask.holder, count, now)
                if near is not None:
                    self.cells[offset].lot = near
                elif ask.isolates and count == self._shrinks_from:
                    self.cells[offset].lot = (first, last)

    def wanted(self, ask: Ask) -> Taken:
        """What there is to be given, the first of it as many as are asked for."""
        return self._free(ask, ask.room)[: ask.budget]

    def _whole(self, ask: Ask) -> dict[int, int]:
        """What there is to be given when record batches are not cut."""
        return dict(self._free(ask, ask.last + 1 if ask.room > 0 else 0))

    def _free(self, ask: Ask, room: int) -> Taken:
        if ask.holder in self.leaving:
            return []
        known = range(max(ask.first, self.start), min(ask.last + 1, self.end))
        found = [(o, self.cells[o].deliveries + 1) for o in known if self.is_free(o)]
        if ask.first <= self.end:
            beyond = range(self.end, min(ask.last + 1, self.end + max(room, 0)))
            found += [(offset, 1) for offset in beyond]
        return found

    def is_free(self, offset: int) -> bool:
        return self.cells[offset].state == AVAILABLE

    def _check_batches(self, ask: Ask, taken: Taken) -> None:
        """More than asked for is given to the end of a batch only."""
        if not taken:
            return
        batch_first = max((end + 1 for end in ask.batch_ends if end < taken[-1][0]), default=0)
        before = [offset for offset, _ in taken if offset < batch_first]
        assert len(before) < ask.budget, f"{taken} for {ask}"
        fresh = [offset for offset in before if offset >= self.end]
        assert len(fresh) < ask.room or taken[-1][0] < self.end, f"{taken} beyond the window: {ask}"

    def _check_shrinking(self, ask: Ask, taken: Taken) -> tuple[int, int] | None:
        """Who is near the limit comes alone: of one lot, by halves, and one by one at the end.

        The lot of those who are; None where nobody is.
        """
        first, count = taken[0][0], taken[0][1] - 1
        told = f"{taken} for {ask}, lot {self.cells[first].lot if first < self.end else None}"
        if count < self._shrinks_from:
            alone = takewhile(lambda one: one[1] - 1 < self._shrinks_from, self.wanted(ask))
            assert ask.batch_ends or taken == [*alone], told
            assert all(one - 1 < self._shrinks_from for _, one in taken), told
            return None
        low, high = self.cells[first].lot or (first, self._alike_to(first))
        room = max(1, (high - low + 1) >> (count - self._shrinks_from + 1))
        assert len(taken) <= room, told
        assert taken[-1][0] <= high, told
        assert len(taken) == 1 or self._limit == 2 or count < self._limit - 1, told
        return low, high

    def _alike_to(self, offset: int) -> int:
        """The last of the free records from one on that were delivered as often."""
        last = offset
        one = self.cells[offset]
        while last + 1 < self.end and self.cells[last + 1].delivered == one.delivered:
            last += 1
        return last

    def gap(self, first: int, last: int) -> None:
        """A reader found no records there."""
        if first <= self.end:
            self.extend(last + 1)
        for offset in range(max(first, self.start), min(last + 1, self.end)):
            if self.is_free(offset):
                self.cells[offset].state, self.cells[offset].reason = ARCHIVED, NO_RECORD
                self.cells[offset].holder = ""
        self._follow()

    def extend(self, end: int) -> None:
        """Records up to `end` are in flight."""
        for offset in range(self.end, end):
            self.cells.setdefault(offset, Cell())
        self.end = max(self.end, end)

    def lock(self, cell: Cell, holder: str, deliveries: int, now: int) -> None:
        cell.state, cell.holder, cell.deliveries = ACQUIRED, holder, deliveries
        cell.reason = ""
        cell.until = now + self._lock_ms

    @property
    def unfinished(self) -> int:
        """Records in flight that are not finished."""
        return sum(not self.cells[offset].finished for offset in range(self.start, self.end))

    # ---- verdicts

    def may_say(self, holder: str, first: int, last: int) -> bool:
        """Whether an acknowledgement of a range holds."""
        if last < self.start:
            return True
        return last < self.end and all(
            (self.cells[offset].state, self.cells[offset].holder) == (ACQUIRED, holder)
            for offset in range(max(first, self.start), last + 1)
        )

    def say(self, verdicts: Mapping[int, str], reason: str, now: int) -> None:
        """An acknowledgement of some offsets by their holder."""
        for offset, verdict in verdicts.items():
            cell = self.cells[offset]
            if verdict == "renew":
                self.lock(cell, cell.holder, cell.deliveries, now)
            else:
                self.settle(offset, verdict, reason)
        self._follow()

    def settle(self, offset: int, verdict: str, reason: str = "", why: str = "") -> None:
        """One record leaves the hands of its holder, for its word or else because of `why`."""
        cell = self.cells[offset]
        told = self.told.setdefault(offset, [])
        told.append((cell.deliveries, cell.holder, why or _OUTCOMES[verdict]))
        cell.stored, cell.reason = cell.deliveries, ""
        if verdict == "accept":
            cell.state = ACKNOWLEDGED
            self.accepted.add(offset)
        elif verdict == "gap":
            cell.state, cell.reason = ARCHIVED, NO_RECORD
        elif verdict == "reject":
            self._archived(offset, reason or "rejected by the consumer")
        elif cell.deliveries < self._limit:
            cell.state = AVAILABLE
        else:
            reached = f"delivery count limit {self._limit} reached"
            self._archived(offset, f"{reached}: {reason}" if reason else reached)
        if not cell.reason:
            cell.holder = ""

    def _archived(self, offset: int, reason: str) -> None:
        cell = self.cells[offset]
        cell.state, cell.reason = self._archive, reason
        if cell.state == ARCHIVED:
            self._list(offset)

    def _list(self, offset: int) -> None:
        cell = self.cells[offset]
        self.listed.append((offset, cell.deliveries, cell.reason, cell.holder))

    def is_ended(self, offset: int, now: int) -> bool:
        """Whether the lock of an acquired record, or the session of its holder, has ended."""
        cell = self.cells[offset]
        left = cell.state == ACQUIRED and cell.holder in self.leaving
        return left or (cell.state in (ACQUIRED, DELAYED) and cell.until <= now)

    def release(self, holder: str) -> None:
        """A session ended."""
        self.leaving.add(holder)
        self._release(lambda offset: self.cells[offset].holder == holder)

    def leave(self, holder: str, released: Iterable[int]) -> None:
        """A session ended, and these were released at once; the rest follows."""
        self.leaving.add(holder)
        self.portion(released, 0)

    def portion(self, released: Iterable[int], now: int) -> None:
        """A portion of what has ended was released."""
        offsets = set(released)
        for offset in offsets:
            assert self.is_ended(offset, now), f"{offset} was released: {self.cells[offset]}"
        self._release(lambda offset: offset in offsets)

    def expire(self, now: int) -> None:
        """Time passed, and all that has ended was released."""
        self._release(lambda offset: self.is_ended(offset, now))

    def _release(self, chosen: Callable[[int], bool]) -> None:
        for offset in range(self.start, self.end):
            if self.cells[offset].state == DELAYED and chosen(offset):
                self.cells[offset].state = AVAILABLE  # which ends no delivery
            elif self.cells[offset].state == ACQUIRED and chosen(offset):
                left = self.cells[offset].holder in self.leaving
                self.settle(offset, "release", why="member left" if left else "lock expired")
        self._follow()

    def copied(self, first: int, last: int, trouble: str | None) -> None:
        """The dead letters of these records were written, or there can be none."""
        for offset in range(max(first, self.start), min(last + 1, self.end)):
            cell = self.cells[offset]
            if cell.state == ARCHIVING:
                cell.state = ARCHIVED
                if trouble is not None:
                    cell.reason += f"; no dead letter: {trouble}" if trouble else ""
                    self._list(offset)
        self._follow()

    def cut(self, start: int) -> None:
        """Retention removed what is below, also what nobody finished."""
        if start > self.start:
            for offset in range(self.start, start):
                cell = self.cells[offset] if offset < self.end else Cell()
                if not cell.finished:
                    reason = f"{cell.reason}; {REMOVED}" if cell.reason else REMOVED
                    self.listed.append((offset, cell.deliveries, reason, cell.holder))
            self.extend(start)
            self.start = start
            self._follow()

    def reset(self, start: int) -> None:
        """An administrator set where the queue begins: what was of it before is forgotten."""
        self.cells.clear()
        self.start = self.end = start
        self.accepted, self.leaving = set(), set()
        self.numbers = {number: [] for number in self.numbers}
        self.staged.clear()

    # ---- leases

    def lease(self, number: int, ask: Ask, given: Given, now: int) -> None:
        """The lease acquired records under a new number."""
        self.give(ask, given, now)
        taken = {o: count for first, last, count in given for o in range(first, last + 1)}
        for others in self.numbers.values():
            others[:] = [offset for offset in others if offset not in taken]
        for offset, deliveries in taken.items():
            self.cells[offset].leased = deliveries
        if taken:
            self.numbers[number] = sorted(taken)

    def mine(self, offset: int) -> bool:
        """Whether a record of an uncommitted number is the lease's still, locked or not."""
        cell = self.cells[offset]
        if offset < self.start:
            return False
        if cell.state == ACQUIRED:
            return (cell.holder, cell.deliveries) == (LEASE, cell.leased)
        return cell.state == AVAILABLE and cell.deliveries in (cell.leased, cell.leased - 1)

    def reclaim(self, now: int) -> tuple[int, int]:
        """The lease takes its locks back; how many records it has, and how many went elsewhere."""
        held = lost = 0
        for offset in (offset for offsets in self.numbers.values() for offset in offsets):
            if self.mine(offset):
                self.extend(offset + 1)
                self.lock(self.cells[offset], LEASE, self.cells[offset].leased, now)
                held += 1
            else:
                lost += 1
        return held, lost

    def commit(self, number: int, now: int) -> None:
        """All numbers up to this are settled: as staged, the rest accepted."""
        self.committed = number
        for known in [one for one in sorted(self.numbers) if one <= number]:
            said = self.staged.taken(known)
            for offset in filter(self.mine, self.numbers.pop(known)):
                cell, (verdict, delay_ms) = self.cells[offset], said.get(offset, ("accept", 0))
                cell.holder = LEASE
                self.settle(offset, verdict, "why" if offset in said else "")
                if delay_ms and cell.state == AVAILABLE:
                    cell.state, cell.until = DELAYED, now + delay_ms
        self._follow()

    def forget_lease(self) -> None:
        """The group was deleted, with the session."""
        self.numbers, self.staged, self.committed = {}, StagedModel(), 0

    # ---- crashes

    def crash(self) -> None:
        """Locks are forgotten, with the deliveries and the last records that nobody settled."""
        self.leaving.clear()
        for cell in self.cells.values():
            cell.lot = None
            if cell.state in (ACQUIRED, DELAYED):
                cell.state, cell.holder, cell.deliveries = AVAILABLE, "", cell.stored
        while self.end > self.start and self._is_new(self.cells[self.end - 1]):
            self.end -= 1

    @staticmethod
    def _is_new(cell: Cell) -> bool:
        return cell.state == AVAILABLE and cell.deliveries == 0

    def _follow(self) -> None:
        while self.start < self.end and self.cells[self.start].finished:
            self.start += 1
        self.leaving = {one for one in self.leaving if self._holds(one)}

    def _holds(self, holder: str) -> bool:
        flight = (self.cells[offset] for offset in range(self.start, self.end))
        return any((one.state, one.holder) == (ACQUIRED, holder) for one in flight)
