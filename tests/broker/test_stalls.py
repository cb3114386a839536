"""The broker does not run for a while: nothing expires before the input that waited is read."""

import asyncio
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.broker.checked_clock import CATCH_UP_MS_MAX, GRACE_MS, CheckedClock
from headrace.broker.config import Config
from headrace.broker.server import FRAMES_QUEUED_MAX
from headrace.broker.waiting_input import WaitingInput
from headrace.log.memory_disk import MemoryDisk, VirtualClock
from headrace.testing import BrokerUnderTest
from headrace.wire import codec

from .share_wire_rig import ACCEPT, Sharer, produce

FETCH, HEARTBEAT, API_VERSIONS, CONSUMER_HEARTBEAT = 1, 12, 18, 68
UNKNOWN_MEMBER_ID, INVALID_RECORD_STATE = 25, 121
TIMEOUT = 60


@pytest.fixture
def broker() -> Iterator[BrokerUnderTest]:
    with BrokerUnderTest() as running:
        yield running


def stall(broker: BrokerUnderTest, wire: Any, seconds: float) -> None:
    """Hold the broker's event loop for a time, then wait until it has fired its timers."""
    loop = broker.clock._loop
    assert loop is not None
    done: Future[None] = Future()

    def hold() -> None:
        assert loop is not None
        loop.skip_to(loop.now_ns + int(seconds * 1e9))
        loop.call_soon(lambda: loop.call_soon(done.set_result, None))

    loop.call_soon_threadsafe(hold)
    done.result(TIMEOUT)
    wire.call(API_VERSIONS, 0)


def beat(wire: Any, epoch: int) -> tuple[int, int]:
    """Heartbeat of a member of the consumer protocol; error code and epoch."""
    joins = epoch == 0
    answer = wire.call(
        CONSUMER_HEARTBEAT, 1,
        group_id="g", member_id="m", member_epoch=epoch, instance_id=None, rack_id=None,
        rebalance_timeout=60_000 if joins else -1,
        subscribed_topic_names=["orders"] if joins else None, subscribed_topic_regex=None,
        server_assignor=None, topic_partitions=[] if joins else None,
    )  # fmt: skip
    return int(answer.error_code), int(answer.member_epoch)


def stalling(scene: Callable[[VirtualClock, CheckedClock], None]) -> None:
    """Run a scene on a machine whose loop runs only when the scene reads the clock."""

    async def run() -> None:
        machine = VirtualClock()
        clock = CheckedClock(machine, MemoryDisk(), Config)
        clock.start(None)
        try:
            clock._loop_time = lambda: machine.mono() / 1000
            clock.beat()
            scene(machine, clock)
        finally:
            await clock.close()

    asyncio.run(run())


def test_time_goes_on_a_second_after_a_stall() -> None:
    """Clients that were stopped with the broker send their heartbeats in that second."""

    def scene(machine: VirtualClock, clock: CheckedClock) -> None:
        before = clock.mono()
        for advance_ms, expected_ms in ((60_000, 0), (1_000, 0), (1, 1), (500, 501)):
            machine.advance(advance_ms)
            assert clock.mono() - before == expected_ms
        assert clock.stalled_ms == 61_000

    stalling(scene)


def test_stalls_in_the_second_after_another_one_add_no_second_each() -> None:
    """The second begins again: three stalls would hold time still for three seconds."""

    def scene(machine: VirtualClock, clock: CheckedClock) -> None:
        before = clock.mono()
        for advance_ms in (60_000, 100, 60_000, 100, 60_000, 1_000):
            machine.advance(advance_ms)
            assert clock.mono() == before
        machine.advance(1)
        assert clock.mono() - before == 1
        assert clock.stalled_ms == 180_200 + 1_000

    stalling(scene)


class Unread:
    """Input of which a test says whether it is read."""

    begun = 0
    read = False

    def begin(self) -> None:
        self.begun += 1

    def is_read(self) -> bool:
        return self.read


