"""The compiled kernel where it was built, for modules that have a slower way in plain Python."""

import os
from importlib import import_module
from types import ModuleType

LAYOUT = 6  # of what callers pass to the kernel

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


def load(half: str = "_codec") -> ModuleType | None:
    """Import a half of the kernel, `_codec` or `_codec_encode`.

    Returns: None where it is not built, is out of date, or HEADRACE_KERNEL=numpy.
    """
    if os.environ.get("HEADRACE_KERNEL") == "numpy":
        return None
    try:
        module = import_module(f"headrace.wire.{half}")
    except ImportError:  # no kernel, and no Cython either that would run its source
        return None
    # A build from before the source was updated may be lying there.
    return module if module.COMPILED and getattr(module, "LAYOUT", None) == LAYOUT else None
