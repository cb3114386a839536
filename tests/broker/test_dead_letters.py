"""Dead letters across crashes: each rejected record has one copy, wherever the process died."""

import asyncio
import logging
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from crc32c import crc32c

from headrace.broker import dead_letter_copies, dead_letters
from headrace.broker.config import Config
from headrace.broker.runtime import StorageFault
from headrace.broker.services import Services, open_services
from headrace.core.catalog import CreateTopic, DeleteTopic, Resource, SetConfigs
from headrace.core.runs import State
from headrace.core.shard_words import On
from headrace.core.share_group import Heartbeat
from headrace.core.share_words import Acknowledge, Acknowledged, Acquire, ShareKey, Verdict
from headrace.core.spans import Spans
from headrace.core.types import MemberId, Span
from headrace.log.os_disk import OsFile
from headrace.wire import batches

GROUP, MEMBER = "work", MemberId("member")
REJECTED = [2, 3, 5, 8]


async def process(folder: Path, durability: str = "os") -> Services:
    """A broker's inside, as after a start; whoever had the folder before has died."""
    config = Config.parse({"headrace.durability": durability})
    services = open_services(config, folder, new_id=uuid4)
    await services.start()
    return services


async def prepared(
    folder: Path, dead_letter_topic: str = "dlq.jobs", durability: str = "os"
) -> Services:
    """A broker with ten records acquired by one member."""
    services = await process(folder, durability)
    await services.topics.create(CreateTopic("jobs", uuid4(), 1, {}))
    jobs = services.partition("jobs", 0)
    assert jobs is not None
    jobs.append_records([batches.Record(0, 5, b"k", b"%d" % n) for n in range(10)])
    await acquire(services, GROUP, dead_letter_topic)
    return services


async def acquire(services: Services, group: str, dead_letter_topic: str = "dlq.jobs") -> None:
    """Let a member of a new group acquire all records."""
    settings = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": dead_letter_topic,
    }
    await services.topics.set_configs(SetConfigs(Resource.GROUP, group, settings))
    await services.shares.ask(group, Heartbeat(group, MEMBER, 0, frozenset({"jobs"})))
    command = Acquire(MEMBER, [Span(0, 9)], 10, 10, exact=True)
    await services.shares.ask(group, On(key(services, group), command))


def key(services: Services, group: str = GROUP) -> ShareKey:
    return ShareKey(group, services.catalog.topics["jobs"].id, 0)


async def reject(services: Services, offsets: Iterable[int] = REJECTED, group: str = GROUP) -> None:
    said = [Acknowledged(Span(n, n), [Verdict.REJECT], f"reason {n}") for n in offsets]
    await services.shares.ask(group, On(key(services, group), Acknowledge(MEMBER, said)))


async def settled(services: Services, group: str = GROUP) -> None:
    """Until no dead letter waits."""
    async with asyncio.timeout(60):
        while services.shares.machine(group).archiving:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.01, waiting.set_result, None)
            await waiting


def letters(services: Services, topic: str = "dlq.jobs") -> list[tuple[bytes | None, str, str]]:
    """Value, offset and reason of every dead letter."""
    partition = services.partition(topic, 0)
    found = []
    if partition is not None:
        data = partition.log.read(0, 1 << 20).data
        for record in batches.records(data):
            told = {name: (value or b"").decode() for name, value in record.headers}
            found.append((record.value, told["__dlq.errors.offset"], told["__dlq.errors.message"]))
    return found


EXPECTED = [(b"%d" % n, str(n), f"reason {n}") for n in REJECTED]


def test_copies_carry_the_record_and_its_reason(tmp_path: Path) -> None:
    async def work() -> None:
        services = await prepared(tmp_path)
        await reject(services)
        await settled(services)
        assert letters(services) == EXPECTED
        await services.close()

    asyncio.run(work())


@pytest.mark.keeps_files
@pytest.mark.parametrize("dies_at", ["_append", "_done"])
def test_process_dies_around_the_copy(tmp_path: Path, dies_at: str) -> None:
    """Before the copy is written, and after it but before the journal knows."""

    async def work() -> None:
        services = await prepared(tmp_path)
        died = asyncio.Event()

        async def die(*_: Any) -> None:
            died.set()
            await asyncio.Future()

        setattr(services.dead_letters, dies_at, die)
        await reject(services)
        await asyncio.wait_for(died.wait(), 60)
        assert letters(services) == (EXPECTED if dies_at == "_done" else [])

        again = await process(tmp_path)
        await settled(again)
        assert letters(again) == EXPECTED
        assert again.shares.machine(GROUP).partitions[key(again)].start == 0
        await again.close()

    asyncio.run(work())


