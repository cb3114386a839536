"""The reference model of one queue: an entry an offset, written from the state diagram of KIP-932.

It shares no code with the machine and knows no runs. Where the machine may choose (how many records
it gives at once) the model checks that the choice is allowed; everything else it predicts.
Leases are as docs/spark.md tells them.
"""

from collections.abc import Callable
from dataclasses import dataclass

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = (
    "available", "acquired", "acknowledged", "archiving", "archived",
)  # fmt: skip
LEASE = "lease"

Taken = list[tuple[int, int]]  # offset and delivery


@dataclass(slots=True)
class Cell:
    """One record. `stored` is the delivery that a crash takes an acquired record back to.

    `leased` is the delivery under which an uncommitted number of the lease has the record.
    """

    state: str = AVAILABLE
    deliveries: int = 0
    holder: str = ""
    until: int = 0
    stored: int = 0
    leased: int = 0

    @property
    def finished(self) -> bool:
        return self.state in (ACKNOWLEDGED, ARCHIVED)


class Model:
    """One queue and one lease on it; offsets from 0 on."""

    def __init__(self, *, limit: int, lock_ms: int, window: int, dead_letters: bool) -> None:
        self.cells: dict[int, Cell] = {}
        self.start = 0
        self.end = 0
        self.accepted: set[int] = set()
        self.numbers: dict[int, list[int]] = {}
        self.staged: dict[int, dict[int, str]] = {}
        self._limit = limit
        self._lock_ms = lock_ms
        self._window = window
        self._archive = ARCHIVING if dead_letters else ARCHIVED

    # ---- acquisitions

    def give(self, holder: str, taken: Taken, now: int, budget: int | None) -> None:
        """The machine gave these: may it? `budget` is None where more than asked for is right."""
        assert [offset for offset, _ in taken] == sorted({offset for offset, _ in taken})
        assert budget is None or len(taken) <= budget, f"{len(taken)} of {budget} at most"
        for offset, deliveries in taken:
            if offset >= self.end:
                self.extend(offset + 1)
                assert self.unfinished <= self._window or budget is None, "beyond the window"
            cell = self.cells[offset]
            assert offset not in self.accepted, f"{offset} was accepted, and is given again"
            assert cell.state == AVAILABLE, f"{offset} is {cell.state}"
            assert deliveries == cell.deliveries + 1 <= self._limit, f"{offset}: {deliveries}"
            self.lock(cell, holder, deliveries, now)

    def may_give(self, first: int, last: int) -> bool:
        """Whether there is anything to be given in a range."""
        known = range(max(first, self.start), min(last + 1, self.end))
        return any(self.cells[offset].state == AVAILABLE for offset in known) or (
            first <= self.end <= last and self.unfinished < self._window
        )

    def extend(self, end: int) -> None:
        """Records up to `end` are in flight."""
        for offset in range(self.end, end):
            self.cells.setdefault(offset, Cell())
        self.end = max(self.end, end)

    def lock(self, cell: Cell, holder: str, deliveries: int, now: int) -> None:
        cell.state, cell.holder, cell.deliveries = ACQUIRED, holder, deliveries
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

    def say(self, first: int, last: int, verdict: str, now: int) -> None:
        """An acknowledgement of a range by its holder."""
        for offset in range(max(first, self.start), last + 1):
            cell = self.cells[offset]
            if verdict == "renew":
                self.lock(cell, cell.holder, cell.deliveries, now)
            else:
                self.settle(offset, verdict)
        self._follow()

    def settle(self, offset: int, verdict: str) -> None:
        """One record leaves the hands of its holder."""
        cell = self.cells[offset]
        cell.holder, cell.stored = "", cell.deliveries
        if verdict == "accept":
            cell.state = ACKNOWLEDGED
            self.accepted.add(offset)
        elif verdict == "gap":
            cell.state = ARCHIVED
        elif verdict == "release" and cell.deliveries < self._limit:
            cell.state = AVAILABLE
        else:
            cell.state = self._archive

    def release(self, holder: str) -> None:
        """A session ended."""
        self._release(lambda cell: cell.holder == holder)

    def expire(self, now: int) -> None:
        """Time passed."""
        self._release(lambda cell: cell.until <= now)

    def _release(self, chosen: Callable[[Cell], bool]) -> None:
        for offset in range(self.start, self.end):
            cell = self.cells[offset]
            if cell.state == ACQUIRED and chosen(cell):
                self.settle(offset, "release")
        self._follow()

    def copied(self) -> None:
        """Every dead letter was written."""
        for cell in self.cells.values():
            if cell.state == ARCHIVING:
                cell.state = ARCHIVED
        self._follow()

    def cut(self, start: int) -> None:
        """Retention removed what is below."""
        if start > self.start:
            self.extend(start)
            self.start = start
            self._follow()

    def reset(self, start: int) -> None:
        """An administrator set where the queue begins: what was of it before is forgotten."""
        self.cells.clear()
        self.start = self.end = start
        self.accepted.clear()
        self.numbers = {number: [] for number in self.numbers}
        self.staged.clear()

    # ---- leases

    def lease(self, number: int, taken: Taken, now: int, budget: int) -> None:
        """The lease acquired records under a new number."""
        self.give(LEASE, taken, now, budget)
        offsets = [offset for offset, _ in taken]
        for others in self.numbers.values():
            others[:] = [offset for offset in others if offset not in offsets]
        for offset, deliveries in taken:
            self.cells[offset].leased = deliveries
        if offsets:
            self.numbers[number] = offsets

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

    def commit(self, number: int) -> None:
        """All numbers up to this are settled: as staged, the rest accepted."""
        for known in [one for one in sorted(self.numbers) if one <= number]:
            said = self.staged.pop(known, {})
            for offset in self.numbers.pop(known):
                if self.mine(offset):
                    self.settle(offset, said.get(offset, "accept"))
        self._follow()

    # ---- crashes

    def crash(self) -> None:
        """Locks are forgotten, with the deliveries and the last records that nobody settled."""
        for cell in self.cells.values():
            if cell.state == ACQUIRED:
                cell.state, cell.holder, cell.deliveries = AVAILABLE, "", cell.stored
        while self.end > self.start and self._is_new(self.cells[self.end - 1]):
            self.end -= 1

    @staticmethod
    def _is_new(cell: Cell) -> bool:
        return cell.state == AVAILABLE and cell.deliveries == 0

    def _follow(self) -> None:
        while self.start < self.end and self.cells[self.start].finished:
            self.start += 1
