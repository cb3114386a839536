"""The settings of one group: Kafka's names, defaults and bounds.

Source: Kafka 4.3 group configuration (KIP-848, KIP-932, KIP-1103); KIP-842, which names its two
for consumers; the aliases are those of KIP-932 as proposed.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from headrace.broker.config import INHERITED, RANGED, Config
from headrace.broker.settings import INT_MAX, ConfigError, Table, setting
from headrace.core.catalog import INTERNAL_TOPICS, is_topic_name
from headrace.core.durations import length_ms
from headrace.core.group_words import ResetPolicy
from headrace.core.reset import OutOfRange, Strategy

_BY_DURATION = "by_duration"
_STAYS = OutOfRange.NONE.value


def _reset_fault(text: str) -> str | None:
    """What is wrong with a value of share.auto.offset.reset, as Kafka judges it."""
    if text in {"latest", "earliest"}:
        return None
    kind, _, length = text.partition(":")
    if kind != _BY_DURATION:
        return f"{text!r} is none of latest, earliest, by_duration:PnDTnHnMn.nS"
    try:
        if length_ms(length) < 0:
            return f"{text!r}: the duration is negative"
    except ValueError:
        return f"{text!r}: write the duration as ISO 8601 does, e.g. by_duration:P7D"
    return None


def _topic_fault(text: str) -> str | None:
    return None if not text or is_topic_name(text) else f"{text!r} is no name of a topic"


@dataclass(frozen=True, slots=True)
class GroupSettings(Table):
    """The settings of one group: those set for it (resource type GROUP), then the broker's."""

    group_type: str = setting(
        "group.type", "", "Fixes the type of a group before its first member; empty: either.",
        choices=("", "consumer", "share"),
    )  # fmt: skip
    consumer_session_timeout_ms: int = setting(
        "consumer.session.timeout.ms", 45_000, "Silence after which a member is removed.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    consumer_heartbeat_ms: int = setting(
        "consumer.heartbeat.interval.ms", 5000, "Pause between heartbeats of a member.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    consumer_assignment_interval_ms: int = setting(
        "consumer.assignment.interval.ms", 0, "Least time between two assignments of the group.",
        low=0, high=INT_MAX,
    )  # fmt: skip
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes", 10_080,
        "How long committed offsets are kept once nobody uses them.", low=1, high=INT_MAX,
    )  # fmt: skip
    reset_strategy: str = setting(
        "auto.offset.reset", "",
        "By what the coordinator seeds offsets that are missing or outside the log (KIP-842); "
        "empty: clients see to it.",
        choices=("", *Strategy),
    )  # fmt: skip
    reset_out_of_range: str = setting(
        "offset.reset.strategy.offset-out-of-range", "none",
        "nearest: an offset outside the log moves to the end of the log next to it.",
        choices=tuple(OutOfRange),
    )  # fmt: skip
    auto_offset_reset: str = setting(
        "share.auto.offset.reset", "latest",
        "Where a new subscription starts: latest, earliest, or by_duration:PnDTnHnMn.nS ago.",
        fault=_reset_fault,
    )  # fmt: skip
    isolation_level: str = setting(
        "share.isolation.level", "read_uncommitted", "Whether aborted records are delivered.",
        choices=("read_uncommitted", "read_committed"),
    )  # fmt: skip
    renew_enable: bool = setting(
        "share.renew.acknowledge.enable", True, "Allow members to renew acquisition locks."
    )
    share_delivery_count_limit: int = setting(
        "share.delivery.count.limit", 5, "Deliveries of a record before it is archived.",
        low=2, high=INT_MAX, aliases=("share.delivery.attempt.limit",),
    )  # fmt: skip
    share_lock_ms: int = setting(
        "share.record.lock.duration.ms", 30_000, "Duration of an acquisition lock.",
        low=1000, high=INT_MAX, aliases=("record.lock.duration.ms",),
    )  # fmt: skip
    share_record_locks: int = setting(
        "share.partition.max.record.locks", 2000, "Records in flight per share-partition.",
        low=100, high=INT_MAX, aliases=("share.record.lock.partition.limit",),
    )  # fmt: skip
    share_session_timeout_ms: int = setting(
        "share.session.timeout.ms", 45_000, "Silence after which a member is removed.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    share_heartbeat_ms: int = setting(
        "share.heartbeat.interval.ms", 5000, "Pause between heartbeats of a member.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    share_assignment_interval_ms: int = setting(
        "share.assignment.interval.ms", 0, "Least time between two assignments of the group.",
        low=0, high=INT_MAX,
    )  # fmt: skip
    dead_letter_topic: str = setting(
        "errors.deadletterqueue.topic.name", "",
        "Topic that rejected and exhausted records are written to; empty: none.",
        fault=_topic_fault,
    )  # fmt: skip
    dead_letter_copy: bool = setting(
        "errors.deadletterqueue.copy.record.enable", True,
        "Copy key, value and headers of the record into the dead letter.",
    )  # fmt: skip

    @classmethod
    def resolve(cls, config: Config, overrides: Mapping[str, str]) -> Self:
        """The settings of a group; values outside the broker's bounds are clamped to them.

        Raises: ConfigError on an override that `check` would have refused.
        """
        values: dict[str, Any] = {name: getattr(config, name) for name in INHERITED}
        for name, text in overrides.items():
            field, setting = cls.find(name)
            values[field] = setting.parse(text)
        for name in RANGED:
            low, high = getattr(config, f"{name}_min"), getattr(config, f"{name}_max")
            values[name] = min(max(values[name], low), high)
        return cls(**values)

    @classmethod
    def check(
        cls,
        config: Config,
        changes: Mapping[str, str],
        others: Mapping[str, str] | None = None,
        deleted: Collection[str] = (),
    ) -> None:
        """Whether a group may have these changes over its `others`, without what is deleted.

        Raises: ConfigError when a value is unknown, outside the broker's bounds, or contradicts
        another.
        """
        for name, text in changes.items():
            field, setting = cls.find(name)
            value = setting.parse(text)
            if field not in RANGED:
                continue
            low, high = getattr(config, f"{field}_min"), getattr(config, f"{field}_max")
            if not low <= value <= high:
                raise ConfigError(f"{setting.name}: {value} is outside {low} to {high}")
        changed = {cls.find(name)[0] for name in changes}
        changed |= {field for field, one in cls.settings().items() if one.name in deleted}
        new = cls.resolve(config, {**(others or {}), **changes})
        if "dead_letter_topic" in changed and new.dead_letter_topic in INTERNAL_TOPICS:
            name = cls.settings()["dead_letter_topic"].name
            raise ConfigError(f"{name}: {new.dead_letter_topic} is internal: name another one")
        for kind in ("share", "consumer"):
            fields = f"{kind}_heartbeat_ms", f"{kind}_session_timeout_ms"
            heartbeat_ms, session_ms = (getattr(new, field) for field in fields)
            if heartbeat_ms >= session_ms and not changed.isdisjoint(fields):
                raise ConfigError(
                    f"{kind}.heartbeat.interval.ms: {heartbeat_ms} is not below"
                    f" {kind}.session.timeout.ms, which is {session_ms}"
                )

    @property
    def reset_policy(self) -> ResetPolicy | None:
        """By what offsets are seeded; None where the group's clients see to it themselves."""
        strategy, out_of_range = self.reset_strategy, self.reset_out_of_range
        if not strategy and out_of_range == _STAYS:  # as nearly always; each OffsetFetch asks
            return None
        return ResetPolicy(Strategy(strategy or Strategy.NONE), OutOfRange(out_of_range))

    @property
    def reset_age_ms(self) -> int | None:
        """How far back a new subscription starts; None unless that is said by duration."""
        kind, _, length = self.auto_offset_reset.partition(":")
        return length_ms(length) if kind == _BY_DURATION else None
