"""A consistent cut of the data folder of a running broker, for a backup.

Problem: files of a data folder refer to each other. A committed offset must not lie above the end
of its log, and a record of the journal of share groups that says "written to the dead-letter topic"
needs the copy in that topic. A copy of one file after the other has no such order.

Model: the cut is a list of files with sizes, and hard links to them. Logs grow at their ends only,
and files that are replaced get another inode, so that a link and a size are a view that stays. The
catalogue and the journals of groups are cut first, in one turn of the event loop; the partitions
follow, each in a turn of its own. So a journal refers to nothing that the logs do not have yet.
What the logs have beyond that is what a crash leaves, too: records that no group has read. Topics
are neither created nor deleted meanwhile.

Files that are changed in place (recovery points) and small files of the root are copied instead.
They are read before the sizes of the logs are, so that they claim no more than the cut has.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headrace.broker.partitions import Partition
from headrace.broker.services import Services
from headrace.log import checksums, snapshots
from headrace.log.api import CorruptLog
from headrace.log.opening import SWAP
from headrace.log.segments import SegmentedLog
from headrace.wire.data_folder_cut import FOLDER, LIST

_NAME = re.compile(r"[0-9a-f]{32}")
_ATTEMPTS = 5  # retention and compaction may take files away between their listing and their link
_ROOT_FILES = (  # the manifest first: what it names exists by then
    "headrace.manifest",
    "meta.properties",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
_COPIED = ("partition.metadata", "recovery-point")
_BESIDE_SEGMENTS = (".index", ".timeindex", ".checksums")
_FILE_MODE = 0o600


class CutError(Exception):
    """The cut is not possible; the message is one line with the remedy."""


@dataclass(slots=True)
class _Part:
    """The files of one folder, or of the root: contents to write, and files to link."""

    copied: dict[str, bytes] = field(default_factory=dict)
    linked: dict[str, int] = field(default_factory=dict)  # sizes in bytes
    beside: list[str] = field(default_factory=list)  # linked where they exist
    sealed: set[str] = field(default_factory=set)  # of the linked: their size must be as listed
    folder: str = ""
    end_offset: int | None = None


async def cut(services: Services, name: str) -> None:
    """Fill the folder `.backup/<name>` of the data folder.

    Raises:
        CutError: the folder is not there or not empty, or a log is damaged.
        OSError: the disk failed.
    """
    target = services.folder / FOLDER / name
    if not _NAME.fullmatch(name) or not target.is_dir() or any(target.iterdir()):
        raise CutError(
            f"the data folder of this broker has no empty folder {FOLDER}/{name[:64]}; give the "
            "address and the data folder of the same broker"
        )
    source, files = services.folder, _Files(services.folder, target)
    async with services.topics.unchanged():
        partitions = list(services.partitions)
        journals = [one for one in partitions if one.topic.internal]
        parts = [
            _root(source),
            _catalogue(services),
            *(_partition(source, one) for one in journals),
        ]
        for part, again in zip(parts, [None, None, *journals], strict=True):
            await files.take(part, again)
        for partition in partitions:
            if not partition.topic.internal:
                await partition.opening_ended()
                await files.take(_partition(source, partition), partition)
    await asyncio.get_running_loop().run_in_executor(None, files.write_list)


class _Files:
    """The links and copies of a cut under `target`."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source = source
        self._target = target
        self._sizes: dict[str, int] = {}

    async def take(self, part: _Part, partition: Partition | None) -> None:
        """Link and copy files in a thread; listed again where some are gone by then.

        Raises: CutError; OSError.
        """
        loop = asyncio.get_running_loop()
        for _ in range(_ATTEMPTS):
            if await loop.run_in_executor(None, self._link, part):
                return
            if partition is not None:
                await partition.opening_ended()
                part = _partition(self._source, partition)
        raise CutError(f"the files of {part.folder} change all the time; run the backup again")

    def write_list(self) -> None:
        """Write the list of all files. Raises: OSError."""
        lines = [f"{size} {path}\n" for path, size in sorted(self._sizes.items())]
        self._write(self._target / LIST, "".join(lines).encode())

    def _link(self, part: _Part) -> bool:
        """Link and copy; return False where a file is gone or was replaced."""
        sizes: dict[str, int] = {}
        if part.folder:
            (self._target / part.folder).mkdir(mode=0o700, exist_ok=True)
        try:
            for path, size in part.linked.items():
                found = self._link_one(path)
                if found < size or (path in part.sealed and found != size):
                    return False
                sizes[path] = size
        except FileNotFoundError:
            return False
        for path in (*part.beside, *self._snapshots(part)):
            with contextlib.suppress(FileNotFoundError):
                sizes[path] = self._link_one(path)
        for path, data in part.copied.items():
            self._write(self._target / path, data)
            sizes[path] = len(data)
        self._sizes.update(sizes)
        return True

    def _link_one(self, path: str) -> int:
        """Link a file; return its size in bytes. Raises: OSError."""
        target = self._target / path
        target.unlink(missing_ok=True)
        os.link(self._source / path, target)
        return target.stat().st_size

    def _snapshots(self, part: _Part) -> Iterator[str]:
        if part.end_offset is None:
            return
        names = (path.name for path in (self._source / part.folder).iterdir())
        for offset in snapshots.offsets(names):
            if offset <= part.end_offset:
                yield snapshots.path_of(part.folder, offset)

    def _write(self, path: Path, data: bytes) -> None:
        path.unlink(missing_ok=True)
        path.touch(_FILE_MODE, exist_ok=False)
        path.write_bytes(data)


