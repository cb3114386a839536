"""The journal of consumer groups, over the wire or from a broker's files: what it has of a group.

A group's records are in one partition of `__consumer_offsets`, which its name and the number of
partitions decide. Source: Kafka's GroupCoordinator.partitionFor.
"""

import sys
import time
from collections.abc import Iterator
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
_BYTES_MAX = 4 << 20
_SEGMENT_BYTES_MAX = 1 << 40
_PROGRESS_S = 1.0


class Source(Protocol):
    """The journal of one group; `partition` is where it is, `records` tells how whole it is."""

    partition: int
    records: GroupRecords

    def read(self) -> Iterator[Record]:
        """Its records from the start of the journal to the end as it is now. Raises: Trouble."""


class GroupInFiles:
    """The journal of one group in the data folder of a broker, which need not run."""

    def __init__(self, data_dir: Path, group: str) -> None:
        """Raises: Trouble when there is no such journal."""
        names = {one.name for one in data_dir.glob(f"{TOPIC}-*") if one.is_dir()}
        for partition in range(max(1, len(names))):  # how many there are decides where a group is
            if f"{TOPIC}-{partition}" not in names:
                told = f"{data_dir} has no folder {TOPIC}-{partition}"
                raise Trouble(f"{told}; give the data folder of a broker that has all of them")
        self.partition = shard_index(group, len(names))
        self.records = GroupRecords(group)
        self._folder = data_dir / f"{TOPIC}-{self.partition}"

    def read(self) -> Iterator[Record]:
        """What is damaged is told and passed over; it counts as missing. Raises: OSError."""
        for path in sorted(self._folder.glob("*.log")):
            for found in segment(path, _SEGMENT_BYTES_MAX):
                if isinstance(found, Damage):
                    tell("offsets history", f"{path}: {found.message}")
                elif found.damage is not None:
                    place = f"{path}: at byte {found.position}"
                    tell("offsets history", f"{place}: {found.damage}; passed over")
                else:
                    yield from self.records.read(memoryview(found.data))


class GroupOnWire:
    """The journal of one group, wherever in the cluster it is."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        """Raises: Trouble when the cluster has no such journal; as `Cluster`."""
        self.records = GroupRecords(group)
        self._cluster = cluster
        try:
            partitions = cluster.partitions(TOPIC)
        except BrokerError as error:
            if error.name != "UNKNOWN_TOPIC_OR_PARTITION":
                raise
            raise Trouble(f"group {group} is unknown: this cluster never had a group") from error
        self.partition = shard_index(group, len(partitions))

    def read(self) -> Iterator[Record]:
        """Its records from the start of the journal to the end as it is now.

        Raises: Trouble when the journal is damaged; as `Cluster`.
        """
        position = log_end(self._cluster, TOPIC, self.partition, LogEnd.EARLIEST)
        start, end = position, log_end(self._cluster, TOPIC, self.partition)
        progress = Progress(end - start)
        while position < end:
            fetched = fetch(self._cluster, TOPIC, self.partition, position, bytes_max=_BYTES_MAX)
            try:
                yield from self.records.read(fetched.records)
            except Malformed as error:
                raise Trouble(
                    f"{TOPIC}-{self.partition}: {error}; headrace log dump tells what is damaged"
                ) from error
            if self.records.position <= position:
                break  # compaction took the rest meanwhile
            position = self.records.position
            progress.tell(position - start)
        progress.end()


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
