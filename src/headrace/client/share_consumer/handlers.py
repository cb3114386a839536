"""Handlers of `run`: what can be one, the workers that call them, and what the end of a call means.

A record is accepted when its handler has handled it, so a call that only made something to be run
later, a generator say, counts as one that failed.
"""

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from headrace.client.share_consumer.engine import Engine
from headrace.client.share_consumer.records import BaseRecord, conclude
from headrace.client.share_consumer.words import Settings

LOG = logging.getLogger(__name__)

Call = Callable[[Any], Awaitable[None]]
R = TypeVar("R", bound=BaseRecord)


def must_be_handler(handler: object, *, has_loop: bool) -> None:
    """Raises: TypeError for what cannot be called with a record, or would not handle it.

    Coroutine functions are handlers where there is an event loop for them, `has_loop`.
    """
    if not callable(handler):
        raise TypeError(f"the handler is {handler!r}; give a function of one argument, the record")
    if _is(handler, inspect.isgeneratorfunction) or _is(handler, inspect.isasyncgenfunction):
        raise TypeError(
            f"the handler {handler!r} is a generator function: calling it handles nothing; "
            "give a function without yield"
        )
    if not has_loop and is_coroutine_function(handler):
        raise TypeError(
            f"the handler {handler!r} is a coroutine function, which needs an event loop; "
            "give a plain function, or use headrace.ShareConsumer"
        )
    try:
        signature = inspect.signature(handler)
    except (ValueError, TypeError):
        return  # some of C tell none
    try:
        signature.bind(None)
    except TypeError as error:
        raise TypeError(
            f"the handler {handler!r} cannot be called with one argument, the record: {error}"
        ) from None


def is_coroutine_function(handler: object) -> bool:
    """Whether it is one, also as a method, in a `functools.partial` or behind `__call__`."""
    return _is(handler, inspect.iscoroutinefunction)


def _is(handler: object, kind: Callable[[object], bool]) -> bool:
    # Not what a decorator wraps: the wrapper may well run a generator or coroutine to its end.
    while isinstance(handler, functools.partial):
        handler = handler.func
    return kind(handler) or kind(type(handler).__call__)


def must_be_over(result: object) -> None:
    """What a handler returned. Raises: TypeError for what is yet to be run; it is closed."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        told = f"the handler returned {result!r}, which nobody runs: the record is not handled"
        if inspect.iscoroutine(result) or inspect.isgenerator(result):
            result.close()  # else Python warns that it was never awaited
        raise TypeError(told)


def on_thread(handler: Callable[[R], object], record: R) -> object:
    """What a handler returns. Raises: what it raises; RuntimeError for what futures cannot hold.

    That is StopIteration, as in PEP 479, for which who waits would wait for ever; and a future's
    CancelledError, of which asyncio makes one of its own without the handler's lines.
    """
    try:
        return handler(record)
    except (StopIteration, CancelledError) as error:
        raise RuntimeError(f"the handler raised {type(error).__name__}") from error


def held_ready(settings: Settings, concurrency: int, prefetch: int | None) -> int:
    """How many records are held ready for the handlers. Raises: `ValueError`."""
    ahead = concurrency if prefetch is None else prefetch
    if concurrency < 1 or ahead < 0:
        raise ValueError("concurrency is 1 or more, and prefetch 0 or more")
    if concurrency + ahead > settings.max_in_hand:
        raise ValueError(f"{concurrency} + {ahead} records are more than max_in_hand")
    return ahead


async def work(engine: Engine, call: Call, *, concurrency: int, ahead: int) -> None:
    """Workers around one engine, until it stops. Raises: as `ShareConsumer`; RuntimeError."""
    engine.must_be_open()
    run = _this_task()
    engine.prefetch = ahead
    engine.readers.add(run)
    before = run.cancelling()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(_work(engine, call, lambda: run.cancelling() > before))
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    finally:
        engine.prefetch = 0
        engine.readers.discard(run)
        engine.release_buffer()


async def _work(engine: Engine, call: Call, is_ending: Callable[[], bool]) -> None:
    """One worker. Raises: RuntimeError when it alone is cancelled: its group takes that as done."""
    try:
        # A handler may eat the cancellation, and return as if nothing had happened.
        while not engine.is_stopping and not is_ending():
            for record in await engine.take(1, None):
                await _handled(record, call)
    except asyncio.CancelledError as error:
        if is_ending():
            raise
        raise RuntimeError("a task of run() was cancelled, by its handler perhaps") from error


async def _handled(record: BaseRecord, call: Call) -> None:
    try:
        await call(record)
    except BaseException as error:
        done = "released it" if record.said is None else "its verdict was given before"
        is_told = conclude(record, error)
        if not _is_of_handler(error):
            raise
        if not is_told:
            LOG.warning("handling %r failed, %s", record, done, exc_info=error)
    else:
        conclude(record, None)


def _is_of_handler(error: BaseException) -> bool:
    """Whether it says something of one record, and not that it is the end.

    A handler that waits for what was cancelled lets out a CancelledError, too.
    """
    if isinstance(error, asyncio.CancelledError):
        return not _this_task().cancelling()
    return isinstance(error, Exception)


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "coroutines of ours run in tasks"
    return task


def _first(errors: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
