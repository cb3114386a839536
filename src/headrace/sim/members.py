"""Members of share groups: honest ones, and those that stall, vanish, repeat themselves or lie.

A member remembers what it was given and says something of every record sooner or later, or goes
away with it. Codes that the broker answers with are taken as they come; what must not happen is
the auditor's to say.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from headrace.sim.facts import Asked, Place
from headrace.sim.network import Connection, Lost
from headrace.wire import batches

if TYPE_CHECKING:
    from headrace.sim.world import World

_HEARTBEAT, _FETCH, _ACKNOWLEDGE, _OFFSET_COMMIT = 76, 78, 79, 8
_VERDICTS = {"gap": 0, "accept": 1, "release": 2, "reject": 3, "renew": 4}
_RECORD_LIMIT, _BATCH_OPTIMIZED = 1, 0
_STORAGE_ERROR = 56  # of Kafka's codes
_PAUSE_SECONDS = 0.2
_BEAT_US = 700_000

Said = dict[Place, list[tuple[int, int, str]]]


@dataclass(frozen=True, slots=True)
class Habits:
    """What a member does, each by its probability on an occasion."""

    accept: float = 1.0
    reject: float = 0.0
    keep: float = 0.0  # says nothing yet
    renew: float = 0.0
    stall: float = 0.0
    vanish: float = 0.0
    leave: float = 0.0
    lie: float = 0.0
    repeat: float = 0.0
    waits_ms: tuple[int, ...] = (0, 50, 300)  # of a poll, one of these
    records_max: int = 12


HONEST = Habits(waits_ms=(1000,), records_max=100)


class ShareMember:
    """One member of a group, by the wire protocol; `run` is its life."""

    def __init__(
        self, world: "World", name: str, group: str, topics: Sequence[str], habits: Habits
    ) -> None:
        self.name = name
        self.group = group
        self._world = world
        self._auditor = world.auditor
        self._topics = list(topics)
        self._habits = habits
        self._rng = Random(f"{world.seed}/{name}")
        self._epoch = 0
        self._session = 0
        self._beat_due_us = 0
        self._places: list[Place] = []
        self._in_session: set[Place] = set()
        self._held: dict[Place, list[tuple[int, int]]] = {}
        self._said: Said = {}  # last, whose answer may have been lost

    @property
    def topics(self) -> Sequence[str]:
        """Return the topics that the member subscribes to."""
        return self._topics

    @property
    def places(self) -> Sequence[Place]:
        """Return the partitions that the member is assigned."""
        return self._places

    async def run(self) -> None:
        """Join and consume, again and again, until the world wants no more."""
        while self._world.is_wanted(self.group):
            try:
                connection = Connection(self._world, self._rng, self._let_go, client=self.name)
                try:
                    await self._consume(connection)
                finally:
                    connection.close()
            except Lost:
                pass
            await asyncio.sleep(self._rng.uniform(0, 2 * _PAUSE_SECONDS))

    async def _consume(self, connection: Connection) -> None:
        self._epoch = self._session = 0
        if not self._chance(self._habits.repeat):
            self._held, self._said = {}, {}
        if not await self._beat(connection, self._topics):
            return
        while self._world.is_wanted(self.group):
            await asyncio.sleep(self._rng.choice((0.0, 0.005, 0.05)))
            if self._chance(self._habits.stall):
                self._step("stalls")
                await asyncio.sleep(self._world.options.lock_ms / 1000 * self._rng.uniform(0.5, 2))
            if self._chance(self._habits.vanish):
                self._step("vanishes")
                return
            if self._chance(self._habits.lie):
                await self._lie(connection)
            if self._chance(self._habits.leave):
                await self._leave(connection)
                return
            is_due = self._world.loop.now_us >= self._beat_due_us or not self._places
            if is_due and not await self._beat(connection, None):
                return
            if not await self._turn(connection):
                return

    async def _turn(self, connection: Connection) -> bool:
        """Fetch, with or without acknowledgements, or acknowledge only; whether to go on."""
        said = self._verdicts() if self._session else {}
        renews = any(verdict == "renew" for parts in said.values() for *_, verdict in parts)
        if renews or (said and self._chance(0.5)):
            return await self._acknowledge(connection, said, self._session)
        return await self._fetch(connection, said)

    async def _leave(self, connection: Connection) -> None:
        self._step("leaves")
        if self._session:
            await self._acknowledge(connection, self._verdicts(), -1)
        self._let_go()
        await self._beat(connection, None, epoch=-1)

    def _let_go(self) -> None:
        self._auditor.let_go(self.group, self.name)
        self._world.memberships.closed(self.group, self.name)

    # ---- requests

    async def _beat(
        self, connection: Connection, topics: list[str] | None, epoch: int | None = None
    ) -> bool:
        asked = self._auditor.asked()
        self._epoch = self._epoch if topics is None else 0
        sent = self._epoch if epoch is None else epoch
        memberships, before_us = self._world.memberships, None
        if sent < 0:
            memberships.leaving(self.group, self.name)
        else:
            before_us = memberships.sending(self.group, self.name)

        def let_out(answer: Any) -> None:
            if answer.error_code:
                return
            if sent >= 0:
                memberships.served(
                    self.group, self.name, asked.at_us, epoch=sent, before_us=before_us
                )
            if answer.assignment is not None:
                places = self._assigned(answer)
                self._auditor.assigned(self.group, places)
                memberships.assigned(self.group, self.name, self._topics, places)

        self._beat_due_us = self._world.loop.now_us + _BEAT_US
        answer = await connection.call(
            _HEARTBEAT, 1, let_out,
            group_id=self.group, member_id=self.name, member_epoch=sent, rack_id=None,
            subscribed_topic_names=topics,
        )  # fmt: skip
        self._step(f"heartbeat {sent} sent at {asked.at_us / 1e6:.6f}: {answer.error_code}")
        if answer.error_code:
            return False
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            self._places = self._assigned(answer)
        return True

    async def _fetch(self, connection: Connection, said: Said) -> bool:
        epoch = self._session
        asked = self._auditor.asked(self.group, self.name, acquires=True)
        self._saying(said)
        exact = self._chance(0.5)
        if epoch == 0:
            self._in_session = set()
        places = {*said, *(place for place in self._places if place not in self._in_session)}

        def let_out(answer: Any) -> None:
            codes = [part.error_code for _, part in self._parts(answer)]
            if _STORAGE_ERROR not in codes:  # else it may or may not have acquired records
                self._auditor.answered(asked)
            self._outcome(asked, said, answer, "acknowledge_error_code")
            if answer.error_code == 0:
                if epoch == 0:
                    self._world.memberships.opened(self.group, self.name)
                # No lock begins before the request left, to the microsecond. Whether a response
                # of that microsecond left earlier is not known, unless it did before `asked`.
                self._told(replace(asked, at_us=connection.sent_us), answer)

        answer = await connection.call(
            _FETCH, 2, let_out,
            group_id=self.group, member_id=self.name, share_session_epoch=epoch,
            max_wait=self._rng.choice(self._habits.waits_ms), min_bytes=1, max_bytes=1 << 20,
            max_records=self._rng.randint(1, self._habits.records_max),
            batch_size=self._rng.choice((1, 4, 100)),
            share_acquire_mode=_RECORD_LIMIT if exact else _BATCH_OPTIMIZED, is_renew_ack=False,
            topics=self._fields(sorted(places), said), forgotten_topics_data=(),
        )  # fmt: skip
        if answer.error_code:
            self._step(f"fetch {epoch}: code {answer.error_code}")
            return False
        self._session += 1
        self._in_session |= places
        found: list[str] = []
        for place, part in self._parts(answer):
            for one in part.acquired_records:
                self._held.setdefault(place, []).append((one.first_offset, one.last_offset))
                found.append(
                    f"{_at(place)}@{one.first_offset}-{one.last_offset}#{one.delivery_count}"
                )
            codes = (part.error_code, part.acknowledge_error_code)
            found += [f"{_at(place)} codes {codes}"] if any(codes) else []
        self._step(f"fetch {epoch} {_words(said)}: {' '.join(found) or 'nothing'}")
        await self._rejoin_if_strange(found)
        return True

    async def _acknowledge(self, connection: Connection, said: Said, epoch: int) -> bool:
        asked = self._auditor.asked(self.group, self.name)
        self._saying(said)
        renewing = any(verdict == "renew" for parts in said.values() for *_, verdict in parts)

        def let_out(answer: Any) -> None:
            self._outcome(asked, said, answer, "error_code")

        if epoch == -1:
            self._let_go()
        answer = await connection.call(
            _ACKNOWLEDGE, 2, let_out,
            group_id=self.group, member_id=self.name, share_session_epoch=epoch,
            is_renew_ack=renewing, topics=self._fields(sorted(said), said),
        )  # fmt: skip
        codes = {_at(place): part.error_code for place, part in self._parts(answer)}
        self._step(f"acknowledge {epoch} {_words(said)}: {answer.error_code} {codes}")
        if answer.error_code == 0 and epoch != -1:
            self._session += 1
        return bool(answer.error_code == 0)

    async def _lie(self, connection: Connection) -> None:
        """Send what must be refused: epochs that are none, records that were never given."""
        if self._session and self._chance(0.5):
            place = self._rng.choice(self._places or [("orders", 0)])
            first = self._rng.randrange(40)
            stolen: Said = {place: [(first, first + self._rng.randrange(3), "accept")]}
            await self._acknowledge(connection, stolen, self._session)
            return
        epoch = self._session + 7
        held = {place: [(*span, "accept") for span in spans] for place, spans in self._held.items()}
        answer = await connection.call(
            _ACKNOWLEDGE, 2, lambda _: None,
            group_id=self.group, member_id=self.name, share_session_epoch=epoch,
            is_renew_ack=False, topics=self._fields(sorted(held), held),
        )  # fmt: skip
        self._step(f"lies about its session epoch ({epoch}): {answer.error_code}")
        if answer.error_code == 0:
            self._auditor.broken(f"{self.name} was served with a wrong session epoch")
        answer = await connection.call(
            _HEARTBEAT, 1, lambda _: None,
            group_id=self.group, member_id=self.name, member_epoch=self._epoch + 100,
            rack_id=None, subscribed_topic_names=None,
        )  # fmt: skip
        if answer.error_code == 0:
            self._auditor.broken(f"{self.name} was served with a member epoch that is to come")
        await self._commit_as_consumer(connection)

    async def _commit_as_consumer(self, connection: Connection) -> None:
        """Commit an offset under the name of the share group: it is of the other type."""
        part = {
            "partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1,
            "committed_metadata": "",
        }  # fmt: skip
        answer = await connection.call(
            _OFFSET_COMMIT, 8, lambda _: None, group_id=self.group, member_id="",
            generation_id_or_member_epoch=-1, group_instance_id=None,
            topics=[{"name": "orders", "partitions": [part]}],
        )  # fmt: skip
        code = answer.topics[0].partitions[0].error_code
        self._step(f"commits an offset of a share group: {code}")
        if code == 0:
            self._auditor.broken(f"share group {self.group} has a committed offset")

    # ---- inside

    def _outcome(self, asked: Asked, said: Said, answer: Any, field: str) -> None:
        """What became of acknowledgements; it is not known after a fault of the disk."""
        codes = {place: getattr(part, field) for place, part in self._parts(answer)}
        for place, parts in said.items():
            code = answer.error_code or codes.get(place, _STORAGE_ERROR)
            if code == 0:
                self._auditor.acknowledged(asked, place, self.name, parts)
            elif code != _STORAGE_ERROR:
                self._auditor.refused(self.group, place, self.name, parts)

    def _told(self, asked: Asked, answer: Any) -> None:
        for place, part in self._parts(answer):
            if part.error_code == 0:
                records = {
                    one.offset: one.value or b"" for one in batches.records(part.records or b"")
                }
                self._auditor.read(place, records)
                for one in batches.records(part.records or b""):
                    mark = one.timestamp, one.headers
                    self._world.records.contained(place, one.offset, one.value, one.key, mark)
                ranges = [
                    (one.first_offset, one.last_offset, one.delivery_count)
                    for one in part.acquired_records
                ]
                self._auditor.delivered(asked, place, ranges, records)

    def _saying(self, said: Said) -> None:
        self._said = said
        for place, parts in said.items():
            self._auditor.acknowledging(self.group, place, self.name, parts)

    def _verdicts(self) -> Said:
        """Something to say of what is held, and sometimes what was said before once more."""
        if self._said and self._chance(self._habits.repeat):
            again, self._said = self._said, {}
            self._step(f"repeats {_words(again)}")
            return again
        said: Said = {}
        for place, spans in list(self._held.items()):
            kept: list[tuple[int, int]] = []
            for first, last in sorted(set(spans)):
                middle = self._rng.randint(first, last)
                for part in ((first, middle), (middle + 1, last)):
                    if part[0] > part[1]:
                        continue
                    verdict = self._verdict()
                    if verdict in ("keep", "renew"):
                        kept.append(part)
                    if verdict != "keep":
                        said.setdefault(place, []).append((*part, verdict))
            self._held[place] = kept
        return said

    def _verdict(self) -> str:
        habits = self._habits
        for name in ("keep", "renew", "accept", "reject"):
            if self._chance(getattr(habits, name)):
                return name
        return "release"

    def _fields(self, places: Sequence[Place], said: Said) -> list[dict[str, Any]]:
        return [
            {
                "topic_id": self._world.topic_ids[topic],
                "partitions": [
                    {
                        "partition_index": index,
                        "acknowledgement_batches": [
                            {
                                "first_offset": first,
                                "last_offset": last,
                                "acknowledge_types": [_VERDICTS[verdict]],
                            }
                            for first, last, verdict in said.get((topic, index), ())
                        ],
                    }
                ],
            }
            for topic, index in places
        ]

    def _parts(self, answer: Any) -> list[tuple[Place, Any]]:
        names = self._world.topic_names
        return [
            ((names[topic.topic_id], part.partition_index), part)
            for topic in answer.responses
            for part in topic.partitions
        ]

    def _assigned(self, answer: Any) -> list[Place]:
        names = self._world.topic_names
        return [
            (names[topic.topic_id], index)
            for topic in answer.assignment.topic_partitions
            for index in topic.partitions
        ]

    async def _rejoin_if_strange(self, found: list[str]) -> None:
        if any("codes" in one for one in found):
            await asyncio.sleep(_PAUSE_SECONDS)

    def _chance(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability

    def _step(self, what: str) -> None:
        self._world.history.step(self.name, what)


def _at(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def _words(said: Said) -> str:
    return ", ".join(
        f"{verdict} {_at(place)}@{first}-{last}"
        for place, parts in sorted(said.items())
        for first, last, verdict in parts
    )
