"""A child process of the Python worker that does a part of its work, and may die of it.

The child is a fork: it has the worker's modules, broadcasts and task context, and nothing is
pickled but batches and results. Sockets that it inherits are cut off, so that neither Spark's nor
those of a connection pool are used by two processes; to the user's code they look closed by the
peer. Source: fork(2), prctl(2), proc_pid_oom_score_adj(5).
"""

import contextlib
import ctypes
import os
import signal
import socket
import stat
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from headrace.spark.isolation.channel import ENDING, Reader, Shared, Writer

_PR_SET_PDEATHSIG = 1
_OOM_SCORE_MAX = "1000"
_FAILED = 1

Serve = Callable[[Any], Iterator[Any]]


class Death(Exception):
    """The child is gone; says of what."""


class Child:
    """A fork that answers each job with the results that `serve` makes of it, one by one.

    It may take `memory_bytes` more than its parent has, and `timeout_s` for one result.
    """

    def __init__(self, serve: Serve, timeout_s: float | None, memory_bytes: int | None) -> None:
        self._timeout_s = timeout_s
        self._overdue = False
        self._shared = Shared()
        self._reader = Reader(self._shared, self._alive)
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if not self._pid:
            _live(serve, self._shared, memory_bytes)
        self._shared.childs.close()

    def ask(self, job: Any) -> None:
        """Send a job. Raises: `Death`."""
        try:
            self._reader.ask(job, self._timeout_s)
        except OSError:
            raise Death(self._cause()) from None

    def result(self) -> Any:
        """The next result. Raises: `Death` when there will be none."""
        while True:
            try:
                return self._reader.result(None if self._overdue else self._timeout_s)
            except TimeoutError:
                self._overdue = True  # what it made before still comes
                self._kill()
            except EOFError:
                raise Death(self._cause()) from None

    def end(self) -> None:
        """Kill the child, if it still runs."""
        self._kill()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self._shared.close()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _alive(self) -> bool:
        try:
            return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:  # a library waited for all children
            return False

    def _cause(self) -> str:
        # It may only have closed its end; the signal does nothing to one that is ending already.
        self._kill()
        ended = None
        with contextlib.suppress(ChildProcessError):
            ended = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        if self._overdue:
            return f"took longer than {self._timeout_s:g} s and was killed"
        if self._shared.memory_was_full:
            return "ran out of memory"
        if self._shared.raised:
            return f"ended with {self._shared.raised}"
        if ended is None or ended.si_code == os.CLD_EXITED:
            return f"ended with exit code {ended.si_status if ended else 'unknown'}"
        name = signal.Signals(ended.si_status).name
        return f"died: {name}" + (", perhaps out of memory" if name == "SIGKILL" else "")


def _live(serve: Serve, shared: Shared, memory_bytes: int | None) -> NoReturn:
    """All of the child's life. Nothing of the parent's is flushed or closed at its end."""
    code = _FAILED
    try:
        shared.parents.close()
        _cut_off(shared.childs)
        _be_the_first_to_go(memory_bytes)
        writer = Writer(shared)
        while True:
            for result in serve(writer.job()):
                _written(writer, result)
            writer.flush()
    except EOFError:
        code = 0
    except MemoryError:
        shared.say_memory_is_full()
    except ENDING as error:
        shared.say_raised(error)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else _FAILED
    except BaseException:  # whatever it is, the parent's code must not go on in two processes
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _written(writer: Writer, result: Any) -> None:
    try:
        writer.result(result)
    except (MemoryError, OSError):
        raise
    except Exception as error:  # a value that cannot be sent is its record's own
        writer.result(ValueError(f"no value for a column: {error}"))


def _cut_off(ours: socket.socket) -> None:
    """Let every other inherited socket look closed by its peer."""
    folder = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
    closed, peer = socket.socketpair()
    peer.close()
    for number in [int(path.name) for path in folder.iterdir()]:
        with contextlib.suppress(OSError):
            if number != ours.fileno() and stat.S_ISSOCK(os.fstat(number).st_mode):
                os.dup2(closed.fileno(), number, inheritable=False)


def _be_the_first_to_go(memory_bytes: int | None) -> None:
    """Die with the parent, before it when memory runs out, and leave no core behind."""
    import resource  # not on Windows, where nothing forks

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):  # a container may forbid it
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE_MAX, encoding="ascii")
        if memory_bytes is not None:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            most = pages * resource.getpagesize() + memory_bytes
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
