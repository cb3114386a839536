"""Settings of topics, brokers and groups: describe and change them.

Source: DescribeConfigs (KIP-133, KIP-226), IncrementalAlterConfigs (KIP-339, groups by KIP-848),
ListConfigResources (KIP-1142).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from headrace.client.connection import Address, Cluster
from headrace.client.errors import STORAGE_ERRORS, check
from headrace.client.nodes import brokers

_DESCRIBE_CONFIGS, _DESCRIBE_CONFIGS_VERSION = 32, 4
_ALTER_CONFIGS, _ALTER_CONFIGS_VERSION = 44, 1
_LIST_RESOURCES, _LIST_RESOURCES_VERSION = 74, 1
_LIST_GROUPS, _LIST_GROUPS_VERSION = 16, 4
_SET, _DELETE = 0, 1


class ResourceType(IntEnum):
    """What can have settings, as numbered by Kafka's ConfigResource."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a value comes from, as numbered by DescribeConfigs."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8

    @classmethod
    def _missing_(cls, value: object) -> "ConfigSource":  # noqa: ARG003 -- called by Enum
        """A number from the future."""
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A setting that stands behind another one, in order of precedence."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting as it holds; `value` is None when it is unset or secret."""

    name: str
    value: str | None
    source: ConfigSource
    sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]


def describe_configs(cluster: Cluster, kind: ResourceType, name: str) -> list[ConfigEntry]:
    """Every setting of one resource, in the broker's order.

    Raises: `BrokerError` when there is no such resource; otherwise as `Cluster`.
    """
    what = f"describing the settings of {kind.name.lower()} {name!r}"
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    request = {
        "resources": [resource],
        "include_synonyms": True,
        "include_documentation": False,
    }

    def attempt() -> list[ConfigEntry]:
        address = _address(cluster, kind, name)
        answer = cluster.ask(_DESCRIBE_CONFIGS, _DESCRIBE_CONFIGS_VERSION, request, address=address)
        found = answer.results[0]
        check(found.error_code, what, found.error_message)
        return [_entry(one) for one in found.configs]

    return cluster.retrying(what, attempt)


def alter_configs(
    cluster: Cluster,
    kind: ResourceType,
    name: str,
    *,
    values: Mapping[str, str],
    delete: Iterable[str] = (),
) -> None:
    """Set `values` and return the settings in `delete` to their defaults; all of it or nothing.

    Raises: `BrokerError` 40 for a name or value that the broker refuses; otherwise as `Cluster`.
    """
    changes = [
        {"name": key, "config_operation": _SET, "value": value} for key, value in values.items()
    ]
    changes += [{"name": key, "config_operation": _DELETE, "value": None} for key in delete]
    what = f"setting {', '.join(str(one['name']) for one in changes)} of {kind.name.lower()} "
    what += repr(name)
    resource = {"resource_type": kind, "resource_name": name, "configs": changes}
    request = {"resources": [resource], "validate_only": False}

    def attempt() -> None:
        address = _address(cluster, kind, name)
        answer = cluster.ask(_ALTER_CONFIGS, _ALTER_CONFIGS_VERSION, request, address=address)
        check(answer.responses[0].error_code, what, answer.responses[0].error_message)

    cluster.retrying(what, attempt, final=STORAGE_ERRORS)


def set_group_configs(cluster: Cluster, group: str, configs: Mapping[str, str]) -> None:
    """Set settings of a group by Kafka's names, e.g. `share.record.lock.duration.ms`.

    Raises: as `alter_configs`.
    """
    alter_configs(cluster, ResourceType.GROUP, group, values=configs)


def groups_with_configs(cluster: Cluster) -> list[str]:
    """Names of the groups that exist or have settings of their own, sorted.

    Raises: `Unsupported` when the broker can list neither; otherwise as `Cluster`.
    """

    def attempt() -> list[str]:
        found: set[str] = set()
        listed = cluster.offers(_LIST_RESOURCES, _LIST_RESOURCES_VERSION)
        if listed:
            request = {"resource_types": [ResourceType.GROUP]}
            answer = cluster.ask(_LIST_RESOURCES, _LIST_RESOURCES_VERSION, request)
            check(answer.error_code, "listing groups with settings")
            found.update(one.resource_name for one in answer.config_resources)
        if not listed or cluster.offers(_LIST_GROUPS, _LIST_GROUPS_VERSION):
            answer = cluster.ask(_LIST_GROUPS, _LIST_GROUPS_VERSION, {"states_filter": []})
            check(answer.error_code, "listing groups")
            found.update(one.group_id for one in answer.groups)
        return sorted(found)

    return cluster.retrying("listing groups", attempt)


def _address(cluster: Cluster, kind: ResourceType, name: str) -> Address | None:
    """Return the address of the broker that has to answer; None: any broker.

    Kafka refuses requests for the settings of one broker at all others. In a cluster of one broker
    the bootstrap server is that broker, also where its advertised address cannot be reached.
    """
    if kind is not ResourceType.BROKER or not name:
        return None
    nodes = brokers(cluster)
    named = [node.address for node in nodes if str(node.id) == name]
    return named[0] if named and len(nodes) > 1 else None


def _entry(one: Any) -> ConfigEntry:
    synonyms = tuple(
        ConfigSynonym(other.name, other.value, ConfigSource(other.source)) for other in one.synonyms
    )
    return ConfigEntry(
        one.name, one.value, ConfigSource(one.config_source), one.is_sensitive, synonyms
    )
