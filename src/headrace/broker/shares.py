"""Share groups in the broker: their shards, settings, sessions, and who is woken when.

A group belongs to the shard that its name hashes to, as Kafka maps groups to partitions of an
internal topic; the shard's journal is that partition of `__share_group_state`, which any client can
fetch. The number of shards is fixed when the topic is created.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeGuard, TypeVar, overload
from uuid import UUID

from headrace.broker import archived_log, share_log, share_meters
from headrace.broker.archived_log import ArchivedLog
from headrace.broker.background import in_background
from headrace.broker.config import Config
from headrace.broker.group_settings import GroupSettings
from headrace.broker.loop_turns import Turns
from headrace.broker.partitions import Partition
from headrace.broker.replay import JournalDamaged
from headrace.broker.runtime import ShardRuntime, StorageFault
from headrace.broker.shards import PartitionJournal, all_durable, journals, shard_index
from headrace.broker.share_log import ShareLog
from headrace.broker.share_meters import ShareMeters
from headrace.broker.topics import Topics
from headrace.broker.waits import Waits
from headrace.core.catalog import ConfigSet, Resource, Topic
from headrace.core.catalog import Event as CatalogEvent
from headrace.core.errors import Refused, Why
from headrace.core.runs import State
from headrace.core.shard import ShareShard
from headrace.core.shard_words import (
    AdminCommand,
    Command,
    DeleteShareGroup,
    Event,
    ForgetTopic,
    Forgotten,
    Recovered,
    ReleaseMember,
)
from headrace.core.share_admin import Queue
from headrace.core.share_group import CLOSED, Timing, TopicView
from headrace.core.share_partition import SharePartition
from headrace.core.share_session import (
    Continue,
    SessionEnded,
    SessionEvent,
    SessionKey,
    ShareSessions,
)
from headrace.core.share_words import (
    PORTION_RUNS,
    Advanced,
    Delayed,
    Policy,
    Settled,
    ShareKey,
    Started,
)
from headrace.log.api import Clock
from headrace.log.buggify import buggify
from headrace.log.record_codec import ShareJournal

log = logging.getLogger("headrace.broker")
STATE_TOPIC = "__share_group_state"
EMPTY, STABLE = "Empty", "Stable"  # as Kafka calls the states of share groups

_SHARE_GROUP = "share group"  # what a key of polls begins with
_WOKEN_PORTION = 100  # keys of one turn of the loop, after a rebuild
_WAKING = (Settled, Started, Advanced, Delayed, Forgotten)

T = TypeVar("T")
Shard = ShardRuntime[Command, Event]


class _Offsets(Sequence[int]):
    """One offset of each partition, read when it is used: a heartbeat needs few of them.

    Args:
        partitions: None for one whose log cannot be opened.
    """

    def __init__(self, partitions: Sequence[Partition | None]) -> None:
        self._partitions = partitions

    def __len__(self) -> int:
        return len(self._partitions)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return [CLOSED if one is None else self._offset(one) for one in self._partitions[index]]
        one = self._partitions[index]
        return CLOSED if one is None else self._offset(one)

    @abstractmethod
    def _offset(self, partition: Partition) -> int:
        """Return the offset of one partition."""


class _Starts(_Offsets):
    def _offset(self, partition: Partition) -> int:
        return partition.start_offset


class _Ends(_Offsets):
    def _offset(self, partition: Partition) -> int:
        return partition.high_watermark


@dataclass(frozen=True, slots=True)
class _Logs:
    """The logs of a topic: None for one that cannot be opened; `closed` has why, by its number."""

    partitions: Sequence[Partition | None] = ()
    closed: Mapping[int, str] = field(default_factory=dict)


_NO_LOGS = _Logs(closed=MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class _Resolved:
    """A group's settings in the forms that decisions want."""

    settings: GroupSettings
    policy: Policy
    timing: Timing


