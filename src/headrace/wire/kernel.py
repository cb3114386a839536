"""The compiled kernel where it was built, for modules that have a slower way in plain Python."""

import os
from types import ModuleType

LAYOUT = 5  # of what callers pass to the kernel

REFUSALS = (  # by the kernel's number
    "",
    "varint",
    "length",
    "number of headers",
    "record length",
    "offset delta",
    "timestamp",
    "header without a name",
    "total of headers",
)


def load() -> ModuleType | None:
    """Import the kernel; None where it is not built, is out of date, or HEADRACE_KERNEL=numpy."""
    if os.environ.get("HEADRACE_KERNEL") == "numpy":
        return None
    try:
        from headrace.wire import _codec
    except ImportError:  # no kernel, and no Cython either that would run its source
        return None
    # A build from before the source was updated may be lying there.
    return _codec if _codec.COMPILED and getattr(_codec, "LAYOUT", None) == LAYOUT else None
