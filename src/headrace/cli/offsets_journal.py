"""The journal of consumer groups read over the wire: all that it has of one group.

A group's records are in one partition of `__consumer_offsets`, which any broker of the cluster
tells. Sources: Kafka's GroupCoordinator.partitionFor; `log/group_history.py` for what is in there.
"""

import sys
import time
from collections.abc import Iterator

from headrace.broker.shards import shard_index
from headrace.cli.ending import Trouble
from headrace.client.admin import LogEnd, log_end
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.fetch import fetch
from headrace.log.group_history import GroupRecords
from headrace.wire.batches import CorruptBatch, Record

TOPIC = "__consumer_offsets"
_BYTES_MAX = 4 << 20
_PROGRESS_S = 1.0


class GroupOnWire:
    """The journal of one group; `partition` is where it is, `records` tells how whole it is."""

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
            except CorruptBatch as error:
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
