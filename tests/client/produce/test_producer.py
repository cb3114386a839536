"""The producer against a real broker: what arrives, in which order, and that it arrives once."""

import random
import threading
from typing import Any

import pyarrow as pa
import pytest

import headrace
from brokers import Headrace, prepared
from headrace.client.admin import create_topic
from headrace.client.connection import Cluster, Patience
from headrace.client.errors import BrokerError
from headrace.client.produce.producer import Limits, Producer, RecordTooLarge
from headrace.client.records import read_records
from headrace.client.topics import add_partitions, delete_topic
from headrace.demo.server import FreePort
from headrace.wire.columns import SCHEMA
from headrace.wire.compression import Codec

from .conftest import ReadBack

PRODUCE = 0


def rows(values: list[bytes | None], **columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), **columns})


@pytest.mark.parametrize("codec", Codec)
def test_rows_arrive_as_they_were_written(
    real: Cluster, topic: str, read_back: ReadBack, codec: Codec
) -> None:
    headers: list[Any] = [None, [], [("a", b"1"), ("a", None)]]
    given = rows(
        [b"one", None, b""],
        key=pa.array([b"k", b"", None], pa.binary()),
        headers=pa.array(headers, SCHEMA.field("headers").type),
        timestamp=pa.array([1_000_000, 2_000_000, 3_000_000], pa.timestamp("us", tz="UTC")),
        partition=pa.array([2, 2, 2], pa.int32()),
    )
    Producer(real, codec=codec).write(topic, given)
    (found,) = read_back(topic).values()
    assert [(one.key, one.value, one.headers, one.timestamp) for one in found] == [
        (b"k", b"one", (), 1000),
        (b"", None, (), 2000),
        (None, b"", (("a", b"1"), ("a", None)), 3000),
    ]


def test_text_is_written_as_utf_8_and_what_is_not_there_as_null(
    real: Cluster, topic: str, read_back: ReadBack
) -> None:
    Producer(real).write(topic, pa.RecordBatch.from_pydict({"value": ["straße"], "other": [1]}))
    ((found,),) = read_back(topic).values()
    assert (found.key, found.value, found.headers) == (None, "straße".encode(), ())


def test_rows_of_a_partition_keep_their_order_over_batches_requests_and_writes(
    real: Cluster, topic: str, read_back: ReadBack
) -> None:
    producer = Producer(real, limits=Limits(request=4_000, batch=1_000))
    wanted: dict[int, list[bytes | None]] = {0: [], 1: [], 2: []}
    dice = random.Random(1)
    for _ in range(3):
        values: list[bytes | None] = [b"%d" % dice.randrange(10**30) for _ in range(500)]
        places = [dice.randrange(3) for _ in values]
        for at, value in zip(places, values, strict=True):
            wanted[at].append(value)
        producer.write(topic, rows(values, partition=pa.array(places, pa.int32())))
    found = {at: [one.value for one in records] for at, records in read_back(topic).items()}
    assert found == wanted


def test_nothing_to_write_asks_nobody() -> None:
    Producer(Cluster("127.0.0.1:1")).write("t", rows([]))


class Forgetful(Cluster):
    """Loses answers: the broker did what was asked, and nobody is told."""

    def __init__(self, servers: str) -> None:
        super().__init__(servers, patience=Patience(total_s=60, first_s=0.001, most_s=0.01))
        self.lost = 0
        self._dice = random.Random(3)

    def exchange(self, address: Any, key: int, *rest: Any, **more: Any) -> Any:
        answer = super().exchange(address, key, *rest, **more)
        if key == PRODUCE and self._dice.random() < 0.5:
            self.lost += 1
            raise ConnectionError("lost")
        return answer


def test_a_lost_answer_repeats_nothing_and_reorders_nothing(
    real: Cluster, topic: str, read_back: ReadBack
) -> None:
    values: list[bytes | None] = [b"%d" % number for number in range(2000)]
    with Forgetful(real.bootstrap_servers) as forgetful:
        producer = Producer(forgetful, limits=Limits(batch=500))
        for start in range(0, 2000, 100):
            part = values[start : start + 100]
            producer.write(topic, rows(part, partition=pa.array([1] * 100, pa.int32())))
        assert forgetful.lost > 10
    assert [one.value for one in read_back(topic)[1]] == values


