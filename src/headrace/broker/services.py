"""What handlers are given, and the order in which a broker comes up and goes down.

Up: lock the data folder, replay the catalogue, open the logs of all partitions, replay the share
groups; `server.py` then listens. Down: the server first, then the journals, the logs and the lock.
"""

import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.broker.config import Config
from headrace.broker.partitions import Partition, Partitions, uuid_text
from headrace.broker.runtime import ShardRuntime
from headrace.broker.shares import Shares
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
from headrace.log.os_disk import OsDisk, SystemClock
from headrace.log.segments import SegmentedLog

if TYPE_CHECKING:
    from headrace.broker.request import Api

log = logging.getLogger("headrace.broker")
_JOURNAL = "__cluster_metadata-0"
_PROPERTIES = "meta.properties"
_PRODUCER_IDS_PER_BLOCK = 1000


class StartError(Exception):
    """The broker cannot start; the message is one line with the remedy."""


class Services:
    """Everything a handler may use. Made by `open_services`.

    `new_id` makes topic ids; `host` and `port` are what clients are told to connect to.
    """

    def __init__(
        self,
        config: Config,
        disk: Disk,
        clock: Clock,
        new_id: Callable[[], UUID],
        *,
        fsync: bool,
    ) -> None:
        self.config = config
        self.disk = disk
        self.clock = clock
        self.new_id = new_id
        self.host = ""
        self.port = 0
        self.cluster_id = ""
        self.apis: tuple[Api, ...] = ()
        self.on_disconnect: list[Callable[[int], None]] = []
        self.waits = Waits(config.waits_max)
        self.partitions = Partitions(disk, config, clock, self.waits)
        self._journal = SegmentedLog(disk, _JOURNAL)
        self._catalog: ShardRuntime[CatalogCommand, CatalogEvent] = ShardRuntime(
            "catalogue",
            lambda: (Catalog(), MetadataRecords(config.node_id)),
            self._journal,
            clock,
            fsync=fsync,
        )
        self._producer_ids = iter(range(0))
        self.catalog_listeners = self._catalog.listeners
        self.shares = Shares(self)

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

    async def create_topic(self, command: CreateTopic) -> Topic | Refused:
        """Create a topic and open its logs."""
        reply = await self._catalog.ask(command)
        topic = self.catalog.topics_by_id.get(command.topic_id)
        if topic is not None:
            self.partitions.open_topic(topic, self.catalog)
        assert isinstance(reply, Topic | Refused)
        return reply

    async def delete_topic(self, command: DeleteTopic) -> Topic | Refused:
        """Delete a topic and its records."""
        reply = await self._catalog.ask(command)
        assert isinstance(reply, Topic | Refused)
        if isinstance(reply, Topic):
            self.partitions.delete_topic(reply)
            await self.shares.forget_topic(reply.id)
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

    def disconnected(self, connection_id: int) -> None:
        """A connection is gone, and no request of it runs any more."""
        for hook in self.on_disconnect:
            hook(connection_id)

    def load(self) -> None:
        """Replay the catalogue and open all partitions.

        Raises: OSError; JournalDamaged.
        """
        self._catalog.load()
        self.partitions.open_all(self.catalog)

    async def start(self) -> None:
        """Begin to keep time, on the running event loop, and bring the share groups up.

        Raises: OSError; JournalDamaged.
        """
        self._catalog.start()
        await self.shares.open()

    async def close(self) -> None:
        """Write, sync and close everything. Raises: OSError."""
        await self.shares.close()
        await self._catalog.close()
        self.partitions.close()
        self._journal.close()


def open_services(
    config: Config, folder: Path, *, clock: Clock | None = None, new_id: Callable[[], UUID]
) -> Services:
    """Read everything in a data folder that this process has locked.

    Raises: StartError when the folder belongs to another broker; OSError; JournalDamaged.
    """
    disk = OsDisk(folder)
    services = Services(
        config, disk, clock or SystemClock(), new_id, fsync=config.durability == "fsync"
    )
    services.cluster_id = _cluster_id(disk, config.node_id, new_id)
    services.load()
    return services


class FolderLock:
    """Keeps other brokers out of a data folder as long as this process lives."""

    def __init__(self, folder: Path) -> None:
        """Raises: StartError when another process has it, or it cannot be made."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StartError(
                f"cannot use the data folder {folder}: {error.strerror}; choose another --data-dir"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise StartError(
                f"the data folder {folder} is in use by another broker;"
                " stop it or choose another --data-dir"
            ) from error

    def release(self) -> None:
        os.close(self._file)


def _cluster_id(disk: Disk, node_id: int, new_id: Callable[[], UUID]) -> str:
    """The cluster's id from `meta.properties`, which is written when the folder is new."""
    if not disk.exists(_PROPERTIES):
        cluster_id = uuid_text(new_id())
        text = f"#\nversion=1\ncluster.id={cluster_id}\nnode.id={node_id}\n"
        disk.write(_PROPERTIES, text.encode())
        return cluster_id
    lines = disk.read(_PROPERTIES).decode(errors="replace").splitlines()
    found: dict[str, Any] = dict(line.split("=", 1) for line in lines if "=" in line)
    if found.get("node.id") != str(node_id):
        raise StartError(
            f"meta.properties in the data folder belongs to node {found.get('node.id')}, not"
            f" {node_id}; set node.id={found.get('node.id')} or choose another --data-dir"
        )
    return str(found.get("cluster.id", ""))