@pytest.mark.parametrize("is_ever_read", [True, False])
def test_time_goes_on_when_the_input_that_waited_is_read(
    is_ever_read: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """After `CATCH_UP_MS_MAX` also without that; a second stall meanwhile adds its time."""

    async def scene() -> None:
        machine, unread = VirtualClock(), Unread()
        clock = CheckedClock(machine, MemoryDisk(), Config)
        clock.wait_for(unread)
        clock.start(None)
        try:
            clock._loop_time = lambda: machine.mono() / 1000

            def passed(duration_ms: int) -> int:
                machine.advance(duration_ms)
                elapsed_ms = clock.mono() - before
                clock.beat()
                clock._look_at_input()
                return elapsed_ms

            clock.beat()
            before = clock.mono()
            assert [passed(one) for one in (60_000, 1_500, 1_500, 3_000, 1_999)] == [0] * 5
            assert (unread.begun, clock.stalled_ms) == (2, 60_000 + 3_000 + 3_000 + 1_999)
            if is_ever_read:
                unread.read = True
                clock._look_at_input()
                assert [passed(1), passed(500)] == [1, 501]
                assert clock.stalled_ms == 68_000 - 1
            else:
                still_ms = CATCH_UP_MS_MAX - 1_999
                assert [passed(1_000) for _ in range(still_ms // 1_000)] == [0] * 28
                assert [passed(1), passed(1), passed(500)] == [0, 1, 501]
                assert clock.stalled_ms == 66_000 + CATCH_UP_MS_MAX
            assert ("is unread after 30 seconds" in caplog.text) is not is_ever_read
        finally:
            await clock.close()

    asyncio.run(scene())


def test_a_session_outlives_a_stall_until_its_input_is_read(
    broker: BrokerUnderTest, connect: Callable[[], Any], group_client: Callable[[Any], Any]
) -> None:
    """A heartbeat behind more than the broker reads ahead takes longer than `GRACE_MS`."""
    client, other = group_client(connect()), group_client(connect())
    client.create_topic("orders")
    member = client.stable(session_timeout=10_000)
    wire = client.wire
    topics = [{"topic": "orders", "partitions": [
        {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20},
    ]}]  # fmt: skip
    fetching = {"max_bytes": 1 << 20, "isolation_level": 0, "forgotten_topics_data": []}
    wire.send(FETCH, 12, bytes(codec.encode_request(
        FETCH, 12, {"max_wait": 300_000, "min_bytes": 1, "topics": topics} | fetching
    )))  # fmt: skip
    long_name = b"n" * 8_000
    asking = struct.pack(">hhih", API_VERSIONS, 0, 2, len(long_name)) + long_name
    for _ in range(2 * FRAMES_QUEUED_MAX):
        wire.send_frame(asking)
    beat = {"group_id": "g", "generation_id": 1, "member_id": member, "group_instance_id": None}
    wire.send(HEARTBEAT, 4, bytes(codec.encode_request(HEARTBEAT, 4, beat)), 3)
    node = broker.clock._node
    assert node is not None
    connections = node.server.connections
    until(lambda: any(not one._reading for one in connections))

    stall(broker, other.wire, 12)
    broker.clock.advance(seconds=20)
    assert other.listed() == [("g", "consumer", "Stable", "classic")]
    produce(other.wire, 1)
    while (found := wire.receive())[0] != 3:
        pass
    assert codec.decode_response(HEARTBEAT, 4, found[1][1:]).error_code == 0
    broker.clock.advance(seconds=11, milliseconds=GRACE_MS)
    assert client.beat(member, 1) == UNKNOWN_MEMBER_ID, "time goes on"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Server:
    """Connections, and a socket that listens."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.connections: list[Served] = []

    @property
    def listening_files(self) -> list[int]:
        return [self.listening.fileno()]

    def connect(self) -> socket.socket:
        """Return a peer whose connection is in the backlog."""
        return socket.create_connection(self.listening.getsockname())

    def accept(self) -> "Served":
        self.connections.append(Served(self.listening.accept()[0]))
        return self.connections[-1]


class Served:
    """A connection that a test reads."""

    is_read_from = True
    has_startable_requests = False

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted

    @property
    def file(self) -> int:
        return self.socket.fileno()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    for one in (made.listening, *(one.socket for one in made.connections)):
        one.close()


def test_input_waits_until_each_socket_was_empty_once(server: Server) -> None:
    with server.connect() as peer, server.connect() as quiet:
        first, second = server.accept(), server.accept()
        assert quiet
        peer.sendall(b"request")
        waiting = WaitingInput(server)
        waiting.begin()
        assert [waiting.is_read() for _ in range(5)] == [False] * 5
        first.socket.recv(100)
        first.has_startable_requests = True
        assert not waiting.is_read()
        first.has_startable_requests = False
        assert waiting.is_read()
        quiet.sendall(b"later")
        assert second.socket.recv(1, socket.MSG_PEEK) == b"l"
        assert waiting.is_read(), "what came later is not waited for"
        waiting.begin()
        assert [waiting.is_read() for _ in range(5)] == [False] * 5


@pytest.mark.parametrize("ending", ["closed", "unread"])
def test_input_of_a_connection_that_the_broker_does_not_read_is_not_waited_for(
    server: Server, ending: str
) -> None:
    with server.connect() as peer:
        served = server.accept()
        peer.sendall(b"request")
        assert served.socket.recv(1, socket.MSG_PEEK)
        waiting = WaitingInput(server)
        waiting.begin()
        assert [waiting.is_read() for _ in range(5)] == [False] * 5
        if ending == "closed":
            server.connections.clear()
            served.socket.close()
        else:
            served.is_read_from = False
        assert waiting.is_read()


def test_input_of_connections_in_the_backlog_waits(server: Server) -> None:
    with server.connect() as peer:
        peer.sendall(b"request")
        waiting = WaitingInput(server)
        waiting.begin()
        assert [waiting.is_read() for _ in range(5)] == [False] * 5
        accepted = Served(server.listening.accept()[0])
        assert not waiting.is_read(), "the connection may not be made yet"
        server.connections.append(accepted)
        assert [waiting.is_read() for _ in range(5)] == [False] * 5
        accepted.socket.recv(100)
        assert waiting.is_read()


def test_a_session_of_the_classic_protocol_outlives_a_stall(
    broker: BrokerUnderTest, connect: Callable[[], Any], group_client: Callable[[Any], Any]
) -> None:
    client = group_client(connect())
    member = client.stable(session_timeout=10_000)
    stall(broker, client.wire, 12)
    assert client.beat(member, 1) == 0
    broker.clock.advance(seconds=9)
    assert client.beat(member, 1) == 0
    broker.clock.advance(seconds=11, milliseconds=GRACE_MS)
    assert client.beat(member, 1) == UNKNOWN_MEMBER_ID, "time goes on after a stall"


def test_members_have_their_time_to_rejoin_after_a_stall(
    broker: BrokerUnderTest, connect: Callable[[], Any], group_client: Callable[[Any], Any]
) -> None:
    first, second = group_client(connect()), group_client(connect())
    member = first.stable(session_timeout=60_000, rebalance_timeout=10_000)
    other = second.join(session_timeout=60_000, rebalance_timeout=10_000).member_id
    joined: list[Any] = []
    thread = threading.Thread(
        target=lambda: joined.append(
            second.join(member=other, session_timeout=60_000, rebalance_timeout=10_000)
        )
    )
    thread.start()
    first.beat_until(27, member, 1)  # REBALANCE_IN_PROGRESS: the second waits for the first
    stall(broker, first.wire, 12)
    again = first.join(member=member, session_timeout=60_000, rebalance_timeout=10_000)
    thread.join(TIMEOUT)
    assert [again.error_code, joined[0].error_code] == [0, 0]
    assert len(again.members) == 2


def test_a_session_of_the_consumer_protocol_outlives_a_stall(
    broker: BrokerUnderTest, connect: Callable[[], Any]
) -> None:
    broker.create_topic("orders")
    wire = connect()
    code, epoch = beat(wire, 0)
    assert code == 0
    stall(broker, wire, 60)
    assert beat(wire, epoch) == (0, epoch)


def test_share_sessions_and_acquisition_locks_outlive_a_stall(
    broker: BrokerUnderTest, connect: Callable[[], Any]
) -> None:
    wire = connect()
    topic_id = wire.create("orders").topic_id
    member = Sharer(wire, topic_id)
    epoch = member.beat().member_epoch
    produce(wire, 3)
    assert member.take() == [(0, 2, 1)]
    stall(broker, wire, 60)
    assert member.beat(epoch, None).error_code == 0
    assert member.code((0, 2, ACCEPT)) == 0


def test_a_lock_that_ends_after_a_stall_ends_then(
    broker: BrokerUnderTest, connect: Callable[[], Any]
) -> None:
    wire = connect()
    member = Sharer(wire, wire.create("orders").topic_id)
    member.assigned()
    produce(wire, 3, at=int(broker.clock.now().timestamp() * 1000))
    member.take()
    stall(broker, wire, 60)
    broker.clock.advance(seconds=31, milliseconds=GRACE_MS)
    assert member.code((0, 2, ACCEPT)) == INVALID_RECORD_STATE


def test_time_that_a_test_skips_is_no_stall(
    broker: BrokerUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    before = broker.clock.now()
    broker.clock.advance(days=8)
    assert (broker.clock.now() - before).days == 8
    assert "did not run" not in caplog.text


def test_a_stock_consumer_keeps_its_partitions_while_the_broker_is_stopped(tmp_path: Path) -> None:
    """SIGSTOP for longer than the session; it is the broker alone that knows of sessions."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "headrace", "serve", "--port", "0",
            "--data-dir", str(tmp_path / "data"),
            "--set", "group.consumer.min.session.timeout.ms=1000",
            "--set", "group.consumer.session.timeout.ms=2500",
            "--set", "group.consumer.min.heartbeat.interval.ms=500",
            "--set", "group.consumer.heartbeat.interval.ms=500",
        ],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        told = re.search(r"listening on (\S+),", process.stdout.readline())
        assert told
        servers = told[1]
        producer = Producer({"bootstrap.servers": servers, "log_level": 0})
        producer.produce("orders", b"1")
        assert producer.flush(TIMEOUT) == 0
        revoked: list[list[TopicPartition]] = []
        consumer = Consumer({
            "bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest",
            "group.protocol": "consumer", "enable.auto.commit": False, "log_level": 0,
        })  # fmt: skip
        try:
            consumer.subscribe(["orders"], on_revoke=lambda _, parts: revoked.append(parts))
            assert value_of(consumer) == b"1"
            process.send_signal(signal.SIGSTOP)
            for _ in range(10):
                consumer.poll(0.5)
            process.send_signal(signal.SIGCONT)
            producer.produce("orders", b"2")
            assert producer.flush(TIMEOUT) == 0
            assert value_of(consumer) == b"2"
            for _ in range(4):
                consumer.poll(0.5)  # a lost session shows with the next heartbeats
            assert revoked == []
        finally:
            consumer.close()
        process.send_signal(signal.SIGTERM)
        _, logged = process.communicate(timeout=TIMEOUT)
        assert re.search(r"clock: the broker did not run for about [4-9]\.\d s", logged)
        assert "session" not in logged.replace("sessions and locks", "")
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def value_of(consumer: Consumer) -> bytes | None:
    """Value of the next record."""
    for _ in range(2 * TIMEOUT):
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            return message.value()
    raise AssertionError(f"no record within {TIMEOUT} s")
