"""Dead letters: copies of rejected and exhausted records, written once, whatever crashes.

A record to be copied is ARCHIVING in the journal before its copy is appended, and ARCHIVED after.
A process that dies in between finds it ARCHIVING again at its start and looks in the dead-letter
topic whether the copy is there. Headers are those of Kafka 4.4 (KIP-1191), values are UTF-8 text;
the copy goes to the partition of the source's number, modulo their count, as Kafka does.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from uuid import UUID

from headrace.broker.config import Config
from headrace.broker.partitions import Partition
from headrace.broker.runtime import StorageFault
from headrace.broker.shares import Shard, Shares
from headrace.broker.topics import Topics
from headrace.core.catalog import CreateTopic, Topic
from headrace.core.errors import Refused
from headrace.core.runs import Run, State
from headrace.core.shard_words import Event, On
from headrace.core.share_words import DeadLettered, Settled, ShareKey
from headrace.core.types import Span
from headrace.log.api import OffsetOutOfRange, Slice
from headrace.wire import batches
from headrace.wire.primitives import Malformed

log = logging.getLogger("headrace.broker")

PREFIX = "__dlq.errors."
_READ_BYTES = 256 * 1024
_BATCH_RECORDS_MAX = 500
_BATCH_BYTES_MAX = 512 * 1024
_RETRY_SECONDS_MAX = 30.0

_Origin = tuple[str, str, int, int, int]  # group, topic, partition, offset, timestamp


class DeadLetters:
    """Writes what waits in the shards, in the background; tries again when the disk fails."""

    def __init__(self, config: Config, topics: Topics, shares: Shares) -> None:
        self._config = config
        self._topics = topics
        self._shares = shares
        self._wanted = asyncio.Event()
        self._waiting: dict[Shard, None] = {}  # an ordered set
        self._task: asyncio.Task[None] | None = None
        self._in_doubt = False  # whether copies may be there that the journal does not know of
        self._found: dict[UUID, set[_Origin]] = {}
        self._complained: set[str] = set()

    def start(self) -> None:
        """Begin to write, first what a crash may have interrupted."""
        for shard in self._shares.shards:
            shard.listeners.append(self._look)
            if self._shares.machine_of(shard).archiving:
                self._waiting[shard] = None
                self._wanted.set()
                self._in_doubt = True
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(_tell_bug)

    async def close(self) -> None:
        """Stop; what is not yet copied stays ARCHIVING and is copied after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _look(self, events: Sequence[Event]) -> None:
        """Take notice of records that became ARCHIVING."""
        for event in events:
            if isinstance(event, Settled) and event.state is State.ARCHIVING:
                self._waiting[self._shares.shard(event.key.group)] = None
                self._wanted.set()
                return

    async def _run(self) -> None:
        pause = 0.5
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            shards, self._waiting = self._waiting, {}
            self._found.clear()
            group = ""
            try:
                for shard in shards:
                    for key in sorted(self._shares.machine_of(shard).archiving):
                        group = key.group
                        await self._write_all(key)
                self._in_doubt = False
                pause = 0.5
            except (OSError, StorageFault) as error:
                log.error(
                    "dead letters of group %s cannot be written: %s; trying again in %.1f s, "
                    "the records wait",
                    group,
                    error,
                    pause,
                    extra={"group": group},
                )
                self._waiting |= shards
                self._in_doubt = True
                self._wanted.set()
                await asyncio.sleep(pause)
                pause = min(pause * 2, _RETRY_SECONDS_MAX)

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
        target = await self._target(key, source)
        if target is None:
            await self._done(key, [run.span for run in runs], None)
            return
        payload = self._shares.settings(key.group).dead_letter_copy
        known = await self._known(target)
        left, copies, size = deque(runs), list[batches.Record](), 0
        where = (key.group, source.topic.name, key.partition)
        for piece in _wanted(source, runs):
            for run, record in piece:
                if (*where, record.offset, record.timestamp) not in known:
                    copies.append(_copy(record, key, source.topic.name, run, payload))
                    size += len(record.value or b"") + len(record.key or b"")
                if len(copies) >= _BATCH_RECORDS_MAX or size >= _BATCH_BYTES_MAX:
                    await self._append(target, copies)
                    await self._done(key, _passed(left, record.offset), target)
                    copies, size = [], 0
            await asyncio.sleep(0)
        await self._append(target, copies)
        await self._done(key, [run.span for run in left], target)

    @staticmethod
    async def _append(target: Partition, copies: list[batches.Record]) -> None:
        if copies:
            target.append_records(copies)
            await target.durable()

    async def _done(self, key: ShareKey, spans: list[Span], target: Partition | None) -> None:
        where = None if target is None else f"{target.topic.name}-{target.index}"
        await self._shares.ask(key.group, On(key, DeadLettered(spans, where)))

    async def _target(self, key: ShareKey, source: Partition) -> Partition | None:
        """The partition that copies go to; None, and said so once, where there can be none."""
        name = self._shares.settings(key.group).dead_letter_topic
        if not name:
            return None
        topic: Topic | Refused | None = self._topics.catalog.topics.get(name)
        if topic is None and self._config.dead_letter_auto_create:
            count = source.topic.partitions
            topic = await self._topics.create(CreateTopic(name, self._topics.new_id(), count, {}))
        trouble = _trouble(topic, source)
        if trouble is None:
            assert isinstance(topic, Topic)
            target = self._topics.partitions.get(topic.id, key.partition % topic.partitions)
            if target is None:
                raise StorageFault(f"dead-letter topic {name} is not open yet")
            return target
        if name not in self._complained:
            self._complained.add(name)
            log.error(
                "group %s: dead-letter topic %r %s; rejected records are archived without a copy",
                key.group,
                name,
                trouble,
            )
        return None

    async def _known(self, target: Partition) -> set[_Origin]:
        """Origins of the copies that are there already, read once a topic, where it is in doubt."""
        if not self._in_doubt:
            return set()
        topic_id = target.key.topic_id
        if topic_id not in self._found:
            found = self._found[topic_id] = set()
            for index in range(target.topic.partitions):
                partition = self._topics.partitions.get(topic_id, index)
                assert partition is not None
                found |= await _origins(partition)
        return self._found[topic_id]


