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
    from headrace.client.errors import BrokerError, ClientError, Closed, Unreachable, Unsupported
    from headrace.client.group_offsets import CommittedOffset, PartitionResults
    from headrace.client.groups import GroupDescription, GroupListing, MemberDescription
    from headrace.client.nodes import ClusterDescription
    from headrace.client.offsets import ListedOffset, OffsetSpec
    from headrace.client.share.consumer import ShareConsumer
    from headrace.client.share.records import ShareRecord
    from headrace.client.share.sync import SyncShareConsumer, SyncShareRecord
    from headrace.client.share.words import (
        AcknowledgeResult,
        AlreadyAcknowledged,
        HandFull,
        LockLost,
        Reject,
        ShareStats,
    )
    from headrace.client.topics import TopicDescription

__version__ = "0.1.0"
__all__ = [
    "AcknowledgeResult",
    "Admin",
    "AlreadyAcknowledged",
    "Broker",
    "BrokerError",
    "ClientError",
    "Closed",
    "ClusterDescription",
    "CommittedOffset",
    "ConfigEntry",
    "GroupDescription",
    "GroupListing",
    "HandFull",
    "ListedOffset",
    "LockLost",
    "MemberDescription",
    "OffsetSpec",
    "PartitionResults",
    "Reject",
    "ResourceType",
    "ShareConsumer",
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
    "AcknowledgeResult": "headrace.client.share.words",
    "Admin": "headrace.client.admin_client",
    "AlreadyAcknowledged": "headrace.client.share.words",
    "Broker": "headrace.broker.embedded",
    "BrokerError": "headrace.client.errors",
    "ClientError": "headrace.client.errors",
    "Closed": "headrace.client.errors",
    "ClusterDescription": "headrace.client.nodes",
    "CommittedOffset": "headrace.client.group_offsets",
    "ConfigEntry": "headrace.client.configs",
    "GroupDescription": "headrace.client.groups",
    "GroupListing": "headrace.client.groups",
    "HandFull": "headrace.client.share.words",
    "ListedOffset": "headrace.client.offsets",
    "LockLost": "headrace.client.share.words",
    "MemberDescription": "headrace.client.groups",
    "OffsetSpec": "headrace.client.offsets",
    "PartitionResults": "headrace.client.group_offsets",
    "Reject": "headrace.client.share.words",
    "ResourceType": "headrace.client.configs",
    "ShareConsumer": "headrace.client.share.consumer",
    "ShareRecord": "headrace.client.share.records",
    "ShareStats": "headrace.client.share.words",
    "SyncAdmin": "headrace.client.admin_client",
    "SyncShareConsumer": "headrace.client.share.sync",
    "SyncShareRecord": "headrace.client.share.sync",
    "TopicDescription": "headrace.client.topics",
    "Unreachable": "headrace.client.errors",
    "Unsupported": "headrace.client.errors",
}


if not TYPE_CHECKING:  # a type checker would take any name for one that is there

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
