"""Long polls: requests that wait until something happens to one of several keys.

A waiter is woken by `notify`, by its deadline, or by `close`; it then looks again for itself. All
of it runs on the event loop, so nothing can happen between looking and waiting.
"""

import asyncio
from collections.abc import Hashable, Iterable

_WAIT_MS_MAX = (
    300_000  # a peer that died behind queued requests is noticed after this at the latest
)


class Waits:
    """Waiters by key, at most `limit` at a time; beyond that a poll returns at once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting = 0
        self._closed = False
        # Dictionaries as ordered sets: who has waited longest is woken first.
        self._by_key: dict[Hashable, dict[asyncio.Future[bool], None]] = {}

    @property
    def waiting(self) -> int:
        """How many polls wait now."""
        return self._waiting

    def notify(self, key: Hashable) -> None:
        """Wake everybody who waits for `key`."""
        for waiter in self._by_key.get(key, ()):
            if not waiter.done():
                waiter.set_result(True)

    async def wait(self, keys: Iterable[Hashable], timeout_ms: float) -> bool:
        """Wait for one of `keys`; whether one was notified before `timeout_ms` had passed."""
        timeout_ms = min(timeout_ms, _WAIT_MS_MAX)
        if timeout_ms <= 0 or self._closed or self._waiting >= self._limit:
            return False
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(timeout_ms / 1000, _expire, waiter)
        mine = dict.fromkeys(keys)  # a fetch may name a partition twice
        for key in mine:
            self._by_key.setdefault(key, {})[waiter] = None
        self._waiting += 1
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiting -= 1
            for key in mine:
                waiters = self._by_key[key]
                waiters.pop(waiter, None)
                if not waiters:
                    del self._by_key[key]

    def close(self) -> None:
        """Wake everybody, and let nobody wait again: the broker stops."""
        self._closed = True
        for waiters in self._by_key.values():
            for waiter in waiters:
                _expire(waiter)


def _expire(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
