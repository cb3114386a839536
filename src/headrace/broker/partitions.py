"""The partitions of all topics: their folders, and the order in which they come up and go down.

A partition's folder is `<topic>-<number>` as in Kafka, with the topic's id in `partition.metadata`;
a folder of another topic that had the same name is set aside, never read and never removed.
Deletion renames the folder first, so that a crash leaves nothing that looks like a partition.

After an orderly stop a partition's log is opened when it is first used, in a thread. After any
other every log is opened at the start, so that damage shows there and not later. A partition whose
folder or log is damaged or missing is refused, and the others are served; for a journal the start
is refused.

The manifest of the data folder lists the folders that must exist (`log/manifest.py`): a topic is
listed once its folders are made, marked before the catalogue forgets it, and forgotten once they
are gone, so that the next start ends a deletion that a crash interrupted. A log is made with a
recovery point, and a topic is marked once each of its logs has one, so that a missing one is
noticed.
"""

import asyncio
import base64
import errno
import functools
import itertools
import logging
import resource
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar
from uuid import UUID

from headrace.broker.config import Config
from headrace.broker.partition import Dropped, Partition
from headrace.broker.storage_faults import StorageFaults, is_full
from headrace.broker.topic_settings import TopicSettings
from headrace.broker.waits import Waits
from headrace.core.catalog import Catalog, Resource, Topic
from headrace.core.errors import Refused, Why
from headrace.core.types import TopicPartition, elapsed_ms
from headrace.log import partition_metadata, recovery_point
from headrace.log.api import (
    Clock,
    CorruptFileError,
    CorruptLog,
    DamagedBlockError,
    Disk,
    NewerFormatError,
    OffsetOutOfRange,
)
from headrace.log.checkpoints import (
    CLEAN_MARK,
    Extent,
    StartOffsets,
    leave_clean_mark,
    other_starts,
    read_clean_mark,
    remove_clean_mark,
)
from headrace.log.manifest import CATALOGUE, METADATA, START_OFFSETS, ListedTopic, Manifest
from headrace.log.opening import MISSING_SEGMENTS
from headrace.log.producers import ProducerLimit
from headrace.log.recovery_point import RecoveryPoint
from headrace.log.segments import SegmentedLog

__all__ = ["LEADER_EPOCH", "Partition", "Partitions", "StartOutcome", "uuid_text"]

log = logging.getLogger("headrace.broker")
LEADER_EPOCH = 0
_PROGRESS_MS = 1000
_NAME_KEPT = 150  # characters of a topic's name in the name of a folder set aside
_FILES_PER_PARTITION = 3  # the segment written to, two sealed ones
_FILES_SPARE = 128  # for connections, the journal and the interpreter
_STARTS_PER_WRITE = 500
_STARTS_AT_ONCE = 50  # start offsets that move in a turn of the loop
_CHUNK = 32  # partitions whose files are made or removed at a time

ItemT = TypeVar("ItemT")
StartOutcome = int | OffsetOutOfRange | OSError
"""The new start offset of a partition, or why it did not move."""


