"""The server: connections in, frames to the dispatcher, responses out in the order of requests.

A connection answers its requests one after the other, as Kafka does: at once, where the bytes
arrived, when the handler has nothing to wait for, else in a task. Answers that wait for a journal
only (`request.Later`) hold up no further request, just its answer. Bytes are received straight into
frames (`wire/frames.py`); when too many frames wait, the socket is not read until they are fewer,
and when the peer does not read its responses, no further request is answered. A connection that
sends what it must not ends alone, with one logged line; one that sends nothing at all is closed
after `connections.max.idle.ms`. What changes something is still done when the peer hangs up.
"""

import asyncio
import logging
import resource
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from time import perf_counter, thread_time
from typing import Any, cast

from headrace.broker.background import Background, in_background
from headrace.broker.budgets import LIGHT_BYTES
from headrace.broker.dispatch import JOIN_BYTES_MAX, Buffers, Dispatcher, Peer, Pending
from headrace.broker.loop_turns import COSTLY_SECONDS, InTurns, LoopUse, Turns
from headrace.broker.request import HangUp
from headrace.broker.services import Services
from headrace.broker.share_polls import room_left
from headrace.broker.waiting_input import WaitingInput
from headrace.log.buggify import buggify
from headrace.wire.frames import STAGING_BYTES, Frames
from headrace.wire.primitives import Malformed

log = logging.getLogger("headrace.broker")
FRAMES_QUEUED_MAX = 16
BYTES_QUEUED_MAX = 4 * 1024 * 1024
UNSENT_MAX = 1024  # answers that wait for a journal, or behind one that does
STOP_SECONDS_MAX = 5.0
# Then, for peers to take what was answered: who does not read holds no stop up for long.
UNREAD_SECONDS_MAX = 1.0
_IDLE_LOOKS = 10  # in the time after which a connection is idle
_IDLE_LOOK_MS_MIN = 100
_MEMORY_LOOK_SECONDS = 0.1
# A connection that keeps memory for longer, without a request completed or a byte read, is closed
# while a budget is used up.
_MEMORY_GRACE_SECONDS = 1.0
# File descriptors that connections leave to logs and journals. More connections than that may be
# accepted in one turn of the loop: the backlog is 100.
_FILES_RESERVED = 128
# Connections that are accepted all the same: logs may have taken more files than were left to them,
# and a broker without connections gives none of them back.
_CONNECTIONS_WITHOUT_FILES = 32


