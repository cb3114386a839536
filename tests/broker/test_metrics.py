"""What a broker tells Prometheus, and how its small HTTP server treats strangers."""

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client.openmetrics import parser as open_parser
from prometheus_client.parser import text_string_to_metric_families as parsed

import headrace
from headrace.broker import dispatch, loop_stalls, loop_turns, metrics_http
from headrace.broker.config import Config
from headrace.broker.histogram import Histogram
from headrace.broker.metrics import REQUEST_SECONDS, Metrics
from headrace.broker.metrics_shapes import PIECE_SAMPLES, Family, Sample
from headrace.broker.services import Services
from headrace.core.catalog import CreateTopic
from headrace.log.memory_disk import MemoryDisk
from headrace.log.os_disk import SystemClock
from headrace.wire import batches, codec
from headrace.wire.batches import Record

from .metrics_rig import METRICS, TIMEOUT, get, series

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
METADATA, CREATE, DELETE, PRODUCE, FETCH = 3, 19, 20, 0, 1
COMMIT, DELETE_RECORDS = 8, 21
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
BROKER_SETTINGS = METRICS


def open_parsed(text: str) -> list[Any]:
    """The families of a page of OpenMetrics; refuses whatever the format forbids."""
    parse: Any = open_parser.text_string_to_metric_families
    return list(parse(text))


def a_topic(wire: Any, name: str, partitions: int = 1) -> None:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    asked = [topic | {"assignments": [], "configs": []}]
    answer = wire.call(CREATE, 7, topics=asked, timeout=0, validate_only=False)
    assert answer.topics[0].error_code == 0


def produce(wire: Any, topic: str, records: bytes, index: int = 0) -> int:
    """The error code of the partition."""
    data = [{"name": topic, "partition_data": [{"index": index, "records": records}]}]
    answer = wire.call(PRODUCE, 9, transactional_id=None, acks=-1, timeout=100, topic_data=data)
    return int(answer.responses[0].partition_responses[0].error_code)


def fetch(wire: Any, topic: str, offset: int, **fields: Any) -> None:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1_000_000}
    asked = {"max_wait": 0, "min_bytes": 1, "forgotten_topics_data": []} | fields
    wire.call(FETCH, 12, topics=[{"topic": topic, "partitions": [partition]}], **asked)


@pytest.fixture
def wire(broker: headrace.Broker, connect: Callable[[], Any]) -> Any:
    """A connection to the broker with topic `orders` of two partitions."""
    opened = connect()
    a_topic(opened, "orders", 2)
    return opened


def test_requests_topics_and_traffic_are_counted(broker: headrace.Broker, wire: Any) -> None:
    records = batches.build([Record(0, 1000 + n, None, b"x") for n in range(3)])
    assert produce(wire, "orders", records) == 0
    assert produce(wire, "orders", records) == 0
    assert produce(wire, "orders", records, index=7) == 3
    fetch(wire, "orders", 0)
    fetch(wire, "orders", 99)
    told = series(broker)
    first, second = ("0", "orders"), ("1", "orders")
    assert told["kafka_topic_partitions"][("orders",)] == 2
    assert told["kafka_topic_partition_current_offset"][first] == 6
    assert told["kafka_topic_partition_oldest_offset"][first] == 0
    assert told["headrace_partition_size_bytes"][first] == 2 * len(records)
    journals = {("0", "__share_group_state"): 0, ("0", "__consumer_offsets"): 0}
    assert told["headrace_produced_records_total"] == {first: 6, second: 0} | journals
    assert told["headrace_produced_batches_total"][first] == 2
    assert told["headrace_produced_bytes_total"][first] == 2 * len(records)
    assert told["headrace_fetched_bytes_total"][first] == 2 * len(records)
    assert told["headrace_request_seconds_count"][("Produce",)] == 3
    assert told["headrace_request_seconds_bucket"][("Produce", "+Inf")] == 3
    assert told["headrace_request_bytes_total"][("Produce",)] > 3 * len(records)
    assert told["headrace_response_bytes_total"][("Fetch",)] > 2 * len(records)
    assert told["headrace_request_errors_total"] == {
        ("Produce", "UNKNOWN_TOPIC_OR_PARTITION"): 1, ("Fetch", "OFFSET_OUT_OF_RANGE"): 1,
    }  # fmt: skip
    assert told["headrace_connections"][()] == 1
    assert told["headrace_journal_appends_total"][("__cluster_metadata-0",)] >= 1


def commit(wire: Any, group: str, **offsets: int) -> None:
    """Commit an offset for partition 0 of each topic, from outside the group."""
    first = {"partition_index": 0, "committed_leader_epoch": -1, "committed_metadata": None}
    topics = [
        {"name": name, "partitions": [first | {"committed_offset": offset}]}
        for name, offset in offsets.items()
    ]
    outside = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    answer = wire.call(COMMIT, 7, group_id=group, topics=topics, **outside)
    assert [one.partitions[0].error_code for one in answer.topics] == [0] * len(offsets)


