"""Named points at which the simulator makes rare events common.

`buggify("log.roll")` is False in production. While a simulation runs, `install` sets a function
that decides by the seed, so that segments roll early, portions hold one item, and writes are
delayed. A point may only choose among behaviours that are correct at any time.
Source: FoundationDB's BUGGIFY macro.
"""

from collections.abc import Callable

Chooser = Callable[[str], bool]
_chooser: Chooser | None = None


def buggify(point: str) -> bool:
    """Return whether the rare behaviour is chosen at a point; False outside of simulations."""
    return _chooser is not None and _chooser(point)


def install(chooser: Chooser | None) -> Chooser | None:
    """Decide at every point by `chooser`, None for production; returns the previous one."""
    global _chooser  # one for all of the process, as a hook of production code
    previous, _chooser = _chooser, chooser
    return previous
