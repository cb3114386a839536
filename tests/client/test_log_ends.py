"""Ends of logs of which some are not there."""

from collections.abc import Iterator

import confluent_kafka
import pytest

import headrace
from headrace.client.connection import Cluster
from headrace.client.log_ends import Ends, ends_of
from headrace.client.topics import create_topic


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A broker with three records in `t`-1, of which the first is deleted."""
    with headrace.Broker() as broker, Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "t", 2)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
        for _ in range(3):
            producer.produce("t", b"v", partition=1)
        assert producer.flush(10) == 0
        topics = [{"name": "t", "partitions": [{"partition_index": 1, "offset": 1}]}]
        cluster.ask(21, 2, {"topics": topics, "timeout": 10_000})
        yield cluster


def test_both_ends_of_each_partition(cluster: Cluster) -> None:
    assert ends_of(cluster, [("t", 1), ("t", 0), ("t", 1)]) == {
        ("t", 0): Ends(0, 0),
        ("t", 1): Ends(1, 3),
    }
    assert ends_of(cluster, [("t", 1)], with_earliest=False) == {("t", 1): Ends(None, 3)}


def test_nothing_is_known_of_what_is_not_there(cluster: Cluster) -> None:
    asked = [("t", 7), ("t", -1), ("absent", 0), ("", 0), ("no name", 0), ("t", 0)]
    assert ends_of(cluster, asked) == {**dict.fromkeys(asked, Ends()), ("t", 0): Ends(0, 0)}
    assert ends_of(cluster, []) == {}


def test_partitions_that_go_meanwhile_are_looked_up_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.client import log_ends, topics

    asked: list[set[str]] = []

    def late(cluster: Cluster, names: set[str]) -> dict[str, topics.TopicDescription]:
        found = topics.describe_topics(cluster, names)
        if not asked:
            topics.delete_topic(cluster, "t")
        asked.append(names)
        return found

    monkeypatch.setattr(log_ends, "describe_topics", late)
    assert ends_of(cluster, [("t", 0)]) == {("t", 0): Ends()}
    assert len(asked) == 2
