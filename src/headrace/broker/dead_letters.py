"""Dead letters: copies of rejected and exhausted records, written once, whatever crashes.

A record to be copied is ARCHIVING in the journal before its copy is appended, and ARCHIVED after.
A process that dies in between finds it ARCHIVING again at its start and looks in the dead-letter
topic whether the copy is there. The copy goes to the partition of the source's number, modulo their
count, as Kafka does. What there can be no copy of is listed instead (core/archived.py).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from headrace.broker.dead_letter_copies import (
    Found,
    Lost,
    Origin,
    Place,
    came_from,
    copy_of,
    ends,
    origins,
    size_max,
    wanted,
)
from headrace.broker.dead_letter_topics import outlived, target_topic
from headrace.broker.partitions import Partition
from headrace.broker.runtime import StorageFault
from headrace.broker.shares import Shard, Shares
from headrace.broker.topics import Topics
from headrace.core.runs import Run, State
from headrace.core.shard_words import Event, On, Restarted
from headrace.core.share_words import DeadLettered, Settled, ShareKey
from headrace.core.types import Span, WallMs
from headrace.log.api import Clock
from headrace.log.buggify import buggify
from headrace.wire import batches

log = logging.getLogger("headrace.broker")

_BATCH_RECORDS_MAX = 500
_BATCH_BYTES_MAX = 512 * 1024
_TURN_RECORDS = 100  # that are copied without a pause: some 2 ms
_RETRY_SECONDS_MIN, _RETRY_SECONDS_MAX = 0.5, 30.0
_COMPLAINTS_MAX = 1000


class _Retry(NamedTuple):
    """When a share-partition that failed is tried again, in seconds of the event loop."""

    at: float
    pause: float


class _Copies(NamedTuple):
    """The copies that a dead-letter topic has of records of some places, from offsets on."""

    starts: dict[Place, int]
    found: set[Origin]


class DeadLetters:
    """Writes what waits in the shards, in the background; tries again when the disk fails."""

    def __init__(self, topics: Topics, shares: Shares, clock: Clock) -> None:
        self._topics = topics
        self._shares = shares
        self._clock = clock
        self._wanted = asyncio.Event()
        self._waiting: dict[Shard, None] = {}  # an ordered set
        self._task: asyncio.Task[None] | None = None
        self._in_doubt: set[ShareKey] = set()  # with copies that the journal may not know of
        self._retries: dict[ShareKey, _Retry] = {}  # of what failed
        self._found: dict[UUID, _Copies] = {}
        self._complained: set[tuple[str, str]] = set()
        self._bugs: set[ShareKey] = set()  # whose traceback is logged

    def start(self) -> None:
        """Begin to write, first what a crash may have interrupted."""
        for shard in self._shares.shards:
            shard.listeners.append(self._look, (Settled, Restarted))
            self._doubt(shard)
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(_tell_bug)

    async def close(self) -> None:
        """Stop; what is not yet copied stays ARCHIVING and is copied after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _look(self, events: Sequence[Event]) -> None:
        """Take notice of records that became ARCHIVING, or are found so in a rebuilt shard."""
        for event in events:
            if isinstance(event, Settled) and event.state is State.ARCHIVING:
                self._wait(self._shares.shard(event.key.group))
                return
            if isinstance(event, Restarted):
                # While the disk failed what became ARCHIVING may have been given up, and be found
                # in the journal after all; as copies may that the journal does not know of.
                for shard in {self._shares.shard(group) for group in event.groups}:
                    self._doubt(shard)

    def _doubt(self, shard: Shard) -> None:
        """Look for copies that the journal does not know of before more are written."""
        archiving = self._shares.machine_of(shard).archiving
        if archiving:
            self._in_doubt |= archiving
            self._wait(shard)

    def _wait(self, shard: Shard) -> None:
        self._waiting[shard] = None
        self._wanted.set()

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            failures: dict[ShareKey, Exception] = {}
            for key in await self._due():
                error = await self._try(key)
                if error is None:
                    self._retries.pop(key, None)
                else:
                    failures[key] = error
                    self._in_doubt.add(key)
                    self._retries[key] = _retry_after(self._retries.get(key), clock())
            self._found.clear()
            if failures:
                _tell(failures, max(self._retries[key].pause for key in failures))

    async def _due(self) -> list[ShareKey]:
        """Wait for new work or the next retry; return the share-partitions to write now."""
        loop = asyncio.get_running_loop()
        retry_at = min((retry.at for retry in self._retries.values()), default=None)
        try:
            async with asyncio.timeout_at(retry_at):
                await self._wanted.wait()
        except TimeoutError:  # a timer may fire slightly before its time
            now = max(loop.time(), retry_at or 0.0)
        else:
            now = loop.time()
        self._wanted.clear()
        shards, self._waiting = self._waiting, {}
        archiving = (sorted(self._shares.machine_of(shard).archiving) for shard in shards)
        new = [key for keys in archiving for key in keys if key not in self._retries]
        return new + [key for key, retry in self._retries.items() if retry.at <= now]

    async def _try(self, key: ShareKey) -> Exception | None:
        """Copy what waits in a share-partition; return why that failed."""
        machine = self._shares.machine(key.group)
        try:
            await self._write_all(key)
        except (OSError, StorageFault) as error:
            self._topics.partitions.read_failed(error)
            return error
        except Exception as error:  # a bug must not keep back the copies of others
            self._report_bug(key, error)
            return error
        if self._shares.machine(key.group) is machine:  # what is rebuilt meanwhile is in doubt
            self._in_doubt.discard(key)
        return None

    def _report_bug(self, key: ShareKey, error: Exception) -> None:
        """Log the first traceback of a share-partition: the next try may fail in the same way."""
        if key not in self._bugs and len(self._bugs) < _COMPLAINTS_MAX:
            self._bugs.add(key)
            log.critical("dead letters of %s failed by a bug", key, exc_info=error)

    async def _write_all(self, key: ShareKey) -> None:
        """Copy every ARCHIVING record of a share-partition, piece by piece."""
        share = self._shares.machine(key.group).partitions.get(key)
        source = self._topics.partitions.get(key.topic_id, key.partition)
        if share is None or source is None:
            return
        runs = list(share.runs.in_state(State.ARCHIVING))
        # What is copied must be rejected for good: not before the journal says so.
        await self._shares.shard(key.group).durable()
        if self._shares.machine(key.group).partitions.get(key) is not share:
            raise StorageFault(f"{key}: the shard was rebuilt meanwhile")
        if not runs:
            return
        await source.open_ready()
        target = await self._target(key, source)
        if isinstance(target, str):
            await self._done(key, [run.span for run in runs], None, target)
            return
        where = (key.group, source.topic.name, key.partition)
        known = await self._known(key, where, runs[0].span.first, target)
        payload = self._shares.settings(key.group).dead_letter_copy
        left, copies, size = deque(runs), list[batches.Record](), 0
        room = min(_BATCH_BYTES_MAX, target.settings.message_max_bytes)
        async for piece in wanted(source, runs):
            for number, (run, found) in enumerate(piece, 1):
                if number % _TURN_RECORDS == 0:
                    await asyncio.sleep(0)
                now = self._clock.wall()
                copy = _letter(found, run, key, source, target, now, payload=payload)
                if isinstance(copy, str):
                    await self._without(key, found, left, copies, target, copy)
                    copies, size = [], 0
                    continue
                assert not isinstance(found, Lost)  # it is the record that was copied
                if (*where, found.offset, found.timestamp) in known:
                    continue
                needed = size_max(copy)
                is_full = len(copies) >= _BATCH_RECORDS_MAX or buggify("dead_letters.batch")
                is_full |= size + needed > room
                if copies and (is_full or not batches.can_share_batch(copies[0], copy)):
                    await self._append(target, copies)
                    await self._done(key, _passed(left, found.offset - 1), target)
                    copies, size = [], 0
                copies.append(copy)
                size += needed
        await self._append(target, copies)
        await self._done(key, [run.span for run in left], target)

    async def _without(
        self,
        key: ShareKey,
        found: Found,
        left: deque[Run],
        copies: list[batches.Record],
        target: Partition,
        trouble: str,
    ) -> None:
        """Be done with what there can be no dead letter of, after what lies before it."""
        await self._append(target, copies)
        first, last = ends(found)
        await self._done(key, _passed(left, first - 1), target)
        await self._done(key, _passed(left, last), None, trouble)
        self._complain(key.group, trouble)

    @staticmethod
    async def _append(target: Partition, copies: list[batches.Record]) -> None:
        if copies:
            data, header = batches.build_with_header(copies)
            while target.must_roll(header):
                await target.roll_ready()
            target.append(data, [header])
            await target.durable()

    async def _done(
        self, key: ShareKey, spans: list[Span], target: Partition | None, trouble: str = ""
    ) -> None:
        if not spans:
            return
        where = None if target is None else f"{target.topic.name}-{target.index}"
        await self._shares.ask(key.group, On(key, DeadLettered(spans, where, trouble)))

    async def _target(self, key: ShareKey, source: Partition) -> Partition | str:
        """The partition that copies go to; or why there can be none, which is said once."""
        name = self._shares.settings(key.group).dead_letter_topic
        topic = await target_topic(self._topics, name, source)
        if isinstance(topic, str):
            self._complain(key.group, topic)
            return topic
        target = self._topics.partitions.get(topic.id, key.partition % topic.partitions)
        if target is None:
            raise StorageFault(f"dead-letter topic {name} is not open yet")
        await target.open_ready()
        return target

    def _complain(self, group: str, trouble: str) -> None:
        if (group, trouble) in self._complained or len(self._complained) >= _COMPLAINTS_MAX:
            return
        self._complained.add((group, trouble))
        log.error(
            "group %s: rejected records get no dead letter: %s; they are listed by: "
            "headrace share archived %s",
            group,
            trouble,
            group,
            extra={"group": group},
        )

    async def _known(
        self, key: ShareKey, where: Place, first: int, target: Partition
    ) -> set[Origin]:
        """Return the copies that are there already, read once a topic, where it is in doubt.

        Args:
            key: A share-partition.
            where: Its place.
            first: The first offset that waits to be copied.
            target: A partition of the dead-letter topic.

        Raises: OSError.
        """
        if key not in self._in_doubt:
            return set()
        topic_id = target.key.topic_id
        copies = self._found.get(topic_id)
        # A share-partition is in doubt, and may have moved back, since a shard was rebuilt.
        if copies is None or copies.starts.get(where, first + 1) > first:
            copies = _Copies(await self._starts_in_doubt(), set())
            copies.starts[where] = min(copies.starts.get(where, first), first)
            for index in range(target.topic.partitions):
                partition = await self._topics.partitions.opened(topic_id, index)
                if partition is not None:  # it may be deleted meanwhile
                    copies.found.update(await origins(partition, copies.starts))
            self._found[topic_id] = copies  # once it is complete: a read may fail
        return copies.found

    async def _starts_in_doubt(self) -> dict[Place, int]:
        """Return SPSO of each share-partition that is in doubt: what is below it is finished."""
        starts: dict[Place, int] = {}
        for number, key in enumerate(tuple(self._in_doubt), 1):
            if number % _TURN_RECORDS == 0:
                await asyncio.sleep(0)
            share = self._shares.machine(key.group).partitions.get(key)
            source = self._topics.partitions.get(key.topic_id, key.partition)
            if share is not None and source is not None:
                starts[key.group, source.topic.name, key.partition] = share.start
        return starts


