"""The topics of a broker: the catalogue, its journal, and the partitions that follow from it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
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

AnswerT = TypeVar("AnswerT")


class Topics:
    """Topics, their settings and those of groups; `new_id` makes the ids of topics.

    `listeners` are called with the events of every change, `on_deleted` with a topic
    whose deletion is durable. Raises: StorageFault from every change.
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
        self.on_deleted: list[Callable[[Topic], None]] = []
        self._changes: set[asyncio.Task[Any]] = set()
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
        return await self._whole(self._create(command))

    async def _create(self, command: CreateTopic) -> Topic | Refused:
        crowded = self.partitions.no_room_for(command.partitions)
        if crowded is not None:
            return crowded
        reply = await self._catalog.ask(command)
        topic = self.catalog.topics_by_id.get(command.topic_id)
        if topic is not None:
            self.partitions.open_topic(topic, self.catalog)
        assert isinstance(reply, Topic | Refused)
        return reply

    async def delete(self, command: DeleteTopic) -> Topic | Refused:
        """Delete a topic and its records."""
        return await self._whole(self._delete(command))

    async def _delete(self, command: DeleteTopic) -> Topic | Refused:
        reply = await self._catalog.ask(command)
        assert isinstance(reply, Topic | Refused)
        if isinstance(reply, Topic):
            for forget in self.on_deleted:  # not before the catalogue's journal has it
                forget(reply)
            self.partitions.delete_topic(reply)
        return reply

    async def add_partitions(self, command: AddPartitions) -> Topic | Refused:
        """Add partitions to a topic and open their logs."""
        return await self._whole(self._add_partitions(command))

    async def _add_partitions(self, command: AddPartitions) -> Topic | Refused:
        topic = self.catalog.topics.get(command.name)
        crowded = self.partitions.no_room_for(command.total - topic.partitions) if topic else None
        if crowded is not None:
            return crowded
        reply = await self._catalog.ask(command)
        assert isinstance(reply, Topic | Refused)
        if isinstance(reply, Topic):
            self.partitions.open_topic(reply, self.catalog)
        return reply

    async def set_configs(self, command: SetConfigs) -> Refused | None:
        """Set configuration values that were found to make sense."""
        return await self._whole(self._set_configs(command))

    async def _set_configs(self, command: SetConfigs) -> Refused | None:
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

    async def _whole(self, change: Coroutine[Any, Any, AnswerT]) -> AnswerT:
        """Carry a change out to its end, also when its caller goes away amid it.

        Half of one would leave a topic without logs, or another's logs under its name.
        """
        task = asyncio.ensure_future(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

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
        if self._changes:
            await asyncio.wait(self._changes)
        await self._catalog.close()
        self.partitions.close()
        self._journal.close()
