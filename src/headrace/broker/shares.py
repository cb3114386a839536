"""Share groups in the broker: their shards, settings, sessions, and who is woken when.

A group belongs to the shard that its name hashes to, as Kafka maps groups to partitions of an
internal topic; the shard's journal is that partition of `__share_group_state`, which any client can
fetch. The number of shards is fixed when the topic is created.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.broker.config import Config
from headrace.broker.group_settings import GroupSettings
from headrace.broker.partitions import Partition
from headrace.broker.runtime import ShardRuntime
from headrace.broker.shards import PartitionJournal, journals, shard_index
from headrace.broker.topics import Topics
from headrace.broker.waits import Waits
from headrace.core.catalog import ConfigSet, Resource, Topic
from headrace.core.catalog import Event as CatalogEvent
from headrace.core.errors import Refused
from headrace.core.shard import ShareShard
from headrace.core.shard_words import (
    Command,
    Event,
    ForgetTopic,
    On,
    Recovered,
    ReleaseMember,
)
from headrace.core.share_group import Timing, TopicView
from headrace.core.share_session import Continue, SessionEnded, SessionEvent, ShareSessions
from headrace.core.share_words import Advanced, LogStartMoved, Policy, Settled, Started
from headrace.log.api import Clock
from headrace.log.record_codec import ShareJournal

log = logging.getLogger("headrace.broker")
STATE_TOPIC = "__share_group_state"

Shard = ShardRuntime[Command, Event]


@dataclass(frozen=True, slots=True)
class _Resolved:
    """A group's settings in the forms that decisions want."""

    settings: GroupSettings
    policy: Policy
    timing: Timing


