"""The sessions of the lease API, and Spark queries as groups show them."""

from typing import Any

import pytest

from headrace.client.admin import create_topic
from headrace.client.connection import Cluster
from headrace.client.errors import Unsupported
from headrace.client.group_offsets import CommittedOffset, alter_group_offsets
from headrace.client.lease_sessions import list_lease_sessions
from headrace.client.leases import Lease
from headrace.client.spark_queries import COMMITTED_BY, list_spark_queries
from headrace.wire import lease_sessions as wire
from headrace.wire.batches import Record, build


def opened(cluster: Cluster, group: str, session: str, topic: str) -> Lease:
    lease = Lease(cluster, group, session)
    lease.open((topic,), "earliest")
    return lease


def append(cluster: Cluster, topic: str, count: int) -> None:
    """`count` records in partition 0."""
    batch = build([Record(0, 1000, None, b"%d" % number) for number in range(count)])
    part = {"index": 0, "records": bytes(batch)}
    fields = {
        "transactional_id": None,
        "acks": -1,
        "timeout": 10_000,
        "topic_data": [{"name": topic, "partition_data": [part]}],
    }
    assert cluster.ask(0, 8, fields).responses[0].partition_responses[0].error_code == 0


def test_a_session_with_what_it_holds(real: Cluster) -> None:
    create_topic(real, "held", 1)
    append(real, "held", 10)
    lease = opened(real, "holding", "checkpoint", "held")
    (one,) = list_lease_sessions(real, "holding")
    assert (one.group, one.session, one.topics) == ("holding", "checkpoint", ("held",))
    assert (one.active, one.committed, one.outstanding, one.held) == (True, 0, {}, 0)
    lease.acquire(1, 4, 0)
    lease.acquire(2, 3, 0)
    (one,) = list_lease_sessions(real, "holding")
    assert (one.outstanding, one.held) == ({1: 4, 2: 3}, 7)
    lease.commit(1)
    opened(real, "holding", "checkpoint", "held")
    (one,) = list_lease_sessions(real, "holding")
    assert (one.epoch, one.committed, one.outstanding) == (lease.epoch + 1, 1, {2: 3})
    assert one.seen_ms is not None
    assert one.seen_ms >= 0


def test_pages_are_put_together(real: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    create_topic(real, "paged", 1)
    wanted = [("p1", "a"), ("p1", "b"), ("p2", "a"), ("p2", "b"), ("p3", "a")]
    for group, session in reversed(wanted):
        opened(real, group, session, "paged")
    monkeypatch.setattr(wire, "SESSIONS_MAX", 2)
    found = [(one.group, one.session) for one in list_lease_sessions(real)]
    assert [one for one in found if one[0] in {"p1", "p2", "p3"}] == wanted
    assert [one.session for one in list_lease_sessions(real, "p2")] == ["a", "b"]


def test_a_group_without_sessions(real: Cluster) -> None:
    assert list_lease_sessions(real, "nobody") == []


def test_another_broker_does_not_tell(script: Any, cluster: Cluster) -> None:
    with pytest.raises(Unsupported, match=r"the list of lease sessions needs Headrace"):
        list_lease_sessions(cluster)


def test_queries_of_both_modes(real: Cluster) -> None:
    create_topic(real, "seen", 2)
    append(real, "seen", 10)
    opened(real, "a-queue", "checkpoint", "seen").acquire(1, 4, 0)
    by_query = CommittedOffset(3, metadata=COMMITTED_BY)
    alter_group_offsets(real, "b-log", {("seen", 0): by_query}).check()
    alter_group_offsets(real, "c-consumer", {("seen", 0): 3}).check()
    queue, log = list_spark_queries(real, ["a-queue", "b-log", "c-consumer"])
    assert (queue.group, queue.mode, queue.state, queue.topics) == (
        "a-queue", "queue", "running", ("seen",),
    )  # fmt: skip
    assert (queue.lag, queue.held, queue.batch, queue.committed) == (10, 4, 1, 0)
    assert (log.group, log.mode, log.state, log.topics, log.lag) == (
        "b-log", "log", "running", ("seen",), 7,
    )  # fmt: skip
    every = {one.group for one in list_spark_queries(real)}
    assert {"a-queue", "b-log"} <= every
    assert "c-consumer" not in every
