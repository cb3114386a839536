"""A broker and bare connections to it, for what no stock client would send."""

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

import headrace
from headrace.wire import codec

WAIT_S = 30  # for whatever a broker answers soon, on a machine that has much else to do


class Wire:
    """One connection that sends whatever it is told to."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)

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
        """Whether the broker hangs up, without a response, within `WAIT_S`."""
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
def broker(request: pytest.FixtureRequest) -> Iterator[headrace.Broker]:
    """A broker that refuses frames above 1 MiB; or one with a module's BROKER_SETTINGS."""
    settings = getattr(request.module, "BROKER_SETTINGS", {"socket.request.max.bytes": 1_048_576})
    with headrace.Broker(settings=settings) as running:
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


CREATE_TOPICS, DELETE_TOPICS, SHARE_HEARTBEAT = 19, 20, 76
JOIN, SYNC, BEAT, COMMIT, FETCH, LIST_GROUPS = 11, 14, 12, 8, 9, 16


class GroupClient:
    """A member of group "g" over one bare connection."""

    def __init__(self, wire: Any) -> None:
        self.wire = wire

    def join(self, version: int = 9, member: str = "", **other: Any) -> Any:
        return self.wire.call(JOIN, version, **self.joining(member, **other))

    @staticmethod
    def joining(member: str, **other: Any) -> dict[str, Any]:
        fields = {
            "group_id": "g",
            "session_timeout": 10_000,
            "rebalance_timeout": 20_000,
            "member_id": member,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": ({"name": "range", "metadata": b"topics"},),
            "reason": None,
        }
        return fields | other

    def sync(self, member: str, generation: int, version: int = 5, **other: Any) -> Any:
        fields = {
            "group_id": "g",
            "generation_id": generation,
            "member_id": member,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": ({"member_id": member, "assignment": b"all"},),
        }
        return self.wire.call(SYNC, version, **(fields | other))

    def beat(self, member: str, generation: int, group: str = "g") -> int:
        answer = self.wire.call(BEAT, 4, group_id=group, generation_id=generation, member_id=member)
        return int(answer.error_code)

    def beat_until(self, code: int, member: str, generation: int) -> None:
        """Beat until what another connection asked for shows."""
        deadline = time.monotonic() + WAIT_S
        while self.beat(member, generation) != code:
            assert time.monotonic() < deadline, f"no heartbeat was answered with {code}"

    def stable(self, **joining: Any) -> str:
        """A member, alone in generation 1."""
        member = str(self.join(**joining).member_id)
        assert self.join(member=member, **joining).error_code == 0
        assert self.sync(member, 1).error_code == 0
        return member

    def commit(
        self,
        *offsets: tuple[Any, int, int],
        version: int = 9,
        generation: int = -1,
        member: str = "",
        **other: Any,
    ) -> list[tuple[Any, int, int]]:
        """Commit offsets of (topic, partition, offset); (topic, partition, code) of each."""
        field = "topic_id" if version >= 10 else "name"
        metadata = other.pop("metadata", None)
        topics = [
            {
                field: topic,
                "partitions": (
                    {
                        "partition_index": partition,
                        "committed_offset": offset,
                        "committed_leader_epoch": 0,
                        "committed_metadata": metadata,
                    },
                ),
            }
            for topic, partition, offset in offsets
        ]
        fields = {
            "group_id": "g",
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "topics": topics,
        }
        answer = self.wire.call(COMMIT, version, **(fields | other))
        return [
            (getattr(topic, field), one.partition_index, one.error_code)
            for topic in answer.topics
            for one in topic.partitions
        ]

    def fetch(
        self, *wanted: Any, version: int = 9, group: str = "g", everything: bool = False
    ) -> Any:
        """What was committed for (topic, partition) each, or for everything."""
        field = "topic_id" if version >= 10 else "name"
        asked = [{field: topic, "partition_indexes": (index,)} for topic, index in wanted]
        one = {"group_id": group, "topics": None if everything else asked}
        fields = {"groups": (one,)} if version >= 8 else one
        answer = self.wire.call(FETCH, version, require_stable=True, **fields)
        found = answer.groups[0] if version >= 8 else answer
        return [
            (getattr(topic, field), one.partition_index, one.committed_offset, one.error_code)
            for topic in found.topics
            for one in topic.partitions
        ]

    def create_topic(self, name: str, partitions: int = 2) -> UUID:
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
        topic |= {"assignments": (), "configs": ()}
        answer = self.wire.call(
            CREATE_TOPICS, 7, topics=(topic,), timeout=1000, validate_only=False
        )
        found = answer.topics[0].topic_id
        assert isinstance(found, UUID)
        return found

    def delete_topic(self, name: str) -> None:
        asked = ({"name": name, "topic_id": None},)
        answer = self.wire.call(DELETE_TOPICS, 6, topics=asked, timeout=1000)
        assert answer.responses[0].error_code == 0

    def listed(self, *states: str, types: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        answer = self.wire.call(LIST_GROUPS, 5, states_filter=states, types_filter=types)
        return sorted(
            (one.group_id, one.protocol_type, one.group_state, one.group_type)
            for one in answer.groups
        )

    def share(self, group: str) -> int:
        """Join a share group; the code."""
        answer = self.wire.call(
            SHARE_HEARTBEAT, 1, group_id=group, member_id="s", member_epoch=0, rack_id=None,
            subscribed_topic_names=("orders",),
        )  # fmt: skip
        return int(answer.error_code)


@pytest.fixture
def group_client() -> Callable[[Wire], GroupClient]:
    return GroupClient


@pytest.fixture
def client(connect: Connect) -> GroupClient:
    """A client of groups, connected to `broker`."""
    return GroupClient(connect())
