"""Consumer groups in the broker: their shards, and the requests that wait for other members.

The shards' journal is `__consumer_offsets`. A join or sync that has to wait holds a ticket; when
the group has its answer, an Answered event wakes it, and it leaves once the journal is as durable
as configured. When a shard is rebuilt after a fault, those who wait are sent to join again.
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.broker import group_log
from headrace.broker.config import Config
from headrace.broker.group_meters import GroupMeters
from headrace.broker.loop_turns import Turns
from headrace.broker.partitions import Partition
from headrace.broker.runtime import ShardRuntime, StorageFault
from headrace.broker.shards import PartitionJournal, all_durable, journals, shard_index
from headrace.broker.shares import Shares
from headrace.broker.topic_patterns import Patterns
from headrace.broker.topics import Topics
from headrace.broker.waits import Waits
from headrace.core.catalog import Catalog, PartitionsAdded, TopicCreated, TopicDeleted
from headrace.core.catalog import Event as CatalogEvent
from headrace.core.consumer_assignors import ASSIGNORS
from headrace.core.consumer_group import ConsumerGroup, Group
from headrace.core.consumer_words import (
    ConsumerBeat,
    ConsumerLimits,
    GroupCommand,
    Pace,
    TopicView,
)
from headrace.core.errors import Refused, Why
from headrace.core.group_events import Answered, Event
from headrace.core.group_shard import GroupShard
from headrace.core.group_words import (
    RESTART_PORTION,
    Join,
    Limits,
    ResetPolicy,
    RestartSessions,
    Sync,
    Ticket,
)
from headrace.core.offsets import Offsets
from headrace.core.types import MemberId
from headrace.log.api import Clock
from headrace.log.buggify import buggify
from headrace.log.group_records import GroupJournal

log = logging.getLogger("headrace.broker")
OFFSETS_TOPIC = "__consumer_offsets"
_WAIT_MS_MAX = 300_000  # who waits longer is told to come again

_NO_OFFSETS = Offsets()

Shard = ShardRuntime[GroupCommand, Event]


class Groups:
    """All consumer groups of a broker; made by `Services`."""

    def __init__(
        self, config: Config, clock: Clock, topics: Topics, shares: Shares, waits: Waits,
        turns: Turns,
    ) -> None:  # fmt: skip
        self.shards: list[Shard] = []
        self.meters = GroupMeters()
        self.limits = Limits(
            config.group_session_ms_min,
            config.group_session_ms_max,
            config.group_size_max,
            config.group_initial_delay_ms,
            config.offset_metadata_max,
        )
        self.consumer_limits = ConsumerLimits(
            {name: ASSIGNORS[name] for name in config.consumer_assignors},
            config.consumer_size_max,
            upgrades=config.consumer_migration_policy in {"bidirectional", "upgrade"},
            downgrades=config.consumer_migration_policy in {"bidirectional", "downgrade"},
        )
        self._config = config
        self._clock = clock
        self._topics = topics
        self._shares = shares
        self._waits = waits
        self._turns = turns
        self._tickets = itertools.count(1)
        # By shard, each waiting request's answer; None until there is one. There are at most as
        # many as connections, because a connection's requests are answered one after the other.
        self._answers: dict[int, dict[Ticket, Any]] = {}
        self._topic_changes = itertools.count(1)
        self._catalogue: tuple[Catalog, int] = topics.catalog, 0
        self._patterns, self._matched = Patterns(config.regex_size_max), topics.catalog

    async def open(self) -> None:
        """Create the internal topic when it is new, replay every shard, begin to keep time.

        Raises: OSError; JournalDamaged; StorageFault.
        """
        config, topics = self._config, self._topics
        settings = {
            "cleanup.policy": "compact",
            "segment.bytes": str(config.offsets_segment_bytes),
        }
        for partition in await journals(topics, OFFSETS_TOPIC, config.offsets_partitions, settings):
            shard = self._shard(partition)
            shard.load()
            self.shards.append(shard)
        topics.listeners.append(self._topics_changed)
        for shard in self.shards:
            shard.start()

    async def close(self) -> None:
        """Write what is decided and stop keeping time."""
        for shard in self.shards:
            await shard.close()

    # ---- what handlers use

    def new_member(self, prefix: str) -> MemberId:
        """An id that no member had before."""
        return MemberId(f"{prefix}-{self._topics.new_id()}")

    def ticket(self) -> Ticket:
        """For a join or sync, which may have to wait."""
        return Ticket(next(self._tickets))

    async def ask(self, group: str, command: GroupCommand) -> Any:
        """A command to the shard of a group; its reply, or Refused, also when the disk fails."""
        try:
            return await self._shard_of(group).ask(command)
        except StorageFault as fault:
            return Refused(Why.COORDINATOR_GONE, str(fault))

    def tell(self, group: str, command: GroupCommand) -> None:
        """A command that nobody waits for, and that cannot be refused.

        What a failing disk takes back is decided once the journal can be written, before any other.
        """
        self._shard_of(group).tell(command)

    def submit(self, group: str, command: GroupCommand, told: Callable[[Any], None]) -> None:
        """As `ask`, but calls `told` with the answer, and nobody has to wait for it."""

        def tell(reply: Any) -> None:
            fault = isinstance(reply, StorageFault)
            told(Refused(Why.COORDINATOR_GONE, str(reply)) if fault else reply)

        self._shard_of(group).submit(command, tell)

    async def ask_and_wait(self, command: Join | Sync) -> Any:
        """The answer to a join or sync, also when others decide it; otherwise as `ask`."""
        index = shard_index(command.group, len(self.shards))
        answers, shard = self._answers[index], self.shards[index]
        ticket = command.ticket
        answers[ticket] = None
        try:
            reply = await shard.ask(command)
            if reply is not None:
                return reply
            if answers[ticket] is None:
                await self._waits.wait([_wait_key(ticket)], _WAIT_MS_MAX)
            answer = answers[ticket]  # what is decided from here on may not be durable yet
            await shard.durable()
            return answer or Refused(
                Why.COORDINATOR_GONE, f"Group {command.group} is still rebalancing; join again."
            )
        except StorageFault as fault:
            return Refused(Why.COORDINATOR_GONE, str(fault))
        finally:
            del answers[ticket]

    @staticmethod
    def machine_of(shard: Shard) -> GroupShard:
        """The state of a shard; changed through `ask` alone."""
        machine = shard.machine
        assert isinstance(machine, GroupShard)
        return machine

    async def durable(self, read: Sequence[Any] = ()) -> Refused | None:
        """Return once all that was decided is durable; refused when the disk fails.

        Args:
            read: The machines that were read with pauses; refused if a fault took one of them back.
        """
        return await all_durable(self.shards, read)

    def find(self, group: str) -> Group | None:
        """A group as it is now; what is told of it waits for `durable`."""
        return self.machine_of(self._shard_of(group)).groups.get(group)

    def offsets(self, group: str) -> Offsets:
        """What a group has committed, likewise."""
        return self.machine_of(self._shard_of(group)).offsets.get(group, _NO_OFFSETS)

    def walk(self) -> Iterator[tuple[Group, Offsets]]:
        """Yield each group with its committed offsets.

        Groups may come and go between two steps. A group may come twice when another one goes.
        """
        for shard in self.shards:
            machine = self.machine_of(shard)
            for name in machine.names.walk():
                yield machine.groups[name], machine.offsets.get(name, _NO_OFFSETS)

    # ---- what decisions may read of the outside (core.consumer_words.ConsumerOutside)

    @property
    def catalogue_version(self) -> int:
        if self._catalogue[0] is not self._topics.catalog:  # read anew after a fault
            self._catalogue = self._topics.catalog, next(self._topic_changes)
        return self._catalogue[1]

    def topic(self, name: str) -> TopicView | None:
        topic = self._topics.catalog.topics.get(name)
        return TopicView(topic.id, topic.partitions) if topic is not None else None

    def existing(self, names: frozenset[str]) -> frozenset[str]:
        topics = self._topics.catalog.topics
        if len(topics) < len(names):
            return frozenset(filter(names.__contains__, topics))
        return frozenset(filter(topics.__contains__, names))

    def matching(self, regex: str) -> frozenset[str] | Refused:
        if self._matched is not self._topics.catalog:  # read anew after a fault
            self._patterns.forget()
            self._matched = self._topics.catalog
        return self._patterns.matching(regex, self._topics.catalog.topics)

    async def prepare(self, command: ConsumerBeat) -> Refused | None:
        """Match the patterns of a heartbeat's group, so that its decision finds them matched."""
        group = self.find(command.group)
        regexes = {command.regex} if command.regex else set()
        if isinstance(group, ConsumerGroup) and group.seen_version != self.catalogue_version:
            regexes.update(group.regexes)
        for regex in regexes:
            if self._matched is not self._topics.catalog:  # read anew after a fault
                self._patterns.forget()
                self._matched = self._topics.catalog
            refused = await self._patterns.prepare(regex, self._topics.catalog.topics)
            if refused is not None and regex == command.regex:
                return refused
        return None

    def pace(self, group: str) -> Pace:
        settings = self._shares.settings(group)
        return Pace(
            settings.consumer_session_timeout_ms,
            settings.consumer_heartbeat_ms,
            settings.consumer_assignment_interval_ms,
        )

    def is_share_group(self, group: str) -> bool:
        kind = self._shares.settings(group).group_type
        return kind == "share" or (kind != "consumer" and self._shares.exists(group))

    def retention_minutes(self, group: str) -> int:
        return self._shares.settings(group).offsets_retention_minutes

    def reset_policy(self, group: str) -> ResetPolicy | None:
        return self._shares.settings(group).reset_policy

    def is_consumer_group(self, group: str) -> bool:
        """The other way round: whether the name is no share group's, nor can become one."""
        kind = self._shares.settings(group).group_type
        return kind == "consumer" or (kind != "share" and self.find(group) is not None)

    # ---- wiring

    def _shard_of(self, group: str) -> Shard:
        return self.shards[shard_index(group, len(self.shards))]

    def _shard(self, partition: Partition) -> Shard:
        answers = self._answers[partition.index] = {}
        journal = PartitionJournal(partition)

        def build() -> tuple[GroupShard, GroupJournal]:
            for ticket in answers:  # the machine that they waited for is gone
                gone = "The group was read anew from its journal; join again."
                answers[ticket] = Refused(Why.COORDINATOR_GONE, gone)
                self._waits.notify(_wait_key(ticket))
            return GroupShard(self), GroupJournal()

        def answer(events: Sequence[Event]) -> None:
            for event in events:
                if isinstance(event, Answered) and event.ticket in answers:
                    answers[event.ticket] = event.answer
                    self._waits.notify(_wait_key(event.ticket))

        shard: Shard = ShardRuntime(
            f"{OFFSETS_TOPIC}-{partition.index}",
            build,
            journal,
            self._clock,
            fsync=self._config.durability == "fsync",
            recovered=RestartSessions(1 if buggify("group_restart.portion") else RESTART_PORTION),
            sync=journal.durable,
            roll=journal.roll_ready,
            turns=self._turns,
        )
        for listener in (answer, self.meters.count, group_log.tell):
            shard.listeners.append(listener)
        return shard

    def _topics_changed(self, events: Sequence[CatalogEvent]) -> None:
        for event in events:
            if isinstance(event, TopicCreated):
                self._patterns.came(event.name)
            elif isinstance(event, TopicDeleted):
                self._patterns.went()
        if any(isinstance(one, TopicCreated | PartitionsAdded | TopicDeleted) for one in events):
            self._catalogue = self._topics.catalog, next(self._topic_changes)


def _wait_key(ticket: Ticket) -> tuple[str, int]:
    return ("group", ticket)
