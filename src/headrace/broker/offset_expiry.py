"""Committed offsets that go without anybody asking: those nobody uses, and those of deleted topics.

A sweep looks at all of them each offsets.retention.check.interval.ms (KIP-211). It asks a shard for
a small portion at a time, so that no request waits for more than one of them, and a shard that
cannot be written has its turn with the next sweep.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from headrace.broker.background import Background
from headrace.broker.checked_clock import CheckedClock
from headrace.broker.config import Config
from headrace.broker.groups import Groups, Shard
from headrace.broker.runtime import StorageFault
from headrace.broker.topics import Topics
from headrace.core.catalog import Topic
from headrace.core.group_words import Expire, Expired, ForgetOffsets, Look
from headrace.core.offset_life import looks
from headrace.core.types import WallMs
from headrace.log.buggify import buggify

log = logging.getLogger("headrace.broker")

PORTION = 100  # groups and offsets in one command: about 1 ms when all of them go
_GROUPS_NAMED = 5
_NAME_SHOWN = 80


class _Gone(NamedTuple):
    """A topic that was deleted, or one that nobody knows; `by` tells people who deleted it."""

    name: str
    id: UUID | None
    until: WallMs
    by: str = ""


@dataclass(slots=True)
class Swept:
    """What a sweep came to; `named` are some of the groups."""

    offsets: int = 0
    groups: int = 0
    groups_removed: int = 0
    named: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """For the log, where names may hold anything, and be long."""
        told = []
        if self.offsets:
            names = ", ".join(repr(name[:_NAME_SHOWN]) for name in self.named)
            groups = _counted(self.groups, "group")
            told.append(f"dropped {_counted(self.offsets, 'offset')} of {groups}, last of {names}")
        if self.groups_removed:
            told.append(f"removed {_counted(self.groups_removed, 'group')} that had nothing left")
        return "; ".join(told) or "nothing"

    def add(self, expired: Expired) -> None:
        """Count a portion; one group may stand in several, one after the other."""
        self.offsets += expired.offsets
        self.groups_removed += expired.groups_removed
        for group in expired.groups:
            if group not in self.named[-1:]:
                self.groups += 1
                self.named = [*self.named[-_GROUPS_NAMED + 1 :], group]


class OffsetExpiry:
    """Runs from `start` to `close`, on the event loop."""

    def __init__(self, config: Config, clock: CheckedClock, groups: Groups, topics: Topics) -> None:
        self._config = config
        self._clock = clock
        self._groups = groups
        self._topics = topics
        self.work = Background("committed offsets no longer expire", "offset expiry")
        self._unforgotten: list[_Gone] = []

    async def start(self) -> None:
        """Begin to keep time; the groups are open."""
        self._topics.on_deleted.append(self._topic_deleted)
        for gone in self._strays():
            await self._forget(gone)
        self.work.begin(self._run())

    async def close(self) -> None:
        """Leave off after the portion that is under way."""
        await self.work.stop()

    async def sweep(self) -> Swept:
        """Look at all offsets once."""
        await self._forget_the_rest()
        swept = Swept()
        for shard in self._groups.shards:
            # A shard that fails has told why; what is still there is found by the next sweep.
            with contextlib.suppress(StorageFault):
                await self._sweep(shard, swept)
        if swept.offsets or swept.groups_removed:
            log.info("offset expiry: %s", swept)
        return swept

    async def _run(self) -> None:
        while await self.work.pause(self._config.offsets_retention_check_ms):
            await self.sweep()

    async def _sweep(self, shard: Shard, swept: Swept) -> None:
        """Raises: StorageFault."""
        for portion in self._portions(shard):
            swept.add(await shard.ask(Expire(portion, self._clock.proven())))
            if self.work.is_stopping:
                return

    def _portions(self, shard: Shard, topic: str | None = None) -> Iterator[tuple[Look, ...]]:
        machine = self._groups.machine_of(shard)
        portion = 1 if buggify("offset_expiry.portion") else PORTION
        return looks(machine.names, machine.offsets, portion, topic)

    # ---- topics that are gone

    def _topic_deleted(self, topic: Topic, by: str) -> None:
        self.work.begin(self._forget(_Gone(topic.name, topic.id, self._clock.wall(), by)))

    async def _forget(self, gone: _Gone) -> None:
        try:
            for shard in self._groups.shards:
                for portion in self._portions(shard, gone.name):
                    if portion:
                        name, topic_id, until, by = gone
                        await shard.ask(ForgetOffsets(name, topic_id, until, portion, by))
                    else:
                        await asyncio.sleep(0)
                    if self.work.is_stopping:
                        return  # the next start finds the rest
        except StorageFault:
            self._unforgotten.append(gone)

    async def _forget_the_rest(self) -> None:
        unforgotten, self._unforgotten = self._unforgotten, []
        for gone in unforgotten:
            await self._forget(gone)

    def _strays(self) -> list[_Gone]:
        """Topics with offsets that are gone: the process died between the two journals."""
        topics, now = self._topics.catalog.topics, self._clock.wall()
        known = {
            one
            for shard in self._groups.shards
            for offsets in self._groups.machine_of(shard).offsets.values()
            for one in offsets.topics()
        }
        return [
            _Gone(name, topic_id, now)
            for name, topic_id in known
            if name not in topics or topic_id not in (None, topics[name].id)
        ]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