@pytest.mark.keeps_files
def test_a_failed_look_for_copies_lets_no_group_copy_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of two groups are there of which the journal does not know, and one read fails."""

    async def work() -> None:
        services = await prepared(tmp_path)
        await acquire(services, "other")
        both, real_origins = asyncio.Event(), dead_letter_copies.origins
        steps = iter([OSError(28, "no space left")])

        async def die(*_: Any) -> None:
            for failure in steps:
                raise failure
            both.set()
            await asyncio.Future()

        monkeypatch.setattr(services.dead_letters, "_done", die)
        await reject(services)
        async with asyncio.timeout(60):
            while len(letters(services)) < len(EXPECTED):  # noqa: ASYNC110  # it sets no event
                await asyncio.sleep(0)
        await reject(services, group="other")
        await asyncio.wait_for(both.wait(), 60)
        assert letters(services) == EXPECTED * 2

        failures = iter([OSError(5, "input/output error")])

        async def origins(*arguments: Any) -> Any:
            for failure in failures:
                raise failure
            return await real_origins(*arguments)

        monkeypatch.setattr(dead_letters, "origins", origins)
        again = await process(tmp_path)
        for group in (GROUP, "other"):
            await settled(again, group)
        assert next(failures, None) is None
        assert letters(again) == EXPECTED * 2
        await again.close()

    asyncio.run(work())


def test_failed_write_is_repeated_and_copies_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        services = await prepared(tmp_path)
        real, failures = services.dead_letters._done, iter([OSError(28, "no space left")])

        async def failing(*arguments: Any) -> None:
            for failure in failures:
                raise failure
            await real(*arguments)

        monkeypatch.setattr(services.dead_letters, "_done", failing)
        await reject(services)
        await settled(services)
        assert letters(services) == EXPECTED
        await services.close()

    asyncio.run(work())
    assert "no space left" in caplog.text


def test_copies_that_a_failed_sync_cuts_off_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the log is repaired the copies are still in the file, but they are not durable."""

    async def work() -> None:
        services = await prepared(tmp_path, durability="fsync")
        configs = {"errors.deadletterqueue.group.enable": "true", "retention.ms": "-1"}
        await services.topics.create(CreateTopic("dlq.jobs", uuid4(), 1, configs))
        target = services.partition("dlq.jobs", 0)
        assert target is not None
        file, looks = target.log._segments.active.file, list[int]()
        real_origins = dead_letter_copies.origins
        monkeypatch.setattr(dead_letters, "_RETRY_SECONDS_MIN", 0.01)

        def failing(real: Any) -> Any:
            def change(changed: OsFile, *arguments: int) -> None:
                if changed is file and not looks:
                    raise OSError(5, "input/output error")
                real(changed, *arguments)

            return change

        async def origins(*arguments: Any) -> Any:
            looks.append(target.log.end_offset - target.log.durable_end)
            return await real_origins(*arguments)

        monkeypatch.setattr(OsFile, "sync", failing(OsFile.sync))
        monkeypatch.setattr(OsFile, "truncate", failing(OsFile.truncate))
        monkeypatch.setattr(dead_letters, "origins", origins)
        await reject(services)
        await settled(services)
        async with asyncio.timeout(60):
            while target.is_failing:  # noqa: ASYNC110  # it sets no event
                await asyncio.sleep(0)
        assert looks[0] == len(EXPECTED), "the copies are still in the file"
        assert letters(services) == EXPECTED
        await services.close()

    asyncio.run(work())


def test_spso_waits_for_a_topic_that_cannot_be_written_and_nobody_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        services = await prepared(tmp_path)
        real, failed, mended = services.dead_letters._append, asyncio.Event(), asyncio.Event()

        async def broken(*arguments: Any) -> None:
            if not mended.is_set():
                failed.set()
                raise OSError(5, "input/output error")
            await real(*arguments)

        monkeypatch.setattr(services.dead_letters, "_append", broken)
        await reject(services, [0])
        await asyncio.wait_for(failed.wait(), 60)
        jobs, queue = services.partition("jobs", 0), key(services)
        assert jobs is not None
        accepted = [Acknowledged(Span(1, 9), [Verdict.ACCEPT])]
        await services.shares.ask(GROUP, On(queue, Acknowledge(MEMBER, accepted)))
        jobs.append_records([batches.Record(0, 5, b"k", b"%d" % n) for n in range(10, 20)])
        taken = await services.shares.ask(
            GROUP, On(queue, Acquire(MEMBER, [Span(10, 19)], 10, 10, exact=True))
        )
        assert [event.spans for event in taken] == [Spans.of((10, 18))]  # one of the window waits
        partition = services.shares.machine(GROUP).partitions[queue]
        assert (partition.start, letters(services)) == (0, [])
        mended.set()
        await settled(services)
        assert letters(services) == [(b"0", "0", "reason 0")]
        assert partition.start == 10
        await services.close()

    asyncio.run(work())


