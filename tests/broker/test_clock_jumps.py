"""The wall clock jumps by days while a broker runs, or while it is down: nothing is lost by it."""

import logging
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from headrace.broker import newest_batches
from headrace.broker.handlers import produce
from headrace.broker.offset_expiry import Swept
from headrace.broker.partitions import Partition
from headrace.broker.request import Raw, Request
from headrace.broker.shards import shard_index
from headrace.broker.share_resets import starts_by_duration
from headrace.core.catalog import CreateTopic, Resource, SetConfigs, Topic
from headrace.core.consumer_words import NOTHING, ConsumerBeat
from headrace.core.group_words import Commit, Offset
from headrace.core.runs import State
from headrace.core.shard_words import AcquireLease, On, OpenLease, StartPartitions
from headrace.core.share_group import Heartbeat
from headrace.core.share_words import Acquire, ShareKey
from headrace.core.types import MemberId, Span, WallMs
from headrace.log.checkpoints import CLEAN_MARK
from headrace.log.clock_checkpoint import FILE
from headrace.log.memory_disk import MemoryDisk, VirtualClock
from headrace.wire import batches, codec
from headrace.wire.batches import Record

from . import inside_rig
from .inside_rig import Inside

HOUR = 3_600_000
DAY = 24 * HOUR
PRODUCER = 41
RECORDS = 5
EPOCH_MS = 1_700_000_000_000
INVALID_TIMESTAMP = 32


class Broker(Inside):
    """A broker with a topic of each kind of deletion, a group without members, and a producer."""

    def __init__(self, disk: MemoryDisk, **settings: str) -> None:
        quiet = {"log_cleaner_enable": "false"}  # its own task begins after a second
        super().__init__(disk, **{"log_segment_bytes": "1024"} | quiet | settings)

    async def topic(self, name: str, **configs: str) -> Partition:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        made = await self.services.topics.create(CreateTopic(name, uuid4(), 1, named))
        assert isinstance(made, Topic)
        return self.partition(name)

    def partition(self, name: str) -> Partition:
        found = self.services.partition(name, 0)
        assert found is not None
        return found

    async def fill(self) -> None:
        jobs, keyed = (
            await self.topic("jobs"),
            await self.topic("keyed", cleanup_policy="compact", min_cleanable_dirty_ratio="0"),
        )
        for number in range(50):
            at = self.services.clock.wall()
            jobs.append_records([Record(0, at, None, b"v" * 20)])
            keyed.append_records([Record(0, at, b"k%d" % number, None)])
        offsets = (Offset("jobs", 0, 5, -1, "", jobs.topic.id),)
        await self.services.groups.ask("g", Commit("g", MemberId(""), None, -1, offsets, None))
        assert self.produce(self.wall, sequence=0) == (0, 50)

    @property
    def wall(self) -> WallMs:
        """What clients take for the time: the wall clock before it was set."""
        return WallMs(self.clock.mono() + EPOCH_MS)

    def produce(
        self, timestamp: int, *, sequence: int = -1, topic: str = "jobs"
    ) -> tuple[int, int]:
        """Error code and base offset of a produced record; idempotent with a sequence."""
        idempotent = sequence >= 0
        data = batches.build(
            [Record(0, WallMs(timestamp), b"k", b"v")],
            producer_id=PRODUCER if idempotent else -1,
            producer_epoch=0 if idempotent else -1,
            base_sequence=sequence,
        )
        data_of = {"name": topic, "partition_data": ({"index": 0, "records": data},)}
        body = codec.encode_request(
            0, 9, {"transactional_id": None, "acks": 1, "timeout": 1000, "topic_data": (data_of,)}
        )
        answer = produce.handle(
            Request(0, 9, 1, "c", "::1", 1, memoryview(bytearray(body))), self.services
        )
        assert isinstance(answer, Raw)
        decoded: Any = codec.decode_response(0, 9, b"".join(map(bytes, answer.buffers)))
        part = decoded.responses[0].partition_responses[0]
        return part.error_code, part.base_offset

    async def sweep(self) -> Swept:
        """Everything that deletes by age, once."""
        services, at = self.services, self.services.clock.wall()
        for _ in range(20):
            self.partition("keyed").append_records([Record(0, at, b"other", b"v" * 40)])
        await services.housekeeping.expire_all()
        while await services.housekeeping.clean_dirtiest():
            pass
        await services.share_pruning.prune()
        return await services.offset_expiry.sweep()

    @property
    def counts(self) -> tuple[int, int, int]:
        """First offset of the topic, producers it knows, offsets of the group."""
        jobs = self.partition("jobs")
        offsets = [len(found) for _, found in self.services.groups.walk()]
        return jobs.start_offset, len(jobs.log.producers), sum(offsets)

    def tombstones(self) -> int:
        """How many the compacted topic has."""
        log, offset, count = self.partition("keyed").log, 0, 0
        while offset < log.end_offset:
            found = log.read(offset, 1 << 20)
            count += sum(one.value is None for one in batches.records(found.data))
            offset = found.headers[-1].last_offset + 1
        return count


