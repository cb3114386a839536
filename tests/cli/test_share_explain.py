"""`headrace share explain`: what real members made of records, told from the journal."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from tests.client.damaged_batch import produce_damaged

import headrace
from headrace.cli import offsets_journal
from headrace.cli.ending import Trouble
from headrace.cli.share_explain import parsed
from headrace.client.admin import LogEnd, log_end
from headrace.client.configs import set_group_configs
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.fetch import fetch
from headrace.client.leases import Lease
from headrace.client.share_groups import alter_share_group_offsets, delete_share_groups
from headrace.client.topics import create_topic, delete_records
from headrace.wire.leases import Disposition, Verdict

from .conftest import TIME_MS

Command = Callable[..., Any]
GROUP, TOPIC = "work", "jobs"
_WAIT_S_MAX = 60.0
ACCEPT, RELEASE, REJECT = (
    AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT,
)  # fmt: skip


class Rig:
    """A topic of one partition, its share group, and the command that explains its records."""

    def __init__(self, broker: headrace.Broker, offline: Command) -> None:
        self.broker, self.offline = broker, offline
        self.cluster = Cluster(broker.bootstrap_servers)
        create_topic(self.cluster, TOPIC, 1)
        set_group_configs(self.cluster, GROUP, {"share.auto.offset.reset": "earliest"})

    def produce(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers})
        for number in range(count):
            producer.produce(TOPIC, b"value %d" % number, b"key", timestamp=TIME_MS + number)
        assert producer.flush(_WAIT_S_MAX) == 0

    @contextmanager
    def member(self, name: str = "client") -> Iterator[ShareConsumer]:
        consumer = ShareConsumer(
            {
                "bootstrap.servers": self.broker.bootstrap_servers,
                "group.id": GROUP,
                "client.id": name,
                "share.acknowledgement.mode": "explicit",
                "log_level": 2,
            }
        )
        consumer.subscribe([TOPIC])
        try:
            yield consumer
        finally:
            consumer.close()

    def run(self, record: str, *arguments: str, group: str = GROUP) -> Any:
        place = arguments
        if "--data-dir" not in arguments:
            place = ("--bootstrap-server", self.broker.bootstrap_servers, *arguments)
        return self.offline("share", "explain", group, record, *place)

    def told(self, offset: int, *arguments: str) -> list[dict[str, Any]]:
        """The objects of a record of the topic."""
        ended = self.run(f"{TOPIC}:0:{offset}", "--json", *arguments)
        assert (ended.code, ended.err) == (0, "")
        return [json.loads(line) for line in ended.text.splitlines()]

    def deliveries(self, offset: int) -> list[tuple[int, str, str]]:
        """Number, client and outcome of each."""
        return [
            (one["number"], (one["client"] or "").split()[0], one["outcome"])
            for one in self.told(offset)
            if one["type"] == "delivery"
        ]


@pytest.fixture
def rig(broker: headrace.Broker, offline: Command) -> Iterator[Rig]:
    rig = Rig(broker, offline)
    yield rig
    rig.cluster.close()


def polled(consumer: ShareConsumer, count: int) -> list[Any]:
    found: list[Any] = []
    until = time.monotonic() + _WAIT_S_MAX
    while len(found) < count:
        assert time.monotonic() < until, f"{len(found)} of {count} records came"
        found += consumer.poll(0.1)
    return found


def say(consumer: ShareConsumer, message: Any, verdict: AcknowledgeType) -> None:
    consumer.acknowledge(message, verdict)
    consumer.commit_sync()


def test_a_record_that_cannot_be_decoded_is_in_the_log_all_the_same(rig: Rig) -> None:
    alter_share_group_offsets(rig.cluster, GROUP, {(TOPIC, 0): 0}).check()
    produce_damaged(rig.cluster, TOPIC, 2)
    (record, *_) = rig.told(1)
    assert record["in_log"]
    assert "varint" in record["damage"]
    text = rig.run(f"{TOPIC}:0:1").text
    assert "Content: cannot be read, the batch is damaged: a varint" in text


def test_each_word_of_real_members_is_told(rig: Rig) -> None:
    rig.produce(4)
    begun = time.time_ns() // 1_000_000
    with rig.member("first") as first:
        accepted, released, rejected, _ = polled(first, 4)
        say(first, accepted, ACCEPT)
        say(first, released, RELEASE)
        say(first, rejected, REJECT)
        (record, now, *_) = rig.told(3)
        assert now["state"] == "acquired"
        assert now["client"].startswith("first /127.0.0.1")
        assert begun <= now["from_timestamp"]
        assert 0 < now["lock_left_ms"] <= 30_000
        assert (record["in_log"], record["complete"]) == (True, True)
        assert (record["key"], record["value"], record["timestamp"]) == (
            "key", "value 3", TIME_MS + 3,
        )  # fmt: skip
        holder = now["holder"]
    with rig.member("second") as second:
        for message in polled(second, 2):
            say(second, message, ACCEPT)
    assert rig.deliveries(0) == [(1, "first", "accepted")]
    assert rig.deliveries(1) == [(1, "first", "released"), (2, "second", "accepted")]
    assert rig.deliveries(2) == [(1, "first", "rejected")]
    assert rig.deliveries(3) == [(1, "first", "member left"), (2, "second", "accepted")]
    _, now, started, delivery, _ = rig.told(3)
    assert (now["state"], now["deliveries"]) == ("accepted", 2)
    assert (started["what"], started["start"]) == ("the group began to read", 0)
    assert delivery["holder"] == holder
    assert begun <= delivery["from_timestamp"] <= delivery["until_timestamp"]
    assert rig.told(2)[1] == {
        "type": "now", "state": "archived", "deliveries": 1, "by": "broker"
    }  # fmt: skip
    assert rig.told(2)[3]["reason"] == "rejected by the consumer"


def happened(told: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    return [(one["what"], one["detail"]) for one in told if one["type"] == "happening"]


def test_the_limit_the_locks_end_and_the_dead_letter(broker: headrace.Broker, rig: Rig) -> None:
    limits = {
        "share.record.lock.duration.ms": "1000",
        "share.delivery.count.limit": "2",
        "errors.deadletterqueue.topic.name": "dlq.letters",
    }
    set_group_configs(rig.cluster, GROUP, limits)
    rig.produce(1)
    with rig.member("slow") as slow, rig.member("quick") as quick:
        polled(slow, 1)  # and leaves it until its lock ends
        set_group_configs(rig.cluster, GROUP, {"share.record.lock.duration.ms": "30000"})
        (message,) = polled(quick, 1)
        say(quick, message, RELEASE)
    until = time.monotonic() + _WAIT_S_MAX
    while rig.told(0)[1]["state"] != "archived":
        assert time.monotonic() < until
        time.sleep(0.05)
    assert rig.deliveries(0) == [(1, "slow", "lock expired"), (2, "quick", "released")]
    told = rig.told(0)
    assert happened(told)[1:] == [("dead letter written", "dlq.letters-0")]
    assert told[4]["reason"] == "delivery count limit 2 reached"
    assert told[3]["until_timestamp"] - told[3]["from_timestamp"] >= 900
    text = rig.run(f"{TOPIC}:0:0").text
    assert "Now: archived, delivered 2 times." in text
    assert "archived: delivery count limit 2 reached" in text
    assert "dlq.letters-0" in text


def test_why_there_is_no_dead_letter(rig: Rig) -> None:
    set_group_configs(rig.cluster, GROUP, {"errors.deadletterqueue.topic.name": "letters"})
    rig.produce(1)
    with rig.member() as consumer:
        (message,) = polled(consumer, 1)
        say(consumer, message, REJECT)
    until = time.monotonic() + _WAIT_S_MAX
    while rig.told(0)[1]["state"] != "archived":
        assert time.monotonic() < until
        time.sleep(0.05)
    (_, (what, why)) = happened(rig.told(0))
    assert what == "no dead letter"
    assert (why or "").startswith("rejected by the consumer; no dead letter: letters ")


def test_a_lease_is_told_by_its_name_and_number(rig: Rig) -> None:
    rig.produce(3)
    lease = Lease(rig.cluster, GROUP, "checkpoint")
    lease.open((TOPIC,), "earliest")
    (held,) = lease.acquire(7, 10, 1_000)
    _, now, _, delivery = rig.told(1)
    assert (now["state"], now["holder"]) == ("acquired", "checkpoint")
    assert (delivery["session"], delivery["seq"], delivery["outcome"]) == ("checkpoint", 7, None)
    rejected = Disposition(held.topic, held.partition, 1, 1, Verdict.REJECT, "not JSON")
    lease.stage(7, (rejected,))
    lease.commit(7)
    since = delivery["from_timestamp"]
    for offset, outcome in ((0, "accepted"), (1, "rejected")):
        (ended,) = [one for one in rig.told(offset) if one["type"] == "delivery"]
        assert (ended["holder"], ended["seq"], ended["outcome"]) == ("checkpoint", 7, outcome)
        assert (ended["from_timestamp"], ended["number"]) == (since, 1)
    assert ended["reason"] == "not JSON"


def test_a_record_that_was_released_with_a_delay_says_until_when(rig: Rig) -> None:
    rig.produce(3)
    lease = Lease(rig.cluster, GROUP, "checkpoint")
    lease.open((TOPIC,), "earliest")
    lease.acquire(1, 2, 1000)
    lease.stage(1, (Disposition(TOPIC, 0, 1, 1, Verdict.RELEASE, "later", 600_000),))
    lease.commit(1)
    assert [one["outcome"] for one in rig.told(1) if one["type"] == "delivery"] == ["released"]
    told = rig.run(f"{TOPIC}:0:1").text
    assert "released with a delay, delivered 1 time, until " in told


def test_what_administrators_and_retention_do(rig: Rig) -> None:
    rig.produce(6)
    with rig.member() as consumer:
        for message in polled(consumer, 6):
            say(consumer, message, RELEASE)
    alter_share_group_offsets(rig.cluster, GROUP, {(TOPIC, 0): 2}).check()
    delete_records(rig.cluster, {(TOPIC, 0): 4})
    assert rig.told(1)[1]["state"] == "passed over"
    until = time.monotonic() + _WAIT_S_MAX
    while rig.told(3)[1]["state"] != "removed from the log, unfinished":
        assert time.monotonic() < until
        time.sleep(0.05)
    record, _, *told = rig.told(3)
    assert (record["in_log"], record["log_start"]) == (False, 4)
    names = [one.get("what", one.get("outcome")) for one in told]
    assert names == ["the group began to read", "released", "reset", "removed from the log"]
    assert "no longer in the log, which begins at 4" in rig.run(f"{TOPIC}:0:3").text
    assert rig.told(5)[1] == {
        "type": "now", "state": "available", "deliveries": 0, "by": "broker"
    }  # fmt: skip
    delete_share_groups(rig.cluster, [GROUP])
    assert happened(rig.told(5))[-1] == ("deleted", "group deletion")
    assert rig.told(5)[1]["state"] == "forgotten"


def test_files_of_a_broker_tell_the_same_after_restarts(tmp_path: Path, offline: Command) -> None:
    with headrace.Broker(tmp_path) as broker:
        rig = Rig(broker, offline)
        rig.produce(2)
        with rig.member("first") as consumer:
            for message in polled(consumer, 2):
                say(consumer, message, RELEASE)
        rig.cluster.close()
    with headrace.Broker(tmp_path) as broker:
        again = Rig.__new__(Rig)
        again.broker, again.offline = broker, offline
        with again.member("second") as consumer:
            one, _ = polled(consumer, 2)
            say(consumer, one, ACCEPT)
        online = again.told(0)
        assert again.deliveries(0) == [(1, "first", "released"), (2, "second", "accepted")]
        files = again.told(0, "--data-dir", str(tmp_path))
    assert files[0] == online[0]
    assert files[2:] == online[2:]
    assert files[1] == online[1] | {"by": "journal"}
    ended = offline("share", "explain", GROUP, f"{TOPIC}:0:1", "--data-dir", str(tmp_path))
    assert "Now: available, delivered 2 times; who may have it now" in ended.text


def test_a_pruned_journal_says_since_when_it_is_whole(offline: Command) -> None:
    settings = {
        "headrace.share.history.ms": 0,
        "share.coordinator.state.topic.prune.interval.ms": 50,
        "share.coordinator.snapshot.update.records.per.snapshot": 3,
    }
    with headrace.Broker(settings=settings) as broker:
        rig = Rig(broker, offline)
        rig.produce(4)
        with rig.member() as consumer:
            first, *others = polled(consumer, 4)
            for message in (*others, first):
                say(consumer, message, RELEASE if message is first else ACCEPT)
        until = time.monotonic() + _WAIT_S_MAX
        while rig.told(0)[0]["complete"]:
            assert time.monotonic() < until
            time.sleep(0.05)
        record, now, found, *_ = rig.told(1)
        assert record["complete_since"] is not None
        assert (now["state"], found["what"]) == ("accepted", "state found")
        assert found["state"] == "acknowledged"
        text = rig.run(f"{TOPIC}:0:1").text
        assert f"complete since {record['complete_since']}; what is older may be missing" in text
        assert "acknowledged, delivered 1 time before" in text
        rig.cluster.close()


def test_a_journal_that_is_pruned_while_it_is_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.produce(1)
    with rig.member() as consumer:
        (message,) = polled(consumer, 1)
        say(consumer, message, ACCEPT)
    asked: list[int] = []

    def once_out_of_range(*arguments: Any, **more: Any) -> Any:
        asked.append(arguments[3])
        if len(asked) == 1:
            raise BrokerError(1, "fetching")
        return fetch(*arguments, **more)

    starts = iter((0, 1))
    monkeypatch.setattr(offsets_journal, "fetch", once_out_of_range)

    def end(cluster: Cluster, topic: str, partition: int, which: LogEnd = LogEnd.LATEST) -> int:
        return next(starts) if which is LogEnd.EARLIEST else log_end(cluster, topic, partition)

    monkeypatch.setattr(offsets_journal, "log_end", end)
    record, now, *_ = rig.told(0)
    assert (record["complete"], now["state"]) == (False, "accepted")
    assert asked[:2] == [0, 1]


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ("jobs", "invalid record 'jobs': expected TOPIC:PARTITION:OFFSET, for example orders:0:42"),
        ("jobs:0:-1", "invalid record 'jobs:0:-1'"),
        ("nothing:0:0", "topic nothing does not exist"),
        ("jobs:7:0", "topic jobs has 1 partitions, from 0 on"),
        ("jobs:0:2", "jobs-0 ends at offset 2: there is no record 2 yet"),
        ("other:0:0", "share group work does not read other-0"),
    ],
)
def test_what_there_is_not_is_said(rig: Rig, record: str, told: str) -> None:
    rig.produce(2)
    create_topic(rig.cluster, "other", 1)
    producer = Producer({"bootstrap.servers": rig.broker.bootstrap_servers})
    producer.produce("other", b"value")
    assert producer.flush(_WAIT_S_MAX) == 0
    alter_share_group_offsets(rig.cluster, GROUP, {(TOPIC, 0): 0}).check()
    ended = rig.run(record)
    assert ended.code == 1
    assert ended.err.startswith(f"headrace share explain: {told}")


def test_a_group_that_is_not_known(rig: Rig) -> None:
    rig.produce(1)
    ended = rig.run(f"{TOPIC}:0:0", group="nobody")
    assert ended.code == 1
    assert "share group nobody is unknown" in ended.err or "group nobody is unknown" in ended.err


def test_a_data_folder_without_the_log(tmp_path: Path, offline: Command) -> None:
    ended = offline("share", "explain", GROUP, "jobs:0:0", "--data-dir", str(tmp_path))
    assert ended.code == 1
    assert f"{tmp_path} has no log jobs-0" in ended.err


@pytest.mark.parametrize("text", ["", ":0:0", "a:b:0", "a:0:x", "a:0:9223372036854775808", "a:٣:0"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(Trouble, match="invalid record"):
        parsed(text)
