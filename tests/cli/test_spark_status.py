"""`headrace spark status`: Spark queries as the groups that they read through."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

import headrace
from headrace.client.admin import create_topic, set_group_configs
from headrace.client.connection import Cluster
from headrace.client.group_offsets import CommittedOffset, alter_group_offsets
from headrace.client.leases import Lease
from headrace.client.spark_queries import COMMITTED_BY

Command = Callable[..., Any]


@pytest.fixture
def status(broker: headrace.Broker, offline: Command) -> Command:
    """Runs `headrace spark status ...`."""
    servers = ("--bootstrap-server", broker.bootstrap_servers)
    return lambda *arguments: offline("spark", "status", *servers, *arguments)


@pytest.fixture
def cluster(broker: headrace.Broker) -> Any:
    with Cluster(broker.bootstrap_servers) as found:
        create_topic(found, "orders", 1)
        yield found


def test_nothing_to_show(status: Command) -> None:
    assert (status().code, status().text) == (0, "No Spark query reads.\n")
    assert status("--group", "billing").text == "No Spark query reads through billing.\n"
    assert (status("--json").code, status("--json").text) == (0, "")


def test_queries_of_both_modes(status: Command, cluster: Cluster) -> None:
    Lease(cluster, "billing", "c0ffee").open(("orders",), "earliest")
    by_query = CommittedOffset(0, metadata=COMMITTED_BY)
    alter_group_offsets(cluster, "reports", {("orders", 0): by_query}).check()
    _, head, billing, reports = status().text.split("\n", 3)
    assert head.split() == [
        "GROUP", "MODE", "STATE", "SEEN", "BATCH", "HELD", "LAPSED", "LAG", "SESSION", "TOPICS",
    ]  # fmt: skip
    assert billing.split()[:3] == ["billing", "queue", "running"]
    assert billing.split()[-3:] == ["0", "c0ffee", "orders"]
    assert reports.split()[:3] == ["reports", "log", "running"]
    shown = [json.loads(line) for line in status("--json").text.splitlines()]
    assert [(one["group"], one["mode"]) for one in shown] == [
        ("billing", "queue"), ("reports", "log"),
    ]  # fmt: skip
    assert shown[0] | {"seen_ms": 0, "lag": 0} == {
        "group": "billing", "mode": "queue", "state": "running", "topics": ["orders"], "lag": 0,
        "seen_ms": 0, "session": "c0ffee", "epoch": 1, "batch": 0, "committed": 0, "held": 0,
        "lapsed": 0,
    }  # fmt: skip
    only = status("--json", "--group", "reports").text.splitlines()
    assert [json.loads(line)["group"] for line in only] == ["reports"]


def test_a_quiet_query_is_shown_on_request_or_with_records_not_settled(offline: Command) -> None:
    settings = {"group.share.min.record.lock.duration.ms": "1000"}
    with headrace.Broker(settings=settings) as broker, Cluster(broker.bootstrap_servers) as cluster:
        servers = ("--bootstrap-server", broker.bootstrap_servers)

        def shown(*arguments: str) -> Any:
            return offline("spark", "status", *servers, *arguments).text

        create_topic(cluster, "orders", 1)
        set_group_configs(cluster, "billing", {"share.record.lock.duration.ms": "1000"})
        lease = Lease(cluster, "billing", "c0ffee")
        lease.open(("orders",), "earliest")
        deadline = time.monotonic() + 60
        while json.loads(shown("--all", "--json"))["state"] != "quiet":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert shown() == "No Spark query reads; quiet ones, shown with --all: 1.\n"
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("orders", b"one")
        assert producer.flush(30) == 0
        assert lease.acquire(1, 1, 10_000)
        while json.loads(shown("--json"))["state"] != "quiet":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        told = json.loads(shown("--json"))
        assert (told["held"], told["lapsed"]) == (0, 1), "locks that ended hold nothing"


def test_no_broker_is_one_line(offline: Command) -> None:
    ended = offline("spark", "status", "--bootstrap-server", "127.0.0.1:1")
    assert ended.code == 1
    assert ended.err.startswith("headrace spark status: ")
    assert ended.err.count("\n") == 1
