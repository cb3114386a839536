"""Fetch: limits, waiting and what ends it, errors beside records, faults of the disk.

What every version answers is in `test_records.py`, sessions in `test_fetch_sessions.py`.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import headrace
from headrace.log.os_disk import OsFile
from headrace.log.segments import SegmentedLog
from headrace.wire import batches, codec
from headrace.wire.batches import Record

Connect = Callable[[], Any]
LONG_MS = 60_000
VALUE = b"v" * 1000
ONE = len(batches.build([Record(0, 1000, None, VALUE)]))


@pytest.fixture
def wire(connect: Connect) -> Any:
    """A connection to a broker with topic `orders` of three partitions."""
    opened = connect()
    topic = {"name": "orders", "num_partitions": 3, "replication_factor": 1}
    created = opened.call(
        19, 7, topics=[topic | {"assignments": [], "configs": []}], timeout=0, validate_only=False
    )
    assert created.topics[0].error_code == 0
    return opened


def produce(wire: Any, index: int = 0, count: int = 1) -> None:
    """Batches of one record of `ONE` bytes."""
    for _ in range(count):
        records = batches.build([Record(0, 1000, None, VALUE)])
        topics = [{"name": "orders", "partition_data": [{"index": index, "records": records}]}]
        answer = wire.call(0, 9, transactional_id=None, acks=1, timeout=100, topic_data=topics)
        assert answer.responses[0].partition_responses[0].error_code == 0


def fetch(wire: Any, *wanted: tuple[int, int], each: int = 1 << 20, **fields: Any) -> list[Any]:
    """Fetch (partition, offset) pairs; the partitions of the answer."""
    topic = fields.pop("topic", "orders")
    partitions = [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": each}
        for index, offset in wanted
    ]
    defaults = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0}
    answer = wire.call(
        1, 12, topics=[{"topic": topic, "partitions": partitions}], forgotten_topics_data=[],
        **(defaults | fields),
    )  # fmt: skip
    return list(answer.responses[0].partitions)


def sizes(parts: list[Any]) -> list[int]:
    return [len(part.records) // ONE for part in parts]


@pytest.mark.parametrize(
    ("each", "most", "found"),
    [
        (1 << 20, 1 << 20, [3, 3, 3]),
        (2 * ONE + 1, 1 << 20, [2, 2, 2]),
        (1, 1, [1, 0, 0]),  # the first batch, whole
        (1, 1 << 20, [1, 0, 0]),  # the others have no batch that small
        (0, 1 << 20, [1, 0, 0]),
        (2 * ONE, 3 * ONE + 5, [2, 1, 0]),
        (1 << 20, 3 * ONE, [3, 0, 0]),
        (1 << 20, 4 * ONE - 1, [3, 0, 0]),
    ],
)
def test_limits_of_a_partition_and_of_the_answer(
    wire: Any, each: int, most: int, found: list[int]
) -> None:
    for index in range(3):
        produce(wire, index, 3)
    wanted = [(index, 0) for index in range(3)]
    parts = fetch(wire, *wanted, each=each, max_bytes=most)
    assert sizes(parts) == found
    assert [part.high_watermark for part in parts] == [3, 3, 3]


def test_the_first_whole_batch_is_the_first_there_is(wire: Any) -> None:
    produce(wire, 1)
    produce(wire, 2)
    assert sizes(fetch(wire, (0, 0), (1, 0), (2, 0), each=1)) == [0, 1, 0]


class Poll:
    """A long poll in a thread of its own."""

    def __init__(self, wire: Any, *wanted: tuple[int, int], **fields: Any) -> None:
        self.found: list[Any] | None = None
        fields = {"max_wait": LONG_MS} | fields
        self._thread = threading.Thread(target=self._run, args=(wire, wanted, fields))
        self._thread.start()

    def _run(self, wire: Any, wanted: tuple[tuple[int, int], ...], fields: dict[str, Any]) -> None:
        self.found = fetch(wire, *wanted, **fields)

    def result(self) -> list[Any]:
        self._thread.join(30)
        assert self.found is not None, "the poll still waits"
        return self.found


def test_a_poll_is_woken_by_any_of_its_partitions(wire: Any, connect: Connect) -> None:
    for index in range(3):
        poll = Poll(connect(), *[(one, int(one < index)) for one in range(3)])
        produce(wire, index)
        assert sizes(poll.result()) == [int(index == one) for one in range(3)]


def test_what_was_found_before_a_wait_is_sent_with_the_rest(wire: Any, connect: Connect) -> None:
    produce(wire, 0)
    poll = Poll(connect(), (0, 0), (1, 0), (2, 0), min_bytes=4 * ONE)
    produce(wire, 1)
    produce(wire, 0)
    assert poll.found is None
    produce(wire, 2)
    assert sizes(poll.result()) == [2, 1, 1]


@pytest.mark.parametrize(
    "fields",
    [{"min_bytes": 0}, {"min_bytes": -1}, {"max_wait": 0}, {"max_wait": -1}],
)
def test_who_need_not_wait_is_answered_at_once(wire: Any, fields: dict[str, int]) -> None:
    started = time.monotonic()
    assert sizes(fetch(wire, (0, 0), **({"max_wait": LONG_MS} | fields))) == [0]
    assert time.monotonic() - started < LONG_MS / 1000 / 2


@pytest.mark.parametrize(
    "offset",
    [5, -1],
)
def test_an_error_ends_a_wait(wire: Any, offset: int) -> None:
    good, bad = fetch(wire, (0, 0), (1, offset), max_wait=LONG_MS)
    assert (good.error_code, good.high_watermark) == (0, 0)
    assert (bad.error_code, bad.high_watermark, bad.last_stable_offset) == (1, -1, -1)
    assert bad.log_start_offset == -1


def test_a_partition_nobody_knows_does_not_hasten_an_answer(wire: Any, connect: Connect) -> None:
    poll = Poll(connect(), (0, 0), (9, 0))
    produce(wire, 0)
    good, unknown = poll.result()
    assert (sizes([good]), unknown.error_code) == ([1], 3)
    # Alone, there is nothing to wait for.
    assert fetch(wire, (9, 0), max_wait=LONG_MS)[0].error_code == 3
    assert fetch(wire, (0, 0), max_wait=LONG_MS, topic="nothing")[0].error_code == 3


@pytest.mark.parametrize("isolation", [0, 1])
def test_aborted_transactions_are_null_or_none(wire: Any, isolation: int) -> None:
    good, unknown = fetch(wire, (0, 0), (9, 0), isolation_level=isolation)
    assert good.aborted_transactions == (() if isolation else None)
    assert unknown.aborted_transactions == ()
    (outside,) = fetch(wire, (0, 5), isolation_level=isolation)
    assert outside.aborted_transactions is None


def test_a_fault_of_the_disk_is_told_to_the_client_and_in_the_log(
    wire: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: OsFile, count: int, position: int) -> bytes:
        raise OSError(5, "Input/output error")

    produce(wire)
    with monkeypatch.context() as patched:
        patched.setattr(OsFile, "pread", fails)
        (part,) = fetch(wire, (0, 0), max_wait=LONG_MS)
    assert (part.error_code, part.high_watermark, part.records) == (56, -1, b"")
    assert [r.getMessage() for r in caplog.records] == [
        "orders-0: read failed: [Errno 5] Input/output error"
    ]
    assert sizes(fetch(wire, (0, 0))) == [1]


def test_damage_is_told(wire: Any, broker: Any, caplog: pytest.LogCaptureFixture) -> None:
    produce(wire)
    file = broker.data_dir / "orders-0" / f"{0:020d}.log"
    file.write_bytes(bytes(file.stat().st_size))
    assert fetch(wire, (0, 0))[0].error_code == 56
    assert "orders-0: read failed" in caplog.text
    assert f"{0:020d}.log: magic 0, not 2; run `headrace check`" in caplog.text


def test_pipelined_polls_are_answered_in_order(wire: Any, connect: Connect) -> None:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    body = codec.encode_request(
        1, 12, {
            "max_wait": LONG_MS, "min_bytes": 1, "forgotten_topics_data": [],
            "topics": [{"topic": "orders", "partitions": [partition]}],
        },
    )  # fmt: skip
    other = connect()
    for number in range(3):
        other.send(1, 12, bytes(body), correlation_id=number)
    other.send(18, 0, b"", correlation_id=3)
    produce(wire)
    assert [other.receive()[0] for _ in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_who_waits_for_much_is_not_read_for_with_every_append(
    connecting: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """And is answered with all that came once it is enough, or once the time is up."""
    reads: list[int] = []
    read_bytes = SegmentedLog.read_bytes

    def counted(log: SegmentedLog, offset: int, *given: Any, **limits: Any) -> Any:
        reads.append(offset)
        return read_bytes(log, offset, *given, **limits)

    monkeypatch.setattr(SegmentedLog, "read_bytes", counted)
    settings = {"headrace.durability": durability}
    with headrace.Broker(settings=settings) as broker, connecting(broker) as connect:
        wire, waiting = connect(), connect()
        assert wire.create("orders", num_partitions=2).error_code == 0
        found: list[Any] = []
        wait = {"min_bytes": 20 * ONE, "max_wait": LONG_MS}
        poll = threading.Thread(target=lambda: found.append(fetch(waiting, (0, 0), (1, 0), **wait)))
        poll.start()
        for index in range(19):
            produce(wire, index % 2)
        assert poll.is_alive()
        if durability == "os":
            assert len(reads) <= 2 * 2, "at first, and perhaps when the task began"
        produce(wire)
        poll.join(30)
        assert sizes(found[0]) == [11, 9] if found[0][0].partition_index == 0 else [9, 11]
        late = fetch(waiting, (0, 0), min_bytes=100 * ONE, max_wait=1)
        assert sizes(late) == [11]
