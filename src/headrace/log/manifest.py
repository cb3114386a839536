"""The manifest of a data folder: which files and folders must exist.

`headrace.manifest` is a sealed file (`small_files.py`) with a line for each journal, each small
file, and each topic with its id and the number of its partitions. A name is added after its files
exist and before anything in them is promised to somebody. A crash in between leaves files without a
name, which the next start takes up or sets aside. A topic is marked as `deleting` before the
catalogue forgets it, and removed after its files: so the next start removes the folders that a
crash amid the deletion left. A name without this mark and without files means that files were lost.

The catalogue says which topics there are. The manifest says which of their folders were made.

A topic or journal gets the mark `recovery-points` once each of its logs has a recovery point whose
name is on stable storage. From then on a log without its recovery point has lost it, and perhaps
the segments that the recovery point named. Format 1 of the file does not have this mark.

A restore writes the manifest last: until then, the folder has the file `restore-incomplete` and is
refused. Any other folder without a manifest is new, or of format 0 and upgraded in place. The
manifest of a folder under upgrade has a line `state upgrading`, so that an upgrade that was
interrupted goes on. Sealed files without a manifest show that the manifest was lost.
"""

import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.log import small_files
from headrace.log.api import CorruptFileError, Disk
from headrace.log.small_files import SmallFile

NAME = "headrace.manifest"
RESTORING = "restore-incomplete"  # in a folder from the begin of a restore to its end
CATALOGUE = "__cluster_metadata-0"
METADATA = "partition.metadata"
PROPERTIES = "meta.properties"
START_OFFSETS = "log-start-offset-checkpoint"
RESTORE_PROBLEM = "the restore of this data folder did not end"
RESTORE_REMEDY = "run `headrace restore` with it again, or with another backup"
_UPGRADING = "upgrading"
_DELETING = "deleting"
_POINTS = "recovery-points"


class ListedTopic(NamedTuple):
    """A topic whose partition folders 0 to `partitions` - 1 exist, with recovery points or not."""

    partitions: int
    name: str
    is_deleting: bool = False
    has_points: bool = False


