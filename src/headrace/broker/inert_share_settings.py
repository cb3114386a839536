"""Settings of share groups that one broker on one event loop satisfies, whatever they say.

As in `inert_settings.py`: a value that is true here is accepted and shown again, one that could not
be honoured is refused with the reason. Source: Kafka 4.3, GroupCoordinatorConfig,
ShareCoordinatorConfig and ShareGroupConfig.
"""

from dataclasses import dataclass

from headrace.broker.settings import INT_MAX, setting
from headrace.broker.topic_settings import LogConfig

_BUFFER_BYTES_MIN = 512 * 1024
_NO_THREADS = "Without effect: all state is decided on one event loop."


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)  # a part of tables
class InertShareConfig(LogConfig):
    """Those of the broker."""

    share_assignors: tuple[str, ...] = setting(
        "group.share.assignors", ("simple",), "The one assignor of share groups.",
        choices=("simple",), why="there is one",
    )  # fmt: skip
    share_initialize_retry_ms: int = setting(
        "group.share.initialize.retry.interval.ms", 30_000,
        "Without effect: a heartbeat initializes its share-partitions itself.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    share_persister: str = setting(
        "group.share.persister.class.name",
        "org.apache.kafka.server.share.persister.DefaultStatePersister",
        "State is kept in __share_group_state.",
        choices=("org.apache.kafka.server.share.persister.DefaultStatePersister",),
        why="state is kept in __share_group_state and nowhere else",
    )  # fmt: skip
    share_purge_requests: int = setting(
        "share.fetch.purgatory.purge.interval.requests", 1000,
        "Without effect: a long poll that ended is gone at once.", low=-INT_MAX - 1, high=INT_MAX,
    )  # fmt: skip
    share_state_replicas: int = setting(
        "share.coordinator.state.topic.replication.factor", 1, "There is one replica (3 in Kafka).",
        low=1, high=1, why="there is one broker, so one replica",
    )  # fmt: skip
    share_state_min_isr: int = setting(
        "share.coordinator.state.topic.min.isr", 1, "There is one replica (2 in Kafka).",
        low=1, high=1, why="there is one broker, so one replica",
    )  # fmt: skip
    share_state_codec: int = setting(
        "share.coordinator.state.topic.compression.codec", 0, "The journal is not compressed.",
        low=0, high=0, why="the journal is not compressed",
    )  # fmt: skip
    share_threads: int = setting("share.coordinator.threads", 1, _NO_THREADS, low=1, high=INT_MAX)
    share_write_timeout_ms: int = setting(
        "share.coordinator.write.timeout.ms", 5000,
        "Without effect: the journal is on this machine, and no other replica is waited for.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    share_load_buffer_bytes: int = setting(
        "share.coordinator.load.buffer.size", 5_242_880,
        "Without effect: the journal is read in pieces of a megabyte.", low=1, high=INT_MAX,
    )  # fmt: skip
    share_linger_ms: int = setting(
        "share.coordinator.append.linger.ms", -1,
        "Without effect: what is decided in one turn of the event loop is written together.",
        low=-1, high=INT_MAX,
    )  # fmt: skip
    share_cached_buffer_bytes: int = setting(
        "share.coordinator.cached.buffer.max.bytes", 1_048_588,
        "Without effect: there is no such buffer.", low=_BUFFER_BYTES_MIN, high=INT_MAX,
    )  # fmt: skip
