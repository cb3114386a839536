"""A bare client for groups, the same for both brokers and cheap enough not to be what is measured.

Requests are encoded once and patched in place; answers are compared as bytes, not decoded.
"""

import asyncio
import itertools
import selectors
import socket
import struct
import sys
import time
from typing import Any

from brokers import Broker
from headrace.wire import codec

COMMIT, FETCH, FIND, JOIN, HEARTBEAT, SYNC, CREATE = 8, 9, 10, 11, 12, 14, 19
OFFSET = 1  # that is committed where it does not matter
COMMIT_VERSION, EXPIRING_VERSION, FETCH_VERSION = 9, 4, 8
_SIZE = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_HEAD = struct.Struct(">hhih")
_MARK = 0x0123456789ABCDEF
# Not loaded yet, not there yet, not yet this one.
_COME_AGAIN = (14, 15, 16)
_ID_REQUIRED, _REBALANCING = 79, 27
_SECONDS_MAX = 120
_SESSION_MS = 300_000


def frame(key: int, version: int, **fields: Any) -> bytearray:
    """A whole request; all have the same correlation id, as answers come in order."""
    body = codec.encode_request(key, version, fields)
    head = _HEAD.pack(key, version, 1, -1) + b"\0" * codec.is_flexible(key, version)
    return bytearray(_SIZE.pack(len(head) + len(body)) + head + body)


def decoded(key: int, version: int, answer: bytes) -> Any:
    """What an answer without its size says."""
    return codec.decode_response(
        key, version, answer[5 if codec.is_flexible(key, version) else 4 :]
    )


class Connection:
    """One connection that asks and waits."""

    def __init__(self, broker: Broker) -> None:
        self.socket = socket.create_connection(("127.0.0.1", broker.port), timeout=_SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, key: int, version: int, **fields: Any) -> Any:
        return decoded(key, version, self.exchange(frame(key, version, **fields)))

    def exchange(self, request: bytes | bytearray) -> bytes:
        """The answer to one request, without its size."""
        self.socket.sendall(request)
        return self.receive()

    def receive(self) -> bytes:
        (size,) = _SIZE.unpack(self._exactly(4))
        return self._exactly(size)

    def close(self) -> None:
        self.socket.close()

    def find_coordinator(self, group: str, topic: str) -> int:
        """Wait until the group's coordinator answers; returns the offset of partition 0, or -1."""
        until = time.monotonic() + _SECONDS_MAX
        while time.monotonic() < until:
            found = self.ask(FIND, 4, key_type=0, coordinator_keys=[group]).coordinators[0]
            told, offset = found.error_code, -1
            if not told:
                told, offset = fetched(self.exchange(fetch_frame(group, topic)))
            if not told:
                return offset
            if told not in _COME_AGAIN:
                break
            time.sleep(0.01)
        sys.exit(f"no coordinator for group {group}: error {told}")

    def join(self, group: str) -> tuple[str, int]:
        """Be the only member of a group; returns member id and generation."""
        member = ""
        while True:
            joined = self.ask(JOIN, 9, **join_fields(group, member))
            member = joined.member_id
            if joined.error_code != _ID_REQUIRED:
                break
        self.ask(SYNC, 5, **sync_fields(group, member, joined.generation_id, [member]))
        return member, joined.generation_id

    def _exactly(self, count: int) -> bytes:
        data = self.socket.recv(count)
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                sys.exit("the broker closed the connection")
            data += piece
        return data


def fetch_frame(group: str, topic: str) -> bytearray:
    """What a group committed for partition 0 of a topic."""
    asked = [{"name": topic, "topic_id": None, "partition_indexes": [0]}]
    one = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": asked}
    return frame(FETCH, FETCH_VERSION, groups=[one], require_stable=False)


def fetched(answer: bytes) -> tuple[int, int]:
    """Error code and offset in the answer to `fetch_frame`."""
    group = decoded(FETCH, FETCH_VERSION, answer).groups[0]
    if group.error_code:
        return group.error_code, -1
    partition = group.topics[0].partitions[0]
    return partition.error_code, partition.committed_offset


def join_fields(group: str, member: str) -> dict[str, Any]:
    return {
        "group_id": group, "session_timeout": _SESSION_MS, "rebalance_timeout": _SESSION_MS,
        "member_id": member, "group_instance_id": None, "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": bytes(100)}], "reason": None,
    }  # fmt: skip


def sync_fields(group: str, member: str, generation: int, members: list[str]) -> dict[str, Any]:
    return {
        "group_id": group, "generation_id": generation, "member_id": member,
        "group_instance_id": None, "protocol_type": "consumer", "protocol_name": "range",
        "assignments": [{"member_id": one, "assignment": bytes(40)} for one in members],
    }  # fmt: skip


