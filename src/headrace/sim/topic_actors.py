"""Topics that are created, grown, reconfigured, written, read and deleted, one name after another.

The actor repeats a request whose response was lost, as an administrator's client does: the repeated
one may be answered that the topic exists, or exists no more. A name is used again after a deletion,
so that no record of the earlier topic may come back. Nobody else uses these names.
"""

from typing import TYPE_CHECKING, Any

from headrace.sim.actor import Actor
from headrace.sim.consumers import fetch
from headrace.sim.facts import Place
from headrace.sim.network import Connection
from headrace.sim.record_auditor import EVERYTHING
from headrace.sim.resources import TOPIC, alter_config
from headrace.wire import batches

if TYPE_CHECKING:
    from headrace.sim.world import World

_PRODUCE, _METADATA, _CREATE, _DELETE, _GROW = 0, 3, 19, 20, 37
_UNKNOWN_TOPIC, _EXISTS, _INVALID_PARTITIONS, _STORAGE = 3, 36, 37, 56
_ACKS_ALL = -1
_PARTITIONS_MAX = 3
_SHORT_MS = 1  # a retention after which every record may be deleted


class TopicKeeper(Actor):
    """An administrator of topics of its own, and their producer and reader."""

    _pause = (0.0, 0.15)
    _lost_pause = (0.0, 0.2)

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self._topic = f"{name}-0"
        self._names = 1
        self._count = 0  # partitions; 0 while the topic does not exist
        self._sent = 0
        self._is_short = False  # whether the retention may delete everything
        self._doubtful: str | None = None  # the kind of the request without a response
        self._losses = world.losses

    def places(self) -> list[Place]:
        """Return the partitions that exist for certain."""
        if self._doubtful is not None or self._losses != self._world.losses:
            return []
        return [(self._topic, index) for index in range(self._count)]

    async def _turn(self, connection: Connection) -> None:
        if self._losses != self._world.losses:
            # A power cut may have taken the topic, or a deletion: nothing is known of this name.
            self._losses = self._world.losses
            self._topic, self._count = f"{self.name}-{self._names}", 0
            self._names, self._doubtful, self._is_short = self._names + 1, None, False
        kind = self._doubtful or self._drawn()
        await getattr(self, f"_{kind}")(connection)

    def _drawn(self) -> str:
        if not self._count:
            return self._rng.choice(("create", "create", "write_nowhere", "look"))
        choices = ("write",) * 4 + ("read", "look", "look", "grow", "shorten") + ("delete",) * 2
        return self._rng.choice(choices)

    # ---- changes

    async def _create(self, connection: Connection) -> None:
        self._doubtful = "create"
        wanted = {
            "name": self._topic, "num_partitions": 1, "replication_factor": 1,
            "assignments": (), "configs": ({"name": "retention.ms", "value": "-1"},),
        }  # fmt: skip

        def let_out(answer: Any) -> None:
            if answer.topics[0].error_code in (0, _EXISTS):
                self._count, self._doubtful, self._is_short = 1, None, False

        answer = await connection.call(
            _CREATE, 5, let_out, topics=(wanted,), timeout=1000, validate_only=False
        )
        self._step(f"creates {self._topic}: {answer.topics[0].error_code}")

    async def _grow(self, connection: Connection) -> None:
        if self._count >= _PARTITIONS_MAX:
            return
        self._doubtful = "grow"
        count = self._count + 1
        wanted = {"name": self._topic, "count": count, "assignments": None}

        def let_out(answer: Any) -> None:
            code = answer.results[0].error_code
            if code in (0, _INVALID_PARTITIONS):  # it has so many, by an earlier request
                self._count, self._doubtful = count, None
            elif code == _UNKNOWN_TOPIC:
                self._broken("is unknown to CreatePartitions")

        answer = await connection.call(
            _GROW, 2, let_out, topics=(wanted,), timeout=1000, validate_only=False
        )
        self._step(f"grows {self._topic} to {count}: {answer.results[0].error_code}")

    async def _delete(self, connection: Connection) -> None:
        self._doubtful = "delete"

        def let_out(answer: Any) -> None:
            if answer.responses[0].error_code in (0, _UNKNOWN_TOPIC):
                for index in range(_PARTITIONS_MAX):
                    self._world.records.forget((self._topic, index))
                self._count, self._doubtful = 0, None
                if self._rng.random() < 0.5:
                    self._topic = f"{self.name}-{self._names}"
                    self._names += 1

        answer = await connection.call(
            _DELETE, 5, let_out, topic_names=(self._topic,), timeout=1000
        )
        self._step(f"deletes a topic: {answer.responses[0].error_code}, next is {self._topic}")

    async def _shorten(self, connection: Connection) -> None:
        """Let retention delete everything, or nothing any more."""
        short = self._rng.random() < 0.3
        if short:
            self._is_short = True
            for place in self.places():
                self._world.records.deleting(place, EVERYTHING)
        value = str(_SHORT_MS if short else -1)
        code = await alter_config(connection, TOPIC, self._topic, "retention.ms", value)
        self._step(f"sets retention.ms={value} of {self._topic}: {code}")
        if code == _UNKNOWN_TOPIC:
            self._broken("is unknown to IncrementalAlterConfigs")

    # ---- uses

    async def _write(self, connection: Connection) -> None:
        place = self._topic, self._rng.randrange(self._count)
        pairs = self._pairs()
        records = self._world.records
        if self._is_short:
            records.deleting(place, EVERYTHING)
        asked = self._world.auditor.asked()
        marks = [(self._world.clock.wall(), ())] * len(pairs)
        records.sending(place, f"{self.name}/{place}", self._sent, pairs, marks)
        self._sent += len(pairs)

        def let_out(answer: Any) -> None:
            part = answer.responses[0].partition_responses[0]
            if part.error_code == 0:
                records.acknowledged(asked, place, part.base_offset, pairs)

        code = await self._produce(connection, place, pairs, let_out)
        # The code is 3 while a log that could not be created waits for the disk.
        self._step(f"{len(pairs)} to {place[0]}-{place[1]}: {code}")

    async def _write_nowhere(self, connection: Connection) -> None:
        """Write to the name while no such topic exists."""
        code = await self._produce(connection, (self._topic, 0), self._pairs(), lambda _: None)
        self._step(f"writes to {self._topic}, which does not exist: {code}")
        if code == 0 and self._losses == self._world.losses:
            self._broken("was written, and does not exist")

    def _pairs(self) -> list[tuple[bytes | None, bytes]]:
        count = self._rng.choice((1, 2, 4))
        return [(None, f"{self.name}:{self._sent + n}".encode()) for n in range(count)]

    async def _produce(self, connection: Connection, place: Place, pairs: Any, let_out: Any) -> int:
        now = self._world.clock.wall()
        data = batches.build(batches.Record(0, now, None, value) for _, value in pairs)
        topic = {"name": place[0], "partition_data": ({"index": place[1], "records": data},)}
        answer = await connection.call(
            _PRODUCE, 9, let_out, transactional_id=None, acks=_ACKS_ALL, timeout=1000,
            topic_data=(topic,),
        )  # fmt: skip
        return int(answer.responses[0].partition_responses[0].error_code)

    async def _read(self, connection: Connection) -> None:
        place = self._topic, self._rng.randrange(self._count)
        if not self._is_short:
            code, last = await fetch(self._world, connection, place, 0, 0)
            self._step(f"reads {place[0]}-{place[1]}: {code} ..{last}")

    async def _look(self, connection: Connection) -> None:
        """Read the metadata: the topic exists with its partitions, or does not exist."""
        losses = self._losses

        def let_out(answer: Any) -> None:
            (one,) = answer.topics
            if losses != self._world.losses:
                return
            if not self._count and one.error_code != _UNKNOWN_TOPIC:
                self._broken(f"is deleted, or was not created, and its code is {one.error_code}")
            if self._count and one.error_code == _UNKNOWN_TOPIC:
                self._broken(f"has {self._count} partitions, and is unknown")
            if self._count and one.error_code == 0 and len(one.partitions) != self._count:
                self._broken(f"has {self._count} partitions, and {len(one.partitions)} are listed")

        await connection.call(
            _METADATA, 12, let_out, topics=[{"topic_id": None, "name": self._topic}],
            allow_auto_topic_creation=False, include_topic_authorized_operations=False,
        )  # fmt: skip

    def _broken(self, what: str) -> None:
        self._world.records_broken(f"topic {self._topic} {what}")

    def _step(self, what: str) -> None:
        self._world.history.step(self.name, what)
