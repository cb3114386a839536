"""`headrace consume --share-group`, as kafka-console-share-consumer."""

import json
import signal
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

import headrace
from headrace.client.connection import Cluster
from headrace.client.groups import alter_group_offsets

from .conftest import Command, Start

GROUP, TOPIC = "work", "jobs"
SECONDS_MAX = 60.0
SHARED = ("--topic", TOPIC, "--share-group", GROUP)

Produce = Callable[..., None]


@pytest.fixture
def produce(broker: headrace.Broker) -> Produce:
    """Appends values; the group begins with the first."""
    with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
        admin.create_topic(TOPIC, 1)
        earliest = {"share.auto.offset.reset": "earliest"}
        admin.incremental_alter_configs(headrace.ResourceType.GROUP, GROUP, values=earliest)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

    def run(*values: bytes, **more: Any) -> None:
        for value in values:
            producer.produce(TOPIC, value, **more)
        assert producer.flush(SECONDS_MAX) == 0

    return run


def test_text_is_kafkas_and_what_is_printed_is_accepted(cli: Command, produce: Produce) -> None:
    produce(b"a", b"b", key=b"k", headers={"h": b"v"})
    shown = [
        f"--formatter-property=print.{name}=true"
        for name in ("key", "delivery", "offset", "partition", "headers", "epoch")
    ]
    ended = cli("consume", *SHARED, "--max-messages", "2", *shown)
    assert ended.code == 0, ended.err
    assert ended.text == "".join(
        f"Partition:0\tOffset:{offset}\tDelivery:1\tEpoch:NOT_PRESENT\th:v\tk\t{value}\n"
        for offset, value in enumerate("ab")
    )
    assert ended.err == "Processed a total of 2 messages\n2 accepted, 0 released, 0 rejected\n"
    again = cli("consume", *SHARED, "--timeout-ms", "0")
    assert (again.code, again.out) == (0, b"")


def test_json_and_a_limit_that_holds_nothing_back(cli: Command, produce: Produce) -> None:
    produce(b"a", b"\xff", b"c")
    ended = cli("consume", *SHARED, "--max-messages", "2", "--json")
    first, second = (json.loads(line) for line in ended.text.splitlines())
    assert (first["value"], first["offset"], first["delivery_count"]) == ("a", 0, 1)
    assert second["value"] == {"base64": "/w=="}
    assert first["timestamp_type"] == "CreateTime"
    rest = cli("consume", *SHARED, "--max-messages", "1", "--json")
    assert json.loads(rest.text)["delivery_count"] == 1


@pytest.mark.parametrize(
    ("option", "said", "next_offset"),
    [
        ("--release", "0 accepted, 2 released, 0 rejected", 0),
        ("--reject", "0 accepted, 0 released, 2 rejected", 2),
    ],
)
def test_other_verdicts(
    cli: Command, produce: Produce, option: str, said: str, next_offset: int
) -> None:
    produce(b"a", b"b", b"c")
    ended = cli("consume", *SHARED, option, "--max-messages", "2")
    assert ended.text == "a\nb\n"
    assert said in ended.err
    (line,) = cli("consume", *SHARED, "--max-messages", "1", "--json").text.splitlines()
    assert json.loads(line)["offset"] == next_offset


def test_what_cannot_be_read_ends_it_or_is_rejected(cli: Command, produce: Produce) -> None:
    produce(struct.pack(">q", 7), b"no long", struct.pack(">q", 8))
    longs = (*SHARED, "--value-deserializer", "Long", "--max-messages")
    ended = cli("consume", *longs, "3")
    assert (ended.code, ended.text) == (1, "7\n")
    assert "offset 1" in ended.err
    assert "--reject-message-on-error" in ended.err
    assert "1 accepted, 0 released, 0 rejected; 2 more were not shown" in ended.err
    ended = cli("consume", *longs, "1", "--reject-message-on-error")
    assert (ended.code, ended.text) == (0, "8\n")
    assert "1 accepted, 0 released, 1 rejected" in ended.err


def test_no_more_is_held_at_once_than_it_is_told(cli: Command, produce: Produce) -> None:
    produce(struct.pack(">q", 7), b"no long", struct.pack(">q", 8), struct.pack(">q", 9))
    ended = cli(
        "consume", *SHARED, "--value-deserializer", "Long", "--command-property",
        "max.poll.records=1",
    )  # fmt: skip
    assert (ended.code, ended.text) == (1, "7\n")
    assert "1 accepted, 0 released, 0 rejected; 1 more were not shown" in ended.err


