"""Budgets: how much memory and time the requests of all connections may take together.

Any client may send any request, so each cost has a bound that holds before the cost is paid:

- bytes of requests (`queued.max.request.bytes`): incomplete and unanswered frames. Connections with
  less than `LIGHT_BYTES` are not counted; their number is bounded by `max.connections`.
- bytes of responses (`headrace.queued.max.response.bytes`): what clients have not read yet. A fetch
  gets at most half of what is left, so one slow reader cannot take all of it.
- fetches of many records: what they have read is not counted until they are answered. Of those that
  need more than one step, only one at a time keeps more than `LIGHT_BYTES` between two steps, and
  one that is to begin next.
- share fetches: what they have acquired waits for the journal, and for pauses where there are many
  partitions. It takes at most half of the bytes of responses.
- large messages: a request that is large is decoded in a thread, a response with many elements is
  built in portions and encoded in a thread, and only one message and one fetch at a time. Small
  requests have their turn between two portions, however many large requests there are.

`server.py` counts, handlers read. Rejected: a quota for each address, because behind a proxy or on
loopback all clients share one.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar
from weakref import ref

from headrace.broker.config import Config
from headrace.broker.decoding_threads import DecodingThreads
from headrace.broker.request import Raw, Request
from headrace.wire import codec
from headrace.wire.primitives import Writer
from headrace.wire.structs import Struct

T = TypeVar("T")

LIGHT_BYTES = 16 * 1024  # of requests or responses; a connection with less is not counted
DECODE_BYTES_MAX = 8 * 1024  # a larger request is decoded in a thread
PORTION = 200  # elements of a response that are built without a pause: a millisecond or less
_BYTES_PER_ELEMENT = 1024
READ_BYTES_MAX = 16 * 1024 * 1024  # in one response; reading holds the loop
_COUNTED_PORTION = 2000
_NO_LIMIT = 1 << 62


class Budgets:
    """Memory in use by requests and responses, and the turns of large messages.

    Args:
        config: Returns the settings in force.
        threads: Where large messages are decoded and encoded.
    """

    def __init__(self, config: Callable[[], Config], threads: DecodingThreads) -> None:
        self._config = config
        self._threads = threads
        self.request_bytes = 0
        self.response_bytes = 0
        self.acquired_bytes = 0  # of records that share fetches keep until they are answered
        self.share_fetch_waits = False  # for room
        self._one_large = asyncio.Lock()
        self._one_fetch = asyncio.Lock()
        self._fetches = 0  # that have the turn, or wait for it
        self._next_fetch: ref[object] | None = None

    @property
    def request_bytes_max(self) -> int:
        """Limit of `request_bytes`: at least one request of the largest size fits."""
        config = self._config()
        limit = config.queued_request_bytes
        return _NO_LIMIT if limit < 0 else max(limit, config.request_max_bytes)

    @property
    def response_bytes_max(self) -> int:
        """Limit of `response_bytes`."""
        limit = self._config().queued_response_bytes
        return _NO_LIMIT if limit < 0 else limit

    @property
    def fetch_bytes_max(self) -> int:
        """Bytes of records that one response may carry now; 0 while clients do not read.

        At most `READ_BYTES_MAX`, which is read in some milliseconds.
        """
        most = self._config().fetch_max_bytes
        if most > READ_BYTES_MAX:
            most = READ_BYTES_MAX
        if not self.response_bytes:
            return most
        return max(0, min(most, (self.response_bytes_max - self.response_bytes) // 2))

    @property
    def share_fetch_bytes_max(self) -> int:
        """As `fetch_bytes_max`, and half of what share fetches have left of their part.

        Their part is half of the bytes of responses, so that other fetches have room meanwhile.
        """
        most = self.fetch_bytes_max
        if not self.acquired_bytes:
            return most
        return max(0, min(most, (self.response_bytes_max // 2 - self.acquired_bytes) // 2))

    def reserve_fetch(self, poll: object) -> bool:
        """Let a fetch keep many records until it begins, unless another one does, or has begun.

        A fetch that keeps few may still begin before it. What is reserved ends with `begin_fetch`
        or `unreserve_fetch`, or when the fetch is freed.

        Returns: Whether it is reserved for `poll`.
        """
        reserved = None if self._next_fetch is None else self._next_fetch()
        if self._fetches or (reserved is not None and reserved is not poll):
            return False
        self._next_fetch = ref(poll)
        return True

    async def begin_fetch(self, poll: object) -> None:
        """Wait for the turn to read many records; `end_fetch` must follow.

        Inside the turn a fetch waits for the threads of large messages, and for no lock.
        """
        self._fetches += 1
        try:
            await self._one_fetch.acquire()
        except BaseException:
            self._fetches -= 1
            raise
        self.unreserve_fetch(poll)

    def unreserve_fetch(self, poll: object) -> None:
        """Let other fetches keep many records, where this one was to begin next."""
        if self._next_fetch is not None and self._next_fetch() is poll:
            self._next_fetch = None

    def end_fetch(self) -> None:
        """Let the next fetch of many records have its turn."""
        self._fetches -= 1
        self._one_fetch.release()

    @asynccontextmanager
    async def one_large(self) -> AsyncIterator[None]:
        """Wait for the other large messages; no other one is worked on inside the block."""
        async with self._one_large:
            yield

    async def portions(self, items: Iterable[T], size: int = PORTION) -> AsyncIterator[T]:
        """Iterate, and let other requests have their turn after each `size` items.

        What is built of the items belongs inside `one_large`: then only one portion, of one
        response, is built in a turn of the loop.
        """
        for number, item in enumerate(items, 1):
            yield item
            if number % size == 0:
                await asyncio.sleep(0)

    async def counted(self, keys: Iterable[T]) -> Counter[T]:
        """Count how often each key occurs, with pauses."""
        found: Counter[T] = Counter()
        async for key in self.portions(keys, _COUNTED_PORTION):
            found[key] += 1
        return found

    async def by_topic(
        self, named: Iterable[tuple[str, int, T]], *, topics: Iterable[str] = ()
    ) -> dict[str, dict[int, T]]:
        """Group the partitions that a request names by topic, each once, with pauses.

        As in Kafka, the last mention of a partition counts.

        Args:
            named: Topic, partition, and what the request has for the partition.
            topics: Topics that are also in the result when no partition of them is named. Kafka
                answers some requests by topic, and others by partition without such topics.
        """
        grouped: dict[str, dict[int, T]] = {}
        async for topic in self.portions(topics, _COUNTED_PORTION):
            grouped.setdefault(topic, {})
        async for topic, index, item in self.portions(named, _COUNTED_PORTION):
            grouped.setdefault(topic, {})[index] = item
        return grouped

    async def encoded(self, request: Request, answer: dict[str, Any]) -> Raw:
        """Encode a large response in a thread; call it inside `one_large`. Empties `answer`."""
        encode = partial(encoded_and_freed, request.api_key, request.version, answer)
        return Raw([await self.in_thread(encode)])

    async def written(self, answer: Struct, elements: int) -> Raw:
        """Encode a response of Headrace's own APIs, in a thread if it has many elements."""
        out = Writer()
        if elements <= PORTION:
            answer.write(out)
        else:
            async with self.one_large():
                await self.in_thread(partial(answer.write, out))
        return Raw([out.data])

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run `work`, which must not touch state of the broker, beside the event loop."""
        return await self._threads.run(work)


class AcquiredBytes:
    """Counts the records that a share fetch keeps, until `end`, or until this is freed."""

    __slots__ = ("_budgets", "_bytes")

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._bytes = 0

    def add(self, count: int) -> None:
        """Count so many bytes more."""
        self._bytes += count
        self._budgets.acquired_bytes += count

    def end(self) -> None:
        """Count them no longer."""
        self._budgets.acquired_bytes -= self._bytes
        self._bytes = 0

    def __del__(self) -> None:
        if self._bytes:  # of an answer whose connection is closed
            self.end()


def encoded_and_freed(key: int, version: int, answer: dict[str, Any]) -> bytearray:
    """Encode a response, and free it: to free a large one takes tens of milliseconds."""
    data = codec.encode_response(key, version, answer)
    answer.clear()
    return data


def is_large(answer: Mapping[str, Any]) -> bool:
    """Return whether a response has more than `PORTION` elements, or a value of many bytes."""
    return _elements_left(answer, PORTION) < 0


def _elements_left(answer: Mapping[str, Any], left: int) -> int:
    for value in answer.values():
        kind = type(value)  # exact types, as `isinstance` takes longer and every answer comes by
        if kind is list or kind is tuple:
            left -= len(value)
            for item in value:
                if left < 0:
                    return left
                if type(item) is dict:
                    left = _elements_left(item, left)
        elif kind is bytes:
            left -= len(value) // _BYTES_PER_ELEMENT
    return left
