"""What one client may cost the others: memory, elements, connections, groups, patterns."""

import asyncio
import contextlib
import errno
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import pytest
from tests.broker.metrics_rig import METRICS, series

import headrace
from headrace.broker import budgets, topic_patterns
from headrace.broker.budgets import Budgets
from headrace.broker.config import Config
from headrace.broker.decoding_threads import DecodingThreads
from headrace.broker.errors import Code
from headrace.broker.handlers import fetch, fetch_messages, offset_commit
from headrace.broker.loop_stalls import STALL_SECONDS, LoopStalls
from headrace.broker.partition import Partition
from headrace.broker.topic_patterns import Patterns, matching
from headrace.core.errors import Refused, Why
from headrace.core.share_session import Continue, ShareSessions
from headrace.core.types import MemberId
from headrace.wire import batches, codec
from headrace.wire.batches import Record
from headrace.wire.frames import STAGING_BYTES

Connect = Callable[[], Any]
BROKER_SETTINGS = {
    "socket.request.max.bytes": 4_000_000,
    "queued.max.request.bytes": 4_000_000,
    "headrace.queued.max.response.bytes": 4_000_000,
    "headrace.groups.max.bytes": 1_048_576,
    "headrace.max.groups": 50,
    "headrace.metrics.port": "0",
}
TRIES = 3
WAIT_SECONDS = 30


def fetch_of(
    partitions: Iterable[int], *, max_wait: int = 0, min_bytes: int = 1, bytes_max: int = 1 << 20
) -> dict[str, Any]:
    """Return the fields of a Fetch from the start of partitions of `orders`, without a session."""
    named = [
        {"partition": n, "current_leader_epoch": -1, "fetch_offset": 0, "log_start_offset": -1,
         "partition_max_bytes": bytes_max} for n in partitions
    ]  # fmt: skip
    return {
        "replica_id": -1, "max_wait": max_wait, "min_bytes": min_bytes, "max_bytes": 1 << 30,
        "isolation_level": 0, "session_id": 0, "session_epoch": -1, "rack_id": "",
        "topics": [{"topic": "orders", "partitions": named}], "forgotten_topics_data": [],
    }  # fmt: skip


MANY = 4000  # of the same name in one request


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def config_of(name: str) -> dict[str, Any]:
    return {"resource_type": 2, "resource_name": name, "configuration_keys": None}


# API, version, request with a name or a partition MANY times, and the most bytes of its response.
# The first ones are those whose response could be larger than the request; what is not listed has a
# response of a size that does not depend on the request, or refuses names that come twice.
REPEATED: list[tuple[int, int, dict[str, Any], int]] = [
    (3, 1, {"topics": [{"name": "orders"}] * MANY}, 10_000),
    (32, 4, {"resources": [config_of("orders")] * MANY, "include_synonyms": True,
             "include_documentation": True}, 40_000),
    (61, 0, {"topics": [{"name": "orders", "partition_indexes": [0] * MANY}]}, 1000),
    (9, 8, {"require_stable": False, "groups": [{"group_id": "g", "topics": [
        {"name": "orders", "partition_indexes": [0] * MANY}]}]}, 1000),
    (15, 5, {"groups": ["g"] * MANY, "include_authorized_operations": False}, 1000),
    (69, 1, {"group_ids": ["g"] * MANY, "include_authorized_operations": False}, 1000),
    (77, 1, {"group_ids": ["g"] * MANY, "include_authorized_operations": False}, 1000),
    (75, 0, {"topics": [{"name": "orders"}] * MANY, "response_partition_limit": 2000,
             "cursor": None}, 10_000),
    (90, 0, {"groups": [{"group_id": "g", "topics": None}] * MANY}, 1000),
    (42, 2, {"groups_names": ["g"] * MANY}, 1000),
    (23, 4, {"replica_id": -1, "topics": [{"topic": "orders", "partitions": [
        {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}] * MANY}]}, 1000),
    (10, 4, {"key_type": 0, "coordinator_keys": ["g"] * MANY}, 1000),
    # In proportion to the request.
    (2, 5, {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "orders", "partitions": [
        {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}] * MANY}]},
     MANY * 40),
    (43, 2, {"election_type": 0, "timeout": 1, "topic_partitions": [
        {"topic": "t" * 20_000, "partitions": list(range(MANY))}]}, MANY * 50),
    (35, 1, {"topics": [{"topic": "orders", "partitions": [0] * MANY}]}, 10_000),
]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "version", "fields", "bytes_max"), REPEATED, ids=[str(one[0]) for one in REPEATED]
)
def test_what_is_named_often_is_answered_within_a_bound(
    connect: Connect, key: int, version: int, fields: dict[str, Any], bytes_max: int
) -> None:
    wire = connect()
    wire.create("orders", num_partitions=20)
    wire.send(key, version, bytes(codec.encode_request(key, version, fields)))
    assert len(wire.receive()[1]) <= bytes_max


