"""What `wire.columns` encodes: a broker takes it, and an ordinary client reads it back."""

from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import headrace
from headrace.client.admin import LogEnd, log_end
from headrace.client.connection import Cluster
from headrace.wire import batches
from headrace.wire.columns import SCHEMA, encode
from headrace.wire.compression import Codec

TOPIC, COUNT, TIMEOUT = "encoded", 1000, 10
PRODUCE, INIT_PRODUCER_ID = (0, 9), (22, 4)

ROWS = [
    {
        "key": b"%d" % n if n % 7 else None,
        "value": b"v" * (n % 300) if n % 11 else None,
        "timestamp": 1_790_000_000_000_000 + 1000 * n,
        "headers": [{"key": "trace", "value": b"%d" % n}, {"key": "none", "value": None}] * (n % 2)
        or None,
    }
    for n in range(COUNT)
]


def told(message: Message) -> dict[str, Any]:
    headers = message.headers() or []
    return {
        "key": message.key(),
        "value": message.value(),
        "timestamp": message.timestamp()[1] * 1000,
        "headers": [dict(zip(("key", "value"), pair, strict=True)) for pair in headers] or None,
    }


def read(broker: headrace.Broker) -> list[dict[str, Any]]:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "unused"}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[Message] = []
    while len(found) < COUNT and (more := consumer.consume(COUNT - len(found), TIMEOUT)):
        found += more
    consumer.close()
    assert [message.error() for message in found if message.error()] == []
    assert [message.offset() for message in found] == list(range(COUNT))
    return [told(message) for message in found]


@pytest.mark.parametrize("codec", Codec)
def test_a_client_reads_what_was_encoded(broker: headrace.Broker, codec: Codec) -> None:
    rows = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(TIMEOUT)
    with Cluster(broker.bootstrap_servers) as cluster:
        asked = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1}
        producer = cluster.ask(*INIT_PRODUCER_ID, asked | {"producer_epoch": -1})
        made = encode(
            rows,
            timestamp_ms=0,
            batch_bytes_max=16 << 10,
            codec=codec,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
        )
        sent = 0
        for one in made:
            partition = {"index": 0, "records": one}
            data = [{"name": TOPIC, "partition_data": [partition]}]
            fields = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": data}
            part = cluster.ask(*PRODUCE, fields).responses[0].partition_responses[0]
            assert (part.error_code, part.base_offset) == (0, sent)
            sent += batches.read_header(one).record_count
        assert log_end(cluster, TOPIC, 0, LogEnd.LATEST) == COUNT
    assert read(broker) == ROWS
