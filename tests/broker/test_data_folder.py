"""A data folder as a whole: what must exist, what is refused, upgraded, and survives a crash."""

import asyncio
import contextlib
import errno
import functools
import os
import re
import stat
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import headrace
from headrace.broker.config import Config
from headrace.broker.dispatch import Dispatcher
from headrace.broker.metrics import Metrics
from headrace.broker.metrics_families import _topics
from headrace.broker.partitions import Partition
from headrace.broker.replay import JournalDamaged
from headrace.broker.runtime import StorageFault
from headrace.broker.server import Server
from headrace.broker.services import Services, StartError, _cluster_id
from headrace.core.catalog import CreateTopic, DeleteTopic
from headrace.core.errors import Refused, Why
from headrace.log import partition_metadata, small_files
from headrace.log.api import CorruptFileError, CorruptLog, Disk, NewerFormatError
from headrace.log.checkpoints import (
    CLEAN_MARK,
    Extent,
    leave_clean_mark,
    parsed_offsets,
    read_clean_mark,
    read_offsets,
    remove_clean_mark,
    remove_from_clean_mark,
)
from headrace.log.clock_checkpoint import FILE as CLOCK
from headrace.log.manifest import Manifest
from headrace.log.memory_disk import MemoryDisk, VirtualClock
from headrace.log.recovery_point import read_claim
from headrace.sim.disk import FaultyDisk
from headrace.wire import batches
from headrace.wire.batches import Record

from .loop_rig import Client
from .test_runtime import rebuilt

SECONDS_MAX = 60
MANIFEST = "headrace.manifest"
SMALL_FILES = ("meta.properties", "log-start-offset-checkpoint", "orders-0/partition.metadata")
JOURNALS = ("__share_group_state-0", "__consumer_offsets-0")
IDS = {"orders": UUID(int=21), "other": UUID(int=22)}


class Life:
    """A broker without its server on a disk, from its start to its end."""

    def __init__(self, disk: MemoryDisk, **settings: Any) -> None:
        ids = iter(range(1000, 2000))
        config = Config(offsets_partitions=1, **settings)
        self.services = Services(
            config, disk, VirtualClock(), lambda: UUID(int=next(ids)), Metrics()
        )
        self.cluster = _cluster_id(self.services.partitions.manifest, 1, lambda: UUID(int=5))
        self.services.topics.load()

    async def __aenter__(self) -> "Life":
        await self.services.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.services.close()

    async def create(self, name: str) -> None:
        await self.services.topics.create(CreateTopic(name, IDS[name], 2, {}))

    async def put(self, name: str, index: int, value: bytes) -> None:
        partition = self.partition(name, index)
        partition.append_records([Record(0, 0, None, value)])
        await partition.durable()

    def partition(self, name: str, index: int) -> Partition:
        found = self.services.partition(name, index)
        assert found is not None
        return found

    def values(self, name: str, index: int) -> list[bytes | None]:
        log = self.partition(name, index).log
        found: list[bytes | None] = []
        offset = log.start_offset
        while offset < log.end_offset:
            piece = log.read(offset, 1 << 20)
            found += [one.value for one in batches.records(piece.data)]
            offset = piece.headers[-1].last_offset + 1
        return found


def run(work: Callable[[], Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work(), SECONDS_MAX))


def filled(*, clean: bool = True) -> MemoryDisk:
    """A folder with two topics of two partitions, three records in each of the first."""
    disk = MemoryDisk()

    async def go() -> None:
        life = await Life(disk).__aenter__()
        for name in IDS:
            await life.create(name)
            for number in range(3):
                await life.put(name, 0, b"%d" % number)
        partitions = life.services.topics.partitions
        await partitions.delete_records({life.partition("orders", 0): 1})
        await life.services.topics.next_producer_id()
        if not clean:
            disk.kill()
            with contextlib.suppress(OSError, StorageFault):
                await life.services.close()
            return
        await life.services.close()

    run(go)
    return disk


def test_a_log_begins_where_it_did_when_it_was_closed() -> None:
    """The last write of the checkpoint was lost, and its former bytes look sound."""
    disk = filled()
    before = disk.read(SMALL_FILES[1])

    async def delete() -> None:
        async with Life(disk) as life:
            await life.services.topics.partitions.delete_records({life.partition("orders", 0): 2})

    async def begin() -> None:
        life = Life(disk)
        assert life.partition("orders", 0).start_offset == 2
        assert life.partition("other", 0).start_offset == 0
        disk.kill()

    run(delete)
    disk.write(SMALL_FILES[1], before)
    run(begin)
    assert not disk.exists(CLEAN_MARK)
    run(begin)  # the checkpoint has it again