def _root(source: Path) -> _Part:
    return _Part(copied=_contents(source, _ROOT_FILES))


def _catalogue(services: Services) -> _Part:
    """Collect the journal of the catalogue with its checkpoint. Raises: OSError."""
    journal = services.topics.journal_log
    part = _of_log(services.folder, journal.folder, journal.log)
    path = journal.checkpoint_path
    if path is not None:
        part.linked[path] = (services.folder / path).stat().st_size
        part.sealed.add(path)
    return part


def _partition(source: Path, partition: Partition) -> _Part:
    """Collect the files of a partition. Raises: CutError when its log is damaged."""
    if not partition.is_open:
        return _unopened(source, partition.name)
    try:
        return _of_log(source, partition.name, partition.log)
    except (OSError, CorruptLog) as error:
        raise CutError(f"{partition.name} cannot be read: {error}") from error


def _of_log(source: Path, folder: str, log: SegmentedLog) -> _Part:
    copied = _contents(source, (f"{folder}/{name}" for name in _COPIED))
    part = _Part(copied=copied, folder=folder, end_offset=log.end_offset)
    for segment in log.segments():
        path = segment.file_path
        if not segment.size:  # its file may not exist yet
            part.copied[path] = b""
            continue
        part.linked[path] = segment.size
        if segment.sealed:
            part.sealed.add(path)
            if path.endswith(SWAP):  # the opening of the log finishes the replacement
                part.beside.append(path + checksums.SUFFIX)
            else:
                part.beside += (segment.path + suffix for suffix in _BESIDE_SEGMENTS)
    return part


def _unopened(source: Path, folder: str) -> _Part:
    """Collect the files of a log that is not open: it is as the last orderly stop left it."""
    part = _Part(copied=_contents(source, (f"{folder}/{name}" for name in _COPIED)), folder=folder)
    for found in (source / folder).iterdir():
        path = f"{folder}/{found.name}"
        # A stop amid a compaction leaves a replacement to the opening of the log.
        if path.endswith((".log", f".log{SWAP}")):
            part.linked[path] = found.stat().st_size
            part.sealed.add(path)
        elif found.suffix in (*_BESIDE_SEGMENTS, snapshots.SUFFIX):
            part.beside.append(path)
    return part


def _contents(source: Path, paths: Iterable[str]) -> dict[str, bytes]:
    """Read those of the files that exist."""
    found = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found[path] = (source / path).read_bytes()
    return found
