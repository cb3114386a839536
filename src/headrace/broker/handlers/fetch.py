"""Fetch (1): records from logs, as stored, in sessions or without (KIP-227).

A poll that finds fewer than `bytes_min` waits until something is appended, and then looks again at
those partitions only that have moved. Records reach the socket as they were read, without a copy.
Partitions nobody knows are told with the answer, and do not hasten it; other errors do.
Source: KIP-74 for the limits, KIP-227 for sessions; ReplicaManager.fetchMessages,
DelayedFetch, KafkaApis.handleFetchRequest (4.3).
"""

import asyncio
import logging
from collections.abc import Hashable, Mapping, Sequence, Set
from functools import partial
from uuid import UUID

from headrace.broker.budgets import DECODE_BYTES_MAX, LIGHT_BYTES, PORTION
from headrace.broker.errors import Code, error_code
from headrace.broker.handlers.fetch_messages import FetchRequest, Found, decoded, encoded
from headrace.broker.partitions import LEADER_EPOCH, Partition
from headrace.broker.request import Answer, Answering, Raw, Request
from headrace.broker.services import Services
from headrace.core.catalog import Topic
from headrace.core.errors import Refused
from headrace.core.fetch_session import (
    FINAL,
    NO_SESSION,
    OPEN,
    Asked,
    Close,
    Command,
    Continue,
    Open,
    Session,
    SessionTold,
    Told,
)
from headrace.core.types import MonoMs, after, elapsed_ms
from headrace.log.api import OffsetOutOfRange
from headrace.log.buggify import buggify

log = logging.getLogger("headrace.broker")
_KEY = 1
_ALL = slice(None)
_NO_INDEXES: Mapping[Hashable, int] = {}
_DECODED_MAX = DECODE_BYTES_MAX // 16  # partitions of a request that is decoded on the loop
_NOTED_PORTION = 1000  # partitions whose answer is noted without a pause
# Partitions that are read without a pause: a file is read for each, and where compaction has left a
# gap at the offset, the batch before it is verified.
LOOK_PORTION = 50
READ_PORTION_BYTES = 4 * 1024 * 1024  # of records that are read without a pause: 2 to 4 ms
PARTITION_BYTES_MAX = READ_PORTION_BYTES  # of one partition in a response


def handle(request: Request, services: Services) -> Answering:
    if len(request.body) > DECODE_BYTES_MAX:
        return _large(request, services)
    asking = decoded(request.body, request.version)
    begun = _begun(asking, services)
    if isinstance(begun, Raw):
        return begun
    poll = _Poll(asking, *begun, services)
    if len(poll.found) == 1:
        if not poll.look_at(0):
            return _later(poll, services)
    elif len(poll.found) > LOOK_PORTION or not poll.look(LOOK_PORTION):
        poll.keep_or_drop()
        return _later(poll, services)
    if poll.is_ready():
        return _answer(poll, services)
    poll.keep_or_drop()
    return _later(poll, services, is_read=not poll.has_let_go)


async def _large(request: Request, services: Services) -> Answer:
    """Answer a request that names many partitions; it is decoded in a thread."""
    budgets = services.budgets
    async with budgets.one_large():
        asking = await budgets.in_thread(partial(_decoded_once_each, request))
    begun = _begun(asking, services)
    if isinstance(begun, Raw):
        return begun
    poll = await budgets.in_thread(partial(_Poll, asking, *begun, services))
    return await _later(poll, services)


def _decoded_once_each(request: Request) -> FetchRequest:
    asking = decoded(request.body, request.version)
    asking.asked = _once_each(asking.asked)
    return asking


def _once_each(asked: Sequence[Asked]) -> list[Asked]:
    """Return each partition once, as in a session: the last mention counts."""
    return list({one.key: one for one in asked}.values())


async def _later(poll: "_Poll", services: Services, *, is_read: bool = False) -> Answer:
    """Answer a poll that needs pauses, or waits for more.

    Args:
        is_read: Whether all partitions have been read.
    """
    try:
        if not is_read:
            await _look(poll)
            if poll.is_ready():
                return await _large_answer(poll, services)
        return await _when_ready(poll, services)
    finally:
        poll.end_turn()
        services.budgets.unreserve_fetch(poll)


