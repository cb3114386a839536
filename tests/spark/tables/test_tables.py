"""Tables of a cluster in Spark: what is in them, and that a filter asks for less."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

import headrace
from headrace.spark.tables.options import TableOptions
from headrace.spark.tables.reader import reader_of, schema_of

Table = Callable[..., DataFrame]
Asked = Callable[..., SimpleNamespace]
WEEK = timedelta(days=7)


def dicts(rows: DataFrame, *columns: str) -> list[dict[str, Any]]:
    """The rows, sorted."""
    wanted = rows.select(*columns) if columns else rows
    found = [row.asDict(recursive=True) for row in wanted.collect()]
    return sorted(found, key=repr)


def names(rows: DataFrame) -> list[str]:
    return [row["group"] for row in rows.select("group").distinct().orderBy("group").collect()]


def test_groups_of_all_kinds(table: Table, world: Any, clerk: Consumer) -> None:
    found = {row["group"]: row for row in dicts(table("groups"))}
    assert sorted(found) == ["billing", "idle-a", "idle-b", "idle-c", "strict", "work"]
    billing = found["billing"]
    assert (billing["type"], billing["state"], billing["protocol_type"]) == (
        "classic", "Stable", "consumer",
    )  # fmt: skip
    assert (billing["protocol"], billing["members"]) == ("range", 1)
    assert billing["coordinator"] == world.servers
    assert (found["idle-a"]["state"], found["idle-a"]["members"]) == ("Empty", 0)
    work = found["work"]
    assert (work["type"], work["protocol_type"], work["coordinator"]) == (
        "share", "share", world.servers,
    )  # fmt: skip


def test_members_with_their_partitions(table: Table, world: Any, clerk: Consumer) -> None:
    consumer = headrace.SyncShareConsumer(
        world.servers, group="crew", topics=["orders"], client_id="sharer"
    )
    with consumer:
        rows = table("members")
        deadline = time.monotonic() + 60
        while rows.where("group = 'crew' and size(assignment) = 2").isEmpty():
            assert time.monotonic() < deadline, rows.collect()
        found = {row["group"]: row for row in dicts(rows)}
    both = [{"topic": "orders", "partition": 0}, {"topic": "orders", "partition": 1}]
    billing, crew = found["billing"], found["crew"]
    assert {"billing", "crew", "work"} <= found.keys(), "a query at work is a member, too"
    assert (billing["client_id"], billing["instance_id"], billing["assignment"]) == (
        "clerk", "desk-1", both,
    )  # fmt: skip
    assert (billing["type"], billing["topics"]) == ("classic", None)
    assert "127.0.0.1" in billing["host"]
    assert (crew["type"], crew["client_id"], crew["topics"], crew["assignment"]) == (
        "share", "sharer", ["orders"], both,
    )  # fmt: skip


def test_offsets_with_lag_and_expiry(table: Table, world: Any, clerk: Consumer) -> None:
    found = {
        (row["group"], row["partition"]): row
        for row in dicts(table("offsets").where("group in ('idle-a', 'billing')"))
    }
    assert sorted(found) == [("billing", 1), ("idle-a", 0), ("idle-a", 1)]
    simple = found["idle-a", 0]
    assert (simple["topic"], simple["committed_offset"], simple["metadata"]) == (
        "orders", 4, "by hand",
    )  # fmt: skip
    assert (simple["log_start"], simple["log_end"], simple["lag"]) == (0, 10, 6)
    assert simple["expires_at"] - simple["committed_at"] == WEEK
    now = datetime.now(tz=UTC).replace(tzinfo=None)
    assert timedelta(0) <= now - simple["committed_at"] < timedelta(hours=1)
    assert simple["expiry"] == "no member subscribes to the topic"
    assert found["idle-a", 1]["lag"] == 0
    kept = found["billing", 1]
    assert (kept["lag"], kept["expires_at"], kept["expiry"]) == (
        7, None, "subscribed by an active group",
    )  # fmt: skip


def test_lag_is_of_what_can_still_be_read(spark: SparkSession) -> None:
    with headrace.Broker() as broker, headrace.SyncAdmin(broker.bootstrap_servers) as admin:
        admin.create_topic("t", 1)
        admin.alter_consumer_group_offsets("ahead", {("t", 0): 5}).check()
        rows = spark.read.format("headrace").options(
            **{"kafka.bootstrap.servers": broker.bootstrap_servers, "table": "offsets"}
        )
        assert dicts(rows.load(), "committed_offset", "lag") == [{"committed_offset": 5, "lag": 0}]
        admin.delete_topic("t")
        assert dicts(rows.load(), "log_end", "lag") in ([], [{"log_end": None, "lag": None}])


def test_share_partitions(table: Table, world: Any) -> None:
    rows = dicts(table("share_partitions").where("group = 'work'"))
    assert [(row["topic"], row["partition"]) for row in rows] == [("orders", 0), ("orders", 1)]
    assert {(row["log_start"], row["log_end"]) for row in rows} == {(0, 10)}
    total = {
        state: sum(row[state] for row in rows) for state in ("lag", "acquired", "waiting")
    }  # six of twenty are finished, three held
    assert total == {"lag": 14, "acquired": 3, "waiting": 11}
    assert sum(row["start_offset"] for row in rows) == 6


def test_runs_in_flight(table: Table, world: Any) -> None:
    rows = dicts(table("in_flight").where("group = 'work' and state = 'Acquired'"))
    held = [(one.topic, one.partition, one.first, one.last) for one in world.held]
    assert [(row["topic"], row["partition"], row["first"], row["last"]) for row in rows] == held
    for row in rows:
        assert (row["delivery_count"], row["session"]) == (1, "checkpoint-1")
        assert row["lock_until"] > row["acquired_at"]
    assert dicts(table("in_flight").where("state = 'Archived' and group = 'work'")) == []


def test_dead_letters_that_have_no_copy(table: Table, world: Any) -> None:
    (row,) = dicts(table("dead_letters").where("group = 'work'"))
    assert (row["partition"], row["first"], row["last"]) == world.rejected
    assert (row["topic"], row["records"], row["readable"]) == ("orders", 2, 2)
    assert (row["delivery_count"], row["reason"], row["letter"]) == (1, "no total", None)
    assert "checkpoint-1" in row["holder"]
    assert row["archived_at"].year > 2020


def test_dead_letters_in_their_topic(table: Table, world: Any) -> None:
    (row,) = dicts(table("dead_letters", group="strict"))
    assert (row["group"], row["topic"], row["records"]) == ("strict", "orders", 1)
    assert (row["partition"], row["first"]) == world.lettered
    assert (row["delivery_count"], row["reason"]) == (1, "too strict")
    assert "checkpoint-2" in row["holder"]
    assert row["letter"]["topic"] == "dlq.strict"
    assert row["letter"]["offset"] == 0
    assert dicts(table("dead_letters", topic="bills")) == []
    assert names(table("dead_letters")) == ["strict", "work"]


PUSHED = {"pushDownPredicate": "true"}


def test_a_group_asked_for_is_all_that_brokers_are_asked_for(
    table: Table, world: Any, asked: Asked
) -> None:
    def groups_where(condition: str, **options: str) -> SimpleNamespace:
        return asked(lambda: names(table("offsets", **options).where(condition)))

    idle = ["idle-a", "idle-b", "idle-c"]
    everything = groups_where("group = 'idle-b'")
    assert everything.result == ["idle-b"]
    assert everything.spent["OffsetFetch"] >= len(idle)
    assert everything.spent["ListGroups"] == 1
    one = groups_where("group = 'idle-b'", **PUSHED)
    assert one.result == ["idle-b"]
    assert one.spent["OffsetFetch"] == 1
    assert "ListGroups" not in one.spent
    two = groups_where("group in ('idle-a', 'idle-c', 'nobody')", **PUSHED)
    assert two.result == ["idle-a", "idle-c"]
    assert two.spent["OffsetFetch"] == 3
    begins = groups_where("group like 'idle-%'", **PUSHED)
    assert begins.result == idle
    assert begins.spent["OffsetFetch"] == 3
    named = groups_where("true", group="idle-a, idle-b")
    assert named.result == ["idle-a", "idle-b"]
    assert named.spent["OffsetFetch"] == 2


def test_topics_and_partitions_asked_for(table: Table, world: Any, asked: Asked) -> None:
    rows = table("offsets", **PUSHED).where("group = 'idle-a' and partition = 1")
    assert dicts(rows, "partition") == [{"partition": 1}]
    none = asked(
        lambda: dicts(table("in_flight", **PUSHED).where("group = 'work' and topic = 'bills'"))
    )
    assert none.result == []
    assert none.spent["DescribeShareRecords"] == 1
    some = asked(lambda: dicts(table("in_flight", group="work", topic="orders")))
    assert len(some.result) >= 1
    assert some.spent["DescribeShareRecords"] > 1


def test_states_asked_for(table: Table, world: Any, clerk: Consumer, asked: Asked) -> None:
    stable = table("groups", **PUSHED).where("state = 'Stable' and type = 'classic'")
    assert names(stable) == ["billing"]
    assert names(table("groups", **PUSHED).where("state = 'Dead'")) == []
    nonsense = asked(lambda: dicts(table("in_flight", **PUSHED).where("state = 'Nonsense'")))
    assert nonsense.result == []
    assert "DescribeShareRecords" not in nonsense.spent


def test_a_table_that_is_used_twice_is_whole_unless_filters_are_pushed(
    table: Table, world: Any
) -> None:
    """What Spark makes of pushed filters is why they are pushed on request only."""
    rows = table("offsets")
    idle = rows.where("group = 'idle-a'").union(rows.where("group = 'idle-b'"))
    assert names(idle) == ["idle-a", "idle-b"]
    assert {"idle-a", "idle-b", "idle-c"} <= set(names(rows))
    pushed = table("offsets", **PUSHED)
    assert names(pushed.where("group = 'idle-a'")) == ["idle-a"]
    assert names(pushed) == ["idle-a"], "Spark forgets pushed filters now: push by default"


@pytest.mark.parametrize("name", ["groups", "members", "offsets", "share_partitions", "in_flight"])
def test_a_group_that_does_not_exist_has_no_rows(table: Table, name: str) -> None:
    assert dicts(table(name).where("group = 'nobody'")) == []


def test_a_group_of_the_other_kind_has_no_rows(table: Table, clerk: Consumer) -> None:
    assert dicts(table("share_partitions").where("group = 'billing'")) == []
    assert dicts(table("dead_letters").where("group = 'billing'")) == []
    assert dicts(table("offsets").where("group = 'work'")) == []


def test_tables_join(table: Table, clerk: Consumer) -> None:
    lagging = table("offsets").groupBy("group").sum("lag")
    rows = table("groups").join(lagging, "group").where("state = 'Empty' and `sum(lag)` > 0")
    assert names(rows) == ["idle-a", "idle-b", "idle-c"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"name": "nonsense"}, "there are groups, members, offsets"),
        ({"name": "groups", "subscribe": "orders"}, "unless options 'group' and 'topic' name some"),
        ({"name": "groups", "group": " , "}, "give names, separated by commas"),
        ({"name": "groups", "topic": "orders"}, "'topic' is not for the table 'groups'"),
        ({"name": "members", "topic": "orders"}, "'topic' is not for the table 'members'"),
        ({"name": "groups", "retryTimeout": "1"}, "did you mean 'retryTimeoutMs'"),
    ],
)
def test_wrong_options_are_one_line(table: Table, options: dict[str, str], told: str) -> None:
    with pytest.raises(PySparkException, match=told):
        table(**options)


def test_a_table_is_no_stream(spark: SparkSession, world: Any) -> None:
    options = {"kafka.bootstrap.servers": world.servers, "table": "groups"}
    rows = spark.readStream.format("headrace").options(**options).load()
    with pytest.raises(PySparkException, match=r"a table is no stream: use spark\.read"):
        rows.writeStream.format("noop").start().awaitTermination()


def test_nobody_at_the_address_is_told(table: Table) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "retryTimeoutMs": "100"}
    with pytest.raises(PySparkException, match=r"gave up after 0\.1 s at 127\.0\.0\.1:1"):
        table("groups", **options).collect()


def test_records_are_filtered_too_where_the_session_pushes_filters(
    spark: SparkSession, world: Any
) -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    options = {"kafka.bootstrap.servers": world.servers, "subscribe": "orders"}
    rows = spark.read.format("headrace").options(**options).load()
    for condition, count in (
        ("value = X'33' and partition = 1", 1),
        ("timestamp > timestamp '2001-01-01 00:00:00' and key is null", 20),
        ("offset in (0, 1) and topic like 'ord%' and `timestampType` <> 7", 4),
        ("topic = 'bills'", 0),
    ):
        assert rows.where(condition).count() == count, condition
    assert rows.count() == 20


def test_lines_of_a_table_are_shown_where_it_is_read(
    spark: SparkSession, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[str] = []
    monkeypatch.setattr("headrace.spark.tables.reader.show", levels.append)
    options = TableOptions.parse(
        {"kafka.bootstrap.servers": world.servers, "table": "offsets", "logLevel": "info"}
    )
    schema = StructType.fromDDL(schema_of(options))
    assert isinstance(schema, StructType)
    found = list(reader_of(options, schema).read(InputPartition(0)))
    assert sum(batch.num_rows for batch in found) >= 4
    assert levels == ["INFO"]
