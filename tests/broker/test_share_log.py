"""Log lines on share groups: what somebody finds at 3 a.m., and no more of it than helps."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID, uuid4

import pytest

import headrace
from headrace.broker.config import Config
from headrace.broker.metrics_shares import of_share_groups
from headrace.broker.services import Services
from headrace.broker.share_log import LINES_MAX, ShareLog, tell_notices
from headrace.broker.share_meters import About, Notice
from headrace.broker.share_watch import STUCK_MS
from headrace.core.catalog import CreateTopic, Topic
from headrace.core.errors import Refused
from headrace.core.runs import State
from headrace.core.shard_words import AlterShareOffsets, On, Restarted
from headrace.core.share_group import GroupForgotten, Heartbeat, Member, MemberGone, MemberSeen
from headrace.core.share_session import Continue
from headrace.core.share_words import (
    Acknowledge,
    Acknowledged,
    Acquire,
    Ended,
    LogStartMoved,
    ShareKey,
    Verdict,
)
from headrace.core.types import MemberId, MonoMs, Now, Span, TopicPartition, WallMs
from headrace.log.memory_disk import MemoryDisk, VirtualClock
from headrace.wire.batches import Record

from .share_wire_rig import DELETE_OFFSETS, Sharer, produce, reset

KEY = ShareKey("g", UUID(int=1), 3)
M = MemberId("m")
WINDOW = 100
BROKER_SETTINGS = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "1000",
}
SECONDS_MAX = 20


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Takes the lines on share groups so far."""
    caplog.set_level("INFO", "headrace.broker")

    def take() -> list[str]:
        found = [line for line in caplog.messages if "share group" in line or "locks" in line]
        caplog.clear()
        return found

    return take


# ---- members


def seen(member: str = "m", expires: int = 10, partitions: int = 2) -> MemberSeen:
    told = frozenset(TopicPartition(UUID(int=1), index) for index in range(partitions))
    one = Member(MemberId(member), 1, 0, frozenset({"t"}), MonoMs(expires), told, "app", "::1")
    return MemberSeen("g", one)


class Listening:
    def __init__(self) -> None:
        self.mono = 0
        self.log = ShareLog(lambda: Now(MonoMs(self.mono), WallMs(0)))

    def tell(self, *events: Any) -> None:
        self.log.tell(events)


def test_members_come_once_and_go_with_a_reason(lines: Callable[[], list[str]]) -> None:
    listening = Listening()
    listening.tell(seen())
    listening.tell(seen(expires=20, partitions=5))  # its heartbeats are no news
    listening.tell(seen("n"))
    assert lines() == [
        "share group g: member m of client app /::1 joined and reads 2 partitions; members: 1",
        "share group g: member n of client app /::1 joined and reads 2 partitions; members: 2",
    ]
    listening.tell(MemberGone("g", M))
    assert lines() == ["share group g: member m left; it read 5 partitions; members: 1"]
    listening.mono = 10
    listening.tell(MemberGone("g", MemberId("n")))
    assert lines() == [
        "share group g: member n was silent for its session timeout; it read 2 partitions; "
        "members: 0",
        "share group g has no members left; what they hold comes back when their connections or "
        "locks end",
    ]
    listening.tell(MemberGone("g", M))
    assert lines() == []


@pytest.mark.parametrize("end", [Restarted(MonoMs(1), frozenset("g")), GroupForgotten("g")])
def test_members_of_before_are_forgotten(lines: Callable[[], list[str]], end: Any) -> None:
    listening = Listening()
    listening.tell(seen(), end)
    lines()
    listening.tell(MemberGone("g", M))
    assert lines() == []
    listening.tell(seen())
    assert lines() == [
        "share group g: member m of client app /::1 joined and reads 2 partitions; members: 1"
    ]


# ---- locks that end, records that are given up


def notice(first: int, last: int) -> Notice:
    found = Notice()
    found.add(first, last)
    return found


@pytest.mark.parametrize(
    ("ended", "state", "line"),
    [
        (Ended.LOCK_EXPIRED, State.AVAILABLE,
         "locks of 3 records of orders-3 (5 to 7) ended while member m had them; others get them "
         "now"),
        (Ended.LOCK_EXPIRED, State.ARCHIVED,
         "locks of 3 records of orders-3 (5 to 7) ended while member m had them; the delivery "
         "limit is reached, they are archived without a dead letter"),
        (Ended.ACKNOWLEDGED, State.ARCHIVED,
         "3 records of orders-3 (5 to 7) were given back by member m; the delivery limit is "
         "reached, they are archived without a dead letter"),
        (Ended.MEMBER_LEFT, State.ARCHIVING,
         "3 records of orders-3 (5 to 7) were given back by member m; the delivery limit is "
         "reached, they go to the dead-letter topic"),
    ],
)  # fmt: skip
def test_what_happened_to_records_is_a_line(
    lines: Callable[[], list[str]], ended: Ended, state: State, line: str
) -> None:
    about: dict[About, Notice] = {(KEY, M, ended, state): notice(5, 7)}
    tell_notices(about, Notice(), lambda _: "orders-3")
    assert lines() == [f"share group g: {line}"]


