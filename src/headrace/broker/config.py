"""Settings: Kafka's names, defaults and bounds in one table each for broker, groups and topics.

A setting is declared once, as a field of a frozen dataclass; parsing, the answers of
DescribeConfigs and the reference in the documentation are made from the declaration. Names that
the proposal of share groups used are accepted as aliases.
Source: Kafka 4.3 broker, group and topic configuration; KIP-932; names with `headrace.` are ours.
"""

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_LOCKS_MAX = 100_000_000


class ConfigError(ValueError):
    """A setting that is unknown or out of bounds; the message is one line that says what is."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: how it is spelled, what it may be, and what it does."""

    name: str
    default: Any
    doc: str
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    def parse(self, text: str) -> Any:
        """The value that `text` spells. Raises: ConfigError, naming the bound."""
        text = text.strip()
        if isinstance(self.default, bool):
            if text.lower() not in {"true", "false"}:
                raise ConfigError(f"{self.name}: {text!r} is neither true nor false")
            return text.lower() == "true"
        if isinstance(self.default, int):
            return self._integer(text)
        if self.choices and text not in self.choices:
            raise ConfigError(f"{self.name}: {text!r} is none of {', '.join(self.choices)}")
        return text

    def _integer(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ConfigError(f"{self.name}: {text!r} is not a whole number") from None
        if self.low is not None and value < self.low:
            raise ConfigError(f"{self.name}: {value} is below the minimum of {self.low}")
        if self.high is not None and value > self.high:
            raise ConfigError(f"{self.name}: {value} is above the maximum of {self.high}")
        return value


def _setting(name: str, default: Any, doc: str, **rules: Any) -> Any:
    return dataclasses.field(
        default=default, metadata={"setting": Setting(name, default, doc, **rules)}
    )


def spelled(value: Any) -> str:
    """A value as configuration files and DescribeConfigs spell it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Table:
    """What every settings dataclass can do."""

    __slots__ = ()

    @classmethod
    def settings(cls) -> dict[str, Setting]:
        """Field name to declaration, in order."""
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # subclasses are dataclasses
        return {field.name: field.metadata["setting"] for field in fields}

    @classmethod
    def find(cls, name: str) -> tuple[str, Setting]:
        """Field and declaration of a setting by its name or alias. Raises: ConfigError."""
        for field, setting in cls.settings().items():
            if name == setting.name or name in setting.aliases:
                return field, setting
        known = [n for s in cls.settings().values() for n in (s.name, *s.aliases)]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"there is no setting {name!r}{hint}")

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Settings from names and texts, the rest at its default. Raises: ConfigError."""
        given: dict[str, Any] = {}
        for name, text in values.items():
            field, setting = cls.find(name)
            if field in given:
                raise ConfigError(f"{setting.name} is set twice, once under another name")
            given[field] = setting.parse(text)
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Config(_Table):
    """The settings of a broker. Raises: ConfigError when they contradict each other."""

    node_id: int = _setting("node.id", 1, "Number of this broker.", low=0, high=_INT_MAX)
    advertised_host: str = _setting(
        "advertised.host", "", "Host name clients are told to connect to; empty: the bound one."
    )
    num_partitions: int = _setting(
        "num.partitions", 1, "Partitions of a topic created without a number.", low=1, high=10_000
    )
    auto_create_topics: bool = _setting(
        "auto.create.topics.enable", True, "Create a topic when metadata of it is asked for."
    )
    message_max_bytes: int = _setting(
        "message.max.bytes", 1_048_588, "Largest record batch accepted.", low=0, high=_INT_MAX
    )
    request_max_bytes: int = _setting(
        "socket.request.max.bytes", 104_857_600, "Largest request accepted.", low=1, high=_INT_MAX
    )
    connections_max: int = _setting(
        "max.connections", 10_000, "Connections open at a time.", low=1, high=_INT_MAX
    )
    waits_max: int = _setting(
        "headrace.max.waits", 10_000, "Long polls waiting at a time.", low=1, high=_INT_MAX
    )
    fetch_max_bytes: int = _setting(
        "fetch.max.bytes", 57_671_680, "Most bytes in one fetch response.", low=1024, high=_INT_MAX
    )
    segment_bytes: int = _setting(
        "log.segment.bytes", 1_073_741_824, "Size at which a segment is full.",
        low=1024, high=_INT_MAX,
    )  # fmt: skip
    durability: str = _setting(
        "headrace.durability", "os",
        "What an answer waits for: os = written to the operating system; fsync = on the disk.",
        choices=("os", "fsync"),
    )  # fmt: skip
    share_group_enable: bool = _setting("share.group.enable", True, "Serve share groups.")
    share_delivery_count_limit: int = _setting(
        "group.share.delivery.count.limit", 5, "Deliveries of a record before it is archived.",
        low=2, high=25, aliases=("share.delivery.count.limit", "share.delivery.attempt.limit"),
    )  # fmt: skip
    share_delivery_count_limit_min: int = _setting(
        "group.share.min.delivery.count.limit", 2, "Lowest limit a group may set.", low=2, high=5
    )
    share_delivery_count_limit_max: int = _setting(
        "group.share.max.delivery.count.limit", 10, "Highest limit a group may set.", low=5, high=25
    )
    share_lock_ms: int = _setting(
        "group.share.record.lock.duration.ms", 30_000, "Duration of an acquisition lock.",
        low=1000, high=3_600_000, aliases=("share.record.lock.duration.ms",),
    )  # fmt: skip
    share_lock_ms_min: int = _setting(
        "group.share.min.record.lock.duration.ms", 1000,
        "Shortest lock a group may set (15000 in Kafka, 1000 in the proposal).",
        low=1000, high=30_000,
    )  # fmt: skip
    share_lock_ms_max: int = _setting(
        "group.share.max.record.lock.duration.ms", 60_000, "Longest lock a group may set.",
        low=1000, high=3_600_000, aliases=("share.record.lock.duration.max.ms",),
    )  # fmt: skip
    share_record_locks: int = _setting(
        "group.share.partition.max.record.locks", 2000, "Records in flight per share-partition.",
        low=100, high=_LOCKS_MAX, aliases=("share.record.lock.partition.limit",),
    )  # fmt: skip
    share_record_locks_min: int = _setting(
        "group.share.min.partition.max.record.locks", 100, "Lowest in-flight limit of a group.",
        low=100, high=_LOCKS_MAX,
    )  # fmt: skip
    share_record_locks_max: int = _setting(
        "group.share.max.partition.max.record.locks", _LOCKS_MAX,
        "Highest in-flight limit of a group (4000 in Kafka).", low=100, high=_LOCKS_MAX,
    )  # fmt: skip
    lease_record_locks: int = _setting(
        "headrace.lease.partition.max.record.locks", 1_000_000,
        "Records in flight per share-partition for holders of leases.", low=100, high=_LOCKS_MAX,
    )  # fmt: skip
    share_sessions_max: int = _setting(
        "group.share.max.share.sessions", 2000, "Share sessions open at a time.",
        low=1, high=_INT_MAX,
    )  # fmt: skip
    share_group_size_max: int = _setting(
        "group.share.max.size", 200, "Members of a share group.", low=1, high=1000
    )
    share_session_timeout_ms: int = _setting(
        "group.share.session.timeout.ms", 45_000, "Silence after which a member is removed.",
        low=1, high=_INT_MAX,
    )  # fmt: skip
    share_session_timeout_ms_min: int = _setting(
        "group.share.min.session.timeout.ms", 45_000, "Shortest timeout a group may set.",
        low=1, high=_INT_MAX,
    )  # fmt: skip
    share_session_timeout_ms_max: int = _setting(
        "group.share.max.session.timeout.ms", 60_000, "Longest timeout a group may set.",
        low=1, high=_INT_MAX,
    )  # fmt: skip
    share_heartbeat_ms: int = _setting(
        "group.share.heartbeat.interval.ms", 5000, "Pause between heartbeats of a member.",
        low=1, high=_INT_MAX,
    )  # fmt: skip
    share_heartbeat_ms_min: int = _setting(
        "group.share.min.heartbeat.interval.ms", 5000, "Shortest pause a group may set.",
        low=1, high=_INT_MAX,
    )  # fmt: skip
    share_heartbeat_ms_max: int = _setting(
        "group.share.max.heartbeat.interval.ms", 15_000, "Longest pause a group may set.",
        low=1, high=_INT_MAX,
    )  # fmt: skip
    share_state_partitions: int = _setting(
        "share.coordinator.state.topic.num.partitions", 1,
        "Shards of share groups; fixed when the data folder is new.", low=1, high=1000,
    )  # fmt: skip
    share_updates_per_snapshot: int = _setting(
        "share.coordinator.snapshot.update.records.per.snapshot", 500,
        "State updates written between two snapshots of a share-partition.", low=0, high=500,
    )  # fmt: skip
    dead_letter_auto_create: bool = _setting(
        "errors.deadletterqueue.auto.create.topics.enable", True,
        "Create the dead letter topic of a group when it is first needed.",
    )  # fmt: skip
    dead_letter_prefix: str = _setting(
        "errors.deadletterqueue.topic.name.prefix", "dlq.",
        "What the name of a dead letter topic must begin with to be created automatically.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name in _RANGED:
            value = getattr(self, name)
            low, high = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            settings = self.settings()
            shown = settings[name].name
            if value < low:
                bound = settings[f"{name}_min"].name
                raise ConfigError(f"{shown}: {value} is below {bound}, which is {low}")
            if value > high:
                bound = settings[f"{name}_max"].name
                raise ConfigError(f"{shown}: {value} is above {bound}, which is {high}")
        if self.share_heartbeat_ms >= self.share_session_timeout_ms:
            raise ConfigError(
                "group.share.heartbeat.interval.ms must be below group.share.session.timeout.ms"
            )


# Settings whose bounds are settings themselves; a group's own value is clamped to them.
_RANGED = (
    "share_delivery_count_limit",
    "share_lock_ms",
    "share_record_locks",
    "share_session_timeout_ms",
    "share_heartbeat_ms",
)


@dataclass(frozen=True, slots=True)
class GroupSettings(_Table):
    """The settings of one group: those set for it (resource type GROUP), then the broker's."""

    group_type: str = _setting(
        "group.type", "", "Fixes the type of a group before its first member; empty: either.",
        choices=("", "consumer", "share"),
    )  # fmt: skip
    auto_offset_reset: str = _setting(
        "share.auto.offset.reset", "latest", "Where a new subscription starts.",
        choices=("latest", "earliest"),
    )  # fmt: skip
    isolation_level: str = _setting(
        "share.isolation.level", "read_uncommitted", "Whether aborted records are delivered.",
        choices=("read_uncommitted", "read_committed"),
    )  # fmt: skip
    renew_enable: bool = _setting(
        "share.renew.acknowledge.enable", True, "Allow members to renew acquisition locks."
    )
    share_delivery_count_limit: int = _setting(
        "share.delivery.count.limit", 5, "Deliveries of a record before it is archived.",
        low=2, aliases=("share.delivery.attempt.limit",),
    )  # fmt: skip
    share_lock_ms: int = _setting(
        "share.record.lock.duration.ms", 30_000, "Duration of an acquisition lock.",
        low=1000, aliases=("record.lock.duration.ms",),
    )  # fmt: skip
    share_record_locks: int = _setting(
        "share.partition.max.record.locks", 2000, "Records in flight per share-partition.", low=100
    )
    share_session_timeout_ms: int = _setting(
        "share.session.timeout.ms", 45_000, "Silence after which a member is removed.", low=1
    )
    share_heartbeat_ms: int = _setting(
        "share.heartbeat.interval.ms", 5000, "Pause between heartbeats of a member.", low=1
    )
    dead_letter_topic: str = _setting(
        "errors.deadletterqueue.topic.name", "",
        "Topic that rejected and exhausted records are written to; empty: none.",
    )  # fmt: skip
    dead_letter_copy: bool = _setting(
        "errors.deadletterqueue.copy.record.enable", True,
        "Copy key, value and headers of the record into the dead letter.",
    )  # fmt: skip

    @classmethod
    def resolve(cls, config: Config, overrides: Mapping[str, str]) -> "GroupSettings":
        """The settings of a group; values outside the broker's bounds are clamped to them.

        Raises: ConfigError on an override that `check` would have refused.
        """
        values: dict[str, Any] = {name: getattr(config, name) for name in _RANGED}
        for name, text in overrides.items():
            field, setting = cls.find(name)
            values[field] = setting.parse(text)
        for name in _RANGED:
            low, high = getattr(config, f"{name}_min"), getattr(config, f"{name}_max")
            values[name] = min(max(values[name], low), high)
        return cls(**values)

    @classmethod
    def check(cls, config: Config, overrides: Mapping[str, str]) -> None:
        """Raises: ConfigError when a value is unknown or outside the broker's bounds."""
        for name, text in overrides.items():
            field, setting = cls.find(name)
            value = setting.parse(text)
            if field not in _RANGED:
                continue
            low, high = getattr(config, f"{field}_min"), getattr(config, f"{field}_max")
            if not low <= value <= high:
                raise ConfigError(f"{setting.name}: {value} is outside {low} to {high}")


@dataclass(frozen=True, slots=True)
class TopicSettings(_Table):
    """The settings of one topic: those set for it (resource type TOPIC), then the broker's."""

    message_max_bytes: int = _setting(
        "max.message.bytes", 1_048_588, "Largest record batch accepted.", low=0, high=_INT_MAX
    )
    segment_bytes: int = _setting(
        "segment.bytes", 1_073_741_824, "Size at which a segment is full.", low=1024, high=_INT_MAX
    )
    cleanup_policy: str = _setting(
        "cleanup.policy", "delete", "What becomes of old records; they are never compacted.",
        choices=("delete",),
    )  # fmt: skip
    retention_ms: int = _setting(
        "retention.ms", -1, "Kept and shown; nothing is deleted by age yet.",
        low=-1, high=_LONG_MAX,
    )  # fmt: skip
    retention_bytes: int = _setting(
        "retention.bytes", -1, "Kept and shown; nothing is deleted by size yet.",
        low=-1, high=_LONG_MAX,
    )  # fmt: skip
    compression_type: str = _setting(
        "compression.type", "producer", "Batches are stored as producers compressed them.",
        choices=("producer",),
    )  # fmt: skip
    timestamp_type: str = _setting(
        "message.timestamp.type", "CreateTime", "Timestamps are those of producers.",
        choices=("CreateTime",),
    )  # fmt: skip
    min_insync_replicas: int = _setting(
        "min.insync.replicas", 1, "There is one replica.", low=1, high=1
    )
    dead_letter_enable: bool = _setting(
        "errors.deadletterqueue.group.enable", False, "Allow groups to write dead letters here."
    )

    @classmethod
    def resolve(cls, config: Config, overrides: Mapping[str, str]) -> "TopicSettings":
        """The settings of a topic. Raises: ConfigError on a value that is unknown or refused."""
        values: dict[str, Any] = {
            "message_max_bytes": config.message_max_bytes,
            "segment_bytes": config.segment_bytes,
        }
        for name, text in overrides.items():
            field, setting = cls.find(name)
            values[field] = setting.parse(text)
        return cls(**values)