@pytest.mark.parametrize("times", [1000, 250])
def test_a_fetch_reads_a_partition_once(connect: Connect, times: int) -> None:
    wire = connect()
    wire.create("orders")
    record = batches.build([Record(0, 1000, None, bytes(1000))])
    topics = [{"name": "orders", "partition_data": [{"index": 0, "records": record}]}]
    wire.call(0, 8, transactional_id=None, acks=1, timeout=1000, topic_data=topics)
    answer = wire.call(1, 11, **fetch_of([0] * times))
    (topic,) = answer.responses
    assert len(topic.partitions) == 1


@pytest.mark.parametrize(
    ("key", "version", "fields"),
    [(9, 8, {"require_stable": False, "groups": [{"group_id": "g", "topics": [
        {"name": "orders", "partition_indexes": list(range(3 * MANY))}]}]}),
     (2, 5, {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "orders", "partitions": [
         {"partition_index": n, "current_leader_epoch": -1, "timestamp": -1}
         for n in range(3 * MANY)]}]}),
     (23, 4, {"replica_id": -1, "topics": [{"topic": "orders", "partitions": [
         {"partition": n, "current_leader_epoch": -1, "leader_epoch": 0}
         for n in range(3 * MANY)]}]})],
    ids=["OffsetFetch", "ListOffsets", "OffsetForLeaderEpoch"],
)  # fmt: skip
def test_a_consumer_may_have_more_partitions_than_requests_have_elements(
    connect: Connect, key: int, version: int, fields: dict[str, Any]
) -> None:
    wire = connect()
    wire.create("orders")
    answer = wire.call(key, version, **fields)
    (topic,) = answer.groups[0].topics if key == 9 else answer.topics
    assert len(topic.partitions) == 3 * MANY