class Shares:
    """All share groups of a broker; made by `Services`."""

    def __init__(
        self, config: Config, clock: Clock, topics: Topics, waits: Waits, turns: Turns
    ) -> None:
        self.shards: list[Shard] = []
        self.journals: Sequence[Partition] = ()  # of each shard
        self.sessions = ShareSessions(
            config.share_sessions_max, config.share_sessions_connection_max, self._is_member
        )
        self._finishing: dict[SessionKey, set[asyncio.Task[Any]]] = {}
        self.meters = ShareMeters()
        self._config = config
        self._clock = clock
        self._topics = topics
        self._waits = waits
        self._turns = turns
        self.archived_log = ArchivedLog(clock, topics)
        self._resolved: dict[str, _Resolved] = {}
        self._opened: dict[UUID, _Logs] = {}  # topics whose logs are all open, or refused
        self._resolved_with, self._resolved_of = config, topics.catalog
        self._defaults = self._resolved_from({})

    async def open(self) -> None:
        """Create the internal topic when it is new, replay every shard, begin to keep time.

        Raises: OSError; JournalDamaged.
        """
        topics, count = self._topics, self._config.share_state_partitions
        configs = {
            "cleanup.policy": "delete",
            "segment.bytes": str(self._config.share_state_segment_bytes),
        }
        self.journals = await journals(topics, STATE_TOPIC, count, configs)
        for partition in self.journals:
            shard = self._shard(partition)
            shard.load()
            _require_founded(shard)
            members = ShareLog(self._clock.now)
            shard.listeners.append(self._wake, _WAKING)
            shard.on_rebuilt.append(partial(self._rebuilt, shard))
            shard.listeners.append(self.meters.count, share_meters.COUNTED)
            shard.listeners.append(members.tell, share_log.TOLD)
            shard.listeners.append(self.archived_log.tell, archived_log.TOLD)
            self.shards.append(shard)
        topics.listeners.append(self._topics_changed)
        topics.on_deleted.append(self._forget)
        for shard in self.shards:
            shard.start()
            known = {key.topic_id for key in self.machine_of(shard).partitions}
            for deleted in known - topics.catalog.topics_by_id.keys():
                shard.tell(ForgetTopic(deleted))  # the process died between the two journals

    async def close(self) -> None:
        """Finish ended sessions, write what is decided and stop keeping time."""
        while self._finishing:
            await asyncio.wait([task for tasks in self._finishing.values() for task in tasks])
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

    def walk(self) -> Iterator[tuple[str, str]]:
        """Yield each share group with its state.

        Groups may come and go between two steps. A group may come twice.
        """
        for shard in self.shards:
            machine = self.machine_of(shard)
            for name in machine.walk():
                queue = machine.queue(name)
                if queue.exists:
                    yield name, self.state(queue)

    def exists(self, group: str) -> bool:
        """Whether there is a share group of this name."""
        machine = self.machine(group)
        known = machine.groups.get(group)
        has_members = known is not None and bool(known.members)
        return has_members or bool(machine.partitions_of(group)) or group in machine.retained

    def state(self, queue: Queue) -> str:
        """The state of a group that exists: Empty when nobody works on it."""
        return EMPTY if queue.is_empty(self._clock.now()) else STABLE

    async def durable(self, read: Sequence[Any] = ()) -> Refused | None:
        """Return once all that was decided is durable; refused when the disk fails.

        Args:
            read: The machines that were read with pauses; refused if a fault took one of them back.
        """
        return await all_durable(self.shards, read)

    async def durable_of(self, group: str, read: ShareShard | None = None) -> Refused | None:
        """Return once all that was decided of a group is durable; refused when the disk fails.

        Args:
            read: The machine that was read with pauses; refused if a fault took it back.
        """
        return await all_durable([self.shard(group)], () if read is None else (read,))

    def find(self, group: str) -> Queue:
        """A group as it is now; what is told of it waits for `durable_of`."""
        return self.machine(group).queue(group)

    async def ask(self, group: str, command: Command) -> Any:
        """A command to the shard of a group; its reply, or Refused. Raises: StorageFault."""
        return await self.shard(group).ask(command)

    async def administer(self, command: AdminCommand, by: str) -> Any:
        """A command of an administrator; its reply, or Refused, also when the disk fails."""
        if not isinstance(command, DeleteShareGroup) and buggify("share_admin.portion"):
            command = replace(command, ranges_max=0)
        try:
            answer = await self.ask(command.group, command)
        except StorageFault as fault:
            return Refused(Why.COORDINATOR_GONE, str(fault))
        if not isinstance(answer, Refused):
            share_log.tell_administered(command, answer, by)
        return answer

    def partition(self, key: ShareKey) -> SharePartition | None:
        """A share-partition as it is now."""
        return self.machine(key.group).partitions.get(key)

    def window(self, share: SharePartition) -> int:
        """How many unfinished records a share-partition may have.

        More where leases are at work and no members, which take up to a limit of their own.
        """
        name = share.key.group
        policy = self.policy(name)
        if share.unfinished >= policy.window:
            machine = self.machine(name)
            group = machine.groups.get(name)
            if machine.leases_of(name) and not (group is not None and group.members):
                return policy.lease_window
        return policy.window

    def waiting(self, group: str) -> int:
        """How many polls wait for records of a group."""
        return self._waits.waiting_for(wait_key(group))

    def move(self, command: Continue) -> Sequence[SessionEvent] | Refused:
        """Move a share session by one request; another one may have to give way to it."""
        answer = self.sessions.decide(command)
        if not isinstance(answer, Refused):
            for event in answer:
                if isinstance(event, SessionEnded) and event.key != command.key:
                    self._end(event)
                else:
                    self.sessions.apply(event)
        return answer

    def _is_member(self, key: SessionKey) -> bool:
        group, member = key
        known = self.machine(group).groups.get(group)
        return known is not None and member in known.members

    def _end(self, event: SessionEnded) -> None:
        """End a session; the records of its member are available again."""
        self.sessions.apply(event)
        group, member = event.key
        self.shard(group).tell(ReleaseMember(group, member))

    def finish_session(self, key: SessionKey, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run what an ended session leaves to do, also when its connection is lost meanwhile.

        No other session of the member may acquire records before (`session_finished`): a release
        of what the member has would take them, too.
        """
        task = in_background(work)
        self._finishing.setdefault(key, set()).add(task)
        task.add_done_callback(partial(self._finished, key))
        return task

    def is_finishing(self, key: SessionKey) -> bool:
        """Return whether an ended session of a member still has something to do."""
        return key in self._finishing

    async def session_finished(self, key: SessionKey) -> None:
        """Return once no ended session of a member has anything to do."""
        while tasks := self._finishing.get(key):
            await asyncio.wait(tasks)

    def _finished(self, key: SessionKey, task: asyncio.Task[Any]) -> None:
        tasks = self._finishing[key]
        tasks.discard(task)
        if not tasks:
            del self._finishing[key]

    def disconnected(self, connection_id: int) -> None:
        """End the sessions of a connection that is gone; their records are available again."""
        for event in self.sessions.disconnected(connection_id):
            assert isinstance(event, SessionEnded)
            self._end(event)

    def settings(self, group: str) -> GroupSettings:
        """The settings of a group as they are now."""
        return self._resolve(group).settings

    # ---- what decisions may read of the outside (core.shard_words.Outside)

    def policy(self, group: str) -> Policy:
        return self._resolve(group).policy

    def timing(self, group: str) -> Timing:
        return self._resolve(group).timing

    def starts_earliest(self, group: str) -> bool:
        return self.settings(group).auto_offset_reset != "latest"

    def topic(self, name: str) -> TopicView | None:
        topic = self._topics.catalog.topics.get(name)
        if topic is None or topic.internal:
            return None
        logs = self._opened.get(topic.id, _NO_LOGS)
        if len(logs.partitions) != topic.partitions:
            logs = self._open_partitions(topic)
        if not logs.partitions:
            return None
        return TopicView(topic.id, _Starts(logs.partitions), _Ends(logs.partitions), logs.closed)

    async def open_topics(self, names: Iterable[str]) -> None:
        """Open the logs of topics before a command that looks at all of their partitions.

        One of them after the other, in threads: `topic` would open all in one step.
        """
        found = filter(None, map(self._topics.catalog.topics.get, names))
        closed = [one for one in found if not self._is_known(one)]
        for topic in sorted(closed, key=lambda one: one.name):  # a set has an order of its process
            for index in range(0 if topic.internal else topic.partitions):
                await self._topics.partitions.opened(topic.id, index)

    def require_open(self, names: Iterable[str], *, or_refused: bool = False) -> None:
        """Check that the logs of topics that exist are open; call `open_topics` before.

        Args:
            names: Names of the topics.
            or_refused: Whether a log may also be refused until the next start.

        Raises: OSError of the first log that cannot be opened.
        """
        for topic in filter(None, map(self._topics.catalog.topics.get, names)):
            if self._is_known(topic) and (or_refused or not self._opened[topic.id].closed):
                continue
            for index in range(0 if topic.internal else topic.partitions):
                partition = self._topics.partitions.get(topic.id, index)
                if partition is not None and not (or_refused and partition.refused is not None):
                    _ = partition.log

    def _is_known(self, topic: Topic) -> bool:
        """Return whether each log of a topic is open, or refused until the next start."""
        return len(self._opened.get(topic.id, _NO_LOGS).partitions) == topic.partitions

    def _open_partitions(self, topic: Topic) -> _Logs:
        """Open the first partitions, as many as there are; None for one that cannot be opened."""
        found: list[Partition | None] = []
        closed: dict[int, str] = {}
        is_lasting = True
        for index in range(topic.partitions):
            partition = self._topics.partitions.get(topic.id, index)
            if partition is None:  # it was added a moment ago, and is served once it is open
                break
            try:
                _ = partition.log
            except OSError as error:  # which the partition reports; the others are served
                closed[index] = str(error)
                found.append(None)
                is_lasting = is_lasting and partition.refused is not None
                continue
            found.append(partition)
        logs = _Logs(found, closed)
        if is_lasting and len(found) == topic.partitions:
            self._opened[topic.id] = logs
        return logs

    def _resolve(self, group: str) -> _Resolved:
        catalog, known = self._topics.catalog, self._resolved.get(group)
        is_current = self._resolved_of is catalog and self._resolved_with is self._topics.config
        if is_current and known is not None:
            return known
        if self._resolved_with is not self._topics.config:
            self._resolved_with = self._topics.config
            self._resolved.clear()
            self._defaults = self._resolved_from({})
        if self._resolved_of is not catalog:  # rebuilt after a fault, and without events
            self._resolved_of = catalog
            self._resolved.clear()
        overrides = catalog.configs_of(Resource.GROUP, group) if catalog.configured_groups else None
        if not overrides:
            return self._defaults  # names that only strangers ask for are not kept
        known = self._resolved[group] = self._resolved_from(overrides)
        return known

    def _resolved_from(self, overrides: Mapping[str, str]) -> _Resolved:
        config = self._resolved_with
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
            settings.share_assignment_interval_ms,
        )
        return _Resolved(settings, policy, timing)

    # ---- wiring

    def _shard(self, partition: Partition) -> Shard:
        snapshot_every = self._config.share_updates_per_snapshot
        journal = PartitionJournal(partition)

        def build() -> tuple[ShareShard, ShareJournal]:
            machine = ShareShard(self)
            return machine, ShareJournal(machine, snapshot_every, pruned=journal.start_offset > 0)

        return ShardRuntime(
            f"{STATE_TOPIC}-{partition.index}",
            build,
            journal,
            self._clock,
            fsync=self._config.durability == "fsync",
            recovered=Recovered(1 if buggify("share_recovery.portion") else PORTION_RUNS),
            sync=journal.durable,
            roll=journal.roll_ready,
            turns=self._turns,
        )

    def _wake(self, events: Sequence[Event]) -> None:
        """Wake polls of a group whose records became available, or whose window has room again.

        Accepting goes on all the time. Where the window had room before, who waits has looked at
        all there is: hundreds of members that look in vain would take most of the broker's time.
        """
        woken: dict[str, None] = {}
        accepted, key, keys = 0, None, dict[ShareKey, None]()
        for event in events:
            if type(event) is Settled and event.state is State.ACKNOWLEDGED:
                accepted += len(event.span)
                if event.key is not key:
                    key = event.key
                    keys[key] = None
            elif isinstance(event, _WAKING):
                woken[event.key.group] = None
        for key in keys:
            if key.group not in woken and self._was_full(key, accepted):
                woken[key.group] = None
        for group in woken:
            self._waits.notify(wait_key(group))

    def _rebuilt(self, shard: Shard) -> None:
        in_background(self._wake_all(shard))

    async def _wake_all(self, shard: Shard) -> None:
        """Wake the polls of a shard's groups, a portion in each turn of the loop.

        A rebuild makes records available that were acquired, and there is no event of that.
        """
        for number, key in enumerate(self._waits.keys(), 1):
            if is_wait_key(key) and self.shard(key[1]) is shard:
                self._waits.notify(key)
            if number % _WOKEN_PORTION == 0:
                await asyncio.sleep(0)

    def _was_full(self, key: ShareKey, accepted: int) -> bool:
        """Whether a share-partition took nothing new, for some, before so many were accepted."""
        share, policy = self.partition(key), self.policy(key.group)
        before = accepted if share is None else share.unfinished + accepted
        return before >= min(policy.window, policy.lease_window)

    def _forget(self, topic: Topic, by: str) -> None:  # noqa: ARG002  # as all that are told
        self._opened.pop(topic.id, None)
        for shard in self.shards:
            shard.tell(ForgetTopic(topic.id))

    def _topics_changed(self, events: Sequence[CatalogEvent]) -> None:
        for event in events:
            if isinstance(event, ConfigSet) and event.resource is Resource.GROUP:
                self._resolved.pop(event.name, None)


def _require_founded(shard: Shard) -> None:
    """Raises: JournalDamaged where the journal tells of changes to what it does not tell of."""
    codec = shard.codec
    assert isinstance(codec, ShareJournal)
    if codec.unfounded:
        key = min(codec.unfounded)
        raise JournalDamaged(f"{shard.name}: updates of {key} without a snapshot of it")


def wait_key(group: str) -> tuple[str, str]:
    """What a poll waits for besides appends."""
    return (_SHARE_GROUP, group)


def is_wait_key(key: Hashable) -> TypeGuard[tuple[str, str]]:
    """Return whether polls of a share group wait for this."""
    return isinstance(key, tuple) and key[0] == _SHARE_GROUP