def test_a_storm_of_them_is_summed_up(lines: Callable[[], list[str]]) -> None:
    about: dict[About, Notice] = {
        (KEY, MemberId(f"m{number}"), Ended.LOCK_EXPIRED, State.AVAILABLE): notice(number, number)
        for number in range(LINES_MAX + 5)
    }
    tell_notices(about, notice(0, 99), lambda _: "orders-3")
    told = lines()
    assert len(told) == LINES_MAX + 1
    assert told[-1] == "locks of 105 further records ended, or they were given back and up"


# ---- windows


class Broker:
    """The inside of a broker whose clock stands still, and a member that fills windows."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        settings = {"group.share.partition.max.record.locks": str(WINDOW)}
        self.services = Services(Config.parse(settings), MemoryDisk(), self.clock, uuid4)
        self.services.topics.load()
        self.key = KEY

    async def start(self) -> None:
        await self.services.start()
        made = await self.services.topics.create(CreateTopic("orders", uuid4(), 1, {}))
        assert isinstance(made, Topic)
        self.key = ShareKey("g", made.id, 0)
        await self.ask(AlterShareOffsets("g", (("orders", 0, 0),)))
        self.append(WINDOW)

    async def ask(self, command: Any) -> Any:
        answer = await self.services.shares.ask("g", command)
        assert not isinstance(answer, Refused), answer
        return answer

    async def acquire(self) -> None:
        span = Span(0, self.log.high_watermark - 1)
        await self.ask(On(self.key, Acquire(M, [span], 10_000, WINDOW, exact=True)))

    async def say(self, verdict: Verdict, first: int, last: int) -> None:
        said = Acknowledged(Span(first, last), [verdict])
        await self.ask(On(self.key, Acknowledge(M, [said])))

    async def look(self, ms_later: int = 0) -> None:
        self.clock.advance(ms_later)
        await self.services.share_watch.look()

    @property
    def log(self) -> Any:
        return self.services.partition("orders", 0)

    def append(self, count: int) -> None:
        """Records that were written one second apart."""
        for _ in range(count):
            self.log.append_records([Record(0, self.clock.wall(), b"k", b"v")])
            self.clock.advance(1000)

    def gauges(self) -> dict[str, Any]:
        """What is told, by family and labels; those of the only share-partition left out."""
        place = ("g", "orders", "0")
        return {
            family.name.removeprefix("headrace_share_").removeprefix("partition_"): {
                sample.labels[3:] if sample.labels[:3] == place else sample.labels: sample.value
                for sample in samples
                if sample is not None
            }
            for family, samples in of_share_groups(self.services, "partition")
        }


def run(work: Callable[[Broker], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        broker = Broker()
        await broker.start()
        try:
            await work(broker)
        finally:
            await broker.services.close()

    asyncio.run(asyncio.wait_for(go(), SECONDS_MAX))


def test_a_full_window_that_stands_still_is_told_of_once(
    lines: Callable[[], list[str]],
) -> None:
    async def work(broker: Broker) -> None:
        await broker.acquire()
        full_at = broker.clock.wall()
        await broker.look()
        await broker.look(STUCK_MS)
        assert lines() == [], "nobody waits for more"
        broker.append(1)
        await broker.look()
        told = lines()
        assert told == [
            "share group g: orders-0 takes no new records: 100 are unfinished, the first is offset "
            "0, delivered 1 times, held by m until 2023-11-14T22:15:30Z; see `headrace share "
            "browse g`"
        ]
        await broker.look(60_000)
        assert lines() == []
        assert broker.gauges()["window_full"] == {(): 1}
        assert broker.gauges()["window_full_since_seconds"] == {(): full_at / 1000}
        await broker.say(Verdict.ACCEPT, 50, 50)  # any record makes room
        assert broker.gauges()["window_full"] == {(): 0}
        await broker.look(1000)
        assert lines() == [
            "share group g: orders-0 takes new records again; the first unfinished one is offset 0"
        ]
        assert broker.gauges()["window_full_since_seconds"] == {}

    run(work)


def test_a_full_window_that_moves_on_is_no_news(lines: Callable[[], list[str]]) -> None:
    async def work(broker: Broker) -> None:
        broker.append(10)
        await broker.acquire()
        for first in range(5):
            await broker.look(STUCK_MS - 1)
            await broker.say(Verdict.ACCEPT, first, first)
            await broker.acquire()
        assert broker.gauges()["group_windows_full"] == {("g",): 1}
        assert lines() == []

    run(work)


@pytest.mark.parametrize(
    ("verdict", "told"),
    [(Verdict.RELEASE, "delivered 1 times, held by nobody"), (Verdict.RENEW, "held by m until")],
)
def test_the_first_record_is_told_as_it_is(
    lines: Callable[[], list[str]], verdict: Verdict, told: str
) -> None:
    async def work(broker: Broker) -> None:
        await broker.acquire()
        broker.append(1)
        await broker.say(verdict, 0, 0)
        await broker.look()
        await broker.look(STUCK_MS)
        (line,) = lines()
        assert told in line

    run(work)


def test_gauges_of_a_share_partition() -> None:
    async def work(broker: Broker) -> None:
        broker.append(20)
        assert broker.gauges()["oldest_unfinished_age_seconds"] == {(): 120}
        await broker.acquire()
        await broker.say(Verdict.ACCEPT, 0, 9)
        await broker.say(Verdict.ACCEPT, 20, 29)
        await broker.say(Verdict.RELEASE, 10, 10)
        await broker.say(Verdict.REJECT, 12, 12)
        told = broker.gauges()
        assert told["start_offset"] == {(): 10}
        assert told["start_deliveries"] == {(): 1}
        assert told["lag"] == {(): 120 - 10 - 11}
        assert told["group_lag_sum"] == {("g", "orders"): 99}
        assert told["oldest_unfinished_age_seconds"] == {(): 110}
        assert told["records"] == {
            ("available",): 1, ("acquired",): 78, ("acknowledged",): 10, ("archiving",): 0,
            ("archived",): 1,
        }  # fmt: skip
        broker.clock.advance(5000)
        assert broker.gauges()["oldest_unfinished_age_seconds"] == {(): 115}
        await broker.ask(On(broker.key, LogStartMoved(120)))
        told = broker.gauges()
        assert told["oldest_unfinished_age_seconds"] == {}
        assert (told["lag"], told["start_deliveries"]) == ({(): 0}, {(): 0})

    run(work)


def test_the_log_is_read_once_for_each_spso(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(broker: Broker) -> None:
        reads: list[int] = []
        read = broker.log.log.read

        def counting(offset: int, *args: Any, **other: Any) -> Any:
            reads.append(offset)
            return read(offset, *args, **other)

        monkeypatch.setattr(broker.log.log, "read", counting)
        await broker.acquire()
        for _ in range(3):
            broker.gauges()
        await broker.say(Verdict.ACCEPT, 0, 4)
        for _ in range(3):
            broker.gauges()
        assert reads == [0, 5]

    run(work)


def test_groups_members_and_those_who_wait() -> None:
    async def work(broker: Broker) -> None:
        assert broker.gauges()["groups"] == {("Empty",): 1, ("Stable",): 0}
        await broker.ask(Heartbeat("g", M, 0, frozenset({"orders"})))
        told = broker.gauges()
        assert told["groups"] == {("Empty",): 0, ("Stable",): 1}
        assert told["group_members"] == told["group_partitions"] == {("g",): 1}
        assert told["group_fetches_waiting"] == {("g",): 0}
        assert (told["group_sessions"], told["sessions"]) == ({}, {(): 0})
        broker.services.shares.move(Continue(("g", M), 0, 1))
        with broker.services.waits.watch([("share group", "g")]):
            told = broker.gauges()
        assert told["group_fetches_waiting"] == told["group_sessions"] == {("g",): 1}

    run(work)


# ---- administrators, and all of it together


def test_who_changed_a_group_is_told(
    broker: headrace.Broker, connect: Callable[[], Any], lines: Callable[[], list[str]]
) -> None:
    wire = connect()
    one = Sharer(wire, wire.create("orders", num_partitions=1).topic_id)
    assert reset(wire, 0) == 0
    assert reset(wire, 99) == 1
    one.beat()
    assert reset(wire, 0) == 68
    one.beat(-1, None)
    lines()
    topics = ({"topic_name": "orders"}, {"topic_name": "absent"})
    assert reset(wire, 0) == 0
    assert wire.call(DELETE_OFFSETS, 0, group_id="g", topics=topics).error_code == 0
    assert reset(wire, 0) == 0
    wire.call(42, 2, groups_names=("g",))
    assert lines() == [
        "share group g: orders-0 at 0 is set anew by - /127.0.0.1",
        "share group g: orders is forgotten by - /127.0.0.1",
        "share group g: orders-0 at 0 is set anew by - /127.0.0.1",
        "share group g was deleted by - /127.0.0.1",
    ]


def test_a_slow_member_is_told_of_with_what_it_held(
    broker: headrace.Broker, connect: Callable[[], Any], lines: Callable[[], list[str]]
) -> None:
    wire = connect()
    one = Sharer(wire, wire.create("orders", num_partitions=1).topic_id)
    one.beat()
    produce(wire, 3)
    assert one.take() == [(0, 2, 1)]
    deadline = time.monotonic() + SECONDS_MAX
    found: list[str] = []
    while not any("locks" in line for line in found):
        assert time.monotonic() < deadline
        time.sleep(0.02)
        found += lines()
    assert found[-1] == (
        "share group g: locks of 3 records of orders-0 (0 to 2) ended while member m had them; "
        "others get them now"
    )
