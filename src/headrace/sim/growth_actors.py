"""Who makes a topic grow, and who reads it: producers, an administrator, applications, a fate."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from confluent_kafka import KafkaException

from headrace.sim import growth_requests as requests
from headrace.sim.growth_client import Client, GrowthSurroundings
from headrace.sim.growth_consumer import CLIENT, Gone, Simulated, Stock
from headrace.sim.loop import Halted
from headrace.sim.network import Connection, Lost
from headrace.wire import batches

GROUP, PATTERN = "readers", "^meters-.*"
_PRODUCE, _CREATE_TOPICS, _CREATE_PARTITIONS = 0, 19, 37
_ACKS_ALL = -1
_PARTITIONS_MAX, _TOPICS_MAX, _MEMBERS_MAX = 6, 4, 3
_RECORDS_A_TURN = 50


class Stage(GrowthSurroundings, Protocol):
    """What actors need of their world."""

    is_quiet: bool
    decides: bool  # whether consumers are headrace's, which decide where they start


class _Requester(ABC):
    """Turns of requests over one connection, and over another one when that is lost."""

    def __init__(self, world: Stage, name: str) -> None:
        self.name = name
        self._world = world
        self._rng = Random(f"{world.seed}/{name}")

    async def run(self) -> None:
        """Take turns until all is to be quiet."""
        world, rng = self._world, self._rng
        while not world.is_quiet:
            try:
                connection = Connection(world, rng)
                while not world.is_quiet:
                    await self._turn(connection)
            except Lost:
                await asyncio.sleep(rng.uniform(0.0, 0.5))

    @abstractmethod
    async def _turn(self, connection: Connection) -> None:
        """Raises: `Lost`."""


class GrowthProducer(_Requester):
    """Writes to what it knows of; it looks for new partitions now and then."""

    def __init__(self, world: Stage, name: str) -> None:
        super().__init__(world, name)
        self._refresh_s = self._rng.choice((0.2, 2.0, 8.0))
        self._pause_s = self._rng.choice((0.3, 1.0))
        self._sent = 0

    async def _turn(self, connection: Connection) -> None:
        world, rng = self._world, self._rng
        counts = await requests.partition_counts(connection)
        until_us = world.loop.now_us + round(self._refresh_s * 1e6)
        while counts and world.loop.now_us < until_us and not world.is_quiet:
            topic = rng.choice(sorted(counts))
            await self._produce(connection, topic, rng.randrange(counts[topic]))
            await asyncio.sleep(rng.uniform(0.0, 2 * self._pause_s))

    async def _produce(self, connection: Connection, topic: str, partition: int) -> None:
        world = self._world
        values = [f"{self.name}/{self._sent + n}".encode() for n in range(self._rng.choice((1, 3)))]
        self._sent += len(values)
        asked_us, now = world.loop.now_us, world.clock.wall()
        data = batches.build(batches.Record(0, now, None, value) for value in values)

        def let_out(answer: Any) -> None:
            part = answer.responses[0].partition_responses[0]
            if part.error_code == 0:
                world.auditor.produced((topic, partition), part.base_offset, values, asked_us)
                told = f"{len(values)} to {topic}-{partition} @{part.base_offset}"
                world.history.step(self.name, told)

        data_of = {"name": topic, "partition_data": ({"index": partition, "records": data},)}
        await connection.call(
            _PRODUCE, 9, let_out,
            transactional_id=None, acks=_ACKS_ALL, timeout=1000, topic_data=(data_of,),
        )  # fmt: skip


class Grower(_Requester):
    """An administrator who adds partitions, and topics that the readers' pattern matches."""

    def __init__(self, world: Stage, name: str) -> None:
        super().__init__(world, name)
        self._pause_s = self._rng.choice((1.0, 4.0))

    async def _turn(self, connection: Connection) -> None:
        await self._grow(connection)
        await asyncio.sleep(self._rng.uniform(0.0, 2 * self._pause_s))

    async def _grow(self, connection: Connection) -> None:
        counts = await requests.partition_counts(connection)
        if not counts or (len(counts) < _TOPICS_MAX and self._rng.random() < 0.3):
            await self._create(connection, f"meters-{len(counts)}", self._rng.randint(1, 2))
            return
        topic = self._rng.choice(sorted(counts))
        count = counts[topic] + self._rng.randint(1, 2)
        if count > _PARTITIONS_MAX:
            return
        self._world.auditor.created(topic, counts[topic], count, self._world.loop.now_us)
        wanted = {"name": topic, "count": count, "assignments": None}
        answer = await connection.call(
            _CREATE_PARTITIONS, 2, _unheard, topics=(wanted,), timeout=1000, validate_only=False
        )
        code = answer.results[0].error_code
        self._world.history.step(self.name, f"{topic} gets {count} partitions: {code}")

    async def _create(self, connection: Connection, topic: str, count: int) -> None:
        self._world.auditor.created(topic, 0, count, self._world.loop.now_us)
        wanted = {
            "name": topic, "num_partitions": count, "replication_factor": 1,
            "assignments": (), "configs": (),
        }  # fmt: skip
        answer = await connection.call(
            _CREATE_TOPICS, 5, _unheard, topics=(wanted,), timeout=1000, validate_only=False
        )
        code = answer.topics[0].error_code
        self._world.history.step(self.name, f"{topic} is made, {count} partitions: {code}")