async def _look(poll: "_Poll") -> None:
    """Look at what is left, a portion in each turn.

    Polls of many partitions or bytes do so one after the other, as they take memory.
    """
    await poll.take_turn()
    while not poll.look(LOOK_PORTION):
        await poll.pause()


async def _look_again(poll: "_Poll", services: Services, deadline: MonoMs) -> None:
    """Look at what has moved until there is enough, the time is up, or nothing moved meanwhile."""
    # What is ready may have a log that cannot be opened.
    while not poll.is_ready() and await poll.look_again():
        if elapsed_ms(services.clock.mono(), deadline) <= 0:
            break


def _begun(
    asking: FetchRequest, services: Services
) -> tuple[Sequence[Asked], Session | None] | Raw:
    """Move the session of a request; return what to look at with the session, or the refusal."""
    session: Session | None = None
    if asking.epoch in {OPEN, FINAL}:
        if asking.session_id != NO_SESSION:
            _decide(services, Close(asking.session_id))
        asked: Sequence[Asked] = asking.asked
    else:
        if _sessions_are_full(services, len(asking.asked)):
            _decide(services, Close(asking.session_id))
        refused = _decide(
            services,
            Continue(
                asking.session_id, asking.epoch, asking.by_ids, asking.asked, asking.forgotten,
                services.clock.mono(),
            ),
        )  # fmt: skip
        if refused is not None:
            return Raw(encoded(asking, [], NO_SESSION, error_code(refused)))
        session = services.fetch_sessions.get(asking.session_id)
        asked = asking.asked if session is None else list(session.partitions.values())
    if session is None and 1 < len(asked) <= _DECODED_MAX:  # of more, it was done in a thread
        asked = _once_each(asked)
    return asked, session


async def _when_ready(poll: "_Poll", services: Services) -> Answer:
    deadline = after(services.clock.mono(), poll.asking.wait_ms_max)
    # Something may have come before this task began to run.
    await _look_again(poll, services, deadline)
    if poll.is_ready() or services.waits.is_full:
        return await _large_answer(poll, services)
    with services.waits.watch(poll.keys(), poll.may_be_ready) as watch:
        while not poll.is_ready():
            poll.rest()
            left_ms = elapsed_ms(services.clock.mono(), deadline)
            time_is_up = not await watch.wait(left_ms)
            if await poll.take_turn() or poll.has_let_go:
                poll.begin_again()
                await _look(poll)
            await _look_again(poll, services, deadline)  # also for what came between two portions
            # What comes while it waits for its turn can notify it again and again.
            if time_is_up or elapsed_ms(services.clock.mono(), deadline) <= 0:
                break
    return await _large_answer(poll, services)


def _answer(poll: "_Poll", services: Services) -> Raw:
    """What is told, once the session has noted it."""
    session_id = _answered_session(poll, services)
    told = _noted(poll, _ALL, session_id, services)
    return Raw(encoded(poll.asking, told, session_id))


async def _large_answer(poll: "_Poll", services: Services) -> Raw:
    """As `_answer`, for many partitions in portions; the poll has the turn then."""
    if len(poll.found) <= PORTION:
        return _answer(poll, services)
    session_id = _answered_session(poll, services)
    told: list[Found] = []
    for first in range(0, len(poll.found), _NOTED_PORTION):
        part = slice(first, first + _NOTED_PORTION)
        told += _noted(poll, part, session_id, services)
        await asyncio.sleep(0)
    encode = partial(encoded, poll.asking, told, session_id)
    return Raw(await services.budgets.in_thread(encode))


def _noted(poll: "_Poll", part: slice, session_id: int, services: Services) -> list[Found]:
    """Record in metrics and session what is returned for some partitions, and return it."""
    found, partitions = poll.found, poll.partitions
    if part is not _ALL:
        found, partitions = found[part], partitions[part]
    for one, partition in zip(found, partitions, strict=True):
        if one.code:
            services.metrics.failed(_KEY, one.code)
        if partition is not None:
            partition.traffic.fetched_bytes += len(one.records)
    if session_id == NO_SESSION:
        return found
    news, told_now = [], []
    for one in found:
        key, told = one.asked.key, _told(one)
        if poll.session is None or poll.session.is_news(key, told):
            news.append(one)
            told_now.append((key, told))
    if news:
        services.fetch_sessions.apply(SessionTold(session_id, told_now))
    return news


