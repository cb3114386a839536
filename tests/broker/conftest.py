"""A broker and a bare connection to it, for what no stock client would send."""

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headrace
from headrace.wire import codec


class Wire:
    """One connection that sends whatever it is told to."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)

    def send(self, key: int, version: int, body: bytes, correlation_id: int = 1) -> None:
        """A request with a well-formed header."""
        flexible = codec.knows(key, version) and codec.is_flexible(key, version)
        head = struct.pack(">hhih", key, version, correlation_id, -1)
        self.send_frame(head + (b"\0" if flexible else b"") + body)

    def send_frame(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> tuple[int, bytes]:
        """Correlation id and the rest of the next response."""
        frame = self._exactly(*struct.unpack(">i", self._exactly(4)))
        return struct.unpack_from(">i", frame)[0], frame[4:]

    def call(self, key: int, version: int, /, **fields: Any) -> Any:
        """A whole request and its decoded response."""
        self.send(key, version, bytes(codec.encode_request(key, version, fields)))
        _, body = self.receive()
        if codec.is_flexible(key, version) and key != 18:
            body = body[1:]
        return codec.decode_response(key, version, body)

    def create(self, name: str, *, version: int = 7, **fields: Any) -> Any:
        """Create a topic; its part of the response."""
        defaults = {
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [],
            "configs": [],
        }
        validate_only = fields.pop("validate_only", False)
        topics = [{"name": name} | defaults | fields]
        answer = self.call(19, version, topics=topics, timeout=0, validate_only=validate_only)
        return answer.topics[0]

    def closed(self) -> bool:
        """Whether the broker hangs up, without a response, within ten seconds."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            assert piece, f"the connection ended after {len(data)} of {count} bytes"
            data += piece
        return data


Connect = Callable[[], Wire]


@pytest.fixture
def broker() -> Iterator[headrace.Broker]:
    """A broker that refuses frames above 1 MiB."""
    with headrace.Broker(settings={"socket.request.max.bytes": 1_048_576}) as running:
        yield running


@contextlib.contextmanager
def _connecting(broker: headrace.Broker) -> Iterator[Connect]:
    opened: list[Wire] = []

    def open_one() -> Wire:
        opened.append(Wire(int(broker.bootstrap_servers.rsplit(":", 1)[1])))
        return opened[-1]

    try:
        yield open_one
    finally:
        for wire in opened:
            wire.close()


@pytest.fixture
def connecting() -> Callable[[headrace.Broker], contextlib.AbstractContextManager[Connect]]:
    """Opens connections to any broker; closes them at the end of a `with`."""
    return _connecting


@pytest.fixture
def wire(connect: Connect) -> Wire:
    """One connection to `broker`."""
    return connect()


@pytest.fixture
def connect(broker: headrace.Broker) -> Iterator[Connect]:
    """Opens connections to `broker`; closes them after the test."""
    with _connecting(broker) as opening:
        yield opening
