"""Idempotent producers, keyed producers, and an administrator of the topics that they write to.

A producer has one to five requests in flight on its connection. What is not acknowledged it sends
again from the first such batch on, in order, as librdkafka and the Java client do; a refusal with
OUT_OF_ORDER_SEQUENCE is expected behind a batch that is not acknowledged yet, and nowhere else. A
producer with one request in flight at times also repeats up to four batches before it: each has to
be acknowledged at its old offset. Producers also send what a broken client would: batches that were
acknowledged long ago, gaps in the sequence, and epochs that were replaced.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from headrace.sim.actor import Actor
from headrace.sim.consumers import look_up
from headrace.sim.facts import Asked, Mark, Place
from headrace.sim.loop import OUTSIDE
from headrace.sim.network import Connection, Lost
from headrace.wire import batches

if TYPE_CHECKING:
    from headrace.sim.world import World

PRODUCE, INIT_PRODUCER_ID, DELETE_RECORDS, CONFIGS = 0, 22, 21, 44
_ACKS_ALL = -1
_UNKNOWN_TOPIC, _INVALID_TIMESTAMP, _OUT_OF_ORDER, _OLD_EPOCH, _STORAGE = 3, 32, 45, 47, 56
_EXCUSES = frozenset({0, _UNKNOWN_TOPIC, _INVALID_TIMESTAMP, _STORAGE})
_KEYS = tuple(f"k{number}".encode() for number in range(5))
_RETIRED = 0.3  # of the keys are used for some records in a row, and never again
_KEY_RECORDS = 8  # records of which a key that retires may have any
_REMEMBERED = 12  # acknowledged batches that may be sent again
_KNOWN = 5  # latest batches of a producer that a broker has to know, in flight or acknowledged
_SHIFTS_MS = (0, 0, 0, -40, -7, 3)  # of timestamps against the clock
_HEADERS = ((), (), (), (("trace", b"1"),), (("trace", None), ("", b""), ("trace", b"2")))
_REPEATS = 0.5  # of the batches without a response: those before it are repeated, too
_MISUSE = 0.15
_TOMBSTONES = 0.15
_SINGLY = 0.3  # of the producers send one batch again and wait, as the Java client does
_ELSEWHERE = 0.3  # of the batches of a turn are for another partition than the one before

Pair = tuple[bytes | None, bytes | None]


@dataclass(slots=True)
class _Batch:
    """A batch as it is sent each time."""

    epoch: int
    sequence: int
    number: int
    pairs: list[Pair]
    marks: list[Mark]
    data: bytes
    offset: int = -1
    asked: Asked | None = None
    is_in_flight: bool = False
    has_failed: bool = False

    @property
    def end(self) -> int:
        """Return the sequence of the next batch."""
        return self.sequence + len(self.pairs)


@dataclass(slots=True)
class _Stream:
    """What a producer has sent to one partition.

    Attributes:
        sequence: the end of the batches that are acknowledged.
        number: of the next record.
        pending: batches that are not acknowledged, in their order.
        done: the latest batches that are.
    """

    sequence: int = 0
    number: int = 0
    pending: list[_Batch] = field(default_factory=list)
    done: deque[_Batch] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    @property
    def next_sequence(self) -> int:
        """Return the sequence of the next new batch."""
        return self.pending[-1].end if self.pending else self.sequence

    @property
    def has_failed(self) -> bool:
        """Return whether a batch got no acknowledgement; it may be written all the same."""
        return any(one.has_failed for one in self.pending)

    @property
    def unsent(self) -> list[_Batch]:
        """Return the batches to send again; none while others of the stream are in flight."""
        return [] if any(one.is_in_flight for one in self.pending) else self.pending


class IdempotentProducer(Actor):
    """An idempotent producer; `run` is its life.

    Args:
        keyed: places whose records have keys, some of them without a value.
    """

    _pause = (0.0, 0.1)
    _lost_pause = (0.0, 0.2)

    def __init__(
        self, world: "World", name: str, places: list[Place], keyed: frozenset[Place]
    ) -> None:
        super().__init__(world, name)
        self._places = places
        self._keyed = keyed
        self._id, self._epoch = -1, -1
        self._streams: dict[Place, _Stream] = {}
        self._lost_at = world.losses
        self._repeats = Random(f"{world.seed}/{name}/repeats")
        self._marks = Random(f"{world.seed}/{name}/marks")
        self._retires = Random(f"{world.seed}/{name}/retired-keys")

    def begin_again(self) -> None:
        """Take a new producer id with the next step, as a client that was started again."""
        self._id = -1

    async def _turn(self, connection: Connection) -> None:
        if self._lost_at != self._world.losses:
            self._lost_at = self._world.losses  # acknowledged batches may be gone
            self._id = -1
        if self._id < 0:
            await self._init(connection)
            return
        place = self._rng.choice(self._places)
        stream = self._streams.setdefault(place, _Stream())
        if stream.pending:
            await self._repeat_before(connection, place, stream)
            await self._send(connection, place, stream, stream.pending[0])
        elif self._world.options.misuses and self._rng.random() < _MISUSE:
            await self._misuse(connection, place, stream)
        else:
            stream.pending.append(self._batch(place, stream))
            await self._send(connection, place, stream, stream.pending[0])

    async def _init(self, connection: Connection) -> None:
        def let_out(answer: Any) -> None:
            if answer.error_code == 0:
                self._world.gave_producer_id(self.name, answer.producer_id, answer.producer_epoch)

        answer = await connection.call(
            INIT_PRODUCER_ID, 4, let_out, transactional_id=None, transaction_timeout=1000,
            producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
        self._step_done(
            f"producer id {answer.producer_id}/{answer.producer_epoch}: {answer.error_code}"
        )
        if answer.error_code == 0:
            self._id, self._epoch = answer.producer_id, answer.producer_epoch
            for stream in self._streams.values():
                stream.sequence = 0
                stream.pending.clear()
                stream.done.clear()

    def _batch(self, place: Place, stream: _Stream, *, skip: int = 0) -> _Batch:
        count = self._rng.choice((1, 1, 2, 5))
        pairs: list[Pair] = []
        for number in range(stream.number, stream.number + count):
            key = self._rng.choice(_KEYS) if place in self._keyed else None
            if key is not None and self._retires.random() < _RETIRED:
                key = f"{self.name}-{number // _KEY_RECORDS}".encode()
            is_tombstone = key is not None and self._rng.random() < _TOMBSTONES
            pairs.append((key, None if is_tombstone else f"{self.name}:{number}".encode()))
        now = self._world.clock.wall()
        self._world.stamping(place)
        sequence = stream.next_sequence + skip
        draw = self._marks.choice
        marks: list[Mark] = [(now + draw(_SHIFTS_MS), draw(_HEADERS)) for _ in pairs]
        data = batches.build(
            (
                batches.Record(0, timestamp, key, value, headers)
                for (key, value), (timestamp, headers) in zip(pairs, marks, strict=True)
            ),
            producer_id=self._id, producer_epoch=self._epoch, base_sequence=sequence,
        )  # fmt: skip
        one = _Batch(self._epoch, sequence, stream.number, pairs, marks, data)
        records = self._world.records
        for number, ((key, value), mark) in enumerate(
            zip(pairs, marks, strict=True), stream.number
        ):
            if value is None:
                assert key is not None
                records.deleting_key(place, key)
            else:
                records.sending(place, f"{self.name}/{place}", number, [(key, value)], [mark])
        stream.number += count
        return one

    async def _send(
        self, connection: Connection, place: Place, stream: _Stream, batch: _Batch
    ) -> None:
        asked = batch.asked or self._world.auditor.asked()
        batch.asked = asked  # an earlier try may have written it

        def let_out(answer: Any) -> None:
            part = answer.responses[0].partition_responses[0]
            if part.error_code == 0:
                self._world.records.acknowledged(
                    asked, place, part.base_offset, batch.pairs, batch.marks
                )

        code, offset = await self._produce(connection, place, batch.data, let_out)
        self._step_done(f"{len(batch.pairs)} to {_at(place)} #{batch.sequence}: {code} @{offset}")
        if code == 0:
            batch.offset = offset
            stream.pending.remove(batch)
            stream.sequence = max(stream.sequence, batch.end)
            stream.done.append(batch)
        elif code == _OUT_OF_ORDER and batch is not stream.pending[0]:
            pass  # it is sent again behind the first one
        elif code in (_OUT_OF_ORDER, _OLD_EPOCH):
            if self._lost_at == self._world.losses:
                self._world.records_broken(
                    f"{self.name}: sequence {batch.sequence} of {_at(place)} was refused with"
                    f" {code}, and all before it is acknowledged"
                )
            self._id = -1
        elif code == _INVALID_TIMESTAMP:
            self._id = -1  # the clock was set: the batch cannot be sent any more
        elif code == _UNKNOWN_TOPIC and place[0] in self._world.deleted_topics:
            self._places = [one for one in self._places if one[0] != place[0]] or [place]
            await asyncio.sleep(0.1)
        elif code not in (_STORAGE, _UNKNOWN_TOPIC):
            self._world.records_broken(f"{self.name}: a sound batch was refused with {code}")
        else:
            await asyncio.sleep(0.05)

    async def _misuse(self, connection: Connection, place: Place, stream: _Stream) -> None:
        kind = self._rng.randrange(4)
        if kind <= 1 and stream.done:
            batch = self._rng.choice(stream.done)
            await self._repeat(connection, place, batch, is_known=batch in [*stream.done][-_KNOWN:])
        elif kind == 2:
            await self._leave_gap(connection, place, stream)
        elif stream.done:
            await self._use_old_epoch(connection, place, stream)

    async def _repeat_before(self, connection: Connection, place: Place, stream: _Stream) -> None:
        """Send batches before the pending one again, in their order."""
        if stream.done and self._repeats.random() < _REPEATS:
            count = self._repeats.randrange(1, _KNOWN)
            for batch in [*stream.done][-count:]:
                await self._repeat(connection, place, batch, is_known=True)

    async def _repeat(
        self, connection: Connection, place: Place, batch: _Batch, *, is_known: bool
    ) -> None:
        """Send a batch once more that was acknowledged: it must not be written again.

        Args:
            is_known: it is one of the latest batches, and has to be acknowledged as it was.
        """
        asked = self._world.auditor.asked()

        def let_out(answer: Any) -> None:
            part = answer.responses[0].partition_responses[0]
            if part.error_code == 0 and part.base_offset >= 0:
                self._world.records.acknowledged(
                    asked, place, part.base_offset, batch.pairs, again=True
                )
            if self._lost_at != self._world.losses:
                return
            if part.error_code == 0 and part.base_offset != batch.offset:
                self._broken(
                    f"a batch of {_at(place)} was acknowledged at {batch.offset}, and again at"
                    f" {part.base_offset}"
                )
            elif is_known and part.error_code not in _EXCUSES:
                self._broken(
                    f"sequence {batch.sequence} of {_at(place)} was acknowledged as one of the"
                    f" last {_KNOWN} batches, and its repetition is refused with {part.error_code}"
                )

        code, offset = await self._produce(connection, place, batch.data, let_out)
        self._step_done(f"repeats #{batch.sequence} of {_at(place)}: {code} @{offset}")

    async def _leave_gap(self, connection: Connection, place: Place, stream: _Stream) -> None:
        if not stream.sequence:
            return  # a producer that the partition does not know may begin anywhere
        batch = self._batch(place, stream, skip=3)
        code, offset = await self._produce_wrong(connection, place, batch)
        self._step_done(f"leaves a gap in {_at(place)} before #{batch.sequence}: {code} @{offset}")
        if code == 0 and self._lost_at == self._world.losses:
            self._world.records_broken(f"{self.name}: a gap in {_at(place)} was accepted")

    async def _use_old_epoch(self, connection: Connection, place: Place, stream: _Stream) -> None:
        """Replace the epoch, write with the new one, then send with the old one."""
        old = self._epoch
        if any(one.pending for one in self._streams.values()):
            return
        self._epoch += 1  # as a client does that lost track of its sequence (KIP-360)
        for one in self._streams.values():
            one.sequence = 0
            one.done.clear()
        stream.pending.append(self._batch(place, stream))
        await self._send(connection, place, stream, stream.pending[0])
        if not stream.sequence:
            return  # it is not acknowledged, so that the old epoch may still be the newest
        new, self._epoch = self._epoch, old
        late = self._batch(place, stream)
        self._epoch = new
        code, _ = await self._produce_wrong(connection, place, late)
        self._step_done(f"uses epoch {old} of {self._id}: {code}")
        if code == 0 and self._lost_at == self._world.losses:
            self._world.records_broken(f"{self.name}: epoch {old} wrote after epoch {new}")

    async def _produce_wrong(
        self, connection: Connection, place: Place, batch: _Batch
    ) -> tuple[int, int]:
        """Send a batch once that has to be refused."""

        def let_out(answer: Any) -> None:
            if answer.responses[0].partition_responses[0].error_code in (_OUT_OF_ORDER, _OLD_EPOCH):
                self._world.records.refused(place, batch.pairs)

        return await self._produce(connection, place, batch.data, let_out)

    async def _produce(
        self, connection: Connection, place: Place, data: bytes, let_out: Any
    ) -> tuple[int, int]:
        topic = {"name": place[0], "partition_data": ({"index": place[1], "records": data},)}
        answer = await connection.call(
            PRODUCE, 9, let_out,
            transactional_id=None, acks=_ACKS_ALL, timeout=1000, topic_data=(topic,),
        )  # fmt: skip
        part = answer.responses[0].partition_responses[0]
        return int(part.error_code), int(part.base_offset)

    def _step_done(self, what: str) -> None:
        self._world.history.step(self.name, what)

    def _broken(self, what: str) -> None:
        self._world.records_broken(f"{self.name}: {what}")


class PipelinedProducer(IdempotentProducer):
    """An idempotent producer with several requests in flight on its connection.

    The first batch of an id in a partition is acknowledged before the next one is sent: a broker
    that does not know a producer takes any sequence as its first, as Kafka does, so a batch behind
    one that failed would be accepted. A request may fail that has written its batch: as in the Java
    client, new batches wait until all that failed are acknowledged.
    """

    _pause = (0.0, 0.2)

    def __init__(
        self, world: "World", name: str, places: list[Place], keyed: frozenset[Place]
    ) -> None:
        super().__init__(world, name, places, keyed)
        self._window = Random(f"{world.seed}/{name}/window")
        self._resends_singly = self._window.random() < _SINGLY
        self._in_flight: dict[asyncio.Task[None], None] = {}  # an ordered set

    async def _pause_after_loss(self) -> None:
        await self._drain()  # the next connection begins with what is pending
        await super()._pause_after_loss()

    async def _turn(self, connection: Connection) -> None:
        """Send some batches, as far as the window allows."""
        if not connection.is_open:
            raise Lost
        if self._lost_at != self._world.losses or self._id < 0:
            await self._drain()
            await super()._turn(connection)
            return
        place = self._rng.choice(self._places)
        for _ in range(self._window.randint(1, self._world.options.in_flight)):
            if self._window.random() < _ELSEWHERE:
                place = self._rng.choice(self._places)
            stream = self._streams.setdefault(place, _Stream())
            if any(not one.is_in_flight for one in stream.pending):
                await self._resend(connection, place, stream)
            elif self._misuses(stream):
                await self._misuse(connection, place, stream)
            elif not stream.pending or (stream.sequence and not stream.has_failed):
                stream.pending.append(self._batch(place, stream))
                await self._begin(connection, place, stream, stream.pending[-1])
            if self._id < 0:
                return

    def _misuses(self, stream: _Stream) -> bool:
        is_on = self._world.options.misuses and not stream.pending
        return is_on and self._rng.random() < _MISUSE

    async def _resend(self, connection: Connection, place: Place, stream: _Stream) -> None:
        """Send what is not acknowledged again, from the first batch on, in order.

        The Java client waits for the response to the first one before it sends the others;
        librdkafka sends all of them.
        """
        batches = stream.unsent
        for batch in batches[: 1 if self._resends_singly else None]:
            if self._id >= 0 and batch in stream.pending:
                await self._begin(connection, place, stream, batch)

    async def _begin(
        self, connection: Connection, place: Place, stream: _Stream, batch: _Batch
    ) -> None:
        """Send a batch when the window allows it; its response is awaited apart."""
        while len(self._in_flight) >= self._world.options.in_flight:
            await asyncio.wait([*self._in_flight], return_when=asyncio.FIRST_COMPLETED)
            self._forget_done()
        if not connection.is_open:
            raise Lost
        if self._id < 0:
            return  # a response had it that no batch of this id counts any more
        batch.is_in_flight = True
        task = self._world.loop.spawn(OUTSIDE, self._deliver(connection, place, stream, batch))
        self._in_flight[task] = None

    async def _deliver(
        self, connection: Connection, place: Place, stream: _Stream, batch: _Batch
    ) -> None:
        try:
            await self._send(connection, place, stream, batch)
        except Lost:
            pass  # the next connection begins with it
        finally:
            batch.is_in_flight = False
            batch.has_failed = True  # where it is still pending

    async def _drain(self) -> None:
        """Wait for the responses to all requests in flight, or for the end of their connection."""
        if self._in_flight:
            await asyncio.wait([*self._in_flight])
            self._forget_done()

    def _forget_done(self) -> None:
        for task in [one for one in self._in_flight if one.done()]:
            del self._in_flight[task]


class Deleter(Actor):
    """Deletes records of the topics that producers write to."""

    _pause = (0.2, 1.5)

    def __init__(self, world: "World", name: str, places: list[Place]) -> None:
        super().__init__(world, name)
        self._places = places

    async def _turn(self, connection: Connection) -> None:
        place = self._rng.choice(self._places)
        before = self._rng.randrange(self._world.records.known_end(place) + 1)
        self._world.records.deleting(place, before)
        part = {"partition_index": place[1], "offset": before}

        def let_out(answer: Any) -> None:
            one = answer.topics[0].partitions[0]
            if one.error_code == 0:
                self._world.records.deleted(place, before)

        answer = await connection.call(
            DELETE_RECORDS, 2, let_out,
            topics=({"name": place[0], "partitions": (part,)},), timeout=1000,
        )  # fmt: skip
        code = answer.topics[0].partitions[0].error_code
        self._world.history.fault(f"records below {before} of {_at(place)} are deleted: {code}")


class Seeker(Actor):
    """Looks up records by time, as a reader does that begins in the middle of a log."""

    def __init__(self, world: "World", name: str, places: list[Place]) -> None:
        super().__init__(world, name)
        self._places = places

    async def _turn(self, connection: Connection) -> None:
        place = self._rng.choice(self._places)
        time = self._world.records.drawn_time(place, self._rng)
        code, offset = await look_up(self._world, connection, place, time)
        self._world.history.step(self.name, f"looks up {time} in {_at(place)}: {code} @{offset}")


def _nothing(_: Any) -> None:
    """Ignore a response on its way."""


def _at(place: Place) -> str:
    return f"{place[0]}-{place[1]}"
