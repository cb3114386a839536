"""A scripted broker behind a real socket, which answers what a test tells it to, and a real one."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import pytest
from confluent_kafka import Consumer

import headrace
from headrace.client.connection import Cluster, Patience
from headrace.wire import share_records
from headrace.wire.batches import Record, build
from headrace.wire.codec import decode_request, encode_response, is_flexible
from headrace.wire.leases import LeaseApi
from headrace.wire.primitives import Reader, Writer

METADATA, LIST_OFFSETS, FETCH, FIND_COORDINATOR, API_VERSIONS = 3, 2, 1, 10, 18
_JOIN_S_MAX = 60
Answer = Callable[[Reader], bytes | None]
OWN_APIS = frozenset({*LeaseApi, share_records.KEY})


class ScriptedBroker:
    """One node with the topic `t` of one partition; `answers` maps an API key to a function of the
    request body, whose result is the response body, or None to hang up.
    """

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {
            METADATA: self._metadata,
            LIST_OFFSETS: self._list_offsets,
            FETCH: self._fetch,
        }
        self.offers_leases = True
        self.coordinator_errors: list[int] = []
        self.fetch_codes: list[int] = []  # what the next fetches answer, without records
        self.versions: dict[int, tuple[int, int]] = {}
        self.asked: list[int] = []
        self.batches: list[bytes] = []
        self.log_start = 0
        self.log_end = 0
        self.port = 0
        self._keeper: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()  # of `_listener` and `_open`
        self._open: list[socket.socket] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        if self._keeper is None:  # of its port, which nobody else is to be given while it is away
            self._keeper = socket.socket()
            self._keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._keeper.bind(("127.0.0.1", 0))
            self.port = self._keeper.getsockname()[1]
        self._listener = socket.create_server(("127.0.0.1", self.port), reuse_port=False)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """Be away, until it is started again."""
        with self._lock:
            listener, self._listener = self._listener, None
            connections, self._open = self._open, []
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def close(self) -> None:
        self.stop()
        if self._keeper is not None:
            self._keeper.close()

    def append(self, *values: bytes, size: int = 10) -> None:
        """Append records in batches of `size`."""
        for start in range(0, len(values), size):
            part = values[start : start + size]
            records = [
                Record(0, 1000 + self.log_end + at, None, one) for at, one in enumerate(part)
            ]
            self.batches.append(build(records, base_offset=self.log_end))
            self.log_end += len(part)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                if listener is not self._listener:  # it was stopped just now
                    connection.close()
                    return
                self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, struct.error):
            stream = connection.makefile("rb")
            while True:
                (size,) = struct.unpack(">i", stream.read(4))
                source = Reader(stream.read(size))
                key, version = source.int16(), source.int16()
                correlation = source.int32()
                source.nullable_string()
                self.asked.append(key)
                flexible = key in OWN_APIS or is_flexible(key, version)
                if flexible:
                    source.tags()
                body = self._versions() if key == API_VERSIONS else self.answers[key](source)
                if body is None:
                    break
                head = struct.pack(">i", correlation) + (b"\0" if flexible else b"")
                connection.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def _versions(self) -> bytes:
        keys = [*self.answers, 19, 44, *(LeaseApi if self.offers_leases else ())]
        out = Writer()
        out.int16(0)
        out.int32(len(keys))
        for key in keys:
            first, last = self.versions.get(key, (0, 20))
            out.int16(key)
            out.int16(first)
            out.int16(last)
        return bytes(out.data)

    def _metadata(self, source: Reader) -> bytes:
        asked = decode_request(METADATA, 9, source.take(source.remaining))
        topics = [
            {
                "error_code": 0 if one.name == "t" else 3,
                "name": one.name,
                "partitions": [{"error_code": 0, "partition_index": 0, "leader_id": 1}]
                if one.name == "t"
                else [],
            }
            for one in asked.topics
        ]
        brokers = [{"node_id": 1, "host": "127.0.0.1", "port": self.port}]
        return bytes(encode_response(METADATA, 9, {"brokers": brokers, "topics": topics}))

    def _list_offsets(self, source: Reader) -> bytes:
        asked = decode_request(LIST_OFFSETS, 1, source.take(source.remaining))
        which = asked.topics[0].partitions[0].timestamp
        offset = self.log_end if which == -1 else self.log_start
        one = {"partition_index": 0, "error_code": 0, "offset": offset}
        return bytes(
            encode_response(LIST_OFFSETS, 1, {"topics": [{"name": "t", "partitions": [one]}]})
        )

    def _fetch(self, source: Reader) -> bytes:
        partition = decode_request(FETCH, 4, source.take(source.remaining)).topics[0].partitions[0]
        offset = partition.fetch_offset
        inside = self.log_start <= offset <= self.log_end
        code, data = 0 if inside else 1, b""
        if told := self.fetch_codes[:1]:
            del self.fetch_codes[0]
            code, inside = told[0], False
        for batch in self.batches if inside else ():
            (base,) = struct.unpack_from(">q", batch)
            (delta,) = struct.unpack_from(">i", batch, 23)
            if base + delta >= offset and len(data) < partition.partition_max_bytes:
                data += batch
        # As brokers do, cut the last batch where the size is reached, but leave the first whole.
        data = data[: max(partition.partition_max_bytes, _first_size(data))]
        out = Writer()
        out.int32(0)
        out.int32(1)
        out.nullable_string("t")
        out.int32(1)
        out.int32(0)
        out.int16(code)
        out.int64(self.log_end)
        out.int64(self.log_end)
        out.int32(-1)
        out.int32(len(data))
        out.raw(data)
        return bytes(out.data)


def _first_size(data: bytes) -> int:
    return struct.unpack_from(">i", data, 8)[0] + 12 if data else 0


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    scripted = ScriptedBroker()
    scripted.start()
    yield scripted
    scripted.close()


@pytest.fixture
def cluster(broker: ScriptedBroker) -> Iterator[Cluster]:
    with Cluster(broker.address, patience=Patience(total_s=20, first_s=0.01, most_s=0.05)) as found:
        yield found


@pytest.fixture
def script(broker: ScriptedBroker) -> ScriptedBroker:
    """The scripted broker as the coordinator of every group; each error code is told once."""

    def find(body: Reader) -> bytes:
        asked = decode_request(FIND_COORDINATOR, 4, body.take(body.remaining))
        code = broker.coordinator_errors.pop(0) if broker.coordinator_errors else 0
        found = [
            {
                "key": key,
                "node_id": 1 if not code else -1,
                "host": "127.0.0.1" if not code else "",
                "port": broker.port if not code else -1,
                "error_code": code,
                "error_message": "",
            }
            for key in asked.coordinator_keys
        ]
        return bytes(encode_response(FIND_COORDINATOR, 4, {"coordinators": found}))

    broker.answers[FIND_COORDINATOR] = find
    return broker


@pytest.fixture(scope="module")
def running() -> Iterator[headrace.Broker]:
    """A real broker, for all tests of a module: each takes names of its own."""
    with headrace.Broker(settings={"group.initial.rebalance.delay.ms": 0}) as real:
        yield real


@pytest.fixture
def real(running: headrace.Broker) -> Iterator[Cluster]:
    """A client of the real broker."""
    with Cluster(running.bootstrap_servers, patience=Patience(total_s=20, first_s=0.01)) as found:
        yield found


Joining = Callable[..., AbstractContextManager[Consumer]]


@pytest.fixture
def joined(running: headrace.Broker) -> Joining:
    """A consumer that has joined a group and has all partitions of a topic, while it is entered."""

    @contextmanager
    def joining(group: str, topic: str, **settings: str) -> Iterator[Consumer]:
        common = {"bootstrap.servers": running.bootstrap_servers, "enable.auto.commit": False}
        named = {name.replace("_", "."): value for name, value in settings.items()}
        consumer = Consumer({**common, "group.id": group, "client.id": "c", **named})
        consumer.subscribe([topic])
        until = time.monotonic() + _JOIN_S_MAX
        while not consumer.assignment():
            assert time.monotonic() < until, "it did not join"
            consumer.poll(0.1)
        try:
            yield consumer
        finally:
            consumer.close()

    return joining
