"""Headrace: the consumption side of a log, in one Python process.

`headrace.Broker` is a broker inside this process; `headrace serve` is one of its own.
`headrace.Admin` (to be awaited) and `headrace.SyncAdmin` administer a cluster;
`headrace.ShareConsumer` and `headrace.SyncShareConsumer` work off the records of a share group.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.broker.embedded import Broker
    from headrace.client.admin_client import Admin, SyncAdmin
    from headrace.client.configs import ConfigEntry, ResourceType
    from headrace.client.consumer import Consumer
    from headrace.client.errors import BrokerError, ClientError, Closed, Unreachable, Unsupported
    from headrace.client.group_offsets import CommittedOffset, PartitionResults
    from headrace.client.groups import GroupDescription, GroupListing, MemberDescription
    from headrace.client.nodes import ClusterDescription
    from headrace.client.offsets import ListedOffset, OffsetSpec
    from headrace.client.share_archived import ArchivedRecords, ArchivedRun
    from headrace.client.share_browse import BrowsedRecord
    from headrace.client.share_consumer.consumer import ShareConsumer
    from headrace.client.share_consumer.records import ShareRecord
    from headrace.client.share_consumer.sync import SyncShareConsumer, SyncShareRecord
    from headrace.client.share_consumer.words import (
        AcknowledgeResult,
        AlreadyAcknowledged,
        HandFull,
        LockLost,
        Reject,
        ShareStats,
    )
    from headrace.client.share_groups import ShareGroupDescription, ShareMember, ShareOffset
    from headrace.client.share_records import (
        BrowsedRun,
        RecordHolder,
        RecordState,
        SharePartitionDescription,
    )
    from headrace.client.topics import TopicDescription

__version__ = "0.1.0"
__all__ = [
    "AcknowledgeResult",
    "Admin",
    "AlreadyAcknowledged",
    "ArchivedRecords",
    "ArchivedRun",
    "Broker",
    "BrokerError",
    "BrowsedRecord",
    "BrowsedRun",
    "ClientError",
    "Closed",
    "ClusterDescription",
    "CommittedOffset",
    "ConfigEntry",
    "Consumer",
    "GroupDescription",
    "GroupListing",
    "HandFull",
    "ListedOffset",
    "LockLost",
    "MemberDescription",
    "OffsetSpec",
    "PartitionResults",
    "RecordHolder",
    "RecordState",
    "Reject",
    "ResourceType",
    "ShareConsumer",
    "ShareGroupDescription",
    "ShareMember",
    "ShareOffset",
    "SharePartitionDescription",
    "ShareRecord",
    "ShareStats",
    "SyncAdmin",
    "SyncShareConsumer",
    "SyncShareRecord",
    "TopicDescription",
    "Unreachable",
    "Unsupported",
    "__version__",
]

# Late, so that a client or a Spark executor does not pay for the broker, nor the other way round.
_MODULES = {
    "AcknowledgeResult": "headrace.client.share_consumer.words",
    "Admin": "headrace.client.admin_client",
    "AlreadyAcknowledged": "headrace.client.share_consumer.words",
    "ArchivedRecords": "headrace.client.share_archived",
    "ArchivedRun": "headrace.client.share_archived",
    "Broker": "headrace.broker.embedded",
    "BrokerError": "headrace.client.errors",
    "BrowsedRecord": "headrace.client.share_browse",
    "BrowsedRun": "headrace.client.share_records",
    "ClientError": "headrace.client.errors",
    "Closed": "headrace.client.errors",
    "ClusterDescription": "headrace.client.nodes",
    "CommittedOffset": "headrace.client.group_offsets",
    "ConfigEntry": "headrace.client.configs",
    "Consumer": "headrace.client.consumer",
    "GroupDescription": "headrace.client.groups",
    "GroupListing": "headrace.client.groups",
    "HandFull": "headrace.client.share_consumer.words",
    "ListedOffset": "headrace.client.offsets",
    "LockLost": "headrace.client.share_consumer.words",
    "MemberDescription": "headrace.client.groups",
    "OffsetSpec": "headrace.client.offsets",
    "PartitionResults": "headrace.client.group_offsets",
    "RecordHolder": "headrace.client.share_records",
    "RecordState": "headrace.client.share_records",
    "Reject": "headrace.client.share_consumer.words",
    "ResourceType": "headrace.client.configs",
    "ShareConsumer": "headrace.client.share_consumer.consumer",
    "ShareGroupDescription": "headrace.client.share_groups",
    "ShareMember": "headrace.client.share_groups",
    "ShareOffset": "headrace.client.share_groups",
    "SharePartitionDescription": "headrace.client.share_records",
    "ShareRecord": "headrace.client.share_consumer.records",
    "ShareStats": "headrace.client.share_consumer.words",
    "SyncAdmin": "headrace.client.admin_client",
    "SyncShareConsumer": "headrace.client.share_consumer.sync",
    "SyncShareRecord": "headrace.client.share_consumer.sync",
    "TopicDescription": "headrace.client.topics",
    "Unreachable": "headrace.client.errors",
    "Unsupported": "headrace.client.errors",
}


if not TYPE_CHECKING:  # a type checker would take any name for one that is there

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")

    def __dir__() -> list[str]:
        """Return the public names, so that interactive shells complete them before their import."""
        return sorted(globals().keys() | set(__all__))
