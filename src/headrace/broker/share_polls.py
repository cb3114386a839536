"""One look for records of a share group: what is acquired, and read, of each partition. KIP-932.

What is acquired is always part of what is sent, because clients acknowledge acquired offsets
without a record as gaps, which would lose them. So the log is read first, no further than records
can be acquired (`core.reach`), and what was read is then asked for.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from headrace.broker.budgets import AcquiredBytes
from headrace.broker.errors import Code, error_code
from headrace.broker.partitions import Partition
from headrace.broker.runtime import StorageFault
from headrace.broker.services import Services
from headrace.core.errors import Refused
from headrace.core.reach import reach
from headrace.core.shard_words import On
from headrace.core.share_partition import SharePartition
from headrace.core.share_session import SessionKey
from headrace.core.share_words import Acquire, Acquired, ShareKey
from headrace.core.types import Span, TopicPartition
from headrace.log.api import OffsetOutOfRange, Slice
from headrace.log.buggify import buggify
from headrace.log.reading import part_of
from headrace.wire.batches import CorruptBatch, require_possible
from headrace.wire.primitives import Buffer
from headrace.wire.share_requests import AcknowledgedPart, Acquisition, FetchedPart, FetchRequest

ROOM = "room for acquired records"  # a key of `Waits`, as no partition has
_RECORD_LIMIT = 1
LOOK_PORTION = 200  # partitions that are looked at without a pause
READ_PORTION_BYTES = 1 << 20  # from files, without a pause
_READ_BYTES_MAX = 1 << 20
# So many that lie apart are looked up in some 10 ms; how many are asked for is the client's choice.
_RECORDS_MAX = 50_000
_NOT_BEGUN = "The group has no such share-partition; subscribe to its topic first."


@dataclass(slots=True)
class _Found:
    """What one partition answers."""

    code: Code = Code.NONE
    message: str | None = None
    acked: AcknowledgedPart | None = None
    records: Buffer = b""
    acquired: list[Acquisition] = field(default_factory=list)
    count: int = 0  # of the records acquired


def room_left(services: Services) -> None:
    """Wake the share fetches that lack room, if there is some; call it where there is more."""
    if services.budgets.share_fetch_waits and services.budgets.share_fetch_bytes_max > 0:
        services.budgets.share_fetch_waits = False
        services.waits.notify(ROOM)


class SharePoll:
    """One request for records, and what was found for it so far.

    Args:
        order: the partitions to look at, the first of them first.
        told: those of which something is told even when there is nothing.
        acked: what became of the acknowledgements that came with it.

    Attributes:
        shard: The group's, which must be durable before anything is sent.
        lacks_room: Whether the last look acquired nothing, as other responses take all the memory
            that there is for them. `ROOM` is notified when there is some again.
    """

    def __init__(
        self,
        services: Services,
        who: SessionKey,
        asking: FetchRequest,
        order: Sequence[TopicPartition],
        told: Sequence[TopicPartition],
        acked: Sequence[AcknowledgedPart],
    ) -> None:
        self.order = order
        self._services = services
        self._who = self._group, self._member = who
        self._session = services.shares.sessions.sessions.get(who)
        self._asking = asking
        self._records_max = min(asking.records_max, _RECORDS_MAX)
        self.shard = services.shares.shard(self._group)
        self._machine = self.shard.machine  # that knows what was acquired
        self._policy = services.shares.policy(self._group)
        self._told = frozenset(told)
        self._found: dict[TopicPartition, _Found] = {}
        self._kept = AcquiredBytes(services.budgets)
        self._read_bytes = 0  # from files; where a large batch follows, many more than are kept
        self._looking: Generator[None, None, bool] | None = None  # a look that is not finished
        self.lacks_room = False
        for one in acked:
            where = TopicPartition(one.topic_id, one.partition)
            found = self._found.setdefault(where, _Found(acked=one))
            if one.code:  # also where more acknowledgements of the partition came behind these
                found.acked = one
        for partition in told:
            if partition not in self._found:
                self._found[partition] = _Found()

    @property
    def is_awaited(self) -> bool:
        """Whether the session is as this request left it.

        Once the member has gone on over another connection, or ended its session, nobody reads
        what would be acquired for it.
        """
        return self._services.shares.sessions.sessions.get(self._who) is self._session

    def acknowledged(self, fault: StorageFault | None) -> None:
        """Told when the acknowledgements are durable, where the records are looked for later."""
        if fault is None:
            return
        for found in self._found.values():
            if found.acked is not None:
                found.acked = found.acked._replace(code=Code.STORAGE_ERROR, message=str(fault))

    def look(self, bytes_min: int = 0) -> bool | None:
        """Look at every partition, in order, while the request's limits last.

        The outcome must not be sent before the group's shard is durable. Where there is less than
        `bytes_min`, and could be more, nothing is acquired: others may have it while this poll
        waits.

        Returns:
            Whether there are records, or an error of a partition that is new to the session; None
            where the look needs a pause: `look_in_portions` continues it then.
        """
        looking = self._look(bytes_min)
        try:
            next(looking)
        except StopIteration as end:
            return bool(end.value)
        self._looking = looking
        return None

    async def look_in_portions(self, bytes_min: int = 0) -> bool:
        """Look, or continue a look, with a pause after each portion.

        A portion has `LOOK_PORTION` partitions, or reads `READ_PORTION_BYTES`. It ends early, and
        returns True, where the poll is not awaited any more. It begins again where a fault of the
        journal took back what was acquired before a pause, and once where a look that it continues
        ends without records.
        """
        looking, self._looking = self._looking, None
        is_continued = looking is not None and self.shard.machine is self._machine
        if looking is None or not is_continued:
            looking = self._look(bytes_min)
        while True:
            try:
                next(looking)
            except StopIteration as end:
                if end.value or not is_continued:
                    return bool(end.value)
                # Records may have come before the continuation, when no watch was set.
                looking, is_continued = self._look(bytes_min), False
            await asyncio.sleep(0)
            if self.shard.machine is not self._machine:
                looking = self._look(bytes_min)
            if not self.is_awaited:
                return True

    def _look(self, bytes_min: int) -> Generator[None, None, bool]:
        if self.shard.machine is not self._machine:  # rebuilt, without what was acquired
            self._machine = self.shard.machine
            for found in self._found.values():
                found.records, found.acquired, found.count = b"", [], 0
            self.end()
        budgets, bytes_left, self.lacks_room = self._services.budgets, self._asking.bytes_max, False
        if bytes_min > 1 and budgets.share_fetch_bytes_max > 0:
            bytes_min = min(bytes_min, bytes_left, budgets.share_fetch_bytes_max)
            if not (yield from self._has(bytes_min)):
                return False
        bytes_left = min(bytes_left, budgets.share_fetch_bytes_max)
        records_left = self._records_max
        something, read_bytes_max = False, self._read_bytes + READ_PORTION_BYTES
        for number, where in enumerate(self.order, 1):
            if bytes_left <= 0 or records_left <= 0:
                break
            if number % LOOK_PORTION == 0 or self._read_bytes >= read_bytes_max:
                yield
                read_bytes_max = self._read_bytes + READ_PORTION_BYTES
                bytes_left = min(bytes_left, budgets.share_fetch_bytes_max)
                if bytes_left <= 0:
                    break
            found = self._found.get(where) or _Found()
            found.code, found.message = Code.NONE, None  # of the look before
            read_bytes = 1 if buggify("share_fetch.one_batch") else _READ_BYTES_MAX
            self._look_at(where, found, min(bytes_left, read_bytes), records_left)
            if found.acquired or found.code:
                self._found[where] = found
                something = something or bool(found.acquired) or where in self._told
            bytes_left -= len(found.records)
            records_left -= found.count
        if bytes_left <= 0 < self._asking.bytes_max and not something:
            self.lacks_room = budgets.share_fetch_waits = True
        return something

    @property
    def has_errors(self) -> bool:
        """Whether the last look found an error to tell."""
        return any(found.code for found in self._found.values())

    def _has(self, bytes_min: int) -> Generator[None, None, bool]:
        """Whether so much can be acquired, or all that the limits allow, or an error be told.

        Counted as in Kafka: of each partition from the first record that can be acquired on.
        """
        for number, where in enumerate(self.order, 1):
            if number % LOOK_PORTION == 0:
                yield
            partition, share = self._place(self._key(where))
            if partition is None or share is None:
                return True
            wanted = reach(share, self._records_max, self._policy.window)
            try:
                end = partition.high_watermark
                if wanted is None or wanted.first >= end:
                    continue
                if wanted.last < end - 1:
                    return True
                bytes_min -= partition.log.bytes_from(wanted.first, bytes_min)
            except (OSError, OffsetOutOfRange, CorruptBatch):
                return True
            if bytes_min <= 0:
                return True
        return False

    def end(self) -> None:
        """Count its records no longer; they are about to be sent, or dropped."""
        self._looking = None
        self._kept.end()
        room_left(self._services)

    def outcome(self, fault: StorageFault | None) -> list[FetchedPart]:
        """What is told once the shard is durable, or of the fault that kept it from that.

        After a fault nobody holds what was acquired, and it must not be sent.
        """
        self.acknowledged(fault)
        parts = []
        for where, found in self._found.items():
            if fault is not None and found.acquired:
                found.code, found.message = Code.STORAGE_ERROR, str(fault)
                found.records, found.acquired = b"", []
            acked = found.acked
            parts.append(
                FetchedPart(
                    where.topic_id, where.partition, found.code, found.message,
                    Code.NONE if acked is None else acked.code,
                    None if acked is None else acked.message,
                    found.records, found.acquired,
                )
            )  # fmt: skip
        return parts

    def _key(self, where: TopicPartition) -> ShareKey:
        return ShareKey(self._group, where.topic_id, where.partition)

    def _place(self, key: ShareKey) -> tuple[Partition | None, SharePartition | None]:
        """Its log, and its state in the group."""
        share = self._services.shares.machine_of(self.shard).partitions.get(key)
        return self._services.partitions.get(key.topic_id, key.partition), share

    def _look_at(
        self, where: TopicPartition, found: _Found, bytes_max: int, records_max: int
    ) -> None:
        """Acquire what one partition has, and read it."""
        if where.topic_id not in self._services.catalog.topics_by_id:
            found.code, found.message = Code.UNKNOWN_TOPIC_ID, "The topic does not exist any more."
            return
        key = self._key(where)
        partition, share = self._place(key)
        if partition is None:
            found.code, found.message = Code.UNKNOWN_TOPIC_OR_PARTITION, _NOT_BEGUN
            return
        try:
            if share is None:
                _ = partition.log  # the group has not begun it while it cannot be opened
                found.code, found.message = Code.UNKNOWN_TOPIC_OR_PARTITION, _NOT_BEGUN
                return
            while True:
                start = partition.start_offset
                if share.start < start and share.next_fetch_offset() < start:
                    self._services.log_starts.moved(partition)
                    if share.next_fetch_offset() < start:  # the rest is moved in the background
                        return
                wanted = reach(share, records_max, self._policy.window)
                if wanted is None or wanted.first >= partition.high_watermark:
                    return
                self._acquire(wanted, key, partition, found, bytes_max, records_max)
                # Where compaction removed what was looked for, more is behind it.
                if found.acquired or found.code or share.next_fetch_offset() <= wanted.first:
                    return
        except CorruptBatch as damage:
            partition.read_failed(damage)
            found.code = Code.CORRUPT_MESSAGE
            found.message = f"{damage}; move the group's offset behind it"
        except OSError as fault:  # also of a log that cannot be opened
            partition.read_failed(fault)
            found.code, found.message = Code.STORAGE_ERROR, str(fault)

    def _acquire(
        self,
        wanted: Span,
        key: ShareKey,
        partition: Partition,
        found: _Found,
        bytes_max: int,
        records_max: int,
    ) -> None:
        """Acquire what one read finds. Raises: OSError; CorruptBatch."""
        exact = self._asking.acquire_mode == _RECORD_LIMIT
        try:
            piece = partition.read_through(wanted.first, wanted.last, bytes_max)
        finally:
            self._read_bytes += partition.log.last_read_bytes
        if not piece.headers:
            return
        spans = [  # some may be empty, impossible, or compressed to fewer bytes
            Span(one.base_offset, one.last_offset)
            for one in piece.headers
            if 0 < one.record_count <= one.size
        ]
        if len(spans) < len(piece.headers):
            piece = _deliverable(piece)
            spans = [
                Span(one.base_offset, one.last_offset) for one in piece.headers if one.record_count
            ]
        command = Acquire(
            self._member,
            spans,
            records_max,
            self._policy.window,
            exact,
            looked_from=wanted.first,
            looked_to=piece.headers[-1].last_offset,
            isolate=True,
        )
        events = self._decide(On(key, command), found)
        taken = [event for event in events if isinstance(event, Acquired)]
        if not taken:
            return
        acquired: list[Acquisition] = []
        for event in taken:
            lasts = [end - 1 for end in event.spans.ends]
            acquired += zip(event.spans.firsts, lasts, repeat(event.deliveries), strict=False)
        found.records = _trimmed(piece, acquired[0][0], acquired[-1][1])
        self._kept.add(len(found.records))
        partition.traffic.fetched_bytes += len(found.records)
        found.count = sum([event.records for event in taken])
        found.acquired = acquired if exact else _cut(acquired, spans, self._asking.batch_size)

    def _decide(self, command: On, found: _Found) -> Sequence[Any]:
        """The events of a command, none when it is refused."""
        answer = self.shard.decide(command)
        if isinstance(answer, StorageFault):
            found.code, found.message = Code.STORAGE_ERROR, str(answer)
        elif isinstance(answer, Refused):
            found.code, found.message = error_code(answer), answer.message
        else:
            events: Sequence[Any] = answer
            return events
        return ()


def _deliverable(piece: Slice) -> Slice:
    """Return the batches before the first that claims more records than it can hold.

    Clients allocate memory by the claim. Such a batch was stored by a release that did not validate
    records.

    Raises:
        CorruptBatch: it is the first.
    """
    size = 0
    for number, one in enumerate(piece.headers):
        if not 0 <= one.record_count <= one.size:
            try:
                require_possible(one)
            except CorruptBatch:
                if not number:
                    raise
                return Slice(piece.data[:size], piece.headers[:number])
        size += one.size
    return piece


def _trimmed(piece: Slice, first: int, last: int) -> Buffer:
    """The whole batches that hold `first` to `last`."""
    if piece.headers[0].last_offset >= first and piece.headers[-1].base_offset <= last:
        return piece.data
    start = end = 0
    for header in piece.headers:
        if header.last_offset < first:
            start += header.size
        if header.base_offset <= last:
            end += header.size
    return part_of(piece.data, start, end)


def _cut(
    acquired: Sequence[Acquisition], batches: Sequence[Span], batch_size: int
) -> list[Acquisition]:
    """The acquired ranges cut at batch ends wherever `batch_size` records are together."""
    records = max(batch_size, 1)
    ends = [batch.last for batch in batches]
    pieces: list[Acquisition] = []
    for begin, last, deliveries in acquired:
        first = begin
        while last - first >= records:
            at = bisect_left(ends, first + records - 1)
            if at == len(ends) or ends[at] >= last:
                break
            pieces.append((first, ends[at], deliveries))
            first = ends[at] + 1
        pieces.append((first, last, deliveries))
    return pieces
