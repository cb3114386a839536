"""A broker that is killed, after one kill in four a second time amid the start that follows."""

import random
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from headrace.demo.server import Server

_STARTS_PER_KILL = 4
_OPENING_S = 30.0
_DELAY_S = 0.15  # the most that the second kill comes after the opening of the folder


class KilledServer(Server):
    """Draw which starts after a kill are killed, too, and when.

    A start of half a second imports modules for all but some 40 ms. So the kill comes a random time
    after the process has opened its data folder: half of the delays are below 38 ms. A kill among
    the imports would leave the folder as it was.

    Attributes:
        kills_amid_starts: the number of such kills.
        kills_before_listening: those of them that came before the broker accepted connections.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        seed: str,
        settings: Mapping[str, str],
        command: tuple[str, ...] = (),
    ) -> None:
        if command:
            super().__init__(data_dir, settings=settings, command=command)
        else:
            super().__init__(data_dir, settings=settings)
        self._lock_file = data_dir / "broker" / ".lock"
        self._random = random.Random(f"starts of {seed}")
        self._draws = 0
        self._due = 0
        self.kills_amid_starts = 0
        self.kills_before_listening = 0

    def draw(self) -> bool:
        """Return whether the next start is to be killed: one of each four, at random."""
        turn = self._draws % _STARTS_PER_KILL
        if turn == 0:
            self._due = self._random.randrange(_STARTS_PER_KILL)
        self._draws += 1
        return turn == self._due

    def kill_amid_start(self) -> None:
        """Start the process and kill it while it starts, or just after it has."""
        delay_s = _DELAY_S * self._random.random() ** 2
        with self.log_file.open("ab") as log:
            process = self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        until = time.monotonic() + _OPENING_S
        while not self._has_opened(process.pid):
            self.check()
            assert time.monotonic() < until, "the broker has not opened its folder"
            time.sleep(0.001)
        time.sleep(delay_s)
        self.check()
        self.kills_amid_starts += 1
        self.kills_before_listening += not self._accepts()
        self.kill()

    def _has_opened(self, pid: int) -> bool:
        """Return whether a process has the lock file of the folder open, as Linux lists files."""
        files = Path(f"/proc/{pid}/fd")
        if not Path("/proc/self/fd").exists():
            return self._accepts()
        try:
            return any(file.readlink() == self._lock_file for file in files.iterdir())
        except FileNotFoundError:  # closed while it was looked at
            return False
