"""Dead letters where something stands against them: each record is copied, or listed with why."""

import asyncio
import logging
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headrace.broker import dead_letters
from headrace.broker.config import Config
from headrace.broker.dead_letter_copies import origins
from headrace.broker.services import Services, open_services
from headrace.core.catalog import CreateTopic, DeleteTopic, Resource, SetConfigs
from headrace.core.shard_words import On
from headrace.core.share_group import Heartbeat
from headrace.core.share_words import Acknowledge, Acknowledged, Acquire, ShareKey, Verdict
from headrace.core.types import MemberId, Span
from headrace.log.segments import SegmentedLog
from headrace.wire import batches

from .partition_rig import until
from .test_dead_letters import settled

GROUP, MEMBER = "work", MemberId("member")
NAME = "errors.deadletterqueue.topic.name"


class Queue:
    """A broker's inside with a group that has acquired what is produced to jobs."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.config = Config.parse({name.replace("_", "."): v for name, v in settings.items()})
        self.services: Services = open_services(self.config, folder, new_id=uuid4)
        self.topics: dict[str, list[batches.Record]] = {}
        self.batch_bytes: dict[str, list[int]] = {}
        self.listed: list[tuple[int, int, str]] = []

    async def begin(self, letters: str, **configs: str) -> None:
        await self.services.start()
        await self.create("jobs", 1, **configs)
        await self.group(**{NAME: letters, "share.auto.offset.reset": "earliest"})

    async def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Its records are of 1970, and are kept all the same."""
        kept = {"retention_ms": "-1"} | configs
        dotted = {key.replace("_", "."): value for key, value in kept.items()}
        made = await self.services.topics.create(CreateTopic(name, uuid4(), partitions, dotted))
        assert made, made

    async def group(self, **values: str | None) -> None:
        refused = await self.services.topics.set_configs(SetConfigs(Resource.GROUP, GROUP, values))
        assert refused is None

    @property
    def key(self) -> ShareKey:
        return ShareKey(GROUP, self.services.catalog.topics["jobs"].id, 0)

    async def produce(self, *records: batches.Record) -> None:
        jobs = self.services.partition("jobs", 0)
        assert jobs is not None
        for record in records:
            jobs.append_records([record])
        beat = Heartbeat(GROUP, MEMBER, 0, frozenset({"jobs"}))
        await self.services.shares.ask(GROUP, beat)
        span = Span(0, jobs.log.end_offset - 1)
        await self.services.shares.ask(GROUP, On(self.key, Acquire(MEMBER, [span], 999, 999)))

    async def reject(self, first: int, last: int) -> None:
        said = [Acknowledged(Span(first, last), [Verdict.REJECT], "bad")]
        answer = await self.services.shares.ask(GROUP, On(self.key, Acknowledge(MEMBER, said)))
        assert isinstance(answer, list), answer

    async def copied(self, topic: str) -> None:
        """Reject a record of another topic, and wait until that has its dead letter."""
        partition, ask = self.services.partition(topic, 0), self.services.shares.ask
        assert partition is not None
        partition.append_records([record(0)])
        await ask(GROUP, Heartbeat(GROUP, MEMBER, 0, frozenset({"jobs", topic})))
        key = ShareKey(GROUP, partition.topic.id, 0)
        await ask(GROUP, On(key, Acquire(MEMBER, [Span(0, 0)], 9, 99)))
        said = [Acknowledged(Span(0, 0), [Verdict.REJECT])]
        await ask(GROUP, On(key, Acknowledge(MEMBER, said)))
        machine, written = self.services.shares.machine(GROUP), asyncio.Event()

        def look(_: Any) -> None:
            if key not in machine.archiving:
                written.set()

        self.services.shares.shard(GROUP).listeners.append(look)
        look(None)
        await written.wait()

    def keep(self) -> None:
        """What the assertions look at, before the broker is closed."""
        for partition in self.services.partitions:
            if not partition.topic.internal:
                piece = partition.log.read(0, 1 << 24)
                self.topics[partition.topic.name] = list(batches.records(piece.data))
                self.batch_bytes[partition.topic.name] = [one.size for one in piece.headers]
        found = self.services.shares.machine(GROUP).archive.lists.get(self.key)
        runs = [] if found is None else found.runs
        self.listed = [(one.span.first, one.span.last, one.reason) for one in runs]

    def offsets(self, topic: str) -> list[int]:
        return [int(told(letter)["offset"]) for letter in self.topics[topic]]