def test_a_start_of_a_former_topic_counts_for_no_log_that_was_closed() -> None:
    """The disk lost the write that removed the start offset of a topic that was deleted."""
    disk = filled()

    async def begin() -> None:
        life = Life(disk)
        assert life.partition("orders", 0).start_offset == 1
        assert life.partition("other", 0).start_offset == 0
        assert life.values("other", 0) == [b"0", b"1", b"2"]
        disk.kill()

    small_files.write_file(disk, SMALL_FILES[1], "0\n2\norders 0 2\nother 0 100\n")
    run(begin)
    assert parsed_offsets(small_files.read_file(disk, SMALL_FILES[1]).text) == {("orders", 0): 1}


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_folder_that_cannot_be_listed_refuses_its_partition_alone(*, is_killed: bool) -> None:
    """The start offset of the log, which only the mark of the stop has, counts once it can be."""
    disk = filled()
    closed = {**(read_clean_mark(disk) or {}), "other-0": Extent(2, 3)}
    leave_clean_mark(disk, closed)
    listed = disk.list

    def failing(folder: str) -> list[str]:
        if folder == "other-0":
            raise OSError(errno.EIO, "the disk fails")
        return listed(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "list", failing)
        life = Life(disk)
        assert life.values("orders", 0) == [b"1", b"2"]
        with pytest.raises(OSError, match="the disk fails"):
            _ = life.partition("other", 0).log
    if is_killed:
        disk.kill()
        life = Life(disk)
    assert life.values("other", 0) == [b"2"]
    disk.kill()


@pytest.mark.parametrize("is_missing", [False, True])
def test_the_start_of_a_log_without_segments_outlives_the_mark_of_the_stop(
    *, is_missing: bool
) -> None:
    """A repair lets the log continue there, at least: offsets below it were used."""
    disk = filled()
    leave_clean_mark(disk, {**(read_clean_mark(disk) or {}), "other-0": Extent(3, 3)})
    for name in disk.list("other-0"):
        if is_missing or name.endswith(".log"):
            disk.remove(f"other-0/{name}")
    with pytest.raises(OSError, match="other-0 is refused"):
        _ = Life(disk).partition("other", 0).log
    assert read_clean_mark(disk) is None
    disk.kill()
    assert read_offsets(disk)["other", 0] == 3


