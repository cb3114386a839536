"""Shards of groups: which one a group belongs to, and the internal topic that is their journal.

A group belongs to the shard that its name hashes to, as Kafka maps groups to partitions of an
internal topic; the shard's journal is that partition, which any client can fetch. The number of
shards is fixed when the topic is created.
"""

import asyncio
import errno
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from headrace.broker.partitions import Partition
from headrace.broker.runtime import ShardRuntime
from headrace.broker.topics import Topics
from headrace.core.catalog import CreateTopic
from headrace.core.errors import Refused, Why
from headrace.core.share_words import NAME_BYTES_MAX
from headrace.log.api import Slice
from headrace.wire.batches import BatchHeader

_INDEXES_CACHED = 4096
_CACHED_CHARACTERS_MAX = 255  # of a name: strangers choose them


class PartitionJournal:
    """A partition as the log of a shard: appends wake its readers, replay sees all of it.

    A partition whose sync failed cuts off what nobody was promised, and mends itself. What a shard
    decided may be gone then: its writes fail until it has replayed what is left (`resume`).
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._seen = partition.cuts

    @property
    def start_offset(self) -> int:
        return self._partition.log.start_offset

    @property
    def end_offset(self) -> int:
        return self._partition.log.end_offset

    def append(self, batches: bytearray | memoryview, headers: Sequence[BatchHeader]) -> int:
        """As `JournalLog.append`, of one batch for which `must_roll` has just been false."""
        self._require_unchanged()
        return self._partition.append(batches, list(headers), has_room=True)

    def must_roll(self, header: BatchHeader) -> bool:
        return self._partition.must_roll(header)

    async def roll_ready(self) -> None:
        await self._partition.roll_ready()

    async def durable(self) -> None:
        self._require_unchanged()
        await self._partition.durable(cuts=self._seen)

    @property
    def rewrites(self) -> int:
        return self._partition.log.rewrites

    def mend(self, *, keep: bool) -> None:
        """Do nothing: the partition repairs its log itself."""

    def resume(self) -> None:
        """As `JournalLog.resume`."""
        self._partition.require_whole()
        self._seen = self._partition.cuts

    def _require_unchanged(self) -> None:
        if self._seen != self._partition.cuts:
            raise OSError(errno.EIO, f"a sync of {self._partition.name} failed meanwhile")

    def read(self, offset: int, max_bytes: int, *, end: int | None = None) -> Slice:
        return self._partition.log.read(offset, max_bytes, end=end)

    def sync(self) -> None:
        self._partition.log.sync()


async def journals(
    topics: Topics, name: str, count: int, configs: Mapping[str, str]
) -> list[Partition]:
    """The partitions of an internal topic, which is created with `count` of them when it is new.

    Raises: OSError; StorageFault.
    """
    if name not in topics.catalog.topics:
        created = await topics.create(CreateTopic(name, topics.new_id(), count, configs))
        assert not isinstance(created, Refused), created
    topic = topics.catalog.topics[name]
    found = [topics.partitions.get(topic.id, index) for index in range(topic.partitions)]
    return [partition for partition in found if partition is not None]


async def all_durable(
    shards: Sequence[ShardRuntime[Any, Any]], read: Sequence[Any] = ()
) -> Refused | None:
    """Return once all that these shards decided so far is durable; refused when the disk fails.

    All are asked at once: a fault that is over when another shard is done has taken something back.

    Args:
        read: The machines that were read with pauses; refused if a fault took one of them back.
    """
    pending = [shard.durable() for shard in shards if not shard.is_durable]
    outcomes = await asyncio.gather(*pending, return_exceptions=True) if pending else ()
    faults = [outcome for outcome in outcomes if outcome is not None]
    if faults:
        return Refused(Why.COORDINATOR_GONE, str(faults[0]))
    machines = {id(shard.machine) for shard in shards}
    if all(id(machine) in machines for machine in read):
        return None
    message = "the state of the group was recovered from its journal meanwhile"
    return Refused(Why.COORDINATOR_GONE, message)


def shard_index(group: str, count: int) -> int:
    """Kafka's mapping of a group to one of `count` partitions.

    String.hashCode without its sign (Utils.abs), modulo `count`. Names that no group can have are
    in the first: working out where Kafka looks for one of a megabyte would keep everybody waiting.
    """
    if len(group) > NAME_BYTES_MAX:
        return 0
    short = len(group) <= _CACHED_CHARACTERS_MAX
    return _index_cached(group, count) if short else _index(group, count)


def _index(group: str, count: int) -> int:
    data = group.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return (value if value < 1 << 31 else (1 << 32) - value & 0x7FFFFFFF) % count


_index_cached = lru_cache(maxsize=_INDEXES_CACHED)(_index)
