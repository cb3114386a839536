"""What goes on beside the consumers: producers, and an administrator who looks and meddles."""

from typing import TYPE_CHECKING, Any

from headrace.sim.actor import Actor
from headrace.sim.facts import Asked, Place, Queue
from headrace.sim.network import Connection
from headrace.wire import batches
from headrace.wire import leases as wire
from headrace.wire.share_records import (
    DescribeShareRecordsRequest,
    DescribeShareRecordsResponse,
    PartitionCursor,
    TopicCursor,
)

if TYPE_CHECKING:
    from headrace.sim.world import World

_PRODUCE, _DELETE_TOPICS, _DELETE_RECORDS, _CREATE_PARTITIONS = 0, 20, 21, 37
_STATES = {0: "available", 1: "acquired", 2: "acknowledged", 3: "archiving", 4: "archived"}
_ACKS_ALL = -1
_PAGES_MAX = 50


class Producer(Actor):
    """Writes records, each with a value of its own; what is not answered is not tried again."""

    _pause = (0.0, 0.3)

    def __init__(self, world: "World", name: str, places: list[Place]) -> None:
        super().__init__(world, name)
        self._places = places
        self._sent = 0

    async def _turn(self, connection: Connection) -> None:
        await self._produce(connection, self._rng.choice(self._places))

    async def _produce(self, connection: Connection, place: Place) -> None:
        asked = self._world.auditor.asked()
        count = self._rng.choice((1, 1, 3, 8))
        values = [f"{self.name}/{self._sent + n}".encode() for n in range(count)]
        pairs = [(None, value) for value in values]
        now = self._world.clock.wall()
        marks = [(now, ())] * count
        self._world.stamping(place)
        self._world.records.sending(place, f"{self.name}/{place}", self._sent, pairs, marks)
        self._sent += count
        data = batches.build(batches.Record(0, now, None, value) for value in values)

        def let_out(answer: Any) -> None:
            part = answer.responses[0].partition_responses[0]
            if part.error_code == 0:
                self._world.auditor.produced(asked, place, part.base_offset, values)
                self._world.records.acknowledged(asked, place, part.base_offset, pairs)

        topic = {"name": place[0], "partition_data": ({"index": place[1], "records": data},)}
        answer = await connection.call(
            _PRODUCE, 9, let_out,
            transactional_id=None, acks=_ACKS_ALL, timeout=1000, topic_data=(topic,),
        )  # fmt: skip
        part = answer.responses[0].partition_responses[0]
        self._world.history.step(
            self.name, f"{count} to {place[0]}-{place[1]}: {part.error_code} @{part.base_offset}"
        )


