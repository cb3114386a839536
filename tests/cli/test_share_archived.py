"""`headrace share archived`: what it prints, as JSON too, and that it clears what it printed."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

import headrace
from headrace.client.connection import Cluster
from headrace.client.groups import alter_group_offsets
from headrace.client.leases import Lease
from headrace.client.topics import create_topic, delete_records
from headrace.wire.leases import Disposition, Verdict

Command = Callable[..., Any]
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d")


@pytest.fixture
def cluster(broker: headrace.Broker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap_servers) as found:
        yield found


@pytest.fixture
def archived(broker: headrace.Broker, offline: Command) -> Command:
    """`headrace share archived ...` on that broker."""
    servers = ("--bootstrap-server", broker.bootstrap_servers)
    return lambda *arguments: offline("share", "archived", *arguments, *servers)


@pytest.fixture
def reject(broker: headrace.Broker, cluster: Cluster) -> Callable[..., None]:
    """Ten records in "jobs", of which a lease of "work" has some and rejects them."""
    create_topic(cluster, "jobs", 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(10):
        producer.produce("jobs", b"%d" % number)
    assert producer.flush(10) == 0
    lease = Lease(cluster, "work", "checkpoint")
    lease.open(("jobs",), "earliest")
    numbers = iter(range(1, 10))

    def rejecting(first: int, last: int, reason: str) -> None:
        number = next(numbers)
        assert lease.acquire(number, last + 1 - first, 1000)
        found = Disposition("jobs", 0, first, last, Verdict.REJECT, reason)
        lease.stage(number, (found,))
        lease.commit(number)

    return rejecting


def test_a_table_of_what_was_archived(
    reject: Callable[..., None], cluster: Cluster, archived: Command
) -> None:
    reject(0, 2, "not JSON")
    reject(3, 3, "no\nsuch customer")
    delete_records(cluster, {("jobs", 0): 2})
    ended = archived("work")
    assert (ended.code, ended.err) == (0, "")
    lines = [_TIME.sub("(time)", line).split() for line in ended.text.splitlines()[1:]]
    assert lines[0] == [
        "TOPIC", "PARTITION", "OFFSETS", "DELIVERIES", "ARCHIVED", "READABLE", "MEMBER", "REASON"
    ]  # fmt: skip
    first, second = ["jobs", "0", "0-2", "1", "(time)"], ["jobs", "0", "3", "1", "(time)"]
    assert lines[1] == [*first, "from", "2", "lease/checkpoint", "not", "JSON"]
    assert lines[2] == [*second, "yes", "lease/checkpoint", "no", "such", "customer"]


def test_json_has_a_line_for_each_run(reject: Callable[..., None], archived: Command) -> None:
    reject(0, 1, "not JSON")
    (run,) = map(json.loads, archived("work", "--json").text.splitlines())
    assert run.pop("archived_at_ms") > 1_700_000_000_000
    assert run == {
        "topic": "jobs", "partition": 0, "first": 0, "last": 1, "delivery_count": 1,
        "readable": 2, "reason": "not JSON", "member": "lease/checkpoint",
    }  # fmt: skip


def test_what_is_printed_is_cleared(
    reject: Callable[..., None], cluster: Cluster, archived: Command
) -> None:
    create_topic(cluster, "other", 1)
    reject(0, 1, "not JSON")
    assert archived("work", "--topic", "other", "--clear").text == (
        "Share group 'work' has no records of other archived without a dead letter.\n"
    )
    ended = archived("work", "--clear")
    assert ended.code == 0
    assert ended.text.splitlines()[-1] == "Cleared 2 records from the list."
    assert archived("work", "--json").text == ""
    reject(2, 2, "not JSON")
    told = list(map(json.loads, archived("work", "--json", "--clear").text.splitlines()))
    assert told[0]["first"] == 2
    assert told[1] == {"cleared": 1, "dropped": 0}


@pytest.mark.parametrize("options", [(), ("--json",), ("--clear",)])
@pytest.mark.parametrize(
    ("topic", "told"),
    [
        ("nosuch", "there is no topic 'nosuch'; see headrace topics --list"),
        ("jobs:1", "topic jobs has no partition 1; it has 1, from 0 on"),
        ("jobs:", "Invalid topic arg 'jobs:', expected topic name and partitions"),
    ],
)
def test_a_topic_that_is_none_is_no_all_clear(
    reject: Callable[..., None],
    archived: Command,
    topic: str,
    told: str,
    options: tuple[str, ...],
) -> None:
    reject(0, 1, "not JSON")
    ended = archived("work", "--topic", topic, *options)
    assert (ended.code, ended.text) == (1, "")
    assert told in ended.err
    assert len(archived("work", "--json").text.splitlines()) == 1


def test_partitions_are_listed_and_cleared_alone(
    broker: headrace.Broker, cluster: Cluster, archived: Command
) -> None:
    create_topic(cluster, "jobs", 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for partition in (0, 1):
        producer.produce("jobs", b"bad", partition=partition)
    assert producer.flush(10) == 0
    lease = Lease(cluster, "work", "checkpoint")
    lease.open(("jobs",), "earliest")
    assert lease.acquire(1, 2, 1000)
    lease.stage(
        1,
        tuple(Disposition("jobs", one, 0, 0, Verdict.REJECT, f"bad {one}") for one in (0, 1)),
    )
    lease.commit(1)
    assert len(archived("work", "--json").text.splitlines()) == 2
    told = archived("work", "--topic", "jobs:1", "--clear").text
    assert "bad 1" in told
    assert "bad 0" not in told
    (left,) = map(json.loads, archived("work", "--json").text.splitlines())
    assert left["partition"] == 0


def test_groups_that_are_none(archived: Command, cluster: Cluster) -> None:
    ended = archived("nosuch")
    assert (ended.code, ended.text) == (1, "")
    assert ended.err.endswith("Group nosuch not found; see share-groups --list\n")
    create_topic(cluster, "jobs", 1)
    alter_group_offsets(cluster, "readers", {("jobs", 0): 0}).check()
    ended = archived("readers")
    assert ended.code == 1
    assert "not a share group; see consumer-groups --describe --group readers" in ended.err
