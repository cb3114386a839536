"""A micro-batch as it stands in Spark's offset log, and how it is cut into tasks."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Self

from headrace.spark.queue.options import QueueOptions
from headrace.wire.leases import Range

_VERSION = 1
_TASK_RECORDS_MIN = 5_000


@dataclass(frozen=True, slots=True)
class Batch:
    """The streaming offset: number `seq` of a session, and the ranges acquired under it.

    Number 0 is the beginning: nothing was acquired. `ids` are those of topics, where they are
    known: a topic that was deleted and created again has another.
    """

    session: str
    seq: int
    ranges: tuple[Range, ...] = ()
    ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def records(self) -> int:
        return sum(map(records_of, self.ranges))

    def to_json(self) -> dict[str, Any]:
        logged = {
            "v": _VERSION,
            "session": self.session,
            "seq": self.seq,
            "ranges": [list(astuple(one)) for one in self.ranges],
        }
        return {**logged, "ids": dict(self.ids)} if self.ids else logged

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        """Raises: ValueError for an offset that this version did not write."""
        if found.get("v") != _VERSION or "session" not in found:
            raise ValueError(
                f"the checkpoint holds offsets of version {found.get('v')} or of another use of "
                f"the headrace source, this reads a queue in version {_VERSION}; go on with the "
                "release and the options that wrote it, or use a new checkpoint and a new "
                "output folder, with option newCheckpoint=continue"
            )
        ranges = tuple(Range(*one) for one in found["ranges"])
        return cls(found["session"], found["seq"], ranges, dict(found.get("ids", {})))


def records_of(held: Range) -> int:
    return held.last - held.first + 1


def split(ranges: Iterable[Range], options: QueueOptions) -> list[tuple[Range, ...]]:
    """Cut ranges into tasks of about equally many records.

    Neighbours of a topic partition stay together, small ranges share a task. There are as many
    tasks as `minPartitions` says (without it: as the driver's machine has cores, but none below
    5,000 records), and more where `maxRecordsPerPartition` demands.
    """
    ordered = sorted(ranges, key=lambda held: (held.topic, held.partition, held.first))
    total = sum(map(records_of, ordered))
    if options.min_partitions is None:
        wanted = min(os.cpu_count() or 1, total // _TASK_RECORDS_MIN)
    else:
        wanted = min(options.min_partitions, total)
    tasks_min = max(1, wanted, -(-total // options.max_records_per_partition))
    size = -(-total // tasks_min)
    tasks: list[list[Range]] = []
    room = 0
    for held in ordered:
        first = held.first
        while first <= held.last:
            if not room:
                tasks.append([])
                room = size
            last = min(held.last, first + room - 1)
            tasks[-1].append(replace(held, first=first, last=last))
            room -= last - first + 1
            first = last + 1
    return [tuple(task) for task in tasks]