async def _origins(partition: Partition) -> set[_Origin]:
    found: set[_Origin] = set()
    offset, end = partition.log.start_offset, partition.log.end_offset
    while (piece := _piece(partition, offset, end)) is not None:
        origins = (_origin(record) for record in _decoded(partition, piece))
        found.update(origin for origin in origins if origin is not None)
        offset = piece.headers[-1].last_offset + 1
        await asyncio.sleep(0)
    return found


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


def _trouble(topic: Topic | Refused | None, source: Partition) -> str | None:
    """Why a topic cannot take dead letters; None when it can."""
    if topic is None:
        return (
            "does not exist: create it, or set "
            "errors.deadletterqueue.auto.create.topics.enable=true"
        )
    if isinstance(topic, Refused):
        return f"cannot be created: {topic.message}"
    if topic.internal:
        return "is internal: name another one"
    if topic.id == source.topic.id:
        return "is the very topic that the records come from: name another one"
    return None


def _wanted(source: Partition, runs: list[Run]) -> Iterator[list[tuple[Run, batches.Record]]]:
    """The records of the runs, each with its run, a piece of the log at a time.

    Records that retention removed, or that no reader could decode, are missing.
    """
    index = 0
    offset, end = runs[0].span.first, runs[-1].span.last + 1
    while index < len(runs):
        piece = _piece(source, max(offset, runs[index].span.first), end)
        if piece is None:
            return
        found: list[tuple[Run, batches.Record]] = []
        for record in _decoded(source, piece):
            while index < len(runs) and runs[index].span.last < record.offset:
                index += 1
            if index < len(runs) and record.offset >= runs[index].span.first:
                found.append((runs[index], record))
        yield found
        offset = piece.headers[-1].last_offset + 1
        while index < len(runs) and runs[index].span.last < offset:
            index += 1


def _decoded(partition: Partition, piece: Slice) -> Iterator[batches.Record]:
    """The records of a piece; a batch whose inside is damaged is passed over and told.

    The broker checks the checksum of a batch and not what a producer put inside.
    """
    start = 0
    for header in piece.headers:
        data = piece.data[start : start + header.size]
        start += header.size
        try:
            yield from list(batches.records(data))
        except Malformed as error:
            log.error(
                "%s-%d: the records %d to %d cannot be decoded (%s); they get no dead letter",
                partition.topic.name,
                partition.index,
                header.base_offset,
                header.last_offset,
                error,
            )


def _piece(partition: Partition, offset: int, end: int) -> Slice | None:
    try:
        piece = partition.log.read(max(offset, partition.log.start_offset), _READ_BYTES, end=end)
    except OffsetOutOfRange:
        return None
    return piece if piece.headers else None


def _copy(
    record: batches.Record, key: ShareKey, topic: str, run: Run, copy_payload: bool
) -> batches.Record:
    told = {
        "topic": topic,
        "partition": str(key.partition),
        "offset": str(record.offset),
        "group": key.group,
        "delivery.count": str(run.deliveries),
        "message": run.reason or "",
    }
    headers = tuple((PREFIX + name, value.encode()) for name, value in told.items())
    if not copy_payload:
        return batches.Record(0, record.timestamp, None, None, headers)
    return batches.Record(0, record.timestamp, record.key, record.value, record.headers + headers)


def _origin(record: batches.Record) -> _Origin | None:
    told = {
        name.removeprefix(PREFIX): (value or b"").decode(errors="replace")
        for name, value in record.headers
        if name.startswith(PREFIX)
    }
    try:
        place = told["group"], told["topic"], int(told["partition"]), int(told["offset"])
    except (KeyError, ValueError):
        return None  # somebody else's record in the dead-letter topic
    return (*place, record.timestamp)


def _tell_bug(task: asyncio.Task[None]) -> None:
    """A bug ends the task; nobody awaits it, so it is told here."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("dead letters are no longer written", exc_info=task.exception())
