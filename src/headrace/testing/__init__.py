"""A broker for tests: in process, over the wire, with a clock that moves on demand and faults.

With pytest there is nothing to import: the plugin `headrace` brings the fixtures. Without it:

    with BrokerUnderTest() as broker:
        broker.clock.advance(days=8)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.testing.broker import BrokerUnderTest
    from headrace.testing.clock import BrokerClock
    from headrace.testing.faults import Fault, Faults
    from headrace.testing.topics import ExternalBroker

__all__ = ["BrokerClock", "BrokerUnderTest", "ExternalBroker", "Fault", "Faults"]

# Late, because every pytest run on a machine with Headrace imports this package for the plugin.
_MODULES = {
    "BrokerClock": "headrace.testing.clock",
    "BrokerUnderTest": "headrace.testing.broker",
    "ExternalBroker": "headrace.testing.topics",
    "Fault": "headrace.testing.faults",
    "Faults": "headrace.testing.faults",
}


if not TYPE_CHECKING:  # a type checker would take any name for one that is there

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        raise AttributeError(f"module 'headrace.testing' has no attribute {name!r}")
