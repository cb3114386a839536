"""The topics of a broker: the catalogue, its journal, and the partitions that follow from it."""

from collections.abc import Callable
from uuid import UUID

from headrace.broker.config import Config
from headrace.broker.partitions import Partition, Partitions
from headrace.broker.runtime import ShardRuntime
from headrace.broker.waits import Waits
from headrace.core.catalog import (
    AddPartitions,
    AllocateProducerIds,
    Catalog,
    CreateTopic,
    DeleteTopic,
    Resource,
    SetConfigs,
    Topic,
)
from headrace.core.catalog import Command as CatalogCommand
from headrace.core.catalog import Event as CatalogEvent
from headrace.core.errors import Refused
from headrace.log.api import Clock, Disk
from headrace.log.metadata_records import MetadataRecords
from headrace.log.segments import SegmentedLog

_JOURNAL = "__cluster_metadata-0"
_PRODUCER_IDS_PER_BLOCK = 1000


class Topics:
    """Topics, their settings and those of groups; `new_id` makes the ids of topics.

    `listeners` are called with the events of every change. Raises: StorageFault from every change.
    """

    def __init__(
        self, config: Config, disk: Disk, clock: Clock, waits: Waits, new_id: Callable[[], UUID]
    ) -> None:
        self.new_id = new_id
        self.partitions = Partitions(disk, config, clock, waits)
        self._journal = SegmentedLog(disk, _JOURNAL)
        self._catalog: ShardRuntime[CatalogCommand, CatalogEvent] = ShardRuntime(
            "catalogue",
            lambda: (Catalog(), MetadataRecords(config.node_id)),
            self._journal,
            clock,
            fsync=config.durability == "fsync",
        )
        self._producer_ids = iter(range(0))
        self.listeners = self._catalog.listeners

    @property
    def catalog(self) -> Catalog:
        """The catalogue as it is now; changed through the methods below alone."""
        machine = self._catalog.machine
        assert isinstance(machine, Catalog)
        return machine

    def partition(self, topic: str, index: int) -> Partition | None:
        """A partition by the name of its topic."""
        found = self.catalog.topics.get(topic)
        return None if found is None else self.partitions.get(found.id, index)

    async def create(self, command: CreateTopic) -> Topic | Refused:
        """Create a topic and open its logs."""
        reply = await self._catalog.ask(command)
        topic = self.catalog.topics_by_id.get(command.topic_id)
        if topic is not None:
            self.partitions.open_topic(topic, self.catalog)
        assert isinstance(reply, Topic | Refused)
        return reply

    async def delete(self, command: DeleteTopic) -> Topic | Refused:
        """Delete a topic and its records."""
        reply = await self._catalog.ask(command)
        assert isinstance(reply, Topic | Refused)
        if isinstance(reply, Topic):
            self.partitions.delete_topic(reply)
        return reply

    async def add_partitions(self, command: AddPartitions) -> Topic | Refused:
        """Add partitions to a topic and open their logs."""
        reply = await self._catalog.ask(command)
        assert isinstance(reply, Topic | Refused)
        if isinstance(reply, Topic):
            self.partitions.open_topic(reply, self.catalog)
        return reply

    async def set_configs(self, command: SetConfigs) -> Refused | None:
        """Set configuration values that were found to make sense."""
        reply = await self._catalog.ask(command)
        assert reply is None or isinstance(reply, Refused)
        topic = self.catalog.topics.get(command.name)
        if command.resource is Resource.TOPIC and topic is not None:
            self.partitions.configure(topic, self.catalog)
        return reply

    async def next_producer_id(self) -> int:
        """A producer id that was never given out, also not before a restart."""
        while (producer_id := next(self._producer_ids, None)) is None:
            block = await self._catalog.ask(AllocateProducerIds(_PRODUCER_IDS_PER_BLOCK))
            self._producer_ids = iter(block)
        return producer_id

    def load(self) -> None:
        """Replay the catalogue and open all partitions.

        Raises: OSError; JournalDamaged; CorruptLog.
        """
        self._catalog.load()
        self.partitions.open_all(self.catalog)

    def start(self) -> None:
        """Begin to keep time, on the running event loop."""
        self._catalog.start()

    async def close(self) -> None:
        """Write, sync and close everything. Raises: OSError."""
        await self._catalog.close()
        self.partitions.close()
        self._journal.close()
