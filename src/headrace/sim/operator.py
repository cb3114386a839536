"""The operator of a simulated broker: restores copies, or runs `headrace repair`, and accounts.

A broker that refuses a file, or that reports damage, is stopped. The operator restores a copy of
the damaged file, or repairs the data folder with the shipped code and goes on with what is left.
Where a journal is damaged on which the auditor's promises rest, the repair is tried on a copy of
the folder, and the file is restored. After each repair every record must be unchanged or among
those that the repair reports as lost, none may have another offset, every byte that was cut off
must be in a copy, and the check must be clean. Under `fsync` no acknowledged record may be lost
whose batch is whole.
"""

import math
from asyncio import events
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.folder.check import Surroundings, silent
from headrace.folder.overlay import OverlayDisk
from headrace.folder.repair import Lost, Repair, repair_disk
from headrace.log.api import CorruptLog
from headrace.log.checkpoints import read_clean_mark
from headrace.log.checksums import MOVED
from headrace.log.manifest import CATALOGUE, PROPERTIES, START_OFFSETS, Manifest
from headrace.log.opening import DELETED, SWAP
from headrace.log.recovery_point import read_claim
from headrace.sim.facts import Place
from headrace.sim.loop import OUTSIDE, VirtualLoop
from headrace.wire import batches
from headrace.wire.batches import BatchHeader, CorruptBatch

if TYPE_CHECKING:
    from headrace.sim.process import Process
    from headrace.sim.world import World

_REPAIRS = 0.6  # of the times; else a copy is restored
_COMPACTED = "table-"
_OFFSETS_JOURNAL = "__consumer_offsets-"
_SHARE_JOURNAL = "__share_group_state-"
_REBUILT = (".index", ".timeindex", ".checksums", ".snapshot", "recovery-point")
_CHECK_SECONDS_MAX = 60
_Records = dict[str, dict[int, Any]]  # by folder and offset


class ReportedDamageError(ValueError):
    """Damage that a client met.

    Args:
        files: damaged files of the partition, which the client cannot know.
    """

    def __init__(self, damage: str, files: Sequence[str]) -> None:
        super().__init__(damage)
        self.files = files