WHOLE = (0, 1, 1)
Scene = Callable[[Broker], Coroutine[Any, Any, None]]


def play(scene: Scene, disk: MemoryDisk | None = None, **settings: str) -> None:
    used = disk or MemoryDisk()
    inside_rig.play(lambda: Broker(used, **settings), scene)


@pytest.mark.parametrize("days", [30, -300])
def test_a_jump_while_the_broker_runs(days: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.broker")

    async def scene(broker: Broker) -> None:
        await broker.fill()
        await broker.sweep()  # tombstones get their time of deletion
        before = broker.tombstones()
        broker.clock.advance(6_000)
        broker.clock.set_wall(days * DAY)
        for _ in range(3):
            broker.clock.advance(2_000)
            assert await broker.sweep() == Swept()
            assert (broker.counts, broker.tombstones()) == (WHOLE, before)
            assert broker.services.clock.disagreement_ms == days * DAY
        assert broker.produce(broker.wall) == (0, 51), "a right time is no error"
        assert broker.produce(broker.wall, sequence=0) == (0, 50), "a repeated batch stays one"
        broker.clock.set_wall(-days * DAY)
        broker.clock.advance(2_000)
        assert await broker.sweep() == Swept()
        assert (broker.counts, broker.services.clock.disagreement_ms) == (WHOLE, 0)
        broker.clock.advance(8 * DAY)
        assert (await broker.sweep()).offsets == 1
        assert broker.counts == (52, 0, 0)
        assert broker.tombstones() == 0

    play(scene)
    told = [one for one in caplog.records if one.message.startswith("clock:")]
    assert [one.levelname for one in told] == ["WARNING", "INFO"]
    direction = "30 days ahead of" if days > 0 else "300 days behind"
    assert f"is {direction} elapsed time since the start" in told[0].message
    assert "headrace.clock.hold.ms" in told[0].message
    assert "agrees with elapsed time again" in told[1].message


@pytest.mark.parametrize("days", [30, -300])
def test_locks_and_sessions_end_by_elapsed_time(days: int) -> None:
    """An acquisition lock, a lease, and sessions of a share group and a consumer group."""

    async def scene(broker: Broker) -> None:
        clock, shares, groups = broker.clock, broker.services.shares, broker.services.groups
        jobs = await broker.topic("jobs")
        for _ in range(2 * RECORDS):
            append(broker, "jobs", 0)
        lock_ms = shares.policy("s").lock_ms
        session_ms = broker.services.config.consumer_session_timeout_ms
        assert lock_ms < shares.timing("s").session_ms == session_ms

        shard, key, member = shares.shard("s"), ShareKey("s", jobs.topic.id, 0), MemberId("m")
        await shares.ask("s", StartPartitions("s", ((jobs.topic.id, 0, 0),)))
        await shares.ask("s", Heartbeat("s", member, 0, frozenset({"jobs"})))
        ask = [Span(0, RECORDS - 1)]
        await shares.ask("s", On(key, Acquire(member, ask, RECORDS, 10 * RECORDS, exact=True)))
        opened = await shares.ask("s", OpenLease(("s", "query"), ("jobs",), True))
        await shares.ask("s", AcquireLease(("s", "query"), opened.epoch, 1, RECORDS))
        beat = ConsumerBeat(
            "c", member, 0, rebalance_ms=60_000, topics=frozenset({"jobs"}), owned=NOTHING
        )
        assert (await groups.ask("c", beat)).epoch
        consumers = groups.shards[shard_index("c", len(groups.shards))]

        def tick() -> tuple[int, int, int]:
            """Records that are locked, members of the share group and of the consumer group."""
            for one in (shard, consumers):
                one._tick()
            machine, found = shares.machine("s"), groups.find("c")
            locked = machine.partitions[key].runs.records[State.ACQUIRED]
            members = machine.groups["s"].members if "s" in machine.groups else ()
            return locked, len(members), len(getattr(found, "members", ()))

        clock.set_wall(days * DAY)
        assert tick() == (2 * RECORDS, 1, 1)
        clock.advance(lock_ms - 1)
        assert tick() == (2 * RECORDS, 1, 1)
        clock.set_wall(-2 * days * DAY)
        assert tick() == (2 * RECORDS, 1, 1)
        clock.advance(1)
        assert tick() == (0, 1, 1), "the lock and the lease's end now"
        clock.set_wall(2 * days * DAY)
        clock.advance(session_ms - lock_ms - 1)
        assert tick() == (0, 1, 1)
        clock.advance(1)
        assert tick() == (0, 0, 0)

    play(scene)


def test_what_is_due_by_elapsed_time_goes_during_a_jump() -> None:
    async def scene(broker: Broker) -> None:
        await broker.fill()
        broker.clock.set_wall(30 * DAY)
        for _ in range(8):
            broker.clock.advance(DAY - 1)
            broker.clock.set_wall(2 * DAY)  # each starts a hold of its own
            await broker.sweep()
        assert broker.counts == (51, 1, 0), "a producer is silent since the later time"

    play(scene, headrace_clock_hold_ms=str(30 * DAY))


@pytest.mark.parametrize(("hours", "is_held"), [(30 * 24, False), (30 * 24 + 1, True)])
def test_how_far_times_may_differ_is_a_setting(hours: int, is_held: bool) -> None:
    async def scene(broker: Broker) -> None:
        await broker.fill()
        broker.clock.set_wall(hours * HOUR)
        await broker.sweep()
        assert (broker.services.clock.disagreement_ms > 0) is is_held
        assert broker.counts == (WHOLE if is_held else (51, 1, 0))

    play(scene, headrace_clock_jump_max_ms=str(30 * DAY))


def test_a_time_that_holds_is_trusted(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(broker: Broker) -> None:
        await broker.fill()
        broker.clock.set_wall(30 * DAY)
        await broker.sweep()
        broker.clock.advance(DAY)
        await broker.sweep()
        assert broker.counts == (51, 0, 0)

    play(scene)
    assert "held for 1 day (headrace.clock.hold.ms) and is trusted" in caplog.text


def right(broker: Broker) -> None:
    append(broker, "jobs", 0)


def with_the_jump(broker: Broker) -> None:
    append(broker, "keyed", 30 * DAY)


def old(broker: Broker) -> None:
    append(broker, "keyed", -10 * DAY)


def append(broker: Broker, topic: str, error: int) -> None:
    """Append what a producer with a wrong clock sends."""
    record = Record(0, WallMs(broker.wall + error), b"k", b"v")
    broker.partition(topic).append_records([record])


@pytest.mark.parametrize("also", [None, with_the_jump, old])
def test_a_time_that_new_batches_contradict_is_not_trusted_before_they_end(
    also: Callable[[Broker], None] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A single producer with a right clock is enough."""

    async def scene(broker: Broker) -> None:
        await broker.fill()
        broker.clock.advance(6_000)
        broker.clock.set_wall(30 * DAY)
        for _ in range(30):
            await broker.sweep()
            broker.clock.advance(HOUR)
            for write in filter(None, (right, also)):
                write(broker)
        assert broker.counts == WHOLE
        assert broker.services.clock.disagreement_ms == 30 * DAY
        broker.clock.advance(DAY - HOUR)
        await broker.sweep()
        assert broker.counts == WHOLE
        broker.clock.advance(HOUR)
        await broker.sweep()
        assert broker.services.clock.disagreement_ms == 0
        assert broker.counts[0] > 50, "it goes on by itself"

    play(scene)
    lines = [one.message for one in caplog.records if "contradicted" in one.message]
    assert len(lines) == 2, "once a day"
    assert "the last one of jobs-0 is of 2023-11-1" in lines[0]
    assert "headrace.clock.hold.ms" in lines[0]


def test_what_is_due_by_elapsed_time_goes_during_a_contradiction() -> None:
    async def scene(broker: Broker) -> None:
        await broker.fill()
        broker.clock.set_wall(30 * DAY)
        for _ in range(16):
            await broker.sweep()
            broker.clock.advance(DAY // 2)
            right(broker)
        await broker.sweep()
        assert broker.services.clock.disagreement_ms == 30 * DAY
        assert 40 < broker.counts[0] < 60

    play(scene)


@pytest.mark.parametrize("write", [with_the_jump, old])
def test_a_time_that_no_new_batch_contradicts_is_trusted(write: Callable[[Broker], None]) -> None:
    async def scene(broker: Broker) -> None:
        await broker.fill()
        broker.clock.set_wall(30 * DAY)
        for _ in range(24):
            await broker.sweep()
            assert broker.services.clock.disagreement_ms == 30 * DAY
            broker.clock.advance(HOUR)
            write(broker)
        await broker.sweep()
        assert broker.services.clock.disagreement_ms == 0
        assert broker.counts == (51, 0, 0)

    play(scene)


@pytest.mark.parametrize("is_clean", [True, False])
def test_batches_of_the_last_run_contradict_nothing(is_clean: bool) -> None:
    """A machine that is switched off for some hours more than once, with a topic that is quiet."""
    disk = MemoryDisk()

    async def first_run(broker: Broker) -> None:
        await broker.fill()
        broker.clock.set_wall(2 * DAY)
        broker.clock.advance(HOUR)
        assert broker.services.clock.disagreement_ms == 2 * DAY
        await broker.topic("quiet")
        append(broker, "quiet", 2 * DAY)
        broker.clock.advance(15 * HOUR)
        await broker.sweep()

    async def second_run(broker: Broker) -> None:
        assert broker.services.clock.disagreement_ms == 2 * DAY + 8 * HOUR
        for _ in range(9):
            broker.clock.advance(HOUR)
            assert broker.partition("quiet").log.end_offset  # opened now, if not at the start
            assert broker.services.clock.disagreement_ms
        assert broker.services.clock.disagreement_ms == 8 * HOUR, "the first jump held for a day"

    class Later(Broker):
        new_clock = staticmethod(lambda: VirtualClock(mono_ms=5_000, wall_ms=EPOCH_MS + 3 * DAY))

    play(first_run, disk)
    if not is_clean:
        disk.remove(CLEAN_MARK)
    inside_rig.play(lambda: Later(disk), second_run)


def test_an_operator_overrules_new_batches() -> None:
    async def scene(broker: Broker) -> None:
        await broker.fill()
        broker.clock.set_wall(30 * DAY)
        await broker.sweep()
        broker.clock.advance(HOUR)
        right(broker)
        trust_now = SetConfigs(Resource.BROKER, "1", {"headrace.clock.hold.ms": "0"})
        assert await broker.services.topics.set_configs(trust_now) is None
        await broker.sweep()
        assert broker.services.clock.disagreement_ms == 0

    play(scene)


def test_every_partition_is_looked_at_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_batches, "PARTITIONS_MAX", 2)

    async def scene(broker: Broker) -> None:
        names = ["a", "b", "c", "d", "e"]
        for name in names:
            (await broker.topic(name)).append_records([Record(0, broker.wall, b"", b"")])
        newest = newest_batches.NewestBatches(broker.services.partitions)
        newest.begin()
        assert newest.look() == []
        seen: list[str] = []
        for _ in range(5):
            for name in names:
                append(broker, name, 0)
            looked = newest.look()
            assert [time for _, time in looked] == [broker.wall] * 2
            seen += [name for name, _ in looked]
        assert sorted(seen) == sorted(2 * [f"{name}-0" for name in names])

    play(scene)


def test_an_operator_has_a_jump_trusted_at_once() -> None:
    async def scene(broker: Broker) -> None:
        await broker.fill()
        broker.clock.set_wall(30 * DAY)
        await broker.sweep()
        assert broker.counts == WHOLE
        trust_now = SetConfigs(Resource.BROKER, "1", {"headrace.clock.hold.ms": "0"})
        assert await broker.services.topics.set_configs(trust_now) is None
        await broker.sweep()
        assert broker.counts == (51, 1, 0)

    play(scene)


@pytest.mark.parametrize("days", [30, -300])
@pytest.mark.parametrize("saved", [True, False])
def test_a_jump_while_the_broker_is_down(days: int, saved: bool) -> None:
    """Without a saved time the newest record of a journal stands in."""
    disk = MemoryDisk()
    play(lambda broker: broker.fill(), disk)
    if not saved:
        disk.remove(FILE)

    async def scene(broker: Broker) -> None:
        assert await broker.sweep() == Swept()
        assert broker.counts == WHOLE
        assert broker.produce(broker.wall) == (0, 51)
        assert broker.produce(broker.wall, sequence=0) == (0, 50)
        broker.clock.set_wall(-days * DAY)
        broker.clock.advance(2_000)
        await broker.sweep()
        assert (broker.counts, broker.services.clock.disagreement_ms) == (WHOLE, 0)

    class Later(Broker):
        new_clock = staticmethod(
            lambda: VirtualClock(mono_ms=5_000, wall_ms=EPOCH_MS + 5_000 + days * DAY)
        )

    inside_rig.play(lambda: Later(disk), scene)


def test_a_clock_that_was_wrong_at_the_first_start_refuses_no_record_once_it_is_right() -> None:
    async def scene(broker: Broker) -> None:
        await broker.topic("jobs", message_timestamp_before_max_ms=str(DAY))
        broker.clock.set_wall(EPOCH_MS)
        broker.clock.advance(2_000)
        right = broker.clock.wall()
        assert broker.produce(right) == (0, 0)
        assert broker.produce(right + 2 * HOUR)[0] == INVALID_TIMESTAMP
        assert broker.produce(5) == (0, 1), "either time may be the right one"
        broker.clock.advance(DAY)
        assert broker.services.clock.disagreement_ms, "the last batch contradicts"
        broker.clock.advance(DAY)
        assert broker.services.clock.disagreement_ms == 0
        assert broker.produce(5)[0] == INVALID_TIMESTAMP

    class Early(Broker):
        new_clock = staticmethod(lambda: VirtualClock(wall_ms=5))

    inside_rig.play(lambda: Early(MemoryDisk()), scene)


def test_by_duration_skips_nothing_while_the_clock_is_ahead() -> None:
    async def scene(broker: Broker) -> None:
        await broker.fill()
        policy = SetConfigs(Resource.GROUP, "s", {"share.auto.offset.reset": "by_duration:PT1H"})
        assert await broker.services.topics.set_configs(policy) is None
        broker.clock.set_wall(30 * DAY)
        broker.clock.advance(2_000)
        assert broker.services.clock.wall() == broker.wall + 30 * DAY
        assert await starts_by_duration(broker.services, "s", ["jobs"]) == {"jobs": (0,)}

    play(scene)


def test_a_damaged_checkpoint_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    play(lambda broker: broker.fill(), disk)
    for damaged in (b"", b"trusted=1\n", disk.read(FILE).replace(b"trusted=1", b"trusted=2")):
        disk.write(FILE, damaged)

        async def scene(broker: Broker) -> None:
            assert broker.services.clock.disagreement_ms == 0

        play(scene, disk)
    assert caplog.text.count("clock-checkpoint: ignored:") == 3