class Application:
    """A process with a consumer: it polls, commits, stalls, and one day ends."""

    def __init__(self, world: Stage, name: str, *, is_calm: bool = False) -> None:
        self.name = name
        self._world = world
        self._rng = Random(f"{world.seed}/{name}/application")
        self._is_calm = is_calm
        self._is_over = False
        self._wants_to_close = False
        refresh_s = 1.0 if is_calm else self._rng.choice((0.5, 3.0, 12.0))
        reset = "error" if world.decides else "latest"
        client = Client(world, name, GROUP, reset=reset, refresh_s=refresh_s)
        settings = {
            "group.id": GROUP,
            CLIENT: client,
            "auto.offset.reset": "safe_latest" if world.decides else reset,
        }
        self._consumer: Stock = Simulated(settings) if world.decides else Stock(settings)
        self._consumer.subscribe([PATTERN])
        self._later(0.01)

    def close(self) -> None:
        """Leave in order, at the next opportunity."""
        self._wants_to_close = True

    def kill(self) -> None:
        """End at once; the group notices by and by."""
        self._world.history.step(self.name, "dies")
        self._is_over = True
        self._consumer.kill()

    def _later(self, seconds: float) -> None:
        self._world.loop.call_later(seconds, self._turn)

    def _turn(self) -> None:
        """One round of the application's loop, a plain callback as it may wait for answers."""
        if self._is_over:
            return
        try:
            if self._wants_to_close:
                self._is_over = True
                self._consumer.close()
                self._world.history.step(self.name, "leaves")
                return
            self._work()
        except (Gone, Halted):
            return
        except KafkaException as error:  # a commit of somebody who is no member any more
            self._world.history.step(self.name, f"is told {error.args[0].code()}")
        except Exception as error:  # whatever it is, it is a finding
            self._world.bug(f"{self.name}: {error!r}")
            return
        self._later(self._pause())

    def _work(self) -> None:
        for _ in range(_RECORDS_A_TURN):
            message = self._poll()
            if message is None:
                break
            self._take(message)
        if self._is_calm or self._rng.random() < 0.3:
            self._consumer.commit(asynchronous=self._rng.random() < 0.5)

    def _poll(self) -> Any:
        try:
            return self._consumer.poll(0)
        except KafkaException as error:  # librdkafka drops the record that it would have returned
            self._world.bug(f"{self.name}: poll raises {error.args[0].code()}")
            return None

    def _take(self, message: Any) -> None:
        if message.error() is not None:
            self._world.bug(f"{self.name} is told {message.error()} of {message.partition()}")
            return
        place = message.topic(), message.partition()
        self._world.auditor.read(self.name, place, message.offset(), message.value())
        self._world.history.step(self.name, f"reads {place[0]}-{place[1]} @{message.offset()}")

    def _pause(self) -> float:
        if self._is_calm or self._world.is_quiet:
            return 0.25
        if self._rng.random() < 0.04:
            self._world.history.step(self.name, "stalls")
            return self._rng.uniform(2.0, 25.0)
        return self._rng.uniform(0.05, 0.8)


class Crowd:
    """The applications of the group: they come, leave, die; at times there is none."""

    def __init__(self, world: Stage) -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/crowd")
        self._there: list[Application] = []
        self._came = 0
        self._pause_s = self._rng.choice((2.0, 6.0))

    async def run(self) -> None:
        """Let them come and go until all is to be quiet; then one stays, who reads the rest."""
        world, rng = self._world, self._rng
        await asyncio.sleep(rng.uniform(0.0, 4.0))
        while not world.is_quiet:
            self._change()
            await asyncio.sleep(rng.uniform(0.0, 2 * self._pause_s))

    def settle(self) -> None:
        """Everybody dies, and one comes who does nothing but read."""
        for one in self._there:
            one.kill()
        self._come(is_calm=True)

    def _change(self) -> None:
        rng, there = self._rng, self._there
        if not there or (len(there) < _MEMBERS_MAX and rng.random() < 0.5):
            self._come(is_calm=False)
        elif rng.random() < 0.25:
            for one in there:
                one.close()
            there.clear()
        else:
            one = there.pop(rng.randrange(len(there)))
            how: Callable[[], None] = rng.choice((one.close, one.kill))
            how()

    def _come(self, *, is_calm: bool) -> None:
        self._came += 1
        name = f"reader-{self._came}"
        self._world.history.step(name, "comes")
        self._there.append(Application(self._world, name, is_calm=is_calm))


def _unheard(_: Any) -> None:
    """Nobody listens to the answer on its way."""
