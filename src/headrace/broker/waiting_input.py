"""Input that waited in sockets while the event loop did not run, until it is read.

After a stall the clock of locks and sessions stands still until `is_read` (`checked_clock.py`). A
connection counts until one look finds its socket empty and every request that was read from it
begun, but for those behind a request under way: that one may wait for time to go on. A client that
goes on sending does not count again. Connections in the backlog count; a peer that does not read
its responses does not, as the broker reads nothing more of it. Connections note nothing for this:
a look asks the system which sockets have input.
"""

import select
from collections.abc import Collection, Iterable
from typing import Protocol

_ACCEPTING_LOOKS = 2  # what one turn of the loop accepts is a connection in a later one


class Connected(Protocol):
    """A connection; `server.Connection`."""

    @property
    def file(self) -> int:
        """File descriptor of its socket; negative without one."""

    @property
    def is_read_from(self) -> bool:
        """Return whether the broker will read what comes."""

    @property
    def has_startable_requests(self) -> bool:
        """Return whether requests wait for their turn, and for no other request."""


class Connections(Protocol):
    """Connections, and sockets that listen; `server.Server`."""

    @property
    def connections(self) -> Collection[Connected]:
        """The connections that are open."""

    @property
    def listening_files(self) -> Collection[int]:
        """File descriptors of the sockets that listen."""


class WaitingInput:
    """The input that waits in the sockets of a server."""

    def __init__(self, server: Connections) -> None:
        self._server = server
        self._left: list[Connected] = []
        self._known: frozenset[Connected] = frozenset()
        self._accepting_looks = 0

    def begin(self) -> None:
        """Note the connections that may have input now."""
        self._left, self._known = [], frozenset()
        self._accepting_looks = _ACCEPTING_LOOKS

    def is_read(self) -> bool:
        """Return whether all input that waited at `begin` has been read."""
        connections, listening = self._server.connections, self._server.listening_files
        left = [one for one in self._left if one in connections]
        if self._accepting_looks:
            left += [one for one in connections if one not in self._known]
            self._known = frozenset(connections)
        left = [one for one in left if one.is_read_from]
        readable = _readable([*listening, *(one.file for one in left)])
        if self._accepting_looks:
            is_accepting = not readable.isdisjoint(listening)
            self._accepting_looks = _ACCEPTING_LOOKS if is_accepting else self._accepting_looks - 1
        self._left = [one for one in left if one.has_startable_requests or one.file in readable]
        return not self._left and not self._accepting_looks


def _readable(files: Iterable[int]) -> frozenset[int]:
    """Return those of the file descriptors that have input now."""
    poll = select.poll()
    for one in files:
        if one >= 0:
            poll.register(one, select.POLLIN)
    return frozenset(one for one, _ in poll.poll(0))
