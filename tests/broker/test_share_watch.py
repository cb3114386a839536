"""The look at share groups each second, and the gauges of what it sees."""

import re
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headrace.broker import metrics_shares
from headrace.broker.metrics_shapes import pieces
from headrace.broker.metrics_shares import of_share_groups
from headrace.broker.share_log import SESSIONS_PAUSE_MS
from headrace.broker.share_watch import STUCK_MS
from headrace.core.catalog import CreateTopic, Topic
from headrace.core.errors import Refused
from headrace.core.shard_words import AcquireLease, AlterShareOffsets, On, OpenLease
from headrace.core.share_group import Heartbeat
from headrace.core.share_session import Continue
from headrace.core.share_words import (
    Acknowledge,
    Acknowledged,
    Acquire,
    LogStartMoved,
    ShareKey,
    Verdict,
)
from headrace.core.types import MemberId, Span
from headrace.log.segments import SegmentedLog
from headrace.wire.batches import Record

from .inside_rig import Inside, play

M = MemberId("m")
WINDOW = 100
PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Takes the lines on share groups so far."""
    caplog.set_level("INFO", "headrace.broker")

    def take() -> list[str]:
        found = [line for line in caplog.messages if "share group" in line]
        caplog.clear()
        return found

    return take


class Broker(Inside):
    """The inside of a broker whose clock stands still, and a member that fills windows."""

    def __init__(self) -> None:
        super().__init__(group_share_partition_max_record_locks=str(WINDOW))
        self.key: ShareKey

    async def start(self) -> None:
        await super().start()
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
    play(Broker, work)


def test_sessions_that_were_refused_are_told_of_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(broker: Broker) -> None:
        for refused, ms_later in ((0, 0), (3, 0), (2, SESSIONS_PAUSE_MS - 1), (1, 1), (0, 60_000)):
            broker.services.shares.meters.sessions_refused += refused
            await broker.look(ms_later)
        assert [line for line in caplog.messages if "sessions" in line] == [
            f"{count} requests of share consumers were refused, as 0 share sessions are open "
            "already: they get no records; raise group.share.max.share.sessions, or end consumers"
            for count in (3, 3)
        ]

    run(work)


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


def test_a_lease_has_a_window_of_its_own(lines: Callable[[], list[str]]) -> None:
    async def work(broker: Broker) -> None:
        broker.append(2 * WINDOW)
        lease = ("g", "checkpoint")
        opened = await broker.ask(OpenLease(lease, ("orders",), earliest=True))
        await broker.ask(AcquireLease(lease, opened.epoch, 1, WINDOW + 1))
        await broker.look()
        await broker.look(STUCK_MS)
        assert broker.gauges()["window_full"] == {(): 0}
        assert lines() == []
        await broker.ask(Heartbeat("g", M, 0, frozenset({"orders"})))
        lines()
        assert broker.gauges()["window_full"] == {(): 1}, "nothing is left for members"

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
        read = SegmentedLog.read

        def counting(log: SegmentedLog, offset: int, *args: Any, **other: Any) -> Any:
            if log is broker.log.log:
                reads.append(offset)
            return read(log, offset, *args, **other)

        monkeypatch.setattr(SegmentedLog, "read", counting)
        await broker.acquire()
        for _ in range(3):
            broker.gauges()
        await broker.say(Verdict.ACCEPT, 0, 4)
        for _ in range(3):
            broker.gauges()
        assert reads == [0, 5]

    run(work)


def test_no_piece_of_the_page_reads_the_log_often(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(broker: Broker) -> None:
        services, count = broker.services, 50
        made = await services.topics.create(CreateTopic("wide", uuid4(), count, {}))
        assert isinstance(made, Topic)
        for index in range(count):
            log = services.partition("wide", index)
            assert log is not None
            log.append_records([Record(0, 1, b"k", b"v")])
        await broker.ask(AlterShareOffsets("g", tuple(("wide", n, 0) for n in range(count))))
        reads: Counter[int] = Counter()
        turn = 0
        look = metrics_shares._time_of

        def counting(partition: Any, offset: int) -> int:
            reads[turn] += 1
            return look(partition, offset)

        monkeypatch.setattr(metrics_shares, "_time_of", counting)
        for _, samples in of_share_groups(services, "partition"):
            for _ in pieces(samples):
                turn += 1
        assert sum(reads.values()) == count + 1
        assert 1 < max(reads.values()) <= 11

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


def test_questions_in_the_page_are_about_metrics_that_there_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = set(re.findall(r"^\| `([a-z_]+)` \|", page, re.M))
    suffixes = ("_bucket", "_count", "_sum")
    asked = set(re.findall(r"\b((?:headrace|kafka)_[a-z_]+)", page)) - {"kafka_exporter"}
    unknown = {
        name for name in asked - table
        if not any(name.removesuffix(end) in table for end in suffixes)
    }  # fmt: skip
    assert unknown == set()
