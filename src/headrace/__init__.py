"""Headrace: the consumption side of a log, in one Python process.

`headrace.Broker` is a broker inside this process; `headrace serve` is one of its own.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.broker.embedded import Broker

__version__ = "0.1.0"
__all__ = ["Broker", "__version__"]


def __getattr__(name: str) -> Any:
    # Late, so that a client or a Spark executor does not pay for the broker.
    if name == "Broker":
        from headrace.broker.embedded import Broker

        return Broker
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
