"""Compression of logs, and settings that one broker without replicas and remote storage satisfies.

They are declared because people pass them with every topic they create: a value that is true here
is accepted and shown again, one that could not be honoured is refused with the reason.
Source: Kafka 4.3, LogConfig, ServerLogConfigs and ServerTopicConfigSynonyms.
"""

from dataclasses import dataclass

from headrace.broker.settings import INT_MAX, LONG_MAX, Table, setting

_INDEX_BYTES = 10_485_760
_NO_TIER = "there is no remote storage"


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)  # a part of tables
class InertLog(Table):
    """Those that have one name for the broker and for a topic."""

    compression_type: str = setting(
        "compression.type", "producer",
        "Codec that batches are stored with; producer: as producers compressed them.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )  # fmt: skip
    gzip_level: int = setting(
        "compression.gzip.level", -1, "Level for compression.type=gzip; -1: 6.", low=-1, high=9
    )
    lz4_level: int = setting(
        "compression.lz4.level", 9, "Level for compression.type=lz4.", low=1, high=17
    )
    zstd_level: int = setting(
        "compression.zstd.level", 3, "Level for compression.type=zstd.", low=-131_072, high=22
    )  # fmt: skip
    min_insync_replicas: int = setting(
        "min.insync.replicas", 1, "Without effect: the only replica is in sync.",
        low=1, high=INT_MAX,
    )  # fmt: skip
    unclean_election: bool = setting(
        "unclean.leader.election.enable", False, "Without effect: the only replica leads."
    )


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)  # a part of tables
class InertBrokerLog(InertLog):
    """Those of the broker, defaults of topics."""

    roll_jitter_ms: int | None = setting(
        "log.roll.jitter.ms", None, "Most that is taken off the age of a full segment; none is.",
        low=0, high=LONG_MAX, kind=int,
    )  # fmt: skip
    roll_jitter_hours: int = setting(
        "log.roll.jitter.hours", 0, "Most hours taken off the age of a full segment; none are.",
        low=0, high=INT_MAX,
    )  # fmt: skip
    index_bytes_max: int = setting(
        "log.index.size.max.bytes", _INDEX_BYTES, "Without effect: indexes grow with segments.",
        low=4, high=INT_MAX,
    )  # fmt: skip
    preallocate: bool = setting(
        "log.preallocate", False, "Without effect: segments grow as they are written."
    )  # fmt: skip

    @property
    def roll_jitter_effective_ms(self) -> int:
        """Most that is taken off the age of a full segment."""
        if self.roll_jitter_ms is not None:
            return self.roll_jitter_ms
        return self.roll_jitter_hours * 3_600_000


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)  # a part of tables
class InertTopicLog(InertLog):
    """Those of a topic."""

    segment_jitter_ms: int = setting(
        "segment.jitter.ms", 0, "Most that is taken off the age of a full segment; none is.",
        low=0, high=LONG_MAX,
    )  # fmt: skip
    index_bytes_max: int = setting(
        "segment.index.bytes", _INDEX_BYTES, "Without effect: indexes grow with segments.",
        low=4, high=INT_MAX,
    )  # fmt: skip
    preallocate: bool = setting(
        "preallocate", False, "Without effect: segments grow as they are written."
    )  # fmt: skip
    leader_throttled: tuple[str, ...] = setting(
        "leader.replication.throttled.replicas", (), "Without effect: nothing is replicated."
    )
    follower_throttled: tuple[str, ...] = setting(
        "follower.replication.throttled.replicas", (), "Without effect: nothing is replicated."
    )
    remote_storage: bool = setting(
        "remote.storage.enable", False, "All records are kept here.",
        choices=("false",), why=_NO_TIER,
    )  # fmt: skip
    remote_copy_disable: bool = setting(
        "remote.log.copy.disable", False, f"Without effect: {_NO_TIER}."
    )
    remote_delete_on_disable: bool = setting(
        "remote.log.delete.on.disable", False, f"Without effect: {_NO_TIER}."
    )
    local_retention_ms: int = setting(
        "local.retention.ms", -2, f"Without effect: {_NO_TIER}.", low=-2, high=LONG_MAX
    )
    local_retention_bytes: int = setting(
        "local.retention.bytes", -2, f"Without effect: {_NO_TIER}.", low=-2, high=LONG_MAX
    )


# Field of a topic's settings to what of the broker's it has as its default.
INERT_BEHIND = {
    "compression_type": "compression_type",
    "gzip_level": "gzip_level",
    "lz4_level": "lz4_level",
    "zstd_level": "zstd_level",
    "min_insync_replicas": "min_insync_replicas",
    "unclean_election": "unclean_election",
    "segment_jitter_ms": "roll_jitter_effective_ms",
    "index_bytes_max": "index_bytes_max",
    "preallocate": "preallocate",
}
