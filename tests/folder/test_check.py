"""The check of a data folder: what it finds, and that it leaves everything as it is."""

import errno
import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from tests.campaign.damage import draw
from tests.campaign.data import Folder
from tests.campaign.judge import REFUSED_BROKER, REFUSED_PARTITION, TORN, Judge
from tests.folder.conftest import Write

import headrace
from headrace.client.connection import Cluster
from headrace.client.group_offsets import alter_group_offsets
from headrace.client.share_groups import alter_share_group_offsets
from headrace.folder.check import Grade, Report, check
from headrace.folder.lock import FolderError
from headrace.folder.repair import repair
from headrace.log import partition_metadata, small_files
from headrace.log.api import CorruptFileError
from headrace.log.checkpoints import CLEAN_MARK, Extent, leave_clean_mark, read_clean_mark
from headrace.log.manifest import START_OFFSETS, ListedTopic, Manifest
from headrace.log.memory_disk import MemoryDisk
from headrace.log.os_disk import OsDisk, OsFile
from headrace.log.recovery_point import RecoveryPoint
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import Record

CASES = 60
_NOBODY = 65534
LARGE = "orders-0/00000000000000000000.log"


def checked(root: Path) -> Report:
    return check(root, lambda _: None)


def state(root: Path) -> Mapping[str, tuple[int, int, bytes]]:
    """Mode, time of change and content of everything below a folder."""
    return {
        str(path.relative_to(root)): (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(root.rglob("*"))
    }


def test_a_sound_folder_has_no_finding_and_is_not_touched(stopped: Folder, write: Write) -> None:
    root = write(stopped.files)
    before = state(root)
    steps: list[int] = []
    report = check(root, steps.append)
    assert (report.is_clean, report.findings) == (True, ())
    assert report.files == len(stopped.files) - 1  # but for the mark of the stop
    assert report.size == sum(steps)
    assert state(root) == before


def test_a_damaged_folder_is_not_touched_either(killed: Folder, write: Write) -> None:
    files = dict(killed.files)
    path = "orders-0/00000000000000000033.log"
    files[path] = files[path][:-3]
    files["prices-0/00000000000000000048.log.deleted"] = b"old"
    root = write(files)
    before = state(root)
    report = checked(root)
    assert [one.grade for one in report.findings] == [Grade.WARNING, Grade.NOTE]
    assert report.findings[0].path == path
    assert str(report.findings[0]) == (
        f"warning: {path} at byte 0: torn end of 456 unsynced bytes; "
        "the next start cuts them off and keeps a copy; no action is needed"
    )
    assert state(root) == before


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Give up root's right to write everywhere, where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_without_write_permission_is_checked(
    stopped: Folder, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(stopped.files)
    assert checked(root).is_clean  # imports what the check needs while it can be read
    paths = (root, *root.rglob("*"))
    for path in paths:
        if os.geteuid() == 0:
            os.chown(path, _NOBODY, -1)
        path.chmod(0o500 if path.is_dir() else 0o400)
    monkeypatch.chdir(root)  # an ordinary user cannot enter root's temporary folders
    with as_ordinary_user():
        with pytest.raises(PermissionError):
            Path("new").touch()
        assert checked(Path()).is_clean
    for path in paths:
        path.chmod(0o700)


UNREADABLE = [
    "orders-0", "orders-0/partition.metadata", "orders-0/00000000000000000033.log",
    "orders-0/00000000000000000005.checksums", "orders-0/recovery-point", "meta.properties",
    "headrace.manifest", "__consumer_offsets-0", "__cluster_metadata-0/00000000000000000000.log",
]  # fmt: skip


@pytest.mark.parametrize(
    ("sort", "path"),
    [
        *(("stopped", path) for path in [*UNREADABLE, ".kafka_cleanshutdown"]),
        *(("killed", path) for path in UNREADABLE),
    ],
)
def test_what_cannot_be_read_is_reported_and_the_rest_is_checked(
    sort: str,
    path: str,
    request: pytest.FixtureRequest,
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder: Folder = request.getfixturevalue(sort)
    other = "jobs-1/00000000000000000000.log"
    root = write({**folder.files, other: folder.files[other][:-1] + b"?"})
    before = checked(root)  # imports what the check needs while it can be read
    paths = (root, *root.rglob("*"))
    for each in paths:
        if os.geteuid() == 0:
            os.chown(each, _NOBODY, -1)
    mode = (root / path).stat().st_mode
    (root / path).chmod(0)
    monkeypatch.chdir(root)
    with as_ordinary_user():
        report = checked(Path())
        done = repair(Path(), lambda _: None, execute=False)
    (root / path).chmod(mode)
    errors = {finding.path: finding for finding in report.findings if finding.grade == "error"}
    assert errors.keys() == {path, other}
    kind = "folder" if (root / path).is_dir() else "file"
    assert str(errors[path]) == (
        f"error: {path}: the {kind} cannot be read: Permission denied; what it holds is neither "
        "checked nor served; change its owner or permissions, then check again"
    )
    assert (done.actions, done.is_complete) == ([], False)
    assert checked(root) == before


def test_a_start_names_the_permissions_as_the_remedy() -> None:
    class ForeignDisk(MemoryDisk):
        def read(self, path: str, count: int = -1, position: int = 0) -> bytes:
            raise PermissionError(errno.EACCES, "Permission denied", path)

    with pytest.raises(CorruptFileError) as refused:
        small_files.read_bytes(ForeignDisk(), "meta.properties")
    assert str(refused.value) == (
        "meta.properties: the file cannot be read: Permission denied; "
        "change its owner or permissions"
    )


def test_a_folder_of_another_owner_that_is_no_partition_is_left_alone(
    stopped: Folder, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(stopped.files)
    checked(root)
    for each in (root, *root.rglob("*")):
        if os.geteuid() == 0:
            os.chown(each, _NOBODY, -1)
    (root / "lost+found").mkdir(mode=0)
    monkeypatch.chdir(root)
    with as_ordinary_user():
        assert checked(Path()).findings == ()
    (root / "lost+found").rmdir()


def test_a_folder_in_use_is_refused(stopped: Folder, write: Write) -> None:
    root = write(stopped.files)
    fd = os.open(root / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with pytest.raises(FolderError, match="a broker runs on"):
            checked(root)
    finally:
        os.close(fd)


def test_what_is_no_data_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="there is no folder"):
        checked(tmp_path / "none")
    with pytest.raises(FolderError, match="is not a data folder"):
        checked(tmp_path)


def test_each_finding_is_one_line_with_file_position_consequence_and_remedy(
    stopped: Folder, write: Write
) -> None:
    files = dict(stopped.files)
    path = "orders-0/00000000000000000010.log"
    files[path] = files[path][:200] + b"\0" + files[path][201:]
    report = checked(write(files))
    (finding,) = report.findings
    assert (finding.grade, finding.path, finding.position) == (Grade.ERROR, path, 0)
    assert str(finding) == (
        f"error: {path} at byte 0: checksum of the batch of offset 10 is wrong; "
        "records there cannot be read; run `headrace repair`, or restore a backup"
    )


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".checksums", ".snapshot"])
def test_a_damaged_file_that_a_start_rebuilds_is_a_warning(
    suffix: str, stopped: Folder, write: Write
) -> None:
    path = next(
        path for path, content in sorted(stopped.files.items())
        if path.startswith("orders-0/") and path.endswith(suffix) and content
    )  # fmt: skip
    content = bytearray(stopped.files[path])
    content[len(content) // 2] ^= 1
    (finding,) = checked(write({**stopped.files, path: bytes(content)})).findings
    assert (finding.grade, finding.path) == (Grade.WARNING, path)


@pytest.mark.parametrize("damage", ["empty", "cut", "hole"])
def test_a_time_index_without_checksums_is_compared_with_the_log(
    damage: str, stopped: Folder, write: Write
) -> None:
    stem = next(
        path.removesuffix(".timeindex") for path, content in sorted(stopped.files.items())
        if path.endswith(".timeindex") and len(content) > 12 and not path.startswith("__")
    )  # fmt: skip
    times = stopped.files[f"{stem}.timeindex"]
    left = {"empty": b"", "cut": times[:-12], "hole": bytes(8) + times[8:]}[damage]
    files = {**stopped.files, f"{stem}.timeindex": left}
    del files[f"{stem}.checksums"]
    found = [one for one in checked(write(files)).findings if one.grade is not Grade.NOTE]
    assert [(one.grade, one.path) for one in found] == [(Grade.WARNING, f"{stem}.timeindex")]
    assert found[0].consequence == "it is rebuilt from the log"


def test_damage_in_the_last_segment_after_an_orderly_stop_is_an_error(
    large_stopped: Folder, write: Write
) -> None:
    """The start trusts the segment and cuts nothing; its readers meet the damage."""
    content = bytearray(large_stopped.files[LARGE])
    content[len(content) // 2] ^= 1
    report = checked(write({**large_stopped.files, LARGE: bytes(content)}))
    (finding,) = report.findings
    assert (finding.grade, finding.path) == (Grade.ERROR, LARGE)
    assert finding.consequence == "records there cannot be read"


@pytest.mark.parametrize("sort", ["stopped", "killed"])
@pytest.mark.parametrize("name", ["00000000000000000010.log", "00000000000000000099.log"])
def test_a_directory_in_the_place_of_a_segment_is_a_finding_that_no_repair_touches(
    sort: str, name: str, request: pytest.FixtureRequest, write: Write
) -> None:
    folder: Folder = request.getfixturevalue(sort)
    path = f"orders-0/{name}"
    root = write(folder.files)
    (root / path).unlink(missing_ok=True)
    (root / path).mkdir()
    report = checked(root)
    assert any(
        one.path == path
        and one.grade is Grade.ERROR
        and one.problem == "the file cannot be read: it is a directory"
        and one.remedy.startswith("move the directory away")
        for one in report.findings
    ), report.findings
    (root / ".lock").touch()
    before = state(root)
    for execute in (False, True):
        done = repair(root, lambda _: None, execute=execute)
        assert (done.actions, done.is_complete) == ([], False)
    assert state(root) == before


def test_a_broker_starts_beside_a_directory_in_the_place_of_a_segment(
    killed: Folder, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    path = "orders-0/00000000000000000033.log"
    root = write(killed.files)
    (root / path).unlink()
    (root / path).mkdir()
    with headrace.Broker(root):
        pass
    (line,) = [one.getMessage() for one in caplog.records if path in one.getMessage()]
    assert line.startswith(
        f"{path}: the file cannot be read: it is a directory; move the directory away, then run "
        "`headrace check`. Clients get KAFKA_STORAGE_ERROR for partition orders-0"
    )


@pytest.mark.parametrize("sort", ["stopped", "killed"])
def test_a_missing_recovery_point_is_reported_and_repaired(
    sort: str, request: pytest.FixtureRequest, write: Write
) -> None:
    folder: Folder = request.getfixturevalue(sort)
    path = "orders-0/recovery-point"
    root = write(folder.files)
    before = checked(root).findings
    (root / path).unlink()
    (finding,) = set(checked(root).findings) - set(before)
    assert (finding.grade, finding.path) == (Grade.ERROR, path)
    assert finding.problem.startswith("the file is missing")
    done = repair(root, lambda _: None, execute=True)
    (text,) = (one.text for one in done.actions if one.path == path)
    assert text.startswith("write the file from the segments that exist")
    assert ("are lost" in text) is (sort == "killed")
    assert path not in {one.path for one in checked(root).findings}


def test_missing_recovery_points_of_journals_are_repaired(stopped: Folder, write: Write) -> None:
    points = {f"{one}-0/recovery-point" for one in ("__cluster_metadata", "__consumer_offsets")}
    root = write({path: data for path, data in stopped.files.items() if path not in points})
    assert not checked(root).is_clean
    done = repair(root, lambda _: None, execute=True)
    assert {one.path for one in done.actions} == points
    assert done.is_complete


def test_positions_of_groups_beyond_the_end_of_a_log_are_notes(tmp_path: Path) -> None:
    """As after a power cut that took the end of the log, and not that of the journals."""
    with headrace.Broker(tmp_path) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for _ in range(3):
            producer.produce("orders", b"1", partition=0)
        assert producer.flush(30) == 0
        place = ("orders", 0)
        with Cluster(broker.bootstrap_servers) as cluster:
            assert not alter_group_offsets(cluster, "readers", {place: 3}).errors[place]
            assert not alter_share_group_offsets(cluster, "workers", {place: 3}).errors[place]
    assert checked(tmp_path).findings == ()
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "orders-0/recovery-point").write_bytes(b"")
    for path in (tmp_path / "orders-0").glob("0*"):
        path.unlink() if path.suffix != ".log" else path.write_bytes(b"")
    notes = [one for one in checked(tmp_path).findings if one.grade is Grade.NOTE]
    assert [(one.path, one.problem) for one in notes] == [
        ("orders-0", "the log ends at offset 0, but share group workers had records up to 2"),
        ("orders-0", "the log ends at offset 0, but group readers committed an offset up to 3"),
    ]


def test_strays_leftovers_and_copies_are_notes(stopped: Folder, write: Write) -> None:
    files = dict(stopped.files)
    files["orders-0/00000000000000000005.log.torn.100"] = b"torn"
    files["orders-0/00000000000000000005.index.torn.0.2"] = b"whole"
    files["old.0000-0-stray/00000000000000000000.log"] = b"whatever"
    files["gone.0000-0-delete/00000000000000000000.log"] = b"whatever"
    report = checked(write(files))
    assert report.is_clean
    problems = {one.path: one.problem for one in report.findings}
    assert problems["orders-0/00000000000000000005.log.torn.100"].startswith("copy of bytes")
    assert problems["orders-0/00000000000000000005.index.torn.0.2"] == "a whole file, set aside"
    assert problems.keys() == {
        "orders-0/00000000000000000005.log.torn.100",
        "orders-0/00000000000000000005.index.torn.0.2", "old.0000-0-stray", "gone.0000-0-delete",
    }  # fmt: skip


def test_sealed_segments_without_checksums_are_a_note(stopped: Folder, write: Write) -> None:
    """Nothing verifies offsets and sizes in them; the last segment is read whole in any case."""
    segments = sorted(name for name in stopped.files if re.fullmatch(r"orders-0/\d+\.log", name))
    sealed = [name.removesuffix(".log") for name in segments[:-1]]
    lacking = {f"{sealed[0]}.checksums"}
    report = checked(write({k: v for k, v in stopped.files.items() if k not in lacking}))
    (note,) = report.findings
    assert (report.is_clean, note.grade, note.path) == (True, Grade.NOTE, "orders-0")
    assert note.problem == "no .checksums of 1 sealed segments, in 1 logs"


@pytest.mark.parametrize("damaged", [False, True])
def test_a_replacement_that_a_start_refuses_is_an_error_and_no_leftover(
    damaged: bool, stopped: Folder, write: Write
) -> None:
    """No checksum covers the offset of its only batch, by which it ends where no segment does."""
    former = "orders-0/00000000000000000020.log"
    content = (1000 if damaged else 20).to_bytes(8) + stopped.files[former][8:]
    report = checked(write({**stopped.files, f"{former}.swap": content}))
    assert [(one.grade, one.path) for one in report.findings] == [
        (Grade.ERROR if damaged else Grade.NOTE, f"{former}.swap")
    ]


def test_the_checksums_that_wait_with_a_replacement_are_no_damage(
    stopped: Folder, write: Write
) -> None:
    """Compaction empties them before it stages the replacement."""
    former = "orders-0/00000000000000000000.log"
    files = {**stopped.files, f"{former}.swap": stopped.files[former]}
    files[f"{former.removesuffix('.log')}.checksums"] = b""
    root = write(files)
    assert checked(root).is_clean
    (root / f"{former}.swap").unlink()
    assert [one.problem for one in checked(root).findings] == ["the file does not verify"]


def test_damaged_checksums_of_a_replacement_are_reported(stopped: Folder, write: Write) -> None:
    former = "orders-0/00000000000000000000.log"
    files = {**stopped.files, f"{former}.swap": stopped.files[former]}
    report = checked(write({**files, f"{former}.swap.checksums": b"damaged"}))
    (finding,) = [one for one in report.findings if one.grade is not Grade.NOTE]
    assert (finding.grade, finding.path) == (Grade.WARNING, f"{former}.swap.checksums")
    assert finding.consequence == "the next start removes it"


def test_a_damaged_segment_over_which_a_whole_replacement_stands_is_a_note(
    stopped: Folder, write: Write
) -> None:
    """A start removes it with its indexes, and serves the records of the replacement."""
    stems = [f"orders-0/{base:020d}" for base in (0, 5)]
    files = dict(stopped.files)
    files[f"{stems[0]}.log.swap"] = b"".join(files[f"{stem}.log"] for stem in stems)
    for stem in stems:
        files[f"{stem}.log"] = files[f"{stem}.log"][:-1] + b"\xff"
        files[f"{stem}.checksums"] = b"damaged"
        files[f"{stem}.index"] = b"damaged"
    report = checked(write(files))
    notes = [f"{stems[0]}.log", f"{stems[0]}.log.swap", f"{stems[1]}.log"]
    assert [(one.grade, one.path) for one in report.findings] == [
        (Grade.NOTE, path) for path in notes
    ]
    assert report.findings[0].consequence == (
        "the next start puts the segment that compaction made in its place"
    )


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_replacement_that_a_start_needs_is_no_leftover(
    is_given_up: bool, stopped: Folder, write: Write
) -> None:
    former = "orders-0/00000000000000000000.log"
    files = {**stopped.files, f"{former}.swap": stopped.files[former]}
    del files[f"{former.removesuffix('.log')}.checksums"]
    root = write(files)
    if is_given_up:
        RecoveryPoint(OsDisk(root), "orders-0").dropping(5)
    else:
        (root / former).rename(root / f"{former}.deleted")
    report = checked(root)
    assert report.is_clean
    (consequence,) = [one.consequence for one in report.findings if one.path.endswith(".swap")]
    assert consequence == (
        "no reader sees it"
        if is_given_up
        else "the next start puts it in the place of those that it replaces"
    )


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (["orders 0 100", "events 0 22"], "an earlier state of the file: {} of orders-0"),
        (["events 0 16"], "an earlier state of the file: {} of events-0"),
        ([], "the file is missing or empty: {} of events-0"),
        (["events 0 22"], ""),
    ],
)
def test_start_offsets_are_held_against_the_mark_of_the_last_stop(
    rows: list[str], problem: str, stopped: Folder, write: Write
) -> None:
    root = write(stopped.files)
    text = "\n".join(["0", str(len(rows)), *rows, ""])
    small_files.write_file(OsDisk(root), START_OFFSETS, text)
    found = [one for one in checked(root).findings if one.path == START_OFFSETS]
    expected = problem.format(f"{CLEAN_MARK} has other start offsets")
    assert [one.problem for one in found] == ([expected] if problem else [])
    assert {one.grade for one in found} <= {Grade.WARNING}


def test_a_segment_that_a_start_sets_aside_has_no_torn_end(stopped: Folder, write: Write) -> None:
    """The start offset of a former topic is above the end of the log, and the mark is gone."""
    path = f"orders-0/{0:020d}.log"
    content = bytearray(stopped.files[path])
    content[70] ^= 1
    files = {one: data for one, data in stopped.files.items() if one != CLEAN_MARK}
    for name, data in {path: bytes(content), "": b""}.items():
        root = write({**files, **({name: data} if name else {})})
        small_files.write_file(OsDisk(root), START_OFFSETS, "0\n1\norders 0 100\n")
        found = [one for one in checked(root).findings if one.path.startswith("orders-0")]
        assert ("orders-0", "the log ends before its start offset", Grade.NOTE) in [
            (one.path, one.problem, one.grade) for one in found
        ]
        assert [one.grade for one in found if one.path == path] == ([Grade.ERROR] if name else [])


@pytest.mark.parametrize("is_tried", [False, True])
def test_an_empty_last_segment_that_the_next_start_creates_is_a_warning(
    *, is_tried: bool, stopped: Folder, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an earlier start could not create it."""
    root = write(stopped.files)
    disk = OsDisk(root)
    extents = dict(read_clean_mark(disk) or {})
    log = SegmentedLog(disk, "orders-0", clean=True, has_point=True)
    data = bytearray(batches.build([Record(0, 0, None, b"v")]))
    log.append(data, batches.headers(data))
    log.roll()
    log.settle()
    log.close()
    leave_clean_mark(disk, extents | {"orders-0": Extent(log.start_offset, log.end_offset)})
    path = f"orders-0/{log.end_offset:020d}.log"
    disk.remove(path)
    if is_tried:
        with monkeypatch.context() as patch:
            patch.setattr(disk, "open", _full)
            with pytest.raises(OSError, match="No space left"):
                SegmentedLog(
                    disk, "orders-0", clean=True, end_offset=log.end_offset, has_point=True
                )
    found = [one for one in checked(root).findings if one.path.startswith("orders-0")]
    assert [(one.path, one.grade, one.consequence) for one in found] == [
        (path, Grade.WARNING, "the next start creates it")
    ]
    assert not (root / path).exists()


def _full(path: str) -> OsFile:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


@pytest.mark.parametrize("renames", range(4))
def test_a_start_that_was_killed_when_it_set_segments_aside_is_no_warning(
    renames: int, stopped: Folder, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write({one: data for one, data in stopped.files.items() if one != CLEAN_MARK})
    disk = OsDisk(root)
    small_files.write_file(disk, START_OFFSETS, "0\n1\norders 0 100\n")
    rename, opened, calls = disk.rename, disk.open, count()

    def renamed(old: str, new: str, *, durable: bool = True) -> None:
        if next(calls) == renames:
            raise OSError(errno.EIO, "killed")
        rename(old, new, durable=durable)

    def opened_file(path: str) -> OsFile:
        if path.endswith("100.log"):
            raise OSError(errno.EIO, "killed")
        return opened(path)

    monkeypatch.setattr(disk, "rename", renamed)
    monkeypatch.setattr(disk, "open", opened_file)
    with pytest.raises(OSError, match="killed"):
        SegmentedLog(disk, "orders-0", start_offset=100, has_point=True)
    found = [one for one in checked(root).findings if one.path.startswith("orders-0")]
    assert {one.grade for one in found} <= {Grade.NOTE}


def test_a_torn_end_of_a_log_that_a_start_sets_aside_is_no_error(
    killed: Folder, write: Write
) -> None:
    path = f"orders-0/{33:020d}.log"
    root = write({**killed.files, path: killed.files[path][:-3]})
    small_files.write_file(OsDisk(root), START_OFFSETS, "0\n1\norders 0 100\n")
    found = [one for one in checked(root).findings if one.path.startswith("orders-0")]
    assert [(one.path, one.grade) for one in found] == [
        (path, Grade.WARNING), ("orders-0", Grade.NOTE)
    ]  # fmt: skip
    assert found[0].problem.startswith("torn end of ")


def test_damage_is_no_torn_end_where_a_start_began_to_set_segments_aside(
    stopped: Folder, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one reads none of the rest."""
    root = write({one: data for one, data in stopped.files.items() if one != CLEAN_MARK})
    small_files.write_file(OsDisk(root), START_OFFSETS, "0\n1\norders 0 100\n")
    disk = OsDisk(root)
    rename, calls = disk.rename, count(1)

    def failing(old: str, new: str, *, durable: bool = True) -> None:
        if next(calls) > 2:
            raise OSError(errno.EIO, "the disk fails")
        rename(old, new, durable=durable)

    monkeypatch.setattr(disk, "rename", failing)
    with pytest.raises(OSError, match="the disk fails"):
        SegmentedLog(disk, "orders-0", start_offset=100, has_point=True)
    last = max((root / "orders-0").glob("*.log"))
    data = bytearray(last.read_bytes())
    data[len(data) // 2] ^= 1
    last.write_bytes(data)
    grades = {one.path: one.grade for one in checked(root).findings}
    assert grades[f"orders-0/{last.name}"] is Grade.ERROR
    assert grades["orders-0"] is Grade.NOTE


def test_segments_of_a_folder_without_a_topic_are_not_set_aside(
    stopped: Folder, write: Write
) -> None:
    """The folder has an older copy, and the next start renames it."""
    files = dict(stopped.files)
    for path in [one for one in files if one.startswith("orders-0/")]:
        files[path.replace("orders-0", "gone-0")] = files[path]
    files[f"gone-0/{0:020d}.log.torn.0"] = files.pop(f"gone-0/{0:020d}.log")
    root = write(files)
    partition_metadata.write(OsDisk(root), "gone-0", "AAAAAAAAAAAAAAAAAAAAAQ")
    problems = {one.problem for one in checked(root).findings}
    assert "the folder belongs to no topic" in problems
    assert "the log ends before its start offset" not in problems


def test_segments_that_the_next_start_removes_are_named(stopped: Folder, write: Write) -> None:
    """They were set aside, and an operator gave them their names again."""
    root = write({one: data for one, data in stopped.files.items() if one != CLEAN_MARK})
    disk = OsDisk(root)
    SegmentedLog(disk, "orders-0", start_offset=100, has_point=True).close()
    for name in [one for one in disk.list("orders-0") if one.endswith(".torn.0")]:
        disk.rename(f"orders-0/{name}", f"orders-0/{name.removesuffix('.torn.0')}")
    report = checked(root)
    assert report.is_clean
    (found,) = [one for one in report.findings if one.path == "orders-0"]
    first = ", ".join(f"{base:020d}.log" for base in (0, 5, 10))
    assert (found.problem, found.consequence) == (
        f"the recovery point gives up {first} and 4 more", "the next start removes them"
    )  # fmt: skip


def test_a_log_that_lost_its_first_segment_needs_no_start_offset(
    stopped: Folder, write: Write
) -> None:
    """Retention dropped the first two segments, and the next one is missing."""
    names = sorted(one for one in stopped.files if one.startswith("orders-1/"))
    first, _, third = [one for one in names if one.endswith(".log")][:3]
    start = int(third.removeprefix("orders-1/").removesuffix(".log"))
    gone = [one for one in names if first <= one <= third and one.endswith(".log")]
    root = write({path: data for path, data in stopped.files.items() if path not in gone})
    disk = OsDisk(root)
    closed = dict(read_clean_mark(disk) or {})
    closed["orders-1"] = closed["orders-1"]._replace(start=start)
    leave_clean_mark(disk, closed)
    paths = [one.path for one in checked(root).findings]
    assert any(path.startswith("orders-1") for path in paths)
    assert START_OFFSETS not in paths


@pytest.mark.parametrize("name", ["my.torn.data", "my.torn.7", ".hidden"])
def test_topics_with_any_name_are_verified(name: str, tmp_path: Path) -> None:
    with headrace.Broker(tmp_path) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce(name, b"value")
        assert producer.flush(60) == 0
    assert checked(tmp_path).findings == ()
    path = tmp_path / f"{name}-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (finding,) = checked(tmp_path).findings
    assert (finding.path, finding.grade) == (f"{name}-0/{0:020d}.log", Grade.ERROR)


def test_a_folder_that_a_deletion_left_is_told_from_a_stray(stopped: Folder, write: Write) -> None:
    root = write(stopped.files)
    disk = OsDisk(root)
    ids = {"gone": "BgAAAAAAAAAAAAAAAAAAAA", "foreign": "BwAAAAAAAAAAAAAAAAAAAA"}
    for name, topic_id in ids.items():
        partition_metadata.write(disk, f"{name}-0", topic_id)
    Manifest(disk).begin_deletion(ids["gone"], ListedTopic(1, "gone"))
    report = checked(root)
    assert report.is_clean
    assert {one.path: one.consequence for one in report.findings} == {
        "gone-0": "the next start removes it",
        "foreign-0": "the next start renames it to `…-stray`",
    }


@pytest.mark.parametrize("sort", ["stopped", "killed"])
def test_the_check_finds_what_a_start_refuses(
    sort: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Both judge the same damages, and come to the same result."""
    folder: Folder = request.getfixturevalue(sort)
    judge, rng, refused = Judge(folder), Random(3), 0
    for number in range(CASES):
        damage = draw(folder.files, rng)
        outcome = judge.judge(damage)
        root = tmp_path / str(number)
        for path, content in damage.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
        report = checked(root)
        is_refused = outcome.name in (REFUSED_BROKER, REFUSED_PARTITION)
        has_errors = any(one.grade is Grade.ERROR for one in report.findings)
        assert is_refused == has_errors, (damage.text, outcome, report.findings)
        assert outcome.name != TORN or not report.is_clean, (damage.text, outcome)
        refused += is_refused
    assert refused > CASES // 5
