"""What handlers are given, and the order in which a broker comes up and goes down.

Up: lock the data folder, replay the catalogue, open the logs of all partitions, replay the
groups; `server.py` then listens. Down: the server first, then the journals, the logs and the lock.
"""

import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any
from uuid import UUID

from headrace.broker import share_bounds
from headrace.broker.apis import Api
from headrace.broker.background import Background
from headrace.broker.budgets import Budgets
from headrace.broker.checked_clock import CheckedClock
from headrace.broker.config import Config
from headrace.broker.dead_letters import DeadLetters
from headrace.broker.decoding_threads import DecodingThreads
from headrace.broker.group_memory import GroupMemory
from headrace.broker.groups import Groups
from headrace.broker.housekeeping import Housekeeping
from headrace.broker.log_validator import LogValidator
from headrace.broker.loop_turns import Turns
from headrace.broker.metrics import Metrics
from headrace.broker.newest_batches import NewestBatches
from headrace.broker.offset_expiry import OffsetExpiry
from headrace.broker.offset_seeding import OffsetSeeding
from headrace.broker.partitions import Partition, Partitions, uuid_text
from headrace.broker.refusal_log import RefusalLog
from headrace.broker.runtime import ShardRuntime
from headrace.broker.scrub import Scrub
from headrace.broker.share_bounds import LogStarts
from headrace.broker.share_pruning import SharePruning
from headrace.broker.share_watch import ShareWatch
from headrace.broker.shares import Shares
from headrace.broker.topics import Topics
from headrace.broker.waits import Waits
from headrace.broker.write_probe import WriteProbe
from headrace.core.catalog import Catalog
from headrace.core.fetch_session import FetchSessions
from headrace.core.types import WallMs
from headrace.log.api import Clock, CorruptFileError, Disk, NewerFormatError
from headrace.log.manifest import PROPERTIES, Manifest
from headrace.log.os_disk import FILE_MODE, FOLDER_MODE, OsDisk, SystemClock

_PROPERTIES_VERSION = "1"
_SESSION_IDS = 2**31 - 1


class StartError(Exception):
    """The broker cannot start; the message is one line with the remedy."""


class Services:
    """Everything a handler may use. Made by `open_services`.

    `host` and `port` are what clients are told to connect to, `folder` is where the records are.
    """

    def __init__(
        self,
        config: Config,
        disk: Disk,
        clock: Clock,
        new_id: Callable[[], UUID],
        metrics: Metrics | None = None,
    ) -> None:
        self.clock = clock = CheckedClock(clock, disk, lambda: self.config)
        self.folder = Path()
        self.host = ""
        self.bound_host = ""
        self.port = 0
        self.bound_port = 0
        self.cluster_id = ""
        self.apis: tuple[Api, ...] = ()
        self.metrics = metrics or Metrics()
        self.waits = Waits(config.waits_max, config.waiting_partitions_max)
        self.refusals = RefusalLog(clock)
        self.validator = LogValidator(config)
        self.decoding_threads = DecodingThreads(config.decoding_threads)
        self.budgets = Budgets(lambda: self.config, self.decoding_threads)
        self.fetch_sessions = FetchSessions(config.fetch_sessions_max)
        # Not from 1: a client of the time before a restart must not meet a session of another.
        self._fetch_session_id = clock.wall() % _SESSION_IDS
        self.topics = Topics(config, disk, clock, self.waits, new_id)
        clock.heed(NewestBatches(self.topics.partitions))
        turns = Turns(perf_counter, thread_time)  # of portions
        self.shares = Shares(config, clock, self.topics, self.waits, turns)
        self.log_starts = LogStarts(self.shares)
        self.share_pruning = SharePruning(
            config, clock, self.shares, self.topics.partitions, self.decoding_threads
        )
        self.share_watch = ShareWatch(clock, self.shares, self.topics.partitions)
        self.groups = Groups(config, clock, self.topics, self.shares, self.waits, turns)
        self.group_memory = GroupMemory(config, self.groups, self.shares)
        self.offset_expiry = OffsetExpiry(config, clock, self.groups, self.topics)
        self.offset_seeding = OffsetSeeding(self.groups, self.topics, self.decoding_threads)
        self.dead_letters = DeadLetters(self.topics, self.shares, clock)
        self.housekeeping = Housekeeping(config, disk, clock, self.topics)
        self.write_probe = WriteProbe(disk, self.topics.partitions)
        self.scrub = Scrub(config, disk, clock, self.topics)
        stalls = self.metrics.stalls
        stalls.warn_seconds = config.stall_warn_ms / 1000 if config.stall_warn_ms >= 0 else None
        for one in self.background:
            one.stalls = stalls

    @property
    def config(self) -> Config:
        """The settings as they count now; some may change while the broker runs."""
        return self.topics.config

    @property
    def catalog(self) -> Catalog:
        """The catalogue as it is now; changed through `topics` alone."""
        return self.topics.catalog

    @property
    def partitions(self) -> Partitions:
        """The open partitions of all topics."""
        return self.topics.partitions

    @property
    def journals(self) -> Sequence[ShardRuntime[Any, Any]]:
        """Everything that journals its events."""
        return (self.topics.journal, *self.shares.shards, *self.groups.shards)

    @property
    def background(self) -> Sequence[Background]:
        """Everything that looks after something again and again, with pauses."""
        return (
            self.clock.work,
            self.log_starts.work,
            self.share_pruning.work,
            self.share_watch.work,
            self.offset_expiry.work,
            self.housekeeping.work,
            self.write_probe.work,
            self.scrub.work,
            self.refusals.work,
        )

    def trouble(self) -> str | None:
        """Why something cannot be served, in one line; None when all is well."""
        for journal in self.journals:
            if journal.fault is not None:
                return f"journal {journal.name} cannot be written: {journal.fault}"
        for one in self.partitions:
            if one.refused is not None:
                return f"{one.name} is refused: {one.refused}"
            if one.damage is not None:
                return f"{one.name} is damaged: {one.damage}"
            if one.is_failing:
                return f"{one.name} cannot be written at present; the log says why"
        for path, damage in self.scrub.damages.items():
            return f"{path} is damaged: {damage}"
        return None

    def partition(self, topic: str, index: int) -> Partition | None:
        """A partition by the name of its topic."""
        return self.topics.partition(topic, index)

    async def opened(self, topic: str, index: int) -> Partition | None:
        """As `partition`; a log that has to be opened was opened in a thread."""
        partition = self.topics.partition(topic, index)
        if partition is not None and not partition.is_open:
            await partition.open_ready()
        return partition

    def next_fetch_session_id(self) -> int:
        """A number for a fetch session."""
        self._fetch_session_id = self._fetch_session_id % _SESSION_IDS + 1
        return self._fetch_session_id

    def disconnected(self, connection_id: int) -> None:
        """A connection is gone, and no request of it runs any more."""
        self.shares.disconnected(connection_id)

    def load(self, new_id: Callable[[], UUID]) -> None:
        """Read the cluster id and the catalogue. Raises: as `open_services`."""
        self.cluster_id = _cluster_id(self.partitions.manifest, self.config.node_id, new_id)
        self.topics.load()

    async def start(self) -> None:
        """Begin to keep time, on the running event loop, and bring share and consumer groups up.

        Raises: OSError; JournalDamaged; CorruptLog.
        """
        self.clock.restore()
        self.topics.start()
        self.partitions.on_start_moved.append(self.log_starts.moved)
        await self.shares.open()
        await share_bounds.agree(self.shares, self.partitions, self.log_starts)
        self.share_watch.start()
        await self.groups.open()
        self.clock.start(_newest_journal_time(self.partitions))
        self.share_pruning.start()
        await self.group_memory.start()
        await self.offset_expiry.start()
        await self.offset_seeding.start()
        self.dead_letters.start()
        self.housekeeping.start()
        self.write_probe.start()
        self.scrub.start()
        self.refusals.start()

    async def close(self) -> None:
        """Write, sync and close everything. Raises: OSError."""
        await self.refusals.close()
        await self.scrub.close()
        await self.write_probe.close()
        await self.housekeeping.close()
        await self.dead_letters.close()
        await self.offset_expiry.close()
        await self.groups.close()
        await self.share_watch.close()
        await self.share_pruning.close()
        await self.log_starts.close()
        await self.shares.close()
        await self.clock.close()
        await self.topics.close()


