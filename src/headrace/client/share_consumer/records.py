"""A record of a share group in the hands of a consumer, and the way of a verdict to the broker."""

import asyncio
import time
from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.client.errors import ClientError
from headrace.client.share_consumer.words import (
    AlreadyAcknowledged,
    LockLost,
    Place,
    Reject,
    Verdict,
)

if TYPE_CHECKING:
    from headrace.client.share_consumer.hand import Hand

_MOMENTS = ("NoTimestampType", "CreateTime", "LogAppendTime")


class Acknowledgement:
    """The way of one verdict to the broker. It is sent whether or not somebody awaits it.

    Awaiting returns when the broker has made the verdict durable. Raises: `LockLost` when the
    record was not this consumer's any more, `BrokerError` for another refusal.
    """

    __slots__ = ("_waiting", "done", "error", "is_observed")

    def __init__(self) -> None:
        self.done = False
        self.error: ClientError | None = None
        self.is_observed = False
        self._waiting: asyncio.Future[None] | None = None

    def __await__(self) -> Generator[Any, None, None]:
        self.is_observed = True
        yield from self.until_done().__await__()
        if self.error is not None:
            raise self.error

    async def until_done(self) -> None:
        """Wait until it is done, however it ends; `commit` still raises its error."""
        if not self.done:
            if self._waiting is None:
                self._waiting = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiting)

    def settle(self, error: ClientError | None) -> None:
        """It ended so; for the consumer itself."""
        self.error = error
        self.done = True  # last: other threads read `error` once it is
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class BaseRecord:
    """What both faces of a record have in common.

    `timestamp` is in ms, of the kind `timestamp_type` says ("CreateTime", "LogAppendTime" or
    "NoTimestampType", then -1); `headers` are pairs; `delivery_count` is 1 at the first delivery.
    """

    __slots__ = (
        "delivery_count", "first_held", "hand", "headers", "key", "lock_end", "loop", "offset",
        "partition", "place", "renew_at", "said", "timestamp", "timestamp_type", "topic", "value",
        "why_gone",
    )  # fmt: skip

    def __init__(
        self,
        hand: "Hand",
        place: Place,
        topic: str,
        fields: tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]],
        *,
        timestamp_type: int,
        delivery_count: int,
    ) -> None:
        self.topic = topic
        self.partition = place[1]
        self.offset, self.timestamp, self.key, self.value, self.headers = fields
        self.timestamp_type = _MOMENTS[timestamp_type + 1 if self.timestamp >= 0 else 0]
        self.delivery_count = delivery_count
        # What follows is the consumer's own.
        self.hand = hand
        self.place = place
        self.said: Acknowledgement | None = None
        self.loop: asyncio.AbstractEventLoop | None = None  # where a thread's words have to go
        self.first_held = self.lock_end = self.renew_at = 0.0
        self.why_gone = "its lock ended"  # once it is not held any more

    def __repr__(self) -> str:
        return (
            f"<headrace.{type(self).__name__} {self.topic}-{self.partition} offset {self.offset}, "
            f"delivery {self.delivery_count}>"
        )

    @property
    def is_held(self) -> bool:
        """Whether it waits for a verdict, and its lock goes on as far as is known here."""
        return self.said is None and self.lock_end > self.hand.clock() and self.hand.holds(self)

    @property
    def lock_deadline(self) -> float:
        """When its lock ends at the latest unless it is renewed; seconds as of `time.time`."""
        return time.time() + self.lock_end - self.hand.clock()


class ShareRecord(BaseRecord):
    """A record that this consumer holds until it says what becomes of it.

    As a context manager it is accepted at the end of the block, released when the block raises, and
    rejected when it raises `headrace.Reject`, which goes no further unless there was a verdict:

        async for record in consumer:
            async with record:
                await work(record.value)
    """

    __slots__ = ()

    def accept(self) -> Acknowledgement:
        """It was processed: nobody gets it again. Raises: `AlreadyAcknowledged`."""
        return self._say(Verdict.ACCEPT)

    def release(self) -> Acknowledgement:
        """Let it be delivered again while it has deliveries left. Raises: as `accept`."""
        return self._say(Verdict.RELEASE)

    def reject(self, reason: str | None = None) -> Acknowledgement:
        """It cannot be processed: nobody gets it again, and it goes where dead letters go.

        `reason` (1,024 bytes are kept) stands in Headrace's journal and with the dead letter;
        Apache Kafka has no room for it. Raises: as `accept`; TypeError for what is no text.
        """
        return self._say(Verdict.REJECT, reason)

    def renew(self) -> Acknowledgement:
        """Begin its lock anew; locks are renewed in time without this, see `ShareConsumer`.

        Raises: `AlreadyAcknowledged`. Awaiting it also raises `Unsupported` where renewal is off.
        """
        return self._say(Verdict.RENEW)

    def _say(self, verdict: Verdict, reason: str | None = None) -> Acknowledgement:
        if self.loop is None:
            return self.hand.say(self, verdict, reason)
        answer = self.hand.begin(self, verdict, reason)
        self.loop.call_soon_threadsafe(self.hand.file, self, verdict, reason, answer)
        return answer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return conclude(self, error)


def conclude(record: BaseRecord, error: BaseException | None) -> bool:
    """Give the verdict that the end of a block or handler means, unless one was given.

    Returns whether that is all there is to do about `error`: a `Reject` became the verdict.
    """
    if record.said is not None:
        return False
    record.hand.say(record, *verdict_after(error))
    return isinstance(error, Reject)


def verdict_after(error: BaseException | None) -> tuple[Verdict, str | None]:
    """What the end of a block or handler says of its record, and why."""
    if error is None:
        return Verdict.ACCEPT, None
    if isinstance(error, Reject):
        return Verdict.REJECT, error.reason
    return Verdict.RELEASE, None


def must_be_open(record: BaseRecord, *, has_verdict: bool = False) -> None:
    """Raises: `AlreadyAcknowledged` when a verdict was given."""
    if has_verdict or record.said is not None:
        raise AlreadyAcknowledged(f"{_place(record)} has its verdict already; give one only")


def lost(record: BaseRecord) -> LockLost:
    """The error of a verdict that came too late."""
    why = record.why_gone
    return LockLost(f"{_place(record)} is not held any more: {why}; it is delivered again", why)


def _place(record: BaseRecord) -> str:
    return f"{record.topic}-{record.partition} offset {record.offset}"
