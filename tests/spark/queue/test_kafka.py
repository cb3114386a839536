"""The queue by the stock share protocol, in real queries: the same on Apache Kafka and Headrace."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from tests.spark.failed_batch import run_again, run_until_a_batch_fails
from tests.spark.queue.stock_rig import Stock, judge, stock_source

from brokers import Broker, Kafka
from headrace.spark import acknowledge, each_record, progress

pytestmark = pytest.mark.spark
AllOf = Callable[[int], list[tuple[int, int]]]


@pytest.fixture
def stock(spark: SparkSession, served: Broker, tmp_path: Path) -> Iterator[Stock]:
    spark.dataSource.register(stock_source())
    source = "headrace" if isinstance(served, Kafka) else "headrace-stock"
    made = Stock(spark, served.servers, source, tmp_path)
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


def test_progress_tells_lag_and_counts(stock: Stock) -> None:
    stock.produce(100)
    query = stock.start(stock.rows(maxOffsetsPerTrigger="40"), stock.note, availableNow=True)
    assert query.awaitTermination(300)
    told = [found for one in query.recentProgress if (found := progress(one)) and found.rows]
    assert [one.counts.acquired for one in told] == list(accumulate(one.rows for one in told))
    assert [one.counts.accepted for one in told][1:] == [one.counts.acquired for one in told][:-1]
    assert {place for one in told for place in one.lag} == {(stock.topic, 0), (stock.topic, 1)}
    assert told[0].total_lag >= told[-1].total_lag == 0


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


def test_a_batch_that_failed_runs_again_with_the_same_records(stock: Stock) -> None:
    rows = stock.rows(maxOffsetsPerTrigger="200")
    run_again(stock, rows, run_until_a_batch_fails(stock, rows))
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
    rows = stock.rows(maxOffsetsPerTrigger="100", newCheckpoint="continue")
    queries = [one.start(rows, one.note, processingTime="0 seconds") for one in (stock, other)]
    stock.produce(2000)
    stock.until(stock.finished)
    for query in queries:
        query.stop()
    other.cluster.close()
    assert sorted(stock.noted + other.noted) == all_of(2000)
