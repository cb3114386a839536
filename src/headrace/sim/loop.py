"""An event loop on which nothing ever waits: time jumps to whatever is due next.

Everything runs in one thread and in one order, which is that of asyncio: ready callbacks as they
came, timers by their deadline. Work for threads is done by callbacks too, a drawn moment
later. Callbacks know whose they are: those of a broker's life, or of the world outside. So a life
can be ended in the middle of anything (`end`), as a process that is killed ends.
"""

import asyncio
import contextvars
import heapq
import traceback
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")
OUTSIDE = 0
_TURNS_AT_ONCE_MAX = 200_000  # callbacks without a timer in between; more are a livelock
_LAST_WORDS_MAX = 10_000  # callbacks that the tasks of an ended life get to clean up
_TASKS_KEPT = 256  # finished tasks are forgotten together, when there are so many tasks

_STEP_US = 100_000  # how far who waits looks ahead, when nothing is due

Latency = Callable[[], float]
_life: contextvars.ContextVar[int] = contextvars.ContextVar("life", default=OUTSIDE)


class _Handle:
    """A callback that is ready, with what asyncio calls of an `asyncio.Handle`."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False

    @property
    def life(self) -> int:
        """Return the life that the callback belongs to."""
        return self._context.get(_life, OUTSIDE)

    def cancel(self) -> None:
        """Pass the callback over when its time comes."""
        self._cancelled = True
        self._args = ()

    def cancelled(self) -> bool:
        return self._cancelled

    def run(self) -> None:
        """Call the callback in its context."""
        self._context.run(self._callback, *self._args)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._callback!r}>"


class _Timer(_Handle):
    """A callback that is due later."""

    __slots__ = ("_when_us",)

    def __init__(
        self,
        when_us: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False
        self._when_us = when_us

    def when(self) -> float:
        """Return the loop's time at which the callback is due, in seconds."""
        return self._when_us / 1e6


class Livelock(Exception):
    """Callbacks call each other for ever, and no time passes."""


