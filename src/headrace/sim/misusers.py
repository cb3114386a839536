"""Clients whose requests the broker has to refuse: transactions, batches that lie, and members of
share groups where these are switched off.

A refused request changes nothing: its values never become readable. `RecordAuditor` reports a value
that no producer sent.
"""

import struct
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from headrace.sim.actor import Actor
from headrace.sim.facts import Place
from headrace.sim.network import Connection
from headrace.wire import batches
from headrace.wire.checksums import crc32c
from headrace.wire.compression import Codec

if TYPE_CHECKING:
    from headrace.sim.world import World

_PRODUCE, _FIND, _INIT_PRODUCER_ID, _COMMIT_TRANSACTION = 0, 10, 22, 28
_API_VERSIONS, _SHARE_HEARTBEAT, _SHARE_DESCRIBE, _SHARE_FETCH = 18, 76, 77, 78
_SHARE_APIS = {76, 77, 78, 79, 90, 91, 92}
_UNSUPPORTED = 35
_ACKS_ALL, _TRANSACTION = -1, 1
_STORAGE, _NOT_AUTHORIZED, _INVALID_RECORD = 56, 53, 87
_HONEST = 0.5  # of the requests also contain a sound batch

Lie = Callable[[bytearray, Random], bytes]


class _Misuser(Actor):
    """Turns of requests over one connection, and over another one when that is lost."""

    def __init__(self, world: "World", name: str, places: list[Place]) -> None:
        super().__init__(world, name)
        self._places = places
        self._sent = 0

    def _value(self) -> bytes:
        self._sent += 1
        return f"{self.name}:{self._sent}".encode()

    def _broken(self, what: str) -> None:
        self._world.records_broken(f"{self.name}: {what}")

    def _step(self, what: str) -> None:
        self._world.history.step(self.name, what)


