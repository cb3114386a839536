"""A peer that sends what no client sends: random, mutated, half and unread frames, and huge claims.

It changes nothing that others rely on: mutated frames are of requests that only read, and random
bodies do not decode to a change. Whatever it does, the others have to be served, and no handler may
fail with an exception.
"""

import asyncio
import struct
from random import Random
from typing import TYPE_CHECKING, Any

from headrace.sim.process import Wire
from headrace.wire import codec

if TYPE_CHECKING:
    from headrace.sim.world import World

_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">hhihb")  # key, version, correlation id, no client id, no tagged fields
_NAMES = ("ledger", "table", "orders", "extra", "nobody", "", "x" * 300)
_KEYS = (*range(25), 32, 33, 36, 37, 42, 43, 44, 47, 60, 61, 68, 69, 74, 75, 76, 77, 78, 79)
_FRAME_BYTES_MAX = 200
_PIPELINED = 40
_SECONDS = 1.0  # of a connection that sends nothing more


class HostilePeer:
    """One stranger with one connection after the other."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self._world = world
        self._rng = Random(f"{world.seed}/{name}")
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
        for _ in range(self._rng.randrange(1, 4)):
            at = self._rng.randrange(_HEAD.size, max(len(data), _HEAD.size + 1))
            match self._rng.randrange(3):
                case 0:
                    data[at : at + 1] = self._rng.randbytes(1)
                case 1:
                    del data[at : at + self._rng.randrange(8)]
                case _:
                    data[at:at] = data[at : at + self._rng.randrange(8)]
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
        key, version, fields = rng.choice(choices)
        body = codec.encode_request(key, version, fields)
        return self._framed(_HEAD.pack(key, version, 7, -1, 0) + bytes(body))

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
        key, version, fields = rng.choice(choices)
        body = codec.encode_request(key, version, fields)
        return _HEAD.pack(key, version, 7, -1, 0) + bytes(body)

    def _framed(self, data: bytes) -> bytes:
        return _SIZE.pack(len(data)) + data

    def _receive(self, data: bytes) -> None:
        self._received += len(data)


def _nothing() -> None:
    """Ignore that the broker hung up."""
