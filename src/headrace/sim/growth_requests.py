"""What the consumers of a growing topic ask a broker: Kafka's messages, as Python values."""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.sim.growth_auditor import Place
from headrace.sim.network import Connection

METADATA, JOIN, SYNC, BEAT, LEAVE = 3, 11, 14, 12, 13
_FETCH, _LIST_OFFSETS, _OFFSET_COMMIT, _OFFSET_FETCH = 1, 2, 8, 9
_VERSIONS = {METADATA: 12, JOIN: 6, SYNC: 4, BEAT: 4, LEAVE: 4}
_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")
_FETCH_BYTES = 1 << 20

Offsets = Mapping[Place, tuple[int, str]]  # offset, metadata
Told = Callable[[Place, int], None]


def _nothing(_: Any) -> None:
    """Nobody listens to the answer on its way."""


async def ask(connection: Connection, key: int, **fields: Any) -> Any:
    """A request and its answer. Raises: Lost."""
    return await connection.call(key, _VERSIONS[key], _nothing, **fields)


async def partition_counts(connection: Connection) -> dict[str, int]:
    """Topics that applications made, and how many partitions each has."""
    answer = await ask(
        connection,
        METADATA,
        topics=None,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    return {one.name: len(one.partitions) for one in answer.topics if not one.name.startswith("__")}


async def list_offsets(
    connection: Connection, stamps: Mapping[Place, int], told: Told
) -> dict[Place, int]:
    """The first offset at or after each timestamp; `told` of each as the answer leaves."""
    found: dict[Place, int] = {}

    def let_out(answer: Any) -> None:
        for topic in answer.topics:
            for one in topic.partitions:
                place = topic.name, one.partition_index
                if one.error_code == 0:
                    found[place] = one.offset
                    told(place, one.offset)

    topics = [
        {
            "name": name,
            "partitions": [
                {
                    "partition_index": number,
                    "current_leader_epoch": -1,
                    "timestamp": stamps[name, number],
                }
                for number in numbers
            ],
        }
        for name, numbers in _by_topic(stamps).items()
    ]
    await connection.call(
        _LIST_OFFSETS, 6, let_out, replica_id=-1, isolation_level=1, topics=topics
    )
    return found


async def fetch_offsets(
    connection: Connection, group: str, places: Iterable[Place], told: Told
) -> dict[Place, tuple[int, str]]:
    """What a group committed; -1 where there is nothing. `told` of what there is."""
    found: dict[Place, tuple[int, str]] = {}

    def let_out(answer: Any) -> None:
        for topic in answer.groups[0].topics:
            for one in topic.partitions:
                place = topic.name, one.partition_index
                found[place] = one.committed_offset, one.metadata or ""
                if one.committed_offset >= 0:
                    told(place, one.committed_offset)

    topics = [
        {"name": name, "partition_indexes": numbers} for name, numbers in _by_topic(places).items()
    ]
    await connection.call(
        _OFFSET_FETCH, 8, let_out,
        groups=[{"group_id": group, "topics": topics}], require_stable=False,
    )  # fmt: skip
    return found


async def commit_offsets(
    connection: Connection,
    group: str,
    member: tuple[str, int],
    offsets: Offsets,
    told: Callable[[Place], None],
) -> int:
    """Commit as a member of a generation; the worst error code. `told` of each that is done."""
    codes: list[int] = []

    def let_out(answer: Any) -> None:
        for topic in answer.topics:
            for one in topic.partitions:
                codes.append(one.error_code)
                if one.error_code == 0:
                    told((topic.name, one.partition_index))

    topics = [
        {
            "name": name,
            "partitions": [
                {
                    "partition_index": number,
                    "committed_offset": offsets[name, number][0],
                    "committed_leader_epoch": -1,
                    "committed_metadata": offsets[name, number][1],
                }
                for number in numbers
            ],
        }
        for name, numbers in _by_topic(offsets).items()
    ]
    await connection.call(
        _OFFSET_COMMIT, 8, let_out, group_id=group, member_id=member[0],
        generation_id_or_member_epoch=member[1], group_instance_id=None, topics=topics,
    )  # fmt: skip
    return max(codes, default=0)


async def fetch(
    connection: Connection, positions: Mapping[Place, int], wait_ms: int
) -> dict[Place, tuple[int, bytes]]:
    """Error code and batches of each partition that has any."""
    topics = [
        {
            "topic": name,
            "partitions": [
                {
                    "partition": number,
                    "current_leader_epoch": -1,
                    "fetch_offset": positions[name, number],
                    "last_fetched_epoch": -1,
                    "log_start_offset": -1,
                    "partition_max_bytes": _FETCH_BYTES,
                }
                for number in numbers
            ],
        }
        for name, numbers in _by_topic(positions).items()
    ]
    answer = await connection.call(
        _FETCH, 12, _nothing, replica_id=-1, max_wait=wait_ms, min_bytes=1, max_bytes=_FETCH_BYTES,
        isolation_level=1, session_id=0, session_epoch=-1, topics=topics,
        forgotten_topics_data=(), rack_id="", cluster_id=None,
    )  # fmt: skip
    return {
        (topic.topic, one.partition_index): (one.error_code, bytes(one.records or b""))
        for topic in answer.responses
        for one in topic.partitions
        if one.error_code or one.records
    }


# ---- what members of a classic group tell each other (ConsumerProtocolSubscription, version 0)


def subscription(topics: Iterable[str]) -> bytes:
    """The metadata of a member."""
    names = sorted(topics)
    head = _SHORT.pack(0) + _INT.pack(len(names))
    return head + b"".join(map(_string, names)) + _INT.pack(-1)


def assignment(places: Iterable[Place]) -> bytes:
    """What the leader gives a member (ConsumerProtocolAssignment)."""
    topics = _by_topic(places)
    out = _SHORT.pack(0) + _INT.pack(len(topics))
    for name, numbers in topics.items():
        out += _string(name) + _INT.pack(len(numbers)) + b"".join(map(_INT.pack, numbers))
    return out + _INT.pack(-1)


def assigned(data: bytes) -> list[Place]:
    """The way back."""
    if not data:
        return []
    places: list[Place] = []
    at = 2
    (topics,), at = _INT.unpack_from(data, at), at + 4
    for _ in range(topics):
        (length,), at = _SHORT.unpack_from(data, at), at + 2
        name, at = data[at : at + length].decode(), at + length
        (count,), at = _INT.unpack_from(data, at), at + 4
        for _ in range(count):
            (number,), at = _INT.unpack_from(data, at), at + 4
            places.append((name, number))
    return places


def _string(text: str) -> bytes:
    data = text.encode()
    return _SHORT.pack(len(data)) + data


def _by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, number in sorted(places):
        found.setdefault(name, []).append(number)
    return found