def test_consumer_groups_have_the_series_of_kafka_exporter(
    broker: headrace.Broker, wire: Any
) -> None:
    a_topic(wire, "paid")
    for _ in range(2):
        produce(wire, "orders", batches.build([Record(n, 1, None, b"x") for n in range(5)]))
    commit(wire, "billing", orders=4, paid=0)
    commit(wire, "ahead", orders=99)
    told = series(broker)
    # Labels stand in the order of their names: consumergroup, partition, topic.
    assert told["kafka_consumergroup_members"] == {("billing",): 0, ("ahead",): 0}
    assert told["kafka_consumergroup_current_offset"] == {
        ("billing", "0", "orders"): 4, ("billing", "0", "paid"): 0, ("ahead", "0", "orders"): 99,
    }  # fmt: skip
    assert told["kafka_consumergroup_lag"] == {
        ("billing", "0", "orders"): 6, ("billing", "0", "paid"): 0, ("ahead", "0", "orders"): 0,
    }  # fmt: skip
    assert told["kafka_consumergroup_lag_sum"][("billing", "orders")] == 6
    assert told["kafka_consumergroup_current_offset_sum"][("billing", "orders")] == 4
    cut = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 8}]}]
    wire.call(DELETE_RECORDS, 2, topics=cut, timeout=1000)
    # Deleted records lie behind nobody.
    assert series(broker)["kafka_consumergroup_lag"][("billing", "0", "orders")] == 2
    wire.call(DELETE, 5, topic_names=["orders"], timeout=1000)
    a_topic(wire, "orders")
    assert set(series(broker)["kafka_consumergroup_lag"]) == {("billing", "0", "paid")}


def test_a_poll_that_waits_is_in_flight_and_seen_waiting(
    broker: headrace.Broker, wire: Any, connect: Callable[[], Any]
) -> None:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000_000}
    topics = [{"topic": "orders", "partitions": [partition]}]
    asked = {"max_wait": 60_000, "min_bytes": 1, "topics": topics, "forgotten_topics_data": []}
    wire.send(FETCH, 12, bytes(codec.encode_request(FETCH, 12, asked)))
    until = time.monotonic() + TIMEOUT
    while series(broker)["headrace_long_polls_waiting"][()] == 0:
        assert time.monotonic() < until, "the poll never waited"
    assert series(broker)["headrace_requests_in_flight"][()] == 1
    other = connect()
    produce(other, "orders", batches.build([Record(0, 1, None, b"x")]))
    wire.receive()
    told = series(broker)
    assert told["headrace_long_polls_waiting"][()] == 0
    assert told["headrace_requests_in_flight"][()] == 0
    # The only long one: fetches are told apart by how long they took.
    assert told["headrace_request_seconds_count"][("Fetch",)] == 1


def test_the_series_of_a_deleted_topic_go_and_a_new_one_begins_at_nothing(
    broker: headrace.Broker, wire: Any
) -> None:
    produce(wire, "orders", batches.build([Record(0, 1, None, b"x")]))
    assert "orders" in get(broker)[2]
    gone = wire.call(DELETE, 5, topic_names=["orders"], timeout=1000)
    assert gone.responses[0].error_code == 0
    assert "orders" not in get(broker)[2]
    a_topic(wire, "orders", 1)
    assert series(broker)["headrace_produced_records_total"][("0", "orders")] == 0


@pytest.mark.parametrize(
    ("granularity", "labels"),
    [("partition", {("0", "orders"), ("1", "orders")}), ("topic", {("orders",)}), ("none", set())],
)
def test_series_of_topics_are_as_fine_as_asked_for(
    granularity: str, labels: set[tuple[str, ...]],
    connecting: Callable[[headrace.Broker], AbstractContextManager[Callable[[], Any]]],
) -> None:  # fmt: skip
    settings = {"headrace.metrics.port": "0", "headrace.metrics.granularity": granularity}
    with headrace.Broker(settings=settings) as broker, connecting(broker) as connect:
        a_topic(opened := connect(), "orders", 2)
        commit(opened, "billing", orders=0)
        told = series(broker)
    produced = set(told.get("headrace_produced_bytes_total", ()))
    assert {one for one in produced if "orders" in one} == labels
    assert ("kafka_topic_partition_current_offset" in told) == (granularity == "partition")
    assert ("kafka_consumergroup_lag" in told) == (granularity == "partition")
    assert ("kafka_consumergroup_lag_sum" in told) == (granularity != "none")


def test_a_damaged_partition_is_left_out_and_what_nobody_used_is_told(
    tmp_path: Path, connecting: Callable[[headrace.Broker], AbstractContextManager[Any]]
) -> None:
    settings = {"headrace.metrics.port": "0"}
    with headrace.Broker(tmp_path, settings=settings) as broker, connecting(broker) as connect:
        a_topic(connect(), "orders", 2)
        data = batches.build([Record(0, 1, None, b"x")])
        assert [produce(connect(), "orders", data, index) for index in range(2)] == [0, 0]
    # A gap between two segments, as nothing but damage leaves it.
    (tmp_path / "orders-0" / f"{7:020d}.log").touch()
    with headrace.Broker(tmp_path, settings=settings) as broker:
        ends = series(broker)["kafka_topic_partition_current_offset"]
        assert {key: end for key, end in ends.items() if "orders" in key} == {("1", "orders"): 1}


