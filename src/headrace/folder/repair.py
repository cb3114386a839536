"""Repairing a data folder: what the check finds is quarantined, and the rest is made to open.

Nothing is truncated or removed without a copy: damaged files are renamed to `….torn.<position>` or
copied to such a name, and no broker reads or removes those. A repair is a loop of checks and of one
action for each damaged file, because one damage may hide another. Without `execute` all of it runs
on a disk in memory over the folder, so the printed plan is what an execution does.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from headrace.broker.partitions import uuid_text
from headrace.core.catalog import INTERNAL_TOPICS
from headrace.folder.bridge import Bridged, bridge
from headrace.folder.catalogue import listed_topics, named_node, read_catalogue, restore_topics
from headrace.folder.check import (
    Finding,
    Grade,
    Progress,
    Report,
    Surroundings,
    check_disk,
    config_of,
    shortened,
    silent,
)
from headrace.folder.foreign import is_foreign
from headrace.folder.lock import FolderError, require_folder, unused
from headrace.folder.overlay import OverlayDisk
from headrace.folder.replacement import Replacement, finish_replacements
from headrace.folder.share_state import restore_share_partitions
from headrace.log import checksums, partition_metadata, recovery_point, small_files
from headrace.log.api import CorruptLog, Disk, NewerFormatError
from headrace.log.checkpointed_log import last_checkpoint
from headrace.log.checkpoints import (
    CLEAN_MARK,
    Extent,
    other_starts,
    read_clean_mark,
    read_offsets,
    remove_from_clean_mark,
)
from headrace.log.cleaner_checkpoint import FILE as CLEANER_OFFSETS
from headrace.log.damage import keep_copy
from headrace.log.index import INDEX_SUFFIXES, remove_index
from headrace.log.index import SUFFIXES as DERIVED
from headrace.log.manifest import CATALOGUE, METADATA, NAME, PROPERTIES, START_OFFSETS, Manifest
from headrace.log.opening import FOREIGN, MISSING_SEGMENTS, SWAP
from headrace.log.os_disk import OsDisk
from headrace.log.recovery_point import UNKNOWN, Claim, RecoveryPoint, begin_point, read_claim
from headrace.log.repair import (
    cut_log,
    drop_log_head,
    first_base_of,
    segment_bases,
    set_aside,
)
from headrace.log.segment import Segment
from headrace.wire.batches import CorruptBatch
from headrace.wire.primitives import Malformed, NewerVersionError

_CLUSTER_ID = re.compile(r"cluster\.id=([A-Za-z0-9_-]{22})\s")
_NODE_ID = re.compile(r"node\.id=(\d{1,9})\s")
_RECORD = re.compile(r"the record at offset (\d+) cannot be replayed")
_DELETING = re.compile(
    r"^topic \d+ ([A-Za-z0-9_-]{22}) (\S+)(?: recovery-points)? deleting$", re.MULTILINE
)
# Names of groups may contain any text, so that only whole phrases tell what a problem is.
_NOT_DAMAGED = re.compile(
    r"the (file|folder) cannot be read: "
    r"|(the record at offset \d+|format version \S+) was written by a newer Headrace"
)
_UNFOUNDED = re.compile(r"updates of .* without a snapshot of it", re.DOTALL)
_LACKING = re.compile(
    r"the catalogue lacks |the record at offset \d+ cannot be replayed: the journal lacks "
)
_MISSING = frozenset(
    {
        "the folder of the partition is missing",
        MISSING_SEGMENTS,
        "the journal is missing",
    }
)
_INTERVAL_BYTES = 1 << 30
_PARTITION = re.compile(r"(.+)-(\d{1,9})")


Lost = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a repair: the damaged file, what is done to it, and what is lost.

    `lost` are the offsets that the log of the file's folder no longer has, first and last of each
    range; None for a last offset that nothing in the folder tells.
    """

    path: str
    text: str
    lost: tuple[Lost, ...] = ()

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


