"""The queue by the stock share protocol, in real queries: the same on Apache Kafka and Headrace."""

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType
from tests.spark.queue.stock_rig import Stock, judge, stock_source

from brokers import BROKERS, running
from headrace.spark import acknowledge, each_record
from headrace.spark.queue.kafka import KafkaDriver
from headrace.spark.queue.reader import ShareReader

pytestmark = pytest.mark.spark
AllOf = Callable[[int], list[tuple[int, int]]]


@pytest.fixture(scope="module", params=["headrace", "kafka"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Which broker it is, and its address."""
    if request.param == "kafka" and not os.environ.get("HEADRACE_EXPECT_JAVA"):
        missing = [name for name in ("java", "mvn") if shutil.which(name) is None]
        if missing:
            pytest.skip(f"needs {' and '.join(missing)} (Debian: apt install default-jdk maven)")
    with running(BROKERS[request.param]) as broker:
        yield request.param, broker.servers


@pytest.fixture
def stock(spark: SparkSession, served: tuple[str, str], tmp_path: Path) -> Iterator[Stock]:
    kind, servers = served
    spark.dataSource.register(stock_source())
    made = Stock(spark, servers, "headrace" if kind == "kafka" else "headrace-stock", tmp_path)
    yield made
    for query in spark.streams.active:
        query.stop()
    made.cluster.close()


def test_everything_is_read_once_in_batches_of_the_size_asked_for(
    stock: Stock, all_of: AllOf
) -> None:
    stock.produce(1000)
    stock.run(stock.rows(maxOffsetsPerTrigger="300"), stock.note)
    assert stock.noted == all_of(1000)
    assert max(map(len, stock.seen.values())) <= 300
    assert stock.finished()


def test_released_records_come_again_and_rejected_ones_do_not(stock: Stock) -> None:
    stock.produce(200)
    found: list[Row] = []
    rows = each_record(stock.rows(includeDelivery="true"), judge, "number int, deliveries int")
    sink = acknowledge(
        lambda good, _: found.extend(good.collect()),
        bootstrap_servers=stock.servers,
        group=stock.group,
    )
    stock.run(rows, sink)
    expected = Counter(number for number in range(200) if number % 10 != 2)
    assert Counter(row.number for row in found) == expected
    assert {row.deliveries for row in found if row.number % 10 == 1} == {2}
    assert {row.deliveries for row in found if row.number % 10 != 1} == {1}
    assert stock.finished()


def test_a_batch_that_failed_runs_again_with_the_same_records(stock: Stock, all_of: AllOf) -> None:
    stock.produce(500)
    first: dict[int, list[tuple[int, int]]] = {}

    def failing(rows: DataFrame, batch_id: int) -> None:
        stock.note(rows, batch_id)
        if batch_id == 1:
            first.update(stock.seen)
            raise RuntimeError("sink is full")

    rows = stock.rows(maxOffsetsPerTrigger="200")
    with pytest.raises(StreamingQueryException, match="sink is full"):
        stock.run(rows, failing)
    stock.produce(10)
    stock.run(rows, stock.note)
    assert stock.seen[1] == first[1]
    assert stock.noted == all_of(510)
    assert stock.finished()


def test_a_query_stopped_after_a_batch_commits_it_at_its_next_start(
    stock: Stock, all_of: AllOf
) -> None:
    stock.produce(100)
    done = threading.Event()

    def once(rows: DataFrame, batch_id: int) -> None:
        stock.note(rows, batch_id)
        done.set()

    query = stock.start(stock.rows(), once, processingTime="1 second")
    assert done.wait(120)
    stock.until(lambda: (stock.folder / "checkpoint" / "commits" / "0").exists())
    query.stop()
    stock.run(stock.rows(), stock.note)
    assert stock.noted == all_of(100)
    assert stock.finished()


def test_two_queries_share_a_group(stock: Stock, all_of: AllOf, tmp_path: Path) -> None:
    other = Stock(stock.spark, stock.servers, stock.source, tmp_path / "other")
    other.topic, other.group = stock.topic, stock.group
    rows = stock.rows(maxOffsetsPerTrigger="100")
    queries = [one.start(rows, one.note, processingTime="0 seconds") for one in (stock, other)]
    stock.produce(2000)
    stock.until(stock.finished)
    for query in queries:
        query.stop()
    other.cluster.close()
    assert sorted(stock.noted + other.noted) == all_of(2000)


@pytest.fixture
def reader(stock: Stock) -> Iterator[ShareReader]:
    """The reader as Spark's driver-side process has it, without the process."""
    found = ShareReader(stock.options(), StructType(), KafkaDriver)
    yield found
    found.stop()


def acquired(reader: ShareReader, begin: dict[str, Any], most: int = 1000) -> dict[str, Any]:
    """The next batch, once there is one."""
    found = begin
    Stock.until(lambda: found.update(reader.latestOffset(begin, ReadMaxRows(most))) or found != {})
    return found