def test_a_consumer_group_is_read_with_another_option(
    cli: Command, broker: headrace.Broker, produce: Produce
) -> None:
    produce(b"a")
    with Cluster(broker.bootstrap_servers) as cluster:
        alter_group_offsets(cluster, "readers", {(TOPIC, 0): 0}).check()
    ended = cli("consume", "--topic", TOPIC, "--share-group", "readers", "--timeout-ms", "0")
    assert (ended.code, ended.out) == (1, b"")
    told = "Group readers is a consumer group, or its group.type says so"
    assert f"headrace consume: {told}; a consumer group is read with --group\n" in ended.err


def test_ctrl_c_says_what_became_of_the_records(
    start: Start, cli: Command, produce: Produce
) -> None:
    produce(b"a", b"b")
    process = start("consume", *SHARED)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [b"a\n", b"b\n"]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 130
    assert err.decode() == "Processed a total of 2 messages\n2 accepted, 0 released, 0 rejected\n"
    produce(b"c")
    assert cli("consume", *SHARED, "--max-messages", "1").text == "c\n"


def test_what_nobody_could_read_is_not_accepted(
    start: Start, cli: Command, produce: Produce
) -> None:
    process = start("consume", *SHARED)
    assert process.stdout is not None
    process.stdout.close()
    produce(b"a")
    assert process.wait(SECONDS_MAX) == 141
    (line,) = cli("consume", *SHARED, "--max-messages", "1", "--json").text.splitlines()
    assert (json.loads(line)["offset"], json.loads(line)["delivery_count"]) == (0, 2)


def test_a_broker_that_went_is_no_empty_queue(
    start: Start, produce: Produce, broker: headrace.Broker
) -> None:
    produce(b"a")
    process = start("consume", *SHARED, "--timeout-ms", "3000")
    assert process.stdout is not None
    assert process.stdout.readline() == b"a\n"
    broker.stop()
    _, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 1
    assert b"headrace consume: the brokers of jobs do not answer: there may be more" in err


def test_a_topic_that_comes_later_is_waited_for(start: Start, broker: headrace.Broker) -> None:
    process = start("consume", *SHARED, "--max-messages", "1")
    assert process.stderr is not None
    assert b"there is no topic jobs; waiting for one" in process.stderr.readline()
    with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
        until = time.monotonic() + SECONDS_MAX
        while isinstance(admin.describe_share_groups([GROUP])[GROUP], headrace.BrokerError):
            assert time.monotonic() < until, "it did not join"
        admin.create_topic(TOPIC, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(TOPIC, b"a")
    assert producer.flush(SECONDS_MAX) == 0
    out, _ = process.communicate(timeout=SECONDS_MAX)
    assert out == b"a\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--share-group", "g"), "--topic is a required argument"),
        (("--share-group", "", "--topic", "t"), "the name of the group is empty"),
        (("--share-group", "g", "--include", "t"), "--include goes not with --share-group"),
        (
            ("--share-group", "g", "--topic", "t", "--group", "h"),
            "--group goes not with --share-group",
        ),
        (
            ("--share-group", "g", "--topic", "t", "--from-beginning"),
            "--from-beginning goes not with",
        ),
        (("--topic", "t", "--release"), "--release goes only with --share-group"),
        (
            ("--share-group", "g", "--topic", "t", "--release", "--reject"),
            "At most one of --reject and --release may be specified.",
        ),
        (
            ("--share-group", "g", "--topic", "t", "--command-property", "group.id=h"),
            "Detected group ids: 'g', 'h'",
        ),
        (
            ("--share-group", "g", "--topic", "t", "--command-property", "fetch.min.bytes=few"),
            "fetch.min.bytes=few is no number",
        ),
        (
            ("--share-group", "g", "--topic", "t", "--command-property", "isolation.level=x"),
            "isolation.level=x has no place here",
        ),
        (
            ("--share-group", "g", "--topic", "t", "--command-property", "max.poll.records=0"),
            "max_poll_records is 0",
        ),
        (
            ("--share-group", "g", "--topic", "bad name", "--timeout-ms", "0"),
            "no topic can be called 'bad name': --topic is 1 to 249 of a-z A-Z 0-9 . _ -",
        ),
        (("--topic", "a,b", "--timeout-ms", "0"), "no topic can be called 'a,b'"),
        (
            ("--share-group", "g", "--topic", "t", "--formatter-property", "print.it=true"),
            "print.it is not known",
        ),
    ],
)
def test_usage(cli: Command, arguments: tuple[str, ...], told: str) -> None:
    ended = cli("consume", *arguments)
    assert ended.code == 1
    assert told in ended.err
    assert len(ended.err.strip().splitlines()) == 1