def _answered_session(poll: "_Poll", services: Services) -> int:
    """Return the session of the answer, which is opened where the request wants one."""
    asking = poll.asking
    if asking.epoch != OPEN:
        return NO_SESSION if poll.session is None else asking.session_id
    new_id = services.next_fetch_session_id()
    asked = [one.asked for one in poll.found]
    if not _sessions_are_full(services, len(asked)):
        _decide(services, Open(new_id, asking.by_ids, asked, services.clock.mono()))
    return NO_SESSION if services.fetch_sessions.get(new_id) is None else new_id


def _sessions_are_full(services: Services, added: int) -> bool:
    """Whether sessions hold too many partitions for `added` more; few are always accepted."""
    if added <= PORTION:
        return False
    return services.fetch_sessions.partitions + added > services.config.waiting_partitions_max


def _told(found: Found) -> Told:
    offsets = found.high_watermark, found.start_offset
    return Told(*offsets, found.code, bool(found.records), found.name)


def _decide(services: Services, command: Command) -> Refused | None:
    decided = services.fetch_sessions.decide(command)
    if isinstance(decided, Refused):
        return decided
    for event in decided:
        services.fetch_sessions.apply(event)
    return None


class _Poll:
    """One request, what was found for it so far, and where."""

    __slots__ = (
        "__weakref__", "_bytes", "_bytes_min", "_coming", "_coming_bytes", "_failed", "_has_turn",
        "_indexes", "_let_go", "_looked", "_produced", "_read_bytes", "_services", "_tried",
        "asking", "found", "partitions", "session",
    )  # fmt: skip

    def __init__(
        self, asking: FetchRequest, asked: Sequence[Asked], session: Session | None,
        services: Services,
    ) -> None:  # fmt: skip
        self.asking = asking
        self.session = session
        self.found = [Found(one) for one in asked]
        self.partitions: list[Partition | None] = [None] * len(asked)
        # What a partition had taken in when it was looked at; -1 if not all of it was seen.
        self._produced = [-1] * len(asked)
        self._services = services
        # As in Kafka, what a response may carry is enough.
        self._bytes_min = asking.bytes_min
        if self._bytes_min > 1:
            self._bytes_min = min(self._bytes_min, max(asking.bytes_max, 1), PARTITION_BYTES_MAX)
        self._bytes = 0
        self._read_bytes = 0  # from files; where a large batch follows, many more than are kept
        self._failed = False
        self._let_go = False  # of records that were found
        self._has_turn = False  # of fetches of many records
        self._looked = 0  # partitions that were looked at, in order
        self._tried: Set[int] = frozenset()  # partitions whose logs were opened, or could not be
        self._indexes = _NO_INDEXES  # of partitions that are waited for
        # Bytes that were produced to partitions since they were looked at, and their sum.
        self._coming: dict[int, int] | None = None  # until it waits
        self._coming_bytes = 0

    def look(self, most: int) -> bool:
        """Read the next partitions, in order, while the limits last.

        Args:
            most: Partitions to read; fewer are read when they have many records.

        Returns:
            Whether all partitions have been read; if not, `pause` comes before the next look.
        """
        bytes_max = self._read_bytes + READ_PORTION_BYTES
        for index in range(self._looked, min(self._looked + most, len(self.found))):
            if not self.look_at(index):
                break
            self._looked = index + 1
            if self._read_bytes >= bytes_max:
                break
        return self._looked == len(self.found)

    async def pause(self) -> None:
        """Let others have their turn, and open the logs that the look needs, if it ended at one.

        A log may take long to open: meanwhile the poll keeps few records, and not the turn.
        """
        next_partition = self.partitions[self._looked]
        if next_partition is None or self._looked in self._tried or not next_partition.must_open:
            await self.take_turn()
            await asyncio.sleep(0)
            return
        self.let_go()
        self.end_turn()
        tried = {self._looked}
        for number, index in enumerate(range(self._looked, len(self.found)), 1):
            if number % _NOTED_PORTION == 0:
                await asyncio.sleep(0)
            partition = self._partition(self.found[index])
            if partition is not None and not partition.is_open and partition.must_open:
                await partition.open_ready()
                tried.add(index)
        self._tried |= tried
        await self.take_turn()

    def keys(self) -> Sequence[Hashable]:
        """Return what to wait for: the partitions that there are."""
        self._indexes = {
            one.key: index for index, one in enumerate(self.partitions) if one is not None
        }
        self._coming = {}
        return list(self._indexes)

    def let_go(self) -> None:
        """Drop the records that were found, if they are many."""
        if self._bytes > LIGHT_BYTES:
            self._let_go = True
            for one in self.found:
                one.records = b""

    def rest(self) -> None:
        """Keep little while the request waits for more; logs may be closed meanwhile."""
        self.let_go()
        self.end_turn()
        self._services.budgets.unreserve_fetch(self)
        self._tried = frozenset()

    @property
    def has_let_go(self) -> bool:
        """Whether records were dropped, and all partitions must be read again."""
        return self._let_go

    def begin_again(self) -> None:
        """Forget what was found."""
        self._let_go = self._failed = False
        self._bytes = self._looked = 0
        self.found = [Found(one.asked) for one in self.found]

    @property
    def is_light(self) -> bool:
        """Whether the poll has few partitions, and few bytes so far."""
        return len(self.found) <= PORTION and self._bytes <= LIGHT_BYTES

    def keep_or_drop(self) -> None:
        """Drop what was found, unless the poll is the next one to have the turn anyway."""
        if not self.is_light and not self._services.budgets.reserve_fetch(self):
            self.let_go()

    async def take_turn(self) -> bool:
        """Wait for the other fetches of many records, if this is one and has not the turn.

        Returns: Whether what was found was dropped meanwhile, so that all must be read again.
        """
        if self._has_turn or self.is_light:
            return False
        self.keep_or_drop()
        await self._services.budgets.begin_fetch(self)
        self._has_turn = True
        if not self._let_go:
            return False
        self.begin_again()
        return True

    def end_turn(self) -> None:
        """Let the next fetch of many records have its turn."""
        if self._has_turn:
            self._has_turn = False
            self._services.budgets.end_fetch()

    async def look_again(self) -> bool:
        """Read those partitions that have moved since, or are gone, with pauses.

        Returns: Whether there was a pause, in which those that were read may have moved again.
        """
        looked, bytes_max, has_paused = 0, self._read_bytes + READ_PORTION_BYTES, False
        for index, (one, known) in enumerate(zip(self.found, self.partitions, strict=True)):
            if known is None:
                continue
            # In this order: a log that is gone must not be asked, which could open it anew.
            if not self._is_there(known) or (one.high_watermark, one.start_offset) != (
                known.high_watermark,
                known.start_offset,
            ):
                if looked >= LOOK_PORTION or self._read_bytes >= bytes_max:
                    if await self.take_turn():
                        await _look(self)
                        return True
                    await asyncio.sleep(0)
                    bytes_max = self._read_bytes + READ_PORTION_BYTES
                    has_paused, looked = True, 0
                self._bytes -= len(one.records)
                self.found[index] = Found(one.asked)
                self.look_at(index, opens=True)
                looked += 1
        return has_paused

    def may_be_ready(self, key: Hashable) -> bool:
        """Return whether to look again after an append to the partition `key`.

        Not while what was appended is too little to be enough: a look reads all there is, and one
        for each append would read it as often as there are batches.
        """
        index = self._indexes[key]
        one, known = self.found[index], self.partitions[index]
        if known is None or self._bytes_min <= self._bytes + 1:
            return True
        if one.high_watermark < 0 and not one.code:
            return False  # it is read in the present look
        if not self._is_there(known) or known.start_offset != one.start_offset:
            return True
        produced = self._produced[index]
        if produced < 0:
            return bool(known.high_watermark != one.high_watermark)
        assert self._coming is not None, "`keys` has what to wait for"
        coming = known.traffic.produced_bytes - produced
        self._coming_bytes += coming - self._coming.get(index, 0)
        self._coming[index] = coming
        return self._bytes + self._coming_bytes >= self._bytes_min

    def _is_there(self, known: Partition) -> bool:
        return self._services.partitions.get(known.topic.id, known.index) is known

    def is_ready(self) -> bool:
        """Whether enough was found, or waiting is of no use."""
        if self._failed or self._bytes >= self._bytes_min or self.asking.wait_ms_max <= 0:
            return True
        return not any(self.partitions)

    def look_at(self, index: int, *, opens: bool = False) -> bool:
        """Read one partition, by its number in the request.

        Args:
            opens: Whether its log may be opened for that.

        Returns:
            Whether it was read: its log is open.
        """
        if self._coming:
            self._coming_bytes -= self._coming.pop(index, 0)
        found = self.found[index]
        topic = _topic(found.asked.topic, self._services)
        partition = None
        if topic is not None:
            found.name = topic.name
            partition = self._services.partitions.get(topic.id, found.asked.partition)
        self.partitions[index] = partition
        if partition is None:
            found.code = self._unknown(found, topic)
            return True
        if not partition.is_open and not opens and index not in self._tried and partition.must_open:
            return False
        room = self._services.budgets.fetch_bytes_max
        left = (room if room < self.asking.bytes_max else self.asking.bytes_max) - self._bytes
        if left > PARTITION_BYTES_MAX:  # by hand: `min` takes three times as long
            left = PARTITION_BYTES_MAX
        # At least one batch, unless unread responses have used up their budget.
        whole = self._bytes == 0 and room > 0
        self._read_bytes += _read(partition, found, left, whole=whole)
        if self._bytes_min > 1:  # else any append is enough, and `may_be_ready` needs no number
            # After an error the log is not read: it may not even open.
            is_all_seen = not found.code and found.high_watermark == partition.log.end_offset
            self._produced[index] = partition.traffic.produced_bytes if is_all_seen else -1
        found.has_aborted = self.asking.committed and not found.code
        self._bytes += len(found.records)
        self._failed = self._failed or found.code != Code.NONE
        return True

    def _partition(self, found: Found) -> Partition | None:
        topic = _topic(found.asked.topic, self._services)
        if topic is None:
            return None
        return self._services.partitions.get(topic.id, found.asked.partition)

    def _unknown(self, found: Found, topic: Topic | None) -> Code:
        """The code for a partition that is not there."""
        if topic is None and isinstance(found.asked.topic, UUID):
            told = self.session.told.get(found.asked.key) if self.session else None
            found.name = told.name if told else None
            if found.name is None:
                return Code.UNKNOWN_TOPIC_ID
            if found.name in self._services.catalog.topics:
                return Code.INCONSISTENT_TOPIC_ID
        return Code.UNKNOWN_TOPIC_OR_PARTITION


