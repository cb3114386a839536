"""The check of a data folder: everything is read, nothing is written.

Two passes. The first starts a broker's state on a disk in memory over the folder (`overlay.py`) up
to the point where it would listen, so that the check refuses what a start refuses, and finds torn
ends as a start does; then it compares what groups have with the logs. The second reads every file
from its first to its last byte, which a start does not.
"""

import asyncio
import errno
import logging
import os
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeGuard
from uuid import UUID, uuid4

from headrace.broker.config import Config, ConfigError
from headrace.broker.partitions import Partition
from headrace.broker.replay import JournalDamaged
from headrace.broker.runtime import StorageFault
from headrace.broker.services import Services, StartError, open_services
from headrace.core.catalog import INTERNAL_TOPICS
from headrace.folder.catalogue import lost_topics
from headrace.folder.lock import FolderError, require_folder, unused
from headrace.folder.overlay import OverlayDisk, is_hidden
from headrace.folder.replacement import finish_replacements
from headrace.log import checksums, partition_metadata, recovery_point
from headrace.log.api import REMEDY, Clock, CorruptFileError, CorruptLog, Disk
from headrace.log.checkpoints import CLEAN_MARK, other_starts, read_clean_mark, read_offsets
from headrace.log.index import NO_TIMESTAMP, SegmentIndex
from headrace.log.index import SUFFIXES as INDEXES
from headrace.log.manifest import CATALOGUE, METADATA, PROPERTIES, START_OFFSETS, Manifest
from headrace.log.opening import SWAP
from headrace.log.os_disk import SystemClock
from headrace.log.segment import Segment
from headrace.log.verify import verify_file
from headrace.wire.batches import CorruptBatch

_REPAIR = "run `headrace repair`, or restore a backup"
_REREAD = "make the file readable, then check again"
_PERMIT = "change its owner or permissions, then check again"
_NOTHING = "no action is needed"
_LEFTOVERS = (".deleted", ".cleaned", ".swap", ".new")
_COPY = re.compile(r"\.torn\.\d+(\.\d+)?$")  # not a topic that has this in its name
_WHOLE_COPY = re.compile(r"\.torn\.0(\.\d+)?$")
_INTERVAL_BYTES = 1 << 30
_UNSEEN = (".lock", CLEAN_MARK)

Progress = Callable[[int], None]
"""Told the number of bytes that were verified since the last call."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a check takes from its surroundings; a simulation passes its own.

    Attributes:
        clock: times of the state that is started in memory.
        new_id: ids of what is created in memory, and of a cluster whose id is lost.
        run: runs a coroutine to its end.
    """

    clock: Clock = field(default_factory=SystemClock)
    new_id: Callable[[], UUID] = uuid4
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run


class Grade(StrEnum):
    """How serious a finding is."""

    ERROR = "error"
    """A broker refuses to serve the file, or records or positions are gone."""
    WARNING = "warning"
    """A broker cuts or rebuilds the file at its next start."""
    NOTE = "note"
    """A file that no broker reads."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: where, what, what follows from it, and what to do.

    `position` is in bytes, None where it has no meaning.
    """

    grade: Grade
    path: str
    problem: str
    consequence: str
    remedy: str
    position: int | None = None

    def __str__(self) -> str:
        where = self.path if self.position is None else f"{self.path} at byte {self.position}"
        return f"{self.grade}: {where}: {self.problem}; {self.consequence}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, and how much was read.

    `positions` are the highest offsets that consumer and share groups have, by the folder of the
    partition; None where the groups could not be read.
    """

    findings: tuple[Finding, ...]
    files: int
    size: int
    positions: Mapping[str, int] | None = None

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing beside notes."""
        return all(one.grade is Grade.NOTE for one in self.findings)


def check(folder: Path, progress: Progress) -> Report:
    """Check a data folder that no broker uses.

    Raises:
        FolderError: there is no data folder, or a broker runs on it.
        OSError: the folder cannot be listed.
    """
    require_folder(folder)
    with unused(folder, exclusive=False) as is_unused:
        if not is_unused:
            raise FolderError(
                f"a broker runs on {folder}; stop it first, or rely on its scrub "
                "(headrace.scrub.interval.ms)"
            )
        return check_disk(OverlayDisk(folder), folder, progress)


