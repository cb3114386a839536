"""The catalogue: topics, configuration of topics, groups and this broker, producer ids given out.

Every event is one record of the journal (`log/metadata_records.py`), and nothing is volatile: state
rebuilt from the journal equals live state. Whether a configuration value makes sense is decided
before it comes here (`broker/config.py`); the catalogue keeps it.
Source: Kafka's KRaft metadata records; `Topic.java` for the rules of names.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import assert_never
from uuid import UUID

from headrace.core.errors import Refused, Why
from headrace.core.machine import Decided
from headrace.core.types import MonoMs, Now

METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset({"__share_group_state", METADATA_TOPIC, "__consumer_offsets"})
PARTITIONS_MAX = 10_000
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NO_CONFIGS: Mapping[str, str] = MappingProxyType({})


class Resource(IntEnum):
    """What a configuration belongs to; numbers are those of Kafka's ConfigResource."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


@dataclass(slots=True)
class Topic:
    """A topic; its partitions are 0 to `partitions` - 1."""

    name: str
    id: UUID
    partitions: int = 0

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Reply: the topic as created (or as it would be, with `validate_only`)."""

    name: str
    topic_id: UUID
    partitions: int
    configs: Mapping[str, str]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Reply: the topic as it was. `by` tells people who asked."""

    topic_id: UUID
    by: str = ""


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Raise the number of partitions to `total`. Reply: the topic."""

    name: str
    total: int
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class SetConfigs:
    """Set configuration values; None takes one back to its default. Reply: None."""

    resource: Resource
    name: str
    values: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """Reply: a range of `count` producer ids that nobody was given before."""

    count: int


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """A topic without partitions; those follow."""

    name: str
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """Partitions `first` to `last` of a topic; each is a record of its own in the journal."""

    topic_id: UUID
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """The topic, its partitions and its configuration are gone."""

    topic_id: UUID


@dataclass(frozen=True, slots=True)
class ConfigSet:
    """A setting of a resource has this value; None: its default."""

    resource: Resource
    name: str
    key: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ProducerIdsAllocated:
    """Every id below `next_id` may have been given out."""

    next_id: int


Command = CreateTopic | DeleteTopic | AddPartitions | SetConfigs | AllocateProducerIds
Event = TopicCreated | PartitionsAdded | TopicDeleted | ConfigSet | ProducerIdsAllocated


class Catalog:
    """The machine; its fields are read by everybody and changed by `apply` alone."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[UUID, Topic] = {}
        self.configs: dict[tuple[Resource, str], dict[str, str]] = {}
        self.configured_groups = 0  # groups in `configs`
        self.next_producer_id = 0

    def configs_of(self, resource: Resource, name: str) -> Mapping[str, str]:
        """The values that were set for a resource, without defaults; "" is every broker."""
        return self.configs.get((resource, name), _NO_CONFIGS)

    def decide(
        self,
        command: Command,
        now: Now,  # noqa: ARG002  # asked by Machine
    ) -> Decided[Event] | Refused:
        """What the command makes true, or why it does not."""
        match command:
            case CreateTopic():
                return self._create(command)
            case DeleteTopic(topic_id):
                topic = self.topics_by_id.get(topic_id)
                if topic is None:
                    return Refused(Why.UNKNOWN_TOPIC, f"no topic has the id {topic_id}")
                if topic.internal:
                    return Refused(Why.INVALID_TOPIC, f"{topic.name} is internal")
                return Decided([TopicDeleted(topic_id)], topic)
            case AddPartitions():
                return self._add_partitions(command)
            case SetConfigs(resource, name, values):
                if resource is Resource.TOPIC and name not in self.topics:
                    return Refused(Why.UNKNOWN_TOPIC, f"topic {name!r} does not exist")
                return Decided([ConfigSet(resource, name, key, values[key]) for key in values])
            case AllocateProducerIds(count):
                first = self.next_producer_id
                allocated = ProducerIdsAllocated(first + count)
                return Decided([allocated], range(first, first + count))
            case _:
                assert_never(command)

    def _create(self, command: CreateTopic) -> Decided[Event] | Refused:
        refusal = self._refused_name(command.name) or _refused_count(command.partitions)
        if refusal is not None:
            return refusal
        events: list[Event] = [
            TopicCreated(command.name, command.topic_id),
            PartitionsAdded(command.topic_id, 0, command.partitions - 1),
        ]
        events += [
            ConfigSet(Resource.TOPIC, command.name, key, value)
            for key, value in command.configs.items()
        ]
        topic = Topic(command.name, command.topic_id, command.partitions)
        return Decided([] if command.validate_only else events, topic)

    def _refused_name(self, name: str) -> Refused | None:
        if name == METADATA_TOPIC:
            return Refused(Why.INVALID_TOPIC, f"{name!r} is the catalogue's own journal")
        if name in self.topics:
            return Refused(Why.TOPIC_EXISTS, f"topic {name!r} already exists")
        if not is_topic_name(name):
            rule = "1 to 249 of a-z A-Z 0-9 . _ -, and not . or .."
            return Refused(Why.INVALID_TOPIC, f"{name!r} is no topic name: it must be {rule}")
        # Kafka's metric names turn "." into "_", so it lets no two topics differ in that alone.
        if "." in name or "_" in name:
            twin = next(
                (t for t in self.topics if t.replace(".", "_") == name.replace(".", "_")), ""
            )
            if twin:
                return Refused(Why.INVALID_TOPIC, f"{name!r} collides with existing topic {twin!r}")
        return None

    def _add_partitions(self, command: AddPartitions) -> Decided[Event] | Refused:
        topic = self.topics.get(command.name)
        if topic is None:
            return Refused(Why.UNKNOWN_TOPIC, f"topic {command.name!r} does not exist")
        if topic.internal:
            return Refused(Why.INVALID_TOPIC, f"{topic.name} is internal")
        if command.total <= topic.partitions:
            message = (
                f"{topic.name} has {topic.partitions} partitions; {command.total} is no increase"
            )
            return Refused(Why.INVALID_PARTITIONS, message)
        refusal = _refused_count(command.total)
        if refusal is not None:
            return refusal
        added = PartitionsAdded(topic.id, topic.partitions, command.total - 1)
        return Decided([] if command.validate_only else [added], topic)

    def apply(self, event: Event) -> None:
        """Make an event true; the only place where the catalogue changes."""
        match event:
            case TopicCreated(name, topic_id):
                topic = Topic(name, topic_id)
                self.topics[name] = self.topics_by_id[topic_id] = topic
            case PartitionsAdded(topic_id, _, last):
                topic = self.topics_by_id[topic_id]
                topic.partitions = max(topic.partitions, last + 1)
            case TopicDeleted(topic_id):
                topic = self.topics_by_id.pop(topic_id)
                del self.topics[topic.name]
                self.configs.pop((Resource.TOPIC, topic.name), None)
            case ConfigSet(resource, name, key, value):
                was_configured = (resource, name) in self.configs
                values = self.configs.setdefault((resource, name), {})
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = value
                if not values:
                    del self.configs[resource, name]
                if resource is Resource.GROUP:
                    self.configured_groups += bool(values) - was_configured
            case ProducerIdsAllocated(next_id):
                self.next_producer_id = next_id
            case _:
                assert_never(event)

    def events(self) -> list[Event]:
        """What makes an empty catalogue this one: its state, as few events as can be."""
        found: list[Event] = []
        for topic in self.topics.values():
            found.append(TopicCreated(topic.name, topic.id))
            found.append(PartitionsAdded(topic.id, 0, topic.partitions - 1))
        for (resource, name), values in self.configs.items():
            found += [ConfigSet(resource, name, key, value) for key, value in values.items()]
        if self.next_producer_id:
            found.append(ProducerIdsAllocated(self.next_producer_id))
        return found

    @property
    def size(self) -> int:
        """How many records `events` makes."""
        partitions = sum(topic.partitions for topic in self.topics.values())
        return len(self.topics) + partitions + sum(map(len, self.configs.values())) + 1

    def next_deadline(self) -> MonoMs | None:
        """Time alone changes nothing here."""
        return None

    def tick(self, now: Now) -> Sequence[Event]:  # noqa: ARG002  # asked by Machine
        return []


def is_topic_name(name: str) -> bool:
    """Whether a topic may be called so."""
    return bool(_NAME.fullmatch(name)) and name not in {".", ".."}


def _refused_count(partitions: int) -> Refused | None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        message = f"{partitions} partitions; 1 to {PARTITIONS_MAX} are possible"
        return Refused(Why.INVALID_PARTITIONS, message)
    return None