def test_a_fetch_sees_what_came_between_two_portions(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire, producer = connect(), connect()
    wire.create("orders", num_partitions=budgets.PORTION + 1)
    looked, looks, original = threading.Event(), [0], fetch._look

    async def look(poll: Any) -> None:
        await original(poll)
        services = poll._services
        looks[0] += 1
        if looks[0] == 1:
            return
        with services.waits.watch([services.partition("orders", 0).key]) as watch:
            looked.set()
            assert await watch.wait(WAIT_SECONDS * 1000)

    def produce() -> None:
        records = batches.build([Record(0, 1000, None, bytes(20_000))])
        topics = [{"name": "orders", "partition_data": [{"index": 0, "records": records}]}]
        producer.call(0, 8, transactional_id=None, acks=1, timeout=1000, topic_data=topics)

    monkeypatch.setattr(fetch, "_look", look)
    monkeypatch.setattr(fetch._Poll, "may_be_ready", lambda *_: True)
    produce()
    count, wait_ms = budgets.PORTION + 1, 2 * WAIT_SECONDS * 1000
    request = fetch_of(range(count), max_wait=wait_ms, min_bytes=60_000)
    wire.send(1, 11, bytes(codec.encode_request(1, 11, request)))
    until(lambda: looks[0] == 1)
    produce()
    assert looked.wait(WAIT_SECONDS)
    produce()
    wire.socket.settimeout(WAIT_SECONDS)
    assert len(wire.receive()[1]) > 60_000


def test_an_append_makes_a_wide_fetch_look_at_nothing_until_it_is_enough(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire, producer = connect(), connect()
    wire.create("orders", num_partitions=100)
    looks, checks, original, checking = [0], [0], fetch._Poll.look_at, fetch._Poll.may_be_ready
    waits, keys = threading.Event(), fetch._Poll.keys

    def keys_of(poll: Any) -> Any:
        waits.set()
        return keys(poll)

    def look_at(poll: Any, index: int, **settings: Any) -> Any:
        looks[0] += 1
        return original(poll, index, **settings)

    def may_be_ready(poll: Any, key: Any) -> bool:
        checks[0] += 1
        return checking(poll, key)

    def produce(partition: int) -> None:
        records = batches.build([Record(0, 1000, None, bytes(1000))])
        topics = [{"name": "orders", "partition_data": [{"index": partition, "records": records}]}]
        producer.call(0, 8, transactional_id=None, acks=1, timeout=1000, topic_data=topics)

    monkeypatch.setattr(fetch._Poll, "look_at", look_at)
    monkeypatch.setattr(fetch._Poll, "may_be_ready", may_be_ready)
    monkeypatch.setattr(fetch._Poll, "keys", keys_of)
    request = fetch_of(range(100), max_wait=WAIT_SECONDS * 1000, min_bytes=10_000)
    wire.send(1, 11, bytes(codec.encode_request(1, 11, request)))
    assert waits.wait(WAIT_SECONDS)
    for number in range(9):
        produce(number % 3)
    assert (looks[0], checks[0]) == (100, 9)
    produce(0)
    wire.socket.settimeout(WAIT_SECONDS)
    assert len(wire.receive()[1]) > 10_000
    assert (looks[0], checks[0]) == (103, 10)  # those three that have moved


def test_a_fetch_of_some_partitions_looks_at_few_of_them_in_a_step(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire, count = connect(), 2 * fetch.LOOK_PORTION + 1
    assert count < budgets.PORTION
    wire.create("orders", num_partitions=count)
    steps: list[int] = []
    pause, look_at = fetch._Poll.pause, fetch._Poll.look_at

    def looked_at(poll: Any, index: int, **settings: Any) -> bool:
        is_read = look_at(poll, index, **settings)
        steps[-1] += is_read
        return is_read

    async def paused(poll: Any) -> None:
        await pause(poll)
        steps.append(0)

    monkeypatch.setattr(fetch._Poll, "look_at", looked_at)
    monkeypatch.setattr(fetch._Poll, "pause", paused)
    for _ in range(2):  # the first one opens the logs
        steps[:] = [0]
        wire.call(1, 11, **fetch_of(range(count), max_wait=0, min_bytes=1))
    assert steps == [fetch.LOOK_PORTION, fetch.LOOK_PORTION, 1]


def test_a_waiting_fetch_looks_at_few_partitions_in_a_step(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire, producer, count, portion = connect(), connect(), 5, 2
    wire.create("orders", num_partitions=count)
    steps, turn, waits = [0], [0], threading.Event()
    look_at, keys = fetch._Poll.look_at, fetch._Poll.keys

    def looked_at(poll: Any, index: int, **settings: Any) -> Any:
        if steps[-1] and turn[0]:  # the first of a turn begins a step
            steps.append(0)
        turn[0] = 0
        steps[-1] += 1
        asyncio.get_running_loop().call_soon(turn.__setitem__, 0, 1)
        return look_at(poll, index, **settings)

    def keys_of(poll: Any) -> Any:
        steps[:] = [0]
        waits.set()
        return keys(poll)

    monkeypatch.setattr(fetch, "LOOK_PORTION", portion)
    monkeypatch.setattr(fetch._Poll, "look_at", looked_at)
    monkeypatch.setattr(fetch._Poll, "keys", keys_of)
    request = fetch_of(range(count), max_wait=2 * WAIT_SECONDS * 1000, min_bytes=count * 1000)
    wire.send(1, 11, bytes(codec.encode_request(1, 11, request)))
    assert waits.wait(WAIT_SECONDS)
    records = batches.build([Record(0, 1000, None, bytes(1000))])
    data = [{"index": n, "records": records} for n in range(count)]
    producer.call(0, 8, transactional_id=None, acks=1, timeout=1000,
        topic_data=[{"name": "orders", "partition_data": data}])  # fmt: skip
    wire.socket.settimeout(WAIT_SECONDS)
    assert len(wire.receive()[1]) > count * 1000
    assert max(steps) == portion
    assert sum(steps) == count


def _portions(monkeypatch: pytest.MonkeyPatch, measure: str) -> list[int]:
    """Return by how much each portion of a look increases a measure of its poll, as they come."""
    portions: list[int] = []
    original = fetch._Poll.look

    def look(poll: Any, most: int) -> bool:
        before = getattr(poll, measure)
        is_all = original(poll, most)
        portions.append(getattr(poll, measure) - before)
        return is_all

    monkeypatch.setattr(fetch._Poll, "look", look)
    return portions


def test_a_fetch_of_much_is_read_in_portions(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = connect()
    wire.create("orders", num_partitions=6)
    for number in range(6):
        records = batches.build([Record(0, 1000, None, bytes(9000))] * 2)
        topics = [{"name": "orders", "partition_data": [{"index": number, "records": records}] * 1}]
        for _ in range(2):
            wire.call(0, 8, transactional_id=None, acks=1, timeout=1000, topic_data=topics)
    portions = _portions(monkeypatch, "_bytes")
    monkeypatch.setattr(fetch, "READ_PORTION_BYTES", 50_000)
    monkeypatch.setattr(fetch, "PARTITION_BYTES_MAX", 20_000)
    answer = wire.call(1, 11, **fetch_of(range(6), max_wait=1000, min_bytes=1 << 30))
    (topic,) = answer.responses
    assert [18_000 < len(one.records) < 20_000 for one in topic.partitions] == [True] * 6
    assert len(portions) == 2
    assert max(portions) < 60_000


def test_bytes_that_are_read_and_not_returned_count_in_portions(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each partition has a small batch before one that is larger than what it may return."""
    wire = connect()
    wire.create("orders", num_partitions=6)
    for number in range(6):
        for size in (1, 50_000):
            records = batches.build([Record(0, 1000, None, bytes(size))])
            topics = [{"name": "orders", "partition_data": [{"index": number, "records": records}]}]
            wire.call(0, 8, transactional_id=None, acks=1, timeout=1000, topic_data=topics)
    portions = _portions(monkeypatch, "_looked")
    monkeypatch.setattr(fetch, "READ_PORTION_BYTES", 60_000)
    monkeypatch.setattr(fetch, "PARTITION_BYTES_MAX", 40_000)
    answer = wire.call(1, 11, **fetch_of(range(6), max_wait=0, min_bytes=1))
    (topic,) = answer.responses
    assert [0 < len(one.records) < 1000 for one in topic.partitions] == [True] * 6
    assert portions == [2, 2, 2]


def test_logs_that_cannot_be_opened_cost_no_portion_each(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = connect()
    wire.create("orders", num_partitions=60)
    looked = _portions(monkeypatch, "_looked")

    def refuse(_: Partition) -> NoReturn:
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(Partition, "log", property(refuse))
    monkeypatch.setattr(Partition, "is_open", False)
    monkeypatch.setattr(Partition, "must_open", False)
    answer = wire.call(1, 11, **fetch_of(range(60), max_wait=0, min_bytes=1))
    monkeypatch.undo()
    (topic,) = answer.responses
    assert {one.error_code for one in topic.partitions} == {Code.STORAGE_ERROR}
    assert looked == [50, 10]


@pytest.mark.parametrize(
    ("count", "portion", "read_bytes"),
    [
        (budgets.PORTION + 1, 50, 1 << 22),
        (10, 1, 1 << 22),
        (10, 50, 100_000),
        (10, 50, 1 << 22),
    ],
)
@pytest.mark.parametrize("before", [0, 3, 4])
def test_fetches_that_wait_for_their_turn_hold_no_records(
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    portion: int,
    read_bytes: int,
    before: int,
) -> None:
    """One holds many, also where all are woken together, and all get what they ask for."""
    polls: list[Any] = []
    held: list[int] = []
    services: list[Any] = []
    clients, parts, each = 20, 4, 100_000
    create, look, encoded = fetch._Poll.__init__, fetch._Poll.look, fetch_messages.encoded

    def created(poll: Any, *args: Any) -> None:
        create(poll, *args)
        polls.append(poll)
        services.append(poll._services)

    def count_held() -> None:
        held.append(sum(len(one.records) for poll in polls for one in poll.found))

    def looked(poll: Any, most: int) -> bool:
        count_held()
        return bool(look(poll, most))

    def noted(asking: Any, found: Any, session_id: int) -> Any:
        count_held()
        polls[:] = [one for one in polls if one.asking is not asking]
        return encoded(asking, found, session_id)

    monkeypatch.setattr(fetch._Poll, "__init__", created)
    monkeypatch.setattr(fetch._Poll, "look", looked)
    monkeypatch.setattr(fetch, "encoded", noted)
    monkeypatch.setattr(fetch, "LOOK_PORTION", portion)
    monkeypatch.setattr(fetch, "READ_PORTION_BYTES", read_bytes)
    wire = connect()
    wire.create("orders", num_partitions=count)
    records = batches.build([Record(0, 1000, None, bytes(each))])

    def produce(indexes: Iterable[int]) -> None:
        named = [{"index": index, "records": records} for index in indexes]
        topics = [{"name": "orders", "partition_data": named}]
        wire.call(0, 8, transactional_id=None, acks=1, timeout=1000, topic_data=topics)

    produce(range(before))
    asked = fetch_of(range(count), max_wait=2 * WAIT_SECONDS * 1000, min_bytes=parts * each)
    consumers = [connect() for _ in range(clients)]
    for consumer in consumers:
        consumer.send(1, 11, bytes(codec.encode_request(1, 11, asked)))
    if before < parts:
        until(lambda: len(polls) == clients and all(poll._coming is not None for poll in polls))
        produce(range(before, parts))
    for consumer in consumers:
        consumer.socket.settimeout(WAIT_SECONDS)
        assert len(consumer.receive()[1]) > parts * each
    until(lambda: services[0].budgets.reserve_fetch(produce))
    assert max(held) <= (parts + 1) * each


@pytest.mark.parametrize(
    ("key", "version", "reason"),
    [(999, 0, "API key 999 is not served"), (3, 99, "Metadata version 99"),
     (3, 1, "Metadata of 3000000 bytes; 1048576 are allowed")],
)  # fmt: skip
def test_a_large_request_is_refused_at_its_first_bytes(
    connect: Connect, caplog: Any, key: int, version: int, reason: str
) -> None:
    wire = connect()
    wire.socket.sendall(struct.pack(">ihhih", 3_000_000, key, version, 1, -1))
    assert wire.closed()
    assert reason in caplog.text


def test_incomplete_requests_draw_from_one_budget(connect: Connect, caplog: Any) -> None:
    bystander = connect()
    part = struct.pack(">ihhih", 3_900_000, 0, 8, 1, -1) + bytes(3_000_000)
    greedy = [connect() for _ in range(4)]
    for one in greedy:
        one.socket.settimeout(0.2)
        with contextlib.suppress(OSError):
            one.socket.sendall(part)
    until(lambda: "queued.max.request.bytes" in caplog.text)
    assert bystander.call(18, 0).error_code == 0


def test_requests_that_grow_together_stay_within_the_budget(
    connect: Connect, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has room by itself: what one is about to allocate counts for the next."""
    counted: list[int] = []

    def count(found: Budgets, value: int) -> None:
        counted.append(value)
        vars(found)["request_bytes"] = value

    counting = property(lambda found: vars(found)["request_bytes"], count)
    monkeypatch.setattr(Budgets, "request_bytes", counting, raising=False)
    part = struct.pack(">ihhih", 3_900_000, 0, 8, 1, -1) + bytes(400_000)
    first, *others = [connect() for _ in range(6)]  # three get a megabyte, three a quarter of it
    for one in (first, *others):
        one.socket.settimeout(1)
        with contextlib.suppress(OSError):
            one.socket.sendall(part)
    until(lambda: bool(counted) and counted[-1] > 3_600_000)
    first.socket.close()  # what it leaves is enough for any of the others, and not for all
    until(lambda: "queued.max.request.bytes" in caplog.text)
    # The first memory of a frame is taken with what came: at most four times that.
    assert max(counted) <= 4_000_000 + 4 * STAGING_BYTES


def test_responses_that_nobody_reads_draw_from_one_budget(connect: Connect, caplog: Any) -> None:
    wire = connect()
    wire.create("orders")
    record = batches.build([Record(0, 1000, None, bytes(900_000))])
    topics = [{"name": "orders", "partition_data": [{"index": 0, "records": record}]}]
    for _ in range(16):
        wire.call(0, 8, transactional_id=None, acks=1, timeout=1000, topic_data=topics)
    fields = fetch_of([0], bytes_max=1 << 30)
    body = bytes(codec.encode_request(1, 11, fields))
    for _ in range(12):
        slow = connect()
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(5):
            slow.send(1, 11, body)
    until(lambda: "headrace.queued.max.response.bytes" in caplog.text)
    # Those who read get records all the same, once the slow ones are gone.
    until(lambda: bool(wire.call(1, 11, **fields).responses[0].partitions[0].records))


def test_a_fetch_gets_a_part_of_what_is_left() -> None:
    config = Config.parse({"headrace.queued.max.response.bytes": "1000000"})
    found = Budgets(lambda: config, DecodingThreads(1))
    assert found.fetch_bytes_max == budgets.READ_BYTES_MAX
    found.response_bytes = 600_000
    assert found.fetch_bytes_max == 200_000
    found.response_bytes = 1_200_000
    assert found.fetch_bytes_max == 0


def test_loopback_has_connections_above_the_limit(connecting: Any) -> None:
    settings = {"max.connections": 1, "headrace.max.connections.reserved": 1}
    with headrace.Broker(settings=settings) as broker, connecting(broker) as connect:
        assert [connect().call(18, 0).error_code for _ in range(2)] == [0, 0]
        assert connect().closed()


def test_files_are_left_to_logs(connecting: Any, caplog: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("headrace.broker.server._CONNECTIONS_WITHOUT_FILES", 2)
    monkeypatch.setattr("headrace.broker.server.Connection.file", 10**6)
    with headrace.Broker(settings=METRICS) as broker, connecting(broker) as connect:
        # Logs may have all files: a few connections are made all the same.
        first, second = connect(), connect()
        assert [one.call(18, 0).error_code for one in (first, second)] == [0, 0]
        assert connect().closed()
        assert "ulimit -n" in caplog.text
        assert series(broker)["headrace_connections_refused_files_total"][()] == 1
        assert first.call(18, 0).error_code == 0
        monkeypatch.undo()
        assert connect().call(18, 0).error_code == 0


# ---- groups


def join(wire: Any, group: str, size: int) -> int:
    answer = wire.call(11, 3, group_id=group, session_timeout=10_000, rebalance_timeout=60_000,
        member_id="", protocol_type="consumer",
        protocols=[{"name": "range", "metadata": bytes(size)}])  # fmt: skip
    return int(answer.error_code)


def test_large_members_leave_room_for_small_ones(connect: Connect) -> None:
    wire = connect()
    codes = [join(wire, f"g{number}", 200_000) for number in range(8)]
    assert codes[0] == 0
    assert codes[-1] == 81
    assert join(wire, "small", 100) == 0


def test_commit_metadata_has_a_bound_and_old_commits_go_on(group_client: Any, wire: Any) -> None:
    client = group_client(wire)
    client.create_topic("orders", 20)
    assert client.commit(("orders", 0, 1), group_id="polite") == [("orders", 0, 0)]
    whole = [("orders", one, 1) for one in range(20)]
    codes = [
        code for number in range(40)
        for _, _, code in client.commit(*whole, group_id=f"c{number}", metadata="m" * 4000)
    ]  # fmt: skip
    assert codes[0] == 0
    assert codes[-1] == 12
    assert client.commit(("orders", 0, 2), group_id="polite") == [("orders", 0, 0)]


def test_groups_have_a_number(group_client: Any, wire: Any) -> None:
    client = group_client(wire)
    client.create_topic("orders", 1)
    codes = [client.commit(("orders", 0, 1), group_id=f"g{n}")[0][2] for n in range(60)]
    assert codes[:50] == [0] * 50
    assert codes[50:] == [81] * 10
    assert client.commit(("orders", 0, 2), group_id="g1") == [("orders", 0, 0)]


def test_a_large_commit_is_cut_into_portions(
    group_client: Any, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds are small, so that the topic of the test need not be large."""
    monkeypatch.setattr(offset_commit, "DECODE_BYTES_MAX", 100)
    monkeypatch.setattr(offset_commit, "_PORTION", 5)
    submit, portions = offset_commit._submitted, []

    def submitted(message: Any, offsets: list[Any], *rest: Any) -> Any:
        portions.append(len(offsets))
        return submit(message, offsets, *rest)

    monkeypatch.setattr(offset_commit, "_submitted", submitted)
    client = group_client(wire)
    client.create_topic("orders", 18)
    told = client.commit(*[("orders", n, n + 1) for n in range(19)])
    assert portions == [5, 5, 5, 3]
    assert [code for _, _, code in sorted(told)] == [0] * 18 + [3]
    assert client.fetch(("orders", 17)) == [("orders", 17, 18, 0)]


def test_a_connection_opens_so_many_share_sessions() -> None:
    sessions = ShareSessions(10, connection_max=2)

    def opened(member: str, connection: int) -> bool:
        decided = sessions.decide(Continue(("g", MemberId(member)), 0, connection))
        if isinstance(decided, Refused):
            assert decided.why is Why.SESSION_LIMIT
            return False
        for event in decided:
            sessions.apply(event)
        return True

    assert [opened(one, 1) for one in "abc"] == [True, True, False]
    assert opened("a", 1)  # again, in its own place
    assert opened("c", 2)
    assert opened("a", 2)  # moves to the other connection, and leaves room
    assert opened("d", 1)
    for event in sessions.disconnected(1):
        sessions.apply(event)
    assert sorted(member for _, member in sessions.sessions) == ["a", "c"]


# ---- patterns


def test_a_short_pattern_with_a_large_program_is_refused() -> None:
    refused = matching("(.{1,30}){1,30}z", ["a"], 2000)
    assert isinstance(refused, Refused)
    assert "too large" in refused.message


def test_many_names_are_matched_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    names = dict.fromkeys(f"t{number}" for number in range(100))
    patterns = Patterns()
    monkeypatch.setattr(topic_patterns, "_STEPS_MAX", 100)
    assert asyncio.run(patterns.prepare("t1.*", names)) is None
    looked_at: list[str] = []
    monkeypatch.setattr(
        topic_patterns, "matching", lambda regex, names, size: looked_at.extend(names)
    )
    found = patterns.matching("t1.*", names)
    assert found == frozenset(name for name in names if name.startswith("t1"))
    assert not looked_at
    monkeypatch.setattr(topic_patterns, "_SECONDS_MAX", -1.0)
    assert isinstance(asyncio.run(patterns.prepare("t2.*", names)), Refused)


# ---- probes, stalls


def test_silent_sockets_do_not_keep_probes_away(broker: headrace.Broker) -> None:
    assert broker.metrics_port is not None
    address = ("127.0.0.1", broker.metrics_port)
    with contextlib.ExitStack() as opened:
        for _ in range(70):
            opened.enter_context(socket.create_connection(address, WAIT_SECONDS))
        for _ in range(3):
            probe = opened.enter_context(socket.create_connection(address, WAIT_SECONDS))
            probe.sendall(b"GET /-/healthy HTTP/1.1\r\n\r\n")
            assert b" 200 " in probe.recv(100)


def test_long_steps_are_counted_by_what_ran(caplog: Any) -> None:
    stalls = LoopStalls(warn_seconds=0.0)

    async def work() -> int:
        time.sleep(STALL_SECONDS)  # noqa: ASYNC251  # the step that holds the loop
        await asyncio.sleep(0)
        return 7

    async def run() -> int:
        return await asyncio.get_running_loop().create_task(stalls.timed("work", work()))

    assert asyncio.run(run()) == 7
    assert (list(stalls.by_name), stalls.count) == (["work"], 1)
    assert "event loop: work held it for" in caplog.text


def test_short_steps_are_not_counted() -> None:
    stalls = LoopStalls(warn_seconds=0.0)

    async def work() -> None:
        for _ in range(5):
            time.sleep(STALL_SECONDS / 5)  # noqa: ASYNC251  # a step that others can wait for
            await asyncio.sleep(0)

    async def run() -> None:
        await asyncio.get_running_loop().create_task(stalls.timed("work", work()))

    assert STALL_SECONDS == 0.020
    for _ in range(TRIES):  # what else the machine does counts
        stalls.by_name.clear()
        asyncio.run(run())
        if not stalls.by_name:
            return
    pytest.fail(f"{stalls.by_name}")


def test_direction_overrides_are_escaped_in_logs() -> None:
    import json
    import logging

    from headrace.cli.logs import Json, Text

    record = logging.makeLogRecord({"msg": "member %s", "args": ("a\u202eb",), "name": "h"})
    assert Text().format(record).endswith("member a\\u202eb")
    assert json.loads(Json().format(record))["message"] == "member a\\u202eb"
