"""Headrace: the consumption side of a log, in one Python process.

`headrace.Broker` is a broker inside this process; `headrace serve` is one of its own.
`headrace.Admin` (to be awaited) and `headrace.SyncAdmin` administer a cluster.
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
    from headrace.client.share_browse import BrowsedRecord
    from headrace.client.share_records import (
        BrowsedRun,
        RecordHolder,
        RecordState,
        SharePartitionDescription,
    )
    from headrace.client.topics import TopicDescription

__version__ = "0.1.0"
__all__ = [
    "Admin",
    "Broker",
    "BrokerError",
    "BrowsedRecord",
    "BrowsedRun",
    "ClientError",
    "Closed",
    "ClusterDescription",
    "CommittedOffset",
    "ConfigEntry",
    "GroupDescription",
    "GroupListing",
    "ListedOffset",
    "MemberDescription",
    "OffsetSpec",
    "PartitionResults",
    "RecordHolder",
    "RecordState",
    "ResourceType",
    "SharePartitionDescription",
    "SyncAdmin",
    "TopicDescription",
    "Unreachable",
    "Unsupported",
    "__version__",
]

# Late, so that a client or a Spark executor does not pay for the broker, nor the other way round.
_MODULES = {
    "Admin": "headrace.client.admin_client",
    "Broker": "headrace.broker.embedded",
    "BrokerError": "headrace.client.errors",
    "BrowsedRecord": "headrace.client.share_browse",
    "BrowsedRun": "headrace.client.share_records",
    "ClientError": "headrace.client.errors",
    "Closed": "headrace.client.errors",
    "ClusterDescription": "headrace.client.nodes",
    "CommittedOffset": "headrace.client.group_offsets",
    "ConfigEntry": "headrace.client.configs",
    "GroupDescription": "headrace.client.groups",
    "GroupListing": "headrace.client.groups",
    "ListedOffset": "headrace.client.offsets",
    "MemberDescription": "headrace.client.groups",
    "OffsetSpec": "headrace.client.offsets",
    "PartitionResults": "headrace.client.group_offsets",
    "RecordHolder": "headrace.client.share_records",
    "RecordState": "headrace.client.share_records",
    "ResourceType": "headrace.client.configs",
    "SharePartitionDescription": "headrace.client.share_records",
    "SyncAdmin": "headrace.client.admin_client",
    "TopicDescription": "headrace.client.topics",
    "Unreachable": "headrace.client.errors",
    "Unsupported": "headrace.client.errors",
}


if not TYPE_CHECKING:  # a type checker would take any name for one that is there

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