def _topic(asked: UUID | str, services: Services) -> Topic | None:
    catalog = services.catalog
    return catalog.topics.get(asked) if isinstance(asked, str) else catalog.topics_by_id.get(asked)


def _read(partition: Partition, found: Found, left: int, *, whole: bool) -> int:
    """At most `left` bytes of whole batches, but at least one batch when `whole`.

    Returns: Bytes that were read for that.
    """
    asked = found.asked
    if asked.leader_epoch > LEADER_EPOCH:
        found.code = Code.UNKNOWN_LEADER_EPOCH
        return 0
    try:
        opened, end = partition.log, partition.high_watermark
        if not opened.start_offset <= asked.offset <= opened.end_offset:
            raise OffsetOutOfRange(asked.offset, opened.start_offset, end)
        if asked.last_epoch > LEADER_EPOCH:
            found.code = Code.OFFSET_OUT_OF_RANGE
            return 0
        limit = asked.max_bytes if asked.max_bytes < left else left
        if limit > 0 and buggify("fetch.one_batch"):
            limit = 1
        read_bytes = 0
        if asked.offset < end and (limit > 0 or whole):
            limit = max(limit, 0)
            found.records = opened.read_bytes(asked.offset, limit, end=end, whole=whole)
            read_bytes = opened.last_read_bytes
    except OffsetOutOfRange:
        found.code = Code.OFFSET_OUT_OF_RANGE
        return 0
    except OSError as error:
        partition.read_failed(error)
        found.code = Code.STORAGE_ERROR
        return PARTITION_BYTES_MAX if partition.is_open else 0  # at most, before it met the damage
    found.high_watermark, found.start_offset = end, opened.start_offset
    return read_bytes
