"""Requests that are decoded in a thread: too many elements, and peers that hang up meanwhile."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.budgets import DECODE_BYTES_MAX
from headrace.broker.decoding_threads import DecodingThreads
from headrace.wire import batches, codec
from headrace.wire.batches import Record

Connect = Callable[[], Any]
PRODUCE, METADATA, COMMIT, FETCH, DELETE_RECORDS = 0, 3, 8, 9, 21
CONSUMER_HEARTBEAT, LIST_OFFSETS, SHARE_ACKNOWLEDGE = 68, 2, 79
INVALID_REQUEST = 42
MANY, FAR_TOO_MANY = 11_000, 41_000  # 10,000 elements are accepted
WAIT_SECONDS = 30


def beat(count: int) -> dict[str, Any]:
    owned = [{"topic_id": None, "partitions": list(range(count))}]
    return {"group_id": "g", "member_id": "m" * 22, "member_epoch": 0, "instance_id": None,
            "rack_id": None, "rebalance_timeout": 1000, "subscribed_topic_names": ["a"],
            "subscribed_topic_regex": None, "server_assignor": None,
            "topic_partitions": owned}  # fmt: skip


def deletions(count: int) -> dict[str, Any]:
    partitions = [{"partition_index": n, "offset": 0} for n in range(count)]
    return {"topics": [{"name": "orders", "partitions": partitions}], "timeout": 1}


def names(count: int) -> dict[str, Any]:
    return {"topics": [{"name": str(n)} for n in range(count)]}


def test_each_part_of_a_request_with_too_many_elements_is_refused(
    connect: Connect, caplog: Any
) -> None:
    wire = connect()
    (topic,) = wire.call(DELETE_RECORDS, 2, **deletions(MANY)).topics
    assert topic.name == "orders"
    assert [one.partition_index for one in topic.partitions] == list(range(MANY))
    assert {one.error_code for one in topic.partitions} == {INVALID_REQUEST}
    topics = wire.call(METADATA, 1, **names(MANY)).topics
    assert {one.name for one in topics} == {str(n) for n in range(MANY)}
    assert {one.error_code for one in topics} == {INVALID_REQUEST}
    assert "headrace.max.request.elements" in caplog.text


@pytest.mark.parametrize("count", [MANY, FAR_TOO_MANY])
def test_a_heartbeat_with_too_many_elements_is_refused(connect: Connect, count: int) -> None:
    wire = connect()
    answer = wire.call(CONSUMER_HEARTBEAT, 1, **beat(count))
    assert answer.error_code == INVALID_REQUEST
    assert "headrace.max.request.elements" in answer.error_message
    assert wire.call(18, 0).error_code == 0


def test_far_too_many_elements_end_a_connection_that_has_no_other_error(
    connect: Connect, caplog: Any
) -> None:
    wire, bystander = connect(), connect()
    wire.send(METADATA, 1, bytes(codec.encode_request(METADATA, 1, names(FAR_TOO_MANY))))
    assert wire.closed()
    assert "Metadata version 1: more array elements than headrace.max" in caplog.text
    assert bystander.call(18, 0).error_code == 0


def commit(offset: int) -> bytes:
    """A commit of two offsets that is large for its metadata."""
    partitions = [
        {"partition_index": n, "committed_offset": offset, "committed_leader_epoch": -1,
         "committed_metadata": "m" * 4000} for n in range(3)
    ]  # fmt: skip
    fields = {
        "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "",
        "group_instance_id": None, "topics": [{"name": "orders", "partitions": partitions}],
    }  # fmt: skip
    body = bytes(codec.encode_request(COMMIT, 8, fields))
    assert len(body) > DECODE_BYTES_MAX
    return body


class Gate:
    """Holds work in threads until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        run = DecodingThreads.run

        async def gated(threads: DecodingThreads, work: Callable[[], Any]) -> Any:
            self.entered.set()
            await asyncio.get_running_loop().run_in_executor(None, self.opened.wait)
            return await run(threads, work)

        monkeypatch.setattr(DecodingThreads, "run", gated)


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_requests_are_carried_out_in_order_though_the_peer_hung_up(
    connect: Connect, broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire, other = connect(), connect()
    wire.create("orders", num_partitions=3)

    def committed() -> int:
        groups = [{"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0]}]}]
        answer = other.call(FETCH, 8, groups=groups, require_stable=False)
        return int(answer.groups[0].topics[0].partitions[0].committed_offset)

    def ends() -> int:
        one = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
        topics = [{"name": "orders", "partitions": [one]}]
        answer = other.call(LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=topics)
        return int(answer.topics[0].partitions[0].offset)

    gate = Gate(monkeypatch)
    record = batches.build([Record(0, 1000, None, b"v")])
    produce = {"transactional_id": None, "acks": 1, "timeout": 1000, "topic_data": [
        {"name": "orders", "partition_data": [{"index": 0, "records": record}]}]}  # fmt: skip
    for offset in (7, 8):
        wire.send(COMMIT, 8, commit(offset))
    wire.send(PRODUCE, 8, bytes(codec.encode_request(PRODUCE, 8, produce)))
    assert gate.entered.wait(WAIT_SECONDS)
    wire.close()
    assert committed() == -1
    gate.opened.set()
    until(lambda: ends() == 1)
    assert committed() == 8


def test_a_stop_waits_for_requests_of_peers_that_hung_up(
    connecting: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import headrace

    with headrace.Broker(tmp_path) as broker, connecting(broker) as connect:
        connect().create("orders", num_partitions=3)
        gate = Gate(monkeypatch)
        wire = connect()
        wire.send(COMMIT, 8, commit(7))
        assert gate.entered.wait(WAIT_SECONDS)
        wire.close()
        threading.Timer(0.2, gate.opened.set).start()
    with headrace.Broker(tmp_path) as broker, connecting(broker) as connect:
        groups = [{"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0]}]}]
        answer = connect().call(FETCH, 8, groups=groups, require_stable=False)
        assert answer.groups[0].topics[0].partitions[0].committed_offset == 7
