"""Results of a child process that reach its parent although the child dies right after.

The results are one stream of bytes. The child writes it to memory that both share, without a
system call, and sends what has gathered through a socket when the memory is full or a job is done.
When the child is gone, its parent takes the rest from the memory: byte n is at n modulo its size.
"""

import mmap
import pickle
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

_LENGTH = struct.Struct("!I")
_TOTAL = struct.Struct("=Q")
_HEAD = 16
_MEMORY_FULL_AT, _RAISED_AT = 8, 9
ENDING = (KeyboardInterrupt, GeneratorExit)  # exceptions that end a child and leave their name
_RING = 1 << 20
_LOOK_S = 1.0


class Shared:
    """What parent and child share; made before the fork."""

    def __init__(self) -> None:
        self.parents, self.childs = socket.socketpair()
        self.memory = mmap.mmap(-1, _HEAD + _RING)

    @property
    def total(self) -> int:
        """Bytes of results that the child made."""
        found: int = _TOTAL.unpack_from(self.memory)[0]
        return found

    @property
    def memory_was_full(self) -> bool:
        """Whether the child ended as Python found no memory."""
        return bool(self.memory[_MEMORY_FULL_AT])

    def say_memory_is_full(self) -> None:
        """Takes none."""
        self.memory[_MEMORY_FULL_AT] = 1

    @property
    def raised(self) -> str | None:
        """The name of the exception that ended the child, if it was one of `ENDING`."""
        number = self.memory[_RAISED_AT]
        return ENDING[number - 1].__name__ if number else None

    def say_raised(self, error: BaseException) -> None:
        """Keep the name of an exception of `ENDING`."""
        numbers = [number for number, kind in enumerate(ENDING, 1) if isinstance(error, kind)]
        self.memory[_RAISED_AT] = numbers[0]

    def close(self) -> None:
        self.parents.close()
        self.memory.close()


class Writer:
    """The child's side."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._total = self._sent = 0

    def job(self) -> Any:
        """The next job. Raises: EOFError when the parent is gone."""
        (length,) = _LENGTH.unpack(_received(self._shared.childs, _LENGTH.size))
        return pickle.loads(_received(self._shared.childs, length))  # noqa: S301 -- from our parent

    def result(self, result: Any) -> None:
        """A result, which is in memory that survives when this returns."""
        body = pickle.dumps(result, protocol=5)
        frame = _LENGTH.pack(len(body)) + body
        if self._total - self._sent + len(frame) > _RING:
            self.flush()
        if len(frame) > _RING:
            self._shared.childs.sendall(frame)
            self._sent += len(frame)
        else:
            self._keep(frame)
        self._total += len(frame)
        _TOTAL.pack_into(self._shared.memory, 0, self._total)

    def flush(self) -> None:
        """Send what has gathered."""
        memory = self._shared.memory
        while self._sent < self._total:
            start = self._sent % _RING
            end = min(start + self._total - self._sent, _RING)
            self._sent += self._shared.childs.send(memory[_HEAD + start : _HEAD + end])

    def _keep(self, frame: bytes) -> None:
        start = self._total % _RING
        first = frame[: _RING - start]
        memory = self._shared.memory
        memory[_HEAD + start : _HEAD + start + len(first)] = first
        if len(first) < len(frame):
            memory[_HEAD : _HEAD + len(frame) - len(first)] = frame[len(first) :]


class Reader:
    """The parent's side; `alive` tells whether the child still runs."""

    def __init__(self, shared: Shared, alive: Callable[[], bool]) -> None:
        self._shared = shared
        self._alive = alive
        self._received = 0
        self._left = bytearray()
        self._at = 0

    def ask(self, job: Any, within_s: float | None) -> None:
        """Send a job. Raises: OSError when the child is gone or does not take it `within_s`."""
        body = pickle.dumps(job, protocol=5)
        self._shared.parents.settimeout(within_s)
        self._shared.parents.sendall(_LENGTH.pack(len(body)) + body)

    def result(self, still_s: float | None) -> Any:
        """The next result.

        Raises: EOFError when the child is gone and made no more; TimeoutError when it made none
        for `still_s`.
        """
        while (frame := self._frame()) is None:
            self._receive(still_s)
        return pickle.loads(frame)  # noqa: S301 -- our own fork wrote it

    def _frame(self) -> memoryview | None:
        start = self._at + _LENGTH.size
        if len(self._left) < start:
            return None
        end = start + _LENGTH.unpack_from(self._left, self._at)[0]
        if len(self._left) < end:
            return None
        self._at = end
        return memoryview(self._left)[start:end]

    def _receive(self, still_s: float | None) -> None:
        """Wait for more bytes of the stream."""
        del self._left[: self._at]
        self._at = 0
        self._shared.parents.settimeout(_LOOK_S if still_s is None else min(_LOOK_S, still_s / 4))
        made, since = self._shared.total, time.monotonic()
        while True:
            try:
                more = self._shared.parents.recv(_RING)
            except TimeoutError:
                # A process that the child started may hold its end of the socket open.
                gone = not self._alive()
                more = b""
            except OSError:
                gone, more = True, b""
            else:
                gone = not more
            more = more or (self._rest() if gone else b"")
            if more:
                self._received += len(more)
                self._left += more
                return
            if gone:
                raise EOFError
            if made != self._shared.total:
                made, since = self._shared.total, time.monotonic()
            elif still_s is not None and time.monotonic() - since > still_s:
                raise TimeoutError

    def _rest(self) -> bytes:
        """What a child that is gone made and did not send."""
        start, count = self._received % _RING, self._shared.total - self._received
        ring = self._shared.memory[_HEAD:]
        return (ring[start:] + ring[:start])[: max(count, 0)]


def _received(channel: socket.socket, count: int) -> bytearray:
    found = bytearray(count)
    view = memoryview(found)
    while view:
        got = channel.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return found
