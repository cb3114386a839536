"""Purgatory of long polls: requests that wait until something happens to one of several keys.

A waiter is woken by `notify`, by its deadline, or by `close`; it then looks again for itself. All
of it runs on the event loop, so nothing can happen between a look that does not await and waiting;
who awaits while looking does so under a `watch`.

A notification costs each waiter of the key one call of its check, and wakes only those whose check
holds, so an append does not make a fetch of 2,000 partitions look at all of them. At most
`WAKE_PORTION` waiters are checked in one turn of the loop; a key with more waiters is notified in
portions, and notified again from the start where that happens meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager

WAKE_PORTION = 100
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
        self._by_key: dict[Hashable, dict[Watch, None]] = {}
        # Keys with many waiters: those that are to be checked still, and whether to begin again.
        self._passes: dict[Hashable, deque[Watch]] = {}
        self._again: set[Hashable] = set()

    @property
    def waiting(self) -> int:
        """How many polls wait now."""
        return self._waiting

    @property
    def is_full(self) -> bool:
        """Return whether a poll must not wait because of the keys that others watch."""
        return self._keys >= self._keys_max

    def waiting_for(self, key: Hashable) -> int:
        """How many of them wait for `key`, or look once more before they do."""
        return len(self._by_key.get(key, ()))

    def keys(self) -> list[Hashable]:
        """Return what is waited for now."""
        return list(self._by_key)

    def notify(self, key: Hashable) -> None:
        """Wake those who wait for `key` and whose check holds."""
        watches = self._by_key.get(key)
        if not watches:
            return
        if len(watches) <= WAKE_PORTION:
            for watch in watches:
                watch.notify(key)
        elif key in self._passes:
            self._again.add(key)
        else:
            if not self._passes:
                asyncio.get_running_loop().call_soon(self._go_on)
            self._passes[key] = deque(watches)
            self._check_portion(key)

    def _go_on(self) -> None:
        """Notify a portion of the waiters of one key, in turn."""
        key = next(iter(self._passes), None)
        if key is None:
            return
        self._check_portion(key)
        if self._passes:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _check_portion(self, key: Hashable) -> None:
        left = self._passes.pop(key)
        for _ in range(min(WAKE_PORTION, len(left))):
            left.popleft().notify(key)
        if not left and key in self._again:
            self._again.discard(key)
            left = deque(self._by_key.get(key, ()))
        if left:
            self._passes[key] = left  # behind other keys

    @contextmanager
    def watch(
        self, keys: Iterable[Hashable], check: "Callable[[Hashable], bool] | None" = None
    ) -> "Iterator[Watch]":
        """Take notice of what is notified from here on, for who looks once more and then waits.

        For looks that await: what happens to a key meanwhile ends the wait before it begins.

        Args:
            keys: What to watch.
            check: Returns whether a notification of a key is worth waking; all are by default.
        """
        watch = Watch(self, check)
        mine = dict.fromkeys(keys)  # a fetch may name a partition twice
        self._keys += len(mine)
        for key in mine:
            self._by_key.setdefault(key, {})[watch] = None
        try:
            yield watch
        finally:
            watch.end()
            self._keys -= len(mine)
            for key in mine:
                watches = self._by_key[key]
                watches.pop(watch, None)
                if not watches:
                    del self._by_key[key]

    async def wait(self, keys: Iterable[Hashable], timeout_ms: float) -> bool:
        """Wait for one of `keys`; whether one was notified before `timeout_ms` had passed."""
        if self._may_not(timeout_ms) or self.is_full:
            return False
        with self.watch(keys) as watch:
            return await watch.wait(timeout_ms)

    def _may_not(self, timeout_ms: float) -> bool:
        return timeout_ms <= 0 or self._closed or self._waiting >= self._limit

    async def _wait(self, waiter: asyncio.Future[bool], timeout_ms: float) -> bool:
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
        for watches in self._by_key.values():
            for watch in watches:
                watch.expire()


class Watch:
    """Keys that are watched; made by `Waits.watch`."""

    __slots__ = ("_check", "_has_ended", "_is_notified", "_waiter", "_waits")

    def __init__(self, waits: Waits, check: Callable[[Hashable], bool] | None) -> None:
        self._waits = waits
        self._check = check
        self._is_notified = self._has_ended = False
        self._waiter: asyncio.Future[bool] | None = None

    async def wait(self, timeout_ms: float) -> bool:
        """Whether a key was notified since the last wait, or is before the time is up."""
        if not self._is_notified:
            if self._waits._may_not(timeout_ms):
                return False
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                if not await self._waits._wait(self._waiter, timeout_ms):
                    return False
            finally:
                self._waiter = None
        self._is_notified = False
        return True

    def notify(self, key: Hashable) -> None:
        """Wake, if the check holds for `key`."""
        if self._is_notified or self._has_ended:
            return
        if self._check is None or self._check(key):
            self._is_notified = True
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(True)

    def expire(self) -> None:
        """Wake as if the time were up."""
        if self._waiter is not None:
            _expire(self._waiter)

    def end(self) -> None:
        """Take no notice any more."""
        self._has_ended = True


def _expire(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