class Operator:
    """Looks after the broker of a world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/operator")
        self._reported: ReportedDamageError | None = None

    def look(self) -> None:
        """Repair what the broker refuses or reports; called again and again."""
        process = self._world.process
        if process is not None and process.is_up:
            errors: list[Exception] = [*process.refusals]
            if self._reported is not None:
                errors.append(self._reported)
            if errors:
                self.respond(process, errors)
        self._world.loop.call_later(self._world.operator_seconds, self.look)

    def report(self, damage: str) -> None:
        """Report damage that a client met, in one line that begins with the partition."""
        folder = damage.partition(":")[0]
        standing = self._world.disk.damage.standing
        files = [path for path in standing if path.startswith(f"{folder}/")]
        self._reported = ReportedDamageError(damage, files)

    def forget(self) -> None:
        """Take back what clients reported: the broker that it was about is gone."""
        self._reported = None

    def respond(self, process: "Process | None", errors: Sequence[Exception]) -> None:
        """Do what the refusals of a broker advise, and start it again."""
        world, damage = self._world, self._world.disk.damage
        if world.disk.dead or world.process is not process:
            return
        self._reported = None
        for error in errors:
            world.history.step("operator", f"reads: {error}")
            if "\n" in str(error) or ": " not in str(error):
                world.bug(f"a refusal is not one line with a file: {error!r}")
        world.end_life()
        world.disk.revive(power_cut=False)
        is_gone = all(any(_names(error, path) for path in damage.gone) for error in errors)
        if damage.standing and (is_gone or any(map(_may_fit_gap, errors))):
            world.history.step("operator", f"restores {damage.undo()}")
        elif damage.standing:
            self._undo_damage()
        elif all("Input/output error" in str(error) for error in errors):
            world.history.step("operator", "waits for the disk")
        elif is_gone:
            world.history.step("operator", "finds that what was damaged is gone")  # by retention
        elif not world.power_was_cut:
            world.bug(f"the broker refuses what no fault damaged: {errors[0]!r}")
        else:  # a power cut may leave holes in what was not synced
            self._repair_folder()
        world.start_later()

    # ---- damage

    def _undo_damage(self) -> None:
        world, damage = self._world, self._world.disk.damage
        if self._rng.random() < _REPAIRS:
            if all(map(self._may_be_repaired, damage.standing)):
                self._repair_folder()
                damage.forget()
                return
            self._try_repair()
        world.history.step("operator", f"restores {damage.undo()}")

    def _may_be_repaired(self, path: str) -> bool:
        """Whether the auditor knows what the loss of a file means."""
        folder, _, name = path.rpartition("/")
        if self._world.options.queues:
            is_lossless = name == "partition.metadata" or (not folder and name != START_OFFSETS)
            return is_lossless or folder in self._record_folders()
        return folder != CATALOGUE and not folder.startswith(_SHARE_JOURNAL)

    def _record_folders(self) -> set[str]:
        return {f"{topic}-{index}" for topic, index in self._world.record_places()}

    # ---- repairs

    def _repair_folder(self) -> None:
        """Repair the data folder itself."""
        world, disk = self._world, self._world.disk
        # What a power cut may take was not promised under fsync, and nothing else may be lost.
        may_lose = bool(disk.damage.standing) or not world.options.fsync
        sound, before = disk.damage.sound, disk.contents
        with silent():
            closed = {_place(folder) for folder in read_clean_mark(disk) or {}}
        faults, disk.failing = disk.failing, set()  # the operator waits until the disk works
        space, disk._bytes_left = disk._bytes_left, None
        try:
            done = self._repaired(disk, lambda: OverlayDisk.of_contents(disk.contents))
        finally:
            disk.failing, disk._bytes_left = faults, space
        self._account(done, sound, before, disk.contents)
        is_settled = not done.left and _is_being_deleted(disk.damage.standing, before)
        if not done.actions and not is_settled:
            world.bug(f"the broker refuses what a repair leaves: {[*map(str, done.left)]}")
        for action in done.actions:
            folder = action.path.partition("/")[0]
            world.history.step("operator", f"repairs {action.path}: lost {action.lost}")
            place = _place(folder)
            is_unsynced = world.power_was_cut and not world.options.fsync
            world.auditor.given_up(place, action.lost, is_unsynced=is_unsynced)
            if action.lost and may_lose:
                # A log without a known end continues at the highest offset that a group has.
                begin = min(_log_begin(folder, disk.contents), world.offsets.highest(place))
                world.records.quarantined(place, action.lost, begin)
                # The keeper repeats nothing, and of its topics only records may be lost.
                world.losses += place in world.record_places()
            if action.path == PROPERTIES and may_lose:
                world.cluster_id = ""
            if action.path == START_OFFSETS and may_lose:
                world.records.starts_lost(closed)
            if folder.startswith(_SHARE_JOURNAL) and action.lost and may_lose:
                world.auditor.journal_was_repaired()
            if folder.startswith(_OFFSETS_JOURNAL) and action.lost and may_lose:
                world.offsets.journal_was_repaired()
        world.history.fault("a repair gives up what is damaged")
        world.power_was_cut = False

    def _try_repair(self) -> None:
        """Repair a copy of the data folder."""
        disk = self._world.disk
        copy = OverlayDisk.of_contents(disk.contents)
        done = self._repaired(copy, lambda: copy)
        self._account(done, disk.damage.sound, disk.contents, copy.contents)
        self._world.history.step("operator", f"tries {len(done.actions)} repairs")

    def _repaired(self, disk: Any, view: Any) -> Repair:
        ids = iter(range(1 << 60, 1 << 61))
        around = Surroundings(self._world.clock, lambda: UUID(int=next(ids) << 64 | 0x8000), _run)
        return repair_disk(disk, view, Path(), lambda _: None, around)

    def _account(
        self,
        done: Repair,
        sound: Mapping[str, bytes],
        before: Mapping[str, bytes],
        after: Mapping[str, bytes],
    ) -> None:
        """Compare a repaired folder with the folder before the damage and before the repair."""
        bug = self._world.bug
        if not done.is_complete and not any(CATALOGUE in one.path for one in done.left):
            bug(f"a repair is not complete: {[*map(str, done.left)]}")
        lost: dict[str, list[Lost]] = {}
        for action in done.actions:
            lost.setdefault(action.path.partition("/")[0], []).extend(action.lost)
        kept, deleting = _records(after), _deleting(before)
        written = {
            folder: records
            for folder, records in _records(sound).items()
            if folder.rpartition("-")[0] not in deleting
        }
        world = self._world
        gone = _superseded(
            written,
            sound,
            after,
            now_ms=math.inf if world.offsets.clock_was_set else world.clock.wall(),
            knows_active=not world.power_was_cut,
        )
        for folder, offset in [*gone]:
            written.get(folder, {}).pop(offset, None)
        for folder, records in written.items():
            left = kept.get(folder, {})
            first = _first_offset(folder, sound)
            for offset, record in records.items():
                is_reported = _covers(lost.get(folder, ()), offset)
                if offset in left:
                    if left[offset] != record and not (
                        is_reported
                        and folder.startswith(_SHARE_JOURNAL)
                        and _is_appended(offset, left, records, lost[folder])
                    ):
                        bug(f"a repair changed record {folder}@{offset}")
                elif not is_reported and done.is_complete and offset >= first:
                    bug(f"a repair lost record {folder}@{offset} without a report: {lost}")
        self._require_unmoved(written, kept)
        if self._world.options.fsync:
            self._require_promised(written, sound, before, kept)
        for path, data in before.items():
            is_rebuilt = path.removesuffix(DELETED).endswith(_REBUILT)
            if not is_rebuilt and not _is_kept(path, data, after):
                bug(f"a repair changed {path} without a copy")

    def _require_unmoved(self, written: _Records, kept: _Records) -> None:
        """Check that each record which is still there has its offset."""
        for folder, records in written.items():
            if _place(folder) in self._world.record_places():
                for former, offset in _moved(records, kept.get(folder, {})):
                    self._world.bug(f"a repair moved record {folder}@{former} to {offset}")

    def _require_promised(
        self,
        written: _Records,
        sound: Mapping[str, bytes],
        before: Mapping[str, bytes],
        kept: _Records,
    ) -> None:
        """Check that what was acknowledged and is not damaged is still there.

        A file that ends behind one of its batches may be set aside: nothing in a small one shows
        that it is not a whole file of another log.
        """
        known = {
            path: data
            for path, data in before.items()
            if data == sound.get(path) or not _is_whole(data)
        }
        for folder, records in _records(known, past_damage=True).items():
            place, left = _place(folder), kept.get(folder, {})
            if place not in self._world.record_places():
                continue
            for offset, record in records.items():
                is_own = written.get(folder, {}).get(offset) == record
                if is_own and offset not in left and self._world.records.is_kept(place, offset):
                    self._world.bug(f"a repair lost record {folder}@{offset}, which is whole")


def _names(error: Exception, path: str) -> bool:
    """Return whether an error is about a file."""
    if isinstance(error, ReportedDamageError):
        return path in error.files
    return any(f"{path}{end}" in str(error) for end in (":", " at byte "))


def _may_fit_gap(error: Exception) -> bool:
    """Return whether an offset is damaged that may fit a gap which compaction left.

    A repair cannot know it, leaves the segment as it is, and advises to restore a backup.
    """
    return MOVED in str(error) and str(error).startswith(_COMPACTED)


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in virtual time of its own."""
    loop, outer = VirtualLoop(lambda: 0.0), events._get_running_loop()  # type: ignore[abstract]  # all that is called is there
    try:
        task = loop.spawn(OUTSIDE, work)
        while not task.done() and not loop.errors:
            loop.run_until(loop.now_us + _CHECK_SECONDS_MAX * 1_000_000)
        loop.end(OUTSIDE)
        task.result()
    finally:
        events._set_running_loop(outer)