def _passed(left: deque[Run], offset: int) -> list[Span]:
    """Take the spans up to `offset` off the front of `left`."""
    spans: list[Span] = []
    while left and left[0].span.last <= offset:
        spans.append(left.popleft().span)
    if left and left[0].span.first <= offset:
        run = left[0]
        spans.append(Span(run.span.first, offset))
        left[0] = replace(run, span=Span(offset + 1, run.span.last))
    return spans


def _letter(
    found: Found,
    run: Run,
    key: ShareKey,
    source: Partition,
    target: Partition,
    now: WallMs,
    *,
    payload: bool,
) -> batches.Record | str:
    """The copy of a record; or why there can be none."""
    topic = target.topic.name
    if isinstance(found, Lost):
        records = "record" if len(found.span) == 1 else "records"
        return f"the {records} {found.span} of {source.name} {found.why}"
    if came_from(found, topic):
        return f"the record was a dead letter in {topic} before"
    trouble = outlived(found.timestamp, target, now)
    if trouble is not None:
        return trouble
    copy = copy_of(found, key, source.topic.name, run, payload=payload)
    limit = target.settings.message_max_bytes
    # Its exact size takes a while to find, and is seldom needed.
    size = size_max(copy)
    if size > limit:
        size = len(batches.build([copy]))
    if size > limit:
        return f"the copy is larger than max.message.bytes={limit} of {topic}"
    return copy


def _retry_after(before: _Retry | None, now: float) -> _Retry:
    """Return the next retry, at a multiple of its pause: so many are due at the same time."""
    pause = _RETRY_SECONDS_MIN if before is None else min(before.pause * 2, _RETRY_SECONDS_MAX)
    return _Retry((now // pause + 1) * pause, pause)


def _tell(failures: dict[ShareKey, Exception], pause: float) -> None:
    """One line, of the first group: most often all fail for the same reason."""
    key, error = next(iter(failures.items()))
    others = len({failed.group for failed in failures}) - 1
    log.error(
        "dead letters of group %s%s cannot be written: %s; trying again within %.1f s, "
        "the records wait",
        key.group,
        f" and of {others} others" if others else "",
        error,
        pause,
        extra={"group": key.group},
    )


def _tell_bug(task: asyncio.Task[None]) -> None:
    """A bug ends the task; nobody awaits it, so it is told here."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("dead letters are no longer written", exc_info=task.exception())
