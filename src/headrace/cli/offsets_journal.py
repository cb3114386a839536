"""The journals of groups, over the wire or from a broker's files: what they have of one group.

A group's records are in one partition of `__consumer_offsets`, or of `__share_group_state`, which
its name and the number of partitions decide. Source: Kafka's GroupCoordinator.partitionFor.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.broker.shards import shard_index
from headrace.cli.ending import Trouble, tell
from headrace.cli.log_files import Damage, segment
from headrace.client.admin import LogEnd, log_end
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.fetch import fetch
from headrace.log.group_history import GroupRecords
from headrace.wire.batches import Record
from headrace.wire.primitives import Malformed

TOPIC = "__consumer_offsets"
SHARE_TOPIC = "__share_group_state"
_BYTES_MAX = 4 << 20
_SEGMENT_BYTES_MAX = 1 << 40
_PROGRESS_S = 1.0


@dataclass(frozen=True, slots=True)
class Journal:
    """The topic of a journal, and the command that reads it, which is named on stderr."""

    topic: str
    command: str


_OFFSETS = Journal(TOPIC, "offsets history")


class Source(Protocol):
    """The journal of one group; `partition` is where it is, `records` tells how whole it is."""

    partition: int
    records: GroupRecords

    def read(self) -> Iterator[Record]:
        """Its records from the start of the journal to the end as it is now. Raises: Trouble."""


class GroupInFiles:
    """The journal of one group in the data folder of a broker, which need not run."""

    def __init__(self, data_dir: Path, group: str, journal: Journal = _OFFSETS) -> None:
        """Raises: Trouble when there is no such journal."""
        topic = journal.topic
        names = {one.name for one in data_dir.glob(f"{topic}-*") if one.is_dir()}
        for partition in range(max(1, len(names))):  # how many there are decides where a group is
            if f"{topic}-{partition}" not in names:
                told = f"{data_dir} has no folder {topic}-{partition}"
                raise Trouble(f"{told}; give the data folder of a broker that has all of them")
        self.partition = shard_index(group, len(names))
        self.records = GroupRecords(group)
        self._folder = data_dir / f"{topic}-{self.partition}"
        self._command = journal.command

    def read(self) -> Iterator[Record]:
        """What is damaged is told and passed over; it counts as missing. Raises: OSError."""
        for path in sorted(self._folder.glob("*.log")):
            for found in segment(path, _SEGMENT_BYTES_MAX):
                if isinstance(found, Damage):
                    tell(self._command, f"{path}: {found.message}")
                elif found.damage is not None:
                    place = f"{path}: at byte {found.position}"
                    tell(self._command, f"{place}: {found.damage}; passed over")
                else:
                    yield from self.records.read(memoryview(found.data))


class GroupOnWire:
    """The journal of one group, wherever in the cluster it is."""

    def __init__(self, cluster: Cluster, group: str, journal: Journal = _OFFSETS) -> None:
        """Raises: Trouble when the cluster has no such journal; as `Cluster`."""
        self.records = GroupRecords(group)
        self._topic = journal.topic
        self._cluster = cluster
        try:
            partitions = cluster.partitions(self._topic)
        except BrokerError as error:
            if error.name != "UNKNOWN_TOPIC_OR_PARTITION":
                raise
            raise Trouble(f"group {group} is unknown: this cluster never had a group") from error
        self.partition = shard_index(group, len(partitions))

    def read(self) -> Iterator[Record]:
        """Its records from the start of the journal to the end as it is now.

        Raises: Trouble when the journal is damaged; as `Cluster`.
        """
        position = log_end(self._cluster, self._topic, self.partition, LogEnd.EARLIEST)
        start, end = position, log_end(self._cluster, self._topic, self.partition)
        progress = Progress(end - start)
        while position < end:
            try:
                fetched = fetch(
                    self._cluster, self._topic, self.partition, position, bytes_max=_BYTES_MAX
                )
            except BrokerError as error:
                position = self._pruned_to(position, error)
                continue
            try:
                yield from self.records.read(fetched.records)
            except Malformed as error:
                raise Trouble(
                    f"{self._topic}-{self.partition}: {error};"
                    " headrace log dump tells what is damaged"
                ) from error
            if self.records.position <= position:
                break  # compaction took the rest meanwhile
            position = self.records.position
            progress.tell(position - start)
        progress.end()

    def _pruned_to(self, position: int, error: BrokerError) -> int:
        """Where the journal begins by now. Raises: the error, when it is not that it was pruned."""
        if error.name != "OFFSET_OUT_OF_RANGE":
            raise error
        start = log_end(self._cluster, self._topic, self.partition, LogEnd.EARLIEST)
        if start <= position:
            raise error
        return start


class Progress:
    """A line on stderr for who waits at a terminal; nothing in a pipe, or when it is quick."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._shown = False
        self._next = time.monotonic() + _PROGRESS_S

    def tell(self, done: int) -> None:
        now = time.monotonic()
        if now < self._next or not sys.stderr.isatty():
            return
        self._next, self._shown = now + _PROGRESS_S, True
        share = 100 * min(done, self._total) // self._total
        print(f"\rreading the journal: {share} %", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
