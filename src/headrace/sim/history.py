"""What happened in one simulated history: a running hash of every step, and the last of them.

Two runs of one seed have the same hash, or the simulator is broken: whoever looks for a failure
must be able to have it again.
"""

import hashlib
import logging
from collections import deque
from collections.abc import Callable

_LAST_STEPS = 60


class History:
    """The steps of one history, in order; `tell` is called with each line as it comes."""

    def __init__(
        self, time_us: Callable[[], int], tell: Callable[[str], None] | None = None
    ) -> None:
        self.events = 0
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
        self.events += 1
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
