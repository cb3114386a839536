"""The settings of a broker: Kafka's names, defaults and bounds.

Those of logs are declared with the topics that take them over (`topic_settings.py`).
Source: Kafka 4.3 broker configuration; KIP-932.
"""

from dataclasses import dataclass

from headrace.broker.addresses import listener_fault
from headrace.broker.inert_share_settings import InertShareConfig
from headrace.broker.settings import INT_MAX, LONG_MAX, ConfigError, Setting, setting
from headrace.broker.topic_settings import LogConfig

__all__ = ["DYNAMIC", "INHERITED", "RANGED", "Config", "ConfigError"]

LOCKS_MAX = 100_000_000
OPTIONS = {  # settings of Kafka's that are options of `headrace serve` here
    "log.dirs": "--data-dir",
    "log.dir": "--data-dir",
    "listeners": "--host and --port",
    "host.name": "--host",
    "port": "--port",
}


@dataclass(frozen=True, slots=True, repr=False, eq=False)  # of 190 fields, each costs a start
class Config(InertShareConfig):
    """The settings of a broker. Raises: ConfigError when they contradict each other."""

    node_id: int = setting(
        "node.id", 1, "Number of this broker.", low=0, high=INT_MAX, aliases=("broker.id",)
    )
    advertised_host: str = setting(
        "advertised.host", "", "Host name clients are told to connect to; empty: the bound one."
    )
    advertised_listeners: str = setting(
        "advertised.listeners", "",
        "Where clients are to connect, as PLAINTEXT://HOST:PORT; empty: advertised.host and the "
        "port of the listener.",
        fault=listener_fault,
    )  # fmt: skip
    num_partitions: int = setting(
        "num.partitions", 1, "Partitions of a topic created without a number.", low=1, high=10_000
    )
    replication_factor: int = setting(
        "default.replication.factor", 1, "There is one replica.", low=1, high=1,
        why="there is one broker",
    )  # fmt: skip
    delete_topic_enable: bool = setting("delete.topic.enable", True, "Allow topics to be deleted.")
    auto_create_topics: bool = setting(
        "auto.create.topics.enable", True, "Create a topic when metadata of it is asked for."
    )
    request_max_bytes: int = setting(
        "socket.request.max.bytes", 104_857_600, "Largest request accepted.", low=1, high=INT_MAX
    )
    batch_decompressed_bytes_max: int = setting(
        "headrace.batch.decompressed.max.bytes", 67_108_864,
        "Most bytes of records in a produced batch, decompressed.", low=1024, high=INT_MAX,
    )  # fmt: skip
    batch_bytes_max: int = setting(
        "headrace.batch.max.bytes", 16_777_216,
        "Largest record batch accepted, also where max.message.bytes of a topic is larger: a batch "
        "is written, and read for a fetch, in one step.", low=1024, high=INT_MAX,
    )  # fmt: skip
    batch_records_max: int = setting(
        "headrace.batch.records.max", 1_000_000, "Most records in a produced batch.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    batch_headers_max: int = setting(
        "headrace.batch.headers.max", 1_000_000,
        "Most headers of all records of a produced batch together.", low=0, high=INT_MAX,
    )  # fmt: skip
    produce_inline_bytes_max: int = setting(
        "headrace.produce.inline.max.bytes", 2_097_152,
        "Records of a Produce request, decompressed, that are validated on the event loop; the "
        "rest is validated in a thread.", low=1, high=INT_MAX,
    )  # fmt: skip
    decoding_threads: int = setting(
        "headrace.decoding.threads", 1,
        "Threads that decode large batches; each may take headrace.batch.decompressed.max.bytes.",
        low=1, high=64,
    )  # fmt: skip
    connections_max: int = setting(
        "max.connections", 10_000, "Connections open at a time.", low=1, high=INT_MAX
    )
    connections_reserved: int = setting(
        "headrace.max.connections.reserved", 16,
        "Connections from loopback that are accepted above max.connections.", low=0, high=1000,
    )  # fmt: skip
    unread_ms: int = setting(
        "headrace.unread.response.timeout.ms", 30_000,
        "Time after which a connection that does not read its responses is closed; -1: none.",
        low=-1, high=LONG_MAX,
    )  # fmt: skip
    queued_request_bytes: int = setting(
        "queued.max.request.bytes", 134_217_728,
        "Memory of requests received and not answered, over all connections, at least "
        "socket.request.max.bytes; -1: no limit.",
        low=-1, high=LONG_MAX,
    )  # fmt: skip
    queued_response_bytes: int = setting(
        "headrace.queued.max.response.bytes", 134_217_728,
        "Memory of responses that clients have not read yet, over all connections; -1: no limit.",
        low=-1, high=LONG_MAX,
    )  # fmt: skip
    elements_max: int = setting(
        "headrace.max.request.elements", 10_000,
        "Array elements (names, partitions) in one request; ListOffsets, OffsetFetch and "
        "OffsetForLeaderEpoch may have ten times as many, Fetch and OffsetCommit more; these are "
        "processed in portions.", low=1000, high=INT_MAX,
    )  # fmt: skip
    stall_warn_ms: int = setting(
        "headrace.loop.stall.warn.ms", 200,
        "Duration of a step on the event loop from which a warning is logged; -1: never.",
        low=-1, high=INT_MAX,
    )  # fmt: skip
    connections_idle_ms: int = setting(
        "connections.max.idle.ms", 600_000, "Silence that ends a connection; -1: none.",
        low=-1, high=LONG_MAX,
    )  # fmt: skip
    fetch_sessions_max: int = setting(
        "max.incremental.fetch.session.cache.slots", 1000, "Fetch sessions kept at a time.",
        low=0, high=INT_MAX,
    )  # fmt: skip
    waits_max: int = setting(
        "headrace.max.waits", 10_000, "Long polls waiting at a time.", low=1, high=INT_MAX
    )
    waiting_partitions_max: int = setting(
        "headrace.max.waiting.partitions", 150_000,
        "Partitions that all waiting fetches watch; above it a fetch is answered at once.",
        low=1000, high=INT_MAX,
    )  # fmt: skip
    fetch_max_bytes: int = setting(
        "fetch.max.bytes", 57_671_680, "Most bytes in one fetch response.", low=1024, high=INT_MAX
    )
    durability: str = setting(
        "headrace.durability", "os",
        "What an answer waits for: os = written to the operating system; fsync = on the disk.",
        choices=("os", "fsync"),
    )  # fmt: skip
    clock_jump_max_ms: int = setting(
        "headrace.clock.jump.max.ms", 3_600_000,
        "Difference of wall time from elapsed time above which wall time is not trusted.",
        low=1000, high=LONG_MAX,
    )  # fmt: skip
    clock_hold_ms: int = setting(
        "headrace.clock.hold.ms", 86_400_000,
        "Running time for which such a wall time must hold to be trusted; 0: at once.",
        low=0, high=LONG_MAX,
    )  # fmt: skip
    scrub_interval_ms: int = setting(
        "headrace.scrub.interval.ms", 604_800_000,
        "Pause between two passes of the scrub over all segments; 0: no scrub.",
        low=0, high=LONG_MAX,
    )  # fmt: skip
    scrub_bytes_per_second: int = setting(
        "headrace.scrub.bytes.per.second", 5_242_880,
        "Most bytes that the scrub reads in a second; 0: no scrub.", low=0, high=LONG_MAX,
    )  # fmt: skip
    metrics_port: int | None = setting(
        "headrace.metrics.port", None,
        "Port of /metrics, /-/healthy and /-/ready; 0 picks a free one; unset: none.",
        low=0, high=65_535, kind=int,
    )  # fmt: skip
    metrics_host: str = setting(
        "headrace.metrics.host", "127.0.0.1",
        "Address that the metrics port is bound to; 0.0.0.0 for all.",
    )  # fmt: skip
    metrics_granularity: str = setting(
        "headrace.metrics.granularity", "partition",
        "Series of topics are told by partition, by topic, or (none) not at all.",
        choices=("partition", "topic", "none"),
    )  # fmt: skip
    group_initial_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms", 0,
        "How long an empty group waits for more members when the first joins (3000 in Kafka).",
        low=0, high=INT_MAX,
    )  # fmt: skip
    group_session_ms_min: int = setting(
        "group.min.session.timeout.ms", 6000, "Shortest session timeout a member may ask for.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    group_session_ms_max: int = setting(
        "group.max.session.timeout.ms", 1_800_000, "Longest session timeout a member may ask for.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    group_size_max: int = setting(
        "group.max.size", 500, "Members of a consumer group (not limited in Kafka).",
        low=1, high=INT_MAX,
    )  # fmt: skip
    groups_max: int = setting(
        "headrace.max.groups", 20_000, "Consumer groups and share groups.", low=1, high=INT_MAX
    )
    groups_bytes_max: int = setting(
        "headrace.groups.max.bytes", 67_108_864,
        "Memory of members, commits and share groups; above it only small additions are accepted.",
        low=1_048_576, high=LONG_MAX,
    )  # fmt: skip
    producers_max: int = setting(
        "headrace.max.producers", 100_000,
        "Idempotent producers that are remembered, each once for every partition it wrote to.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    regex_size_max: int = setting(
        "headrace.group.consumer.regex.max.size", 2000,
        "Instructions of a compiled regular expression that a consumer subscribes with; "
        "an ordinary one has less than 100.", low=10, high=10_000,
    )  # fmt: skip
    consumer_size_max: int = setting(
        "group.consumer.max.size", 4000,
        "Members of a consumer group of the new protocol (not limited in Kafka).",
        low=1, high=INT_MAX,
    )  # fmt: skip
    consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms", 45_000, "Silence after which a member is removed.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    consumer_session_timeout_ms_min: int = setting(
        "group.consumer.min.session.timeout.ms", 45_000, "Shortest timeout a group may set.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    consumer_session_timeout_ms_max: int = setting(
        "group.consumer.max.session.timeout.ms", 60_000, "Longest timeout a group may set.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    consumer_heartbeat_ms: int = setting(
        "group.consumer.heartbeat.interval.ms", 5000, "Pause between heartbeats of a member.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    consumer_heartbeat_ms_min: int = setting(
        "group.consumer.min.heartbeat.interval.ms", 5000, "Shortest pause a group may set.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    consumer_heartbeat_ms_max: int = setting(
        "group.consumer.max.heartbeat.interval.ms", 15_000, "Longest pause a group may set.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    consumer_assignors: tuple[str, ...] = setting(
        "group.consumer.assignors", ("uniform", "range"),
        "Assignors that members may ask for; the first is for groups that ask for none.",
        choices=("uniform", "range"),
    )  # fmt: skip
    consumer_assignment_interval_ms: int = setting(
        "group.consumer.assignment.interval.ms", 0,
        "Least time between two assignments of a group (1000 in Kafka).", low=0, high=INT_MAX,
    )  # fmt: skip
    consumer_assignment_interval_ms_min: int = setting(
        "group.consumer.min.assignment.interval.ms", 0, "Shortest such time a group may set.",
        low=0, high=INT_MAX,
    )  # fmt: skip
    consumer_assignment_interval_ms_max: int = setting(
        "group.consumer.max.assignment.interval.ms", 15_000, "Longest such time a group may set.",
        low=0, high=INT_MAX,
    )  # fmt: skip
    consumer_migration_policy: str = setting(
        "group.consumer.migration.policy", "bidirectional",
        "Which members wait until a group has no members of the other protocol: those of the "
        "consumer protocol (upgrade), of the classic one (downgrade), or both; else they fail.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )  # fmt: skip
    offset_metadata_max: int = setting(
        "offset.metadata.max.bytes", 4096, "Characters that a committed offset may carry.",
        low=0, high=INT_MAX,
    )  # fmt: skip
    offsets_partitions: int = setting(
        "offsets.topic.num.partitions", 1,
        "Shards of consumer groups; fixed when the data folder is new (50 in Kafka).",
        low=1, high=1000,
    )  # fmt: skip
    offsets_segment_bytes: int = setting(
        "offsets.topic.segment.bytes", 104_857_600,
        "Segment size of the journal of consumer groups; fixed when the data folder is new.",
        low=1024, high=INT_MAX,
    )  # fmt: skip
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes", 10_080,
        "How long committed offsets are kept once nobody uses them.", low=1, high=INT_MAX,
    )  # fmt: skip
    offsets_retention_check_ms: int = setting(
        "offsets.retention.check.interval.ms", 600_000,
        "Pause between two looks for committed offsets that nobody uses.", low=1, high=LONG_MAX,
    )  # fmt: skip
    share_group_enable: bool = setting("share.group.enable", True, "Serve share groups.")
    share_delivery_count_limit: int = setting(
        "group.share.delivery.count.limit", 5, "Deliveries of a record before it is archived.",
        low=2, high=25, aliases=("share.delivery.count.limit", "share.delivery.attempt.limit"),
    )  # fmt: skip
    share_delivery_count_limit_min: int = setting(
        "group.share.min.delivery.count.limit", 2, "Lowest limit a group may set.", low=2, high=5
    )
    share_delivery_count_limit_max: int = setting(
        "group.share.max.delivery.count.limit", 10, "Highest limit a group may set.", low=5, high=25
    )
    share_lock_ms: int = setting(
        "group.share.record.lock.duration.ms", 30_000, "Duration of an acquisition lock.",
        low=1000, high=3_600_000, aliases=("share.record.lock.duration.ms",),
    )  # fmt: skip
    share_lock_ms_min: int = setting(
        "group.share.min.record.lock.duration.ms", 1000,
        "Shortest lock a group may set (15000 in Kafka, 1000 in the proposal).",
        low=1000, high=30_000,
    )  # fmt: skip
    share_lock_ms_max: int = setting(
        "group.share.max.record.lock.duration.ms", 60_000, "Longest lock a group may set.",
        low=1000, high=3_600_000, aliases=("share.record.lock.duration.max.ms",),
    )  # fmt: skip
    share_record_locks: int = setting(
        "group.share.partition.max.record.locks", 2000, "Records in flight per share-partition.",
        low=100, high=LOCKS_MAX, aliases=("share.record.lock.partition.limit",),
    )  # fmt: skip
    share_record_locks_min: int = setting(
        "group.share.min.partition.max.record.locks", 100, "Lowest in-flight limit of a group.",
        low=100, high=LOCKS_MAX,
    )  # fmt: skip
    share_record_locks_max: int = setting(
        "group.share.max.partition.max.record.locks", LOCKS_MAX,
        "Highest in-flight limit of a group (4000 in Kafka).", low=100, high=LOCKS_MAX,
    )  # fmt: skip
    lease_record_locks: int = setting(
        "headrace.lease.partition.max.record.locks", 1_000_000,
        "Records in flight per share-partition for holders of leases.", low=100, high=LOCKS_MAX,
    )  # fmt: skip
    share_sessions_max: int = setting(
        "group.share.max.share.sessions", 2000, "Share sessions open at a time.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    share_sessions_connection_max: int = setting(
        "headrace.share.max.sessions.per.connection", 100,
        "Share sessions that one connection may open.", low=1, high=INT_MAX,
    )  # fmt: skip
    share_group_size_max: int = setting(
        "group.share.max.size", 200, "Members of a share group.", low=1, high=1000
    )
    share_session_timeout_ms: int = setting(
        "group.share.session.timeout.ms", 45_000, "Silence after which a member is removed.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    share_session_timeout_ms_min: int = setting(
        "group.share.min.session.timeout.ms", 45_000, "Shortest timeout a group may set.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    share_session_timeout_ms_max: int = setting(
        "group.share.max.session.timeout.ms", 60_000, "Longest timeout a group may set.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    share_heartbeat_ms: int = setting(
        "group.share.heartbeat.interval.ms", 5000, "Pause between heartbeats of a member.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    share_heartbeat_ms_min: int = setting(
        "group.share.min.heartbeat.interval.ms", 5000, "Shortest pause a group may set.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    share_heartbeat_ms_max: int = setting(
        "group.share.max.heartbeat.interval.ms", 15_000, "Longest pause a group may set.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    share_assignment_interval_ms: int = setting(
        "group.share.assignment.interval.ms", 0,
        "Least time between two assignments of a group (1000 in Kafka).", low=0, high=INT_MAX,
    )  # fmt: skip
    share_assignment_interval_ms_min: int = setting(
        "group.share.min.assignment.interval.ms", 0, "Shortest such time a group may set.",
        low=0, high=INT_MAX,
    )  # fmt: skip
    share_assignment_interval_ms_max: int = setting(
        "group.share.max.assignment.interval.ms", 15_000, "Longest such time a group may set.",
        low=0, high=INT_MAX,
    )  # fmt: skip
    share_state_partitions: int = setting(
        "share.coordinator.state.topic.num.partitions", 1,
        "Shards of share groups; fixed when the data folder is new.", low=1, high=1000,
    )  # fmt: skip
    share_updates_per_snapshot: int = setting(
        "share.coordinator.snapshot.update.records.per.snapshot", 500,
        "State updates written between two snapshots of a share-partition.", low=0, high=500,
    )  # fmt: skip
    share_state_segment_bytes: int = setting(
        "share.coordinator.state.topic.segment.bytes", 104_857_600,
        "Segment size of the journal of share groups; fixed when the data folder is new.",
        low=1 << 20, high=INT_MAX,
    )  # fmt: skip
    share_state_prune_ms: int = setting(
        "share.coordinator.state.topic.prune.interval.ms", 300_000,
        "Pause between removals of what the journal of share groups needs no longer.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    share_cold_snapshot_ms: int = setting(
        "share.coordinator.cold.partition.snapshot.interval.ms", 300_000,
        "Age from which the newest snapshot of a share-partition is replaced when it holds the "
        "removal of older records back.", low=1, high=INT_MAX,
    )  # fmt: skip
    share_history_ms: int = setting(
        "headrace.share.history.ms", 3_600_000,
        "Age until which the journal of share groups is kept although recovery does not need it.",
        low=0, high=LONG_MAX,
    )  # fmt: skip
    dead_letter_auto_create: bool = setting(
        "errors.deadletterqueue.auto.create.topics.enable", True,
        "Create the dead letter topic of a group when it is first needed.",
    )  # fmt: skip
    dead_letter_prefix: str = setting(
        "errors.deadletterqueue.topic.name.prefix", "dlq.",
        "What the name of a dead letter topic must begin with to be created automatically.",
    )  # fmt: skip

    @classmethod
    def find(cls, name: str) -> tuple[str, Setting]:
        """As `Table.find`; settings of Kafka's that are options here are named with the option."""
        option = OPTIONS.get(name)
        if option is not None:
            raise ConfigError(f"{name} is not a setting here; use {option} of headrace serve")
        return super(Config, cls).find(name)

    def __post_init__(self) -> None:
        for name in RANGED:
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
        if self.group_session_ms_min > self.group_session_ms_max:
            raise ConfigError(
                "group.min.session.timeout.ms must not be above group.max.session.timeout.ms"
            )
        if self.share_heartbeat_ms >= self.share_session_timeout_ms:
            raise ConfigError(
                "group.share.heartbeat.interval.ms must be below group.share.session.timeout.ms"
            )
        if self.consumer_heartbeat_ms >= self.consumer_session_timeout_ms:
            raise ConfigError(
                "group.consumer.heartbeat.interval.ms must be below"
                " group.consumer.session.timeout.ms"
            )
        if self.share_sessions_max < self.share_group_size_max:
            raise ConfigError(
                f"group.share.max.share.sessions: {self.share_sessions_max} is below"
                f" group.share.max.size, which is {self.share_group_size_max}"
            )
        if not self.consumer_assignors:
            raise ConfigError("group.consumer.assignors: there must be one, uniform or range")
        if not self.share_assignors:
            raise ConfigError("group.share.assignors: there must be one, simple")


# Settings whose bounds are settings themselves; a group's own value is clamped to them.
RANGED = (
    "consumer_session_timeout_ms",
    "consumer_heartbeat_ms",
    "consumer_assignment_interval_ms",
    "share_delivery_count_limit",
    "share_lock_ms",
    "share_record_locks",
    "share_session_timeout_ms",
    "share_heartbeat_ms",
    "share_assignment_interval_ms",
)
# Settings of a group that are the broker's where the group has none of its own.
INHERITED = (*RANGED, "offsets_retention_minutes")

_READ_AT_START = frozenset(
    {
        "retention_check_ms",
        "cleaner_enable",
        "cleaner_backoff_ms",
        "cleaner_dedupe_bytes",
        "producer_expiration_ms",
    }
)
# Settings that may be changed while a broker runs: the defaults of topics, and what is read when it
# is needed.
DYNAMIC = (
    frozenset(
        {
            *LogConfig.settings(),
            "clock_jump_max_ms",
            "clock_hold_ms",
            "connections_max",
            "consumer_assignment_interval_ms",
            "share_assignment_interval_ms",
            "share_cached_buffer_bytes",
        }
    )
    - _READ_AT_START
)
