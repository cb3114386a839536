"""Polls of share groups inside a broker: whose turn it is, shared writes, faults."""

import asyncio
import struct
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any
from uuid import uuid4

import pytest
from crc32c import crc32c

from headrace.broker import share_polls
from headrace.broker.dispatch import Dispatcher, Peer, Pending
from headrace.broker.errors import Code
from headrace.broker.handlers import share_fetch
from headrace.broker.partition import Partition
from headrace.broker.share_polls import SharePoll
from headrace.core.catalog import CreateTopic, Topic
from headrace.core.errors import Refused
from headrace.core.shard_words import AlterShareOffsets
from headrace.log.api import Slice
from headrace.wire import batches, codec
from headrace.wire.batches import Record
from headrace.wire.compression import Codec

from .inside_rig import Inside, play
from .test_runtime import rebuilt

FETCH = 78
WINDOW = 100
BATCH = 10
TURNS_MAX = 1_000
SECONDS_MAX = 30
LONG_MS = 60_000
ACCEPT = (1,)
ALL = range(WINDOW)


class Broker(Inside):
    """The inside of a broker, a topic with three windows of records, and its members' requests."""

    def __init__(self, **settings: str) -> None:
        super().__init__(None, group_share_partition_max_record_locks=str(WINDOW), **settings)
        self.dispatcher = Dispatcher(self.services)
        self.topic_id = uuid4()
        self.epochs = {"a": 0, "b": 0, "c": 0}
        self.responses: list[Any] = []  # of the dispatcher, to each fetch

    async def start(self) -> None:
        await super().start()
        made = await self.services.topics.create(CreateTopic("orders", self.topic_id, 1, {}))
        assert isinstance(made, Topic)
        reset = AlterShareOffsets("g", (("orders", 0, 0),))
        assert not isinstance(await self.services.shares.ask("g", reset), Refused)
        for _ in range(3 * WINDOW // BATCH):
            self.append()

    def fetch(
        self,
        member: str,
        *acked: range,
        wait_ms: int = 0,
        records: int = WINDOW,
        connection: int | None = None,
        apart: bool = False,
        bytes_min: int = 1,
        named: bool = True,
        group: str = "g",
    ) -> "asyncio.Future[Any]":
        """The only partition of what a ShareFetch that accepts these ranges is answered.

        `connection` is the member's own if none is given. `apart` names the partition with each
        range anew; it need not be `named` where the session knows it.
        """
        said = [
            {"first_offset": one[0], "last_offset": one[-1], "acknowledge_types": ACCEPT}
            for one in acked
        ]
        parts = [
            {"partition_index": 0, "acknowledgement_batches": some}
            for some in ([[one] for one in said] if apart else [said])
        ]
        body = codec.encode_request(
            FETCH,
            2,
            {
                "group_id": group,
                "member_id": member,
                "share_session_epoch": self.epochs[member],
                "max_wait": wait_ms,
                "min_bytes": bytes_min,
                "max_bytes": 1 << 20,
                "max_records": records,
                "batch_size": records,
                "topics": [{"topic_id": self.topic_id, "partitions": parts}] if named else [],
                "forgotten_topics_data": [],
            },
        )
        self.epochs[member] += 1
        frame = bytearray(struct.pack(">hhih", FETCH, 2, 1, -1) + b"\0" + body)
        peer = Peer(ord(member[0]) if connection is None else connection, "there", 1)
        self.responses.append(self.dispatcher.respond(frame, peer))
        return asyncio.ensure_future(self._partition(self.responses[-1]))

    async def left(self, records: int) -> int:
        """Let the group begin so many records before the end; how many bytes a batch has."""
        first = 3 * WINDOW - records
        reset = AlterShareOffsets("g", (("orders", 0, first),))
        assert not isinstance(await self.services.shares.ask("g", reset), Refused)
        return self.partition.log.bytes_from(3 * WINDOW - 1, 1)

    def append(self) -> None:
        self.partition.append_records([Record(0, 5, b"k", b"v")] * BATCH)

    @property
    def partition(self) -> Partition:
        found = self.services.partition("orders", 0)
        assert found is not None
        return found

    async def until_waiting(self, count: int) -> None:
        """Let the loop turn until so many polls wait."""
        await _until(lambda: self.services.waits.waiting == count)

    async def until_room_is_taken(self) -> None:
        """Let the loop turn until records that were acquired wait to be sent."""
        await _until(lambda: self.services.budgets.acquired_bytes > 0)

    async def _partition(self, response: Any) -> Any:
        if isinstance(response, Pending):
            ready = asyncio.get_running_loop().create_future()
            response.later.when_ready(lambda: ready.set_result(None))
            await ready
            response = self.dispatcher.finish(response)
        elif not isinstance(response, list):
            response = await response
        answer = codec.decode_response(FETCH, 2, b"".join(response)[9:])
        assert answer.error_code == 0, answer.error_message
        (topic,) = answer.responses
        (partition,) = topic.partitions
        return partition


async def _until(happened: Callable[[], bool]) -> None:
    """Let the loop turn, as other threads may need any number of turns."""
    end = time.monotonic() + SECONDS_MAX
    while not happened():
        assert time.monotonic() < end, f"not within {SECONDS_MAX} s"
        await asyncio.sleep(0)


def acquired(partition: Any) -> list[int]:
    return [
        offset
        for one in partition.acquired_records
        for offset in range(one.first_offset, one.last_offset + 1)
    ]


def run(work: Callable[[Broker], Coroutine[Any, Any, None]]) -> None:
    play(Broker, work)


def test_who_waits_comes_before_who_comes_back() -> None:
    async def work(broker: Broker) -> None:
        assert acquired(await broker.fetch("a")) == list(ALL)
        waiting = [broker.fetch(name, wait_ms=LONG_MS, records=WINDOW // 2) for name in "bc"]
        await broker.until_waiting(2)
        back = await broker.fetch("a", ALL)
        assert back.acknowledge_error_code == 0
        assert acquired(back) == [], "the window has room for the two that waited"
        found = [acquired(one) for one in await asyncio.gather(*waiting)]
        assert found == [list(range(100, 150)), list(range(150, 200))]

    run(work)


def test_what_others_leave_is_for_who_comes_back() -> None:
    async def work(broker: Broker) -> None:
        assert acquired(await broker.fetch("a")) == list(ALL)
        waiting = broker.fetch("b", wait_ms=LONG_MS, records=30)
        await broker.until_waiting(1)
        back = await broker.fetch("a", ALL)
        assert acquired(await waiting) == list(range(100, 130))
        assert acquired(back) == list(range(130, 200))

    run(work)


def test_what_is_decided_in_one_turn_shares_a_write() -> None:
    async def work(broker: Broker) -> None:
        held = [acquired(await broker.fetch(name, records=20)) for name in "abc"]
        shard = broker.services.shares.shard("g")
        appends, records = shard.appends, shard.records
        answers = await asyncio.gather(
            *(
                broker.fetch(name, range(one[0], one[-1] + 1), records=20)
                for name, one in zip("abc", held, strict=True)
            )
        )
        assert [one.acknowledge_error_code for one in answers] == [0, 0, 0]
        assert [len(acquired(one)) for one in answers] == [20, 20, 20]
        assert (shard.appends - appends, shard.records - records) == (1, 3)

    run(work)


def test_an_acquisition_alone_waits_for_no_write_but_for_those_before_it() -> None:
    """It is not journaled; what others decided in the same turn it may rest on."""

    async def work(broker: Broker) -> None:
        assert acquired(await broker.fetch("a", records=20)) == list(range(20))
        shard = broker.services.shares.shard("g")
        appends = shard.appends
        assert acquired(await broker.fetch("b", records=20)) == list(range(20, 40))
        settles = broker.fetch("a", range(20), records=0)
        behind = broker.fetch("b", records=20)
        assert [type(one) for one in broker.responses] == [list, list, Pending, Pending]
        assert (await settles).acknowledge_error_code == 0
        assert acquired(await behind) == list(range(40, 60))
        assert shard.appends == appends + 1

    run(work)


@pytest.mark.parametrize("waiting", [(), ("b",)], ids=["alone", "beside one that waits"])
def test_a_fault_is_told_and_takes_what_was_acquired(waiting: Sequence[str]) -> None:
    """Nobody may keep what a journal that cannot be written would have told them they have."""

    async def work(broker: Broker) -> None:
        assert acquired(await broker.fetch("a")) == list(ALL)
        others = [broker.fetch(name, wait_ms=LONG_MS) for name in waiting]
        await broker.until_waiting(len(waiting))
        broker.disk.fail_after(0)
        for told in [await broker.fetch("a", ALL), *await asyncio.gather(*others)]:
            assert Code.STORAGE_ERROR in (told.acknowledge_error_code, told.error_code)
            assert not told.acquired_records
            assert not told.records
        broker.disk.fail_after(None)
        for _ in range(TURNS_MAX):
            again = await broker.fetch("c")
            if acquired(again):
                break
            await asyncio.sleep(0.01)
        assert acquired(again) == list(ALL), "they were not accepted"

    run(work)


def test_a_poll_acquires_nothing_once_its_member_went_on_elsewhere() -> None:
    """Who would read it is gone, and it would be locked for nobody."""

    async def work(broker: Broker) -> None:
        assert acquired(await broker.fetch("a")) == list(ALL)
        left = broker.fetch("b", wait_ms=LONG_MS)
        await broker.until_waiting(1)
        broker.epochs["b"] = 0
        again = broker.fetch("b", wait_ms=LONG_MS, connection=1)
        await broker.until_waiting(2)
        await broker.fetch("a", ALL, records=0)
        assert acquired(await again) == list(range(WINDOW, 2 * WINDOW))
        broker.services.waits.close()
        assert acquired(await left) == []

    run(work)


def test_a_poll_acquires_nothing_once_its_member_went_on_elsewhere_in_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses = list[None]()
    monkeypatch.setattr(share_fetch, "LOOK_PORTION", 0)
    monkeypatch.setattr(share_polls, "LOOK_PORTION", 1)

    def look(self: SharePoll, bytes_min: int) -> Generator[None, None, bool]:
        for _ in look_at_all(self, bytes_min):
            pauses.append(None)
            yield
        return False

    look_at_all = SharePoll._look
    monkeypatch.setattr(SharePoll, "_look", look)

    async def work(broker: Broker) -> None:
        left = broker.fetch("a", wait_ms=LONG_MS)
        while not pauses:  # noqa: ASYNC110  # they set no event
            await asyncio.sleep(0)
        broker.epochs["a"] = 0
        again = broker.fetch("a", connection=1)
        assert acquired(await again) == list(ALL)
        assert acquired(await left) == []

    run(work)


def test_what_comes_to_a_partition_behind_a_pause_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_fetch, "LOOK_PORTION", 1)
    looks, look_in_portions = list[bool](), SharePoll.look_in_portions

    async def work(broker: Broker) -> None:
        await broker.left(0)

        async def look(poll: SharePoll, bytes_min: int = 0) -> bool:
            looks.append(await look_in_portions(poll, bytes_min))
            if len(looks) == 1:
                broker.append()
            return looks[-1]

        monkeypatch.setattr(SharePoll, "look_in_portions", look)
        found = broker.fetch("a", wait_ms=LONG_MS)
        while len(looks) < 2:  # they set no event
            assert not broker.services.waits.waiting
            await asyncio.sleep(0)
        assert acquired(await found) == list(range(3 * WINDOW, 3 * WINDOW + BATCH))

    run(work)


def test_a_poll_gets_what_a_rebuild_makes_available_at_once() -> None:
    """Locks are volatile: what another member had is nobody's after a failed write."""

    async def work(broker: Broker) -> None:
        assert acquired(await broker.fetch("b")) == list(ALL)
        waiting = broker.fetch("a", wait_ms=LONG_MS)
        await broker.until_waiting(1)
        shard = broker.services.shares.shard("g")
        shard._drop(OSError(5, "a sync failed"), [])
        await rebuilt(shard)
        assert acquired(await asyncio.wait_for(waiting, LONG_MS / 6_000)) == list(ALL)

    run(work)


def test_a_poll_waits_for_as_much_as_it_wants_and_holds_nothing_meanwhile() -> None:
    async def work(broker: Broker) -> None:
        batch = await broker.left(2 * BATCH)
        waiting = broker.fetch("a", wait_ms=LONG_MS, bytes_min=4 * batch)
        await broker.until_waiting(1)
        assert acquired(await broker.fetch("b", records=BATCH)) == list(range(280, 290))
        for count in (1, 2):
            broker.append()
            await broker.until_waiting(1)
            assert not waiting.done(), f"{1 + count} batches are no four"
        broker.append()
        assert acquired(await waiting) == list(range(290, 330))

    run(work)


def test_a_poll_takes_what_there_is_when_its_time_is_up() -> None:
    async def work(broker: Broker) -> None:
        batch = await broker.left(2 * BATCH)
        assert acquired(await broker.fetch("a", wait_ms=20, bytes_min=3 * batch)) == list(
            range(280, 300)
        )

    run(work)


@pytest.mark.parametrize(
    ("records", "bytes_min"),
    [(2 * BATCH, 1 << 30), (WINDOW, 2), (WINDOW, 3 * BATCH), (WINDOW, 0), (WINDOW, -1)],
)
def test_a_poll_waits_for_nothing_that_its_limits_would_not_let_it_have(
    records: int, bytes_min: int
) -> None:
    async def work(broker: Broker) -> None:
        await broker.left(WINDOW)
        found = await broker.fetch("a", wait_ms=LONG_MS, records=records, bytes_min=bytes_min)
        assert len(acquired(found)) == records

    run(work)


def test_acknowledgements_do_not_wait_for_as_much_as_their_poll_wants() -> None:
    async def work(broker: Broker) -> None:
        batch = await broker.left(2 * BATCH)
        assert acquired(await broker.fetch("a", records=BATCH)) == list(range(280, 290))
        told = await broker.fetch("a", range(280, 290), wait_ms=LONG_MS, bytes_min=2 * batch)
        assert (told.acknowledge_error_code, acquired(told)) == (0, [])
        again = broker.fetch("a", wait_ms=LONG_MS, bytes_min=2 * batch)
        await broker.until_waiting(1)
        broker.append()
        assert acquired(await again) == list(range(290, 310))

    run(work)


def test_what_is_released_may_be_as_much_as_was_wanted() -> None:
    async def work(broker: Broker) -> None:
        batch = await broker.left(2 * BATCH)
        assert acquired(await broker.fetch("a")) == list(range(280, 300))
        waiting = broker.fetch("b", wait_ms=LONG_MS, bytes_min=2 * batch)
        await broker.until_waiting(1)
        broker.services.disconnected(ord("a"))
        assert acquired(await waiting) == list(range(280, 300))

    run(work)


def test_more_than_is_looked_up_quickly_comes_with_the_next_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_polls, "_RECORDS_MAX", 3 * BATCH)

    async def work(broker: Broker) -> None:
        assert acquired(await broker.fetch("a", records=1 << 30)) == list(range(30))
        assert acquired(await broker.fetch("a", records=1 << 30)) == list(range(30, 60))

    run(work)


@pytest.mark.parametrize("ranges", [(range(1), range(500, 501)), (range(500, 501), range(1))])
def test_a_partition_named_twice_is_told_what_failed(ranges: Sequence[range]) -> None:
    async def work(broker: Broker) -> None:
        assert acquired(await broker.fetch("a")) == list(ALL)
        told = await broker.fetch("a", *ranges, apart=True)
        assert told.acknowledge_error_code == Code.INVALID_REQUEST

    run(work)


def test_a_log_that_cannot_be_opened_is_an_error_of_its_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others are read over the same connection."""

    def unreadable(self: Partition) -> int:
        raise OSError(f"{self.name} cannot be opened: it is damaged")

    async def work(broker: Broker) -> None:
        monkeypatch.setattr(Partition, "high_watermark", property(unreadable))
        told = await broker.fetch("a")
        assert told.error_code == Code.STORAGE_ERROR
        assert told.error_message == "orders-0 cannot be opened: it is damaged"

    run(work)


@pytest.mark.parametrize("is_over", [True, False])
def test_an_error_is_told_after_a_while_or_not_at_all_once_it_is_over(
    monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    """Clients that are told of one come back at once, thousands of times a second."""
    faulty = True
    known: Any = vars(Partition)["high_watermark"]
    monkeypatch.setattr(share_fetch, "_ERRORS_WAIT_MS", LONG_MS if is_over else 20)

    def unreadable(self: Partition) -> Any:
        if faulty:
            raise OSError("damaged")
        return known.fget(self)

    async def work(broker: Broker) -> None:
        nonlocal faulty
        monkeypatch.setattr(Partition, "high_watermark", property(unreadable))
        told = await broker.fetch("a", wait_ms=LONG_MS)
        assert told.error_code == Code.STORAGE_ERROR, "of a partition that it did not have before"
        waiting = broker.fetch("a", wait_ms=LONG_MS, named=False)
        if is_over:
            await broker.until_waiting(1)
            faulty = False
            broker.append()
            told = await waiting
            assert (told.error_code, acquired(told)) == (Code.NONE, list(ALL))
        else:
            assert (await waiting).error_code == Code.STORAGE_ERROR

    run(work)


@pytest.mark.parametrize("claimed", [(1 << 31) - 1, 1_000_000])
def test_a_stored_batch_that_claims_what_it_cannot_hold_is_not_sent(claimed: int) -> None:
    """Clients allocate memory by the claim; releases before validation stored such batches (B4)."""

    async def work(broker: Broker) -> None:
        first = broker.partition.log.end_offset
        batch = bytearray(batches.build([Record(0, 5, b"k", b"v")]))
        struct.pack_into(">i", batch, 23, claimed - 1)
        struct.pack_into(">i", batch, 57, claimed)
        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
        broker.partition.append(batch, batches.headers(batch))
        assert broker.partition.log.end_offset == first + claimed
        broker.append()
        reset = AlterShareOffsets("g", (("orders", 0, first - 5),))
        assert not isinstance(await broker.services.shares.ask("g", reset), Refused)
        told = await broker.fetch("a")
        assert (told.error_code, acquired(told)) == (Code.NONE, list(range(first - 5, first)))
        told = await broker.fetch("a", range(first - 5, first))
        assert (told.error_code, acquired(told)) == (Code.CORRUPT_MESSAGE, [])
        assert f"offset {first} claims {claimed} records" in told.error_message
        reset = AlterShareOffsets("g", (("orders", 0, first + claimed),))
        assert not isinstance(await broker.services.shares.ask("g", reset), Refused)
        told = await broker.fetch("b")
        assert (told.error_code, len(acquired(told))) == (Code.NONE, BATCH)

    run(work)


def test_a_compressed_batch_of_more_records_than_bytes_is_delivered() -> None:
    async def work(broker: Broker) -> None:
        first = broker.partition.log.end_offset
        records = [Record(0, 5, None, None)] * 10_000
        packed = bytearray(batches.build(records, compression=Codec.ZSTD))
        assert len(packed) < len(records)
        broker.partition.append(packed, batches.headers(packed))
        broker.append()
        reset = AlterShareOffsets("g", (("orders", 0, first - BATCH),))
        assert not isinstance(await broker.services.shares.ask("g", reset), Refused)
        until = first + len(records) + BATCH
        delivered: list[int] = []
        acked: list[range] = []
        while len(delivered) < until - first + BATCH:
            response = await broker.fetch("a", *acked, records=20_000)
            assert (response.error_code, response.acknowledge_error_code) == (Code.NONE, Code.NONE)
            offsets = acquired(response)
            assert offsets, "nothing of it is skipped"
            delivered += offsets
            acked = [range(offsets[0], offsets[-1] + 1)]
        assert delivered == list(range(first - BATCH, until))

    run(work)


def test_a_stored_batch_is_judged_by_itself() -> None:
    """One beside it may have more records than bytes, as it is well compressed."""
    (plain,) = batches.headers(batches.build([Record(0, 5, b"k", b"v" * 30)]))
    records = [Record(0, 5, None, None)] * 100_000
    (packed,) = batches.headers(batches.build(records, compression=Codec.ZSTD))
    assert packed.record_count > packed.size
    claiming = plain._replace(record_count=plain.size)  # more than it holds, and few
    for headers in ([claiming], [claiming, packed], [packed, claiming]):
        piece = Slice(bytes(sum(one.size for one in headers)), headers)
        assert share_polls._deliverable(piece) is piece
    lying = plain._replace(record_count=1 << 30)
    piece = Slice(bytes(packed.size + lying.size), [packed, lying])
    assert share_polls._deliverable(piece).headers == [packed]
    with pytest.raises(batches.CorruptBatch):
        share_polls._deliverable(Slice(bytes(lying.size), [lying]))
