"""The broker of the demo: `headrace serve` as a process of its own, so that it can be killed.

What it prints goes to `broker.log` beside its data; when it dies unasked, the end of that file is
part of the error.
"""

import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

TAIL_LINES = 15


class ServerDied(Exception):
    """The broker ended without being asked, or did not come up in time."""


class FreePort:
    """A port on loopback that nobody listens on, for a server that is to be started.

    On Linux no process that asks for any free port is given it while this lives, also when the
    server is away; elsewhere another one may take it before it is used.
    """

    def __init__(self) -> None:
        held = socket.socket()
        # Who does so too, as servers do, can bind the port and listen beside one that holds it.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        self.number: int = held.getsockname()[1]
        if sys.platform == "linux":
            weakref.finalize(self, held.close)
        else:
            held.close()


class Server:
    """A broker process on loopback; as a context manager it is stopped at the end."""

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        command: tuple[str, ...] = (sys.executable, "-m", "headrace", "serve"),
    ) -> None:
        self._free = None if port else FreePort()
        self.port = self._free.number if self._free else port
        self.log_file = data_dir / "broker.log"
        self._command = [*command, "--port", str(self.port), "--data-dir", str(data_dir / "broker")]
        for name, value in (settings or {}).items():
            self._command += ["--set", f"{name}={value}"]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, *, timeout_s: float = 30) -> float:
        """Start the process; returns the seconds until it accepted a connection.

        Raises: ServerDied.
        """
        assert self._process is None, "the broker runs already"
        began = time.monotonic()
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own command
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        while not self._accepts():
            self.check()
            if time.monotonic() - began > timeout_s:
                self.kill()
                raise ServerDied(
                    f"the broker did not listen within {timeout_s:.0f} s\n{self._tail()}"
                )
            time.sleep(0.02)
        return time.monotonic() - began

    def check(self) -> None:
        """Raises: ServerDied when the process ended without being asked."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self._process = None
            raise ServerDied(f"the broker ended with code {code}\n{self._tail()}")

    def kill(self) -> None:
        """SIGKILL: the process has no chance to write anything more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self, *, timeout_s: float = 30) -> None:
        """SIGTERM, and SIGKILL when that is not enough."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def _accepts(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _tail(self) -> str:
        lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([f"the end of {self.log_file}:", *lines[-TAIL_LINES:]])
