"""A peer that sends what no client sends: random, mutated, half and unread frames, and huge claims.

It changes nothing that others rely on. Mutated frames are of requests that read, and of requests
that write where nothing may come of it: batches whose checksum is wrong before they are mutated,
groups of its own, topics that do not exist. `RecordAuditor` reports a value of it that is stored.
Random bodies do not decode to a change. Whatever it does, the others have to be served, and no
handler may fail with an exception.
"""

import asyncio
import struct
from random import Random
from typing import TYPE_CHECKING, Any

from headrace.sim.process import Wire
from headrace.wire import batches, codec

if TYPE_CHECKING:
    from headrace.sim.world import World

_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">hhihb")  # key, version, correlation id, no client id, no tagged fields
_NAMES = ("ledger", "table", "orders", "extra", "nobody", "", "x" * 300)
_KEYS = (*range(25), 32, 33, 36, 37, 42, 43, 44, 47, 60, 61, 68, 69, 74, 75, 76, 77, 78, 79)
_FRAME_BYTES_MAX = 200
_PIPELINED = 40
_WRITES = 0.3  # of the frames are of requests that write
_OWN_GROUP = "stranger-group"
_SECONDS = 1.0  # of a connection that sends nothing more


class HostilePeer:
    """One stranger with one connection after the other."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self._world = world
        self._rng = Random(f"{world.seed}/{name}")
        self._writes = Random(f"{world.seed}/{name}/writes")
        self._produced = 0
        self._received = 0

    async def run(self) -> None:
        """Attack until the faults are over."""
        while not self._world.is_quiet:
            await asyncio.sleep(self._rng.uniform(0.0, 0.4))
            process = self._world.process
            if process is None or not process.is_up:
                continue
            wire = process.connect(self._receive, _nothing)
            for _ in range(self._rng.randrange(1, 5)):
                self._send(wire)
                await asyncio.sleep(self._rng.choice((0.0, 0.001, 0.05)))
            if self._rng.random() < 0.3:
                await asyncio.sleep(_SECONDS)  # half open
            if not wire.is_closing() and self._world.process is process:
                wire.hang_up()

    def _send(self, wire: Wire) -> None:
        kinds = [self._noise, self._body, self._mutated, self._claim, self._half, self._flood]
        if self._world.options.counts_work:
            kinds += [self._repeated] * 3
        kind = self._rng.choice(kinds)
        if self._writes.random() < _WRITES:
            kind = self._writes.choice((self._spoiled, self._written))
        data = kind()
        if not wire.is_closing() and not self._world.is_dead:
            self._world.history.step(self.name, f"sends {kind.__name__[1:]}, {len(data)} bytes")
            wire.carry(data)

    def _noise(self) -> bytes:
        """A frame of random bytes."""
        return self._framed(self._rng.randbytes(self._rng.randrange(_FRAME_BYTES_MAX)))

    def _body(self) -> bytes:
        """A sound header before a random body."""
        head = _HEAD.pack(self._rng.choice(_KEYS), self._rng.randrange(12), 7, -1, 0)
        return self._framed(head + self._rng.randbytes(self._rng.randrange(_FRAME_BYTES_MAX)))

    def _mutated(self) -> bytes:
        """A sound request that reads, with some bytes changed, lost or repeated."""
        data = bytearray(self._request())
        _mutate(data, _HEAD.size, self._rng, self._rng.randrange(1, 4))
        return self._framed(bytes(data))

    def _spoiled(self) -> bytes:
        """A request to produce a batch with a wrong checksum, as it is or mutated."""
        rng = self._writes
        self._produced += 1
        value = f"{self.name}:{self._produced}".encode()
        batch = bytearray(
            batches.build(
                [batches.Record(0, self._world.clock.wall(), b"k", value)] * rng.choice((1, 1, 3)),
                producer_id=rng.choice((-1, 7)),
                producer_epoch=0,
                base_sequence=0,
            )
        )
        batch[batches.CRC_AT + rng.randrange(batches.CRC.size)] ^= rng.randrange(1, 256)
        part = {"index": rng.choice((0, 0, 1)), "records": bytes(batch)}
        fields = {
            "transactional_id": None, "acks": rng.choice((-1, 0, 1)), "timeout": 1000,
            "topic_data": [{"name": rng.choice(_NAMES[:4]), "partition_data": [part]}],
        }  # fmt: skip
        data = bytearray(_request_of(0, 9, fields))
        _mutate(data, _HEAD.size, rng, rng.randrange(3))
        return self._framed(bytes(data))

    def _written(self) -> bytes:
        """A request that changes a group of its own or a topic that does not exist, mutated."""
        rng = self._writes
        member = {"group_id": _OWN_GROUP, "member_id": rng.choice(("", "m"))}
        joined = {
            **member, "session_timeout": 6000, "rebalance_timeout": 100,
            "protocol_type": "consumer", "group_instance_id": None,
            "protocols": [{"name": "range", "metadata": b"1234"}],
        }  # fmt: skip
        synced = {
            **member, "generation_id": 1, "group_instance_id": None,
            "assignments": [{"member_id": "m", "assignment": b"1234"}],
        }  # fmt: skip
        topic = {"name": "nobody", "partitions": [{"partition_index": 0, "offset": 5}]}
        choices: tuple[tuple[int, int, dict[str, Any]], ...] = (
            (11, 6, joined),
            (14, 4, synced),
            (12, 4, {**member, "generation_id": 1, "group_instance_id": None}),
            (13, 4, {"group_id": _OWN_GROUP, "members": [
                {"member_id": "m", "group_instance_id": None}]}),
            (20, 5, {"topic_names": ["nobody"] * rng.choice((1, 9)), "timeout": 1000}),
            (21, 2, {"topics": [topic] * rng.choice((1, 9)), "timeout": 1000}),
        )  # fmt: skip
        key, version, fields = rng.choice(choices)
        data = bytearray(_request_of(key, version, fields))
        # The name of the group stands first, and stays.
        begin = _HEAD.size + len(_OWN_GROUP) + 1 if key < 20 else _HEAD.size
        _mutate(data, begin, rng, rng.randrange(1, 4))
        return self._framed(bytes(data))

    def _claim(self) -> bytes:
        """A size that never comes."""
        claims = (-1, 0, 1, 3, 1 << 16, 1 << 24, 104_857_600, 2**31 - 1)
        return _SIZE.pack(self._rng.choice(claims)) + self._rng.randbytes(self._rng.randrange(20))

    def _half(self) -> bytes:
        """The first part of a frame."""
        whole = self._framed(self._request())
        return whole[: self._rng.randrange(len(whole))]

    def _flood(self) -> bytes:
        """Many requests at a time, whose responses nobody reads."""
        return self._framed(self._request()) * self._rng.randrange(2, _PIPELINED)

    def _repeated(self) -> bytes:
        """A request that names one thing some thousand times."""
        rng = self._rng
        many, topic, group = rng.choice((500, 2000)), rng.choice(_NAMES[:4]), "classic-group"
        part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": rng.choice((-1, 0))}
        choices: tuple[tuple[int, int, dict[str, Any]], ...] = (
            (2, 6, {
                "replica_id": -1, "isolation_level": 0,
                "topics": [{"name": topic, "partitions": [part] * many}],
            }),
            (3, 12, {
                "topics": [{"topic_id": None, "name": topic}] * many,
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": False,
            }),
            (9, 8, {"require_stable": False, "groups": [{"group_id": group, "topics": [
                {"name": topic, "partition_indexes": list(range(many))}]}]}),
            (15, 5, {"groups": [group] * many, "include_authorized_operations": False}),
            (32, 4, {
                "resources": [
                    {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
                ] * many,
                "include_synonyms": True, "include_documentation": True,
            }),
            (69, 1, {"group_ids": [group] * many, "include_authorized_operations": False}),
            (77, 1, {"group_ids": ["blue"] * many, "include_authorized_operations": False}),
            (10, 4, {"key_type": 0, "coordinator_keys": [group] * many}),
        )  # fmt: skip
        return self._framed(_request_of(*rng.choice(choices)))

    def _request(self) -> bytes:
        rng = self._rng
        topic, number = rng.choice(_NAMES), rng.choice((0, 0, 1, -1, 2**31 - 1))
        fetched = {
            "partition": number, "current_leader_epoch": -1,
            "fetch_offset": rng.choice((0, 5, -1, 2**63 - 1)), "last_fetched_epoch": -1,
            "log_start_offset": -1, "partition_max_bytes": rng.choice((0, 1, 2**31 - 1)),
        }  # fmt: skip
        listed = {"partition_index": number, "current_leader_epoch": -1, "timestamp": -1}
        choices: tuple[tuple[int, int, dict[str, Any]], ...] = (
            (1, 12, {
                "replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 2**31 - 1,
                "isolation_level": 0, "session_id": rng.choice((0, 1)),
                "session_epoch": rng.choice((-1, 0, 1)),
                "topics": [{"topic": topic, "partitions": [fetched] * rng.choice((1, 5))}],
                "forgotten_topics_data": (), "rack_id": "", "cluster_id": None,
            }),
            (2, 6, {
                "replica_id": -1, "isolation_level": 0,
                "topics": [{"name": topic, "partitions": [listed] * rng.choice((1, 9))}],
            }),
            (3, 12, {
                "topics": [{"topic_id": None, "name": topic}] * rng.choice((1, 30)),
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": False,
            }),
            (15, 5, {"groups": [topic, "blue"], "include_authorized_operations": False}),
        )  # fmt: skip
        return _request_of(*rng.choice(choices))

    def _framed(self, data: bytes) -> bytes:
        return _SIZE.pack(len(data)) + data

    def _receive(self, data: bytes) -> None:
        self._received += len(data)


def _request_of(key: int, version: int, fields: dict[str, Any]) -> bytes:
    return _HEAD.pack(key, version, 7, -1, 0) + bytes(codec.encode_request(key, version, fields))


def _mutate(data: bytearray, begin: int, rng: Random, times: int) -> None:
    """Change, remove or repeat some bytes from `begin` on."""
    for _ in range(times):
        at = rng.randrange(begin, max(len(data), begin + 1))
        match rng.randrange(3):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1:
                del data[at : at + rng.randrange(8)]
            case _:
                data[at:at] = data[at : at + rng.randrange(8)]


def _nothing() -> None:
    """Ignore that the broker hung up."""
