"""What is due when the clock is advanced has happened when `advance` returns."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.client.connection import Cluster
from headrace.client.leases import Lease
from headrace.testing import BrokerUnderTest
from headrace.testing.clock import NotRunning
from headrace.testing.loop import SkippingClock, SkippingLoop
from headrace.wire.leases import Disposition, Verdict

from .conftest import consumer, join, next_of, produce

ACQUIRED, AVAILABLE = headrace.RecordState.ACQUIRED, headrace.RecordState.AVAILABLE
DAY_MS, SHARE_HEARTBEAT = 86_400_000, 76


def on_loop(work: Callable[[SkippingLoop], Coroutine[Any, Any, None]]) -> None:
    """Run `work` on a loop that is deaf, as it is while a clock is advanced."""

    async def go() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SkippingLoop)
        loop.be_deaf(True)
        await work(loop)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(asyncio.wait_for(go(), None))


def test_a_loop_rests_only_when_callbacks_timers_and_threads_are_through() -> None:
    done: list[str] = []

    async def work(loop: SkippingLoop) -> None:
        async def in_thread() -> None:
            await loop.run_in_executor(None, time.sleep, 0.05)
            done.append("thread")
            loop.call_soon(done.append, "after it")

        loop.call_later(0, done.append, "timer")
        task = loop.create_task(in_thread())
        await loop.rest()
        assert sorted(done) == ["after it", "thread", "timer"]
        assert task.done()

    on_loop(work)


def test_loop_and_clock_skip_by_the_same_amount_and_never_back() -> None:
    async def work(loop: SkippingLoop) -> None:
        clock = SkippingClock(loop)
        before, mono, wall = loop.time(), clock.mono(), clock.wall()
        loop.skip_to(loop.now_ns + DAY_MS * 1_000_000)
        assert clock.mono() - mono >= DAY_MS
        assert clock.wall() - wall >= DAY_MS
        assert loop.time() - before >= DAY_MS / 1000
        skipped = loop.skipped_ns
        loop.skip_to(loop.now_ns - 1_000_000)
        assert loop.skipped_ns == skipped
        assert loop.next_timer_ns() == math.inf

    on_loop(work)


def test_debugging_a_loop_tells_of_no_slow_callback_when_time_is_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(loop: SkippingLoop) -> None:
        loop.set_debug(True)
        await loop.rest()
        loop.skip_to(loop.now_ns + DAY_MS * 1_000_000)
        await loop.rest()

    on_loop(work)
    assert caplog.text == ""


def on_broker(broker: BrokerUnderTest, work: Callable[[asyncio.AbstractEventLoop], None]) -> None:
    """Call `work` where the broker runs."""
    loop = broker.clock._loop
    assert loop is not None
    done: Future[None] = Future()

    def call() -> None:
        work(loop)
        done.set_result(None)

    loop.call_soon_threadsafe(call)
    done.result(60)


def test_timers_fire_in_the_order_of_their_times_those_too_that_others_arm(
    broker: BrokerUnderTest,
) -> None:
    fired: list[tuple[str, float]] = []

    def arm(loop: asyncio.AbstractEventLoop) -> None:
        began = loop.time()

        def fire(name: str, then_s: float | None = None) -> None:
            fired.append((name, round(loop.time() - began, 2)))
            if then_s is not None:
                loop.call_later(then_s, fire, f"after {name}")

        for name, delay_s, then_s in (("c", 60, None), ("a", 10, 30), ("b", 20, 1), ("d", 90, 1)):
            loop.call_later(delay_s, fire, name, then_s)

    on_broker(broker, arm)
    broker.clock.advance(seconds=90)
    expected = [("a", 10), ("b", 20), ("after b", 21), ("after a", 40), ("c", 60), ("d", 90)]
    assert [name for name, _ in fired] == [name for name, _ in expected]
    for (name, at), (_, due) in zip(fired, expected, strict=True):
        assert due <= at, name
    broker.clock.advance(seconds=1)
    assert fired[-1][0] == "after d"


def test_a_time_that_is_patched_in_the_process_is_not_the_brokers(
    broker: BrokerUnderTest, admin: headrace.SyncAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, real_s = broker.create_topic(), time.time()
    real = time.clock_gettime_ns
    for name in ("time_ns", "monotonic_ns"):
        monkeypatch.setattr(time, name, lambda: 0)
    monkeypatch.setattr(
        time,
        "clock_gettime_ns",
        lambda which: 0 if which == time.CLOCK_REALTIME else real(which),
    )
    assert broker.clock.now().timestamp() > real_s - 1
    produce(broker, topic, b"a")  # refused if its time lay after the broker's
    broker.clock.advance(hours=1)
    latest = {(topic, 0): headrace.OffsetSpec.LATEST}
    assert admin.list_offsets(latest)[topic, 0].offset == 1


def test_a_clock_never_goes_back_and_its_broker_has_to_run() -> None:
    broker = BrokerUnderTest()
    with pytest.raises(NotRunning, match="start it before"):
        broker.clock.advance(days=1)
    with broker:
        with pytest.raises(ValueError, match=r"never goes back: -86400 s were asked"):
            broker.clock.advance(days=-1)
        broker.clock.advance()
        assert broker.clock.skipped < timedelta(seconds=1)
        before = broker.clock.now()
        broker.clock.advance(weeks=1, days=1, hours=1, minutes=1, seconds=1, milliseconds=500)
        wanted = timedelta(days=8, hours=1, minutes=1, seconds=1.5)
        assert broker.clock.now() - before >= wanted
        assert broker.clock.skipped <= wanted + timedelta(seconds=1)
    with pytest.raises(NotRunning):
        broker.clock.now()


def test_advances_of_several_threads_add_up(broker: BrokerUnderTest) -> None:
    days = 4
    with ThreadPoolExecutor(days) as threads:
        for done in [threads.submit(broker.clock.advance, days=1) for _ in range(days)]:
            done.result(60)
    assert timedelta(days=days) - timedelta(minutes=5) < broker.clock.skipped
    assert broker.clock.skipped <= timedelta(days=days, seconds=1)


def test_committed_offsets_expire_also_those_of_members_that_are_still_there(
    broker: BrokerUnderTest, admin: headrace.SyncAdmin
) -> None:
    topic = broker.create_topic()
    produce(broker, topic, b"a")
    for group in ("gone", "quiet"):
        reader = consumer(broker, group, group_instance_id=group)
        reader.subscribe([topic])
        reader.commit(message=next_of(reader), asynchronous=False)
        if group == "gone":
            reader.close()
    broker.clock.advance(days=6, hours=23)
    assert admin.list_consumer_group_offsets("gone")
    assert admin.list_consumer_group_offsets("quiet")
    broker.clock.advance(days=8)
    assert admin.list_consumer_group_offsets("gone") == {}
    assert admin.list_consumer_group_offsets("quiet") == {}
    reader.close()


def test_what_happened_is_journaled(tmp_path: Path) -> None:
    with BrokerUnderTest(data_dir=str(tmp_path)) as broker:
        topic = broker.create_topic()
        with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
            admin.alter_consumer_group_offsets("g", {(topic, 0): 0})
            assert admin.list_consumer_group_offsets("g")
        broker.clock.advance(days=8)
        skipped = broker.clock.skipped
        journal = tmp_path / "__consumer_offsets-0" / "00000000000000000000.log"
        size = journal.stat().st_size
        broker.stop()
        assert journal.stat().st_size == size  # stopping had nothing left to write
        assert broker.clock.skipped == skipped
        with (
            headrace.Broker(tmp_path) as again,
            headrace.SyncAdmin(again.bootstrap_servers) as late,
        ):
            assert late.list_consumer_group_offsets("g") == {}


def members(admin: headrace.SyncAdmin) -> list[str]:
    """Of the group `g`; none when it is gone, as one is that has neither members nor offsets."""
    found = admin.describe_consumer_groups(["g"])["g"]
    return [] if isinstance(found, headrace.BrokerError) else [one.member for one in found.members]


def state(admin: headrace.SyncAdmin) -> str:
    found = admin.describe_consumer_groups(["g"])["g"]
    return found.name if isinstance(found, headrace.BrokerError) else found.state


def test_a_silent_member_is_removed_at_its_timeout_and_not_before(
    broker: BrokerUnderTest, admin: headrace.SyncAdmin, cluster: Cluster
) -> None:
    topic = broker.create_topic()
    assert join(cluster, "g", topic).error_code == 0
    broker.clock.advance(seconds=40)
    assert members(admin) == ["m-1"]
    broker.clock.advance(seconds=5)
    assert members(admin) == []


def test_a_silent_member_of_a_share_group_is_removed_too(
    broker: BrokerUnderTest, admin: headrace.SyncAdmin, cluster: Cluster
) -> None:
    asked = {"group_id": "q", "member_id": "m-1", "member_epoch": 0, "rack_id": None}
    topics = {"subscribed_topic_names": [broker.create_topic()]}
    assert cluster.ask(SHARE_HEARTBEAT, 1, asked | topics).error_code == 0

    def members() -> int:
        found = admin.describe_share_groups(["q"])["q"]
        return 0 if isinstance(found, headrace.BrokerError) else len(found.members)

    broker.clock.advance(seconds=40)
    assert members() == 1
    broker.clock.advance(seconds=5)
    assert members() == 0


def test_a_rebalance_ends_when_its_timer_does() -> None:
    with BrokerUnderTest({"group.initial.rebalance.delay.ms": 60_000}) as broker:
        topic = broker.create_topic()
        produce(broker, topic, b"a")
        reader = consumer(broker)
        reader.subscribe([topic])
        with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
            while not members(admin):
                reader.poll(0.05)
            assert state(admin) == "PreparingRebalance"
            broker.clock.advance(minutes=1)
            assert next_of(reader).value() == b"a"
        reader.close()


def test_an_acquisition_lock_ends_and_the_record_goes_to_somebody_else(
    broker: BrokerUnderTest, admin: headrace.SyncAdmin
) -> None:
    topic = broker.create_topic()
    group = headrace.ResourceType.GROUP
    lock = {"share.record.lock.duration.ms": "60000"}  # some of which passes while the test asks
    admin.incremental_alter_configs(
        group, "q", values={"share.auto.offset.reset": "earliest"} | lock
    )
    produce(broker, topic, b"a")
    with Cluster(broker.bootstrap_servers) as driver:
        lease = Lease(driver, "q", "s")
        lease.open((topic,), "earliest")
        (held,) = lease.acquire(1, 10, 1_000)
        assert held.first == 0
        assert states(admin) == [ACQUIRED]
        broker.clock.advance(seconds=55)
        assert states(admin) == [ACQUIRED]
        broker.clock.advance(seconds=5)
        assert states(admin) == [AVAILABLE]
        with headrace.SyncShareConsumer(
            broker.bootstrap_servers, group="q", topics=[topic]
        ) as worker:
            (record,) = worker.poll(timeout_s=60)
            assert (record.value, record.delivery_count) == (b"a", 2)
            record.accept().result(60)


def states(admin: headrace.SyncAdmin) -> list[headrace.RecordState]:
    return [run.state for run in admin.browse_share_group_runs("q")]


def test_a_delayed_release_is_over_when_its_time_has_come(
    broker: BrokerUnderTest, admin: headrace.SyncAdmin, cluster: Cluster
) -> None:
    topic = broker.create_topic()
    produce(broker, topic, b"a")
    lease = Lease(cluster, "q", "s")
    lease.open((topic,), "earliest")
    lease.acquire(1, 10, 1_000)
    released = Disposition(topic, 0, 0, 0, Verdict.RELEASE, delay_ms=600_000)
    lease.stage(1, (released,))
    lease.commit(1)
    broker.clock.advance(minutes=9)
    assert lease.acquire(2, 10, 0) == ()
    broker.clock.advance(minutes=1)
    assert states(admin) == [AVAILABLE]


@pytest.mark.parametrize("age", ["retention.ms", "log.retention.ms"])
def test_old_records_are_deleted(age: str) -> None:
    hour = {age: 3_600_000}
    with BrokerUnderTest({} if age == "retention.ms" else hour) as broker:
        topic = broker.create_topic("orders", config=hour if age == "retention.ms" else {})
        produce(broker, topic, b"a", b"b")
        with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
            where = {(topic, 0): headrace.OffsetSpec.EARLIEST}
            broker.clock.advance(minutes=50)
            assert admin.list_offsets(where)[topic, 0].offset == 0
            broker.clock.advance(minutes=11)
            assert admin.list_offsets(where)[topic, 0].offset == 2


def test_a_log_is_compacted(broker: BrokerUnderTest) -> None:
    compact = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0.01,
        "segment.ms": 60_000,
        "message.timestamp.type": "LogAppendTime",  # producers do not know of the broker's time
    }
    topic = broker.create_topic(config=compact)
    produce(broker, topic, b"1", b"2", key=b"k")
    broker.clock.advance(minutes=2)
    produce(broker, topic, b"3", key=b"other")  # in a new segment: the last is never compacted
    broker.clock.advance(minutes=2)
    reader = consumer(broker)
    reader.subscribe([topic])
    assert [next_of(reader).value(), next_of(reader).value()] == [b"2", b"3"]
    reader.close()


def test_a_client_that_lives_is_as_one_that_was_silent_and_comes_back_by_itself(
    broker: BrokerUnderTest,
) -> None:
    topic = broker.create_topic()
    produce(broker, topic, b"a")
    reader = consumer(broker)
    reader.subscribe([topic])
    reader.commit(message=next_of(reader), asynchronous=False)
    broker.clock.advance(hours=1)
    produce(broker, topic, b"b")
    assert next_of(reader).value() == b"b"
    reader.close()


def test_a_broker_that_serves_metrics_can_be_advanced() -> None:
    with BrokerUnderTest({"headrace.metrics.port": 0}) as broker:
        broker.clock.advance(days=30)
        assert broker.clock.skipped >= timedelta(days=29)


def test_idle_connections_end_and_their_clients_connect_again(
    broker: BrokerUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.broker")
    with Cluster(broker.bootstrap_servers) as cluster:
        assert cluster.ask(18, 0, {}).error_code == 0
        broker.clock.advance(minutes=9)
        assert "idle (connections.max.idle.ms)" not in caplog.text
        broker.clock.advance(minutes=2)
        assert "idle (connections.max.idle.ms)" in caplog.text
        topic = broker.create_topic()
        assert cluster.retrying("a look", lambda: cluster.partitions(topic)) == (0,)
