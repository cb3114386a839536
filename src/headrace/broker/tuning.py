"""What a process that is nothing but a broker sets for itself, and what a start does for itself.

`tune_process` is not for an embedded broker: all of it holds for the whole process.
"""

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator

# From <malloc.h> of the GNU C library.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_TRIM_BYTES = 64 * 1024 * 1024
_MIDDLE, _FULL = 1, 2  # generations of the collector
_MMAP_BYTES = 16 * 1024 * 1024
# A full collection follows 100,000 new objects that stay, about as many as by default.
_THRESHOLDS = (5_000, 5, 4)
# Seconds after which a thread that decodes a large request gives the interpreter to the event loop.
# A commit takes three turns of the loop: with Python's 5 ms it waits 15 ms for one such thread.
_SWITCH_SECONDS = 0.001


def tune_process() -> None:
    """Keep the collector and the allocator from costing more than the work itself.

    What was made at the start lives as long as the process: frozen, it is not walked by full
    collections, which would stop everything for 20 to 80 ms. Young objects are collected once in
    hundreds of requests: else about every thirtieth pays 0.1 to 0.7 ms for all. Buffers of about a
    megabyte, one for each partition of a fetch, are kept by the allocator: pages that are fresh
    from the system take longer than reading the records into them (a third of the time of a large
    fetch).
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.freeze()
    gc.callbacks.append(_freeze_what_stays)
    gc.set_threshold(*_THRESHOLDS)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library, which has no such setting
    mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def _freeze_what_stays(phase: str, info: dict[str, int]) -> None:
    """After a full collection, freeze what it left, so that the next looks at newer objects only.

    A million committed offsets would else be walked each time: 0.4 s in which nobody is answered.
    What is frozen still goes with its last reference; only cycles of it would stay, and what lives
    long here, as connections and groups do, is in none when it goes.
    """
    if phase == "stop" and info["generation"] == _FULL:
        gc.freeze()


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """For a stretch of work that only makes what stays.

    The collector would walk all of it again and again, and find nothing to free.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def age_new_objects() -> None:
    """Let new objects count as old, in the thread that made many while the collector was paused.

    Otherwise the first collection after the pause would walk all of them, in whichever thread it
    comes, and the event loop would stand still for half a second for a million.
    """
    gc.collect(_MIDDLE)


def freeze_old_objects() -> None:
    """Keep full collections from walking old objects, in a process that `tune_process` prepared."""
    if _freeze_what_stays in gc.callbacks:
        gc.freeze()
