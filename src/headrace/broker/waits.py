"""Long polls: requests that wait until something happens to one of several keys.

A waiter is woken by `notify`, by its deadline, or by `close`; it then looks again for itself. All
of it runs on the event loop, so nothing can happen between a look that does not await and waiting;
who awaits while looking does so under a `watch`.
"""

import asyncio
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager

_WAIT_MS_MAX = (
    300_000  # a peer that died behind queued requests is noticed after this at the latest
)


class Waits:
    """Waiters by key; beyond its limits a poll returns at once.

    Args:
        limit: Polls that wait at a time.
        keys_max: Keys that all of them watch.
    """

    def __init__(self, limit: int, keys_max: int = 1 << 62) -> None:
        self._limit = limit
        self._keys_max = keys_max
        self._keys = 0
        self._waiting = 0
        self._closed = False
        # Dictionaries as ordered sets: who has waited longest is woken first.
        self._by_key: dict[Hashable, dict[asyncio.Future[bool], None]] = {}

    @property
    def waiting(self) -> int:
        """How many polls wait now."""
        return self._waiting

    def waiting_for(self, key: Hashable) -> int:
        """How many of them wait for `key`, or look once more before they do."""
        return len(self._by_key.get(key, ()))

    def notify(self, key: Hashable) -> None:
        """Wake everybody who waits for `key`."""
        for waiter in self._by_key.get(key, ()):
            if not waiter.done():
                waiter.set_result(True)

    @contextmanager
    def watch(self, keys: Iterable[Hashable]) -> "Iterator[Watch]":
        """Take notice of what is notified from here on, for who looks once more and then waits.

        For looks that await: what happens to a key meanwhile ends the wait before it begins.
        """
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        mine = dict.fromkeys(keys)  # a fetch may name a partition twice
        self._keys += len(mine)
        for key in mine:
            self._by_key.setdefault(key, {})[waiter] = None
        try:
            yield Watch(self, waiter)
        finally:
            self._keys -= len(mine)
            for key in mine:
                waiters = self._by_key[key]
                waiters.pop(waiter, None)
                if not waiters:
                    del self._by_key[key]

    async def wait(self, keys: Iterable[Hashable], timeout_ms: float) -> bool:
        """Wait for one of `keys`; whether one was notified before `timeout_ms` had passed."""
        if self._may_not(timeout_ms) or self._keys >= self._keys_max:
            return False
        with self.watch(keys) as watch:
            return await watch.wait(timeout_ms)

    def _may_not(self, timeout_ms: float) -> bool:
        return timeout_ms <= 0 or self._closed or self._waiting >= self._limit

    async def _wait(self, waiter: asyncio.Future[bool], timeout_ms: float) -> bool:
        if waiter.done():
            return waiter.result()
        if self._may_not(timeout_ms):
            return False
        delay_s = min(timeout_ms, _WAIT_MS_MAX) / 1000
        timer = asyncio.get_running_loop().call_later(delay_s, _expire, waiter)
        self._waiting += 1
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiting -= 1

    def close(self) -> None:
        """Wake everybody, and let nobody wait again: the broker stops."""
        self._closed = True
        for waiters in self._by_key.values():
            for waiter in waiters:
                _expire(waiter)


class Watch:
    """Keys that are watched; made by `Waits.watch`."""

    def __init__(self, waits: Waits, waiter: asyncio.Future[bool]) -> None:
        self._waits = waits
        self._waiter = waiter

    async def wait(self, timeout_ms: float) -> bool:
        """Whether a key was notified since the watch began, or is before the time is up."""
        return await self._waits._wait(self._waiter, timeout_ms)


def _expire(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