def _place(folder: str) -> Place:
    topic, _, index = folder.rpartition("-")
    return topic, int(index) if index.isdecimal() else 0


def _log_begin(folder: str, files: Mapping[str, bytes]) -> int:
    """Return the first offset of a log by the names of its segments, or 0."""
    return min(_segments(folder, files), default=0)


def _first_offset(folder: str, files: Mapping[str, bytes]) -> int:
    """Return the first offset of a log by its recovery point, or a number below all offsets.

    Segments before it are given up, though the disk may have refused to remove them.
    """
    with silent():
        _, claim = read_claim(OverlayDisk.of_contents(files), folder)
    return claim.first_base


def _covers(lost: Sequence[Lost], offset: int) -> bool:
    return any(first <= offset and (last is None or offset <= last) for first, last in lost)


def _is_kept(path: str, data: bytes, after: Mapping[str, bytes]) -> bool:
    """Whether a file is as it was, or has its former or final name, or its bytes are in a copy."""
    for suffix in (DELETED, SWAP):
        if path.endswith(suffix) and _is_kept(path.removesuffix(suffix), data, after):
            return True
    now = after.get(path)
    if now is not None and now.startswith(data):
        return True
    for name, copy in after.items():
        if not name.startswith(f"{path}.torn."):
            continue
        at = int(name.removeprefix(f"{path}.torn.").partition(".")[0])
        if data[at:] == copy and (at == 0 or data[:at] == (now or b"")[:at]):
            return True
    return ".torn." in path or path.startswith(".")


def _records(files: Mapping[str, bytes], *, past_damage: bool = False) -> _Records:
    """Decode all records with a right checksum, by folder and offset.

    Args:
        past_damage: go on behind a damaged batch.
    """
    found: _Records = {}
    for path, data in files.items():
        folder, _, name = path.rpartition("/")
        if not name.endswith(".log") or "-stray" in folder or "-delete" in folder:
            continue
        rows = found.setdefault(folder, {})
        for header, position in _whole_batches(data, past_damage=past_damage):
            for record in batches.records(data[position : position + header.size]):
                rows[record.offset] = record.value, record.key, record.timestamp
    return found


