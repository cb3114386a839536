"""What a batch reads: pure functions over the ends of logs.

Offsets between a log's start and its end are never called lost, whether or not records stand there:
compaction and transactions leave gaps. Below the start and beyond the end nothing can be read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush, heapreplace
from math import ceil, floor

from headrace.client.offsets import TopicPartition
from headrace.client.resets import OutOfRange, goes_on
from headrace.spark.log.position import Position
from headrace.wire.leases import Range

_NOT_DELIVERED = 0
_TASK_OFFSETS_MIN = 5_000  # fewer cost less than a task does, some 10 ms


@dataclass(frozen=True, slots=True)
class Log:
    """The offset of the first record kept, and the one after the last."""

    start: int
    end: int

    @property
    def ends(self) -> tuple[int, int]:
        return self.start, self.end


@dataclass(frozen=True, slots=True)
class Seen:
    """The partitions that there are, and the ids of their topics where brokers have them."""

    logs: Mapping[TopicPartition, Log]
    ids: Mapping[str, str]

    @property
    def ends(self) -> dict[TopicPartition, int]:
        return {place: log.end for place, log in self.logs.items()}

    def made_again(self, topic: str, ids: Mapping[str, str]) -> bool:
        """Whether the topic is another one than that in `ids`."""
        known, now = ids.get(topic), self.ids.get(topic)
        return known is not None and now is not None and known != now


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of a partition that were to be read and are not there; what is done about it.

    `is_refused` is decided for a position outside the log; None: `failOnDataLoss` decides.
    """

    topic: str
    partition: int
    what: str
    instead: str
    is_refused: bool | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}: {self.what}"


def begins(
    position: Position, seen: Seen, new: Mapping[TopicPartition, int], out_of_range: OutOfRange
) -> tuple[dict[TopicPartition, int], list[Loss]]:
    """Where each partition that is there is read from, and what was lost of `position`.

    A partition that `position` does not know is read from where `new` says, or else from its first
    record. `out_of_range` decides on positions outside the log.
    """
    found: dict[TopicPartition, int] = {}
    losses = [
        Loss(topic, partition, f"it is gone; it was read up to offset {at}", "it is left out")
        for (topic, partition), at in sorted(position.offsets.items())
        if (topic, partition) not in seen.logs
    ]
    for (topic, partition), log in sorted(seen.logs.items()):
        place = topic, partition
        at = position.offsets.get(place, new.get(place, 0))
        if seen.made_again(topic, position.ids):
            told = f"its topic was deleted and created again after offset {at}"
            instead = f"it is read from its start, {log.start}"
            found[place] = log.start
            losses.append(Loss(topic, partition, told, instead))
            continue
        to = goes_on(at, log.ends, out_of_range)
        found[place] = at if to is None else to
        if to != at:
            told, instead = (
                (f"{at} to {log.start - 1} were removed (retention or deletion)", "from offset")
                if at < log.start
                else (f"{log.end} to {at - 1} are beyond the end of the log", "on from its end,")
            )
            instead = f"it is read {instead} {to}"
            losses.append(Loss(topic, partition, f"offsets {told}", instead, to is None))
    return found, losses


def still_there(
    ranges: Iterable[Range], ids: Mapping[str, str], seen: Seen, out_of_range: OutOfRange
) -> tuple[list[Range], list[Loss]]:
    """What of planned `ranges` can be read, and what was lost; `ids` are those of their topics.

    `out_of_range` decides on either end of a range, as on positions.
    """
    found, losses = [], []
    for one in ranges:
        log = seen.logs.get((one.topic, one.partition))
        offsets = f"offsets {one.first} to {one.last}"
        if log is None or seen.made_again(one.topic, ids):
            why = "are gone with it" if log is None else "were deleted; its topic is a new one"
            losses.append(Loss(one.topic, one.partition, f"{offsets} {why}", "they are left out"))
            continue
        first, end = (goes_on(at, log.ends, out_of_range) for at in (one.first, one.last + 1))
        if first is not None and end is not None and first < end:
            found.append(replace(one, first=first, last=end - 1))
        if (first, end) != (one.first, one.last + 1):
            told = f"of {offsets} some are not there, the log has {log.start} to {log.end - 1}"
            refused = first is None or end is None
            losses.append(Loss(one.topic, one.partition, told, "they are left out", refused))
    return found, losses


def limited(
    start: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], most: int
) -> dict[TopicPartition, int]:
    """Where a batch of about `most` offsets ends; each partition has its share of what waits.

    None that has something waiting gets nothing, so there may be one more for each.
    """
    waiting = {place: max(0, end - start[place]) for place, end in ends.items()}
    total = sum(waiting.values())
    if total <= most:
        return {place: start[place] + size for place, size in waiting.items()}
    found = {}
    for place, size in waiting.items():
        share = most * size / total
        found[place] = start[place] + min(size, ceil(share) if share < 1 else floor(share))
    return found


def must_wait(
    waiting: int, fewest: int | None, since_last_s: float | None, longest_s: float
) -> bool:
    """Whether a batch is put off until `fewest` offsets wait, or `longest_s` passed.

    `since_last_s` is None before the first batch, which is never put off.
    """
    if fewest is None or since_last_s is None or since_last_s >= longest_s:
        return False
    return waiting < fewest


def split(ranges: list[Range], tasks_min: int | None, records_max: int | None) -> list[Range]:
    """What each task reads: a partition, or an equal part of it, in the order of `ranges`.

    No task has more than `records_max` offsets. There are `tasks_min` tasks or more where there
    are as many offsets; the largest parts are divided first.
    """
    sizes = [size_of(one) for one in ranges]
    parts = [1 if records_max is None else -(-size // records_max) for size in sizes]
    heap = [
        (-size / count, index) for index, (size, count) in enumerate(zip(sizes, parts, strict=True))
    ]
    heapify(heap)
    for _ in range(min(tasks_min or 0, sum(sizes)) - sum(parts)):
        _, index = heap[0]
        parts[index] += 1
        heapreplace(heap, (-sizes[index] / parts[index], index))
    return [
        Range(one.topic, one.partition, one.first + size * n // count,
              one.first + size * (n + 1) // count - 1, _NOT_DELIVERED)
        for one, size, count in zip(ranges, sizes, parts, strict=True)
        for n in range(count)
    ]  # fmt: skip


def together(ranges: list[Range], slots: int | None) -> list[tuple[Range, ...]]:
    """What each task reads where `slots` tasks run at once: no more tasks than that, of like size.

    A range is a task where slots are not known, or have 5,000 offsets each or more.
    """
    if slots is None or sum(map(size_of, ranges)) >= slots * _TASK_OFFSETS_MIN:
        return [(one,) for one in ranges]
    tasks: list[list[Range]] = [[] for _ in range(min(slots, len(ranges)))]
    heap = [(0, index) for index in range(len(tasks))]
    for one in sorted(ranges, key=size_of, reverse=True):
        size, index = heappop(heap)
        tasks[index].append(one)
        heappush(heap, (size + size_of(one), index))
    return [tuple(task) for task in tasks]


def size_of(one: Range) -> int:
    """How many offsets a range has."""
    return one.last - one.first + 1


def ranges_between(
    start: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> list[Range]:
    """The offsets from `start` to before `ends`, sorted; partitions without any left out."""
    return [
        Range(topic, partition, start[topic, partition], end - 1, _NOT_DELIVERED)
        for (topic, partition), end in sorted(ends.items())
        if start[topic, partition] < end
    ]
