"""Tables of an Apache Kafka: what it tells, and one line for what it does not."""

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import headrace
from brokers import Broker, Kafka, prepared
from headrace.client.connection import Cluster
from headrace.client.group_offsets import CommittedOffset, alter_group_offsets
from headrace.client.share_groups import alter_share_group_offsets
from headrace.client.spark_queries import COMMITTED_BY, list_spark_queries
from headrace.client.topics import create_topic

_SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
SECONDS_MAX = 60

Table = Callable[..., DataFrame]


@pytest.fixture(scope="module")
def kafka() -> Iterator[Broker]:
    """Ten records, a group that a query committed to, and a share group behind four of them."""
    with prepared(Kafka) as broker:
        broker.launch(_SETTINGS)
        with Cluster(broker.servers) as cluster:
            create_topic(cluster, "orders", 1)
            producer = Producer({"bootstrap.servers": broker.servers})
            for number in range(10):
                producer.produce("orders", b"%d" % number)
            assert producer.flush(SECONDS_MAX) == 0
            by_query = CommittedOffset(3, metadata=COMMITTED_BY)
            alter_group_offsets(cluster, "reports", {("orders", 0): by_query}).check()
            alter_share_group_offsets(cluster, "work", {("orders", 0): 4}).check()
        yield broker
        broker.kill()


@pytest.fixture
def table(spark: SparkSession, kafka: Broker) -> Table:
    def read(name: str, **options: str) -> DataFrame:
        given = {"kafka.bootstrap.servers": kafka.servers, "table": name, **options}
        return spark.read.format("headrace").options(**given).load()

    return read


def test_groups_of_both_types(table: Table, kafka: Broker) -> None:
    found = {row["group"]: row for row in table("groups").collect()}
    assert (found["reports"]["type"], found["reports"]["state"]) == ("classic", "Empty")
    assert (found["work"]["type"], found["work"]["state"]) == ("share", "Empty")
    assert found["work"]["coordinator"].endswith(f":{kafka.port}")
    pushed = table("groups", pushDownPredicate="true").where("group = 'work'").collect()
    assert [row["type"] for row in pushed] == ["share"]


def test_members(table: Table, kafka: Broker) -> None:
    with headrace.SyncShareConsumer(
        kafka.servers, group="crew", topics=["orders"], client_id="sharer"
    ):
        deadline = time.monotonic() + SECONDS_MAX
        while not (found := table("members").where("size(assignment) = 1").collect()):
            assert time.monotonic() < deadline
    assert [(row["group"], row["client_id"], row["topics"]) for row in found] == [
        ("crew", "sharer", ["orders"])
    ]


def test_offsets_without_a_forecast(table: Table) -> None:
    (row,) = table("offsets").collect()
    assert (row["group"], row["committed_offset"], row["log_end"], row["lag"]) == (
        "reports", 3, 10, 7,
    )  # fmt: skip
    assert (row["committed_at"], row["expires_at"], row["expiry"]) == (None, None, None)


def test_a_group_of_the_other_kind_has_no_rows(table: Table) -> None:
    assert table("offsets", group="work").collect() == []
    assert table("share_partitions", group="reports").collect() == []


def test_share_partitions(table: Table) -> None:
    (row,) = table("share_partitions", group="work").collect()
    assert (row["topic"], row["start_offset"], row["lag"], row["acquired"]) == (
        "orders", 4, 6, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("in_flight", "lacks DescribeShareRecords; browsing needs Headrace"),
        ("dead_letters", "lacks ListArchivedRecords; the list of archived records needs Headrace"),
    ],
)
def test_what_kafka_does_not_tell_is_one_line(table: Table, name: str, lacks: str) -> None:
    with pytest.raises(PySparkException, match=lacks):
        table(name).collect()


def test_queries_over_a_log_are_seen(kafka: Broker) -> None:
    with Cluster(kafka.servers) as cluster:
        (query,) = list_spark_queries(cluster)
        assert list_spark_queries(cluster, ["reports", "work", "nobody"]) == [query]
    assert (query.group, query.mode, query.state, query.lag) == ("reports", "log", "unknown", 7)
