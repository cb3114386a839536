"""Names that every state machine shares, and the only arithmetic on time.

Two kinds of time exist and must not be mixed: monotonic time orders locks and sessions inside
one process, wall time is what may be written to the log. Both are parameters (style 2.3).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NewType
from uuid import UUID

MonoMs = NewType("MonoMs", int)
WallMs = NewType("WallMs", int)
MemberId = NewType("MemberId", str)


@dataclass(init=False, frozen=True, slots=True)
class Now:
    """Both clocks at one instant, in milliseconds."""

    mono: MonoMs
    wall: WallMs

    def __init__(self, mono: MonoMs, wall: WallMs) -> None:  # for each command: twice as fast
        _set_mono(self, mono)
        _set_wall(self, wall)


_set_mono: Callable[[Now, MonoMs], None] = vars(Now)["mono"].__set__
_set_wall: Callable[[Now, WallMs], None] = vars(Now)["wall"].__set__


def after(start: MonoMs, duration_ms: int) -> MonoMs:
    """The instant `duration_ms` later than `start`."""
    return MonoMs(start + duration_ms)


def elapsed_ms(since: MonoMs, until: MonoMs) -> int:
    """Milliseconds from `since` to `until`."""
    return until - since


def age_ms(since: WallMs, now: WallMs) -> int:
    """Milliseconds of calendar time from `since` to `now`; negative when the clock was set back."""
    return now - since


def earlier(instant: WallMs, duration_ms: int) -> WallMs:
    """The calendar time `duration_ms` before, or 0 where there was none."""
    return WallMs(max(instant - duration_ms, 0))


def later(instant: WallMs, duration_ms: int) -> WallMs:
    """The calendar time `duration_ms` after."""
    return WallMs(instant + duration_ms)


@dataclass(init=False, frozen=True, slots=True, order=True)
class Span:
    """Offsets `first` to `last`, both included, as ranges are on the wire; never empty."""

    first: int
    last: int

    def __init__(self, first: int, last: int) -> None:  # twice as fast as the one of a dataclass
        assert 0 <= first <= last, f"not a span: {first}..{last}"
        _set_first(self, first)
        _set_last(self, last)

    def __len__(self) -> int:
        return self.last - self.first + 1

    @property
    def count(self) -> int:
        """As `len`, also of a stranger's span: `len` ends below the number of all offsets."""
        return self.last - self.first + 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __str__(self) -> str:
        return f"{self.first}-{self.last}" if self.first != self.last else str(self.first)


_set_first: Callable[[Span, int], None] = vars(Span)["first"].__set__
_set_last: Callable[[Span, int], None] = vars(Span)["last"].__set__


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition of a topic, by the id that survives nothing but the topic itself."""

    topic_id: UUID
    partition: int

    def __hash__(self) -> int:  # as a dataclass makes it, less one call
        return hash((self.topic_id.int, self.partition))

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"


def by_topic(partitions: Iterable[TopicPartition]) -> dict[UUID, list[int]]:
    """The partitions of each topic; both are in order.

    >>> by_topic({TopicPartition(UUID(int=1), 3), TopicPartition(UUID(int=1), 2)})
    {UUID('00000000-0000-0000-0000-000000000001'): [2, 3]}
    """
    found: dict[UUID, list[int]] = {}
    for one in partitions:
        found.setdefault(one.topic_id, []).append(one.partition)
    return {topic_id: sorted(found[topic_id]) for topic_id in sorted(found)}
