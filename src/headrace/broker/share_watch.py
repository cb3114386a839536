"""A look at share groups each second: which windows are full, and what the log should tell.

Only share-partitions are looked at that acquired records since the last look, or were full then; so
a look costs what happened, however many there are. "Full" is what a member meets: nothing new is
acquired because as many records as share.partition.max.record.locks are unfinished.
"""

import asyncio

from headrace.broker import share_log
from headrace.broker.background import Background
from headrace.broker.partitions import Partitions
from headrace.broker.share_meters import ShareTraffic
from headrace.broker.shares import Shares
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import ShareKey
from headrace.core.types import MonoMs, elapsed_ms
from headrace.log.api import Clock

LOOK_MS = 1_000
STUCK_MS = 5_000  # so long SPSO stands still in a full window until the log tells of it
_PORTION = 100  # share-partitions that are looked at in one turn of the loop


class ShareWatch:
    """Runs from `start` to `close`, on the event loop."""

    def __init__(self, clock: Clock, shares: Shares, partitions: Partitions) -> None:
        self._clock = clock
        self._shares = shares
        self._partitions = partitions
        self._full: dict[ShareTraffic, None] = {}  # an ordered set
        self._sessions_told: MonoMs | None = None
        self.work = Background("share groups are no longer watched", "share watch")

    def start(self) -> None:
        """Begin to look."""
        self.work.begin(self._run())

    async def close(self) -> None:
        """Look no more, and tell what is left to tell."""
        await self.work.stop()
        self._shares.archived_log.tell_rest(is_end=True)

    async def look(self) -> None:
        """Look once."""
        touched, notices, rest = self._shares.meters.taken()
        if notices:
            share_log.tell_notices(notices, rest, self._name)
        self._shares.archived_log.tell_rest()
        self._look_at_sessions()
        for count, one in enumerate([*self._full, *(touched - self._full.keys())]):
            if count % _PORTION == _PORTION - 1:
                await asyncio.sleep(0)
            self._look_at(one)

    async def _run(self) -> None:
        while await self.work.pause(LOOK_MS):
            await self.look()

    def _look_at_sessions(self) -> None:
        now, refused = self._clock.mono(), self._shares.meters.sessions_refused
        told = self._sessions_told
        if refused and (told is None or elapsed_ms(told, now) >= share_log.SESSIONS_PAUSE_MS):
            self._sessions_told, self._shares.meters.sessions_refused = now, 0
            share_log.tell_sessions(refused, len(self._shares.sessions))

    def _look_at(self, one: ShareTraffic) -> None:
        share = self._shares.partition(one.key)
        if share is None:
            self._full.pop(one, None)
            return
        now = self._clock.now()
        if share.unfinished < self._shares.window(share):
            self._full.pop(one, None)
            if one.told:
                share_log.tell_room(one.key, self._name(one.key), share.start)
            one.full_since = one.stuck_since = None
            one.told = False
            return
        if one.full_since is None:
            one.full_since = now.wall
            self._full[one] = None
        if one.stuck_since is None or one.stuck_at != share.start:
            one.stuck_since, one.stuck_at = now.mono, share.start
            return
        stuck_ms = elapsed_ms(one.stuck_since, now.mono)
        if not one.told and stuck_ms >= STUCK_MS and self._waits(share):
            one.told = True
            status = share.runs.at(share.start)
            share_log.tell_full(
                one.key, self._name(one.key), share.unfinished, share.start, status, now
            )

    def _name(self, key: ShareKey) -> str:
        partition = self._partitions.get(key.topic_id, key.partition)
        return f"{key.topic_id}-{key.partition}" if partition is None else partition.name

    def _waits(self, share: SharePartition) -> bool:
        """Whether there are records that would be taken if there were room."""
        partition = self._partitions.get(share.key.topic_id, share.key.partition)
        if partition is None or not partition.is_open:
            return False
        return share.end < partition.high_watermark