class Partitions:
    """All partitions of the topics in the catalogue; `config` has the settings that count now.

    Raises: from the constructor, CorruptLog and OSError for the manifest of the data folder.
    """

    def __init__(self, disk: Disk, config: Config, clock: Clock, waits: Waits) -> None:
        self.config = config
        self._disk = disk
        self._clock = clock
        self._waits = waits
        self._by_key: dict[tuple[UUID, int], Partition] = {}
        self._starts: StartOffsets | None = None
        self.manifest = Manifest(disk)
        if self.manifest.is_upgrading:
            for folder in disk.list(""):
                if folder == CATALOGUE or disk.exists(f"{folder}/{METADATA}"):
                    recovery_point.begin_point(disk, folder)
        self._plain: tuple[Config, TopicSettings] | None = None
        if self.manifest.journals and not disk.exists(CLEAN_MARK):
            log.info("%s: the file is missing, as after a crash; all logs are checked", CLEAN_MARK)
        self._closed = read_clean_mark(disk, unsealed=self.manifest.is_upgrading)
        self.faults = StorageFaults(clock)
        self.producer_limit = ProducerLimit(config.producers_max)
        self.on_start_moved: list[Callable[[Partition], None]] = []
        self._one_opening = asyncio.Lock()
        self._unmade: set[tuple[UUID, int]] = set()  # without a folder, as the disk was full
        self._listing = threading.RLock()  # held from finding what a topic has until it is listed
        self._with_points: set[UUID] = set()  # topics whose logs all have recovery points
        self._deletions: set[UUID] = set()  # topics whose deletion began and has not ended

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._by_key.values()))

    def read_failed(self, error: Exception) -> None:
        """Report damage that a background task read to the partition whose file is damaged."""
        if isinstance(error, DamagedBlockError):
            for one in self._owners(error):
                one.read_failed(error)

    def report_damage(self, error: DamagedBlockError, effect: str) -> None:
        """Report damage to the partition whose file is damaged; as `Partition.report_damage`."""
        owners = self._owners(error)
        for one in owners:
            one.report_damage(error, effect)
        if not owners:
            log.error("%s", error.damage)

    def _owners(self, error: DamagedBlockError) -> list[Partition]:
        folder = error.damage.path.partition("/")[0]
        return [one for one in self if one.name == folder]

    def get(self, topic_id: UUID, index: int) -> Partition | None:
        """The partition, or None when there is none."""
        return self._by_key.get((topic_id, index))

    def was_closed(self, folder: str) -> bool:
        """Return whether the log in `folder` still is as the last broker closed it, in order.

        The mark of an orderly stop does not name a log that was never closed in order before it was
        refused, or that a repair has changed. That of a format 0 folder names none, and stands for
        all.
        """
        return self._closed is not None and (not self._closed or folder in self._closed)

    def closed_end(self, folder: str) -> int | None:
        """The end offset with which the log in `folder` was closed in order, if that is known."""
        extent = (self._closed or {}).get(folder)
        return None if extent is None else extent.end

    def open_all(self, catalog: Catalog) -> None:
        """Take up the partitions of every topic, and log the progress when it takes long.

        Raises: OSError; CorruptLog for the data folder as a whole or for a journal.
        """
        self._starts = StartOffsets(self.manifest)
        self._restore_starts()
        remove_clean_mark(self._disk)
        found = self._set_strays_aside(catalog)
        started = told = self._clock.mono()
        wanted = sum(topic.partitions for topic in catalog.topics.values())
        for topic in catalog.topics.values():
            for index in range(topic.partitions):
                self._take_up(topic, index, catalog, found)
                if elapsed_ms(told, self._clock.mono()) > _PROGRESS_MS:
                    told = self._clock.mono()
                    log.info("opened %d of %d partitions", len(self._by_key), wanted)
        took = elapsed_ms(started, self._clock.mono())
        if took > _PROGRESS_MS:
            log.info("opened %d partitions in %d ms", wanted, took)
        self._list_topics(catalog)

    def _restore_starts(self) -> None:
        """Restore the starts with which logs were closed, where the checkpoint has former ones.

        Raises: OSError.
        """
        starts = other_starts(self._disk, self._closed or {}, self._kept_starts.get)
        if starts:
            log.warning(
                "%s: an earlier state of the file; the starts of %d logs are taken from %s",
                START_OFFSETS,
                len(starts),
                CLEAN_MARK,
            )
            self._kept_starts.restore(starts)

    def _list_topics(self, catalog: Catalog) -> None:
        """Bring the manifest in line with the catalogue. Raises: OSError."""
        topics = catalog.topics.values()
        self._with_points.update(one.id for one in topics if self._secured_points(one))
        try:
            self.manifest.put_topics({uuid_text(one.id): self._made(one) for one in topics})
        except OSError as error:
            if not is_full(error):
                raise
            # What the manifest lists exists all the same, and topics can be deleted for space.
            log.warning("headrace.manifest: cannot be written now: %s", error.strerror or error)

    def _secured_points(self, topic: Topic) -> bool:
        """Return whether each log of a topic has a recovery point that no power cut can take.

        Logs of earlier releases get one, except where it may be the one that is missing.
        """
        id_ = uuid_text(topic.id)
        first = self.manifest.topics[id_].partitions if self.manifest.has_point(id_, 0) else 0
        partitions = [self._by_key[topic.id, index] for index in range(first, topic.partitions)]
        try:
            for one in partitions:
                if (topic.id, one.index) in self._unmade:
                    continue  # it gets one when its folder is made
                if one.is_open:
                    one.log.secure_point()
                elif one.refused is not None or not self._secured_point(one.name):
                    return False
        except (CorruptLog, OSError) as error:
            log.debug("topic %s: a recovery point could not be synced: %s", topic.name, error)
            return False
        return True

    def _secured_point(self, folder: str) -> bool:
        """Secure the recovery point of a log that is not open. Raises: CorruptLog; OSError."""
        point = RecoveryPoint(self._disk, folder)
        end_offset = self.closed_end(folder)
        if point.is_missing:
            names = [name for name in self._disk.list(folder) if ".log" in name]
            if end_offset or any(self._disk.size(f"{folder}/{name}") for name in names):
                return False
        elif end_offset:
            return True  # it was synced when the log was closed
        point.secure()
        return True

    def _list_topic(self, topic: Topic, new: Sequence[int] = ()) -> None:
        """List the partitions of a topic that have folders. Raises: OSError."""
        with self._listing:
            self.manifest.put_topic(uuid_text(topic.id), self._made(topic, new))

    def _made(self, topic: Topic, new: Sequence[int] = ()) -> ListedTopic:
        """Return what the manifest may list of a topic: what is before the first missing folder.

        What is listed stays listed, so that lost folders are noticed. The number of a topic whose
        deletion began counts for nothing: it may include folders that are not made or removed.

        Args:
            new: partitions whose folders were made just now.
        """
        listed = self.manifest.topics.get(uuid_text(topic.id))
        count = 0 if listed is None or listed.is_deleting else listed.partitions
        while (key := (topic.id, count)) not in self._unmade:
            if key not in self._by_key and count not in new:
                break
            count += 1
        return ListedTopic(count, topic.name, has_points=topic.id in self._with_points)

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

    async def open_topic(self, topic: Topic, catalog: Catalog) -> None:
        """Open those partitions of a topic that are not open: it is new, or has new ones.

        Files are made in a thread, a few partitions at a time, so that nobody waits meanwhile; a
        partition can be used as soon as it is open. Raises: OSError, and some are not open.
        """
        missing = [n for n in range(topic.partitions) if (topic.id, n) not in self._by_key]
        settings = self._settings(topic, catalog)
        await self._forget_starts(topic.name, missing)
        if len(missing) == topic.partitions:
            self._with_points.add(topic.id)

        def make(some: list[int]) -> None:
            for index in some:
                self._make_folder(topic, index)
                made[index].open()
            self._list_topic(topic, some)

        for some in _chunks(missing):
            made = {n: self._partition(topic, n, settings, clean=False) for n in some}
            try:
                await _in_thread(make, [some])
            finally:  # those that were made, too, if one cannot be
                there = ((n, one) for n, one in made.items() if one.is_open)
                self._by_key.update(((topic.id, n), one) for n, one in there)

    async def open_rest(self) -> None:
        """Open what was not needed since the start, one at a time; a damaged log stays closed."""
        for partition in self:
            await partition.open_ready()

    def must_open(self, key: TopicPartition) -> bool:
        """Return whether there is a partition whose log `opened` opens, or tries to."""
        partition = self._by_key.get((key.topic_id, key.partition))
        return partition is not None and partition.must_open

    async def opened(self, topic_id: UUID, index: int) -> Partition | None:
        """Return a partition after `Partition.open_ready`, or None when there is none."""
        partition = self.get(topic_id, index)
        if partition is not None and not partition.is_open:
            await partition.open_ready()
        return partition

    def configure(self, topic: Topic, catalog: Catalog) -> None:
        """Let a topic's partitions know its changed settings."""
        settings = self._settings(topic, catalog)
        for index in range(topic.partitions):
            partition = self._by_key.get((topic.id, index))
            if partition is not None:
                partition.configure(settings)

    async def begin_deletion(self, topic: Topic) -> None:
        """Note that a topic's folders may go once the catalogue forgets it. Raises: OSError."""

        def begin(topic: Topic) -> None:
            try:
                with self._listing:
                    self.manifest.begin_deletion(uuid_text(topic.id), self._made(topic))
            except OSError as error:
                if not is_full(error):  # a deletion makes room
                    raise

        self._deletions.add(topic.id)
        await _in_thread(begin, [topic])

    async def cancel_deletion(self, topic: Topic) -> None:
        """Undo `begin_deletion` of a topic that the catalogue keeps. Raises: OSError."""
        await _in_thread(self._list_topic, [topic])
        self._deletions.discard(topic.id)

    async def delete_topic(self, topic: Topic) -> None:
        """Close and remove the partitions of a topic that the catalogue forgot; wakes readers.

        Files are removed as `open_topic` makes them.
        """
        gone = [self._by_key.pop((topic.id, n), None) for n in range(topic.partitions)]
        self._unmade.difference_update((topic.id, n) for n in range(topic.partitions))
        for some in _chunks([partition for partition in gone if partition is not None]):
            for partition in some:
                partition.close()
                self._waits.notify(partition.key)
            await _in_thread(self._remove, some)
        await _in_thread(self.manifest.remove_topic, [uuid_text(topic.id)])
        self._deletions.discard(topic.id)
        self._with_points.discard(topic.id)
        await self._forget_starts(topic.name, range(topic.partitions))

    async def _forget_starts(self, topic: str, partitions: Sequence[int]) -> None:
        """Raises: OSError."""
        await _in_thread(functools.partial(self._kept_starts.forget, topic), [partitions])

    async def delete_records(
        self, offsets: Mapping[Partition, int]
    ) -> dict[Partition, StartOutcome]:
        """Delete the records below an offset of each partition.

        Start offsets are kept durably before they move, many with one write; then segments are
        dropped, some in a turn.

        Returns: the start offset of each partition, or why it could not be moved: the offset is
            above the high watermark, or the disk failed.
        """
        outcomes: dict[Partition, StartOutcome] = {}
        deletable: dict[Partition, int] = {}
        for number, (partition, before) in enumerate(offsets.items(), 1):
            try:
                partition.require_deletable(before)
                deletable[partition] = before
            except (OffsetOutOfRange, OSError) as error:
                outcomes[partition] = error
            if number % _STARTS_AT_ONCE == 0:
                await asyncio.sleep(0)
        items = iter(deletable.items())
        while group := dict(islice(items, _STARTS_PER_WRITE)):
            outcomes |= await self._delete_group(group)
        return outcomes

    async def _delete_group(
        self, offsets: Mapping[Partition, int]
    ) -> dict[Partition, StartOutcome]:
        loop = asyncio.get_running_loop()
        outcomes: dict[Partition, StartOutcome] = {}
        try:
            failures = await loop.run_in_executor(None, self._give_up, offsets)
        except OSError as error:
            return dict.fromkeys(offsets, error)
        for number, (partition, before) in enumerate(offsets.items(), 1):
            try:
                outcomes[partition] = await partition.begin_at(before)
            except OSError as error:
                outcomes[partition] = error
            if number % _STARTS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return outcomes | failures

    def _give_up(self, offsets: Mapping[Partition, int]) -> dict[Partition, OSError]:
        """Keep start offsets, and allow segments below them to be dropped; for a thread.

        Returns: the partitions whose segments may not be dropped. Raises: OSError, and no start
        offset is kept.
        """
        moved = {
            (partition.topic.name, partition.index): (partition, before)
            for partition, before in offsets.items()
            if before > partition.start_offset
        }
        self._kept_starts.put_all(
            {key: before for key, (_, before) in moved.items()}, lambda key: moved[key][0].is_closed
        )
        failures: dict[Partition, OSError] = {}
        for partition, before in offsets.items():
            try:
                partition.log.allow_drop(before)
            except OSError as error:
                failures[partition] = error
        return failures

    def _remove(self, partition: Partition) -> None:
        partition.retire()  # a sync under way could find another topic's files there
        if self._disk.exists(partition.name):
            self._remove_folder(partition.name, uuid_text(partition.topic.id))

    def _remove_folder(self, folder: str, topic_id: str) -> None:
        gone = _aside(folder, topic_id, "delete")
        self._disk.rename(folder, gone)
        self._disk.remove(gone)

    async def close(
        self, closed: Mapping[str, Extent] | None = None, fault: OSError | None = None
    ) -> None:
        """Sync and close every log, and record that in the data folder.

        Where that fails the next start reads what the disk has, as after a crash.

        Args:
            closed: logs beside those of partitions that were closed in order, by folder.
            fault: the reason why another log could not be closed in order.
        """
        trouble: list[OSError] = [] if fault is None else [fault]
        extents = dict(closed or {})

        def settle(partition: Partition) -> None:
            try:
                partition.settle()
            except OSError as error:
                trouble.append(error)

        for partition in self:
            await partition.opening_ended()
        # In the loop's executor, whose threads sync at the same time: then many cost as one.
        opened = [partition for partition in self if partition.is_open]
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(None, settle, one) for one in opened))
        for partition in self:
            if partition.is_open:
                # A deletion that failed may have left a higher one, with which the log begins next.
                kept = self._kept_starts.get(partition.topic.name, partition.index)
                start = max(partition.log.start_offset, kept)
                extents[partition.name] = Extent(start, partition.log.end_offset)
            elif (before := (self._closed or {}).get(partition.name)) is not None:
                extents[partition.name] = before
            partition.close()
        self._by_key.clear()
        try:
            if trouble:
                raise trouble[0]
            if self._starts is not None:
                leave_clean_mark(self._disk, extents)
        except OSError as error:
            log.warning("not everything was synced: %s; the next start checks all logs", error)

    @property
    def _kept_starts(self) -> StartOffsets:
        assert self._starts is not None, "open_all comes first"
        return self._starts

    def _take_up(
        self, topic: Topic, index: int, catalog: Catalog, found: Mapping[str, CorruptLog | None]
    ) -> None:
        folder = f"{topic.name}-{index}"
        clean = folder in found and self.was_closed(folder)
        partition = self._partition(topic, index, self._settings(topic, catalog), clean=clean)
        self._by_key[topic.id, index] = partition
        try:
            if (damage := found.get(folder)) is not None:
                raise damage
            if folder not in found:
                self._require_unlisted(topic, index)
                self._kept_starts.forget(topic.name, [index])
                self._make_folder(topic, index)
            if not clean:
                self._require_segment(folder)
            if not clean or not self.was_closed(CATALOGUE):  # all producer ids must be seen
                partition.open()
        except CorruptLog as error:
            if topic.internal:
                raise
            partition.refuse(error)
        except OSError as error:
            if topic.internal or not is_full(error):
                raise
            if folder not in found:
                self._unmade.add((topic.id, index))
            partition.not_opened(error)

    def _require_unlisted(self, topic: Topic, index: int) -> None:
        """Raises: CorruptFileError where the folder of a partition must exist."""
        listed = self.manifest.topics.get(uuid_text(topic.id))
        folder = f"{topic.name}-{index}"
        if listed is not None and index < listed.partitions and not listed.is_deleting:
            if self._disk.exists(folder):
                raise CorruptFileError(f"{folder}/{METADATA}", "the file is missing")
            raise CorruptFileError(folder, "the folder of the partition is missing")
        if self.manifest.is_upgrading or (listed is not None and listed.is_deleting):
            log.warning("%s: the folder of the partition is missing; created empty", folder)

    def _require_segment(self, folder: str) -> None:
        """Raises: CorruptFileError where a log has no segment: each begins with an empty one."""
        names = self._disk.list(folder)
        if not any(".log" in name or name == recovery_point.NAME for name in names):
            raise CorruptFileError(folder, MISSING_SEGMENTS)

    def _partition(
        self, topic: Topic, index: int, settings: TopicSettings, *, clean: bool
    ) -> Partition:
        return Partition(
            topic,
            index,
            functools.partial(self._open_log, topic, index, clean),
            settings,
            self._waits,
            self.faults,
            self._disk,
            fsync=self.config.durability == "fsync",
            producer_expiration_ms=self.config.producer_expiration_ms,
            on_start_moved=self.on_start_moved,
            one_opening=self._one_opening,
        )

    def _make_folder(self, topic: Topic, index: int) -> None:
        """A folder for a new partition; another's of the same name is set aside or removed.

        Raises: OSError, also where a newer release wrote the other one.
        """
        folder = f"{topic.name}-{index}"
        first = f"{folder}/{0:020d}.log"
        if self._disk.exists(f"{folder}/{METADATA}"):
            try:
                topic_id = self._topic_id(folder)
            except NewerFormatError as error:
                raise OSError(errno.EEXIST, str(error)) from error
            except CorruptLog:  # as of a deleted topic whose folder could not be removed
                topic_id = self._unknown_id(folder)
            if topic_id == uuid_text(topic.id):
                RecoveryPoint(self._disk, folder).secure()
                return
            self._set_aside(folder, topic_id)
        elif not self._is_half_made(folder, first):
            self._set_aside(folder, self._unknown_id(folder))
        if not self._disk.exists(first):
            # One sync of the folder serves all: an append that made the file would wait for its.
            self._disk.write(first, b"", durable=False)
        RecoveryPoint(self._disk, folder).begin()
        partition_metadata.write(self._disk, folder, uuid_text(topic.id))

    def _is_half_made(self, folder: str, first: str) -> bool:
        """Return whether a folder has nothing but what `_make_folder` makes first, if it exists."""
        # A kill or a full disk amid a write leaves a file of another name.
        names = {name for name in self._disk.list(folder) if not name.endswith(".new")}
        if not names <= {first.rpartition("/")[2], recovery_point.NAME}:
            return False
        is_empty = not self._disk.exists(first) or not self._disk.size(first)
        _, claim = recovery_point.read_claim(self._disk, folder)
        return is_empty and claim == recovery_point.NO_CLAIM

    def _unknown_id(self, folder: str) -> str:
        """Return what stands for the topic id in the new name of a folder without one."""
        numbered = (f"unknown{number or ''}" for number in itertools.count())
        return next(one for one in numbered if not self._disk.exists(_aside(folder, one, "stray")))

    def _make_late(self, topic: Topic, index: int) -> None:
        """Make and list the folder that could not be made at the start. Raises: OSError."""
        with self._listing:
            if topic.id in self._deletions:  # listing it would take the mark of the deletion away
                raise OSError(errno.EBUSY, "the topic is being deleted")
            self._kept_starts.forget(topic.name, [index])
            self._make_folder(topic, index)
            self._unmade.discard((topic.id, index))
            try:
                self._list_topic(topic)
            except OSError:
                self._unmade.add((topic.id, index))
                raise

    def _open_log(
        self, topic: Topic, index: int, clean: bool, settings: TopicSettings, dropped: Dropped
    ) -> SegmentedLog:
        if (topic.id, index) in self._unmade:
            self._make_late(topic, index)
        starts = self._kept_starts
        return SegmentedLog(
            self._disk,
            f"{topic.name}-{index}",
            segment_bytes=settings.segment_bytes,
            segment_ms=settings.segment_ms,
            index_interval_bytes=settings.index_interval_bytes,
            clean=clean,
            end_offset=self.closed_end(f"{topic.name}-{index}") if clean else None,
            start_offset=starts.get(topic.name, index),
            dropped=dropped,
            producer_limit=self.producer_limit,
            has_point=self.manifest.has_point(uuid_text(topic.id), index),
        )

    def _topic_id(self, folder: str) -> str:
        """Raises: CorruptFileError."""
        found = partition_metadata.read(self._disk, folder, unsealed=self.manifest.is_upgrading)
        if not found.is_sealed:
            partition_metadata.write(self._disk, folder, found.topic_id)
        return found.topic_id

    def _settings(self, topic: Topic, catalog: Catalog) -> TopicSettings:
        overrides = catalog.configs_of(Resource.TOPIC, topic.name)
        if overrides:
            return TopicSettings.resolve(self.config, overrides)
        # One object for all topics without settings of their own.
        if self._plain is None or self._plain[0] is not self.config:
            self._plain = self.config, TopicSettings.resolve(self.config, {})
        return self._plain[1]

    def _set_strays_aside(self, catalog: Catalog) -> dict[str, CorruptLog | None]:
        """Rename the folders of topics that no longer exist.

        Returns: the folders of partitions, with what is wrong with those that cannot be trusted.
        """
        expected = {
            f"{topic.name}-{index}": (topic, index)
            for topic in catalog.topics.values()
            for index in range(topic.partitions)
        }
        found: dict[str, CorruptLog | None] = {}
        for folder in self._disk.list(""):
            if folder.endswith("-delete"):
                self._disk.remove(folder)
                continue
            if folder.endswith("-stray"):
                continue
            # Nearly all that are expected have the file, and are read at once.
            if folder not in expected and not self._disk.exists(f"{folder}/{METADATA}"):
                continue
            try:
                self._claim(folder, expected.get(folder), found)
            except CorruptLog as error:
                if folder not in expected:
                    log.warning("%s; the folder belongs to no topic and is left alone", error)
                elif self._disk.exists(f"{folder}/{METADATA}"):
                    found[folder] = error
        return found

    def _claim(
        self,
        folder: str,
        owner: tuple[Topic, int] | None,
        found: dict[str, CorruptLog | None],
    ) -> None:
        """Count a folder as its owner's, or set it aside. Raises: CorruptFileError."""
        topic_id = self._topic_id(folder)
        if owner is not None and topic_id == uuid_text(owner[0].id):
            found[folder] = None
            return
        if owner is not None:
            listed = self.manifest.topics.get(uuid_text(owner[0].id))
            is_listed = listed is not None and owner[1] < listed.partitions
            if is_listed and not self.manifest.is_deleting(folder, topic_id):
                raise CorruptFileError(
                    f"{folder}/{METADATA}", f"it names another topic, {topic_id}"
                )
        self._set_aside(folder, topic_id)

    def _set_aside(self, folder: str, topic_id: str) -> None:
        if self.manifest.is_deleting(folder, topic_id):
            log.info("%s: the topic was deleted; the folder is removed", folder)
            self._remove_folder(folder, topic_id)
            return
        aside = _aside(folder, topic_id, "stray")
        log.warning("%s: the folder belongs to no topic; renamed to %s", folder, aside)
        self._disk.rename(folder, aside)


def _chunks(items: list[ItemT]) -> Iterator[list[ItemT]]:
    return (items[at : at + _CHUNK] for at in range(0, len(items), _CHUNK))


async def _in_thread(work: Callable[[ItemT], None], items: list[ItemT]) -> None:
    """`work` for each item, off the event loop. Raises: what `work` does."""

    def all_of_it() -> None:
        for item in items:
            work(item)

    await asyncio.get_running_loop().run_in_executor(None, all_of_it)


def _aside(folder: str, topic_id: str, why: str) -> str:
    """A name for the folder of a topic that is no more, short enough for every file system."""
    name, number = folder.rsplit("-", 1)
    return f"{name[:_NAME_KEPT]}.{topic_id}-{number}-{why}"


def uuid_text(value: UUID) -> str:
    """An id as Kafka's files and tools spell it: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()