class Shares:
    """All share groups of a broker; made by `Services`."""

    def __init__(self, config: Config, clock: Clock, topics: Topics, waits: Waits) -> None:
        self.shards: list[Shard] = []
        self.sessions = ShareSessions(config.share_sessions_max)
        self._config = config
        self._clock = clock
        self._topics = topics
        self._waits = waits
        self._resolved: dict[str, _Resolved] = {}
        self._defaults = self._resolved_from({})

    async def open(self) -> None:
        """Create the internal topic when it is new, replay every shard, begin to keep time.

        Raises: OSError; JournalDamaged.
        """
        topics, count = self._topics, self._config.share_state_partitions
        for partition in await journals(topics, STATE_TOPIC, count, {"cleanup.policy": "delete"}):
            shard = self._shard(partition)
            shard.load()
            shard.listeners.append(self._wake)
            self.shards.append(shard)
        topics.listeners.append(self._topics_changed)
        topics.on_deleted.append(self._forget)
        for shard in self.shards:
            shard.start()
            known = {key.topic_id for key in self.machine_of(shard).partitions}
            for deleted in known - topics.catalog.topics_by_id.keys():
                shard.tell(ForgetTopic(deleted))  # the process died between the two journals
        for partition in topics.partitions:
            if partition.is_open:  # as after every death, which may have come between those two too
                self.log_start_moved(partition)

    async def close(self) -> None:
        """Write what is decided and stop keeping time."""
        for shard in self.shards:
            await shard.close()

    def shard(self, group: str) -> Shard:
        """The shard that a group belongs to."""
        return self.shards[shard_index(group, len(self.shards))]

    def machine(self, group: str) -> ShareShard:
        """The state of the shard of a group; changed through `ask` alone."""
        return self.machine_of(self.shard(group))

    @staticmethod
    def machine_of(shard: Shard) -> ShareShard:
        machine = shard.machine
        assert isinstance(machine, ShareShard)
        return machine

    def names(self) -> list[str]:
        """The share groups that there are: they have members, or share-partitions."""
        found: dict[str, None] = {}
        for shard in self.shards:
            machine = self.machine_of(shard)
            found |= {name: None for name, group in machine.groups.items() if group.members}
            found |= {key.group: None for key in machine.partitions}
        return list(found)

    def exists(self, group: str) -> bool:
        """Whether a share group of this name has members or share-partitions."""
        machine = self.machine(group)
        return _has_members(machine, group) or bool(machine.partitions_of(group))

    def has_members(self, group: str) -> bool:
        return _has_members(self.machine(group), group)

    async def ask(self, group: str, command: Command) -> Any:
        """A command to the shard of a group; its reply, or Refused. Raises: StorageFault."""
        return await self.shard(group).ask(command)

    def move(self, command: Continue) -> Sequence[SessionEvent] | Refused:
        """Move a share session by one request."""
        answer = self.sessions.decide(command)
        if not isinstance(answer, Refused):
            for event in answer:
                self.sessions.apply(event)
        return answer

    def disconnected(self, connection_id: int) -> None:
        """End the sessions of a connection that is gone; their records are available again."""
        for event in self.sessions.disconnected(connection_id):
            self.sessions.apply(event)
            assert isinstance(event, SessionEnded)
            group, member = event.key
            self.shard(group).tell(ReleaseMember(group, member))

    def log_start_moved(self, partition: Partition) -> None:
        """Take the share-partitions along whose next records were removed from the log.

        Records in flight below the new start are gone, without dead letters: nothing is left to
        copy. Acknowledging them is no error, and changes nothing.
        """
        start = partition.start_offset
        for shard in self.shards:
            machine = self.machine_of(shard)
            for share in machine.overtaken(partition.key.topic_id, partition.index, start):
                log.warning(
                    "group %s had not finished the records %d to %d of %s-%d, which were removed "
                    "from the log; it goes on at %d",
                    share.key.group,
                    share.start,
                    start - 1,
                    partition.topic.name,
                    partition.index,
                    start,
                )
                shard.tell(On(share.key, LogStartMoved(start)))

    def settings(self, group: str) -> GroupSettings:
        """The settings of a group as they are now."""
        return self._resolve(group).settings

    # ---- what decisions may read of the outside (core.shard_words.Outside)

    def policy(self, group: str) -> Policy:
        return self._resolve(group).policy

    def timing(self, group: str) -> Timing:
        return self._resolve(group).timing

    def starts_earliest(self, group: str) -> bool:
        return self.settings(group).auto_offset_reset == "earliest"

    def topic(self, name: str) -> TopicView | None:
        topic = self._topics.catalog.topics.get(name)
        if topic is None or topic.internal:
            return None
        opened: list[Partition] = []
        for index in range(topic.partitions):
            partition = self._topics.partitions.get(topic.id, index)
            if partition is None:  # it was added a moment ago, and is served once it is open
                break
            opened.append(partition)
        if not opened:
            return None
        try:
            return TopicView(
                topic.id,
                tuple(log.start_offset for log in opened),
                tuple(log.high_watermark for log in opened),
            )
        except OSError:  # one cannot be opened, which the partition tells; ticks must go on
            return None

    def _resolve(self, group: str) -> _Resolved:
        if not self._topics.catalog.configs_of(Resource.GROUP, group):
            return self._defaults  # names that only strangers ask for are not kept
        known = self._resolved.get(group)
        if known is None:
            overrides = self._topics.catalog.configs_of(Resource.GROUP, group)
            known = self._resolved[group] = self._resolved_from(overrides)
        return known

    def _resolved_from(self, overrides: Mapping[str, str]) -> _Resolved:
        config = self._config
        settings = GroupSettings.resolve(config, overrides)
        policy = Policy(
            delivery_limit=settings.share_delivery_count_limit,
            lock_ms=settings.share_lock_ms,
            window=settings.share_record_locks,
            lease_window=config.lease_record_locks,
            dead_letters=bool(settings.dead_letter_topic),
        )
        timing = Timing(
            settings.share_session_timeout_ms,
            settings.share_heartbeat_ms,
            config.share_group_size_max,
        )
        return _Resolved(settings, policy, timing)

    # ---- wiring

    def _shard(self, partition: Partition) -> Shard:
        snapshot_every = self._config.share_updates_per_snapshot
        journal = PartitionJournal(partition)

        def build() -> tuple[ShareShard, ShareJournal]:
            machine = ShareShard(self)
            return machine, ShareJournal(machine, snapshot_every)

        return ShardRuntime(
            f"{STATE_TOPIC}-{partition.index}",
            build,
            journal,
            self._clock,
            fsync=self._config.durability == "fsync",
            recovered=Recovered(),
            sync=journal.durable,
        )

    def _wake(self, events: Sequence[Event]) -> None:
        """Wake polls of a group whose records became available, or whose window has room."""
        waking = Settled | Started | Advanced
        woken = (event.key.group for event in events if isinstance(event, waking))
        for group in dict.fromkeys(woken):
            self._waits.notify(wait_key(group))

    def _forget(self, topic: Topic, by: str) -> None:  # noqa: ARG002  # as all that are told
        for shard in self.shards:
            shard.tell(ForgetTopic(topic.id))

    def _topics_changed(self, events: Sequence[CatalogEvent]) -> None:
        for event in events:
            if isinstance(event, ConfigSet) and event.resource is Resource.GROUP:
                self._resolved.pop(event.name, None)


def wait_key(group: str) -> tuple[str, str]:
    """What a poll waits for besides appends."""
    return ("share group", group)


def _has_members(machine: ShareShard, group: str) -> bool:
    known = machine.groups.get(group)
    return known is not None and bool(known.members)