class Server:
    """Listens and serves until it is stopped; timers measure what requests cost (`Turns`)."""

    def __init__(
        self, services: Services, dispatcher: Dispatcher,
        timer: Callable[[], float] = perf_counter,
        cpu_timer: Callable[[], float] = thread_time,
    ) -> None:  # fmt: skip
        self.services = services
        self.dispatcher = dispatcher
        self.turns = Turns(timer, cpu_timer)
        self.connections: dict[Connection, None] = {}  # an ordered set
        self.connection_ids = count(1)
        self.staging = bytearray(STAGING_BYTES)
        self._listening: asyncio.Server | None = None
        self._none_left: asyncio.Future[None] | None = None  # once the broker stops
        # Connections by the bytes that they are counted with, in the budgets of both directions.
        self.receiving: dict[Connection, int] = {}
        self.unread: dict[Connection, int] = {}
        self.muted: dict[Connection, None] = {}  # not read until there is memory
        self._carrying_out: set[asyncio.Task[None]] = set()  # requests of peers that hung up
        self._memory_look: asyncio.TimerHandle | None = None
        self.files_max = _files_for_connections()
        self.work = Background("idle connections are no longer closed", "idle connections")
        self.work.stalls = services.metrics.stalls

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chooses for 0. Raises: OSError."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(lambda: Connection(self), host, port)
        self.services.clock.wait_for(WaitingInput(self))
        if self.services.config.connections_idle_ms >= 0:
            self.work.begin(self._look_for_idle(loop))
        return int(self._listening.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Accept nothing more, finish the requests under way, close all connections."""
        self._none_left = asyncio.get_running_loop().create_future()
        if self._listening is not None:
            await stop_accepting(self._listening)
        await self.work.stop()
        if self._memory_look is not None:
            self._memory_look.cancel()
        self.services.waits.close()
        tasks = [connection.finish() for connection in list(self.connections)]
        running = [task for task in tasks if task is not None] + list(self._carrying_out)
        if running:
            _, late = await asyncio.wait(running, timeout=STOP_SECONDS_MAX)
            for task in late:
                task.cancel()
        if self.connections:
            await asyncio.wait([self._none_left], timeout=UNREAD_SECONDS_MAX)
        for connection in list(self.connections):
            connection.abort()

    @property
    def is_stopping(self) -> bool:
        """Whether it makes no connections any more."""
        return self._none_left is not None

    @property
    def listening_files(self) -> Sequence[int]:
        """File descriptors of the sockets that listen; none once the broker stops."""
        listening = self._listening
        return [] if listening is None else [one.fileno() for one in listening.sockets]

    def lost(self, connection: "Connection") -> None:
        """A connection is closed."""
        del self.connections[connection]
        self.count_request_bytes(connection, 0)
        self.count_response_bytes(connection, 0)
        self.muted.pop(connection, None)
        if not self.connections and self._none_left is not None and not self._none_left.done():
            self._none_left.set_result(None)

    def carry_out(self, task: "asyncio.Task[None]") -> None:
        """Let a request of a connection that is closed end, also when the broker stops."""
        self._carrying_out.add(task)
        task.add_done_callback(self._carrying_out.discard)

    def left(self, peer: Peer) -> None:
        """A connection is gone, and no request of it runs any more."""
        # When the broker hangs up, locks end with it, and no delivery is used up.
        if not self.is_stopping:
            self.services.disconnected(peer.connection_id)

    def count_request_bytes(self, connection: "Connection", count: int) -> None:
        """Count the requests of a connection with `count` bytes, 0 when it has few."""
        budgets, before = self.services.budgets, self.receiving.pop(connection, 0)
        budgets.request_bytes += count - before
        if count:
            self.receiving[connection] = count
        if count < before and self.muted:
            self._unmute()

    def count_response_bytes(self, connection: "Connection", count: int) -> None:
        """Count the responses that a connection has not read with `count` bytes."""
        self.services.budgets.response_bytes += count - self.unread.pop(connection, 0)
        if count:
            self.unread[connection] = count
            self._look_at_memory_soon()
        else:
            room_left(self.services)

    def has_room(self, count: int) -> bool:
        """Return whether requests may take `count` bytes more."""
        budgets = self.services.budgets
        return budgets.request_bytes + count <= budgets.request_bytes_max

    def mute(self, connection: "Connection") -> None:
        """Do not read from a connection until there is memory for its request."""
        self.muted[connection] = None
        self.services.metrics.requests_muted += 1
        self._look_at_memory_soon()

    def _unmute(self) -> None:
        for connection in list(self.muted):
            if not self.has_room(connection.growth_bytes):
                return
            del self.muted[connection]
            connection.unmute()

    def _look_at_memory_soon(self) -> None:
        if self._memory_look is None and not self.is_stopping:
            loop = asyncio.get_running_loop()
            self._memory_look = loop.call_later(_MEMORY_LOOK_SECONDS, self._look_at_memory)

    def _look_at_memory(self) -> None:
        """Close connections that keep memory and make no progress, until the budgets hold."""
        self._memory_look = None
        now = asyncio.get_running_loop().time()
        budgets = self.services.budgets
        if self.muted:
            self._close_slowest_sender(now)
            self._unmute()
        for connection in list(self.unread):
            connection.look_at_unread(now)
        if budgets.response_bytes > budgets.response_bytes_max // 2:
            for connection in sorted(self.unread, key=lambda one: self.unread[one], reverse=True):
                if budgets.response_bytes <= budgets.response_bytes_max // 2:
                    break
                connection.close_if_unread(now - _MEMORY_GRACE_SECONDS, "memory")
        unread_ms = self.services.config.unread_ms
        if unread_ms >= 0:
            for connection in list(self.unread):
                connection.close_if_unread(now - unread_ms / 1000, "time")
        if self.muted or self.unread:
            self._look_at_memory_soon()

    def _close_slowest_sender(self, now: float) -> None:
        # Complete requests may wait long for a reason, as joins do.
        senders = [one for one in self.receiving if one.growth_bytes] or list(self.receiving)
        slowest = min(senders, key=lambda one: one.progressed, default=None)
        if slowest is not None and slowest.progressed < now - _MEMORY_GRACE_SECONDS:
            slowest.close_for_memory(self.receiving[slowest])

    async def _look_for_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        idle_ms = self.services.config.connections_idle_ms
        while await self.work.pause(max(idle_ms // _IDLE_LOOKS, _IDLE_LOOK_MS_MIN)):
            for connection in list(self.connections):
                connection.close_if_idle(loop.time() - idle_ms / 1000)


async def stop_accepting(listening: asyncio.Server) -> None:
    """Close what listens.

    asyncio accepts in a task, which fails where it begins after `close` and leaves its socket
    open: the peer waits for an answer until the collector finds it (CPython issue 109564).
    So nothing new is accepted first, and what was begun has its two turns.
    """
    loop = asyncio.get_running_loop()
    for one in listening.sockets:
        loop.remove_reader(one.fileno())  # none, and none needed, on uvloop's
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    listening.close()


def _files_for_connections() -> int:
    """Number of the first file descriptor that no connection may have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        (1 << 31) if limit == resource.RLIM_INFINITY else max(limit - _FILES_RESERVED, limit // 2)
    )


def _is_loopback(host: str) -> bool:
    return host == "::1" or host.removeprefix("::ffff:").startswith("127.")


class Connection(asyncio.BufferedProtocol):
    """One connection: reads ahead a little, answers in order."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._frames = Frames(
            server.services.config.request_max_bytes, server.staging, server.dispatcher.check_size
        )
        self._queue: deque[bytearray] = deque()
        self._queued_bytes = 0
        self._task: asyncio.Task[None] | None = None  # of a request that has to wait
        self._later: deque[Pending | Buffers | Exception] = deque()  # what leaves in this order
        self._later_bytes = 0  # of the requests that these answer
        self._sending: asyncio.Handle | None = None
        self._all_sent: asyncio.Future[None] | None = None  # who waits for all of that
        self._use = LoopUse(server.turns)
        self._waits_for_turn = False
        self._writable = True
        self._reading = True
        self._ending = False
        self._loop = asyncio.get_running_loop()
        self._active = self._loop.time()
        self._unsent = 0
        self._ended_by = "peer"
        self._task_bytes = 0  # of the request that has to wait
        self._is_carried_out = False  # that request, if the peer hangs up
        self._counted_bytes = 0  # in the budget of requests
        self._is_muted = False
        self.progressed = self._active  # when a request was last complete or answered
        self._unread_since = 0.0
        self._unread_bytes = 0  # at the last look
        # Bytes handed to the transport since the peer last read all: it keeps a response in memory
        # until all of it is sent.
        self._sent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self._peer = Peer(next(self._server.connection_ids), host, port)
        if self._server.is_stopping:
            self._transport.abort()
            return
        if self._is_refused():
            self._transport.abort()
            return
        self._server.connections[self] = None
        self._server.services.metrics.connections_accepted += 1

    def _is_refused(self) -> bool:
        """Return whether there is no room for this connection, and log why."""
        server, metrics = self._server, self._server.services.metrics
        config = server.services.config
        files = self.file + 1  # the system numbers them from 0 without gaps
        if files >= server.files_max and len(server.connections) >= _CONNECTIONS_WITHOUT_FILES:
            metrics.connections_refused_files += 1
            log.warning(
                "refusing %s: %d files are open, the rest is for logs; raise the limit (ulimit -n)"
                " and restart the broker", self._peer, files, extra=self._peer.fields,
            )  # fmt: skip
            return True
        limit = config.connections_max
        if _is_loopback(self._peer.host):
            limit += config.connections_reserved
        if len(server.connections) < limit:
            return False
        metrics.connections_refused += 1
        log.warning(
            "refusing %s: %d connections are open (max.connections)", self._peer,
            len(server.connections), extra=self._peer.fields,
        )  # fmt: skip
        return True

    @property
    def file(self) -> int:
        """File descriptor of the socket; -1 without one."""
        opened = self._transport.get_extra_info("socket")
        return -1 if opened is None else int(opened.fileno())

    @property
    def is_read_from(self) -> bool:
        """Return whether the broker will read what comes: the peer reads its responses."""
        return self._writable and not self._ending and not self._transport.is_closing()

    @property
    def has_startable_requests(self) -> bool:
        """Return whether requests wait for their turn, and not for one that is under way."""
        return bool(self._queue) and self._task is None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio calls it so
        if self not in self._server.connections:
            return
        self._frames.discard()
        self._server.lost(self)
        self._server.services.metrics.closed[self._ended_by] += 1
        if self._ending or self._ended_by != "peer":
            self._queue.clear()
        self._ending = True
        if self._task is None:
            self._peer_gone()
        elif self._is_carried_out:
            self._server.carry_out(self._task)
        else:
            self._task.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio calls it so
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        now = self._active = self._loop.time()
        frames = self._frames
        try:
            arrived = frames.received(nbytes)
        except Malformed as error:
            self._ended_by = "protocol"
            log.warning("closing %s: %s", self._peer, error, extra=self._peer.fields)
            self._transport.abort()
            return
        if arrived:
            self._queue.extend(arrived)
            for frame in arrived:
                self._queued_bytes += len(frame)
            self.progressed = now
            self._answer()
        allocated = frames.allocated_bytes
        kept = self._queued_bytes or self._task_bytes or self._later_bytes
        if not (allocated or kept or self._counted_bytes):
            return  # as nearly always
        growth = frames.growth_bytes if allocated else 0
        if growth and not self._is_muted and not self._server.has_room(growth):
            self._is_muted = True
            self._server.mute(self)
            self._throttle()
        # What is allocated next counts at once: many connections may be about to.
        reserved = 0 if self._is_muted else growth
        held = allocated + reserved + self._queued_bytes + self._task_bytes + self._later_bytes
        if held != self._counted_bytes and (self._counted_bytes or held > LIGHT_BYTES):
            self._count()

    @property
    def growth_bytes(self) -> int:
        """Memory that the incomplete request needs next, in bytes."""
        return self._frames.growth_bytes

    @property
    def _held_bytes(self) -> int:
        """Memory of requests that are incomplete, wait, or are being answered.

        What the incomplete one allocates at its next read is part of it.
        """
        waiting = self._queued_bytes + self._task_bytes + self._later_bytes
        reserved = 0 if self._is_muted else self._frames.growth_bytes
        return self._frames.allocated_bytes + reserved + waiting

    def _count(self) -> None:
        held = self._held_bytes
        if not self._counted_bytes:
            self.progressed = self._loop.time()
        is_counted = held > LIGHT_BYTES and self in self._server.connections
        self._counted_bytes = held if is_counted else 0
        self._server.count_request_bytes(self, self._counted_bytes)

    def unmute(self) -> None:
        """Read again: there is memory for the incomplete request, and it is taken."""
        self._is_muted = False
        self._count()
        self._throttle()

    def close_for_memory(self, held_bytes: int) -> None:
        """Close: requests of all connections take too much memory, and this one is slow."""
        self._ended_by = "memory"
        log.warning(
            "closing %s: its requests keep %d bytes without progress, and the memory for requests"
            " is used up (queued.max.request.bytes)", self._peer, held_bytes,
            extra=self._peer.fields,
        )  # fmt: skip
        self._queue.clear()
        self._queued_bytes = 0
        self._frames.discard()
        self._count()
        self._transport.abort()

    def look_at_unread(self, now: float) -> None:
        """Note how much the peer has read since the last look."""
        size = self._transport.get_write_buffer_size()
        if size != self._unread_bytes:
            self._unread_since, self._unread_bytes = now, size
        self._server.count_response_bytes(self, self._sent_bytes)

    def close_if_unread(self, since: float, why: str) -> None:
        """Close when the peer has read nothing since the loop's time `since`."""
        if self._unread_since > since or self not in self._server.unread:
            return
        self._ended_by = "unread"
        setting = {"memory": "headrace.queued.max.response.bytes",
                   "time": "headrace.unread.response.timeout.ms"}[why]  # fmt: skip
        log.warning(
            "closing %s: it does not read its responses, %d bytes are left (%s)", self._peer,
            self._server.unread[self], setting, extra=self._peer.fields,
        )  # fmt: skip
        self._server.count_response_bytes(self, 0)
        self._transport.abort()

    def pause_writing(self) -> None:
        self._writable = False
        self._unread_since = self._loop.time()
        if self in self._server.connections:
            self._unread_bytes = self._transport.get_write_buffer_size()
            self._server.count_response_bytes(self, self._sent_bytes)

    def resume_writing(self) -> None:
        self._writable = True
        self._server.count_response_bytes(self, 0)
        self._answer()

    def finish(self) -> "asyncio.Task[None] | None":
        """End after the request under way; returns the task to wait for, if there is one."""
        self._ending = True
        if self._task is None and self._later:
            self._task = self._loop.create_task(self._sent_all())
        if self._task is None:
            self._transport.close()
        return self._task

    def abort(self) -> None:
        """End at once, whatever was not sent yet."""
        self._transport.abort()

    def close_if_idle(self, since: float) -> None:
        """Close when nothing came since the loop's time `since`, and nothing is under way."""
        unsent = self._transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self._active = unsent, self._loop.time()
        if self._active < since and self._task is None and not self._later:
            self._ended_by = "idle"
            log.info(
                "closing %s: idle (connections.max.idle.ms)", self._peer, extra=self._peer.fields
            )
            self._transport.abort()

    def _answer(self) -> None:
        """Answer what is queued, until a request has to wait or the peer does not read.

        Other connections have their turn when that takes long.
        """
        if self._queue:
            self._answer_queued()
        if self._counted_bytes:
            self._count()
        self._throttle()

    def _answer_queued(self) -> None:
        queue, dispatcher, turns = self._queue, self._server.dispatcher, self._server.turns
        if turns.is_over and self._use.must_wait and self._may_answer(queue[0]):
            self._wait_for_turn()
        timer, seconds = self._use.timer, None
        began = timer()
        while queue and self._may_answer(queue[0]):
            before: Sequence[bytearray] = ()
            if len(queue) == 1:
                frame = queue.popleft()
                self._queued_bytes -= len(frame)
            else:
                *before, frame = dispatcher.take(queue)
                self._queued_bytes -= len(frame) * (1 + len(before))  # they are alike
            try:
                response = dispatcher.respond(frame, self._peer, before)
            except Exception as error:
                self._in_turn(error)
                return
            if isinstance(response, list):
                self._in_turn(response)
            elif isinstance(response, Pending):
                self._hold(response)
            else:
                self._task_bytes = len(frame)
                self._is_carried_out = dispatcher.is_carried_out(frame)
                self._task = self._loop.create_task(self._timed(frame, response))
            seconds = timer() - began
            if queue and (seconds >= turns.slice_seconds or buggify("server.turn")):
                self._wait_for_turn()
        if seconds is not None and (seconds >= COSTLY_SECONDS or self._use.checks):
            self._use.add(seconds, timer)

    def _may_answer(self, frame: bytearray) -> bool:
        # A write that failed closes the transport; a task begun after that would be cancelled
        # before its first step, and so never clean up.
        under_way = self._task is not None or self._waits_for_turn
        if self._later:
            goes_on = self._server.dispatcher.answers_later(frame)
            full = len(self._later) >= UNSENT_MAX or self._later_bytes >= BYTES_QUEUED_MAX
            under_way = under_way or not goes_on or full
        ended = self._ending or self._transport.is_closing()
        return self._writable and not under_way and not ended

    def _wait_for_turn(self) -> None:
        self._waits_for_turn = True
        self._server.turns.wait(self._go_on)

    def _go_on(self) -> None:
        self._waits_for_turn = False
        self._answer()

    def _timed(self, frame: bytearray, response: Coroutine[Any, Any, Buffers]) -> InTurns[None]:
        server = self._server
        stalls, name = server.services.metrics.stalls, server.dispatcher.name_of(frame)
        return InTurns(stalls, name, self._finished(response), self._use)

    def _hold(self, response: Pending) -> None:
        self._later.append(response)
        self._later_bytes += response.size
        response.later.when_ready(self._send_soon)

    def _in_turn(self, outcome: Buffers | Exception) -> None:
        """Send a response, or end for a reason, behind the answers that are to leave before."""
        if self._later:
            self._later.append(outcome)
            self._ending = self._ending or isinstance(outcome, Exception)
        elif isinstance(outcome, Exception):
            self._end(outcome)
        else:
            self._send(outcome)

    def _send_soon(self) -> None:
        if self._sending is None:
            self._sending = self._loop.call_soon(self._send_ready)

    def _send_ready(self) -> None:
        """Send together what waits for nothing any more, then go on."""
        self._sending = None
        ready: Buffers = []
        fault: Exception | None = None
        while self._later and fault is None:
            first = self._later[0]
            if isinstance(first, Pending) and not first.later.ready:
                break
            self._later.popleft()
            try:
                ready += self._outcome(first)
            except Exception as error:
                fault = error
        if ready and not self._transport.is_closing():
            are_small = len(ready) > 1 and max(map(len, ready)) <= JOIN_BYTES_MAX
            self._send([b"".join(ready)] if are_small else ready)
        self._active = self._loop.time()  # the peer has not had the time to ask again
        if fault is not None:
            self._end(fault)
        if not self._later and self._all_sent is not None and not self._all_sent.done():
            self._all_sent.set_result(None)
        self._answer()

    def _outcome(self, one: Pending | Buffers | Exception) -> Buffers:
        if isinstance(one, Exception):
            raise one
        if not isinstance(one, Pending):
            return one
        self._later_bytes -= one.size
        return self._server.dispatcher.finish(one)

    async def _sent_all(self) -> None:
        """The broker stops: what is decided is still answered."""
        if self._later:
            self._all_sent = self._loop.create_future()
            await self._all_sent
        self._transport.close()

    async def _finished(self, response: Coroutine[Any, Any, Buffers]) -> None:
        """Answer a request that has to wait, then those that came meanwhile."""
        try:
            answer = await response
            if self in self._server.connections:  # else the peer hung up meanwhile
                self._send(answer)
        except asyncio.CancelledError:
            self._ending = True  # the broker ends: what was queued would never come to its end
            raise
        except Exception as error:
            self._end(error)
        finally:
            self._task, self._task_bytes = None, 0
            self._active = self.progressed = self._loop.time()  # the peer could not ask meanwhile
            if self._counted_bytes:
                self._count()
            if self not in self._server.connections:
                self._peer_gone()
            elif self._ending:
                self._transport.close()
            else:
                self._answer()

    def _peer_gone(self) -> None:
        carried_out = [one for one in self._queue if self._server.dispatcher.is_carried_out(one)]
        self._queue.clear()
        if carried_out:
            self._server.carry_out(in_background(self._carry_out(carried_out)))
        else:
            self._server.left(self._peer)

    async def _carry_out(self, frames: list[bytearray]) -> None:
        """Do what the peer asked for before it hung up, as Kafka does.

        A member that closes while its JoinGroup waits sends LeaveGroup behind it, and waits for
        neither; dropped, the member would hold its group up until its session is over.
        """
        try:
            for frame in frames:
                response = self._server.dispatcher.respond(frame, self._peer)
                if isinstance(response, Pending):
                    self._hold(response)
                elif not isinstance(response, list):
                    await response
        except Exception as error:
            self._end(error)
        finally:
            self._server.left(self._peer)

    def _send(self, response: Buffers) -> None:
        is_one = len(response) == 1
        size = len(response[0]) if is_one else sum(map(len, response))
        self._sent_bytes = size if self._writable else self._sent_bytes + size
        if is_one:
            self._transport.write(response[0])
        else:
            self._transport.writelines(response)

    def _end(self, error: Exception) -> None:
        """Close, with the reason; what was answered before is still sent."""
        self._ending = True
        if isinstance(error, HangUp):
            self._ended_by = error.blame
            log.warning("closing %s: %s", self._peer, error, extra=self._peer.fields)
        else:
            self._ended_by = "bug"
            # A bug in a handler must not take the other connections down; it is told in full.
            log.error(
                "closing %s after a bug in a handler", self._peer, exc_info=error,
                extra=self._peer.fields,
            )  # fmt: skip
        self._transport.close()

    def _throttle(self) -> None:
        full = (
            len(self._queue) >= FRAMES_QUEUED_MAX
            or self._queued_bytes >= BYTES_QUEUED_MAX
            or self._is_muted
        )
        if full == self._reading and not self._transport.is_closing():
            self._reading = not full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
