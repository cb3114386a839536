"""The partitions of all topics: their logs, appends as durable as configured, and who waits.

A partition's folder is `<topic>-<number>` as in Kafka, with the topic's id in `partition.metadata`;
a folder of another topic that had the same name is set aside, never read and never removed.
Deletion renames the folder first, so that a crash leaves nothing that looks like a partition.
"""

import asyncio
import base64
import logging
import resource
from collections.abc import Iterator
from uuid import UUID

from headrace.broker.config import Config
from headrace.broker.metrics import Traffic
from headrace.broker.topic_settings import TopicSettings
from headrace.broker.waits import Waits
from headrace.core.catalog import Catalog, Resource, Topic
from headrace.core.errors import Refused, Why
from headrace.core.types import TopicPartition, elapsed_ms
from headrace.log.api import Clock, Disk, Slice
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import BatchHeader

log = logging.getLogger("headrace.broker")
LEADER_EPOCH = 0
_METADATA = "partition.metadata"
_PROGRESS_MS = 1000
_NAME_KEPT = 150  # characters of a topic's name in the name of a folder set aside
_FILES_PER_PARTITION = 3
_FILES_SPARE = 128  # for connections, the journal and the interpreter


class Partition:
    """One partition: its log, its topic's settings, and the durability of what was appended."""

    def __init__(
        self,
        topic: Topic,
        index: int,
        log: SegmentedLog,
        settings: TopicSettings,
        waits: Waits,
        *,
        fsync: bool,
    ) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.settings = settings
        self.key = TopicPartition(topic.id, index)
        self.traffic = Traffic()
        self._waits = waits
        self._fsync = fsync
        self._durable_end = log.end_offset
        self._syncing: asyncio.Future[None] | None = None
        self._fault: OSError | None = None

    @property
    def fields(self) -> dict[str, object]:
        """What a log line about this partition carries beside its text."""
        return {"topic": self.topic.name, "partition": self.index}

    @property
    def fault(self) -> OSError | None:
        """The failed sync after which nothing is accepted any more, if there was one."""
        return self._fault

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def high_watermark(self) -> int:
        """The end of what readers may see: with `fsync`, only what is on the disk."""
        return self._durable_end if self._fsync else self.log.end_offset

    def read(self, offset: int, max_bytes: int) -> Slice:
        """As `Log.read`, below the high watermark. Raises: OffsetOutOfRange; OSError."""
        return self.log.read(offset, max_bytes, end=self.high_watermark)

    def append(self, data: bytearray | memoryview, headers: list[BatchHeader]) -> int:
        """Write batches at the end and wake readers; returns the first offset.

        What is promised to others must wait for `durable`. Raises: OSError.
        """
        if self._fault is not None:
            raise self._fault
        first = self.log.append(data, headers)
        self.traffic.produced(data, headers)
        if self._fsync:
            self._begin_sync()
        else:
            self._waits.notify(self.key)
        return first

    def append_records(self, records: list[batches.Record]) -> int:
        """Write records of the broker's own as one batch; otherwise as `append`."""
        data = bytearray(batches.build(records))
        return self.append(data, batches.headers(data))

    async def durable(self) -> None:
        """Return once all that is appended is as durable as configured.

        With `fsync`, one fdatasync serves everybody who came before it began. Raises: OSError.
        """
        end = self.log.end_offset
        while self._fsync and self._durable_end < end:
            if self._fault is not None:
                raise self._fault
            # A caller that goes away must not end the sync for the others.
            await asyncio.shield(self._begin_sync())

    def _begin_sync(self) -> "asyncio.Future[None]":
        if self._syncing is None:
            self._syncing = asyncio.ensure_future(self._sync())
        return self._syncing

    async def _sync(self) -> None:
        end = self.log.end_offset
        try:
            await asyncio.get_running_loop().run_in_executor(None, self.log.sync)
        except OSError as error:
            # The system may have dropped what it could not write, and a second fdatasync would
            # not say so: nothing is promised any more until a restart reads what is there.
            self._fault = error
            log.error(
                "sync of %s-%d failed: %s; it accepts nothing until the broker is restarted",
                self.topic.name, self.index, error, extra=self.fields,
            )  # fmt: skip
        finally:
            self._syncing = None
        if self._fault is None:
            self._durable_end = end
            self._waits.notify(self.key)
            if end < self.log.end_offset:
                self._begin_sync()