def told(letter: batches.Record) -> dict[str, str]:
    return {
        name.removeprefix("__dlq.errors."): (value or b"").decode()
        for name, value in letter.headers
        if name.startswith("__dlq.errors.")
    }


def record(n: int, value: bytes = b"v", key: bytes | None = b"k") -> batches.Record:
    return batches.Record(0, 1000 + n, key, value, (("own", b"%d" % n), ("empty", None)))


def run(queue: Queue, work: Any) -> None:
    async def whole() -> None:
        try:
            await work()
            queue.keep()
        finally:
            await queue.services.close()

    asyncio.run(whole())


def test_a_copy_is_the_record_with_what_became_of_it(tmp_path: Path) -> None:
    queue = Queue(tmp_path)

    async def work() -> None:
        await queue.begin("dlq.jobs")
        await queue.produce(record(0), record(1, key=None))
        await queue.reject(0, 1)
        await settled(queue.services)

    run(queue, work)
    first, second = queue.topics["dlq.jobs"]
    assert (first.key, first.value, first.timestamp) == (b"k", b"v", 1000)
    assert (second.key, second.timestamp) == (None, 1001)
    assert first.headers[:2] == (("own", b"0"), ("empty", None))
    assert told(second) == {
        "topic": "jobs", "partition": "0", "offset": "1", "group": GROUP, "delivery.count": "1",
        "message": "bad", "member": "member",
    }  # fmt: skip
    assert queue.listed == []