def _moved(written: Mapping[int, Any], kept: Mapping[int, Any]) -> Iterator[tuple[int, int]]:
    """Yield the former and the present offset of each record whose offset a repair changed.

    Values are unique, except those of tombstones, which are left out.
    """
    offsets: dict[Any, set[int]] = {}
    for offset, record in written.items():
        if record[0] is not None:
            offsets.setdefault(record, set()).add(offset)
    for offset, record in kept.items():
        former = offsets.get(record, {offset})
        if offset not in former:
            yield min(former), offset


def _is_appended(
    offset: int, left: Mapping[int, Any], records: Mapping[int, Any], lost: Sequence[Lost]
) -> bool:
    """Return whether a repair wrote a record: it is new, and behind all former ones that are left.

    Snapshots of share-partitions are appended where the journal lost its end.
    """
    behind = [former for former in records if former > offset and former in left]
    return left[offset] not in records.values() and all(_covers(lost, one) for one in behind)


def _deleting(files: Mapping[str, bytes]) -> set[str]:
    """Return the topics that the manifest lists as deleted, whose files may be gone."""
    try:
        topics = Manifest(OverlayDisk.of_contents(files)).topics.values()
    except CorruptLog:
        return set()
    return {one.name for one in topics if one.is_deleting}


def _is_being_deleted(damaged: Iterable[str], files: Mapping[str, bytes]) -> bool:
    """Return whether the damage is missing folders of topics whose deletion has begun.

    A deletion whose response was an error may be carried out or not; folders may be missing then.
    """
    folders = {path.partition("/")[0] for path in damaged}
    is_missing = not any(path.partition("/")[0] in folders for path in files)
    topics = {_place(folder)[0] for folder in folders}
    return bool(topics) and is_missing and topics <= _deleting(files)


def _superseded(
    written: _Records,
    sound: Mapping[str, bytes],
    after: Mapping[str, bytes],
    *,
    now_ms: float,
    knows_active: bool,
) -> Iterator[tuple[str, int]]:
    """Yield folders and offsets of records that are gone because a repair finished a compaction.

    The next start would have finished it as well. Its segment lacks records that a later one of
    their key supersedes, and tombstones whose delete horizon is over. The cleaner never reads the
    active segment, so no record of that supersedes another one.

    Args:
        written: the records of `sound`.
        now_ms: latest time at which the cleaner may have run.
        knows_active: whether the last segment of `sound` was the active one or came before it.
    """
    for swap, data in sound.items():
        path = swap.removesuffix(SWAP)
        if not swap.endswith(f".log{SWAP}") or after.get(path) != data:
            continue
        folder, _, name = path.rpartition("/")
        first = int(name.removesuffix(".log"))
        last = max((header.last_offset for header, _ in _whole_batches(data)), default=-1)
        segments = _segments(folder, sound)
        end = max([last + 1, *segments]) if knows_active else math.inf
        compacted = _records({path: data}).get(folder, {})
        rows = sorted((written.get(folder, {}) | compacted).items())
        latest = {key: offset for offset, (_, key, _) in rows if offset < end}
        horizons = _horizons(segments.values())
        for offset, (_, key, _) in rows:
            is_superseded = key is not None and latest.get(key, -1) > offset
            is_removable = is_superseded or horizons.get(offset, now_ms + 1) <= now_ms
            if first <= offset <= last and offset not in compacted and is_removable:
                yield folder, offset


def _segments(folder: str, files: Mapping[str, bytes]) -> dict[int, bytes]:
    """Return the segments of a log by their first offsets."""
    names = {path: path.removeprefix(f"{folder}/").removesuffix(".log") for path in files}
    return {int(name): files[path] for path, name in names.items() if name.isdecimal()}


def _horizons(segments: Iterable[bytes]) -> dict[int, int]:
    """Return, by offset, from when on compaction may remove tombstones (KIP-534)."""
    horizons: dict[int, int] = {}
    for data in segments:
        for header, position in _whole_batches(data):
            if header.delete_horizon is not None:
                for record in batches.records(data[position : position + header.size]):
                    if record.value is None:
                        horizons[record.offset] = header.delete_horizon
    return horizons


def _is_whole(data: bytes) -> bool:
    return sum(header.size for header, _ in _whole_batches(data)) == len(data)


def _whole_batches(data: bytes, *, past_damage: bool = False) -> Iterator[tuple[BatchHeader, int]]:
    position = 0
    while position + batches.HEADER_BYTES <= len(data):
        try:
            header = batches.read_header(data, position)
            if header.size > len(data) - position:
                raise CorruptBatch("it is cut short")
            batches.verify(data, position, header)
            batches.require_possible(header)
        except CorruptBatch:
            if not past_damage:
                return
            position += 1
            continue
        yield header, position
        position += header.size