class Administrator(Actor):
    """Looks at every group, deletes records and topics, adds partitions."""

    _pause = (0.0, 1.0)

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self._added = world.options.partitions

    async def _turn(self, connection: Connection) -> None:
        options = self._world.options
        if options.deletions and self._rng.random() < 0.2:
            await self._delete_records(connection)
        elif options.topic_changes and self._rng.random() < 0.2:
            if self._rng.random() < 0.5:
                await self._add_partition(connection)
            else:
                await self._delete_topic(connection)
        elif self._rng.random() < 0.5:
            await self.look(connection, self._rng.choice(self._world.groups))
        else:
            await self._browse(connection, self._rng.choice(self._world.groups))

    async def look(
        self, connection: Connection, group: str
    ) -> dict[Place, tuple[int, int, int]] | None:
        """SPSO, SPEO and end of the log of each partition of a group; None when it is not told."""
        asked = self._world.auditor.asked()
        gone = set(self._world.deleted_topics)

        def let_out(answer: Any) -> None:
            for one in answer.partitions if answer.error_code == 0 else ():
                runs = [(run.first, run.last, _STATES[run.state]) for run in one.in_flight]
                if one.topic not in gone:
                    queue = (group, (one.topic, one.partition))
                    self._world.auditor.described(asked, queue, one.start, runs)
                    counts = [(run.first, run.last, run.delivery_count) for run in one.in_flight]
                    self._world.auditor.counted(asked, queue, counts)

        call = wire.DescribeRequest(group, "", -1)
        answer = await connection.own(call, wire.DescribeResponse, let_out)
        if answer.error_code:
            return None
        found = {
            (one.topic, one.partition): (one.start, one.end, one.log_end)
            for one in answer.partitions
        }
        told = [f"{p[0]}-{p[1]} {s}..{e} of {le}" for p, (s, e, le) in sorted(found.items())]
        self._world.history.step(self.name, f"sees {group}: {', '.join(told)}")
        return found

    async def _browse(self, connection: Connection, group: str) -> None:
        """Walk through what is in flight, a few runs at a time; of nothing is anything taken."""
        at: dict[Place, int] = {}
        for _ in range(_PAGES_MAX):
            asked = self._world.auditor.asked()
            gone = set(self._world.deleted_topics)

            def let_out(answer: Any, asked: Asked = asked, gone: set[str] = gone) -> None:
                for one in answer.partitions if answer.error_code == 0 else ():
                    if one.error_code == 0 and one.topic not in gone:
                        self._browsed(asked, (group, (one.topic, one.partition)), one)

            topics = tuple(
                TopicCursor(topic, (PartitionCursor(index, offset),))
                for (topic, index), offset in at.items()
            )
            runs_max = self._rng.choice((1, 3, 100))
            call = DescribeShareRecordsRequest(group, topics or None, (), runs_max)
            answer = await connection.own(call, DescribeShareRecordsResponse, let_out)
            parts = answer.partitions if answer.error_code == 0 else ()
            at = {
                (one.topic, one.partition): one.next_offset
                for one in parts
                if one.error_code == 0 and one.next_offset < one.end
            }
            if not at:
                break
        self._world.history.step(self.name, f"browses {group}: {answer.error_code}, {len(at)} left")

    def _browsed(self, asked: Asked, queue: Queue, one: Any) -> None:
        """One page: of records that are known to be finished it tells nothing else."""
        auditor = self._world.auditor
        runs = [(run.first, run.last, _STATES[run.state]) for run in one.runs]
        auditor.described(asked, queue, one.start, runs)
        auditor.counted(
            asked, queue, [(run.first, run.last, run.delivery_count) for run in one.runs]
        )
        for first, last, _ in runs:
            if not one.start <= first <= last < one.end:
                auditor.broken(f"{first}-{last} of {queue} is told, from {one.start} to {one.end}")

    async def _delete_records(self, connection: Connection) -> None:
        place = self._rng.choice(self._world.places())
        before = self._rng.randrange(self._world.auditor.known_end(place) + 1)
        self._world.auditor.deleting(place, before)
        topic = {
            "name": place[0],
            "partitions": ({"partition_index": place[1], "offset": before},),
        }
        answer = await connection.call(
            _DELETE_RECORDS, 2, lambda _: None, topics=(topic,), timeout=1000
        )
        code = answer.topics[0].partitions[0].error_code
        self._world.history.fault(f"records below {before} of {place} are deleted: {code}")

    async def _add_partition(self, connection: Connection) -> None:
        self._added += 1
        self._world.auditor.creating(("orders", self._added - 1))
        topic = {"name": "orders", "count": self._added, "assignments": None}
        answer = await connection.call(
            _CREATE_PARTITIONS, 3, lambda _: None,
            topics=(topic,), timeout=1000, validate_only=False,
        )  # fmt: skip
        code = answer.results[0].error_code
        self._world.history.fault(f"orders gets partition {self._added - 1}: {code}")

    async def _delete_topic(self, connection: Connection) -> None:
        self._world.deleted_topics.add("extra")
        answer = await connection.call(
            _DELETE_TOPICS, 5, lambda _: None, topic_names=("extra",), timeout=1000
        )
        self._world.history.fault(f"topic extra is deleted: {answer.responses[0].error_code}")
