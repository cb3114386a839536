"""The settings of logs: those of the broker, and those of one topic, which override them.

A topic's setting has the default of the broker's setting that stands behind it (`BEHIND`).
Source: Kafka 4.3, TopicConfig and ServerLogConfigs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from headrace.broker.inert_settings import INERT_BEHIND, InertBrokerLog, InertTopicLog
from headrace.broker.settings import INT_MAX, LONG_MAX, ConfigError, setting

_POLICIES = ("delete", "compact")
_TIMESTAMPS = ("CreateTime", "LogAppendTime")
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)  # a part of tables
class LogConfig(InertBrokerLog):
    """The settings of a broker that are the defaults of topics, and those of its log cleaner."""

    message_max_bytes: int = setting(
        "message.max.bytes", 1_048_588, "Largest record batch accepted.", low=0, high=INT_MAX
    )
    segment_bytes: int = setting(
        "log.segment.bytes", 1_073_741_824, "Size at which a segment is full.",
        low=1024, high=INT_MAX,
    )  # fmt: skip
    roll_ms: int | None = setting(
        "log.roll.ms", None, "Age at which a segment is full; unset: log.roll.hours.",
        low=1, kind=int,
    )  # fmt: skip
    roll_hours: int = setting(
        "log.roll.hours", 168, "Age in hours at which a segment is full.", low=1, high=INT_MAX
    )
    index_interval_bytes: int = setting(
        "log.index.interval.bytes", 4096, "Bytes of log for one entry of an index.",
        low=0, high=INT_MAX,
    )  # fmt: skip
    cleanup_policy: tuple[str, ...] = setting(
        "log.cleanup.policy", ("delete",),
        "What becomes of old records: delete, compact, both, or (empty) nothing.",
        choices=_POLICIES,
    )  # fmt: skip
    retention_ms: int | None = setting(
        "log.retention.ms", None, "How long records are kept; -1: always; unset: by minutes.",
        low=-1, high=LONG_MAX, kind=int,
    )  # fmt: skip
    retention_minutes: int | None = setting(
        "log.retention.minutes", None, "How long records are kept; unset: log.retention.hours.",
        low=-1, high=INT_MAX, kind=int,
    )  # fmt: skip
    retention_hours: int = setting(
        "log.retention.hours", 168, "How long records are kept; -1: always.", low=-1, high=INT_MAX
    )
    retention_bytes: int = setting(
        "log.retention.bytes", -1, "Bytes kept of each partition; -1: all.", low=-1, high=LONG_MAX
    )
    retention_check_ms: int = setting(
        "log.retention.check.interval.ms", 300_000, "Pause between looks for old segments.",
        low=1, high=LONG_MAX,
    )  # fmt: skip
    segment_delete_delay_ms: int = setting(
        "log.segment.delete.delay.ms", 60_000, "How long the files of a deleted segment stay.",
        low=0, high=LONG_MAX,
    )  # fmt: skip
    cleaner_enable: bool = setting("log.cleaner.enable", True, "Compact topics that ask for it.")
    cleaner_backoff_ms: int = setting(
        "log.cleaner.backoff.ms", 15_000, "Pause of the cleaner when nothing is dirty.",
        low=0, high=LONG_MAX,
    )  # fmt: skip
    cleaner_dedupe_bytes: int = setting(
        "log.cleaner.dedupe.buffer.size", 134_217_728, "Memory for the keys of one cleaning.",
        low=1024, high=LONG_MAX,
    )  # fmt: skip
    cleaner_min_ratio: float = setting(
        "log.cleaner.min.cleanable.ratio", 0.5, "Part of a log that is dirty when it is cleaned.",
        low=0, high=1,
    )  # fmt: skip
    cleaner_min_lag_ms: int = setting(
        "log.cleaner.min.compaction.lag.ms", 0, "Age before which no record is compacted away.",
        low=0, high=LONG_MAX,
    )  # fmt: skip
    cleaner_max_lag_ms: int = setting(
        "log.cleaner.max.compaction.lag.ms", LONG_MAX, "Age at which a dirty log is cleaned.",
        low=1, high=LONG_MAX,
    )  # fmt: skip
    cleaner_delete_retention_ms: int = setting(
        "log.cleaner.delete.retention.ms", _DAY_MS, "How long a tombstone stays once it is clean.",
        low=0, high=LONG_MAX,
    )  # fmt: skip
    flush_messages: int = setting(
        "log.flush.interval.messages", LONG_MAX,
        "Records appended to a partition before it is synced; 1: headrace.durability=fsync.",
        low=1, high=LONG_MAX,
    )  # fmt: skip
    flush_ms: int | None = setting(
        "log.flush.interval.ms", None, "Longest time before what was appended is synced.",
        low=0, high=LONG_MAX, kind=int,
    )  # fmt: skip
    timestamp_type: str = setting(
        "log.message.timestamp.type", "CreateTime", "Whose time records carry.",
        choices=_TIMESTAMPS,
    )  # fmt: skip
    timestamp_before_max_ms: int = setting(
        "log.message.timestamp.before.max.ms", LONG_MAX,
        "How far behind the broker's clock a timestamp may be.", low=0, high=LONG_MAX,
    )  # fmt: skip
    timestamp_after_max_ms: int = setting(
        "log.message.timestamp.after.max.ms", 3_600_000,
        "How far ahead of the broker's clock a timestamp may be.", low=0, high=LONG_MAX,
    )  # fmt: skip
    producer_expiration_ms: int = setting(
        "producer.id.expiration.ms", _DAY_MS,
        "Silence after which an idempotent producer is forgotten.", low=1, high=INT_MAX,
    )  # fmt: skip

    @property
    def retention_effective_ms(self) -> int:
        """How long records are kept, -1 for always: ms, else minutes, else hours."""
        if self.retention_ms is not None:
            return self.retention_ms
        if self.retention_minutes is not None:
            return self.retention_minutes * 60_000 if self.retention_minutes >= 0 else -1
        return self.retention_hours * 3_600_000 if self.retention_hours >= 0 else -1

    @property
    def roll_effective_ms(self) -> int:
        """Age at which a segment is full."""
        return self.roll_ms if self.roll_ms is not None else self.roll_hours * 3_600_000


@dataclass(frozen=True, slots=True)
class TopicSettings(InertTopicLog):
    """The settings of one topic: those set for it (resource type TOPIC), then the broker's."""

    message_max_bytes: int = setting(
        "max.message.bytes", 1_048_588, "Largest record batch accepted.", low=0, high=INT_MAX
    )
    segment_bytes: int = setting(
        "segment.bytes", 1_073_741_824, "Size at which a segment is full.", low=1024, high=INT_MAX,
        aliases=("internal.segment.bytes",),
    )  # fmt: skip
    segment_ms: int = setting(
        "segment.ms", 7 * _DAY_MS, "Age at which a segment is full.", low=1, high=LONG_MAX
    )
    index_interval_bytes: int = setting(
        "index.interval.bytes", 4096, "Bytes of log for one entry of an index.",
        low=0, high=INT_MAX,
    )  # fmt: skip
    cleanup_policy: tuple[str, ...] = setting(
        "cleanup.policy", ("delete",),
        "What becomes of old records: delete, compact, both, or (empty) nothing.",
        choices=_POLICIES,
    )  # fmt: skip
    retention_ms: int = setting(
        "retention.ms", 7 * _DAY_MS, "How long records are kept; -1: always.",
        low=-1, high=LONG_MAX,
    )  # fmt: skip
    retention_bytes: int = setting(
        "retention.bytes", -1, "Bytes kept of each partition; -1: all.", low=-1, high=LONG_MAX
    )
    file_delete_delay_ms: int = setting(
        "file.delete.delay.ms", 60_000, "How long the files of a deleted segment stay.",
        low=0, high=LONG_MAX,
    )  # fmt: skip
    min_cleanable_ratio: float = setting(
        "min.cleanable.dirty.ratio", 0.5, "Part of a log that is dirty when it is cleaned.",
        low=0, high=1,
    )  # fmt: skip
    min_compaction_lag_ms: int = setting(
        "min.compaction.lag.ms", 0, "Age before which no record is compacted away.",
        low=0, high=LONG_MAX,
    )  # fmt: skip
    max_compaction_lag_ms: int = setting(
        "max.compaction.lag.ms", LONG_MAX, "Age at which a dirty log is cleaned.",
        low=1, high=LONG_MAX,
    )  # fmt: skip
    delete_retention_ms: int = setting(
        "delete.retention.ms", _DAY_MS, "How long a tombstone stays once it is clean.",
        low=0, high=LONG_MAX,
    )  # fmt: skip
    flush_messages: int = setting(
        "flush.messages", LONG_MAX, "Records appended before a partition is synced.",
        low=1, high=LONG_MAX,
    )  # fmt: skip
    flush_ms: int = setting(
        "flush.ms", LONG_MAX, "Longest time before what was appended is synced.",
        low=0, high=LONG_MAX,
    )  # fmt: skip
    timestamp_type: str = setting(
        "message.timestamp.type", "CreateTime", "Whose time records carry.", choices=_TIMESTAMPS
    )
    timestamp_before_max_ms: int = setting(
        "message.timestamp.before.max.ms", LONG_MAX,
        "How far behind the broker's clock a timestamp may be.", low=0, high=LONG_MAX,
    )  # fmt: skip
    timestamp_after_max_ms: int = setting(
        "message.timestamp.after.max.ms", 3_600_000,
        "How far ahead of the broker's clock a timestamp may be.", low=0, high=LONG_MAX,
    )  # fmt: skip
    dead_letter_enable: bool = setting(
        "errors.deadletterqueue.group.enable", True, "Whether groups may write dead letters here."
    )

    @classmethod
    def resolve(cls, config: LogConfig, overrides: Mapping[str, str]) -> Self:
        """The settings of a topic. Raises: ConfigError on a value that is unknown or refused."""
        values: dict[str, Any] = {
            field: getattr(config, behind) for field, behind in BEHIND.items()
        }
        if config.flush_ms is not None:
            values["flush_ms"] = config.flush_ms
        for name, text in overrides.items():
            field, found = cls.find(name)
            values[field] = found.parse(text)
        return cls(**values)

    @classmethod
    def check(cls, config: LogConfig, overrides: Mapping[str, str]) -> None:
        """Raises: ConfigError when values are unknown, refused, or contradict each other."""
        resolved = cls.resolve(config, overrides)
        least, most = resolved.min_compaction_lag_ms, resolved.max_compaction_lag_ms
        if least > most:
            raise ConfigError(
                f"min.compaction.lag.ms: {least} is above max.compaction.lag.ms, which is {most}"
            )


# Field of a topic's settings to what of the broker's it has as its default.
BEHIND = INERT_BEHIND | {
    "message_max_bytes": "message_max_bytes",
    "segment_bytes": "segment_bytes",
    "segment_ms": "roll_effective_ms",
    "index_interval_bytes": "index_interval_bytes",
    "cleanup_policy": "cleanup_policy",
    "retention_ms": "retention_effective_ms",
    "retention_bytes": "retention_bytes",
    "file_delete_delay_ms": "segment_delete_delay_ms",
    "min_cleanable_ratio": "cleaner_min_ratio",
    "min_compaction_lag_ms": "cleaner_min_lag_ms",
    "max_compaction_lag_ms": "cleaner_max_lag_ms",
    "delete_retention_ms": "cleaner_delete_retention_ms",
    "flush_messages": "flush_messages",
    "timestamp_type": "timestamp_type",
    "timestamp_before_max_ms": "timestamp_before_max_ms",
    "timestamp_after_max_ms": "timestamp_after_max_ms",
}
