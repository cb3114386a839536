"""A log in a batch query against a real broker: which records each pair of bounds gives."""

from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame

from headrace.client.group_offsets import alter_group_offsets
from headrace.client.reset_settings import OUT_OF_RANGE
from headrace.client.topics import delete_records

pytestmark = pytest.mark.spark

BEGAN_MS = 1_790_000_000_000
RECORDS = 10


@pytest.fixture
def log(flow: Any) -> Any:
    """Both partitions have ten records, one a second."""
    producer = Producer({"bootstrap.servers": flow.servers})
    for number in range(2 * RECORDS):
        second = number // 2
        producer.produce("t", b"v", partition=number % 2, timestamp=BEGAN_MS + 1000 * second)
    assert producer.flush(20) == 0
    return flow


def rows(log: Any, **options: str) -> DataFrame:
    given = {name.replace("_", "."): text for name, text in options.items()}
    reader = log.spark.read.format("headrace")
    reader = reader.option("kafka.bootstrap.servers", log.servers).option("subscribe", "t")
    found: DataFrame = reader.options(**given).load()
    return found


def read(log: Any, **options: str) -> dict[int, tuple[int, int]]:
    """Of each partition with records the first offset and the last; none between is missing."""
    places = sorted((one.partition, one.offset) for one in rows(log, **options).collect())
    found = {}
    for partition in {partition for partition, _ in places}:
        offsets = [offset for where, offset in places if where == partition]
        assert offsets == list(range(offsets[0], offsets[-1] + 1))
        found[partition] = (offsets[0], offsets[-1])
    return found


def at(second: int) -> str:
    return str(BEGAN_MS + 1000 * second)


BOTH = {0: (0, 9), 1: (0, 9)}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, BOTH),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, BOTH),
        ({"startingOffsets": '{"t":{"0":3,"1":-2}}'}, {0: (3, 9), 1: (0, 9)}),
        ({"endingOffsets": '{"t":{"0":3,"1":-1}}'}, {0: (0, 2), 1: (0, 9)}),
        ({"endingOffsets": '{"t":{"0":0,"1":1}}'}, {1: (0, 0)}),
        (
            {
                "startingOffsets": '{"t":{"0":3,"1":9}}',
                "endingOffsets": '{"t":{"0":5,"1":9}}',
            },
            {0: (3, 4)},
        ),
        ({"startingTimestamp": at(4)}, {0: (4, 9), 1: (4, 9)}),
        ({"endingTimestamp": at(4)}, {0: (0, 3), 1: (0, 3)}),
        ({"endingTimestamp": at(99)}, BOTH),
        (
            {"startingOffsetsByTimestamp": f'{{"t":{{"0":{at(4)},"1":{at(8)}}}}}'},
            {0: (4, 9), 1: (8, 9)},
        ),
        (
            {"endingOffsetsByTimestamp": f'{{"t":{{"0":{at(4)},"1":{at(99)}}}}}'},
            {0: (0, 3), 1: (0, 9)},
        ),
        (
            {"startingTimestamp": at(99), "startingOffsetsByTimestampStrategy": "latest"},
            {},
        ),
        ({"startingOffsets": "committed", "kafka_group_id": "g"}, {0: (6, 9), 1: (0, 9)}),
        ({"startingOffsets": "earliest_on_start", "kafka_group_id": "g"}, {0: (6, 9), 1: (0, 9)}),
        ({"startingOffsets": "safe_latest", "kafka_group_id": "g"}, {0: (6, 9)}),
    ],
    ids=str,
)
def test_a_batch_reads_what_stands_between_its_bounds(
    log: Any, options: dict[str, str], found: dict[int, tuple[int, int]]
) -> None:
    alter_group_offsets(log.cluster, "g", {("t", 0): 6}).check()
    assert read(log, **options) == found


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"startingOffsets": "latest"}, "a batch query cannot start at latest"),
        ({"startingTimestamp": at(99)}, "t-0 has no record as late as its starting timestamp"),
        (
            {"startingTimestamp": at(5), "endingOffsets": '{"t":{"0":3,"1":-1}}'},
            "t-0 starts at offset 5, after its end 3",
        ),
        ({"endingOffsets": '{"t":{"0":99,"1":-1}}'}, "the log has 0 to 9"),
        ({"startingOffsets": '{"t":{"0":99,"1":-2}}'}, "offsets 10 to 98 are beyond the end"),
        ({"maxOffsetPerTrigger": "1"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"share_group_id": "g"}, "a share group is a stream: use spark.readStream"),
    ],
    ids=str,
)
def test_bounds_that_cannot_be_met_are_told(log: Any, options: dict[str, str], told: str) -> None:
    with pytest.raises(Exception, match=told):
        read(log, **options)


def test_what_was_removed_is_left_out_only_when_told_so(log: Any) -> None:
    delete_records(log.cluster, {("t", 0): 7})
    assert read(log) == {0: (7, 9), 1: (0, 9)}
    bounds = {"startingOffsets": '{"t":{"0":2,"1":8}}', "endingOffsets": '{"t":{"0":99,"1":-1}}'}
    with pytest.raises(Exception, match="t-0: offsets 2 to 6 were removed"):
        read(log, **bounds)
    for told in ({"failOnDataLoss": "false"}, {OUT_OF_RANGE: "nearest"}):
        assert read(log, **bounds, **told) == {0: (7, 9), 1: (8, 9)}


def test_a_partition_is_read_by_as_many_tasks_as_asked_for(log: Any) -> None:
    assert rows(log).rdd.getNumPartitions() == 2
    assert rows(log, minPartitions="5").rdd.getNumPartitions() == 5
    assert rows(log, maxRecordsPerPartition="4").rdd.getNumPartitions() == 6
    assert read(log, minPartitions="5", maxRecordsPerPartition="3") == BOTH