def test_a_stop_keeps_the_start_of_a_deletion_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start offset was kept, and the segments below it were not dropped."""
    disk = filled()

    async def delete() -> None:
        async with Life(disk) as life:
            partition = life.partition("orders", 0)

            async def failed(_: int) -> None:
                raise OSError(errno.EIO, "the disk fails")

            monkeypatch.setattr(partition, "begin_at", failed)
            done = await life.services.topics.partitions.delete_records({partition: 2})
            assert isinstance(done[partition], OSError)
            assert partition.start_offset == 1

    async def begin() -> None:
        assert Life(disk).partition("orders", 0).start_offset == 2
        disk.kill()

    run(delete)
    assert (read_clean_mark(disk) or {})["orders-0"].start == 2
    run(begin)


def test_a_start_that_a_replacement_has_is_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    """Retention dropped the first segment, and the stop came amid a compaction of the second."""
    disk = filled()
    checkpoint = disk.read(SMALL_FILES[1])

    async def drop() -> None:
        async with Life(disk) as life:
            partition = life.partition("other", 0)
            partition.log.roll()
            await life.put("other", 0, b"3")
            partition.log.roll()
            partition.log.allow_drop(3)
            await partition.begin_at(3)

    async def begin() -> None:
        assert Life(disk).partition("other", 0).start_offset == 3
        disk.kill()

    run(drop)
    second = f"other-0/{3:020d}.log"
    disk.rename(second, f"{second}.swap")
    run(begin)
    assert disk.read(SMALL_FILES[1]) == checkpoint
    assert "earlier state" not in caplog.text


def start_of(disk: MemoryDisk) -> list[str]:
    """Start and stop; the refused partitions."""

    async def go() -> list[str]:
        async with Life(disk) as life:
            for one in life.services.partitions:
                with contextlib.suppress(OSError):
                    _ = one.log
            assert life.cluster
            refused = [one for one in life.services.partitions if one.refused is not None]
            trouble = life.services.trouble()
            assert (trouble is None) == (not refused)
            return [f"{one.name}: {one.refused}" for one in refused]

    found: list[str] = run(go)
    return found


# ---- what must exist


def test_the_manifest_lists_what_must_exist() -> None:
    disk = filled()
    lines = small_files.read_file(disk, MANIFEST).text.splitlines()
    assert lines[:3] == [
        "journal __cluster_metadata-0 recovery-points", "file log-start-offset-checkpoint",
        "file meta.properties",
    ]  # fmt: skip
    topics = {tuple(line.split()[i] for i in (0, 3, 4)) for line in lines[3:]}
    assert topics == {
        ("topic", name, "recovery-points")
        for name in ("orders", "other", "__consumer_offsets", "__share_group_state")
    }
    assert start_of(disk) == []


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        MANIFEST, "__cluster_metadata-0", "__consumer_offsets-0", "__share_group_state-0",
        "meta.properties", "log-start-offset-checkpoint",
    ],
)  # fmt: skip
def test_what_everything_needs_is_refused_by_name_when_it_is_missing(
    name: str, clean: bool
) -> None:
    disk = filled(clean=clean)
    disk.remove(name)
    for _ in range(2):
        before = contents(disk)
        with pytest.raises(CorruptLog, match=rf"^{name}: .* missing.*headrace repair"):
            start_of(disk)
        assert contents(disk) == before or clean, "nothing is begun anew"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("name", ["__cluster_metadata-0", *JOURNALS])
def test_a_journal_without_its_recovery_point_is_refused(name: str, clean: bool) -> None:
    disk = filled(clean=clean)
    disk.remove(f"{name}/recovery-point")
    with pytest.raises((CorruptLog, OSError), match=f"{name}/recovery-point: the file is missing"):
        start_of(disk)
    assert not disk.exists(f"{name}/recovery-point")


def contents(disk: MemoryDisk) -> dict[str, bytes]:
    return dict(all_files(disk))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("orders-0", "orders-0: the folder of the partition is missing"),
        ("orders-0/partition.metadata", "orders-0/partition.metadata: the file is missing"),
        (f"orders-0/{0:020d}.log", "the last segment of the log is missing"),
        ("orders-0/recovery-point", "orders-0/recovery-point: the file is missing"),
    ],
)
def test_a_partition_is_refused_by_name_and_others_are_served(
    path: str, line: str, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk = filled(clean=clean)
    disk.remove(path)

    async def go() -> None:
        async with Life(disk) as life:
            with pytest.raises(OSError, match="orders-0 is refused: "):
                life.values("orders", 0)
            assert life.values("other", 0) == [b"0", b"1", b"2"]
            await life.put("orders", 1, b"3")
            trouble = life.services.trouble() or ""
            assert trouble.startswith("orders-0 is refused: orders-0")
            gauge = next(
                samples for family, samples in _topics(life.services)
                if family.name == "headrace_partitions_refused"
            )  # fmt: skip
            assert [sample and sample.value for sample in gauge] == [1]
            await life.services.write_probe.probe()
            assert life.services.trouble() == trouble

    run(go)
    errors = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert len(errors) == 1, errors
    assert line in errors[0]
    assert "headrace repair" in errors[0]
    (again,) = start_of(disk)
    assert line in again, "an orderly stop does not make it good"


def test_a_last_segment_that_is_missing_with_its_recovery_point_is_noticed() -> None:
    disk = filled(clean=False)

    async def roll() -> None:
        async with Life(disk) as life:
            life.partition("other", 0).log.roll()
            await life.put("other", 0, b"3")

    run(roll)
    for path in (CLEAN_MARK, "other-0/recovery-point", f"other-0/{3:020d}.log"):
        disk.remove(path)
    (line,) = start_of(disk)
    assert line.startswith("other-0: other-0/recovery-point: the file is missing")


def test_a_power_cut_amid_the_making_of_logs_takes_no_recovery_point_that_must_exist() -> None:
    async def make(disk: MemoryDisk) -> None:
        async with Life(disk) as life:
            await life.create("orders")
            await life.put("orders", 0, b"0")
            await life.put("orders", 1, b"1")

    whole = FaultyDisk("whole", lambda: None)
    run(lambda: make(whole))
    for operations in range(4, whole.operations, 5):
        disk = FaultyDisk(f"cut {operations}", lambda: None)
        disk.die_after(operations)
        with contextlib.suppress(OSError, StorageFault):
            run(functools.partial(make, disk))
        disk.revive(power_cut=True)
        assert start_of(disk) == [], operations
    assert start_of(whole) == []


def test_a_missing_mark_of_an_orderly_stop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    disk = filled()
    assert CLEAN_MARK not in caplog.text, "a new folder has none"
    start_of(disk)
    assert CLEAN_MARK not in caplog.text
    disk.remove(CLEAN_MARK)
    start_of(disk)
    assert caplog.text.count(f"{CLEAN_MARK}: the file is missing, as after a crash") == 1


@pytest.mark.parametrize("clean", [True, False])
def test_a_topic_of_an_earlier_release_gets_its_mark(clean: bool) -> None:
    disk = filled(clean=clean)
    disk.remove("orders-1/recovery-point")
    text = small_files.read_file(disk, MANIFEST).text.replace(" recovery-points", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_files, "_FORMATS", {})
        disk.write(MANIFEST, small_files.sealed(MANIFEST, text))
    assert b"format=1" in disk.read(MANIFEST)
    assert start_of(disk) == []
    assert all(topic.has_points for topic in Manifest(disk).topics.values())
    assert disk.exists("orders-1/recovery-point")
    assert b"format=2" in disk.read(MANIFEST)


@pytest.mark.parametrize("clean", [True, False])
def test_a_partition_without_any_segment_is_refused(clean: bool) -> None:
    """Also where the recovery point is gone, which tells of them after a kill."""
    disk = filled(clean=clean)
    for name in disk.list("orders-0"):
        if name != "partition.metadata":
            disk.remove(f"orders-0/{name}")
    for _ in range(2):
        (line,) = start_of(disk)
        assert re.match(r"orders-0: .*headrace repair", line), line


def test_a_refused_topic_can_be_deleted_and_created_again() -> None:
    disk = filled()
    disk.remove("orders-0")

    async def go() -> None:
        async with Life(disk) as life:
            await life.services.topics.delete(DeleteTopic(IDS["orders"]))
            await life.services.topics.create(CreateTopic("orders", UUID(int=30), 2, {}))
            assert life.values("orders", 0) == []
            await life.put("orders", 0, b"new")

    run(go)
    assert start_of(disk) == []


# ---- damaged small files


@pytest.mark.parametrize("clean", [True, False])
def test_a_flipped_bit_of_the_catalogue_removes_no_topic(clean: bool) -> None:
    """A start that cut the catalogue there renamed the folders of the topics that it lost."""
    disk = filled(clean=clean)
    path = f"__cluster_metadata-0/{0:020d}.log"
    point, good = "__cluster_metadata-0/recovery-point", disk.read(path)
    end = len(good) if clean else read_claim(disk, "__cluster_metadata-0")[1].size
    assert end > len(good) // 2
    for at in range(0, end, 11):
        disk.write(path, flipped(good, at, at % 8))
        before = contents(disk)
        with pytest.raises(CorruptLog, match=f"^{path} at byte .*headrace repair"):
            start_of(disk)
        before[point] = disk.read(point)  # written again, as the refusal rests on it
        assert contents(disk) == before
    disk.write(path, good)
    assert start_of(disk) == []


@pytest.mark.parametrize(
    "path",
    [MANIFEST, "meta.properties", "log-start-offset-checkpoint", "orders-0/partition.metadata"],
)
def test_every_damage_to_a_small_file_is_refused_by_name(path: str) -> None:
    disk = filled()
    good, other = disk.read(path), disk.read("other-0/partition.metadata")
    damaged = [b"", good[:-1], good[: len(good) // 2], bytes(len(good)), good + b"\n", other]
    damaged += [flipped(good, at, at % 8) for at in range(0, len(good), 7)]
    for data in damaged:
        disk.write(path, data)
        try:
            found = start_of(disk)
        except CorruptLog as error:
            found = [str(error)]
        assert len(found) == 1, data
        assert path in found[0]
    disk.write(path, good)
    assert start_of(disk) == []


def flipped(data: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)


def test_files_of_a_newer_release_are_refused_untouched() -> None:
    disk = filled()
    texts = {
        "meta.properties": "version=99\ncluster.id=x\nnode.id=1\n",
        "log-start-offset-checkpoint": "3\n0\n",
        "orders-0/partition.metadata": "version: 9\ntopic_id: AAAAAAAAAAAAAAAAAAAAFQ\n",
    }
    for path, text in texts.items():
        good = disk.read(path)
        disk.write(path, small_files.sealed(path, text))
        newer = disk.read(path)
        try:
            found = start_of(disk)
        except NewerFormatError as error:
            found = [str(error)]
        assert re.fullmatch(
            rf"(orders-0: )?{path}: format version \d+ was written by a newer Headrace; "
            "upgrade Headrace to open this data folder",
            "".join(found),
        )
        assert disk.read(path) == newer
        disk.write(path, good)


def test_a_manifest_of_a_newer_release_is_refused_untouched() -> None:
    disk = filled()
    text = small_files.read_file(disk, MANIFEST).text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_files, "FORMAT", 9)
        disk.write(MANIFEST, small_files.sealed(MANIFEST, text))
    before = contents(disk)
    with pytest.raises(NewerFormatError, match=f"^{MANIFEST}: format version 9 was written by a n"):
        start_of(disk)
    assert contents(disk) == before


@pytest.mark.parametrize("path", JOURNALS)
def test_records_of_a_newer_release_stop_the_start_untouched(path: str) -> None:
    disk = MemoryDisk()

    async def go() -> None:
        async with Life(disk) as life:
            key = b"\0\0" + b"\0\1g" + bytes(20) if "share" in path else b"\0\2\0\1g"
            record = Record(0, 1 << 42, key, b"\0\x4d" + bytes(50))  # too young to be pruned
            life.partition(path[:-2], 0).append_records([record])

    async def start() -> None:
        life = Life(disk)
        try:
            await life.services.start()
        finally:
            await life.services.close()  # as a broker does that cannot start

    run(go)
    before = contents(disk)
    for _ in range(2):
        with pytest.raises(JournalDamaged, match=r"version 77 .*; upgrade Headrace") as refusal:
            run(start)
        assert "\n" not in str(refusal.value)
        assert contents(disk) == before | {CLOCK: disk.read(CLOCK)}, "the time may be a later one"


def test_a_record_of_a_newer_catalogue_stops_the_start_untouched() -> None:
    disk = filled()

    async def go() -> None:
        async with Life(disk) as life:
            data = bytearray(batches.build([Record(0, 0, None, b"\1\x63\0new")]))
            life.services.topics.journal_log.append(data, batches.headers(data))

    run(go)
    before = contents(disk)
    with pytest.raises(JournalDamaged, match=r"record type 99 .*; upgrade Headrace") as refusal:
        start_of(disk)
    assert "\n" not in str(refusal.value)
    assert contents(disk) == before


def test_a_mark_of_a_newer_release_is_refused_and_a_newer_time_is_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = filled()
    for path in (CLEAN_MARK, CLOCK):
        text = small_files.read_file(disk, path).text
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(small_files, "FORMAT", 9)
            disk.write(path, small_files.sealed(path, text))
        if path == CLEAN_MARK:
            before = contents(disk)
            with pytest.raises(NewerFormatError, match=f"^{CLEAN_MARK}: format version 9"):
                start_of(disk)
            assert contents(disk) == before
            disk.remove(CLEAN_MARK)
    assert start_of(disk) == []
    assert f"{CLOCK}: ignored: {CLOCK}: format version 9 was written by a newer" in caplog.text


def test_damage_in_a_log_and_in_a_journal_after_a_kill_is_refused_file_by_file() -> None:
    """A bit of each, amid what was acknowledged; batches follow both."""
    disk, groups = MemoryDisk(), ("a", "b", "c", "d")
    damaged = {f"orders-0/{0:020d}.log": 3000, f"__consumer_offsets-0/{0:020d}.log": 300}

    def client(life: Life) -> Client:
        return Client(Server(life.services, Dispatcher(life.services)))

    async def fill() -> None:
        life = await Life(disk).__aenter__()
        await life.create("orders")
        for number in range(100):
            await life.put("orders", 0, b"%d" % number)
        for offset in (40, 90):
            part = {
                "partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1,
                "committed_metadata": "",
            }  # fmt: skip
            for group in groups:
                await client(life).call(
                    8, 8, group_id=group, generation_id_or_member_epoch=-1, member_id="",
                    group_instance_id=None, topics=[{"name": "orders", "partitions": [part]}],
                )  # fmt: skip
        disk.kill()
        with contextlib.suppress(OSError, StorageFault):
            await life.services.close()

    async def require_commits() -> None:
        async with Life(disk) as life:
            request = [{"group_id": group, "topics": None} for group in groups]
            response = await client(life).call(9, 8, groups=request, require_stable=False)
            offsets = [one.topics[0].partitions[0].committed_offset for one in response.groups]
            assert offsets == [90] * len(groups)

    run(fill)
    good = {path: disk.read(path) for path in damaged}
    for path, position in damaged.items():
        assert position < len(good[path]) // 2
        disk.write(path, flipped(good[path], position, 0))
    topic, journal = damaged
    before = contents(disk)
    with pytest.raises(CorruptFileError, match=rf"^{journal} at byte .*a valid batch follows"):
        start_of(disk)
    assert contents(disk) == before | {CLOCK: disk.read(CLOCK)}, "neither file is changed"
    disk.write(journal, good[journal])
    (line,) = start_of(disk)
    assert re.match(rf"orders-0: {topic} at byte .* a valid batch follows .*headrace repair", line)
    assert disk.read(topic) == before[topic]
    run(require_commits)
    disk.write(topic, good[topic])
    assert start_of(disk) == []


@pytest.mark.parametrize("path", JOURNALS)
def test_damage_in_a_group_journal_after_an_orderly_stop_is_one_line(
    tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with headrace.Broker(tmp_path, settings={"offsets.topic.num.partitions": 1}) as broker:
        assert broker.bootstrap_servers
    (tmp_path / path / f"{0:020d}.log").write_bytes(b"?" * 100)
    with pytest.raises(
        StartError, match=rf"cannot open the data folder .*{path}/.*repair"
    ) as refusal:
        headrace.Broker(tmp_path, settings={"offsets.topic.num.partitions": 1}).start()
    assert "\n" not in str(refusal.value)
    assert "are served" not in caplog.text, "the broker does not start"


# ---- what cannot be read


def test_a_folder_in_the_place_of_a_file_is_one_line(tmp_path: Path) -> None:
    with headrace.Broker(tmp_path) as broker:
        assert broker.bootstrap_servers
    for name in ("meta.properties", MANIFEST, CLEAN_MARK):
        path = tmp_path / name
        data = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        path.mkdir()
        if name == CLEAN_MARK:
            with headrace.Broker(tmp_path) as broker:
                assert broker.bootstrap_servers, "a mark that cannot be read counts for nothing"
            continue
        with pytest.raises(StartError, match=f"{name}: the file cannot be read: Is a directory"):
            headrace.Broker(tmp_path).start()
        path.rmdir()
        assert data is not None
        path.write_bytes(data)


def test_nobody_else_may_read_a_new_data_folder(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with headrace.Broker(tmp_path / "data") as broker:
            assert broker.bootstrap_servers
    finally:
        os.umask(before)
    modes = {
        (path.is_dir(), stat.S_IMODE(path.stat().st_mode))
        for path in [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    }
    assert modes == {(True, 0o700), (False, 0o600)}


# ---- deletions


class WatchedDisk(MemoryDisk):
    """Keeps a copy of itself as it is before each change, once `states` is a list."""

    states: list[MemoryDisk] | None = None

    def check(self, operation: str) -> None:
        super().check(operation)
        if self.states is not None and operation in ("remove", "rename", "write", "append"):
            self.states.append(copied(self))


def copied(disk: MemoryDisk) -> MemoryDisk:
    copy = MemoryDisk()
    for path, content in disk._files.items():
        copy.write(path, bytes(content.data))
    return copy


def test_a_kill_amid_a_deletion_leaves_no_folder_behind() -> None:
    disk = WatchedDisk()

    async def go() -> None:
        life = await Life(disk).__aenter__()
        for name in IDS:
            await life.create(name)
            await life.put(name, 0, b"0")
        partition_metadata.write(disk, "foreign-0", "BgAAAAAAAAAAAAAAAAAAAA")
        disk.states = []
        await life.services.topics.delete(DeleteTopic(IDS["orders"]))
        disk.states.append(copied(disk))
        disk.kill()
        with contextlib.suppress(OSError, StorageFault):
            await life.services.close()

    run(go)
    assert disk.states is not None
    deleted = []
    for state in disk.states:
        assert start_of(state) == []
        is_deleted = not any(one.name == "orders" for one in Manifest(state).topics.values())
        left = {name for name in state.list("") if name.startswith("orders")}
        assert left == (set() if is_deleted else {"orders-0", "orders-1"})
        assert "other-0" in state.list("")
        assert "foreign.BgAAAAAAAAAAAAAAAAAAAA-0-stray" in state.list(""), "kept: no deletion's"
        deleted.append(is_deleted)
    assert deleted == sorted(deleted)
    assert {False, True} <= set(deleted)


def test_a_topic_that_could_not_be_deleted_is_listed_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = filled()

    async def go() -> None:
        async with Life(disk) as life:
            refused = Refused(Why.INVALID_REQUEST, "no")

            async def refuse(command: object) -> Refused:
                assert command == DeleteTopic(IDS["orders"])
                return refused

            monkeypatch.setattr(life.services.topics._catalog, "ask", refuse)
            assert await life.services.topics.delete(DeleteTopic(IDS["orders"])) is refused
            monkeypatch.undo()

    run(go)
    assert not any(topic.is_deleting for topic in Manifest(disk).topics.values())


@pytest.mark.parametrize("is_deleting", [True, False])
def test_a_missing_folder_of_a_topic_whose_deletion_was_not_finished_is_a_warning(
    is_deleting: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk = filled()
    if is_deleting:
        manifest = Manifest(disk)
        ((topic_id, topic),) = [
            (id_, one) for id_, one in manifest.topics.items() if one.name == "orders"
        ]
        manifest.begin_deletion(topic_id, topic)
    for name in disk.list("orders-0"):
        disk.remove(f"orders-0/{name}")
    disk.remove("orders-0")
    refused = start_of(disk)
    warning = "orders-0: the folder of the partition is missing; created empty"
    if is_deleting:
        assert refused == []
        assert warning in caplog.messages
        assert not any(one.is_deleting for one in Manifest(disk).topics.values())
    else:
        assert ["orders-0: the folder of the partition is missing" in one for one in refused] == [
            True
        ]
        assert warning not in caplog.messages


# ---- upgrades


def downgraded(disk: MemoryDisk) -> None:
    """Make a folder one of format 0."""
    disk.remove(MANIFEST)
    paths = [f"{folder}/{name}" for folder in disk.list("") for name in disk.list(folder)]
    for path in [*disk.list(""), *paths]:
        if path.endswith((".checksums", "recovery-point")):
            disk.remove(path)
        elif disk.exists(path) and not disk.list(path):
            data = disk.read(path)
            if b"#headrace" in data:
                disk.write(path, data[: data.index(b"#headrace")])
    if disk.exists(CLEAN_MARK):
        disk.write(CLEAN_MARK, b'{"version":0,"brokerEpoch":-1}')


@pytest.mark.parametrize("clean", [True, False])
def test_a_format_0_folder_is_upgraded_in_place(clean: bool) -> None:
    disk = filled(clean=clean)
    downgraded(disk)

    async def go() -> None:
        async with Life(disk) as life:
            assert life.values("orders", 0) == [b"1", b"2"] or clean
            assert life.partition("orders", 0).start_offset == 1
            assert life.values("other", 0) == [b"0", b"1", b"2"]

    run(go)
    manifest = Manifest(disk)
    assert not manifest.is_upgrading
    assert len(manifest.topics) == 4
    for path in SMALL_FILES:
        assert small_files.read_file(disk, path).is_sealed
    assert start_of(disk) == []
    disk.remove(MANIFEST)
    with pytest.raises(CorruptFileError, match=rf"^{MANIFEST}: the file is missing"):
        start_of(disk)


def test_an_upgrade_goes_on_wherever_it_was_interrupted() -> None:
    files = all_files(format_0())
    for operations in count():
        disk = FaultyDisk("upgrade", lambda: None)
        for path, data in files:
            disk.write(path, data)
        disk.die_after(operations)
        with contextlib.suppress(OSError, StorageFault, AssertionError):  # of the dying one
            start_of(disk)
        was_interrupted = disk.dead
        disk.revive(power_cut=False)
        assert start_of(disk) == [], operations
        assert not Manifest(disk).is_upgrading
        if not was_interrupted:
            break
    assert operations > 30


def format_0() -> MemoryDisk:
    disk = filled()
    downgraded(disk)
    return disk


def all_files(disk: MemoryDisk) -> list[tuple[str, bytes]]:
    paths = [
        path
        for name in disk.list("")
        for path in ([f"{name}/{one}" for one in disk.list(name)] or [name])
    ]
    return [(path, disk.read(path)) for path in paths]


# ---- crashes


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_crash_amid_creating_and_deleting_topics_is_recovered_from(durability: str) -> None:
    """At each operation of the disk; nothing that was answered is missing, and nothing refused."""
    for operations in count():
        answered: list[str] = []
        if not crashed(operations, answered, durability):
            break
    assert operations > 40
    assert answered == ["orders", "0", "1", "other", "2", "gone", "stopped"]


def crashed(operations: int, answered: list[str], durability: str) -> bool:
    """Die after so many operations and look at what is there; whether it came to that."""
    disk = FaultyDisk("topics", lambda: None)
    disk.die_after(operations)
    with contextlib.suppress(OSError, StorageFault):
        run(lambda: changes(disk, answered, durability))
    was_killed = disk.dead
    disk.revive(power_cut=durability == "fsync")
    run(lambda: still_there(disk, answered, operations))
    return was_killed


async def changes(disk: MemoryDisk, answered: list[str], durability: str) -> None:
    life = Life(disk, durability=durability)
    try:
        await life.services.start()
        await life.create("orders")
        answered.append("orders")
        for number in range(2):
            await life.put("orders", 1, b"%d" % number)
            answered.append(str(number))
        await life.create("other")
        answered.append("other")
        await life.put("other", 0, b"2")
        answered.append("2")
        await life.services.topics.delete(DeleteTopic(IDS["other"]))
        answered.append("gone")
    finally:
        await life.services.close()
    answered.append("stopped")


async def still_there(disk: MemoryDisk, answered: list[str], operations: int) -> None:
    async with Life(disk) as life:
        topics = life.services.catalog.topics
        assert life.services.trouble() is None, operations
        if "orders" in answered:
            assert life.partition("orders", 0).log.end_offset == 0
            values = life.values("orders", 1)
            assert values[: answered.count("0") + answered.count("1")] == [
                one.encode() for one in answered if one in {"0", "1"}
            ]
        if "2" in answered and "gone" not in answered and "other" in topics:
            assert life.values("other", 0) == [b"2"]
        if "gone" in answered:
            assert "other" not in topics


def test_a_power_cut_does_not_bring_back_a_deleted_topic() -> None:
    """Its records, and what groups knew of it, are gone for good (headrace.durability=os)."""
    disk, topics = MemoryDisk(), list[str]()

    async def first() -> None:
        async with Life(disk) as life:
            await life.create("orders")
            await life.services.topics.delete(DeleteTopic(IDS["orders"]))
            disk.crash(0.0)

    async def second() -> None:
        async with Life(disk) as life:
            topics.extend(life.services.catalog.topics)

    with contextlib.suppress(OSError, StorageFault):
        run(first)
    run(second)
    assert "orders" not in topics


def test_a_topic_is_deleted_although_the_catalogue_cannot_be_synced() -> None:
    disk = MemoryDisk()

    async def go() -> None:
        async with Life(disk) as life:
            await life.create("orders")
            disk.failing.add("sync")
            await life.services.topics.delete(DeleteTopic(IDS["orders"]))
            disk.failing.clear()
            assert not disk.exists("orders-0")
            with pytest.raises(StorageFault):  # the journal is written once more, and read again
                await life.create("other")
            await rebuilt(life.services.topics.journal)
            await life.create("other")
            assert "orders" not in life.services.catalog.topics

    run(go)


# ---- producer ids


def test_producer_ids_are_not_given_out_twice_after_a_power_cut() -> None:
    disk, given = MemoryDisk(), []

    async def first() -> None:
        async with Life(disk) as life:
            await life.create("orders")
            given.append(await life.services.topics.next_producer_id())
            disk.crash(0.0)

    async def second() -> None:
        async with Life(disk) as life:
            assert life.services.catalog.next_producer_id == given[0] + 1000, "it was synced"
            assert await life.services.topics.next_producer_id() >= given[0] + 1000

    with contextlib.suppress(OSError, StorageFault):
        run(first)
    run(second)


@pytest.mark.parametrize(
    "unmark",
    [
        pytest.param(remove_clean_mark, id="a crash"),
        pytest.param(
            lambda disk: remove_from_clean_mark(disk, "__cluster_metadata-0"),
            id="a repair of the catalogue",
        ),
    ],
)
def test_ids_seen_in_the_logs_are_not_given_out_again(unmark: Callable[[Disk], None]) -> None:
    disk = MemoryDisk()

    async def first() -> None:
        async with Life(disk) as life:
            await life.create("orders")
            partition = life.partition("orders", 0)
            for producer_id in (7_500, 1 << 50):  # of a lost block; invented by a client
                data = bytearray(
                    batches.build(
                        [Record(0, 0, None, b"v")], producer_id=producer_id, producer_epoch=0,
                        base_sequence=0,
                    )
                )  # fmt: skip
                partition.append(data, batches.headers(data))

    async def second() -> int:
        async with Life(disk) as life:
            return await life.services.topics.next_producer_id()

    run(first)
    unmark(disk)
    assert run(second) == 7_501
    assert run(second) == 8_501, "an orderly stop skips nothing"
    unmark(disk)
    assert run(second) == 10_501, "any other skips a block"