class Partitions:
    """All partitions of the topics in the catalogue."""

    def __init__(self, disk: Disk, config: Config, clock: Clock, waits: Waits) -> None:
        self._disk = disk
        self._config = config
        self._clock = clock
        self._waits = waits
        self._by_key: dict[tuple[UUID, int], Partition] = {}

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._by_key.values()))

    def get(self, topic_id: UUID, index: int) -> Partition | None:
        """The partition, or None when there is none."""
        return self._by_key.get((topic_id, index))

    def open_all(self, catalog: Catalog) -> None:
        """Open the logs of every topic, telling progress when it takes long. Raises: OSError."""
        self._set_strays_aside(catalog)
        started = told = self._clock.mono()
        wanted = sum(topic.partitions for topic in catalog.topics.values())
        for topic in catalog.topics.values():
            for index in range(topic.partitions):
                self._open(topic, index, catalog)
                if elapsed_ms(told, self._clock.mono()) > _PROGRESS_MS:
                    told = self._clock.mono()
                    log.info("opened %d of %d partitions", len(self._by_key), wanted)
        took = elapsed_ms(started, self._clock.mono())
        if took > _PROGRESS_MS:
            log.info("opened %d partitions in %d ms", wanted, took)

    def no_room_for(self, count: int) -> Refused | None:
        """Refuse `count` further partitions where the system lets no process open so many files."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = (len(self._by_key) + count) * _FILES_PER_PARTITION + _FILES_SPARE
        if limit == resource.RLIM_INFINITY or wanted <= limit:
            return None
        return Refused(
            Why.INVALID_PARTITIONS,
            f"{count} further partitions need about {wanted} open files, {limit} are allowed; "
            "raise the limit (ulimit -n) and restart the broker",
        )

    def open_topic(self, topic: Topic, catalog: Catalog) -> None:
        """Open those partitions of a topic that are not open: it is new, or has new ones."""
        for index in range(topic.partitions):
            if (topic.id, index) not in self._by_key:
                self._open(topic, index, catalog)

    def configure(self, topic: Topic, catalog: Catalog) -> None:
        """Let a topic's partitions know its changed settings; its segment size with a restart."""
        settings = self._settings(topic, catalog)
        for index in range(topic.partitions):
            self._by_key[topic.id, index].settings = settings

    def delete_topic(self, topic: Topic) -> None:
        """Close and remove the partitions of a topic that the catalogue forgot; wakes readers."""
        for index in range(topic.partitions):
            partition = self._by_key.pop((topic.id, index), None)
            if partition is None:
                continue
            partition.log.close()
            folder = f"{topic.name}-{index}"
            gone = _aside(folder, topic.id.hex, "delete")
            self._disk.rename(folder, gone)
            self._disk.remove(gone)
            self._waits.notify(partition.key)

    def close(self) -> None:
        """Sync and close every log. Raises: OSError."""
        for partition in self:
            partition.log.sync()
            partition.log.close()
        self._by_key.clear()

    def _open(self, topic: Topic, index: int, catalog: Catalog) -> None:
        folder = f"{topic.name}-{index}"
        metadata = f"{folder}/{_METADATA}"
        if self._disk.exists(metadata) and self._topic_id(metadata) != uuid_text(topic.id):
            self._set_aside(folder, self._topic_id(metadata))
        if not self._disk.exists(metadata):
            self._disk.write(metadata, f"version: 0\ntopic_id: {uuid_text(topic.id)}\n".encode())
        settings = self._settings(topic, catalog)
        opened = SegmentedLog(self._disk, folder, segment_bytes=settings.segment_bytes)
        fsync = self._config.durability == "fsync"
        if fsync:
            opened.sync()
        partition = Partition(topic, index, opened, settings, self._waits, fsync=fsync)
        self._by_key[topic.id, index] = partition

    def _topic_id(self, metadata: str) -> str:
        return self._disk.read(metadata).decode(errors="replace").split()[-1]

    def _settings(self, topic: Topic, catalog: Catalog) -> TopicSettings:
        overrides = catalog.configs_of(Resource.TOPIC, topic.name)
        return TopicSettings.resolve(self._config, overrides)

    def _set_strays_aside(self, catalog: Catalog) -> None:
        expected = {
            f"{topic.name}-{index}": uuid_text(topic.id)
            for topic in catalog.topics.values()
            for index in range(topic.partitions)
        }
        for folder in self._disk.list(""):
            if folder.endswith("-delete"):
                self._disk.remove(folder)
                continue
            metadata = f"{folder}/{_METADATA}"
            if folder.endswith("-stray") or not self._disk.exists(metadata):
                continue
            topic_id = self._topic_id(metadata)
            if expected.get(folder) != topic_id:
                self._set_aside(folder, topic_id)

    def _set_aside(self, folder: str, topic_id: str) -> None:
        aside = _aside(folder, topic_id, "stray")
        log.warning("%s belongs to no topic; it was renamed to %s", folder, aside)
        self._disk.rename(folder, aside)


def _aside(folder: str, topic_id: str, why: str) -> str:
    """A name for the folder of a topic that is no more, short enough for every file system."""
    name, number = folder.rsplit("-", 1)
    return f"{name[:_NAME_KEPT]}.{topic_id}-{number}-{why}"


def uuid_text(value: UUID) -> str:
    """An id as Kafka's files and tools spell it: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()