class Halted(Exception):
    """Time stopped for somebody who waits."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """An asyncio loop in virtual time.

    Args:
        latency: seconds until a thread begins with a piece of work, and until its end is noticed.

    `halted` makes `run_until` return after the callback that set it; `errors` are the exceptions
    that nothing caught. `timers` counts the timers that went off, `deliveries` what arrived over
    connections.
    """

    def __init__(self, latency: Latency) -> None:
        self.now_us = 0
        self.halted = False
        self.timers = 0
        self.deliveries = 0
        self.errors: list[str] = []
        self._latency = latency
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[int, int, _Timer]] = []
        self._tasks: dict[asyncio.Task[Any], int] = {}
        self._contexts: dict[int, contextvars.Context] = {}
        self._tasks_max = _TASKS_KEPT
        self._counter = count()
        self._turns = 0
        self._held_life: int | None = None  # a life that is stopped, and until when
        self._held_until_us = 0

    # ---- running

    def run_until(self, time_us: int) -> None:
        """Run until nothing is to be done up to `time_us`, which it is then; or `halted`."""
        events._set_running_loop(self)
        try:
            while not self.halted and self._turn(time_us):
                pass
        finally:
            events._set_running_loop(None)

    def wait(self, task: "asyncio.Future[T]") -> T:
        """The outcome of a task, for code that blocks: everybody else goes on meanwhile.

        To be called from a plain callback, as no task may begin while another one is at work.
        Raises: whatever the task did; CancelledError when it was; Halted when all ends before.
        """
        while not task.done():
            if self.halted:
                raise Halted
            self._turn(self.now_us + _STEP_US)
        return task.result()

    def spawn(self, life: int, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a coroutine as part of a life."""
        return self.create_task(work, context=self._context_of(life))

    def as_life(self, life: int, work: Callable[[], T]) -> T:
        """Call `work` at once, as part of a life."""
        context = self._context_of(life)
        outer = events._get_running_loop()
        if outer is self:
            return context.run(work)
        events._set_running_loop(self)
        try:
            return context.run(work)
        finally:
            events._set_running_loop(outer)

    def _context_of(self, life: int) -> contextvars.Context:
        """Return a new context of a life."""
        context = self._contexts.get(life)
        if context is None:
            context = self._contexts[life] = contextvars.copy_context()
            context.run(_life.set, life)
        return context.copy()

    def suspend(self, duration_us: int) -> None:
        """Let time pass in which nothing runs, as for a machine that is suspended."""
        self.now_us += duration_us

    def hold(self, life: int, duration_us: int) -> None:
        """Let time pass in which nothing of a life runs, as for a process that is stopped."""
        self._held_life, self._held_until_us = life, self.now_us + duration_us

    def deliver(self, life: int, work: Callable[[], object]) -> None:
        """Call `work` as part of a life, at once or when the life is not stopped any more."""
        if self.is_held(life):
            self._at(self._held_until_us, work, (), self._context_of(life))
        else:
            self.as_life(life, work)

    def is_held(self, life: int) -> bool:
        """Return whether nothing of a life runs now."""
        return life == self._held_life and self.now_us < self._held_until_us

    def end(self, life: int) -> None:
        """End a life: its tasks are cancelled, its callbacks and timers forgotten.

        Raises: Livelock when a task of it will not end.
        """
        if life == self._held_life:
            self._held_life = None
        mine: list[asyncio.Task[Any]] = []
        others: list[_Handle] = []
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for _ in range(_LAST_WORDS_MAX):
                if not self._ready:
                    # Those that the last words of others began are among them.
                    mine = [
                        one for one, its in self._tasks.items() if its == life and not one.done()
                    ]
                    if not mine:
                        break
                    for task in mine:
                        task.cancel()
                while self._ready:
                    handle = self._ready.popleft()
                    if handle.life != life:
                        others.append(handle)
                    elif not handle._cancelled:
                        self._call(handle)
            else:
                raise Livelock(f"tasks of life {life} do not end when they are cancelled: {mine}")
        finally:
            events._set_running_loop(outer)
        self._ready.extend(others)
        self._timers[:] = [one for one in self._timers if one[2].life != life]
        heapq.heapify(self._timers)

    def _turn(self, time_us: int) -> bool:
        """Run all that is ready, or let time pass to what is due next; False when nothing is."""
        ready, timers, turns = self._ready, self._timers, self._turns
        while True:
            now_us = self.now_us
            while timers and (timers[0][0] <= now_us or timers[0][2]._cancelled):
                timer = heapq.heappop(timers)[2]
                if not timer._cancelled:
                    self.timers += 1
                    ready.append(timer)
            if not ready:
                break
            handle = ready.popleft()
            if self._held_life is not None and self.is_held(handle.life):
                self._put_off(handle)
            elif not handle._cancelled:
                turns += 1
                if turns > _TURNS_AT_ONCE_MAX:
                    raise Livelock(f"{turns} callbacks and no time passes; last: {handle}")
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self._failed(handle, error)
                if self.halted:
                    self._turns = turns
                    return True
        self._turns = 0
        if timers and timers[0][0] <= time_us:
            self.now_us = timers[0][0]
            return True
        self.now_us = max(self.now_us, time_us)
        return False

    def _put_off(self, handle: _Handle) -> None:
        """Run a callback of a life that is stopped when the life goes on."""
        work = self._call_unless_cancelled  # who cancels it has the handle, and not the timer
        self._at(self._held_until_us, work, (handle,), handle._context)

    def _call_unless_cancelled(self, handle: _Handle) -> None:
        if not handle._cancelled:
            handle._callback(*handle._args)

    def _call(self, handle: _Handle) -> None:
        try:
            handle.run()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._failed(handle, error)

    def _failed(self, handle: _Handle, error: BaseException) -> None:
        message = f"Exception in callback {handle!r}"
        self.call_exception_handler({"message": message, "exception": error})

    # ---- what asyncio asks of a loop

    def time(self) -> float:
        return self.now_us / 1e6

    def call_soon(  # type: ignore[override]  # typed without arguments
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        if context is None:
            context = contextvars.copy_context()
        handle = _Handle(callback, args, context)
        self._ready.append(handle)
        return handle  # type: ignore[return-value]  # all that is called of one is there

    def call_soon_threadsafe(  # type: ignore[override]  # typed without arguments
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """As `call_soon`: work for threads is done by the loop."""
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]  # typed without arguments
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        delay_us = round(delay * 1e6)
        return self._at(
            self.now_us + delay_us if delay_us > 0 else self.now_us, callback, args, context
        )

    def call_at(  # type: ignore[override]  # typed without arguments
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self._at(max(self.now_us, round(when * 1e6)), callback, args, context)

    def _at(
        self,
        when_us: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> asyncio.TimerHandle:
        if context is None:
            context = contextvars.copy_context()
        timer = _Timer(when_us, callback, args, context)
        heapq.heappush(self._timers, (when_us, next(self._counter), timer))
        return timer  # type: ignore[return-value]  # all that is called of one is there

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> "asyncio.Task[T]":
        if context is None:
            context = contextvars.copy_context()
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = context.get(_life, OUTSIDE)
        if len(self._tasks) > self._tasks_max:
            self._tasks = {one: life for one, life in self._tasks.items() if not one.done()}
            self._tasks_max = 2 * len(self._tasks) + _TASKS_KEPT
        return task

    def run_in_executor(  # type: ignore[override]  # there are no executors
        self, executor: None, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """Call `func` a moment later, and tell its outcome another moment after that."""
        assert executor is None
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                tell, outcome = future.set_result, func(*args)
            except Exception as error:
                tell, outcome = future.set_exception, error  # type: ignore[assignment]  # the other outcome
            self.call_later(self._latency(), lambda: future.done() or tell(outcome))

        self.call_later(self._latency(), work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        where = traceback.extract_tb(error.__traceback__)[-1:] if error is not None else ""
        self.errors.append(f"{context.get('message')}: {error!r} {where}")
        self.halted = True

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False
