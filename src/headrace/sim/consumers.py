"""Members of consumer groups, of the classic and of the consumer protocol, by the wire.

A member reads from what its group committed, commits positions that it has reached (sometimes lower
ones, as an application may), and stalls, vanishes, leaves, or uses an epoch that was replaced.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from headrace.sim.facts import Place
from headrace.sim.growth_requests import assigned, assignment, subscription
from headrace.sim.network import Connection, LetOut, Lost
from headrace.wire import batches

if TYPE_CHECKING:
    from headrace.sim.world import World

_FETCH, _LIST_OFFSETS, _COMMIT, _OFFSET_FETCH = 1, 2, 8, 9
_JOIN, _SYNC, BEAT, _LEAVE, CONSUMER_BEAT = 11, 14, 12, 13, 68
_OUT_OF_RANGE, UNKNOWN_TOPIC, _UNKNOWN_MEMBER, _REBALANCE, _ID_REQUIRED = 1, 3, 25, 27, 79
_CORRUPT_MESSAGE = 2
_STORAGE, _COORDINATOR = 56, frozenset({14, 15, 16})
SESSION_MS, REBALANCE_MS = 3000, 2000
_EARLIEST, LATEST = -2, -1
_BYTES = 1 << 16
_STRAY = ("table", 0)


class Reader(ABC):
    """Read partitions and keep positions; the base of both kinds of members."""

    _instance: str | None = None  # of a static member (KIP-345)
    pause_seconds = 1.0  # of an honest member, between two reads

    def __init__(self, world: "World", name: str, group: str, topics: Sequence[str]) -> None:
        self.name = name
        self.group = group
        self.is_honest = False
        self._world = world
        self._topics = list(topics)
        self._rng = Random(f"{world.seed}/{name}")
        self._positions: dict[Place, int] = {}
        self._generation = -1
        self._member = ""
        self._unanswered: tuple[Place, int, str, int] | None = None  # a commit

    @property
    def _wanted(self) -> bool:
        return self.is_honest or not self._world.is_quiet

    async def run(self) -> None:
        """Be a member, again and again, until the world wants no more."""
        while self._wanted and self._world.is_wanted(self.group):
            try:
                connection = Connection(self._world, self._rng, client=self.name)
                try:
                    await self._repeat_commit(connection)
                    await self._take_part(connection)
                finally:
                    connection.close()
            except Lost:
                pass
            await asyncio.sleep(self._rng.uniform(0.0, 0.4))

    def position(self, place: Place) -> int | None:
        """Return the next offset of an assigned partition; None for any other partition."""
        return self._positions.get(place)

    @abstractmethod
    async def _take_part(self, connection: Connection) -> None:
        """Consume as a member until the connection or the membership ends. Raises: Lost."""

    async def _pause(self) -> bool:
        """Wait a moment, or for longer than a session; whether to go on."""
        pause = self.pause_seconds if self.is_honest else self._rng.choice((0.005, 0.05, 0.2))
        await asyncio.sleep(pause)
        options = self._world.options
        if not self.is_honest and options.stalling and self._rng.random() < 0.03:
            self._step("stalls")
            await asyncio.sleep(SESSION_MS / 1000 * self._rng.uniform(0.5, 1.5))
        if not self.is_honest and options.vanishing and self._rng.random() < 0.03:
            self._step("vanishes")
            return False
        return True

    def _session(self, code: int, asked_us: int) -> None:
        """The response to a heartbeat leaves the broker. A static member may be replaced."""
        if code == _UNKNOWN_MEMBER and self._instance is None:
            self._world.offsets.is_unknown(self.group, self._member)
        elif code == 0:
            self._world.offsets.is_alive(self.group, self._member, asked_us)

    def _commits(self) -> bool:
        """Whether to commit now; honest members do not, so that what is committed grows old."""
        is_calm = self.is_honest or self._world.is_quiet
        return not is_calm and self._rng.random() < 0.4

    # ---- requests

    async def _begin_at(self, connection: Connection, places: Collection[Place]) -> None:
        """Set the positions to what is committed, or to the start."""
        self._positions = {
            place: max(offset, 0)
            for place, offset in (
                await fetch_offsets(self._world, connection, self.group, sorted(places))
            ).items()
        }
        told = " ".join(f"{_at(p)}@{o}" for p, o in sorted(self._positions.items()))
        self._step(f"begins at {told or 'nothing'}")

    async def _read(self, connection: Connection) -> None:
        if not self._positions:
            return
        place = self._rng.choice(sorted(self._positions))
        position = self._positions[place]
        code, last = await fetch(
            self._world, connection, place, position, self._rng.choice((0, 50))
        )
        if code == _OUT_OF_RANGE:
            self._positions[place] = await log_start(connection, place)
        elif last >= 0:
            self._positions[place] = last + 1
        self._step(f"reads {_at(place)}@{position}: {code} ..{last}")

    async def _commit(self, connection: Connection, *, generation: int | None = None) -> int:
        """Commit one position; the error code."""
        if not self._positions:
            return 0
        place = self._rng.choice(sorted(self._positions))
        offset = self._positions[place]
        if not self.is_honest and self._rng.random() < 0.1:
            place, offset = _STRAY, self._rng.randrange(100)  # a topic that no member subscribes to
        elif self._rng.random() < 0.1:
            offset = self._rng.randrange(offset + 1)
        sent = self._generation if generation is None else generation
        self._unanswered = place, offset, self._member, sent
        code = await self._commit_one(connection, *self._unanswered)
        self._unanswered = None
        self._step(f"commits {_at(place)}@{offset} in {sent}: {code}")
        return code

    async def _repeat_commit(self, connection: Connection) -> None:
        """Send a commit again whose response was lost: it may have been carried out."""
        unanswered, self._unanswered = self._unanswered, None
        if unanswered is not None and self._world.options.repeats:
            code = await self._commit_one(connection, *unanswered)
            self._step(f"repeats the commit of {_at(unanswered[0])}@{unanswered[1]}: {code}")

    async def _commit_one(
        self, connection: Connection, place: Place, offset: int, member: str, generation: int
    ) -> int:
        world, instance = self._world, self._instance
        return await commit_offset(
            world, connection, self.group, (member, generation), place, offset, instance
        )

    def _step(self, what: str) -> None:
        self._world.history.step(self.name, what)


class ClassicReader(Reader):
    """A member of the classic protocol; the leader assigns partitions in turn."""

    _protocol_type = "consumer"

    async def _take_part(self, connection: Connection) -> None:
        self._positions = {}
        while self._wanted:
            if not await self._join(connection):
                await asyncio.sleep(0.05)
                if self._rng.random() < 0.3:
                    return
                continue
            if not await self._stay(connection):
                return

    async def _join(self, connection: Connection) -> bool:
        self._joining()

        def let_out(answer: Any) -> None:
            self._is_joined(answer)
            if answer.error_code == 0:
                self._world.offsets.active(self.group, self._topics, self.name)

        joined = await connection.call(
            _JOIN, 6, let_out, group_id=self.group, session_timeout=SESSION_MS,
            rebalance_timeout=REBALANCE_MS, member_id=self._member,
            group_instance_id=self._instance, protocol_type=self._protocol_type,
            protocols=[{"name": "range", "metadata": self._metadata()}],
        )  # fmt: skip
        self._step(f"joins: {joined.error_code} generation {joined.generation_id}")
        if joined.error_code:
            self._member = joined.member_id if joined.error_code == _ID_REQUIRED else ""
            return False
        self._member, self._generation = joined.member_id, joined.generation_id
        given = self._assignments(joined) if joined.leader == joined.member_id else []
        generation, asked_us = self._generation, self._world.loop.now_us

        def synced(answer: Any) -> None:
            if answer.error_code == 0:
                self._is_synced(generation)
                self._world.offsets.generation(self.group, generation)
                self._session(0, asked_us)

        answer = await connection.call(
            _SYNC, 4, synced, group_id=self.group, generation_id=self._generation,
            member_id=self._member, group_instance_id=self._instance, assignments=given,
        )  # fmt: skip
        if answer.error_code:
            self._step(f"is not assigned: {answer.error_code}")
            return False
        await self._begin_at(connection, assigned(answer.assignment))
        return True

    def _metadata(self) -> bytes:
        """Return the subscription in a version of the protocol; what follows is never read."""
        version = len(self.name) % 4
        data = bytearray(subscription(self._topics))
        data[:2] = version.to_bytes(2, "big")
        return bytes(data + bytes(4) + b"rack" if version else data)

    def _joining(self) -> None:
        """A request to join is sent."""

    def _is_joined(self, answer: Any) -> None:
        """The response to a request to join leaves the broker."""

    def _is_synced(self, generation: int) -> None:
        """An assignment leaves the broker."""

    def _assignments(self, joined: Any) -> list[dict[str, Any]]:
        members = sorted(one.member_id for one in joined.members)
        shares: dict[str, list[Place]] = {one: [] for one in members}
        for number, place in enumerate(self._world.record_places(self._topics)):
            shares[members[number % len(members)]].append(place)
        return [
            {"member_id": one, "assignment": assignment(places)} for one, places in shares.items()
        ]

    async def _stay(self, connection: Connection) -> bool:
        """Read and commit in one generation; whether to join again."""
        while self._wanted and self._world.is_wanted(self.group):
            if not await self._pause():
                return False
            await self._read(connection)
            if self._commits() and await self._commit(connection):
                return True
            if self._world.options.misuses and self._generation > 1 and self._rng.random() < 0.05:
                await self._commit(connection, generation=self._generation - 1)
            if self._rng.random() < 0.02 and not self.is_honest:
                await self._leave(connection)
                return False
            code = await self._beat(connection)
            if code:
                return True
        await self._leave(connection)
        return False

    async def _beat(self, connection: Connection) -> int:
        asked_us = self._world.loop.now_us

        def let_out(answer: Any) -> None:
            if answer.error_code in (0, _REBALANCE):
                self._has_beaten(asked_us)
                self._world.offsets.active(self.group, self._topics, self.name)
            self._session(answer.error_code, asked_us)

        answer = await connection.call(
            BEAT, 4, let_out, group_id=self.group, generation_id=self._generation,
            member_id=self._member, group_instance_id=self._instance,
        )  # fmt: skip
        if answer.error_code:
            self._step(f"has to join again: {answer.error_code}")
            if answer.error_code != _REBALANCE:
                self._member = ""
        return int(answer.error_code)

    def _has_beaten(self, asked_us: int) -> None:
        """The response to a heartbeat that was sent at `asked_us` leaves the broker."""

    async def _leave(self, connection: Connection) -> None:
        self._step("leaves")
        self._world.offsets.leaves(self.group, self.name)
        members = [{"member_id": self._member, "group_instance_id": self._instance}]
        self._member, self._positions = "", {}
        await connection.call(_LEAVE, 4, _nothing, group_id=self.group, members=members)


class ConsumerReader(Reader):
    """A member of the consumer protocol (KIP-848): the broker assigns."""

    def __init__(self, world: "World", name: str, group: str, topics: Sequence[str]) -> None:
        super().__init__(world, name, group, topics)
        self._number = 0
        self._sent_topics = False

    async def _take_part(self, connection: Connection) -> None:
        self._number += 1
        self._member = f"{self.name}.{self._number}"
        self._generation, self._positions = 0, {}
        if await self._beat(connection, self._topics, ()):
            return
        while self._wanted and self._world.is_wanted(self.group):
            if not await self._pause():
                return
            await self._read(connection)
            if self._commits():
                await self._commit(connection)
            if self._world.options.misuses and self._generation > 1 and self._rng.random() < 0.05:
                await self._commit(connection, generation=self._generation - 1)
            if self._rng.random() < 0.02 and not self.is_honest:
                break
            if await self._beat(connection, None, None):
                return
        await self._leave(connection)

    async def _leave(self, connection: Connection) -> None:
        self._step("leaves")
        self._world.offsets.gives_up(self.group, self._member)
        await connection.call(CONSUMER_BEAT, 1, _nothing, **self._fields(-1, None, None))

    async def _beat(
        self,
        connection: Connection,
        topics: list[str] | None,
        owned: Collection[Place] | None,
    ) -> int:
        offsets, member = self._world.offsets, self._instance or self._member
        asked_us = self._world.loop.now_us
        # Who joins has nothing; but the join of an instance that is in use will be refused.
        if owned is not None and (topics is None or not self._is_taken()):
            offsets.gives_up(self.group, member, owned)

        def let_out(answer: Any) -> None:
            if answer.error_code == 0:
                self._is_served()
                offsets.active(self.group, self._topics)
                offsets.beats(self.group, member, asked_us, confirms=owned is not None)
                if answer.assignment is not None:
                    offsets.assigned(self.group, member, self._places(answer), asked_us)
            self._session(answer.error_code, asked_us)

        fields = self._fields(self._generation, topics, owned)
        answer = await connection.call(CONSUMER_BEAT, 1, let_out, **fields)
        if answer.error_code:
            self._step(f"is put out: {answer.error_code}")
            return int(answer.error_code)
        self._generation = answer.member_epoch
        if answer.assignment is not None:
            places = self._places(answer)
            kept = {one: at for one, at in self._positions.items() if one in places}
            self._step(f"is assigned {' '.join(map(_at, places)) or 'nothing'}")
            gained = [one for one in places if one not in kept]
            self._positions = kept
            if gained:
                await self._begin_at(connection, places)
                self._positions |= kept
            return await self._beat(connection, None, places)
        return 0

    def _is_taken(self) -> bool:
        """Return whether another live member has the instance."""
        statics, instance = self._world.statics, self._instance
        return instance is not None and statics.is_taken(self.group, instance, self._member)

    def _is_served(self) -> None:
        """A heartbeat of this member is answered without an error."""

    def _fields(
        self, epoch: int, topics: list[str] | None, owned: Collection[Place] | None
    ) -> dict[str, Any]:
        ids = self._world.topic_ids
        parts = None
        if owned is not None:
            by_topic: dict[str, list[int]] = {}
            for topic, index in sorted(owned):
                by_topic.setdefault(topic, []).append(index)
            parts = [{"topic_id": ids[name], "partitions": some} for name, some in by_topic.items()]
        return {
            "group_id": self.group, "member_id": self._member, "member_epoch": epoch,
            "instance_id": self._instance, "rack_id": None,
            "rebalance_timeout": REBALANCE_MS if topics is not None else -1,
            "subscribed_topic_names": topics, "subscribed_topic_regex": None,
            "server_assignor": None, "topic_partitions": parts,
        }  # fmt: skip

    def _places(self, answer: Any) -> list[Place]:
        names = self._world.topic_names
        return [
            (names[topic.topic_id], index)
            for topic in answer.assignment.topic_partitions
            for index in topic.partitions
        ]


# ---- requests that the ending sends too


async def fetch(
    world: "World", connection: Connection, place: Place, position: int, wait_ms: int,
    into: dict[int, tuple[bytes | None, bytes | None]] | None = None,
) -> tuple[int, int]:  # fmt: skip
    """Read one partition; the error code and the last offset received, -1 for none."""
    asked = world.auditor.asked()
    last, is_damaged = -1, False

    def let_out(answer: Any) -> None:
        nonlocal last, is_damaged
        one = answer.responses[0].partitions[0]
        if one.error_code == 0 and not is_intact(one.records or b""):
            is_damaged = True  # as librdkafka and Java's client find by check.crcs
            world.is_served_damaged(_at(place))
        elif one.error_code in (_STORAGE, _CORRUPT_MESSAGE):
            world.is_unreadable(_at(place))
        elif one.error_code == 0:
            records = {
                record.offset: (record.value, record.key)
                for record in batches.records(one.records or b"")
                if record.offset >= position
            }
            for record in batches.records(one.records or b""):
                mark = record.timestamp, record.headers
                world.records.contained(place, record.offset, record.value, record.key, mark)
            # Compaction leaves batches without records: a reader goes on behind them.
            last = _last_offset(one.records or b"")
            if into is not None:
                into.update(records)
            world.records.fetched(
                asked, place, position, log_start=one.log_start_offset,
                high_watermark=one.high_watermark, records=records,
            )  # fmt: skip

    one = await fetch_partition(connection, place, position, wait_ms, let_out)
    return _CORRUPT_MESSAGE if is_damaged else int(one.error_code), last


async def fetch_partition(
    connection: Connection, place: Place, position: int, wait_ms: int, let_out: LetOut
) -> Any:
    """Send a Fetch of one partition. Returns: its part of the response."""
    part = {
        "partition": place[1], "current_leader_epoch": -1, "fetch_offset": position,
        "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": _BYTES,
    }  # fmt: skip
    answer = await connection.call(
        _FETCH, 12, let_out, replica_id=-1, max_wait=wait_ms, min_bytes=1, max_bytes=_BYTES,
        isolation_level=0, session_id=0, session_epoch=-1,
        topics=[{"topic": place[0], "partitions": [part]}],
        forgotten_topics_data=(), rack_id="", cluster_id=None,
    )  # fmt: skip
    return answer.responses[0].partitions[0]


def is_intact(data: bytes) -> bool:
    """Return whether every batch has its checksum."""
    position = 0
    try:
        for header in batches.headers(data):
            batches.verify(data, position, header)
            position += header.size
    except batches.CorruptBatch:
        return False
    return position == len(data)


def _last_offset(data: bytes) -> int:
    """Return the last offset of the batches, -1 without any."""
    found = batches.headers(data)
    return found[-1].last_offset if found else -1


async def log_start(connection: Connection, place: Place) -> int:
    """The first offset of a partition."""
    return (await list_offset(connection, place, _EARLIEST, _nothing))[1]


async def log_end(world: "World", connection: Connection, place: Place) -> tuple[int, int]:
    """The error code and the end of a partition."""
    asked = world.auditor.asked()

    def let_out(answer: Any) -> None:
        one = answer.topics[0].partitions[0]
        if one.error_code == 0:
            world.records.saw_end(asked, place, one.offset)

    return await list_offset(connection, place, LATEST, let_out)


async def look_up(
    world: "World", connection: Connection, place: Place, time: int
) -> tuple[int, int]:
    """Look up the first record that is as late as a time; the error code and the offset."""
    asked = world.auditor.asked()

    def let_out(answer: Any) -> None:
        one = answer.topics[0].partitions[0]
        if one.error_code == 0 and not world.disk.damage.is_live:
            world.records.looked_up(asked, place, time, one.offset, one.timestamp)

    return await list_offset(connection, place, time, let_out)


async def list_offset(
    connection: Connection, place: Place, stamp: int, let_out: Any
) -> tuple[int, int]:
    """Request the offset of a time or of a special time; the error code and the offset."""
    part = {"partition_index": place[1], "current_leader_epoch": -1, "timestamp": stamp}
    answer = await connection.call(
        _LIST_OFFSETS, 6, let_out, replica_id=-1, isolation_level=0,
        topics=[{"name": place[0], "partitions": [part]}],
    )  # fmt: skip
    one = answer.topics[0].partitions[0]
    return int(one.error_code), max(int(one.offset), 0)


async def commit_offset(
    world: "World", connection: Connection, group: str, member: tuple[str, int], place: Place,
    offset: int, instance: str | None = None,
) -> int:  # fmt: skip
    """Commit one offset; the error code."""
    offsets, asked = world.offsets, world.auditor.asked()
    metadata = f"{offset} of {member[0]} in {member[1]}"
    write = offsets.committing(group, place, offset, metadata)

    def let_out(answer: Any) -> None:
        code = answer.topics[0].partitions[0].error_code
        if code == 0:
            offsets.committed(write)
            offsets.committed_in(asked, group, member[1])
        elif code != _STORAGE and code not in _COORDINATOR:
            offsets.refused(group, place, write)

    part = {
        "partition_index": place[1], "committed_offset": offset, "committed_leader_epoch": -1,
        "committed_metadata": metadata,
    }  # fmt: skip
    answer = await connection.call(
        _COMMIT, 9 if member[0] else 8, let_out, group_id=group, member_id=member[0],
        generation_id_or_member_epoch=member[1], group_instance_id=instance,
        topics=[{"name": place[0], "partitions": [part]}],
    )  # fmt: skip
    return int(answer.topics[0].partitions[0].error_code)


async def fetch_offsets(
    world: "World", connection: Connection, group: str, places: Sequence[Place]
) -> dict[Place, int]:
    """What a group committed for some partitions; -1 for none."""
    asked = world.auditor.asked()
    found: dict[Place, int] = {}

    def let_out(answer: Any) -> None:
        one = answer.groups[0]
        for topic in one.topics if one.error_code == 0 else ():
            for part in topic.partitions:
                if part.error_code == 0:
                    place = topic.name, part.partition_index
                    found[place] = offset = part.committed_offset
                    world.offsets.fetched(asked, group, place, offset, part.metadata or "")

    topics: dict[str, list[int]] = {}
    for name, number in places:
        topics.setdefault(name, []).append(number)
    await connection.call(
        _OFFSET_FETCH, 8, let_out, require_stable=False,
        groups=[{
            "group_id": group,
            "topics": [{"name": one, "partition_indexes": some} for one, some in topics.items()],
        }],
    )  # fmt: skip
    return found


def _nothing(_: Any) -> None:
    """Ignore a response on its way."""


def _at(place: Place) -> str:
    return f"{place[0]}-{place[1]}"