def check_disk(
    disk: OverlayDisk, folder: Path, progress: Progress, surroundings: Surroundings | None = None
) -> Report:
    """Check what a disk in memory over a data folder holds; the disk stays as it is."""
    return _Check(disk, folder, progress, surroundings or Surroundings()).run()


class _Check:
    def __init__(
        self, disk: OverlayDisk, folder: Path, progress: Progress, surroundings: Surroundings
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._progress = progress
        self._surroundings = surroundings
        self._findings: dict[str, list[Finding]] = {}
        self._opened: set[str] = set()  # folders that a start takes up
        self._torn: set[str] = set()  # segments whose end a start cuts off, if it does not verify
        self._replaced: set[str] = set()  # segments that a start removes, without suffix
        self._manifest: Manifest | None = None
        self._positions: dict[str, int] = {}
        self._are_groups_read = False

    def run(self) -> Report:
        with silent():
            self._unreadable()
            self._surroundings.run(self._start())
            files, size = self._read_all()
        found = [one for some in self._findings.values() for one in some]
        found.sort(key=lambda one: (list(Grade).index(one.grade), one.path, one.position or 0))
        positions = self._positions if self._are_groups_read else None
        return Report(tuple(found), files, size, positions)

    def _add(
        self,
        grade: Grade,
        path: str,
        problem: str,
        consequence: str,
        remedy: str = _NOTHING,
        position: int | None = None,
    ) -> None:
        finding = Finding(grade, path, problem, consequence, remedy, position)
        self._findings.setdefault(path, []).append(finding)

    def _refused(self, error: Exception, consequence: str) -> None:
        if isinstance(error, OSError) and error.filename is not None:
            path = os.path.relpath(error.filename, self._folder)
            problem = f"the file cannot be read: {error.strerror}"
            self._add(Grade.ERROR, path, problem, consequence, _REREAD)
        elif isinstance(error, CorruptFileError):
            is_other = "upgrade" in error.remedy or "directory" in error.remedy
            remedy = error.remedy if is_other else _REPAIR
            path, position = error.path, error.position
            self._add(Grade.ERROR, path, error.problem, consequence, remedy, position)
        else:
            path, _, text = str(error).removesuffix(f"; {REMEDY}").partition(": ")
            self._add(Grade.ERROR, path, text or str(error), consequence, _REPAIR)

    def _unreadable(self) -> None:
        for path in self._disk.unreadable:
            kind = "folder" if path in self._disk.folders else "file"
            self._add(
                Grade.ERROR, path, f"the {kind} cannot be read: {os.strerror(errno.EACCES)}",
                "what it holds is neither checked nor served", _PERMIT,
            )  # fmt: skip

    # ---- what a start finds

    async def _start(self) -> None:
        """Bring up the state of a broker in memory, as far as the folder allows."""
        folders = {path.partition("/")[0] for path in self._disk.unreadable}
        if any(not _is_user_partition(folder) for folder in folders):
            return  # a start needs it, and would refuse others for the lack of it
        with closing(self._disk.copied()) as disk:
            for folder in folders:
                disk.remove(folder)
            await self._start_on(disk, folders)
            copied = {
                path
                for folder in disk.folders
                for name in disk.list(folder)
                if _COPY.search(name) and not self._disk.exists(f"{folder}/{name}")
                and self._disk.exists(path := f"{folder}/{_COPY.sub('', name)}")
            }  # fmt: skip
            aside = {path for path in copied if not disk.exists(path)}
            self._torn = copied - {one for one in aside if not self._is_read_whole(one)}
            for folder in sorted({path.rpartition("/")[0] for path in aside}):
                self._add(
                    Grade.NOTE, folder, "the log ends before its start offset",
                    "the next start sets its segments aside, and the log continues at that offset",
                    "if its records were not deleted, restore a backup",
                )  # fmt: skip
            for path in sorted(self._restored(disk)):
                self._add(
                    Grade.WARNING, path, "the last segment of the log, which was empty, is missing",
                    "the next start creates it",
                )  # fmt: skip

    def _restored(self, disk: OverlayDisk) -> set[str]:
        """Return the segments that a log should have and that a start on `disk` created."""
        found = set()
        for folder in self._disk.folders:
            for name in disk.list(folder):
                if _is_segment(name) and not self._disk.exists(f"{folder}/{name}"):
                    claim = recovery_point.read_claim(self._disk, folder)[1]
                    is_set_aside = claim.end_offset == recovery_point.EMPTYING
                    if claim.base_offset == int(name[:-4]) and not is_set_aside:
                        found.add(f"{folder}/{name}")
        return found

    def _is_read_whole(self, path: str) -> bool:
        """Return whether a start that sets a segment aside reads all of it before.

        It reads the last one, unless an earlier start has begun to set segments aside.
        """
        folder, _, name = path.rpartition("/")
        last = max(name for name in self._disk.list(folder) if _is_segment(name))
        claim = recovery_point.read_claim(self._disk, folder)[1]
        return name == last and claim.base_offset <= int(name[:-4])

    async def _start_on(self, disk: OverlayDisk, unreadable: Set[str]) -> None:
        """Start on a disk without the folders that cannot be read."""
        try:
            self._manifest = Manifest(disk)
            services = open_services(
                config_of(disk),
                self._folder,
                clock=self._surroundings.clock,
                new_id=self._surroundings.new_id,
                disk=disk,
            )
        except (CorruptLog, JournalDamaged, StartError, ConfigError, OSError) as error:
            self._refused(error, "the broker does not start")
            return
        services.topics.start()
        if self._partitions(services, unreadable) or self._lacks_topics(services):
            return  # what groups have is not known
        try:
            await services.shares.open()
            self._share_groups(services)
            await services.groups.open()
            self._commits(services)
            self._are_groups_read = True
        except (CorruptLog, JournalDamaged, StorageFault, OSError) as error:
            self._refused(error, "the broker does not start")

    def _lacks_topics(self, services: Services) -> bool:
        """Add topics that the catalogue has lost; return whether there are any."""
        assert self._manifest is not None
        lost = lost_topics(services.catalog, self._manifest.topics)
        for topic in lost:
            self._add(
                Grade.ERROR, CATALOGUE,
                f"the catalogue lacks {topic}, which the manifest lists",
                "the next start renames these folders to `…-stray`, and their records are not "
                "served", _REPAIR,
            )  # fmt: skip
        return bool(lost)

    def _partitions(self, services: Services, unreadable: Set[str]) -> bool:
        """Open every log; return whether a journal is refused."""
        is_journal_refused = False
        for partition in services.partitions:
            self._opened.add(partition.name)
            if partition.name in unreadable:
                continue
            error: Exception | None = None
            try:
                _ = partition.log
            except OSError as fault:
                error = partition.refused or fault
            if error is not None:
                consequence = "clients get KAFKA_STORAGE_ERROR for the partition"
                if partition.topic.internal:
                    consequence = "the broker does not start"
                    is_journal_refused = True
                self._refused(error, consequence)
        self._opened |= services.partitions.manifest.journals
        return is_journal_refused

    def _share_groups(self, services: Services) -> None:
        for shard in services.shares.shards:
            for key, share in services.shares.machine_of(shard).partitions.items():
                partition = services.partitions.get(key.topic_id, key.partition)
                if self._is_ahead(partition, share.end):
                    self._behind(
                        partition, f"share group {key.group}", "had records", share.end - 1
                    )

    def _commits(self, services: Services) -> None:
        for shard in services.groups.shards:
            for group, offsets in services.groups.machine_of(shard).offsets.items():
                for topic, index, committed in offsets:
                    partition = services.partition(topic, index)
                    if self._is_ahead(partition, committed.offset):
                        self._behind(
                            partition, f"group {group}", "committed an offset", committed.offset
                        )

    def _is_ahead(self, partition: Partition | None, position: int) -> TypeGuard[Partition]:
        """Keep the position of a group; return whether it is beyond the end of the log."""
        if partition is None:
            return False
        self._positions[partition.name] = max(position, self._positions.get(partition.name, 0))
        return partition.refused is None and position > partition.log.end_offset

    def _behind(self, partition: Partition, group: str, verb: str, offset: int) -> None:
        end = partition.log.end_offset
        self._add(
            Grade.NOTE, partition.name,
            f"the log ends at offset {end}, but {group} {verb} up to {offset}",
            "the broker moves the group to the end of the log, or its consumers do",
        )  # fmt: skip

    # ---- what is in the files

    def _read_all(self) -> tuple[int, int]:
        """Verify every file; returns the number of files and bytes."""
        disk = self._disk
        count = total = 0
        lacking: dict[str, int] = {}  # folders with sealed segments without .checksums
        for folder in ["", *disk.folders]:
            names = disk.list(folder)
            if is_hidden(folder) or self._is_aside(folder, names, disk):
                continue
            self._recovery_point(folder, names)
            names = self._without_given_up(folder, names)
            if count_lacking := _sealed_without_checksums(names):
                lacking[folder] = count_lacking
            self._replaced |= self._replaced_segments(folder, names)
            for name in names:
                path = f"{folder}/{name}" if folder else name
                is_skipped = path in disk.folders or path in _UNSEEN or path in disk.unreadable
                if is_skipped or self._is_leftover(path):
                    continue
                count += 1
                total += self._file(disk, path)
        self._start_offsets()
        if lacking:
            self._add(
                Grade.NOTE, min(lacking),
                f"no .checksums of {sum(lacking.values())} sealed segments, in {len(lacking)} logs",
                "offsets and sizes of batches in them are not verified",
            )  # fmt: skip
        return count, total

    def _start_offsets(self) -> None:
        """Add a finding for start offsets that only the mark of the last orderly stop has."""
        if START_OFFSETS in self._findings:
            return
        try:
            kept, closed = read_offsets(self._disk), read_clean_mark(self._disk) or {}
            starts = other_starts(self._disk, closed, lambda *key: kept.get(key, 0))
        except (CorruptLog, OSError):
            return  # a file that is damaged, newer or unreadable has a finding of its own
        if starts:
            names = shortened([f"{topic}-{index}" for topic, index in sorted(starts)])
            state = "an earlier state of the file" if kept else "the file is missing or empty"
            self._add(
                Grade.WARNING, START_OFFSETS,
                f"{state}: {CLEAN_MARK} has other start offsets of {names}",
                "the next start writes them",
            )  # fmt: skip

    def _recovery_point(self, folder: str, names: list[str]) -> None:
        """Add a finding for a log that has records and no recovery point, as in no release."""
        is_format_0 = self._manifest is not None and self._manifest.is_upgrading
        segments = [name for name in names if _is_segment(name)]
        is_refused = f"{folder}/{recovery_point.NAME}" in self._findings
        if recovery_point.NAME in names or is_format_0 or is_refused:
            return
        if any(self._disk.size(f"{folder}/{name}") for name in segments):
            self._add(
                Grade.WARNING, f"{folder}/{recovery_point.NAME}",
                "the file is missing, so it is not known how much of the log was synced",
                "the next start writes it anew; damage at the end of the log passes for torn",
            )  # fmt: skip

    def _without_given_up(self, folder: str, names: list[str]) -> list[str]:
        """Add a note for segments that were given up; return the other files."""
        first = self._first_base(folder) if folder else recovery_point.UNKNOWN
        given_up = {
            name
            for name in names
            if (stem := name.partition(".")[0]).isdecimal()
            and name.removeprefix(stem) in {".log", *INDEXES}
            and int(stem) < first
        }
        if given_up:
            self._add(
                Grade.NOTE, folder, f"the recovery point gives up {shortened(sorted(given_up))}",
                "the next start removes them",
            )  # fmt: skip
        return [name for name in names if name not in given_up]

    def _replaced_segments(self, folder: str, names: list[str]) -> set[str]:
        """Return the segments in whose place a start puts a replacement, without suffix."""
        if not any(name.endswith(f".log{SWAP}") for name in names):
            return set()
        with closing(self._disk.copied()) as disk:
            try:
                copies = finish_replacements(disk, folder)
            except OSError:
                return set()  # what cannot be read has a finding of its own
        return {_COPY.sub("", path).removesuffix(".log") for path in copies}

    def _file(self, disk: OverlayDisk, path: str) -> int:
        """Verify one file; returns its bytes."""
        size = disk.size(path)
        try:
            for step in verify_file(disk, path, size):
                self._progress(step)
            self._derived(disk, path)
        except CorruptFileError as error:
            self._damaged(error, size)
        except (OSError, ValueError) as error:
            if isinstance(error, PermissionError) and disk.unreadable:
                return size  # a file beside this one has a finding of its own
            if isinstance(error, IsADirectoryError) and path in self._findings:
                return size
            reason = getattr(error, "strerror", None) or str(error)
            self._add(
                Grade.ERROR, path, f"the file cannot be read: {reason}",
                "what it holds is not served", _REREAD,
            )  # fmt: skip
        return size

    def _damaged(self, error: CorruptFileError, size: int) -> None:
        """Add damage, unless the start found it, too, or only rebuilds the file."""
        path = error.path
        if any(one.grade is not Grade.NOTE for one in self._findings.get(path, ())):
            return
        if path.endswith(".snapshot"):
            self._add(Grade.WARNING, path, error.problem, "it is rebuilt from the log")
        elif path.removesuffix(".log") in self._replaced:
            self._add(
                Grade.NOTE, path, error.problem,
                "the next start puts the segment that compaction made in its place",
                position=error.position,
            )  # fmt: skip
        elif path in self._torn and error.position is not None:
            self._add(
                Grade.WARNING, path, f"torn end of {size - error.position} unsynced bytes",
                "the next start cuts them off and keeps a copy", position=error.position,
            )  # fmt: skip
        else:
            self._add(
                Grade.ERROR, path, error.problem, "records there cannot be read",
                _REPAIR, error.position,
            )  # fmt: skip

    def _derived(self, disk: OverlayDisk, path: str) -> None:
        """Verify what can be rebuilt: indexes, checksums and recovery points."""
        stem, name = path.rpartition(".")[0], path.rpartition("/")[2]
        if stem in self._replaced:
            return  # a start removes it
        sound = True
        if path.endswith(checksums.SUFFIX):
            # Compaction empties them before a replacement of the segment waits for its name.
            is_replaced = not disk.size(path) and disk.exists(f"{stem}.log{SWAP}")
            sound = is_replaced or checksums.load(disk, stem) is not None
        elif path.endswith(INDEXES):
            sound = _is_index_sound(disk, stem, path)
        elif name == recovery_point.NAME:
            sound = recovery_point.is_sound(disk, path.rpartition("/")[0])
        if not sound:
            is_staged = stem.endswith(f".log{SWAP}")
            consequence = "the next start removes it" if is_staged else "it is rebuilt from the log"
            self._add(Grade.WARNING, path, "the file does not verify", consequence)

    def _is_leftover(self, path: str) -> bool:
        """Add a note for a file that no broker reads; return whether it is one."""
        if path in self._findings:  # a replacement that a start refuses
            return path.endswith(_LEFTOVERS)
        if _COPY.search(path):
            is_whole = _WHOLE_COPY.search(path) is not None
            text = "a whole file, set aside" if is_whole else "copy of bytes that were cut off"
            self._add(
                Grade.NOTE, path, text, "no broker reads it", "remove it once it is not needed"
            )
            return True
        if path.endswith(f".log{SWAP}") and self._is_needed(path):
            self._add(
                Grade.NOTE, path, "a segment that compaction made, before it has its name",
                "the next start puts it in the place of those that it replaces",
            )  # fmt: skip
            return True
        if path.endswith(_LEFTOVERS):
            self._add(Grade.NOTE, path, "left over from an interrupted change", "no reader sees it")
            return True
        return False

    def _is_needed(self, path: str) -> bool:
        """Return whether a start reads a replacement: its segments were not given up."""
        folder, _, name = path.rpartition("/")
        base = name.partition(".")[0]
        return base.isdecimal() and int(base) >= self._first_base(folder)

    def _first_base(self, folder: str) -> int:
        """Return the base offset of the first segment of a log that was not given up."""
        try:
            return recovery_point.read_claim(self._disk, folder)[1].first_base
        except (CorruptLog, OSError):
            return recovery_point.UNKNOWN  # the log is refused

    def _is_aside(self, folder: str, names: list[str], disk: OverlayDisk) -> bool:
        """Add a note for a folder of no partition; return whether it is one."""
        if folder.endswith("-stray"):
            self._add(
                Grade.NOTE, folder, "the folder belongs to no topic", "no broker reads it",
                "remove it once it is not needed",
            )  # fmt: skip
        elif folder.endswith("-delete"):
            self._add(Grade.NOTE, folder, "a deleted partition", "the next start removes it")
        elif _COPY.search(folder):
            self._add(
                Grade.NOTE, folder, "set aside by a repair", "no broker reads it",
                "remove it once it is not needed",
            )  # fmt: skip
        else:
            is_stray = disk.exists(f"{folder}/{METADATA}") and folder not in self._opened
            if is_stray and self._opened and self._is_deleting(folder):
                self._add(Grade.NOTE, folder, "a deleted partition", "the next start removes it")
            elif is_stray and self._opened:
                text = "the folder belongs to no topic"
                self._add(Grade.NOTE, folder, text, "the next start renames it to `…-stray`")
            return bool(folder) and not names
        return True

    def _is_deleting(self, folder: str) -> bool:
        """Return whether a deletion that was interrupted owns the folder of a partition."""
        try:
            topic_id = partition_metadata.read(self._disk, folder).topic_id
        except CorruptLog:
            return False
        return self._manifest is not None and self._manifest.is_deleting(folder, topic_id)


def shortened(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many follow."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def _is_segment(name: str) -> bool:
    return name.endswith(".log") and name[:-4].isdecimal()


def _sealed_without_checksums(names: list[str]) -> int:
    known = {*names}
    stems = sorted(name[:-4] for name in names if _is_segment(name))[:-1]
    return sum(f"{stem}{checksums.SUFFIX}" not in known for stem in stems)


def _is_user_partition(folder: str) -> bool:
    topic, _, index = folder.rpartition("-")
    return index.isdecimal() and topic not in INTERNAL_TOPICS


def _is_index_sound(disk: OverlayDisk, stem: str, path: str) -> bool:
    """Return whether an index is the one that was written, or at least agrees with the log."""
    written = checksums.load(disk, stem)
    if written is not None:
        summary = written.summary
        wanted = (summary.index_size, summary.index_crc)
        if path.endswith(INDEXES[1]):
            wanted = (summary.timeindex_size, summary.timeindex_crc)
        return checksums.file_checksum(disk, path) == wanted
    folder, _, base = stem.rpartition("/")
    if not disk.exists(f"{stem}.log") or not base.isdecimal():
        return True
    index = SegmentIndex.load(disk, stem, int(base), _INTERVAL_BYTES)
    if index is None:
        return False
    segment = Segment(disk, folder, int(base), _INTERVAL_BYTES)
    try:
        if path.endswith(INDEXES[1]):
            return _are_times_sound(segment, index, disk.size(f"{stem}.log"))
        return all(
            segment.header_at(position).last_offset == offset
            for offset, position in index.entries()
        )
    except CorruptBatch:
        return False
    finally:
        segment.release()


def _are_times_sound(segment: Segment, index: SegmentIndex, size: int) -> bool:
    """Return whether each entry is the latest batch up to its own, and the last one of all.

    Raises: CorruptBatch.
    """
    times = dict(index.times())
    highest, position = NO_TIMESTAMP, 0
    while position < size:
        header = segment.header_at(position)
        highest = max(highest, header.max_timestamp)
        timestamp = times.pop(header.last_offset, None)
        if timestamp is not None and not timestamp == header.max_timestamp == highest:
            return False
        position += header.size
    return not times and highest == index.max_timestamp


def config_of(disk: Disk) -> Config:
    """The settings of a broker with the folder's number. Raises: ConfigError."""
    text = disk.read(PROPERTIES).decode(errors="replace") if disk.exists(PROPERTIES) else ""
    found = [line.partition("=")[2] for line in text.splitlines() if line.startswith("node.id=")]
    if found and found[0].isdecimal():
        return Config.parse({"node.id": found[0]})
    return Config()


@contextmanager
def silent() -> Iterator[None]:
    """Suppress the log lines of the start: the check reports the findings."""
    logger = logging.getLogger("headrace")
    before, logger.disabled = logger.disabled, True
    children = [
        one
        for name, one in logging.root.manager.loggerDict.items()
        if name.startswith("headrace.") and isinstance(one, logging.Logger) and not one.disabled
    ]
    for one in children:
        one.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
        for one in children:
            one.disabled = False
