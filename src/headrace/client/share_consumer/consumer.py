"""`headrace.ShareConsumer`: records of a share group, each with a verdict of its own. KIP-932."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from headrace.client.connection import addresses
from headrace.client.errors import Closed
from headrace.client.names import several
from headrace.client.share_consumer.engine import Engine
from headrace.client.share_consumer.handlers import (
    Call,
    held_ready,
    is_coroutine_function,
    must_be_handler,
    must_be_over,
    on_thread,
    work,
)
from headrace.client.share_consumer.records import BaseRecord, ShareRecord
from headrace.client.share_consumer.words import AcknowledgeResult, Settings, ShareStats

Handler = Callable[[ShareRecord], Awaitable[object] | object]

MAX_POLL_RECORDS = 100
MAX_IN_HAND = 1_000
FETCH_MAX_WAIT_MS = 500
FETCH_MAX_BYTES = 52_428_800
RENEW_S_MAX = 3_600.0
TIMEOUT_S = 30.0


class Face:
    """What both faces have in common. Raises: `ValueError` for settings that make no sense."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        group: str,
        topics: Iterable[str],
        client_id: str = "headrace-share-consumer",
        client_rack: str | None = None,
        max_poll_records: int = MAX_POLL_RECORDS,
        max_in_hand: int = MAX_IN_HAND,
        fetch_max_wait_ms: int = FETCH_MAX_WAIT_MS,
        fetch_min_bytes: int = 1,
        fetch_max_bytes: int = FETCH_MAX_BYTES,
        renew_s_max: float = RENEW_S_MAX,
        timeout_s: float = TIMEOUT_S,
        on_acknowledged: Callable[[AcknowledgeResult], None] | None = None,
        member_id: str | None = None,
    ) -> None:
        self._settings = Settings(
            bootstrap=addresses(bootstrap_servers),
            group=group,
            topics=tuple(dict.fromkeys(several(topics, "topics"))),
            client_id=client_id,
            client_rack=client_rack,
            max_poll_records=max_poll_records,
            max_in_hand=max_in_hand,
            fetch_max_wait_ms=fetch_max_wait_ms,
            fetch_min_bytes=fetch_min_bytes,
            fetch_max_bytes=fetch_max_bytes,
            renew_s_max=renew_s_max,
            timeout_s=timeout_s,
            on_acknowledged=on_acknowledged,
            member_id=member_id,
        )
        self._engine: Engine | None = None

    # Python names it where a call does not fit.
    __init__.__qualname__ = "[Sync]ShareConsumer"

    def __repr__(self) -> str:
        name, of = type(self).__name__, self._settings
        return f"<headrace.{name} of group {of.group!r}, topics {', '.join(of.topics)}>"

    @property
    def is_started(self) -> bool:
        """Whether `start` has returned; it stays so after `close`."""
        return self._engine is not None

    @property
    def stats(self) -> ShareStats:
        """Counts since `start`."""
        engine = self._started
        return replace(engine.stats, in_hand=engine.in_hand)

    @property
    def assignment(self) -> frozenset[tuple[str, int]]:
        """Topics and partitions that records come from now; others may have the same ones."""
        return self._started.assignment

    @property
    def is_connected(self) -> bool:
        """Whether, as far as is known, the coordinator and every broker to fetch from answer.

        While it is false, that a poll brings nothing does not say that nothing is there.
        """
        return self._started.is_connected

    def stop(self) -> None:
        """Take no more records: iterating and `run` end, polls return nothing. For any thread."""
        if self._engine is not None:
            self._engine.stop_soon()

    def _count(self, max_records: int | None) -> int:
        count = self._settings.max_poll_records if max_records is None else max_records
        if count < 1:
            raise ValueError(f"max_records is {count}; give a number above 0")
        return count

    @property
    def _started(self) -> Engine:
        if self._engine is None:
            raise Closed("the consumer is not started: enter it, or call start()")
        return self._engine

    def _must_be_new(self) -> None:
        if self._engine is not None:
            raise Closed("the consumer was started before; make a new one")


