"""Commands about a topic of which the broker cannot read a part: the rest is shown, and code 1."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import headrace
from headrace.client.connection import Cluster
from headrace.client.leases import Lease
from headrace.client.spark_queries import COMMITTED_BY

from .conftest import Command

TOPIC, GROUP = "t", "g"
CONSUMERS = ("c-1", "c-2")  # consumer groups
QUERY = "q"  # the group of a query over a log
SETTINGS = {
    "num.partitions": "2",
    "log.segment.bytes": "1024",  # of one batch
    # How long a reset of a share group waits after a restart: its members may come back.
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "100",
}
PADDING = bytes(900)  # a key
UNREADABLE = (
    "listing offsets of t-1: KAFKA_STORAGE_ERROR: the broker cannot read files of the partition; "
    "see its log, and if it is Headrace, run `headrace check DATA_DIR` on its machine"
)


@pytest.fixture
def damaged(tmp_path: Path) -> Callable[[Callable[[Path], None]], headrace.Broker]:
    """Starts a broker on a folder that was damaged: two partitions with records 0 and 1."""

    def started(damage: Callable[[Path], None]) -> headrace.Broker:
        with headrace.Broker(tmp_path, settings=SETTINGS) as running:
            servers = {"bootstrap.servers": running.bootstrap_servers}
            producer = confluent_kafka.Producer(servers)
            for number in range(2):
                for partition in range(2):
                    producer.produce(TOPIC, f"{partition}{number}", PADDING, partition)
                assert producer.flush(10) == 0
            with headrace.SyncAdmin(running.bootstrap_servers) as admin:
                earliest = {"share.auto.offset.reset": "earliest"}
                group = headrace.ResourceType.GROUP
                admin.incremental_alter_configs(group, GROUP, values=earliest)
                admin.alter_share_group_offsets(GROUP, {(TOPIC, 0): 0, (TOPIC, 1): 1})
                by_query = headrace.CommittedOffset(1, metadata=COMMITTED_BY)
                partitions = [(TOPIC, 0), (TOPIC, 1)]
                admin.alter_consumer_group_offsets(QUERY, dict.fromkeys(partitions, by_query))
                for name in CONSUMERS:
                    admin.alter_consumer_group_offsets(name, {(TOPIC, 0): 1, (TOPIC, 1): 1})
        damage(tmp_path)
        return headrace.Broker(tmp_path, settings=SETTINGS)

    return started


def _refused(folder: Path) -> None:
    (folder / f"{TOPIC}-1/recovery-point").unlink()


def _first_batch(folder: Path) -> None:
    segment = folder / f"{TOPIC}-1/{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[65] ^= 1
    segment.write_bytes(data)


Damaged = Callable[[Callable[[Path], None]], headrace.Broker]


@pytest.mark.parametrize("group", [GROUP, "new"])
def test_a_share_group_is_not_at_the_end_of_what_cannot_be_read(
    offline: Command, damaged: Damaged, group: str
) -> None:
    with damaged(_refused) as running:
        ended = offline(
            "consume", "--topic", TOPIC, "--share-group", group, "--timeout-ms", "1000",
            "--bootstrap-server", running.bootstrap_servers,
        )  # fmt: skip
    assert (ended.code, ended.text) == (1, "00\n01\n" if group == GROUP else "")
    assert "headrace consume: the broker cannot read t-1 (KAFKA_STORAGE_ERROR)" in ended.err


def test_a_reader_from_the_end_gets_the_other_partitions(
    offline: Command, damaged: Damaged
) -> None:
    with damaged(_refused) as running:
        ended = offline(
            "consume", "--topic", TOPIC, "--timeout-ms", "500",
            "--bootstrap-server", running.bootstrap_servers,
        )  # fmt: skip
    assert ended.code == 1
    assert "Processed a total of 0 messages" in ended.err
    assert "headrace consume: the broker cannot read t-1 (KAFKA_STORAGE_ERROR)" in ended.err
    assert "trying for" not in ended.err


def test_an_offset_of_what_cannot_be_read_is_refused_at_once(
    offline: Command, damaged: Damaged
) -> None:
    with damaged(_refused) as running:
        ended = offline(
            "consume", "--topic", TOPIC, "--partition", "1", "--offset", "1",
            "--bootstrap-server", running.bootstrap_servers,
        )  # fmt: skip
    assert ended.code == 1
    assert ended.err.splitlines() == [
        "Processed a total of 0 messages",
        f"headrace consume: {UNREADABLE}",
    ]


@pytest.mark.parametrize("offset", ["2", "latest"])
def test_damage_before_the_offset_that_is_read_from_is_none(
    offline: Command, damaged: Damaged, offset: str
) -> None:
    """Fetches at the end of a log wait longer than the command, which knows no end until then."""
    with damaged(_first_batch) as running:
        ended = offline(
            "consume", "--topic", TOPIC, "--partition", "1", "--offset", offset,
            "--timeout-ms", "100", "--bootstrap-server", running.bootstrap_servers,
        )  # fmt: skip
    assert ended.code == 0, ended.err


def test_a_share_group_is_described_without_what_cannot_be_read(
    offline: Command, damaged: Damaged
) -> None:
    with damaged(_refused) as running:
        ended = offline(
            "share-groups", "--describe", "--group", GROUP,
            "--bootstrap-server", running.bootstrap_servers,
        )  # fmt: skip
    rows = [line.split() for line in ended.text.splitlines() if line.startswith(GROUP)]
    assert rows == [[GROUP, TOPIC, "0", "0", "2"], [GROUP, TOPIC, "1", "-", "-"]]
    assert ended.code == 1
    assert "t-1 is refused: t-1/recovery-point: the file is missing" in ended.err
    assert "trying for" not in ended.err


def test_consumer_groups_are_described_without_what_cannot_be_read(
    offline: Command, damaged: Damaged
) -> None:
    with damaged(_refused) as running:
        groups = [word for name in CONSUMERS for word in ("--group", name)]
        servers = ("--bootstrap-server", running.bootstrap_servers)
        table = offline("consumer-groups", "--describe", *groups, *servers)
        objects = offline("consumer-groups", "--describe", *groups, "--json", *servers)
    rows = [line.split()[:6] for line in table.text.splitlines() if line.startswith("c-")]
    assert rows == [
        row
        for name in CONSUMERS
        for row in ([name, TOPIC, "0", "1", "2", "1"], [name, TOPIC, "1", "1", "-", "-"])
    ]
    for ended in (table, objects):
        assert ended.code == 1
        (line,) = [line for line in ended.err.splitlines() if "no active members" not in line]
        assert line == f"headrace consumer-groups: {UNREADABLE}"
    for line in objects.text.splitlines():
        group = json.loads(line)
        assert (group["total_lag"], group["unknown_lags"]) == (1, 1)
        unreadable = group["partitions"][1]
        assert unreadable["current_offset"] == 1
        assert [unreadable[name] for name in ("log_start_offset", "log_end_offset", "lag")] == [
            None
        ] * 3


def _no_offset(group: str) -> str:
    return (
        f"no offset of group '{group}' was set: the broker cannot read t-1 (KAFKA_STORAGE_ERROR); "
        "see its log, and if it is Headrace, run `headrace check DATA_DIR` on its machine; or name "
        "only the other partitions"
    )


@pytest.mark.parametrize("damage", [_refused, _first_batch])
def test_a_reset_of_consumer_groups_sets_no_offset_of_what_cannot_be_read(
    offline: Command, damaged: Damaged, damage: Callable[[Path], None]
) -> None:
    """A search by time reads batches."""
    with damaged(damage) as running:
        groups = [word for name in CONSUMERS for word in ("--group", name)]
        servers = ("--bootstrap-server", running.bootstrap_servers)

        def reset(*options: str) -> Any:
            command = ("consumer-groups", "--reset-offsets", "--execute", *options)
            return offline(*command, "--to-datetime", "2026-01-01T00:00:00", *servers)

        failed = reset(*groups, "--all-topics")
        assert (failed.code, failed.text.strip()) == (1, "")
        assert failed.err.splitlines() == [
            f"headrace consumer-groups: {_no_offset(name)}" for name in CONSUMERS
        ]
        done = reset("--group", CONSUMERS[0], "--topic", f"{TOPIC}:0")
        assert (done.code, done.err) == (0, "")
        with headrace.SyncAdmin(running.bootstrap_servers) as admin:
            for name, offset in zip(CONSUMERS, (0, 1), strict=True):
                found = admin.list_consumer_group_offsets(name)
                assert [found[TOPIC, one].offset for one in range(2)] == [offset, 1]


def test_a_reset_of_a_share_group_sets_no_offset_of_what_cannot_be_read(
    offline: Command, damaged: Damaged
) -> None:
    with damaged(_refused) as running:
        servers = ("--bootstrap-server", running.bootstrap_servers)

        def reset(*options: str) -> Any:
            command = ("share-groups", "--reset-offsets", "--group", GROUP, "--execute")
            return offline(*command, "--to-latest", *options, *servers)

        for failed in (reset("--all-topics"), reset("--topic", TOPIC)):
            assert (failed.code, failed.text) == (1, "")
            assert failed.err == f"headrace share-groups: {_no_offset(GROUP)}\n"
        done = reset("--topic", f"{TOPIC}:0", "--json")
        assert (done.code, done.err) == (0, "")
        assert json.loads(done.text)["partitions"] == [
            {"topic": TOPIC, "partition": 0, "current_offset": 0, "new_offset": 2}
        ]


def test_queries_are_shown_without_the_lag_that_cannot_be_known(
    offline: Command, damaged: Damaged
) -> None:
    with damaged(_refused) as running:
        with Cluster(running.bootstrap_servers) as cluster:
            Lease(cluster, GROUP, "c0ffee").open((TOPIC,), "earliest")
        ended = offline(
            "spark", "status", "--json", "--bootstrap-server", running.bootstrap_servers
        )
    shown = [json.loads(line) for line in ended.text.splitlines()]
    assert [(one["group"], one["mode"], one["lag"]) for one in shown] == [
        (GROUP, "queue", None), (QUERY, "log", None),
    ]  # fmt: skip
    queue, log = ended.err.splitlines()
    refused = "t-1 is refused: t-1/recovery-point: the file is missing"
    assert queue.startswith(
        f"headrace spark status: listing offsets of share group '{GROUP}' in t-1"
    )
    assert refused in queue
    assert log == f"headrace spark status: {UNREADABLE}"
    assert ended.code == 1
