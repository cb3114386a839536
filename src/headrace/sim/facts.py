"""What the auditor knows of a record in a queue, and of a lease: what was asked and answered."""

from collections import Counter
from dataclasses import dataclass, field

Place = tuple[str, int]  # topic and partition; no topic's name is used twice in a history
Queue = tuple[str, Place]  # group and place
Mark = tuple[int, tuple[tuple[str, bytes | None], ...]]  # timestamp and headers of a record
Range = tuple[int, int, int]  # first and last offset, delivery count
FINISHING = frozenset({"accept", "reject", "gap"})


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: when it was sent, and what it may do to the records of a group.

    `incarnation` counts how often the broker had lost its locks by then.
    """

    at_us: int
    incarnation: int
    group: str = ""
    holder: str = ""
    acquires: bool = False

    @property
    def since_us(self) -> int:
        """From when a lock or a delay may count: the broker counts whole milliseconds."""
        return self.at_us // 1000 * 1000


@dataclass(slots=True)
class Facts:
    """One record of one queue.

    `told` counts its deliveries that were let out, `count` is the highest of their numbers, and
    `failed` the highest delivery that is known to have come to nothing. Times are those at which
    an answer was let out: what was asked before may still contradict it.
    """

    told: int = 0
    count: int = 0
    count_at_us: int = 0
    failed: int = 0
    failed_at_us: int = 0
    finished_at_us: int | None = None
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)  # verdicts, and whose
    counts_of: dict[str, int] = field(default_factory=dict)
    locked_by: str = ""
    locked_until_us: int = 0
    locked_at_us: int = 0
    locked_in: int = -1
    withheld_until_us: int = 0
    withheld_at_us: int = 0
    withheld_in: int = -1

    def is_withheld(self, asked: Asked, now_us: int, incarnation: int) -> bool:
        """Whether a delay that was told of before somebody asked is not over yet."""
        told = self.withheld_at_us <= asked.at_us and self.withheld_in == incarnation
        return told and now_us < self.withheld_until_us

    def verdicts(self, *, but: str = "") -> set[str]:
        """What was said of it, by others than the holder `but`."""
        return {
            verdict for (verdict, holder), times in self.asked.items() if times and holder != but
        }


@dataclass(slots=True)
class LeaseFacts:
    """One session: its highest epoch that was let out, and its numbers.

    `staged` is what was last sent to be staged under a number, by part, by drivers of the epoch in
    `staged_in`; `doubted` are the numbers and parts of which it is not known whether that holds.
    `committing` is the highest number that was sent to be committed, `committing_from` the first
    that was not sent before the latest commit; `committed` is the highest that was answered.
    """

    epoch: int = 0
    epoch_at_us: int = 0
    ranges: dict[int, tuple[tuple[Place, int, int, int], ...]] = field(default_factory=dict)
    told_at_us: dict[int, int] = field(default_factory=dict)
    staged: dict[int, dict[str, dict[tuple[Place, int], str]]] = field(default_factory=dict)
    staged_in: dict[int, int] = field(default_factory=dict)
    doubted: set[tuple[int, str]] = field(default_factory=set)
    committing: int = 0
    committing_from: int = 1
    committed: int = 0
    committed_at_us: int = 0
