"""What a Kafka message names (topics, partitions, groups, members), found by its schema.

All messages have their topics, partitions and groups in arrays of structures; the names of the
fields differ, what they stand for does not. So one walk serves all APIs and versions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any
from uuid import UUID

from headrace.wire.codec import unwrapped

ERROR = "error_code"
_TOPIC_NAMES = ("topic_name", "topic", "name")
_PARTITIONS = ("partition_index", "partition", "index", "partition_id")
_PARTITION_LISTS = frozenset({"partitions", "partition_indexes"})
_MEMBERS = frozenset({"member_id", "group_instance_id"})
_TOPIC_LISTS = frozenset({"topics", "topic_names"})
_TOPIC_RESOURCE, _GROUP_RESOURCE = 2, 32  # of DescribeConfigs
_GROUP_KEY = 0  # of FindCoordinator


class Kind(Enum):
    """What a structure in an array stands for."""

    TOPIC = "topic"
    PARTITION = "partition"
    GROUP = "group"
    MEMBER = "member"
    COORDINATOR = "coordinator"
    RESOURCE = "resource"


@dataclass(slots=True)
class Item:
    """A thing that a message names, by the values of the fields that say which it is."""

    kind: Kind
    names: Mapping[str, Any]
    items: list["Item"] = field(default_factory=list)


@cache
def kind_of(schema: Any) -> Kind | None:
    """What a structure stands for, by its fields."""
    types = {one.name: unwrapped(one.type)[0].__name__ for one in fields(schema)}
    if "resource_type" in types:
        return Kind.RESOURCE
    if not types.keys().isdisjoint({"topic", "topic_name", "topic_id"}):
        return Kind.TOPIC
    if types.get("name") == "TopicName":
        return Kind.TOPIC
    if not types.keys().isdisjoint(_PARTITIONS):
        return Kind.PARTITION
    if types.get("group_id") == "GroupId":
        return Kind.GROUP
    if "member_id" in types and schema.__name__ == "MemberIdentity":
        return Kind.MEMBER
    if schema.__name__ == "MemberResponse":
        return Kind.MEMBER
    return Kind.COORDINATOR if {"key", ERROR} <= types.keys() else None


def items_of(message: Any) -> list[Item]:
    """What a decoded message names in its arrays, as a tree."""
    found: list[Item] = []
    for one in fields(message):
        value = getattr(message, one.name)
        inner, is_array, _ = unwrapped(one.type)
        if not is_array or not value:
            continue
        if is_dataclass(inner):
            kind = kind_of(inner)  # type: ignore[arg-type]  # classes are hashable
            if kind is not None:
                found += [Item(kind, _identity(part, kind), items_of(part)) for part in value]
        else:
            found += _scalars(one.name, inner.__name__, value)
    return found


@cache
def identity_fields(schema: Any, kind: Kind) -> Sequence[str]:
    """The fields of a structure that say which one it is."""
    names = [one.name for one in fields(schema)]
    match kind:
        case Kind.TOPIC:
            first = next((name for name in _TOPIC_NAMES if name in names), None)
            return [name for name in (first, "topic_id") if name in names and name is not None]
        case Kind.PARTITION:
            return [next(name for name in _PARTITIONS if name in names)]
        case Kind.GROUP:
            return ["group_id"]
        case Kind.MEMBER:
            return [name for name in names if name in _MEMBERS]
        case Kind.COORDINATOR:
            return ["key"]
        case Kind.RESOURCE:
            return ["resource_type", "resource_name"]


def _identity(part: Any, kind: Kind) -> dict[str, Any]:
    fields_named = identity_fields(type(part), kind)  # type: ignore[arg-type]  # it is hashable
    values = {name: getattr(part, name) for name in fields_named}
    if kind is Kind.TOPIC:
        name = next((values[one] for one in _TOPIC_NAMES if one in values), None)
        return {"name": name, "topic_id": values.get("topic_id")}
    if kind is Kind.PARTITION:
        return {"partition": next(iter(values.values()))}
    return values


def _scalars(name: str, type_name: str, values: Sequence[Any]) -> list[Item]:
    if name in _PARTITION_LISTS:
        return [Item(Kind.PARTITION, {"partition": one}) for one in values]
    if name in _TOPIC_LISTS and type_name == "TopicName":
        return [Item(Kind.TOPIC, {"name": one, "topic_id": None}) for one in values]
    if type_name == "GroupId":
        return [Item(Kind.GROUP, {"group_id": one}) for one in values]
    if name == "coordinator_keys":
        return [Item(Kind.COORDINATOR, {"key": one}) for one in values]
    return []


def without(message: Any, drop: Callable[[Item], bool]) -> dict[str, Any]:
    """A decoded message as fields for the codec, without the things that `drop` says."""
    values: dict[str, Any] = {}
    for one in fields(message):
        value = values[one.name] = getattr(message, one.name)
        inner, is_array, _ = unwrapped(one.type)
        if value is None:
            continue
        if is_dataclass(inner):
            kind = kind_of(inner) if is_array else None  # type: ignore[arg-type]  # classes are hashable
            parts = value if is_array else (value,)
            if kind is not None:
                parts = [part for part in parts if not drop(Item(kind, _identity(part, kind)))]
            left = [without(part, drop) for part in parts]
            values[one.name] = left if is_array else left[0]
        elif is_array and (items := _scalars(one.name, inner.__name__, value)):
            kept = zip(value, items, strict=True)
            values[one.name] = [part for part, item in kept if not drop(item)]
    return values


def kinds_named(schema: Any) -> set[str]:
    """Which of topic, group and member a message can name, given its schema."""
    found: set[str] = set()
    for one in fields(schema):
        inner, _, _ = unwrapped(one.type)
        if is_dataclass(inner):
            found |= kinds_named(inner)
        elif inner.__name__ == "TopicName" or one.name == "topic_id":
            found.add("topic")
        elif inner.__name__ == "GroupId" or one.name in ("coordinator_keys", "key"):
            found.add("group")
        elif one.name in _MEMBERS:
            found.add("member")
        elif one.name == "resource_type":
            found |= {"topic", "group"}
    return found


@dataclass(slots=True)
class Named:
    """All topics, groups and members that a request is about."""

    topics: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    members: set[str] = field(default_factory=set)

    def add(self, message: Any, topic_names: Mapping[UUID, str]) -> None:
        """Add what a decoded request names, topics by their ids too."""
        for one in fields(message):
            value = getattr(message, one.name)
            inner, is_array, _ = unwrapped(one.type)
            values: Iterable[Any] = (value or ()) if is_array else (value,)
            for part in values:
                if part is None:
                    continue
                if is_dataclass(inner):
                    self.add(part, topic_names)
                elif inner.__name__ == "TopicName":
                    self.topics.add(part)
                elif one.name == "topic_id" and part in topic_names:
                    self.topics.add(topic_names[part])
                elif inner.__name__ == "GroupId":
                    self.groups.add(part)
                elif one.name in _MEMBERS and part:
                    self.members.add(part)
        self._add_others(message)

    def _add_others(self, message: Any) -> None:
        """What has a type beside it that says what it is."""
        kind = getattr(message, "resource_type", None)
        if kind == _TOPIC_RESOURCE:
            self.topics.add(message.resource_name)
        elif kind == _GROUP_RESOURCE:
            self.groups.add(message.resource_name)
        is_search = type(message).__name__ == "FindCoordinatorRequest"
        if is_search and getattr(message, "key_type", _GROUP_KEY) == _GROUP_KEY:
            keys = getattr(message, "coordinator_keys", None) or [getattr(message, "key", "")]
            self.groups.update(keys)