def test_copies_of_times_too_far_apart_for_one_batch_are_written(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    far = [-(1 << 62), 1 << 62, (1 << 62) + 1, -(1 << 62) + 1]

    async def work() -> None:
        await queue.begin("dlq.jobs")
        await queue.produce(*(batches.Record(0, time, b"k", b"v") for time in far))
        await queue.reject(0, 3)
        await settled(queue.services)

    run(queue, work)
    assert [letter.timestamp for letter in queue.topics["dlq.jobs"]] == far
    assert len(queue.batch_bytes["dlq.jobs"]) == 2
    assert queue.listed == []


def test_a_bug_delays_the_copies_of_one_share_partition_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry of the other one is far away, and the copies that there are are not read again."""
    queue = Queue(tmp_path)
    letter = dead_letters._letter
    failed, looks = asyncio.Event(), 0

    def failing(found: Any, run: Any, key: ShareKey, *around: Any, **payload: Any) -> Any:
        if key == queue.key:
            failed.set()
            raise ValueError("planted")
        return letter(found, run, key, *around, **payload)

    async def counted(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return await origins(*arguments)

    monkeypatch.setattr(dead_letters, "_letter", failing)
    monkeypatch.setattr("headrace.broker.dead_letters.origins", counted)
    monkeypatch.setattr(dead_letters, "_RETRY_SECONDS_MIN", 1e9)

    async def work() -> None:
        await queue.begin("dlq.jobs")
        await queue.create("zebras")
        await queue.produce(record(0))
        await queue.reject(0, 0)
        await asyncio.wait_for(failed.wait(), 60)
        await asyncio.wait_for(queue.copied("zebras"), 10)
        assert queue.services.shares.machine(GROUP).archiving == {queue.key}

    run(queue, work)
    assert [told(letter)["topic"] for letter in queue.topics["dlq.jobs"]] == ["zebras"]
    assert looks == 0


def test_a_bug_is_logged_once_and_the_copies_are_written_by_a_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue(tmp_path)
    written = queue.services.dead_letters
    letter, failures = dead_letters._letter, 3

    def failing(*arguments: Any, **payload: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise ValueError("planted")
        return letter(*arguments, **payload)

    monkeypatch.setattr(dead_letters, "_letter", failing)
    monkeypatch.setattr(dead_letters, "_RETRY_SECONDS_MIN", 0.01)

    async def work() -> None:
        await queue.begin("dlq.jobs")
        await queue.produce(record(0))
        await queue.reject(0, 0)
        await settled(queue.services)
        await asyncio.wait_for(until(lambda: not written._retries and not written._in_doubt), 60)

    run(queue, work)
    assert queue.offsets("dlq.jobs") == [0]
    assert failures == 0
    traces = [line for line in caplog.records if line.exc_info]
    assert [line.levelname for line in traces] == ["CRITICAL"]


def test_tracebacks_of_bugs_are_bounded_and_leave_room_for_complaints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue(tmp_path)
    monkeypatch.setattr(dead_letters, "_COMPLAINTS_MAX", 2)

    async def work() -> None:
        await queue.begin("dlq.jobs")
        letters = queue.services.dead_letters
        for number in range(3):
            letters._report_bug(ShareKey(GROUP, queue.key.topic_id, number), ValueError("planted"))
        letters._complain(GROUP, "there is no room")

    run(queue, work)
    assert [line.levelname for line in caplog.records if line.exc_info] == ["CRITICAL"] * 2
    assert "there is no room" in caplog.text


def test_the_pauses_between_retries_grow_to_their_limit() -> None:
    retry, now, pauses = None, 100.3, list[float]()
    for _ in range(8):
        retry = dead_letters._retry_after(retry, now)
        assert now < retry.at <= now + retry.pause
        now = retry.at
        pauses.append(retry.pause)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_the_topic_that_is_made_keeps_what_the_source_could_hold(tmp_path: Path) -> None:
    queue = Queue(tmp_path, log_cleanup_policy="compact")

    async def work() -> None:
        await queue.begin("dlq.jobs", max_message_bytes="3000000")
        await queue.produce(record(0, b"x" * 2_900_000))
        await queue.reject(0, 0)
        await settled(queue.services)

    run(queue, work)
    assert [len(letter.value or b"") for letter in queue.topics["dlq.jobs"]] == [2_900_000]
    assert dict(queue.services.catalog.configs_of(Resource.TOPIC, "dlq.jobs")) == {
        "errors.deadletterqueue.group.enable": "true",
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": str(3_000_000 + 65_536),
    }


@pytest.mark.parametrize(
    ("settings", "name", "remedy"),
    [
        ({}, "letters", "does not begin with dlq. (errors.deadletterqueue.topic.name.prefix)"),
        (
            {"errors_deadletterqueue_auto_create_topics_enable": "false"}, "dlq.jobs",
            "create it, or set errors.deadletterqueue.auto.create.topics.enable=true",
        ),
    ],
)  # fmt: skip
def test_a_topic_that_is_not_to_be_made_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: Any, name: str, remedy: str
) -> None:
    queue = Queue(tmp_path, **settings)

    async def work() -> None:
        await queue.begin(name)
        await queue.produce(record(0), record(1))
        for at in (0, 1):
            await queue.reject(at, at)
            await settled(queue.services)
        assert name not in queue.services.catalog.topics
        await queue.create(name)
        await queue.produce(record(2))
        await queue.reject(2, 2)
        await settled(queue.services)

    run(queue, work)
    told_lines = [line.message for line in caplog.records if line.levelno == logging.ERROR]
    assert len(told_lines) == 1
    assert remedy in told_lines[0]
    assert [(first, last) for first, last, _ in queue.listed] == [(0, 1)]
    assert f"bad; no dead letter: {name} does not exist" in queue.listed[0][2]
    assert queue.offsets(name) == [2]


def test_a_compacted_topic_takes_none(tmp_path: Path) -> None:
    """It would lose all but the last letter of a key, and have none without a key."""
    queue = Queue(tmp_path)

    async def work() -> None:
        await queue.begin("dlq.jobs")
        await queue.create("dlq.jobs", cleanup_policy="compact,delete")
        await queue.produce(record(0, key=None))
        await queue.reject(0, 0)
        await settled(queue.services)

    run(queue, work)
    assert queue.topics["dlq.jobs"] == []
    assert "is compacted" in queue.listed[0][2]


def test_a_topic_that_does_not_allow_dead_letters_takes_none(tmp_path: Path) -> None:
    queue = Queue(tmp_path)

    async def work() -> None:
        await queue.begin("letters")
        await queue.create("letters", errors_deadletterqueue_group_enable="false")
        await queue.produce(record(0))
        await queue.reject(0, 0)
        await settled(queue.services)

    run(queue, work)
    assert queue.topics["letters"] == []
    assert "set its errors.deadletterqueue.group.enable to true" in queue.listed[0][2]


def test_a_record_too_large_for_the_topic_is_listed_and_its_neighbours_are_copied(
    tmp_path: Path,
) -> None:
    queue = Queue(tmp_path)

    async def work() -> None:
        await queue.begin("dlq.jobs")
        await queue.create("dlq.jobs", max_message_bytes="1000")
        sizes = [10, 2000, 300, 300, 300, 5000]
        await queue.produce(*(record(n, b"x" * size) for n, size in enumerate(sizes)))
        await queue.reject(0, 5)
        await settled(queue.services)

    run(queue, work)
    assert queue.offsets("dlq.jobs") == [0, 2, 3, 4]
    too_large = "bad; no dead letter: the copy is larger than max.message.bytes=1000 of dlq.jobs"
    assert queue.listed == [(1, 1, too_large), (5, 5, too_large)]
    assert max(queue.batch_bytes["dlq.jobs"]) <= 1000


def test_without_payload_a_copy_is_small(tmp_path: Path) -> None:
    queue = Queue(tmp_path)

    async def work() -> None:
        await queue.begin("dlq.jobs")
        await queue.group(**{"errors.deadletterqueue.copy.record.enable": "false"})
        await queue.create("dlq.jobs", max_message_bytes="1000")
        await queue.produce(record(0, b"x" * 2000))
        await queue.reject(0, 0)
        await settled(queue.services)

    run(queue, work)
    (letter,) = queue.topics["dlq.jobs"]
    assert (letter.key, letter.value, told(letter)["offset"]) == (None, None, "0")
    assert "own" not in dict(letter.headers)


def test_a_dead_letter_does_not_come_back_to_its_topic(tmp_path: Path) -> None:
    """Over however many groups: the headers tell where it was."""
    queue = Queue(tmp_path)
    been = batches.Record(0, 1, b"k", b"v", (("__dlq.errors.topic", b"dlq.jobs"),))

    async def work() -> None:
        await queue.begin("dlq.jobs")
        await queue.produce(been, record(1))
        await queue.reject(0, 1)
        await settled(queue.services)

    run(queue, work)
    assert queue.offsets("dlq.jobs") == [1]
    again = "bad; no dead letter: the record was a dead letter in dlq.jobs before"
    assert queue.listed == [(0, 0, again)]


def test_a_topic_that_is_deleted_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(tmp_path)

    async def work() -> None:
        await queue.begin("dlq.jobs")
        await queue.create("dlq.jobs")
        letters, deleted = queue.services.dead_letters, iter([True])
        real = letters._append

        async def append(target: Any, copies: Any) -> None:
            if next(deleted, False):
                await queue.services.topics.delete(DeleteTopic(target.topic.id))
            await real(target, copies)

        monkeypatch.setattr(letters, "_append", append)
        await queue.produce(record(0), record(1))
        await queue.reject(0, 1)
        await settled(queue.services)

    run(queue, work)
    assert queue.offsets("dlq.jobs") == [0, 1]
    assert queue.listed == []


def test_letters_wait_while_the_disk_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(tmp_path)

    async def work() -> None:
        await queue.begin("dlq.jobs")
        await queue.create("dlq.jobs")
        target = queue.services.partition("dlq.jobs", 0)
        assert target is not None
        real, full = SegmentedLog.append, iter([True])

        def append(log: SegmentedLog, *arguments: Any, **options: Any) -> int:
            if log is target.log and next(full, False):
                raise OSError(28, "No space left on device")
            return real(log, *arguments, **options)

        monkeypatch.setattr(SegmentedLog, "append", append)
        await queue.produce(record(0))
        await queue.reject(0, 0)
        await settled(queue.services)

    run(queue, work)
    assert queue.offsets("dlq.jobs") == [0]
    assert queue.listed == []
    assert "No space left on device; trying again" in caplog.text


def test_letters_that_nobody_wants_any_more_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(tmp_path)

    async def work() -> None:
        await queue.begin("dlq.jobs")
        letters = queue.services.dead_letters
        real = letters._target

        async def target(*arguments: Any) -> Any:
            await queue.group(**{NAME: None})
            return await real(*arguments)

        monkeypatch.setattr(letters, "_target", target)
        await queue.produce(record(0))
        await queue.reject(0, 0)
        await settled(queue.services)

    run(queue, work)
    assert [reason for _, _, reason in queue.listed] == [
        "bad; no dead letter: the group has no dead-letter topic any more"
    ]


def test_what_cannot_be_written_does_not_hold_up_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(tmp_path)

    async def work() -> None:
        await queue.begin("dlq.jobs")
        await queue.create("zebras")
        letters = queue.services.dead_letters
        real = letters._write_all

        async def writing(key: ShareKey) -> None:
            if key == queue.key:
                raise OSError(5, "Input/output error")
            await real(key)

        monkeypatch.setattr(letters, "_write_all", writing)
        await queue.produce(record(0))
        await queue.reject(0, 0)
        await asyncio.wait_for(queue.copied("zebras"), 60)
        machine = queue.services.shares.machine(GROUP)
        assert queue.key in machine.archiving

    run(queue, work)
    assert [told(letter)["topic"] for letter in queue.topics["dlq.jobs"]] == ["zebras"]