def test_a_broker_killed_again_and_again_has_every_record_once() -> None:
    with prepared(Headrace) as broker:
        broker.launch()
        with Cluster(broker.servers, patience=Patience(total_s=120, first_s=0.01)) as cluster:
            create_topic(cluster, "t", 1)
            done = threading.Event()
            written: list[bytes | None] = []

            def write() -> None:
                with Cluster(broker.servers, patience=Patience(total_s=120)) as own:
                    producer = Producer(own)
                    while not done.is_set():
                        part: list[bytes | None] = [
                            b"%d" % number for number in range(len(written), len(written) + 50)
                        ]
                        producer.write("t", rows(part))
                        written.extend(part)

            writer = threading.Thread(target=write)
            writer.start()
            for _ in range(3):
                before = len(written)
                while len(written) < before + 500:
                    assert writer.is_alive()
                    done.wait(0.01)
                broker.kill()
                broker.launch()
            done.set()
            writer.join()
            found = [one.value for one in read_records(cluster, "t", 0)]
        broker.stop()
    assert len(written) >= 1500
    assert found == written


def test_a_topic_that_takes_small_batches_only_gets_them(
    real: Cluster, topic: str, read_back: ReadBack
) -> None:
    name = f"{topic}-small"
    create_topic(real, name, 1, configs={"max.message.bytes": "5000"})
    values: list[bytes | None] = [random.Random(at).randbytes(100) for at in range(1000)]
    Producer(real, codec=Codec.ZSTD).write(name, rows(values))
    assert [one.value for one in read_back(name)[0]] == values


def test_a_partition_that_is_added_later_may_be_named(
    real: Cluster, topic: str, read_back: ReadBack, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(real)
    producer.write(topic, rows([b"before"], partition=pa.array([0], pa.int32())))
    count = len(real.partitions(topic))
    add_partitions(real, topic, count + 1)
    producer.write(topic, rows([b"after"], partition=pa.array([count], pa.int32())))
    assert [one.value for one in read_back(topic)[count]] == [b"after"]
    with pytest.raises(ValueError, match=f"partition {count + 1} is named"):
        producer.write(topic, rows([b"never"], partition=pa.array([count + 1], pa.int32())))
    add_partitions(real, topic, count + 2)
    monkeypatch.setattr("headrace.client.produce.producer._METADATA_AGE_S_MAX", 0.0)
    producer.write(
        topic, rows([str(n).encode() for n in range(100)], key=pa.array(map(str, range(100))))
    )
    assert count + 1 in read_back(topic)


def test_a_record_too_large_for_its_topic_is_named(real: Cluster, topic: str) -> None:
    name = f"{topic}-small"
    create_topic(real, name, 1, configs={"max.message.bytes": "5000"})
    with pytest.raises(RecordTooLarge, match=rf"a record for {name}-0 takes 60\d\d bytes.*max\.me"):
        Producer(real).write(name, rows([b"a", b"x" * 6000, b"b"]))


def test_a_record_too_large_for_a_request_is_named(real: Cluster, topic: str) -> None:
    producer = Producer(real, limits=Limits(request=5000))
    with pytest.raises(RecordTooLarge, match=r"at most 5000; raise kafka\.max\.request\.size"):
        producer.write(topic, rows([b"x" * 6000]))


def test_a_topic_that_is_not_there_is_told_at_once(real: Cluster) -> None:
    with pytest.raises(BrokerError, match=r"'absent': UNKNOWN_TOPIC_OR_PARTITION: .*create"):
        Producer(real).write("absent", rows([b"x"]))


def test_a_topic_deleted_between_writes_is_told(real: Cluster, topic: str) -> None:
    producer = Producer(real)
    producer.write(topic, rows([b"x"]))
    delete_topic(real, topic)
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        producer.write(topic, rows([b"x"]))


def test_what_the_broker_says_against_records_is_told(real: Cluster, topic: str) -> None:
    name = f"{topic}-compacted"
    create_topic(real, name, 1, configs={"cleanup.policy": "compact"})
    with pytest.raises(BrokerError, match=rf"writing to {name}-0: INVALID_RECORD: .*key"):
        Producer(real).write(name, rows([b"x"]))


def test_a_broker_that_restarts_costs_time_only(tmp_path: Any) -> None:
    free = FreePort()
    with (
        headrace.Broker(data_dir=tmp_path, port=free.number) as broker,
        Cluster(broker.bootstrap_servers) as cluster,
    ):
        create_topic(cluster, "t", 1)
        producer = Producer(cluster)
        producer.write("t", rows([b"before"]))
        broker.stop()
        starting = threading.Timer(0.3, broker.start)
        starting.start()
        producer.write("t", rows([b"after"]))
        starting.join()
        assert [one.value for one in read_records(cluster, "t", 0)] == [b"before", b"after"]