class Manifest:
    """The manifest of the data folder on `disk`; written at every change, from any thread.

    Raises: from the constructor, CorruptFileError, NewerFormatError and OSError; OSError from every
        change, and nothing has changed.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.RLock()
        self.journals: frozenset[str] = frozenset()
        self.journals_with_points: frozenset[str] = frozenset()
        self.files: frozenset[str] = frozenset()
        self.topics: Mapping[str, ListedTopic] = {}
        self.is_upgrading = False
        if disk.exists(NAME):
            self._parse(small_files.read_file(disk, NAME).text)
            if disk.exists(RESTORING):
                # A restore was killed at its very end. Without the file, a manifest that is lost
                # later passes for no interrupted restore, which a further one would empty.
                disk.remove(RESTORING)
            return
        if disk.exists(RESTORING):
            raise CorruptFileError(NAME, RESTORE_PROBLEM, remedy=RESTORE_REMEDY)
        require_unsealed(disk)
        self.is_upgrading = is_format_0(disk)
        self._write()

    # ---- changes

    def add_journal(self, folder: str) -> None:
        """List the folder of a journal whose first record and recovery point are synced."""
        with self._lock:
            if folder not in self.journals_with_points:
                journals, points = self.journals | {folder}, self.journals_with_points | {folder}
                self._change(journals=journals, journals_with_points=points)

    def put_topics(self, topics: Mapping[str, ListedTopic]) -> None:
        """List topics by their ids, in the place of all that are listed."""
        with self._lock:
            if topics != self.topics:
                self._change(topics=dict(topics))

    def put_topic(self, topic_id: str, topic: ListedTopic) -> None:
        """List a topic, or more partitions of it."""
        with self._lock:
            if self.topics.get(topic_id) != topic:
                self._change(topics={**self.topics, topic_id: topic})

    def begin_deletion(self, topic_id: str, topic: ListedTopic) -> None:
        """Mark a topic that the catalogue is about to forget, so that its folders may go then."""
        self.put_topic(topic_id, topic._replace(is_deleting=True))

    def remove_topic(self, topic_id: str) -> None:
        """Forget a topic whose folders are removed."""
        with self._lock:
            if topic_id in self.topics:
                left = {id_: one for id_, one in self.topics.items() if id_ != topic_id}
                self._change(topics=left)

    def upgraded(self) -> None:
        """End an upgrade: from now on every small file must be sealed."""
        with self._lock:
            if self.is_upgrading:
                self._change(is_upgrading=False)

    def has_point(self, topic_id: str, index: int) -> bool:
        """Return whether the log of a partition must have a recovery point."""
        topic = self.topics.get(topic_id)
        is_kept = topic is not None and topic.has_points and not topic.is_deleting
        return topic is not None and is_kept and index < topic.partitions

    def is_deleting(self, folder: str, topic_id: str) -> bool:
        """Return whether an interrupted deletion owns a folder with this topic id."""
        topic = self.topics.get(topic_id)
        name, _, index = folder.rpartition("-")
        return topic is not None and topic.is_deleting and name == topic.name and index.isdecimal()

    # ---- small files

    def read(self, path: str) -> SmallFile | None:
        """Read a small file; None where it never existed.

        Raises:
            CorruptFileError: the file does not verify, or is listed and missing.
            NewerFormatError: a newer release wrote the file.
            OSError: the manifest cannot be written.
        """
        if path not in self.files and not self._disk.exists(path):
            return None
        found = small_files.read_file(self._disk, path, unsealed=self.is_upgrading)
        if found.is_sealed:
            self._list(path)
        return found

    def write(self, path: str, text: str) -> None:
        """Replace a small file, and list it."""
        small_files.write_file(self._disk, path, text)
        self._list(path)

    def _list(self, path: str) -> None:
        with self._lock:
            if path not in self.files:
                self._change(files=self.files | {path})

    # ---- inside

    def _change(self, **values: object) -> None:
        before = {name: getattr(self, name) for name in values}
        self.__dict__.update(values)
        try:
            self._write()
        except OSError:
            self.__dict__.update(before)
            raise

    def _write(self) -> None:
        small_files.write_file(self._disk, NAME, "".join(f"{line}\n" for line in self._lines()))

    def _lines(self) -> Iterable[str]:
        if self.is_upgrading:
            yield f"state {_UPGRADING}"
        for journal in sorted(self.journals):
            mark = f" {_POINTS}" if journal in self.journals_with_points else ""
            yield f"journal {journal}{mark}"
        yield from (f"file {one}" for one in sorted(self.files))
        for topic_id, topic in self.topics.items():
            mark = f" {_POINTS}" if topic.has_points else ""
            mark += f" {_DELETING}" if topic.is_deleting else ""
            yield f"topic {topic.partitions} {topic_id} {topic.name}{mark}"

    def _parse(self, text: str) -> None:
        journals: set[str] = set()
        points: set[str] = set()
        files: set[str] = set()
        topics: dict[str, ListedTopic] = {}
        for line in text.splitlines():
            match line.split(" "):
                case ["state", "upgrading"]:
                    self.is_upgrading = True
                case ["journal", name]:
                    journals.add(name)
                case ["journal", name, "recovery-points"]:
                    journals.add(name)
                    points.add(name)
                case ["file", name]:
                    files.add(name)
                case ["topic", count, topic_id, name, *marks] if count.isdecimal() and {*marks} <= {
                    _DELETING,
                    _POINTS,
                }:
                    topics[topic_id] = ListedTopic(
                        int(count), name, _DELETING in marks, _POINTS in marks
                    )
                case _:
                    raise CorruptFileError(NAME, f"the line {line!r} is unknown")
        self.journals, self.files = frozenset(journals), frozenset(files)
        self.journals_with_points = frozenset(points)
        self.topics = topics


def is_format_0(disk: Disk) -> bool:
    """Whether a folder without a manifest holds data of a release before manifests."""
    names = disk.list("")
    known = {PROPERTIES, START_OFFSETS, CATALOGUE}
    return any(name in known or disk.exists(f"{name}/{METADATA}") for name in names)


def require_unsealed(disk: Disk) -> None:
    """Raise where a folder without a manifest had one. Raises: CorruptFileError."""
    paths = [PROPERTIES, START_OFFSETS, *(f"{name}/{METADATA}" for name in disk.list(""))]
    for path in paths:
        if disk.exists(path) and b"#headrace" in small_files.read_bytes(disk, path):
            raise CorruptFileError(NAME, f"the file is missing, although {path} needs it")


def require_journal(disk: Disk, manifest: Manifest, folder: str) -> None:
    """Raise where the folder of a listed journal is missing. Raises: CorruptFileError."""
    if folder in manifest.journals and not disk.exists(folder):
        raise CorruptFileError(folder, "the journal is missing")