class ShareConsumer(Face):
    """A member of a share group of Headrace or Apache Kafka (4.2 or newer; 4.1 without renewal).

        async with headrace.ShareConsumer("localhost:9092", group="work", topics=["jobs"]) as jobs:
            async for record in jobs:
                async with record:
                    await work(record.value)

    What has no verdict is never accepted: it is released when the consumer closes, and delivered
    again when this process dies. Locks are renewed while records are in hand, so work may take
    longer than the group's lock, up to `renew_s_max` a record.

    Args:
        bootstrap_servers: host:port, several with commas.
        group, topics: the share group, and the names of the topics it reads.
        max_poll_records: how many records iterating takes at once.
        max_in_hand: records without a verdict; a poll beyond it raises `HandFull`.
        fetch_max_wait_ms, fetch_min_bytes, fetch_max_bytes: as Kafka's settings of these names.
        renew_s_max: how long the lock of one record is renewed by itself; 0 for never.
        timeout_s: for the first contact, and for each request.
        on_acknowledged: called with an `AcknowledgeResult` for every verdict that was answered.
        member_id: the id of a member that is gone, whose place this one takes; a new one if None.

    Raises: `ValueError` for settings that make no sense. From every method that asks: `BrokerError`
    for a refusal that ends the membership, `Closed` after `close`. A broker that is away is waited
    for; only `start` (entering the consumer) gives up, with `Unreachable`.
    """

    async def start(self) -> Self:
        """Join the group. Raises: `Unreachable`; `BrokerError`; `Unsupported`."""
        self._must_be_new()
        engine = Engine(self._settings, ShareRecord)
        await engine.start()
        self._engine = engine
        return self

    async def close(self) -> None:
        """Send what has a verdict, release the rest, leave the group; nothing when it is closed."""
        if self._engine is not None:
            await self._engine.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def poll(
        self, max_records: int | None = None, timeout_s: float | None = None
    ) -> list[ShareRecord]:
        """Up to `max_records` records (the setting when None), as soon as there is one.

        None within `timeout_s` seconds, or once `stop` was called; what comes later is for the next
        poll, or given back when a third of its lock has passed. Raises: `HandFull`.
        """
        return _shown(await self._started.take(self._count(max_records), timeout_s))

    def __aiter__(self) -> AsyncIterator[ShareRecord]:
        """Every record until `stop`, each once it is asked for; `max_poll_records` held ready."""
        return _Loop(self._started, self._settings.max_poll_records)

    async def __anext__(self) -> ShareRecord:
        """The next record alone. Raises: StopAsyncIteration after `stop`; as `poll`."""
        return await _next(self._started, 0)

    async def commit(self) -> None:
        """Return once every verdict given so far is durable.

        Raises: the first failure since the last commit that nobody has awaited, `LockLost` for one.
        """
        await self._started.commit()

    async def run(
        self, handler: Handler, *, concurrency: int = 1, prefetch: int | None = None
    ) -> None:
        """Call `handler` with every record until `stop`, `concurrency` at the same time.

        A record is accepted when its handler returns, released when it raises, and rejected when it
        raises `headrace.Reject`; a handler may also give the verdict itself. A handler that is no
        coroutine function runs on a thread; what it returns is awaited if it can be. `prefetch`
        records (as many as `concurrency` when None) are held ready. `stop` lets the handlers end;
        cancelling cancels them and releases their records.

        Raises: TypeError for a handler that does not take a record, and for generator functions;
        `ValueError`; RuntimeError when a handler cancelled the task it ran in.
        """
        must_be_handler(handler, has_loop=True)
        ahead = held_ready(self._settings, concurrency, prefetch)
        engine = self._started
        if is_coroutine_function(handler):
            await work(engine, _on_loop(handler), concurrency=concurrency, ahead=ahead)
            return
        threads = ThreadPoolExecutor(concurrency, thread_name_prefix="headrace-handler")
        try:
            await work(engine, _off_loop(handler, threads), concurrency=concurrency, ahead=ahead)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)  # waiting would stop the event loop


class _Loop:
    """One `async for`. What is held ready is held for it, for as long as Python keeps it."""

    def __init__(self, engine: Engine, ahead: int) -> None:
        self._engine, self._ahead = engine, ahead
        engine.readers.add(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ShareRecord:
        return await _next(self._engine, self._ahead)


async def _next(engine: Engine, ahead: int) -> ShareRecord:
    found = await engine.take(1, None, ahead=ahead)
    if not found:
        raise StopAsyncIteration
    return _shown(found)[0]


def _on_loop(handler: Callable[[ShareRecord], Any]) -> Call:
    async def call(record: ShareRecord) -> None:
        must_be_over(await _awaited(await handler(record)))

    return call


def _off_loop(handler: Handler, threads: ThreadPoolExecutor) -> Call:
    loop = asyncio.get_running_loop()

    async def call(record: ShareRecord) -> None:
        record.loop = loop
        result = await loop.run_in_executor(threads, on_thread, handler, record)
        must_be_over(await _awaited(result))

    return call


async def _awaited(result: object) -> object:
    """What comes of what a handler returned."""
    return await result if inspect.isawaitable(result) else result


def _shown(records: list[BaseRecord]) -> list[ShareRecord]:
    found = [record for record in records if isinstance(record, ShareRecord)]
    assert len(found) == len(records), "the engine makes no others"
    return found