def open_services(
    config: Config,
    folder: Path,
    *,
    clock: Clock | None = None,
    new_id: Callable[[], UUID],
    disk: Disk | None = None,
) -> Services:
    """Read everything in a data folder that this process has locked.

    Args:
        disk: what stands for the folder where its files must not be changed, as in a check.

    Raises: StartError when the folder belongs to another broker; OSError; JournalDamaged.
    """
    metrics = Metrics()
    disk = disk or OsDisk(folder, on_sync=metrics.synced)
    services = Services(config, disk, clock or SystemClock(), new_id, metrics)
    services.folder = folder
    services.load(new_id)
    return services


def _newest_journal_time(partitions: Partitions) -> WallMs | None:
    """Return the newest time that the broker wrote into an open journal; None without any."""
    times = [
        segment.max_timestamp
        for one in partitions
        if one.topic.internal and one.is_open
        for segment in one.log.segments()
    ]
    newest = max(times, default=-1)
    return None if newest < 0 else WallMs(newest)


class FolderLock:
    """Keeps other brokers out of a data folder as long as this process lives."""

    def __init__(self, folder: Path) -> None:
        """Raises: StartError when another process has it, or it cannot be made."""
        try:
            folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            self._file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, FILE_MODE)
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


def _cluster_id(manifest: Manifest, node_id: int, new_id: Callable[[], UUID]) -> str:
    """The cluster's id from `meta.properties`, which is written when the folder is new.

    Raises: StartError; CorruptLog; OSError.
    """
    found = manifest.read(PROPERTIES)
    if found is None:
        cluster_id = uuid_text(new_id())
        _write_properties(manifest, cluster_id, node_id)
        return cluster_id
    lines = [line for line in found.text.splitlines() if line and not line.startswith("#")]
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    if values.get("version", "").isdecimal() and values["version"] != _PROPERTIES_VERSION:
        raise NewerFormatError(PROPERTIES, values["version"])
    if len(values) < len(lines) or not values.get("node.id", "").isdecimal():
        raise CorruptFileError(PROPERTIES, "a line is malformed, or node.id is missing")
    if values["node.id"] != str(node_id):
        raise StartError(
            f"meta.properties in the data folder belongs to node {values['node.id']}, not"
            f" {node_id}; set node.id={values['node.id']} or choose another --data-dir"
        )
    cluster_id = values.get("cluster.id", "")
    if not found.is_sealed:
        _write_properties(manifest, cluster_id, node_id)
    return cluster_id


def _write_properties(manifest: Manifest, cluster_id: str, node_id: int) -> None:
    """Raises: OSError."""
    text = f"#\nversion={_PROPERTIES_VERSION}\ncluster.id={cluster_id}\nnode.id={node_id}\n"
    manifest.write(PROPERTIES, text)