def test_journals_of_consumer_groups_are_told(broker: headrace.Broker) -> None:
    told = series(broker)["headrace_journal_appends_total"]
    assert ("__consumer_offsets-0",) in told


def test_a_family_in_many_pieces_is_told_once_and_whole(broker: headrace.Broker, wire: Any) -> None:
    count = PIECE_SAMPLES + 3
    a_topic(wire, "wide", count)
    status, kind, text = get(broker)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert text.count("# TYPE headrace_partition_size_bytes gauge\n") == 1
    found = re.findall(r'^headrace_partition_size_bytes\{.*topic="wide",.*\} 0$', text, re.M)
    assert len(found) == count


def test_steps_that_hold_the_loop_are_shown_by_api(
    broker: headrace.Broker, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of handlers that respond at once, and of those that wait."""
    assert ("Produce",) not in series(broker).get("headrace_loop_stall_seconds_count", {})
    for module in (dispatch, loop_stalls, loop_turns):
        monkeypatch.setattr(module, "STALL_SECONDS", 0.0)
    assert produce(wire, "orders", batches.build([Record(0, 1, None, b"1")])) == 0
    a_topic(wire, "held")
    stalls = series(broker)["headrace_loop_stall_seconds_count"]
    assert stalls["Produce",] == 1
    assert stalls["CreateTopics",] >= 1
    assert ("Fetch",) not in stalls


def test_names_that_must_be_escaped_come_back_whole() -> None:
    family, name = Family("m", "gauge", "Doc.", ("group",)), 'a"b\\c\nd'
    page = b"# TYPE m gauge\n" + metrics_http._lines(family, [Sample((name,), 2)])
    (found,) = parsed(page.decode())
    assert [(one.labels, one.value) for one in found.samples] == [({"group": name}, 2)]
    (found,) = open_parsed(page.decode() + "# EOF\n")
    assert [(one.labels, one.value) for one in found.samples] == [({"group": name}, 2)]


def test_open_metrics_where_it_is_asked_for(broker: headrace.Broker, wire: Any) -> None:
    a_topic(wire, "wide", PIECE_SAMPLES + 3)
    status, kind, text = get(broker, accept=OPEN_METRICS)
    assert status == 200
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    names = {family.name for family in open_parsed(text)}
    assert {"kafka_topic_partitions", "headrace_request_seconds", "headrace_build"} <= names
    assert text.endswith("# EOF\n")
    assert text.count("# EOF") == 1


def test_every_exposed_name_is_documented_and_every_documented_one_exposed(
    broker: headrace.Broker, wire: Any
) -> None:
    suffixes = {"counter": "_total", "info": "_info"}
    exposed = {
        family.name + suffixes.get(family.type, "")
        for family in open_parsed(get(broker, accept=OPEN_METRICS)[2])
    }
    table = PAGE.read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `([a-z_]+)` \|", table, re.M))
    assert documented == exposed


def test_a_broker_with_a_partition_that_cannot_be_synced_is_not_ready() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        config = Config.parse({"headrace.durability": "fsync"})
        services = Services(config, disk, SystemClock(), uuid4)
        services.topics.load()
        await services.start()
        await services.topics.create(CreateTopic("orders", uuid4(), 1, {}))
        partition = services.partition("orders", 0)
        assert partition is not None
        partition.append_records([Record(0, 1, None, b"x")])
        assert services.trouble() is None
        disk.failing.add("sync")
        with pytest.raises(OSError, match="not mended yet"):
            await partition.durable()
        assert services.trouble() == ("orders-0 cannot be written at present; the log says why")

    asyncio.run(scenario())


def test_buckets_hold_what_is_at_most_their_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.sum == 104.0
    metrics, twin = Metrics(), Histogram(REQUEST_SECONDS)
    for value in (0.0, *REQUEST_SECONDS, 99.0):
        metrics.request(PRODUCE, value, 1, 2)
        twin.observe(value)
    assert metrics.apis[PRODUCE].seconds.counts == twin.counts
    assert metrics.apis[PRODUCE].bytes_out == 2 * len(REQUEST_SECONDS) + 4


def test_error_pairs_have_a_bound() -> None:
    metrics = Metrics()
    for code in range(5000):
        metrics.failed(PRODUCE, code)
    metrics.failed(PRODUCE, 1)
    assert len(metrics.errors) == 1000
    assert metrics.errors[PRODUCE, 1] == 2


def test_a_client_that_is_hung_up_on_is_counted_and_named(
    broker: headrace.Broker, connect: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    client = connect()
    host, port = client.socket.getsockname()
    client.send(9999, 0, b"")
    assert client.closed()
    until = time.monotonic() + TIMEOUT
    while (closed := series(broker)["headrace_connections_closed_total"])[("protocol",)] == 0:
        assert time.monotonic() < until, closed
    assert closed[("peer",)] == 0
    (line,) = (one for one in caplog.records if "closing" in one.message)
    assert line.message == f"closing {host}:{port}: API key 9999 is not served"
    assert vars(line)["peer"] == f"{host}:{port}"
