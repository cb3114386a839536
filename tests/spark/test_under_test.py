"""A job against the broker that tests get, with a fault in its way."""

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.testing import BrokerUnderTest

pytestmark = pytest.mark.spark


def test_a_batch_reads_behind_a_fault(spark: SparkSession) -> None:
    with BrokerUnderTest() as broker:
        topic = broker.create_topic(partitions=2)
        rows = spark.createDataFrame([(f"{number}",) for number in range(8)], ["value"])
        sink = rows.write.format("headrace").mode("append").option("topic", topic)
        refused = broker.faults.add(
            api="Produce", topic=topic, error="NOT_LEADER_OR_FOLLOWER", times=1
        )
        sink.option("kafka.bootstrap.servers", broker.bootstrap_servers).save()
        with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
            ends = {(topic, index): headrace.OffsetSpec.LATEST for index in range(2)}
            assert sum(one.offset or 0 for one in admin.list_offsets(ends).values()) == 8
        dropped = broker.faults.drop(api="Fetch", topic=topic, times=1)
        source = spark.read.format("headrace").option("subscribe", topic)
        read = source.option("kafka.bootstrap.servers", broker.bootstrap_servers).load()
        found = read.selectExpr("CAST(value AS STRING) AS value").collect()
        assert sorted(row.value for row in found) == [f"{number}" for number in range(8)]
    assert (refused.hits, dropped.hits) == (1, 1)
