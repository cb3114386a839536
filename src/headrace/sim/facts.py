"""What the auditor knows of a record in a queue, and of a lease: what was asked and answered."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

Place = tuple[str, int]  # topic and partition; no topic's name is used twice in a history
Queue = tuple[str, Place]  # group and place
Mark = tuple[int, tuple[tuple[str, bytes | None], ...]]  # timestamp and headers of a record
Range = tuple[int, int, int]  # first and last offset, delivery count
FINISHING = frozenset({"accept", "reject", "gap"})


class Moment(NamedTuple):
    """When a request was sent, or a response left the broker.

    Time does not order all of them: many have the same microsecond when the machine was suspended.

    Attributes:
        us: time of the world.
        requests: how many requests were sent before.
    """

    us: int
    requests: int


START = Moment(0, 0)


class Timeline:
    """The order of the requests and responses of one history.

    Args:
        now_us: returns the time of the world.
    """

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._requests = 0

    def now(self) -> Moment:
        """Return the moment of a response that leaves the broker."""
        return Moment(self._now_us(), self._requests)

    def sent(self) -> Moment:
        """Return the moment of a request that is sent: later responses do not precede it."""
        moment = self.now()
        self._requests += 1
        return moment


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: when it was sent, and what it may do to the records of a group.

    `incarnation` counts how often the broker had lost its locks by then, `requests` how many
    requests were sent before.
    """

    at_us: int
    incarnation: int
    group: str = ""
    holder: str = ""
    acquires: bool = False
    requests: int = 0

    def follows(self, moment: Moment) -> bool:
        """Return whether the request was sent after a response had left the broker."""
        us, requests = moment
        return us < self.at_us or (us == self.at_us and requests <= self.requests)

    @property
    def since_us(self) -> int:
        """From when a lock or a delay may count: the broker counts whole milliseconds."""
        return self.at_us // 1000 * 1000


@dataclass(slots=True)
class Highest:
    """The highest number that responses contained so far, and when the first of them left."""

    value: int = 0
    at: Moment = START
    _lower: list[tuple[int, Moment]] = field(default_factory=list)

    def reach(self, value: int, at: Moment) -> None:
        """A response contains a number."""
        if value > self.value:
            self._lower.append((self.value, self.at))
            self.value, self.at = value, at

    def forget(self, since_us: int) -> None:
        """Forget the responses from a time on."""
        while self._lower and self.at.us >= since_us:
            self.value, self.at = self._lower.pop()


@dataclass(slots=True)
class Facts:
    """One record of one queue.

    `told` counts its deliveries that were let out, `lost` those that lost responses may have had,
    `count` is the highest of their numbers, and
    `failed` the highest delivery that is known to have come to nothing. Times are those at which
    an answer was let out: what was asked before may still contradict it.

    After a power cut that takes unsynced writes, `earlier` has the verdicts that were sent before
    it, and `had_by` the members that had the record then. Either counts until the record is
    delivered again: it was not finished then. `era` is the number of power cuts before the latest
    delivery, and `is_copy_lost` says whether the power cut may have taken its dead letter, or its
    place in the list of what was archived.
    """

    told: int = 0
    lost: int = 0
    count: Highest = field(default_factory=Highest)
    failed: Highest = field(default_factory=Highest)
    finished_at: Moment | None = None
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)  # verdicts, and whose
    counts_of: dict[str, int] = field(default_factory=dict)
    earlier: set[tuple[str, str]] = field(default_factory=set)
    had_by: set[str] = field(default_factory=set)
    era: int = 0
    is_copy_lost: bool = False
    locked_by: str = ""
    locked_until_us: int = 0
    locked_at: Moment = START
    locked_in: int = -1
    withheld_until_us: int = 0
    withheld_at: Moment = START
    withheld_in: int = -1

    @property
    def told_max(self) -> int:
        """Return how many deliveries there were at most, without requests under way."""
        return self.told + self.lost

    def is_withheld(self, asked: Asked, now_us: int, incarnation: int) -> bool:
        """Whether a delay that was told of before somebody asked is not over yet."""
        told = asked.follows(self.withheld_at) and self.withheld_in == incarnation
        return told and now_us < self.withheld_until_us

    def verdicts(self, *, but: str = "") -> set[str]:
        """What was said of it, by others than the holder `but`."""
        sent = {one for one, times in self.asked.items() if times} | self.earlier
        return {verdict for verdict, holder in sent if holder != but}

    def power_was_cut(self, since_us: int) -> None:
        """Forget what was answered since then; the state may be that of any time from then on."""
        self.count.forget(since_us)
        self.failed.forget(since_us)
        if self.finished_at is not None and self.finished_at.us >= since_us:
            self.finished_at = None
        self.earlier.update(one for one, times in self.asked.items() if times)
        self.had_by.update(self.counts_of)
        self.asked.clear()
        self.counts_of.clear()

    def delivered_again(self, era: int, count: int) -> None:
        """The first delivery after a power cut: it shows the state that was left."""
        self.era, self.told, self.lost = era, min(self.told_max, count - 1), 0
        self.is_copy_lost = False
        self.earlier.clear()
        self.had_by.clear()


@dataclass(slots=True)
class LeaseFacts:
    """One session: its highest epoch that was let out, and its numbers.

    `staged` is what was last sent to be staged under a number, by part, by drivers of the epoch in
    `staged_in`; `doubted` are the numbers and parts of which it is not known whether that holds,
    `staged_at_us` has when the response left of those of which it is known.
    `committing` is the highest number that was sent to be committed, `committing_from` the first
    that was not sent before the latest commit; `committed` is the highest that was answered.
    `unsure` has by number where its ranges may have been discarded, all of them or none.
    `held_until_us` has of each record of a number that is being committed until when nobody else
    can have it.
    """

    epoch: Highest = field(default_factory=Highest)
    ranges: dict[int, tuple[tuple[Place, int, int, int], ...]] = field(default_factory=dict)
    acquired_at: dict[int, Moment] = field(default_factory=dict)
    staged: dict[int, dict[str, dict[tuple[Place, int], str]]] = field(default_factory=dict)
    staged_in: dict[int, int] = field(default_factory=dict)
    doubted: set[tuple[int, str]] = field(default_factory=set)
    staged_at_us: dict[tuple[int, str], int] = field(default_factory=dict)
    committing: int = 0
    committing_from: int = 1
    committed: Highest = field(default_factory=Highest)
    unsure: dict[int, set[Place]] = field(default_factory=dict)
    held_until_us: dict[tuple[int, Place, int], int] = field(default_factory=dict)
