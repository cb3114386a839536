"""Backups: complete, consistent under load, incremental, and never of damaged files."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tests.campaign.data import Folder, disk_of
from tests.campaign.judge import Judge, observe
from tests.folder.conftest import Write

import headrace
from headrace.broker import topics
from headrace.broker.partition import Partition
from headrace.broker.services import StartError
from headrace.client.connection import Cluster
from headrace.client.data_folder_cut import cut_data_folder
from headrace.client.errors import BrokerError
from headrace.client.topics import create_topic, delete_topic
from headrace.folder import backup
from headrace.folder.backup import Made
from headrace.folder.check import check
from headrace.folder.lock import FolderError
from headrace.folder.overlay import OverlayDisk
from headrace.folder.store import Store, StoreError
from headrace.log import small_files
from headrace.log.api import CorruptFileError
from headrace.log.manifest import RESTORING
from headrace.log.opening import Opened, Opening
from headrace.log.verify import verify_file

TIMEOUT = 30.0
SETTINGS = {"log.segment.bytes": "20000", "headrace.durability": "os"}


def never(name: str) -> None:
    raise AssertionError(f"a cut {name} is requested, though no broker runs")


def quiet(count: int) -> None:
    """Progress that goes nowhere."""
    assert count >= 0


def made(folder: Path, store: Store, request_cut: Callable[[str], None] = never) -> Made:
    return backup.make(folder, store, request_cut, quiet)


@contextmanager
def cutting(broker: headrace.Broker) -> Iterator[Callable[[str], None]]:
    """Requests cuts from a broker."""
    with Cluster(broker.bootstrap_servers) as cluster:
        yield lambda name: cut_data_folder(cluster, name)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "backups")


def restored(target: Path) -> dict[str, bytes]:
    """The files of a folder."""
    paths = (path for path in target.rglob("*") if path.is_file())
    return {str(path.relative_to(target)): path.read_bytes() for path in paths}


def produced(broker: headrace.Broker, topic: str, count: int, first: int = 0) -> None:
    """Records of 100 bytes, all of them acknowledged."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number + bytes(90), partition=0)
    assert producer.flush(30) == 0


def read(folder: Path, topic: str) -> int:
    """How many records a broker on a folder serves of a topic."""
    with headrace.Broker(data_dir=folder) as broker:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader"})
        try:
            _, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
            return int(high)
        finally:
            consumer.close()


# ---- of a stopped broker


def test_a_restored_folder_is_the_one_that_was_backed_up(
    stopped: Folder, write: Write, store: Store, tmp_path: Path
) -> None:
    done = made(write(stopped.files), store)
    assert not done.backup.online
    target = tmp_path / "restored"
    assert backup.restore(store, None, target, quiet).id == done.backup.id
    assert restored(target) == stopped.files
    assert check(target, quiet).is_clean
    assert {path.stat().st_mode & 0o77 for path in (target, *target.rglob("*"))} == {0}