class TransactionalPeer(_Misuser):
    """A transactional producer: every request of it is refused with Kafka's fatal error."""

    async def _turn(self, connection: Connection) -> None:
        await self._rng.choice((self._find, self._init, self._produce))(connection)

    async def _find(self, connection: Connection) -> None:
        answer = await connection.call(
            _FIND, 4, _nothing, key_type=_TRANSACTION, coordinator_keys=("payments",)
        )
        self._refused("FindCoordinator", answer.coordinators[0].error_code, _NOT_AUTHORIZED)

    async def _init(self, connection: Connection) -> None:
        answer = await connection.call(
            _INIT_PRODUCER_ID, 4, _nothing, transactional_id="payments", transaction_timeout=1000,
            producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
        self._refused("InitProducerId", answer.error_code, _NOT_AUTHORIZED)
        if answer.producer_id != -1:
            self._broken(f"was given producer id {answer.producer_id}")

    async def _produce(self, connection: Connection) -> None:
        """Produce a transactional or control batch, with a transactional id or without."""
        bits = batches.TRANSACTIONAL, batches.CONTROL, batches.TRANSACTIONAL | batches.CONTROL
        attributes, owner = self._rng.choice(bits), self._rng.choice((None, "payments"))
        place = self._rng.choice(self._places)
        record = batches.Record(0, self._world.clock.wall(), b"k", self._value())
        data = batches.build(
            [record], producer_id=7, producer_epoch=0, base_sequence=0, attributes=attributes
        )
        topic = {"name": place[0], "partition_data": ({"index": place[1], "records": data},)}
        answer = await connection.call(
            _PRODUCE, 9, _nothing, transactional_id=owner, acks=_ACKS_ALL, timeout=1000,
            topic_data=(topic,),
        )  # fmt: skip
        code = answer.responses[0].partition_responses[0].error_code
        self._refused(f"Produce ({owner}, {attributes:#x})", code, _INVALID_RECORD)

    def _refused(self, what: str, code: int, expected: int) -> None:
        self._step(f"{what}: {code}")
        if code not in (expected, _STORAGE):
            self._broken(f"{what} is answered with {code}, and not with {expected}")


class SwitchedOffMember(_Misuser):
    """A member of a share group where share groups are switched off: nothing serves it."""

    async def _turn(self, connection: Connection) -> None:
        await self._rng.choice((self._versions, self._join, self._fetch, self._describe))(
            connection
        )

    async def _versions(self, connection: Connection) -> None:
        answer = await connection.call(
            _API_VERSIONS, 3, _nothing, client_software_name="sim", client_software_version="1"
        )
        keys = {one.api_key for one in answer.api_keys} & _SHARE_APIS
        levels = {one.name: one.max_version_level for one in answer.finalized_features}
        self._step(f"ApiVersions: {sorted(keys)}")
        if keys or "share.version" in levels:
            self._broken(f"ApiVersions lists {sorted(keys)}, and features {levels}")

    async def _join(self, connection: Connection) -> None:
        answer = await connection.call(
            _SHARE_HEARTBEAT, 1, _nothing, group_id="off", member_id=self.name, member_epoch=0,
            rack_id=None, subscribed_topic_names=("ledger",),
        )  # fmt: skip
        self._refused("ShareGroupHeartbeat", answer.error_code, _UNSUPPORTED)

    async def _fetch(self, connection: Connection) -> None:
        answer = await connection.call(
            _SHARE_FETCH, 2, _nothing, group_id="off", member_id=self.name,
            share_session_epoch=0, max_wait=0, min_bytes=1, max_bytes=1 << 20, max_records=1,
            batch_size=1, share_acquire_mode=0, is_renew_ack=False, topics=(),
            forgotten_topics_data=(),
        )  # fmt: skip
        self._refused("ShareFetch", answer.error_code, _UNSUPPORTED)

    async def _describe(self, connection: Connection) -> None:
        answer = await connection.call(
            _SHARE_DESCRIBE, 1, _nothing, group_ids=("off",), include_authorized_operations=False
        )
        self._refused("ShareGroupDescribe", answer.groups[0].error_code, _UNSUPPORTED)

    def _refused(self, what: str, code: int, expected: int) -> None:
        self._step(f"{what}: {code}")
        if code != expected:
            self._broken(f"{what} is answered with {code}, and not with {expected}")


class LyingProducer(_Misuser):
    """Sends batches whose headers do not match their records, some beside sound batches."""

    async def _turn(self, connection: Connection) -> None:
        rng, world = self._rng, self._world
        place = rng.choice(self._places)
        lie = rng.choice(LIES)
        lying = lie(bytearray(self._built([self._value(), self._value()])), rng)
        parts: dict[Place, bytes] = {place: bytes(lying)}
        asked = world.auditor.asked()
        others = [one for one in self._places if one[0] == place[0] and one != place]
        sound: Place | None = rng.choice(others) if others and rng.random() < _HONEST else None
        pairs: list[tuple[bytes | None, bytes]] = []
        if sound is not None:
            pairs = [(b"k", self._value())]
            stream = f"{self.name}/{sound}"
            marks = [(world.clock.wall(), ())]
            world.records.sending(sound, stream, self._sent, pairs, marks)
            world.stamping(sound)
            parts[sound] = self._built([value for _, value in pairs])

        def let_out(answer: Any) -> None:
            for one in answer.responses[0].partition_responses:
                if (place[0], one.index) == sound and one.error_code == 0:
                    world.records.acknowledged(asked, sound, one.base_offset, pairs)
                elif one.index == place[1] and one.error_code == 0:
                    self._broken(f"a batch with {lie.__name__[1:]} was accepted")

        data = [{"index": index, "records": parts[topic, index]} for topic, index in sorted(parts)]
        answer = await connection.call(
            _PRODUCE, 9, let_out, transactional_id=None, acks=_ACKS_ALL, timeout=1000,
            topic_data=({"name": place[0], "partition_data": data},),
        )  # fmt: skip
        codes = {one.index: one.error_code for one in answer.responses[0].partition_responses}
        self._step(f"{lie.__name__[1:]} to {place[0]}-{place[1]}: {codes}")

    def _built(self, values: list[bytes]) -> bytes:
        now = self._world.clock.wall()
        return batches.build(batches.Record(0, now, b"k", value) for value in values)


# ---- lies about a batch of two records

_LENGTH_AT, _MAGIC_AT, _ATTRIBUTES_AT, _DELTA_AT, _COUNT_AT = 8, 16, 21, 23, 57
_INT, _SHORT = struct.Struct(">i"), struct.Struct(">h")


def _sealed(data: bytearray) -> bytes:
    """Return the batch with a checksum that fits."""
    batches.CRC.pack_into(data, batches.CRC_AT, crc32c(memoryview(data)[batches.CRC_FROM :]))
    return bytes(data)


def _with(data: bytearray, at: int, value: int) -> bytes:
    _INT.pack_into(data, at, value)
    return _sealed(data)


def _wrong_counts(data: bytearray, rng: Random) -> bytes:
    return _with(data, _COUNT_AT, rng.choice((0, 1, 3, 1000, 2**31 - 1, -1)))


def _wrong_offsets(data: bytearray, rng: Random) -> bytes:
    return _with(data, _DELTA_AT, rng.choice((0, 2, 100, 2**31 - 1, -1)))


def _wrong_counts_and_offsets(data: bytearray, rng: Random) -> bytes:
    count = rng.choice((1, 3, 5000, 2**31 - 1))
    _INT.pack_into(data, _COUNT_AT, count)
    return _with(data, _DELTA_AT, count - 1)


def _wrong_sizes(data: bytearray, rng: Random) -> bytes:
    size = len(data) - batches.OVERHEAD_BYTES
    _INT.pack_into(data, _LENGTH_AT, rng.choice((size - 1, size + 1, 0, 48, -1, 2**31 - 1)))
    return bytes(data)


def _cut_records(data: bytearray, rng: Random) -> bytes:
    del data[len(data) - rng.randrange(1, 8) :]
    _INT.pack_into(data, _LENGTH_AT, len(data) - batches.OVERHEAD_BYTES)
    return _sealed(data)


def _bytes_behind_records(data: bytearray, rng: Random) -> bytes:
    data += rng.randbytes(rng.randrange(1, 8))
    _INT.pack_into(data, _LENGTH_AT, len(data) - batches.OVERHEAD_BYTES)
    return _sealed(data)


def _wrong_checksums(data: bytearray, rng: Random) -> bytes:
    at = rng.randrange(batches.CRC_AT, len(data))
    data[at] ^= 1 << rng.randrange(8)
    return bytes(data)


def _wrong_codecs(data: bytearray, rng: Random) -> bytes:
    """Claim a compression that the records do not have."""
    codec = rng.choice((Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD, 5, 6, 7))
    _SHORT.pack_into(data, _ATTRIBUTES_AT, codec)
    return _sealed(data)


def _wrong_magics(data: bytearray, rng: Random) -> bytes:
    data[_MAGIC_AT] = rng.choice((0, 1, 3, 255))
    return bytes(data)


def _wrong_record_lengths(data: bytearray, rng: Random) -> bytes:
    data[batches.HEADER_BYTES] = (data[batches.HEADER_BYTES] + 2 * rng.randrange(1, 9)) & 0x7F
    return _sealed(data)


def _two_batches(data: bytearray, rng: Random) -> bytes:  # noqa: ARG001  # as every lie
    return bytes(_sealed(data)) * 2


def _no_records(data: bytearray, rng: Random) -> bytes:  # noqa: ARG001  # as every lie
    del data[batches.HEADER_BYTES :]
    _INT.pack_into(data, _LENGTH_AT, len(data) - batches.OVERHEAD_BYTES)
    return _with(data, _COUNT_AT, 0)


LIES: tuple[Lie, ...] = (
    _wrong_counts,
    _wrong_offsets,
    _wrong_counts_and_offsets,
    _wrong_sizes,
    _cut_records,
    _bytes_behind_records,
    _wrong_checksums,
    _wrong_codecs,
    _wrong_magics,
    _wrong_record_lengths,
    _two_batches,
    _no_records,
)


def _nothing(_: Any) -> None:
    """Ignore a response on its way."""
