"""What is served: every API, its versions, and the module of `handlers/` that answers it.

ApiVersions answers from this list. A handler is imported with its first request: a start that
waited for all of them would take a fifth longer.
"""

from dataclasses import dataclass

from headrace.wire import codec

_BODY_BYTES_MAX = 1024 * 1024
_BY_PARTITION = 10
_LEASE_BODY_BYTES_MAX = 16 * 1024 * 1024  # some 100,000 dispositions with their reasons


@dataclass(frozen=True, slots=True)
class Api:
    """An API as it is served and advertised.

    `advertised_from` is lower than the versions served where a client insists on seeing it.
    `flexible` is needed for messages that the codec does not know. Only APIs that carry records
    need requests larger than `body_bytes_max`: they are read without making objects. A consumer
    names all its partitions in one request of some APIs, which are processed in portions:
    `elements_factor` times as many elements are accepted there.
    """

    key: int
    name: str
    versions: range
    handler: str
    advertised_from: int | None = None
    flexible: bool | None = None
    body_bytes_max: int = _BODY_BYTES_MAX
    elements_factor: int = 1

    def is_flexible(self, version: int) -> bool:
        """Whether this version's headers have tagged fields."""
        return codec.is_flexible(self.key, version) if self.flexible is None else self.flexible


def _lease(key: int, name: str) -> Api:
    return Api(key, name, range(1), "leases", flexible=True, body_bytes_max=_LEASE_BODY_BYTES_MAX)


SERVED = (
    Api(0, "Produce", range(3, 14), "produce", advertised_from=0, body_bytes_max=2**31 - 1),
    Api(1, "Fetch", range(4, 19), "fetch"),
    Api(2, "ListOffsets", range(1, 12), "list_offsets", elements_factor=_BY_PARTITION),
    Api(3, "Metadata", range(14), "metadata"),
    Api(10, "FindCoordinator", range(7), "find_coordinator"),
    Api(18, "ApiVersions", range(5), "api_versions"),
    Api(19, "CreateTopics", range(2, 8), "topics"),
    Api(20, "DeleteTopics", range(1, 7), "topics"),
    Api(37, "CreatePartitions", range(4), "create_partitions"),
    Api(22, "InitProducerId", range(6), "init_producer_id"),
    Api(32, "DescribeConfigs", range(1, 5), "configs"),
    Api(33, "AlterConfigs", range(3), "alter_configs"),
    Api(44, "IncrementalAlterConfigs", range(2), "alter_configs"),
    Api(60, "DescribeCluster", range(3), "describe_cluster"),
    Api(
        23,
        "OffsetForLeaderEpoch",
        range(2, 5),
        "offset_for_leader_epoch",
        elements_factor=_BY_PARTITION,
    ),
    Api(21, "DeleteRecords", range(3), "delete_records"),
    Api(35, "DescribeLogDirs", range(1, 6), "describe_log_dirs"),
    Api(75, "DescribeTopicPartitions", range(1), "describe_topic_partitions"),
    Api(61, "DescribeProducers", range(1), "describe_producers"),
    Api(74, "ListConfigResources", range(2), "list_config_resources"),
    Api(43, "ElectLeaders", range(3), "replicas"),
    Api(45, "AlterPartitionReassignments", range(2), "replicas"),
    Api(46, "ListPartitionReassignments", range(1), "replicas"),
    Api(48, "DescribeClientQuotas", range(2), "client_entities"),
    Api(50, "DescribeUserScramCredentials", range(1), "client_entities"),
    Api(11, "JoinGroup", range(10), "join_group"),
    Api(14, "SyncGroup", range(6), "sync_group"),
    Api(12, "Heartbeat", range(5), "heartbeat"),
    Api(13, "LeaveGroup", range(6), "leave_group"),
    Api(8, "OffsetCommit", range(2, 11), "offset_commit"),
    Api(9, "OffsetFetch", range(1, 11), "offset_fetch", elements_factor=_BY_PARTITION),
    Api(15, "DescribeGroups", range(7), "describe_groups"),
    Api(16, "ListGroups", range(6), "list_groups"),
    Api(42, "DeleteGroups", range(3), "delete_groups"),
    Api(47, "OffsetDelete", range(1), "offset_delete"),
    Api(68, "ConsumerGroupHeartbeat", range(2), "consumer_group_heartbeat"),
    Api(69, "ConsumerGroupDescribe", range(2), "consumer_group_describe"),
    Api(20920, "DescribeOffsetExpiry", range(1), "offset_expiry", flexible=True),
    Api(20930, "CutDataFolder", range(1), "data_folder_cut", flexible=True),
)
# OffsetCommit: those that follow each other on a connection share a write (`request.Later`).
ANSWERED_LATER = frozenset({8})
# Carried out though the peer hung up, since they do not wait for others: Produce, OffsetCommit,
# LeaveGroup, heartbeats and acknowledgements of groups, changes by administrators, and what leases
# stage and commit.
CARRIED_OUT = frozenset(
    {0, 8, 13, 19, 20, 21, 33, 37, 42, 44, 47, 68, 76, 79, 91, 92, 20903, 20904, 20908}
)
SERVED_FOR_SHARE_GROUPS = (
    Api(76, "ShareGroupHeartbeat", range(1, 2), "share_group_heartbeat"),
    Api(77, "ShareGroupDescribe", range(1, 2), "share_group_describe"),
    Api(78, "ShareFetch", range(1, 3), "share_fetch"),
    Api(79, "ShareAcknowledge", range(1, 3), "share_acknowledge"),
    Api(90, "DescribeShareGroupOffsets", range(2), "describe_share_group_offsets"),
    Api(91, "AlterShareGroupOffsets", range(1), "alter_share_group_offsets"),
    Api(92, "DeleteShareGroupOffsets", range(1), "delete_share_group_offsets"),
    _lease(20900, "LeaseOpen"),
    _lease(20901, "LeaseAcquire"),
    _lease(20902, "LeaseRenew"),
    _lease(20903, "LeaseStage"),
    _lease(20904, "LeaseCommit"),
    _lease(20905, "LeaseDescribe"),
    Api(20906, "DescribeShareRecords", range(1), "describe_share_records", flexible=True),
    Api(20907, "ListArchivedRecords", range(1), "archived_records", flexible=True),
    Api(20908, "ClearArchivedRecords", range(1), "archived_records", flexible=True),
    Api(20921, "ListLeaseSessions", range(1), "lease_sessions", flexible=True),
)
