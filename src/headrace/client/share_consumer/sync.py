"""`headrace.SyncShareConsumer`: the share consumer for programs without an event loop.

The consumer runs on an event loop of its own, on a thread of its own, so locks are renewed and the
membership is kept while the caller works.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from headrace.client.errors import Closed
from headrace.client.share_consumer.consumer import Face
from headrace.client.share_consumer.engine import Engine
from headrace.client.share_consumer.handlers import (
    held_ready,
    must_be_handler,
    must_be_over,
    on_thread,
    work,
)
from headrace.client.share_consumer.records import (
    Acknowledgement,
    BaseRecord,
    must_be_open,
    verdict_after,
)
from headrace.client.share_consumer.words import Reject, Verdict, must_be_text

T = TypeVar("T")
_MEANWHILE = "the consumer was closed meanwhile"


class SyncAcknowledgement:
    """The way of one verdict to the broker. It is sent whether or not the result is asked for."""

    __slots__ = ("_answer", "_loop", "_say")

    def __init__(self, loop: asyncio.AbstractEventLoop, say: Callable[[], Acknowledgement]) -> None:
        self._loop = loop
        self._say = say
        self._answer: Acknowledgement | None = None
        try:
            loop.call_soon_threadsafe(self._begin)
        except RuntimeError as error:
            raise Closed("the consumer is closed: its records were released") from error

    @property
    def done(self) -> bool:
        """Whether the broker has answered, or the lock was lost before."""
        return self._answer is not None and self._answer.done

    def result(self, timeout_s: float | None = None) -> None:
        """Return when the broker has made the verdict durable.

        Raises: `LockLost` when the record was not this consumer's any more, `BrokerError` for
        another refusal, TimeoutError after `timeout_s` seconds, `Closed` when the consumer was
        closed before the broker answered.
        """
        try:
            if not self.done:
                ended(begun_on(self._loop, self._answered()), timeout_s)
        except Closed:
            if not self.done:
                raise
        if self._answer is not None:
            self._answer.is_observed = True
            if self._answer.error is not None:
                raise self._answer.error

    def _begin(self) -> None:
        self._answer = self._say()

    async def _answered(self) -> None:
        assert self._answer is not None, "calls on a loop keep their order"
        await self._answer


class SyncShareRecord(BaseRecord):
    """A record that this consumer holds until it says what becomes of it; usable on any thread.

    As a context manager it is accepted at the end of the block, released when the block raises, and
    rejected when it raises `headrace.Reject`, which goes no further unless there was a verdict.
    """

    __slots__ = ("_has_verdict", "_loop")

    _loop: asyncio.AbstractEventLoop
    _has_verdict: bool

    def accept(self) -> SyncAcknowledgement:
        """It was processed: nobody gets it again. Raises: `AlreadyAcknowledged`; `Closed`."""
        return self._give(Verdict.ACCEPT)

    def release(self) -> SyncAcknowledgement:
        """Let it be delivered again while it has deliveries left. Raises: as `accept`."""
        return self._give(Verdict.RELEASE)

    def reject(self, reason: str | None = None) -> SyncAcknowledgement:
        """It cannot be processed: nobody gets it again, and it goes where dead letters go.

        `reason` (1,024 bytes are kept) stands in Headrace's journal and with the dead letter;
        Apache Kafka has no room for it. Raises: as `accept`; TypeError for what is no text.
        """
        return self._give(Verdict.REJECT, reason)

    def renew(self) -> SyncAcknowledgement:
        """Begin its lock anew; locks are renewed in time without this. Raises: as `accept`."""
        self._must_be_open()
        return SyncAcknowledgement(self._loop, lambda: self.hand.say(self, Verdict.RENEW))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._has_verdict:
            return False
        self._give(*verdict_after(error))
        return isinstance(error, Reject)

    def bind(self, loop: asyncio.AbstractEventLoop) -> Self:
        """It belongs to this event loop; for the consumer itself."""
        self._loop = loop
        self._has_verdict = False
        return self

    def _give(self, verdict: Verdict, reason: str | None = None) -> SyncAcknowledgement:
        self._must_be_open()
        must_be_text(reason)
        self._has_verdict = True
        return SyncAcknowledgement(self._loop, lambda: self.hand.say(self, verdict, reason))

    def _must_be_open(self) -> None:
        must_be_open(self, has_verdict=self._has_verdict)


class SyncShareConsumer(Face):
    """A member of a share group of Headrace or Apache Kafka, to be called; may be used from any
    thread. `ShareConsumer` is the same to be awaited, and tells what the settings are.

        with headrace.SyncShareConsumer("localhost:9092", group="work", topics=["jobs"]) as jobs:
            for record in jobs:
                with record:
                    work(record.value)

    `on_acknowledged` is called on the consumer's own thread, and must not wait for the consumer.
    """

    def start(self) -> Self:
        """Join the group. Raises: `Unreachable`; `BrokerError`; `Unsupported`."""
        self._must_be_new()
        self._closing = threading.Lock()
        ready: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(
            target=_serve, args=(ready,), name="headrace-share-consumer", daemon=True
        )
        self._thread.start()
        self._loop = ready.result()
        engine = self._ended(self._make_engine())
        try:
            self._ended(engine.start())
        except BaseException:
            self._end()
            raise
        self._engine = engine
        return self

    def close(self) -> None:
        """Send what has a verdict, release the rest, leave the group; nothing when it is closed."""
        if self._engine is None:
            return
        with self._closing:  # a second thread returns when the consumer is closed, not before
            if self._thread.is_alive():
                try:
                    self._ended(self._engine.close())
                finally:
                    self._end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def poll(
        self, max_records: int | None = None, timeout_s: float | None = None
    ) -> list[SyncShareRecord]:
        """Up to `max_records` records (the setting when None), as soon as there is one.

        None within `timeout_s` seconds, or once `stop` was called. As `ShareConsumer.poll`.
        """
        count = self._count(max_records)
        return _shown(self._ended(self._started.take(count, timeout_s)))

    def __iter__(self) -> Iterator[SyncShareRecord]:
        """Every record until `stop`, each once it is asked for; `max_poll_records` held ready."""
        return _Loop(self._started, self._next, self._settings.max_poll_records)

    def __next__(self) -> SyncShareRecord:
        """The next record alone. Raises: StopIteration after `stop`; as `poll`."""
        return self._next(0)

    def _next(self, ahead: int) -> SyncShareRecord:
        found = self._ended(self._started.take(1, None, ahead=ahead))
        if not found:
            raise StopIteration
        return _shown(found)[0]

    def commit(self) -> None:
        """Return once every verdict given so far is durable.

        Raises: the first failure since the last commit whose result nobody has asked for.
        """
        self._ended(self._started.commit())

    def run(
        self,
        handler: Callable[[SyncShareRecord], object],
        *,
        concurrency: int = 1,
        prefetch: int | None = None,
    ) -> None:
        """Call `handler` with every record until `stop`, on `concurrency` threads.

        As `ShareConsumer.run`, but for plain functions only, whose results are not awaited. Ctrl-C
        lets the handlers that run end first; a second one does not.
        """
        must_be_handler(handler, has_loop=False)
        ahead = held_ready(self._settings, concurrency, prefetch)
        engine = self._started
        with ThreadPoolExecutor(concurrency, thread_name_prefix="headrace-handler") as threads:

            async def call(record: BaseRecord) -> None:
                (shown,) = _shown([record])
                must_be_over(await self._loop.run_in_executor(threads, on_thread, handler, shown))

            working = work(engine, call, concurrency=concurrency, ahead=ahead)
            future = self._begun(working)
            try:
                future.result()
            except KeyboardInterrupt:
                self.stop()
                ended(future)
                raise
            except CancelledError as error:
                raise Closed(_MEANWHILE) from error

    async def _make_engine(self) -> Engine:
        loop = asyncio.get_running_loop()

        def make(*args: Any, **kwargs: Any) -> BaseRecord:
            return SyncShareRecord(*args, **kwargs).bind(loop)

        return Engine(self._settings, make)

    def _begun(self, doing: Coroutine[Any, Any, T]) -> Future[T]:
        if not self._thread.is_alive():
            doing.close()
            raise Closed("the consumer is closed; make a new one")
        return begun_on(self._loop, doing)

    def _ended(self, doing: Coroutine[Any, Any, T]) -> T:
        return ended(self._begun(doing))

    def _end(self) -> None:
        """Stop the event loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class _Loop:
    """One `for`. What is held ready is held for it, for as long as Python keeps it."""

    def __init__(self, engine: Engine, take: Callable[[int], SyncShareRecord], ahead: int) -> None:
        self._take, self._ahead = take, ahead
        engine.readers.add(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncShareRecord:
        return self._take(self._ahead)


def _serve(ready: Future[asyncio.AbstractEventLoop]) -> None:
    """The thread of one consumer."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        loop.call_soon(ready.set_result, loop)
        loop.run_forever()


def begun_on(loop: asyncio.AbstractEventLoop, doing: Coroutine[Any, Any, T]) -> Future[T]:
    """A coroutine on a loop of another thread. Raises: `Closed`."""
    try:
        return asyncio.run_coroutine_threadsafe(doing, loop)
    except RuntimeError as error:
        doing.close()
        raise Closed("the consumer is closed") from error


def ended(future: Future[T], timeout_s: float | None = None) -> T:
    """The result of a call on the event loop, which is cancelled when the wait for it is.

    Raises: TimeoutError; `Closed`.
    """
    try:
        return future.result(timeout_s)
    except CancelledError as error:
        raise Closed(_MEANWHILE) from error
    except BaseException:
        future.cancel()
        raise


def _shown(records: list[BaseRecord]) -> list[SyncShareRecord]:
    found = [record for record in records if isinstance(record, SyncShareRecord)]
    assert len(found) == len(records), "the engine makes no others"
    return found
