"""Headrace: the consumption side of a log, in one Python process.

`headrace.Broker` is a broker inside this process; `headrace serve` is one of its own.
`headrace.Admin` (to be awaited) and `headrace.SyncAdmin` administer a cluster.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.broker.embedded import Broker
    from headrace.client.admin_client import Admin, SyncAdmin
    from headrace.client.configs import ResourceType
    from headrace.client.errors import BrokerError, ClientError, Closed, Unreachable, Unsupported
    from headrace.client.group_offsets import CommittedOffset
    from headrace.client.offsets import OffsetSpec

__version__ = "0.1.0"
__all__ = [
    "Admin",
    "Broker",
    "BrokerError",
    "ClientError",
    "Closed",
    "CommittedOffset",
    "OffsetSpec",
    "ResourceType",
    "SyncAdmin",
    "Unreachable",
    "Unsupported",
    "__version__",
]

# Late, so that a client or a Spark executor does not pay for the broker, nor the other way round.
_MODULES = {
    "Admin": "headrace.client.admin_client",
    "Broker": "headrace.broker.embedded",
    "BrokerError": "headrace.client.errors",
    "ClientError": "headrace.client.errors",
    "Closed": "headrace.client.errors",
    "CommittedOffset": "headrace.client.group_offsets",
    "OffsetSpec": "headrace.client.offsets",
    "ResourceType": "headrace.client.configs",
    "SyncAdmin": "headrace.client.admin_client",
    "Unreachable": "headrace.client.errors",
    "Unsupported": "headrace.client.errors",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
