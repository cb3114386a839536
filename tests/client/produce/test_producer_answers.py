"""What the producer makes of answers that a healthy broker does not give."""

import logging
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.client.connection import Cluster, Patience
from headrace.client.errors import BrokerError, Unreachable
from headrace.client.produce.producer import Limits, Producer, RecordTooLarge
from headrace.wire.batches import BatchHeader, read_header
from headrace.wire.codec import encode_response
from headrace.wire.primitives import Reader, Writer

PRODUCE, INIT_PRODUCER_ID = 0, 22
NOT_LEADER, OUT_OF_ORDER, DUPLICATE, FENCED, UNKNOWN_PRODUCER = 6, 45, 46, 47, 59
NOT_ENOUGH_REPLICAS, TOO_LARGE = 19, 10


class Script:
    """Answers each batch with the next of `codes`, then with success; notes what it was sent."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.sent: list[BatchHeader] = []
        self.producers = 0
        self.then = 0

    def produce(self, source: Reader) -> bytes:
        source.take(2 + 2 + 4 + 4)
        source.nullable_string()
        source.take(4 + 4)
        self.sent.append(read_header(source.take(source.int32())))
        code = self.codes.pop(0) if self.codes else self.then
        out = Writer()
        out.int32(1)
        out.nullable_string("t")
        out.int32(1)
        out.int32(0)
        out.int16(code)
        out.raw(struct.pack(">qqqi", 0, -1, 0, 0))
        out.nullable_string(None)
        out.int32(0)
        return bytes(out.data)

    def identity(self, source: Reader) -> bytes:
        self.producers += 1
        made = {"error_code": 0, "producer_id": 1000 + self.producers, "producer_epoch": 0}
        return bytes(encode_response(INIT_PRODUCER_ID, 1, made))

    @property
    def told(self) -> list[tuple[int, int, int]]:
        return [(one.producer_id, one.base_sequence, one.record_count) for one in self.sent]


@pytest.fixture
def producing(broker: object) -> Script:
    script = Script()
    answers: dict[int, Callable[[Reader], bytes]] = broker.answers  # type: ignore[attr-defined]  # the scripted broker of tests/client
    answers[PRODUCE] = script.produce
    answers[INIT_PRODUCER_ID] = script.identity
    return script


def rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [b"x"] * count})


def test_sequences_go_on_from_write_to_write(producing: Script, cluster: Cluster) -> None:
    producer = Producer(cluster)
    for count in (3, 2, 1):
        producer.write("t", rows(count))
    assert producing.told == [(1001, 0, 3), (1001, 3, 2), (1001, 5, 1)]


@pytest.mark.parametrize("code", [NOT_LEADER, NOT_ENOUGH_REPLICAS])
def test_what_may_be_tried_again_is_with_the_same_sequence(
    producing: Script, cluster: Cluster, code: int
) -> None:
    producing.codes = [code, code]
    producer = Producer(cluster)
    producer.write("t", rows(3))
    producer.write("t", rows(1))
    assert producing.told == [(1001, 0, 3)] * 3 + [(1001, 3, 1)]


def test_a_duplicate_is_written(producing: Script, cluster: Cluster) -> None:
    producing.codes = [DUPLICATE]
    Producer(cluster).write("t", rows(3))
    assert producing.told == [(1001, 0, 3)]


@pytest.mark.parametrize("code", [UNKNOWN_PRODUCER, FENCED])
def test_a_producer_that_was_forgotten_goes_on_as_another_one(
    producing: Script, cluster: Cluster, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    producer = Producer(cluster)
    producer.write("t", rows(3))
    producing.codes = [code]
    with caplog.at_level(logging.WARNING, logger="headrace"):
        producer.write("t", rows(2))
    producer.write("t", rows(1))
    assert producing.told == [(1001, 0, 3), (1001, 3, 2), (1002, 0, 2), (1002, 2, 1)]
    assert "does not know producer 1001 any more" in caplog.text


def test_a_producer_forgotten_twice_for_a_batch_gives_up(
    producing: Script, cluster: Cluster
) -> None:
    producing.codes = [UNKNOWN_PRODUCER, UNKNOWN_PRODUCER]
    with pytest.raises(BrokerError, match="writing to t-0: UNKNOWN_PRODUCER_ID"):
        Producer(cluster).write("t", rows(1))


def test_a_gap_in_what_the_broker_has_fails_the_write(producing: Script, cluster: Cluster) -> None:
    producing.codes = [0, OUT_OF_ORDER]
    producer = Producer(cluster)
    producer.write("t", rows(1))
    with pytest.raises(BrokerError, match=r"OUT_OF_ORDER.*: the broker lacks records that it said"):
        producer.write("t", rows(1))


def test_patience_ends(producing: Script, broker: Any) -> None:
    producing.then = NOT_LEADER
    patience = Patience(total_s=3, first_s=0.01, most_s=0.05)
    with (
        Cluster(broker.address, patience=patience) as cluster,
        pytest.raises(Unreachable, match=r"writing to t: gave up after .*NOT_LEADER"),
    ):
        Producer(cluster).write("t", rows(1))


def test_patience_is_for_what_is_on_its_way_and_not_for_what_is_written(
    producing: Script, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=lambda: 3600.0 * min(3, len(producing.sent)))
    monkeypatch.setattr("headrace.client.connection.time", clock)
    producing.codes = [0, 0, 0, NOT_LEADER]
    Producer(cluster, limits=Limits(batch=100)).write("t", rows(40))
    again, *_ = [one.record_count for one in producing.sent[3:]]
    assert sum(one.record_count for one in producing.sent) == 40 + again


def test_what_a_write_that_failed_left_does_not_swallow_the_next_one(
    producing: Script, cluster: Cluster
) -> None:
    producing.codes = [0, TOO_LARGE]
    producer = Producer(cluster)
    producer.write("t", rows(1))
    with pytest.raises(RecordTooLarge):
        producer.write("t", rows(1))
    producer.write("t", rows(1))
    assert producing.told == [(1001, 0, 1), (1001, 1, 1), (1002, 0, 1)]