def commit_frame(
    group: str, topics: dict[str, range], *, member: str = "", generation: int = -1,
    retention_ms: int | None = None, offset: int = OFFSET, metadata: str = "",
) -> bytearray:  # fmt: skip
    """A commit of one offset for many partitions."""
    fields = {
        "group_id": group, "generation_id_or_member_epoch": generation, "member_id": member,
        "group_instance_id": None,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": index, "committed_offset": offset,
                        "committed_leader_epoch": -1, "committed_metadata": metadata,
                    }
                    for index in partitions
                ],
            }
            for name, partitions in topics.items()
        ],
    }  # fmt: skip
    if retention_ms is None:
        return frame(COMMIT, COMMIT_VERSION, **fields)
    return frame(COMMIT, EXPIRING_VERSION, **fields, retention_time=retention_ms)


class Committer:
    """A member that commits one partition again and again, `window` requests ahead of answers.

    Unless they are `alike`, each has other metadata than the one before.
    """

    def __init__(
        self, broker: Broker, group: str, topic: str, *, window: int, alike: bool = True
    ) -> None:
        self.connection = Connection(broker)
        self.connection.find_coordinator(group, topic)
        member, generation = self.connection.join(group)
        one, other = (
            commit_frame(
                group, {topic: range(1)}, member=member, generation=generation, offset=_MARK,
                metadata=metadata,
            )
            for metadata in ("a", "a" if alike else "b")
        )  # fmt: skip
        self._at = one.index(_OFFSET.pack(_MARK))
        self._size = len(one)
        self._requests = (one + other) * (window // 2 + 1)
        self._window = window
        self._offsets = itertools.count()
        self._patch(1)
        self._answer = self.connection.exchange(self._requests[: self._size])
        said = decoded(COMMIT, COMMIT_VERSION, self._answer).topics[0].partitions[0].error_code
        if said:
            sys.exit(f"a commit was answered with error {said}")
        self._answer = _SIZE.pack(len(self._answer)) + self._answer
        self._received = b""

    def send(self, count: int) -> None:
        self._patch(count)
        self.connection.socket.sendall(memoryview(self._requests)[: count * self._size])

    def received(self) -> int:
        """Take in what has arrived: the number of answers."""
        data = self._received + self.connection.socket.recv(1 << 16)
        count, size = len(data) // len(self._answer), len(self._answer)
        if data[: count * size] != self._answer * count:
            sys.exit("a commit was refused, or the connection closed")
        self._received = data[count * size :]
        return count

    def _patch(self, count: int) -> None:
        requests, at, size = self._requests, self._at, self._size
        for index in range(count):
            _OFFSET.pack_into(requests, index * size + at, next(self._offsets))


def commit_rate(committers: list[Committer], window: int, seconds: float) -> float:
    """Commits per second by all of them, each `window` ahead."""
    with selectors.DefaultSelector() as selector:
        for one in committers:
            selector.register(one.connection.socket, selectors.EVENT_READ, one)
            one.send(window)
        began, done = time.perf_counter(), 0
        until = began + seconds
        while (now := time.perf_counter()) < until:
            for ready, _ in selector.select(1):
                count = ready.data.received()
                done += count
                if count:
                    ready.data.send(count)
        rate = done / (now - began)
        for one in committers:
            left = window
            while left:
                left -= one.received()
    return rate


def commit_seconds(committer: Committer, seconds: float) -> list[float]:
    """How long each commit took when none is under way before it."""
    took, until = [], time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        committer.send(1)
        while not committer.received():
            pass
        took.append(time.perf_counter() - began)
    return took


# ---- many members


async def join_seconds(broker: Broker, group: str, count: int) -> float:
    """From the first JoinGroup until `count` members are in one generation and all are assigned."""
    began = time.perf_counter()
    told: dict[int, int] = {}
    done = asyncio.Event()

    def assigned(index: int, generation: int) -> None:
        told[index] = generation
        if len(told) == count and len(set(told.values())) == 1:
            done.set()

    members = [
        asyncio.create_task(_member(broker, group, index, assigned, done))
        for index in range(count)
    ]  # fmt: skip
    await asyncio.wait_for(done.wait(), _SECONDS_MAX)
    took = time.perf_counter() - began
    await asyncio.gather(*members)
    return took


async def _member(
    broker: Broker, group: str, index: int, assigned: Any, done: asyncio.Event
) -> None:
    """What a consumer does: join, sync, heartbeat, and join again when told to."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)

    async def ask(key: int, version: int, **fields: Any) -> Any:
        writer.write(frame(key, version, **fields))
        (size,) = _SIZE.unpack(await reader.readexactly(4))
        return decoded(key, version, await reader.readexactly(size))

    member = ""
    while not done.is_set():
        joined = await ask(JOIN, 9, **join_fields(group, member))
        if joined.error_code not in (0, _ID_REQUIRED, _REBALANCING):
            sys.exit(f"a join was answered with error {joined.error_code}")
        member = joined.member_id or member
        if joined.error_code:
            continue
        here, generation = [one.member_id for one in joined.members], joined.generation_id
        synced = await ask(SYNC, 5, **sync_fields(group, member, generation, here))
        if synced.error_code:
            continue
        assigned(index, generation)
        beat = {
            "group_id": group, "generation_id": generation, "member_id": member,
            "group_instance_id": None,
        }  # fmt: skip
        while not done.is_set():
            if (await ask(HEARTBEAT, 4, **beat)).error_code:
                break
            await asyncio.sleep(0.1 + index % 100 / 1000)
    writer.close()