def test_a_second_backup_stores_what_is_new_and_reads_no_unchanged_segment(
    stopped: Folder, write: Write, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(stopped.files)
    made(root, store)
    verified: list[str] = []

    def noted(disk: OverlayDisk, path: str, size: int) -> Iterator[int]:
        verified.append(path)
        return verify_file(disk, path, size)

    monkeypatch.setattr(backup, "verify_file", noted)
    again = made(root, store)
    assert again.new_bytes == 0
    assert [path for path in verified if path.endswith(".log")] == [
        path for path in sorted(stopped.files)
        if path.endswith(".log") and path.replace(".log", ".checksums") not in stopped.files
    ]  # fmt: skip
    assert store.ids() == sorted({again.backup.id, *store.ids()})


def test_a_damaged_file_is_named_and_no_backup_made(
    stopped: Folder, write: Write, store: Store
) -> None:
    root = write(stopped.files)
    made(root, store)
    path = "orders-0/00000000000000000010.log"
    content = bytearray(stopped.files[path])
    content[300] ^= 1
    (root / path).write_bytes(content)
    (root / path.replace(".log", ".checksums")).unlink()
    with pytest.raises(CorruptFileError, match=path):
        made(root, store)
    assert len(store.ids()) == 1


FIRST, SECOND = (f"orders-0/{base:020d}.log" for base in (5, 10))


def with_replacement(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return a folder that was left amid a compaction of two segments, which had put them away."""
    left = dict(files)
    left[f"{FIRST}.swap"] = files[FIRST] + files[SECOND]
    for path in (FIRST, SECOND):
        left[f"{path}.deleted"] = left.pop(path)
        del left[f"{path.removesuffix('.log')}.checksums"]
    return left


def require_all_records(folder: Path, stopped: Folder) -> None:
    """Check that a broker on a folder serves what it serves on the one that stopped in order."""
    found, sound = (
        observe(disk_of(files), stopped).account for files in (restored(folder), stopped.files)
    )
    assert found is not None
    assert sound is not None
    assert found["log", "orders-0"] == sound["log", "orders-0"]


def test_a_replacement_that_waits_for_its_name_is_backed_up(
    stopped: Folder, write: Write, store: Store, tmp_path: Path
) -> None:
    made(write(with_replacement(stopped.files)), store)
    target = tmp_path / "restored"
    backup.restore(store, None, target, quiet)
    assert check(target, quiet).is_clean
    require_all_records(target, stopped)


def test_no_backup_is_made_inside_the_data_folder(stopped: Folder, write: Write) -> None:
    root = write(stopped.files)
    for target in (root, root / "backups", root / "orders-0" / ".." / "backups"):
        with pytest.raises(StoreError, match="name a folder outside"):
            made(root, Store(target))
    assert restored(root) == stopped.files


def test_no_file_with_another_name_is_a_segment(
    stopped: Folder, write: Write, store: Store
) -> None:
    root = write({**stopped.files, "orders-0/mine.log": b"mine"})
    assert check(root, quiet).is_clean
    assert "orders-0/mine.log" in made(root, store).backup.files


def test_a_damaged_replacement_is_named_and_no_backup_made(
    stopped: Folder, write: Write, store: Store
) -> None:
    files = with_replacement(stopped.files)
    files[f"{FIRST}.swap"] = files[f"{FIRST}.swap"][:-1] + b"?"
    with pytest.raises(CorruptFileError, match=f"{FIRST}.swap"):
        made(write(files), store)
    assert not store.ids()


def test_a_replacement_of_a_log_that_is_not_open_is_backed_up(
    stopped: Folder, write: Write, store: Store, tmp_path: Path
) -> None:
    root, target = write(with_replacement(stopped.files)), tmp_path / "restored"
    with headrace.Broker(data_dir=root) as broker, cutting(broker) as request_cut:
        assert made(root, store, request_cut).backup.online
    backup.restore(store, None, target, quiet)
    assert check(target, quiet).is_clean
    require_all_records(target, stopped)


def test_a_log_that_a_thread_opens_meanwhile_is_backed_up(
    stopped: Folder, write: Write, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening it gives the replacement its name, between a listing of the folder and a look."""
    root, target = write(with_replacement(stopped.files)), tmp_path / "restored"
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    open_log, listing, wait_for_opening = Opening.open, Path.iterdir, Partition.opening_ended

    def opening(log: Opening, start_offset: int, **settings: Any) -> Opened:
        is_watched = log._folder == "orders-0"
        if is_watched:
            begun.set()
            assert go_on.wait(TIMEOUT)
        opened = open_log(log, start_offset, **settings)
        if is_watched:
            ended.set()
        return opened

    def listed(folder: Path) -> Iterator[Path]:
        found = list(listing(folder))
        if folder == root / "orders-0":
            go_on.set()
            assert ended.wait(TIMEOUT)
        return iter(found)

    async def waiting(partition: Partition) -> None:
        go_on.set()
        await wait_for_opening(partition)

    monkeypatch.setattr(Opening, "open", opening)
    monkeypatch.setattr(Path, "iterdir", listed)
    monkeypatch.setattr(Partition, "opening_ended", waiting)
    with headrace.Broker(data_dir=root) as broker, cutting(broker) as request_cut:
        client = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        first: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # it has no types
        found = client.list_offsets({TopicPartition("orders", 0): first})
        assert begun.wait(TIMEOUT)
        assert made(root, store, request_cut).backup.online
        assert {one.result().offset for one in found.values()} == {0}
    backup.restore(store, None, target, quiet)
    assert check(target, quiet).is_clean
    require_all_records(target, stopped)


def test_a_backup_is_deleted_with_what_no_other_has(
    stopped: Folder, killed: Folder, write: Write, store: Store
) -> None:
    root = write(stopped.files)
    first = made(root, store)
    (root / "meta.properties").write_bytes(killed.files["meta.properties"])
    second = made(root, store)
    with store.locked(exclusive=True):
        store.delete(first.backup.id)
    assert store.ids() == [second.backup.id]
    assert backup.verify(store, second.backup.id, quiet).files


# ---- restoring


def test_a_restore_needs_an_empty_folder(
    stopped: Folder, write: Write, store: Store, tmp_path: Path
) -> None:
    made(write(stopped.files), store)
    target = tmp_path / "full"
    target.mkdir()
    (target / "file").write_bytes(b"mine")
    with pytest.raises(FolderError, match="is not empty"):
        backup.restore(store, None, target, quiet)
    assert [path.name for path in target.iterdir()] == ["file"]


_NOT_ENDED = (
    r"cannot open the data folder .*restored: headrace.manifest: the restore of this data folder "
    r"did not end; run `headrace restore` with it again, or with another backup"
)


class KilledError(BaseException):
    """Stands for SIGKILL."""


def test_a_restore_that_was_killed_anywhere_is_begun_again(
    stopped: Folder, write: Write, store: Store, tmp_path: Path
) -> None:
    made(write(stopped.files), store)
    target, steps = tmp_path / "restored", 0
    sizes = list[int]()
    backup.restore(store, None, tmp_path / "whole", sizes.append)
    amid_manifest = 100 + len(sizes)

    def kill(count: int) -> None:
        nonlocal steps
        steps += 1
        if steps in (1, 2, 30, 100, amid_manifest):
            raise KilledError

    for _ in range(5):
        with pytest.raises(KilledError):
            backup.restore(store, None, target, kill)
        with pytest.raises(FolderError, match="did not end; run `headrace restore`"):
            check(target, quiet)
        with pytest.raises(StartError, match=_NOT_ENDED):
            headrace.Broker(target).start()
    backup.restore(store, None, target, kill)
    assert restored(target) == stopped.files
    with pytest.raises(FolderError, match="is not empty"):
        backup.restore(store, None, target, quiet)


def test_a_restore_that_was_killed_behind_the_manifest_is_over(
    stopped: Folder, write: Write, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A further restore removes what is in a folder without a manifest, so a mark must not stay."""
    made(write(stopped.files), store)
    target, unlink = tmp_path / "restored", Path.unlink

    def kill(path: Path, missing_ok: bool = False) -> None:
        if path.name == RESTORING:
            raise KilledError
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", kill)
        with pytest.raises(KilledError):
            backup.restore(store, None, target, quiet)
    assert (target / RESTORING).exists()
    with headrace.Broker(target):
        assert not (target / RESTORING).exists()
    (target / "headrace.manifest").unlink()
    with pytest.raises(FolderError, match="is not empty"):
        backup.restore(store, None, target, quiet)


def test_damage_to_a_backup_is_found_before_a_broker_sees_it(
    stopped: Folder, write: Write, store: Store, tmp_path: Path
) -> None:
    done = made(write(stopped.files), store)
    digest = done.backup.files["orders-0/00000000000000000010.log"].digest
    path = tmp_path / "backups" / "objects" / digest[:2] / digest
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match=f"{digest}: the checksum does not match"):
        backup.verify(store, None, quiet)
    target = tmp_path / "restored"
    with pytest.raises(StoreError, match=digest):
        backup.restore(store, None, target, quiet)
    with pytest.raises(FolderError, match="did not end"):
        check(target, quiet)  # an incomplete folder does not pass for a whole one


@pytest.mark.parametrize("change", ["flip", "newer", "escape"])
def test_a_list_that_cannot_be_trusted_is_refused(
    stopped: Folder, write: Write, store: Store, tmp_path: Path, change: str
) -> None:
    done = made(write(stopped.files), store)
    name = f"backups/{done.backup.id}.backup"
    path = tmp_path / "backups" / name
    content = path.read_bytes()
    if change == "flip":
        path.write_bytes(content.replace(b"online 0", b"online 1"))
    elif change == "escape":
        text = small_files.parsed(name, content).text.replace(" meta.properties", " ../meta")
        path.write_bytes(small_files.sealed(name, text))
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(small_files, "FORMAT", 99)
            path.write_bytes(small_files.sealed(name, "anything\n"))
    expected = {"flip": "checksum", "newer": "newer Headrace", "escape": "leads out"}[change]
    with pytest.raises(StoreError, match=expected):
        backup.restore(store, None, tmp_path / "restored", quiet)
    assert not (tmp_path / "restored").exists() or not any((tmp_path / "restored").iterdir())


def test_unknown_backups_and_other_folders_are_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no backups"):
        backup.restore(store, None, tmp_path / "r", quiet)
    store.create()
    with pytest.raises(StoreError, match="there is no backup yet"):
        backup.restore(store, None, tmp_path / "r", quiet)
    with pytest.raises(StoreError, match="there is no backup nope"):
        backup.restore(store, "nope", tmp_path / "r", quiet)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="is not empty"):
        Store(tmp_path / "other").create()


@pytest.mark.parametrize("topic", [".hidden", "a.new", "b.deleted", "c-stray", "d-delete"])
def test_topics_whose_names_look_like_leftovers_are_backed_up(
    topic: str, store: Store, tmp_path: Path
) -> None:
    with headrace.Broker(data_dir=tmp_path / "data", settings=SETTINGS) as broker:
        with Cluster(broker.bootstrap_servers) as cluster:
            create_topic(cluster, topic, 1)
        produced(broker, topic, 100)
    assert check(tmp_path / "data", quiet).findings == ()
    made(tmp_path / "data", store)
    backup.restore(store, None, tmp_path / "target", quiet)
    assert read(tmp_path / "target", topic) == 100


# ---- while the broker runs


def test_a_running_broker_is_backed_up_with_all_that_it_acknowledged(
    store: Store, tmp_path: Path
) -> None:
    with (
        headrace.Broker(data_dir=tmp_path / "data", settings=SETTINGS) as broker,
        cutting(broker) as request_cut,
    ):
        with Cluster(broker.bootstrap_servers) as cluster:
            create_topic(cluster, "orders", 1)
        produced(broker, "orders", 1000)
        first = made(tmp_path / "data", store, request_cut)
        produced(broker, "orders", 100, first=1000)
        second = made(tmp_path / "data", store, request_cut)
        assert first.backup.online
        assert second.new_bytes < first.new_bytes / 2
        assert not [path for path in (tmp_path / "data/.backup").iterdir() if path.is_dir()]
    for done, count in ((first, 1000), (second, 1100)):
        target = tmp_path / done.backup.id
        backup.restore(store, done.backup.id, target, quiet)
        report = check(target, quiet)
        assert report.is_clean, report.findings
        assert read(target, "orders") == count


def test_a_running_broker_is_backed_up_with_the_checkpoint_of_its_catalogue(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "_DEAD_RECORDS_MIN", 0)
    with (
        headrace.Broker(data_dir=tmp_path / "data", settings=SETTINGS) as broker,
        cutting(broker) as request_cut,
    ):
        with Cluster(broker.bootstrap_servers) as cluster:
            create_topic(cluster, "orders", 1)
            for number in range(5):
                create_topic(cluster, f"short-{number}", 1)
                delete_topic(cluster, f"short-{number}")
        produced(broker, "orders", 100)
        (checkpoint,) = (tmp_path / "data/__cluster_metadata-0").glob("*.checkpoint")
        expected = checkpoint.read_bytes()
        made(tmp_path / "data", store, request_cut)
    backup.restore(store, None, tmp_path / "target", quiet)
    assert restored(tmp_path / "target")[f"__cluster_metadata-0/{checkpoint.name}"] == expected
    assert check(tmp_path / "target", quiet).is_clean
    assert read(tmp_path / "target", "orders") == 100


@contextmanager
def load(broker: headrace.Broker) -> Iterator[list[BaseException]]:
    """Producers, commits, new and deleted topics until the end; yields what failed."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def running(work: Callable[[int], None]) -> threading.Thread:
        def run() -> None:
            number = 0
            try:
                while not ended.is_set():
                    work(number)
                    number += 1
            except BaseException as error:
                failures.append(error)

        return threading.Thread(target=run)

    def topics(number: int) -> None:
        with Cluster(broker.bootstrap_servers) as cluster:
            create_topic(cluster, f"short-{number}", 2)
            delete_topic(cluster, f"short-{number}")

    def commits(number: int) -> None:
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": f"g{number % 3}"}
        )
        try:
            _, high = consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=30)
            consumer.commit(offsets=[TopicPartition("orders", 0, high)], asynchronous=False)
        finally:
            consumer.close()

    threads = [
        running(lambda number: produced(broker, "orders", 100, first=100 * number)),
        running(lambda number: produced(broker, "prices", 50, first=50 * number)),
        running(topics),
        running(commits),
    ]
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_backups_under_load_are_states_that_a_crash_could_have_left(
    store: Store, tmp_path: Path
) -> None:
    with (
        headrace.Broker(data_dir=tmp_path / "data", settings=SETTINGS) as broker,
        cutting(broker) as request_cut,
    ):
        with Cluster(broker.bootstrap_servers) as cluster:
            create_topic(cluster, "orders", 1)
            create_topic(cluster, "prices", 1, configs={"cleanup.policy": "compact"})
        with load(broker) as failures:
            backups = [made(tmp_path / "data", store, request_cut) for _ in range(6)]
    assert failures == []
    for number, done in enumerate(backups):
        target = tmp_path / str(number)
        backup.restore(store, done.backup.id, target, quiet)
        # A note would be a commit above the end of its log: the journal would be ahead of the log.
        assert check(target, quiet).findings == ()


def test_a_cut_needs_a_folder_that_its_requester_made(tmp_path: Path) -> None:
    """So nobody without access to the data folder can have it filled with links."""
    with (
        headrace.Broker(data_dir=tmp_path / "data") as broker,
        cutting(broker) as request_cut,
    ):
        for name in ("0" * 32, "../x", "", "A" * 32):
            with pytest.raises(BrokerError, match="of the same broker"):
                request_cut(name)


def test_what_a_killed_backup_left_is_removed_by_the_next(store: Store, tmp_path: Path) -> None:
    with (
        headrace.Broker(data_dir=tmp_path / "data") as broker,
        cutting(broker) as request_cut,
    ):
        left = tmp_path / "data/.backup" / ("1" * 32)
        left.mkdir(parents=True)
        (left / "files").write_text("0 x\n")
        made(tmp_path / "data", store, request_cut)
        assert not left.exists()


def test_a_killed_broker_can_be_backed_up_too(
    killed: Folder, write: Write, store: Store, tmp_path: Path
) -> None:
    made(write(killed.files), store)
    target = tmp_path / "restored"
    backup.restore(store, None, target, quiet)
    found = observe(disk_of(restored(target)), killed)
    assert found.account == Judge(killed).account