def test_topic_of_origin_gets_no_copies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Copies there would be delivered, rejected and copied again, for ever."""

    async def work() -> None:
        services = await prepared(tmp_path, dead_letter_topic="jobs")
        await reject(services)
        await settled(services)
        jobs = services.partition("jobs", 0)
        assert jobs is not None
        assert jobs.log.end_offset == 10
        await services.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(work())
    assert "is the very topic that the records come from" in caplog.text


def test_batch_that_nobody_can_decode_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        services = await prepared(tmp_path)
        jobs = services.partition("jobs", 0)
        assert jobs is not None
        good = batches.build([batches.Record(0, 5, None, b"x" * 40)])
        header = batches.headers(good)[0]
        garbage = bytearray(good)
        garbage[61:] = b"\xff" * (len(garbage) - 61)
        garbage[17:21] = _crc(garbage)
        jobs.append(garbage, [header])
        acquire = Acquire(MEMBER, [Span(10, 10)], 10, 100, exact=True)
        await services.shares.ask(GROUP, On(key(services), acquire))
        await reject(services, [9, 10])
        await settled(services)
        assert [offset for _, offset, _ in letters(services)] == ["9"]
        await services.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(work())
    assert "the record 10 of jobs-0 cannot be decoded" in caplog.text


def _crc(batch: bytearray) -> bytes:
    return crc32c(bytes(batch[21:])).to_bytes(4, "big")


def test_journal_that_failed_amid_a_copy_is_not_believed(tmp_path: Path) -> None:
    """The rejection is rebuilt from the journal, and its one copy is found again."""

    async def work() -> None:
        services = await prepared(tmp_path)
        shard = services.shares.shard(GROUP)
        real, left = shard._append, iter([1])

        def failing(batch: Any) -> bool:
            # the second write is the one that says ARCHIVED
            if services.partition("dlq.jobs", 0) is not None and next(left, None):
                raise OSError(28, "no space left")
            return real(batch)

        shard._append = failing  # type: ignore[method-assign]  # a disk that fails once, late
        await reject(services)
        await settled(services)
        assert letters(services) == EXPECTED
        partition = services.shares.machine(GROUP).partitions[key(services)]
        archived = [run for run in partition.runs if run.state is State.ARCHIVED]
        assert sum(len(run.span) for run in archived) == len(REJECTED)
        await services.close()

    asyncio.run(work())


def test_what_a_rebuilt_shard_finds_waiting_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody saw it become so: it was given up with a fault, and is in the journal after all."""

    async def work() -> None:
        services = await prepared(tmp_path)
        shard = services.shares.shard(GROUP)
        with monkeypatch.context() as patch:
            patch.setattr(services.dead_letters, "_wait", lambda _: None)
            await reject(services)
        assert letters(services) == []
        with monkeypatch.context() as patch:
            patch.setattr(shard, "_append", _no_space)
            accept = Acknowledge(MEMBER, [Acknowledged(Span(0, 0), [Verdict.ACCEPT])])
            with pytest.raises(StorageFault):
                await services.shares.ask(GROUP, On(key(services), accept))
        await settled(services)
        assert letters(services) == EXPECTED
        await services.close()

    asyncio.run(work())


def _no_space(batch: Any) -> None:
    raise OSError(28, "no space left")


@pytest.mark.keeps_files
def test_topic_deleted_by_a_process_that_died_is_forgotten(tmp_path: Path) -> None:
    async def work() -> None:
        services = await prepared(tmp_path)
        topic = services.catalog.topics["jobs"]
        services.topics.listeners.clear()  # dies before the share groups hear of it
        await services.topics.delete(DeleteTopic(topic.id))
        again = await process(tmp_path)
        await again.shares.shard(GROUP).durable()
        assert not again.shares.machine(GROUP).partitions
        await again.close()

    asyncio.run(work())


def test_batches_are_decoded_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of many small records, compressed, takes a second: nobody else may wait for that."""
    decode, where = batches.records, list[bool]()

    def records(data: Any) -> Any:
        where.append(threading.current_thread() is threading.main_thread())
        return decode(data)

    async def work() -> None:
        services = await prepared(tmp_path)
        real, failures = services.dead_letters._done, iter([OSError(28, "no space left")])

        async def failing(*arguments: Any) -> None:
            for failure in failures:
                raise failure  # so that what is copied already is looked for, too
            await real(*arguments)

        monkeypatch.setattr(services.dead_letters, "_done", failing)
        monkeypatch.setattr(batches, "records", records)
        await reject(services)
        await settled(services)
        await services.close()

    asyncio.run(work())
    assert len(where) == 3, "the records twice, and their copies"
    assert not any(where)


@pytest.mark.keeps_files
def test_what_was_removed_just_before_the_process_died_is_passed(tmp_path: Path) -> None:
    async def work() -> None:
        services = await prepared(tmp_path)
        jobs = services.partition("jobs", 0)
        assert jobs is not None
        jobs.on_start_moved.clear()  # dies before the share groups hear of it
        await services.topics.partitions.delete_records({jobs: 4})
        again = await process(tmp_path)
        await again.shares.shard(GROUP).durable()
        assert again.shares.machine(GROUP).partitions[key(again)].start == 4
        await again.close()

    asyncio.run(work())
