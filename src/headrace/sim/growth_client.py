"""librdkafka's threads, in virtual time: metadata, membership, and what is read ahead.

A member of a classic group with eager assignment. It learns of topics and partitions when its
metadata is refreshed, assigns when it leads, beats, and reads what is assigned; the application is
told of all that only when it polls (`growth_consumer.py`).
"""

import asyncio
import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from headrace.core.subscription import parsed
from headrace.sim import growth_requests as requests
from headrace.sim.growth_auditor import GrowthAuditor, Place
from headrace.sim.history import History
from headrace.sim.loop import OUTSIDE, VirtualLoop
from headrace.sim.network import Connection, Lost, Surroundings
from headrace.sim.process import WorldClock
from headrace.wire import batches

SESSION_MS, REBALANCE_MS, POLL_US_MAX = 6000, 10_000, 8_000_000
_BEAT_S, _LOOK_S, _WAIT_MS = 3.0, 0.5, 2000
_OUT_OF_RANGE = 1
_ILLEGAL_GENERATION, _UNKNOWN_MEMBER, _REBALANCES, _ID_REQUIRED = 22, 25, 27, 79
_EARLIEST, _LATEST = -2, -1
_ENDS = {"earliest": _EARLIEST, "latest": _LATEST}


class GrowthSurroundings(Surroundings, Protocol):
    """What consumers need of their world."""

    seed: int
    loop: VirtualLoop
    history: History
    clock: WorldClock
    auditor: GrowthAuditor

    def bug(self, what: str) -> None:
        """Something happened that nothing explains."""

    def committed(self, place: Place) -> None:
        """An offset of the group is committed, and a member is told so."""

    def found(self, place: Place, offset: int) -> None:
        """A member is told what is committed."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """The application is to be told of its partitions."""

    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Revoked:
    """Its partitions are taken; when they are `lost`, others may have them already."""

    lost: bool


@dataclass(frozen=True, slots=True)
class Arrived:
    """A record, of the assignment with that number."""

    number: int
    place: Place
    offset: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """A partition has no position, or one outside its log (`offset`), and no strategy."""

    place: Place
    offset: int | None = None


Told = Assigned | Revoked | Arrived | Refused


class Client:
    """What goes on behind a consumer.

    Args:
        reset: where partitions without an offset begin: earliest, latest, or error.
        refresh_s: seconds between two looks at the metadata.
    """

    def __init__(
        self, world: GrowthSurroundings, name: str, group: str, *, reset: str, refresh_s: float
    ) -> None:
        self.world, self.name, self.group = world, name, group
        self.rng = Random(f"{world.seed}/{name}")
        self.told: deque[Told] = deque()  # what the application is told next
        self.member, self.generation = "", -1
        self.polled_us = world.loop.now_us
        self.commits: set[asyncio.Task[int]] = set()
        self.is_settled = asyncio.Event()  # the application gave up what it had
        self.is_settled.set()
        self.reading = Reading(self, reset)
        self._refresh_s = refresh_s
        self._wanted: tuple[str, ...] = ()
        self._counts: dict[str, int] = {}
        self._topics: frozenset[str] = frozenset()
        self._led: dict[str, int] | None = None  # what this member assigned, as leader
        self._has_partitions = False
        self._joins = True
        self._refresh_us = 0
        self._tasks: list[asyncio.Task[None]] = []

    def subscribe(self, topics: list[str]) -> None:
        """Begin; names that begin with ^ are patterns."""
        self._wanted = tuple(topics)
        spawn = self.world.loop.spawn
        self._tasks = [spawn(OUTSIDE, self._take_part()), spawn(OUTSIDE, self.reading.run())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def end(self) -> None:
        """As a process that dies."""
        for task in [*self._tasks, *self.commits]:
            task.cancel()
        self.told.clear()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled():
            self.world.bug(f"{self.name} has a bug of the simulator: {task.exception()!r}")

    # ---- membership

    async def _take_part(self) -> None:
        while True:
            connection = None
            try:
                connection = Connection(self.world, self.rng)
                while True:
                    await self._step(connection)
            except Lost:
                await asyncio.sleep(self.rng.uniform(0.1, 0.6))
            finally:
                if connection is not None:
                    connection.close()

    async def _step(self, connection: Connection) -> None:
        now_us = self.world.loop.now_us
        if now_us >= self._refresh_us:
            await self._refresh(connection)
        elif self._joins:
            await self._join(connection)
        elif now_us - self.polled_us > POLL_US_MAX:
            await self.leave(connection)
            self._lose("does not poll, and leaves")
        else:
            await asyncio.sleep(min(_BEAT_S, (self._refresh_us - now_us) / 1e6))
            answer = await requests.ask(
                connection, requests.BEAT, group_id=self.group, member_id=self.member,
                generation_id=self.generation, group_instance_id=None,
            )  # fmt: skip
            self._heard(answer.error_code)

    async def leave(self, connection: Connection) -> None:
        """Say goodbye. Raises: Lost."""
        members = [{"member_id": self.member, "group_instance_id": None}]
        await requests.ask(connection, requests.LEAVE, group_id=self.group, members=members)

    async def _refresh(self, connection: Connection) -> None:
        self._counts = await requests.partition_counts(connection)
        self._refresh_us = self.world.loop.now_us + round(self._refresh_s * 1e6)
        topics = frozenset(one for one in self._counts if self._wants(one))
        grew = self._led is not None and any(
            self._counts.get(topic, count) != count for topic, count in self._led.items()
        )
        self._joins |= topics != self._topics or grew
        self._topics = topics

    def _wants(self, topic: str) -> bool:
        return any(
            re.match(one, topic) is not None if one.startswith("^") else one == topic
            for one in self._wanted
        )

    async def _join(self, connection: Connection) -> None:
        """Take part in a rebalance, from giving up what was had to being told what is had."""
        self._take_back(is_lost=False)
        if not self.is_settled.is_set():
            await self.is_settled.wait()
        if self.commits:  # they are on their way before the member can ask to join
            await asyncio.wait(self.commits)
        joined = await requests.ask(
            connection, requests.JOIN, group_id=self.group, session_timeout=SESSION_MS,
            rebalance_timeout=REBALANCE_MS, member_id=self.member, group_instance_id=None,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": requests.subscription(self._topics)}],
        )  # fmt: skip
        if joined.error_code:
            self._refused(joined.error_code, joined.member_id)
            await asyncio.sleep(_LOOK_S if joined.error_code != _ID_REQUIRED else 0)
            return
        self.member, self.generation, self._joins = joined.member_id, joined.generation_id, False
        assignments = []
        self._led = None
        if joined.leader == joined.member_id:
            assignments = await self._assignments(connection, joined.members)
        synced = await requests.ask(
            connection, requests.SYNC, group_id=self.group, generation_id=self.generation,
            member_id=self.member, group_instance_id=None, assignments=assignments,
        )  # fmt: skip
        if synced.error_code:
            self._heard(synced.error_code)
            self._joins = True
            return
        places = tuple(requests.assigned(synced.assignment))
        self.world.history.step(
            self.name, f"generation {self.generation}, {len(places)} partitions"
        )
        self._has_partitions = True
        self.told.append(Assigned(places))

    def _refused(self, code: int, member: str) -> None:
        if code == _ID_REQUIRED:
            self.member = member
        else:
            self._heard(code)

    async def _assignments(
        self, connection: Connection, members: Iterable[Any]
    ) -> list[dict[str, object]]:
        """Every partition that this leader knows of to a member that wants its topic, in turn."""
        wanted = {one.member_id: parsed(one.metadata) or frozenset() for one in members}
        topics = sorted(frozenset[str]().union(*wanted.values()))
        if not all(topic in self._counts for topic in topics):
            await self._refresh(connection)
        self._led = {topic: self._counts.get(topic, 0) for topic in topics}
        given: dict[str, list[Place]] = {member: [] for member in sorted(wanted)}
        for topic, count in self._led.items():
            takers = [member for member in given if topic in wanted[member]]
            for number in range(count):
                given[takers[number % len(takers)]].append((topic, number))
        return [
            {"member_id": member, "assignment": requests.assignment(places)}
            for member, places in given.items()
        ]

    def _heard(self, code: int) -> None:
        if code == _REBALANCES:
            self._joins = True
        elif code in (_UNKNOWN_MEMBER, _ILLEGAL_GENERATION):
            self._lose(f"is no member any more ({code})")

    def _lose(self, why: str) -> None:
        self.world.history.step(self.name, why)
        self.member, self.generation, self._joins = "", -1, True
        self._take_back(is_lost=True)

    def _take_back(self, *, is_lost: bool) -> None:
        if self._has_partitions:
            self._has_partitions = False
            self.is_settled.clear()
            self.told.append(Revoked(is_lost))


class Reading:
    """What a client reads ahead of its application."""

    def __init__(self, client: Client, reset: str) -> None:
        self.positions: dict[Place, int | None] = {}
        self.number = 0  # of assignments so far
        self.reset = reset
        self._outside: set[Place] = set()  # positions that the log refused
        self._paused: set[Place] = set()
        self._client = client
        self._connection: Connection | None = None
        self._has_work = asyncio.Event()

    def assign(self, positions: Mapping[Place, int | None]) -> None:
        """Read these from now on; None: from what is committed, or as `reset` says."""
        self.number += 1
        self.positions = dict(positions)
        self._interrupt()

    def pause(self, places: Iterable[Place]) -> None:
        """Read these no further. A pause outlives the assignment, as in librdkafka.

        What was just assigned is paused, so none of its records arrived before.
        """
        self._paused.update(places)
        self._interrupt()

    def resume(self, places: Iterable[Place]) -> None:
        """Read these again."""
        self._paused.difference_update(places)
        self._interrupt()

    def _interrupt(self) -> None:
        self._has_work.set()
        if self._connection is not None:
            self._connection.close()  # it may wait for records of what was read before

    async def run(self) -> None:
        """Read whatever is assigned, as long as it is."""
        client = self._client
        while True:
            try:
                self._connection = Connection(client.world, client.rng)
                while True:
                    await self._step(self._connection)
            except Lost:
                await asyncio.sleep(client.rng.uniform(0.0, 0.1))
            finally:
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None

    async def _step(self, connection: Connection) -> None:
        number = self.number
        wanted = {p: one for p, one in self.positions.items() if p not in self._paused}
        if not wanted:
            self._has_work.clear()
            await self._has_work.wait()
        elif missing := [place for place, one in wanted.items() if one is None]:
            found = await self._begun(connection, missing)
            if number == self.number:
                self.positions |= found
        else:
            places = {place: one for place, one in wanted.items() if one is not None}
            got = await requests.fetch(connection, places, _WAIT_MS)
            if number == self.number:
                for place, (code, data) in got.items():
                    self._take(place, code, data)

    async def _begun(self, connection: Connection, places: list[Place]) -> dict[Place, int]:
        """Return positions of partitions without one: what is committed, or an end of the log."""
        client = self._client
        world = client.world
        kept = await requests.fetch_offsets(connection, client.group, places, world.found)
        found = {
            place: offset
            for place, (offset, _) in kept.items()
            if offset >= 0 and place not in self._outside
        }
        others = [place for place in places if place not in found]
        if not others:
            return found
        if self.reset not in _ENDS:
            client.told.extend(map(Refused, others))
            return found
        looked = world.auditor.looked if self.reset == "latest" else _not_told
        stamps = dict.fromkeys(others, _ENDS[self.reset])
        ends = await requests.list_offsets(connection, stamps, looked)
        self._outside.difference_update(ends)
        for place, end in ends.items():
            world.history.step(client.name, f"begins {place[0]}-{place[1]} at {end}")
        return found | ends

    def _take(self, place: Place, code: int, data: bytes) -> None:
        position = self.positions[place]
        assert position is not None
        if code == _OUT_OF_RANGE and self.reset in _ENDS:
            self._outside.add(place)
            self.positions[place] = None
            return
        if code == _OUT_OF_RANGE:
            self._paused.add(place)  # as librdkafka, which stops reading it
            self._client.told.append(Refused(place, position))
            return
        assert code == 0, f"{place} @{position}: error {code}"
        for record in batches.records(data):
            if record.offset >= position:
                assert record.value is not None
                self._client.told.append(
                    Arrived(self.number, place, record.offset, bytes(record.value))
                )
                self.positions[place] = record.offset + 1


def _not_told(_: Place, __: int) -> None:
    """Nobody is told of looks for the start."""