@dataclass(slots=True)
class Repair:
    """The actions of a repair, and what the check finds afterwards."""

    actions: list[Action] = field(default_factory=list)
    left: tuple[Finding, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether a broker serves everything that is left."""
        return all(one.grade is Grade.NOTE for one in self.left)


def repair(folder: Path, progress: Progress, *, execute: bool) -> Repair:
    """Plan or carry out the repair of a data folder that no broker uses.

    Raises:
        FolderError: there is no data folder, or a broker runs on it.
        NewerFormatError: a newer release wrote the mark of the last orderly stop or the start
            offsets; nothing has changed.
        OSError: the disk failed; what was done until then is done.
    """
    require_folder(folder)
    with unused(folder, exclusive=execute) as is_unused:
        if not is_unused:
            raise FolderError(f"a broker runs on {folder}; stop it first")
        if execute:
            return repair_disk(OsDisk(folder), lambda: OverlayDisk(folder), folder, progress)
        planned = OverlayDisk(folder)
        return repair_disk(planned, lambda: planned, folder, progress)


def repair_disk(
    disk: Disk,
    view: Callable[[], OverlayDisk],
    folder: Path,
    progress: Progress,
    surroundings: Surroundings | None = None,
) -> Repair:
    """Repair what a disk holds.

    Args:
        view: returns a disk in memory over the present contents of `disk`.

    Raises: NewerFormatError, and nothing has changed; OSError.
    """
    done = Repair()
    around = surroundings or Surroundings()
    mechanic = _Mechanic(disk, around)
    tried: set[Finding] = set()
    while True:  # ends, as each round has a finding that no round before had
        with closing(view()) as seen:
            report = check_disk(seen, folder, progress, around)
            is_readable = not seen.unreadable
        done.left = report.findings
        if not is_readable:
            return done  # what is unreadable is not known to be damaged
        mechanic.positions = report.positions
        chosen = [finding for finding in _firsts(report, tried) if not mechanic.must_wait(finding)]
        tried.update(chosen)
        if chosen:
            mechanic.require_starts()
        with silent():
            actions = [one for found in chosen for one in mechanic.act(found)]
        if not actions:
            return done
        done.actions += actions


def _firsts(report: Report, tried: Set[Finding]) -> Iterator[Finding]:
    """Yield the first finding of each folder: an action may change what the others mean.

    A replacement comes before the segments that it replaces: it decides which of them are needed.
    Start offsets come before all logs, whose repairs remove lines of the mark that has them, too.

    Args:
        tried: findings that remained although something was done for them.
    """
    seen: set[str] = set()
    for finding in sorted(report.findings, key=lambda one: _rank(one.path)):
        folder = finding.path.partition("/")[0]
        if finding.grade is not Grade.NOTE and folder not in seen and finding not in tried:
            seen.add(folder)
            yield finding


def _rank(path: str) -> int:
    return 0 if path == START_OFFSETS else 1 if path.endswith(SWAP) else 2


class _Mechanic:
    """Carries out the action for one finding; none where there is none. Raises: OSError."""

    def __init__(self, disk: Disk, surroundings: Surroundings) -> None:
        self._disk = disk
        self._new_id = surroundings.new_id
        self._clock = surroundings.clock
        self._lost: list[Lost] = []  # by the action under way
        self.positions: Mapping[str, int] | None = None  # of groups; None where they are unknown
        with silent():
            self._closed = _closed_logs(disk)  # before an action removes a line of the mark

    def require_starts(self) -> None:
        """Check that the start offsets can be read: only the mark may have what they lack.

        Raises: NewerFormatError; OSError.
        """
        try:
            read_offsets(self._disk)
        except NewerFormatError:
            raise
        except CorruptLog:
            pass  # its own repair comes first

    def must_wait(self, finding: Finding) -> bool:
        """Return whether another repair must come first.

        The catalogue waits for the manifest, from which its topics are restored. A partition
        without a log waits for the groups: their positions may be all that is known of its end.
        """
        folder = finding.path.partition("/")[0]
        if folder == CATALOGUE:
            return not _is_manifest_sound(self._disk)
        return (
            self.positions is None
            and self._names_partition(finding)
            and folder.rpartition("-")[0] not in INTERNAL_TOPICS
            and folder not in self._closed
            and not self._has_log(folder)
        )

    def act(self, finding: Finding) -> list[Action]:
        if _NOT_DAMAGED.match(finding.problem):
            return []
        path, name = finding.path, finding.path.rpartition("/")[2]
        self._lost = []
        text: str | None = None
        if path in self._roots:
            text = self._roots[path]()
        elif path == CATALOGUE and _LACKING.match(finding.problem):
            text = self._catalogue()
        elif path.startswith(f"{CATALOGUE}/") and path.endswith(".log"):
            text = self._catalogue_segment(finding)
        elif path.startswith(f"{CATALOGUE}/") and path.endswith(".checkpoint"):
            text = self._checkpoint(path)
        elif path.endswith((".log", f".log{SWAP}")):
            text = self._segment(finding)
        elif path.endswith((*DERIVED, ".snapshot")):
            text = self._derived(path)
        elif name == recovery_point.NAME:
            text = self._recovery_point(path.rpartition("/")[0])
        elif self._names_partition(finding):
            text = self._partition_folder(path.partition("/")[0])
        elif (found := _RECORD.match(finding.problem)) is not None:
            text = self._journal(path, int(found[1]))
        elif _UNFOUNDED.fullmatch(finding.problem):
            text = self._share_partitions(path)
        return [] if text is None else [Action(path, text, tuple(self._lost))]

    def _names_partition(self, finding: Finding) -> bool:
        """Return whether the folder of a partition, or the file with its topic id, is damaged."""
        is_folder = _PARTITION.fullmatch(finding.path) is not None
        is_missing = is_folder and finding.problem in _MISSING
        return is_missing or finding.path.endswith((f"/{METADATA}", f"/{recovery_point.NAME}"))

    @property
    def _roots(self) -> dict[str, Callable[[], str | None]]:
        return {
            NAME: self._manifest,
            PROPERTIES: self._properties,
            START_OFFSETS: self._start_offsets,
            CLEANER_OFFSETS: lambda: self._set_aside(CLEANER_OFFSETS),
            CLEAN_MARK: lambda: self._set_aside(CLEAN_MARK),
        }

    # ---- segments

    def _segment(self, finding: Finding) -> str | None:
        if finding.path.endswith(SWAP):
            return self._replacement(finding.path)
        folder, _, name = finding.path.rpartition("/")
        copies = finish_replacements(self._disk, folder)
        self._keep_end(folder)
        base, bases = int(name.removesuffix(".log")), segment_bases(self._disk, folder)
        if bases and base < bases[0]:
            copies += drop_log_head(self._disk, folder, bases[0])
            self._forget_start(folder, bases[0])
            self._lost = [(base, bases[0] - 1)]
            return f"let the log begin at offset {bases[0]}{_kept(copies)}"
        if finding.grade is Grade.WARNING and finding.position is not None:
            try:
                copies += cut_log(self._disk, folder, base, finding.position)
            except CorruptBatch:
                return None
            self._lost = [(read_claim(self._disk, folder)[1].end_offset, None)]
            return f"cut off the torn end at byte {finding.position}{_kept(copies)}"
        _, claim = read_claim(self._disk, folder)
        end = next((one for one in bases if one > base), None)
        if end is None and claim.base_offset > base:
            end = claim.base_offset  # of the last segment, which is missing
        is_last, is_exact = end is None, True
        if is_last:
            is_claimed = claim.base_offset == base and claim.end_offset >= 0
            end = claim.end_offset if is_claimed else None
            is_exact = folder in self._closed  # else the log may have had more
        if not is_exact and not self._disk.exists(finding.path):
            end = max(end or base, self._used_end(folder))
        remove_from_clean_mark(self._disk, folder)
        following_base = None if is_last else end
        if FOREIGN in finding.problem or is_foreign(self._disk, finding.path, following_base):
            copies.append(set_aside(self._disk, finding.path))
        is_active = is_last and self._is_active(finding.path, claim)
        # The file may have lost bytes since the stop, so its present size shows nothing.
        is_known = is_active and claim.base_offset == base and claim.end_offset == end
        known_bytes = claim.size if is_known else 0
        known_end = end if is_exact or is_active else None
        # After a kill, the new file must not count as another one by its first batch.
        RecoveryPoint(self._disk, folder).emptied(base)
        done = bridge(
            self._disk, finding.path, base, known_end, is_last=is_active, known_bytes=known_bytes
        )
        if is_last:
            self._end_log(folder, base, done)
        remove_index(self._disk, finding.path.removesuffix(".log"))
        self._lost = [*done.lost]
        if done.is_end_lost and not is_exact:
            self._lost.append((done.end_offset, None))
        lost = ", ".join(map(_offsets, self._lost)) or "none"
        text = f"rewrite the segment without what is damaged; offsets lost: {lost}"
        if checksums.MOVED in finding.problem and self._is_same(finding.path, done.copy):
            text += (
                f"; an offset in the {1 << checksums.BLOCK_BITS - 10} KiB from byte "
                f"{finding.position} on is damaged, and which one is not known: restore a backup "
                "to have it right"
            )
        return text + _kept(copies + [one for one in (done.unfinished, done.copy) if one])

    def _keep_end(self, folder: str) -> None:
        """Let a log end where it was closed, with an empty segment, if its claim has less.

        So its end outlives a kill when its line in the mark of the orderly stop is removed. The
        segment comes first: a log that lacks the segment which is claimed is refused.
        The segment before counts as one that another follows, as it may have gaps.
        """
        point, bases = RecoveryPoint(self._disk, folder), segment_bases(self._disk, folder)
        end = self._closed[folder].end if folder in self._closed else UNKNOWN
        if point.claim.end_offset < end and end >= max(bases, default=0):
            if end not in bases:
                self._make_segment(folder, end)
            point.replace(Claim(point.claim.first_base, end, 0, end))

    def _end_log(self, folder: str, base: int, done: Bridged) -> None:
        """Let a log end with a segment, or with an empty one behind it where that has gaps."""
        claim = Claim(first_base_of(self._disk, folder, base), base, done.size, done.end_offset)
        if done.has_gaps:
            self._make_segment(folder, done.end_offset)
            claim = claim._replace(base_offset=done.end_offset, size=0)
        RecoveryPoint(self._disk, folder).replace(claim)

    def _make_segment(self, folder: str, base: int) -> None:
        file = self._disk.open(f"{folder}/{base:020d}.log")
        file.sync()
        file.close()

    def _is_same(self, path: str, copy: str | None) -> bool:
        """Return whether a rewrite changed nothing, because no batch by itself is damaged."""
        return copy is not None and self._disk.read(path) == self._disk.read(copy)

    def _derived(self, path: str) -> str:
        """Set a file aside that is rebuilt; the indexes go before the checksums that verify them.

        A start takes indexes without checksums for those of an earlier release, and trusts them.
        A damaged segment is an error and comes first: its repair may need the checksums.
        """
        if not path.endswith(checksums.SUFFIX):
            return self._set_aside(path)
        stem = path.removesuffix(checksums.SUFFIX)
        indexes = [stem + one for one in INDEX_SUFFIXES if self._disk.exists(stem + one)]
        text = "set the file aside" + (", and the indexes that it verifies" if indexes else "")
        return text + _kept([set_aside(self._disk, one) for one in (*indexes, path)])

    def _replacement(self, path: str) -> str:
        """Choose between a damaged segment that compaction made and those that it replaces."""
        replacement = Replacement(self._disk, path)
        withdrawn = replacement.withdraw()
        if withdrawn is None:
            target = path.removesuffix(SWAP).rpartition("/")[2]
            return f"let it take the place of {target}{_kept(replacement.complete())}"
        restored, copy = withdrawn
        names = ", ".join(one.rpartition("/")[2] for one in restored)
        text = f"rename {names} back, and " if restored else ""
        return f"{text}keep the segments that it was to replace{_kept([copy])}"

    # ---- the catalogue

    def _catalogue_segment(self, finding: Finding) -> str | None:
        text = self._segment(finding)
        if text is None or not self._lost or finding.grade is Grade.WARNING:
            return text
        return (
            f"{text}; topics and settings that were changed there are as before, and topics that "
            "were deleted there come back without records" + (self._restored_topics() or "")
        )

    def _checkpoint(self, path: str) -> str | None:
        """Write a checkpoint of the catalogue in the place of a damaged or missing one."""
        is_there = self._disk.exists(path)
        copies: list[str] = []
        restored = self._restored_topics()
        if restored is None:
            return None
        if is_there and not path.endswith(last_checkpoint(self._disk.list(CATALOGUE))[1]):
            copies.append(keep_copy(self._disk, path, 0, self._disk.size(path)))
            self._disk.remove(path)
        return f"write a checkpoint of the records that are intact{restored}{_kept(copies)}"

    def _catalogue(self) -> str | None:
        restored = self._restored_topics()
        return restored and f"write a checkpoint{restored}"

    def _restored_topics(self) -> str | None:
        """Restore topics from the manifest; return which, or None where a newer release wrote."""
        remove_from_clean_mark(self._disk, CATALOGUE)
        try:
            restored, copies = restore_topics(
                self._disk, config_of(self._disk).node_id, self._clock.wall()
            )
        except NewerVersionError:
            return None
        text = "".join(f"; restore {topic} from the manifest" for topic in restored)
        if any(not topic.first for topic in restored):
            text += (
                "; settings of restored topics are lost: all of their records are kept until "
                "retention is set again"
            )
        return text + _kept(copies)

    # ---- journals of groups

    def _journal(self, folder: str, offset: int) -> str | None:
        """Cut a journal of groups before a record that does not fit to those before it."""
        replaced = finish_replacements(self._disk, folder)
        for base in reversed(segment_bases(self._disk, folder)):
            if base > offset:
                continue
            segment = Segment(self._disk, folder, base, _INTERVAL_BYTES)
            try:
                segment.take_whole(self._disk.size(f"{segment.path}.log"))
                position = segment.position_after(offset)
                copies = replaced + cut_log(self._disk, folder, base, position)
            except CorruptBatch:
                return None
            finally:
                segment.release()
            end = read_claim(self._disk, folder)[1].end_offset  # a batch is cut as a whole
            self._lost = [(end, None)]
            return f"cut off the journal at offset {end}: groups go back to then" + _kept(copies)
        return None

    def _share_partitions(self, folder: str) -> str | None:
        """Give the share-partitions a snapshot whose own is lost."""
        remove_from_clean_mark(self._disk, folder)
        try:
            start = self._checkpointed(START_OFFSETS, folder)
            restored, copies = restore_share_partitions(
                self._disk, folder, start, self._clock.wall()
            )
        except (CorruptLog, Malformed):
            return None
        names = ", ".join(map(str, restored))
        return (
            f"write a snapshot of {names}, made of later updates: records that were finished may "
            "be delivered again"
        ) + _kept(copies)

    def _is_active(self, path: str, claim: Claim) -> bool:
        """Return whether the last segment of a log is the one that a broker wrote to last.

        Else the segments behind it were lost, and compaction may have rewritten it. Without a
        recovery point its `.checksums` show that: a broker writes them when it begins the next
        segment, and at an orderly stop.
        """
        # A claim of `begin_point` stands for one that was lost.
        if claim.base_offset == UNKNOWN or (claim.first_base == UNKNOWN and not claim.size):
            stem = path.removesuffix(".log")
            return not (self._disk.exists(path) and self._disk.exists(stem + checksums.SUFFIX))
        return True  # the claim is of this segment, or a crash took the latest claims of the log

    def _forget_start(self, folder: str, first_base: int) -> None:
        claim = RecoveryPoint(self._disk, folder)
        if UNKNOWN != claim.claim.first_base < first_base:
            claim.replace(claim.claim._replace(first_base=first_base))

    def _recovery_point(self, folder: str) -> str | None:
        path = f"{folder}/{recovery_point.NAME}"
        if not self._disk.exists(path):
            if not segment_bases(self._disk, folder):
                is_catalogue = folder == CATALOGUE
                return self._catalogue() if is_catalogue else self._partition_folder(folder)
            self._begin_point(folder)
            text = "write the file from the segments that exist"
            if folder not in self._closed:
                text += "; if later segments are missing, too, their records are lost"
            return text
        point = RecoveryPoint(self._disk, folder)
        if point.claim.base_offset == UNKNOWN:
            text = self._set_aside(path)
            self._begin_point(folder)
            return f"{text}, and write it anew"
        point.replace(point.claim)
        return "write both slots again"

    def _begin_point(self, folder: str) -> None:
        """Write the recovery point of a log durably: the manifest may say that the log has one."""
        begin_point(self._disk, folder)
        RecoveryPoint(self._disk, folder).secure()

    # ---- partitions

    def _partition_folder(self, folder: str) -> str | None:
        """Make what is missing of a partition whose topic the manifest or the catalogue has."""
        found = _PARTITION.fullmatch(folder)
        if found is None or folder == CATALOGUE:
            return None
        topic_id = self._topic_id(found[1])
        if topic_id is None:
            return None
        text = f"write {METADATA} with the topic id {topic_id}"
        if self._disk.exists(f"{folder}/{METADATA}"):
            text += _kept([set_aside(self._disk, f"{folder}/{METADATA}")])
        if not self._has_log(folder):
            text = self._empty_partition(folder)
        partition_metadata.write(self._disk, folder, topic_id)
        return text

    def _topic_id(self, name: str) -> str | None:
        """Return the id of a topic by the manifest, else by the catalogue; None where unknown.

        The manifest lacks a new topic after a kill amid its creation, and for as long as the disk
        is full. A folder may still be that of a former topic whose deletion the manifest lists.
        """
        try:
            topics = Manifest(self._disk).topics
        except CorruptLog:
            return None
        listed = {id_: one.is_deleting for id_, one in topics.items() if one.name == name}
        for id_, is_deleting in listed.items():
            if not is_deleting:
                return id_
        try:
            topic = read_catalogue(self._disk, config_of(self._disk).node_id).topics.get(name)
        except NewerVersionError:
            return None
        topic_id = None if topic is None else uuid_text(topic.id)
        return topic_id if listed.keys() <= {topic_id} else None

    def _has_log(self, folder: str) -> bool:
        """Return whether a folder has segments, or a recovery point that names one."""
        claim = read_claim(self._disk, folder)[1]
        return claim.base_offset != UNKNOWN or bool(segment_bases(self._disk, folder))

    def _empty_partition(self, folder: str) -> str:
        """Let a partition without a log continue above every offset that is known to be used."""
        text = "create the partition without records"
        if folder in self._closed:
            end = self._closed[folder].end
            self._lost = [(0, end - 1)] if end else []
            text += f"; all of its records are lost; it continues at offset {end}"
        else:
            end = self._used_end(folder)
            self._lost = [(0, None)]
            text += "; all of its records are lost, and the end of its log is unknown; "
            text += (
                f"it continues at offset {end}, the highest that a group or a checkpoint has"
                if end
                else "it begins at offset 0, as no group and no checkpoint has an offset of it"
            )
        self._make_segment(folder, end)
        self._begin_point(folder)
        return text

    def _used_end(self, folder: str) -> int:
        """Return the highest offset that a group or a checkpoint file of the root has, or 0."""
        checkpoints = [
            self._checkpointed(path, folder) for path in (START_OFFSETS, CLEANER_OFFSETS)
        ]
        return max((self.positions or {}).get(folder, 0), *checkpoints)

    def _checkpointed(self, path: str, folder: str) -> int:
        """Return the offset that a checkpoint file of the root has of a partition, or 0."""
        topic, _, index = folder.rpartition("-")
        with contextlib.suppress(CorruptLog):
            return read_offsets(self._disk, path).get((topic, int(index)), 0)
        return 0

    # ---- files of the root

    def _manifest(self) -> str:
        text = self._disk.read(NAME).decode(errors="replace") if self._disk.exists(NAME) else ""
        deleting = set(_DELETING.findall(text))
        copies = self._kept_root(NAME)
        topics: dict[tuple[str, str], int] = {}
        for folder in self._disk.list(""):
            found = _PARTITION.fullmatch(folder)
            if found is None or not self._disk.exists(f"{folder}/{METADATA}"):
                continue
            try:
                id_ = partition_metadata.read(self._disk, folder, unsealed=True).topic_id
            except CorruptLog:
                continue
            key = id_, found[1]
            topics[key] = max(topics.get(key, 0), int(found[2]) + 1)
        with contextlib.suppress(NewerVersionError):
            catalog = read_catalogue(self._disk, config_of(self._disk).node_id)
            for topic in catalog.topics.values():
                key = uuid_text(topic.id), topic.name
                topics[key] = max(topics.get(key, 0), topic.partitions)
                deleting.discard(key)  # its deletion did not get there
        lines = [f"journal {CATALOGUE}\n"] if self._disk.exists(CATALOGUE) else []
        lines += [f"file {one}\n" for one in (PROPERTIES, START_OFFSETS) if self._disk.exists(one)]
        for (id_, name), count in topics.items():
            mark = " deleting" if (id_, name) in deleting else ""
            lines.append(f"topic {count} {id_} {name}{mark}\n")
        small_files.write_file(self._disk, NAME, "".join(lines))
        return f"write the manifest from the catalogue and the folders that exist{_kept(copies)}"

    def _properties(self) -> str:
        text = ""
        if self._disk.exists(PROPERTIES):
            text = self._disk.read(PROPERTIES).decode(errors="replace")
        copies = self._kept_root(PROPERTIES)
        cluster, node = _CLUSTER_ID.search(text), _NODE_ID.search(text)
        cluster_id = cluster[1] if cluster else uuid_text(self._new_id())
        named = named_node(self._disk)  # a damaged digit may be another digit
        node_id = str(named) if named is not None else node[1] if node else "1"
        content = f"#\nversion=1\ncluster.id={cluster_id}\nnode.id={node_id}\n"
        small_files.write_file(self._disk, PROPERTIES, content)
        id_text = f"cluster id {cluster_id}" if cluster else "a new cluster id"
        return f"write the file with {id_text}, node {node_id}{_kept(copies)}"

    def _start_offsets(self) -> str:
        """Take the start offsets from the mark of an orderly stop, where the file lacks them."""
        copies = self._kept_root(START_OFFSETS)
        kept: dict[tuple[str, int], int] = {}
        is_sound = False
        with contextlib.suppress(CorruptLog):
            kept = read_offsets(self._disk)
            is_sound = self._disk.exists(START_OFFSETS)
        kept |= other_starts(self._disk, self._closed, lambda *key: kept.get(key, 0))
        rows = [f"{topic} {index} {offset}" for (topic, index), offset in kept.items() if offset]
        content = "\n".join(["0", str(len(rows)), *rows, ""])
        small_files.write_file(self._disk, START_OFFSETS, content)
        if not self._closed:
            text = "let each log begin with its first segment; deleted records of it come back"
            return text + _kept(copies)
        text = "write the start offsets of the last orderly stop"
        unknown = [] if is_sound else self._unmarked_logs()
        if unknown:
            text += (
                "; logs that it does not name begin with their first segments, and deleted "
                f"records of them come back: {shortened(unknown)}"
            )
        return text + _kept(copies)

    def _unmarked_logs(self) -> list[str]:
        """Return the logs of topics of which the mark of an orderly stop has no start offset."""
        found = [_PARTITION.fullmatch(folder) for folder in sorted(self._disk.list(""))]
        return [
            one[0]
            for one in found
            if one is not None
            and one[1] not in INTERNAL_TOPICS
            and one[0] not in self._closed
            and segment_bases(self._disk, one[0])
        ]

    def _kept_root(self, path: str) -> list[str]:
        """Copy a file that is replaced next, so that a kill in between loses nothing of it."""
        if not self._disk.exists(path):
            return []
        return [keep_copy(self._disk, path, 0, self._disk.size(path))]

    def _set_aside(self, path: str) -> str:
        return f"set the file aside{_kept([set_aside(self._disk, path)])}"


def _is_manifest_sound(disk: Disk) -> bool:
    """Return whether the topics of the manifest can be read. Raises: OSError."""
    try:
        listed_topics(disk)
    except CorruptLog:
        return False
    return True


def _closed_logs(disk: Disk) -> Mapping[str, Extent]:
    """Return the logs that the last broker closed in order, by folder.

    Raises: NewerFormatError, as a newer release wrote the folder last; OSError.
    """
    return read_clean_mark(disk) or {}


def _offsets(lost: Lost) -> str:
    first, last = lost
    return f"{first} to {last}" if last is not None else f"{first} on, as far as there were any"


def _kept(copies: list[str]) -> str:
    return f"; kept as {', '.join(copies)}" if copies else ""
