"""How far long work has come, on a terminal only, and only once somebody may wonder."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

_QUIET_S = 1.0
_EVERY_S = 0.1
_CLEAR = "\r\x1b[K"


def counted(items: Sequence[T], what: str) -> Iterator[T]:
    """The items, one after the other; stderr says how many there were, e.g. `12/4000 groups`."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield from items
        return
    told_at = time.monotonic() + _QUIET_S
    is_told = False
    try:
        for done, item in enumerate(items):
            if time.monotonic() >= told_at:
                print(f"{_CLEAR}{done}/{len(items)} {what}", end="", file=sys.stderr, flush=True)
                told_at, is_told = time.monotonic() + _EVERY_S, True
            yield item
    finally:
        if is_told:
            print(_CLEAR, end="", file=sys.stderr, flush=True)
