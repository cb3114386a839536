"""What happened in one simulated history: a running hash of every step, and the last of them.

Two runs of one seed have the same hash, or the simulator is broken: whoever looks for a failure
must be able to have it again.

Steps are what clients, faults and lives of the broker do; their lines are hashed and shown. Events
are all that the loop runs for the broker and its clients, each counted once (`Events`).
"""

import gc
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_LAST_STEPS = 60
_COLLECT_AFTER = (20_000, 10, 10)  # new objects, younger collections


@dataclass(frozen=True, slots=True)
class Events:
    """Number of events of a history, by kind.

    Args:
        steps: Steps of clients, faults, starts and ends of the broker.
        timers: Timers that went off, without those of bytes under way.
        deliveries: Pieces of requests and responses, and ends of connections, that arrived.
        operations: Operations of the disk, with those that failed.
    """

    steps: int
    timers: int
    deliveries: int
    operations: int

    @property
    def total(self) -> int:
        """Return the number of all events."""
        return self.steps + self.timers + self.deliveries + self.operations


class History:
    """The steps of one history, in order; `tell` is called with each line as it comes."""

    def __init__(
        self, time_us: Callable[[], int], tell: Callable[[str], None] | None = None
    ) -> None:
        self.steps = 0
        self.faults = 0
        self.last: deque[str] = deque(maxlen=_LAST_STEPS)
        self._time_us = time_us
        self._tell = tell
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        """A hash of all steps so far."""
        return self._hash.hexdigest()

    def step(self, who: str, what: str) -> None:
        """Something happened."""
        self.steps += 1
        line = f"{self._time_us() / 1e6:10.6f} {who:>10} {what}"
        self._hash.update(line.encode() + b"\n")
        self.last.append(line)
        if self._tell is not None:
            self._tell(line)

    def fault(self, what: str) -> None:
        """Something was done to the broker, its disk, its clocks or its network."""
        self.faults += 1
        self.step("FAULT", what)

    def note(self, line: str) -> None:
        """A log line of the broker: shown, but no step, as words may change."""
        shown = f"{self._time_us() / 1e6:10.6f} {'log':>10} {line}"
        self.last.append(shown)
        if self._tell is not None:
            self._tell(shown)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage rarely: a history makes few cycles, and looking for them costs a tenth."""
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class BrokerLog(logging.Handler):
    """What the broker logs while a history happens: shown with it; an exception in one is a bug."""

    def __init__(self, history: History, bug: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._history = history
        self._bug = bug
        self._loggers = [logging.getLogger(name) for name in ("headrace", "asyncio")]
        self._were = [(one.propagate, one.level) for one in self._loggers]

    def begin(self) -> None:
        """Take all lines, which then go nowhere else."""
        for one in self._loggers:
            one.addHandler(self)
            one.propagate = False
            one.setLevel(logging.WARNING)

    def end(self) -> None:
        """Let lines go where they went before."""
        for one, (propagate, level) in zip(self._loggers, self._were, strict=True):
            one.removeHandler(self)
            one.propagate = propagate
            one.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        self._history.note(f"{record.levelname} {record.getMessage()}")
        if record.exc_info:
            self._bug(f"{record.getMessage()}: {record.exc_info[1]!r}")
