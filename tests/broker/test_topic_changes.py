"""Changes of topics that are cut off in the middle, and names and numbers at their limits."""

import asyncio
import errno
import gc
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

import headrace
from headrace.broker.config import Config
from headrace.broker.services import open_services
from headrace.broker.topics import Topics
from headrace.core.catalog import CreateTopic, DeleteTopic, Resource, SetConfigs, Topic
from headrace.log.os_disk import OsDisk
from headrace.wire import batches, codec

from .inside_rig import Inside, play
from .partition_rig import until

CREATE, DELETE, PRODUCE, FETCH, LIST_OFFSETS = 19, 20, 0, 1, 2


def creation(name: str, partitions: int = 1) -> dict[str, Any]:
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": (),
        "configs": (),
    }
    return {"topics": (topic,), "timeout": 1000, "validate_only": False}


def create(wire: Any, name: str, partitions: int = 1) -> int:
    return int(wire.call(CREATE, 5, **creation(name, partitions)).topics[0].error_code)


def produce(wire: Any, name: str, data: bytes | None = None) -> tuple[int, int]:
    """Code and base offset."""
    data = data or batches.build([batches.Record(0, 5, b"k", b"v")])
    topic = {"name": name, "partition_data": ({"index": 0, "records": data},)}
    answer = wire.call(PRODUCE, 9, transactional_id=None, acks=1, timeout=1000, topic_data=(topic,))
    (response,) = answer.responses[0].partition_responses
    return int(response.error_code), int(response.base_offset)


def end_offset(wire: Any, name: str, timestamp: int = -1) -> tuple[int, int]:
    """Code and offset."""
    partition = {"partition_index": 0, "timestamp": timestamp}
    topic = {"name": name, "partitions": (partition,)}
    answer = wire.call(LIST_OFFSETS, 1, replica_id=-1, topics=(topic,))
    (found,) = answer.topics[0].partitions
    return int(found.error_code), int(found.offset)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_deletion_whose_caller_went_away_is_whole(
    tmp_path: Path, durability: str, connecting: Any
) -> None:
    """A topic of the same name gets files of its own, and keeps its records over a restart."""
    settings = {"headrace.durability": durability}
    names = [f"orders-{number}" for number in range(5)]
    with headrace.Broker(tmp_path, settings=settings) as broker, connecting(broker) as connect:
        for name in names:
            assert create(connect(), name) == 0
            assert [produce(connect(), name)[1] for _ in range(3)] == [0, 1, 2]
            leaving = connect()
            leaving.send(DELETE, 1, bytes(codec.encode_request(DELETE, 1, deletion(name))))
            leaving.close()
            until = time.monotonic() + 30
            while (code := create(connect(), name)) == 36 and time.monotonic() < until:
                pass
            assert code == 0
            assert produce(connect(), name) == (0, 0)
    with headrace.Broker(tmp_path, settings=settings) as broker, connecting(broker) as connect:
        assert [end_offset(connect(), name) for name in names] == [(0, 1)] * len(names)


def deletion(name: str) -> dict[str, Any]:
    return {"topic_names": (name,), "timeout": 1000}


def test_creation_whose_caller_went_away_is_whole(connect: Callable[[], Any]) -> None:
    for number in range(5):
        leaving = connect()
        leaving.send(CREATE, 4, bytes(codec.encode_request(CREATE, 4, creation(f"t{number}"))))
        leaving.close()
        until = time.monotonic() + 30
        while (code := create(connect(), f"t{number}")) not in {0, 36} and time.monotonic() < until:
            pass
        assert code in {0, 36}
        assert produce(connect(), f"t{number}") == (0, 0)


def test_a_change_that_fails_when_its_caller_went_away_is_told_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(broker: Inside) -> None:
        topics = broker.services.topics
        made = await topics.create(CreateTopic("orders", uuid4(), 1, {}))
        assert isinstance(made, Topic)
        broker.disk.failing.add("remove")
        asked = asyncio.ensure_future(topics.delete(DeleteTopic(made.id)))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        other = await topics.create(CreateTopic("orders", uuid4(), 1, {}))  # waits for its turn
        assert isinstance(other, Topic)
        broker.disk.failing.clear()

    play(Inside, scene)
    gc.collect()
    (told,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert told.endswith("its client does not wait any more: [Errno 5] Input/output error")


@pytest.mark.parametrize("resource", [Resource.TOPIC, Resource.BROKER])
def test_partitions_that_are_being_opened_get_settings_that_change_meanwhile(
    resource: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change waits for its turn, so the partitions are there when it is passed on to them."""

    async def scene(broker: Inside) -> None:
        topics = broker.services.topics
        forget_starts = topics.partitions._forget_starts
        is_topic = resource is Resource.TOPIC
        changes: list[asyncio.Future[Any]] = []

        async def forget_starts_during_a_change(topic: str, partitions: Any) -> None:
            if topic == "orders" and not changes:  # the settings of the topic were read
                name = "orders" if is_topic else ""
                value = {"segment.bytes" if is_topic else "log.segment.bytes": "77777"}
                changed = topics.set_configs(SetConfigs(resource, name, value))
                changes.append(asyncio.ensure_future(changed))
                for _ in range(100):  # turns of the loop: where it need not wait, it is over
                    await asyncio.sleep(0)
            await forget_starts(topic, partitions)

        monkeypatch.setattr(topics.partitions, "_forget_starts", forget_starts_during_a_change)
        made = await topics.create(CreateTopic("orders", uuid4(), 2, {}))
        assert isinstance(made, Topic)
        assert await changes[0] is None
        partitions = [topics.partitions.get(made.id, n) for n in range(2)]
        assert [one and one.settings.segment_bytes for one in partitions] == [77777] * 2

    play(Inside, scene)


def test_longest_legal_name_can_be_deleted_and_the_broker_starts(
    tmp_path: Path, connecting: Any
) -> None:
    name = "n" * 249
    with headrace.Broker(tmp_path) as broker, connecting(broker) as connect:
        assert create(connect(), name) == 0
        assert produce(connect(), name) == (0, 0)
        answer = connect().call(DELETE, 1, **deletion(name))
        assert answer.responses[0].error_code == 0
    with headrace.Broker(tmp_path) as broker, connecting(broker) as connect:
        assert create(connect(), name) == 0
        assert end_offset(connect(), name) == (0, 0)


def test_more_partitions_than_files_are_refused_before_anything_is_made(
    connect: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    assert create(connect(), "wide", 500) == 37
    assert create(connect(), "narrow", 4) == 0


def test_journal_of_the_catalogue_is_no_topic(connect: Callable[[], Any]) -> None:
    assert create(connect(), "__cluster_metadata") == 17


def test_a_topic_whose_files_cannot_be_made_can_be_created_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        services = open_services(Config.parse({}), tmp_path, new_id=uuid4)
        await services.start()
        writing = OsDisk.write

        def full(self: OsDisk, path: str, data: bytes, *, durable: bool = True) -> None:
            if path.startswith("t-2/"):
                raise OSError(errno.ENOSPC, "No space left on device")
            writing(self, path, data, durable=durable)

        monkeypatch.setattr(OsDisk, "write", full)
        with pytest.raises(OSError, match="No space"):
            await services.topics.create(CreateTopic("t", uuid4(), 4, {}))
        monkeypatch.undo()
        assert not (tmp_path / "t-0").exists()
        assert isinstance(await services.topics.create(CreateTopic("t", uuid4(), 4, {})), Topic)
        assert all(services.partition("t", index) for index in range(4))
        await services.close()

    asyncio.run(go())


def test_a_topic_that_cannot_be_taken_back_while_syncs_fail_is_opened_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rebuilt catalogue has it: only its deletion is not in the journal."""
    openings = 0
    open_missing = Topics._open_missing

    async def counted(topics: Topics, topic_id: UUID) -> None:
        nonlocal openings
        await open_missing(topics, topic_id)
        openings += 1

    async def scene(broker: Inside) -> None:
        topics = broker.services.topics
        broker.disk.failing.add("sync")
        with pytest.raises(OSError, match="Input/output"):
            await topics.create(CreateTopic("orders", uuid4(), 1, {}))
        assert "orders" not in topics.catalog.topics
        await until(lambda: openings > 0)
        broker.disk.failing.clear()
        await until(lambda: topics.partition("orders", 0) is not None)
        partition = topics.partition("orders", 0)
        assert partition is not None
        assert partition.append_records([batches.Record(0, 0, None, b"x")]) == 0

    monkeypatch.setattr("headrace.broker.topics._OPEN_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(Topics, "_open_missing", counted)
    play(Inside, scene)


def test_what_the_journal_of_the_catalogue_lacks_is_in_no_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the state that a fault dropped is still there, nothing replaces the journal by it."""

    async def scene(broker: Inside) -> None:
        topics = broker.services.topics
        topic = await topics.create(CreateTopic("orders", uuid4(), 1, {}))
        assert isinstance(topic, Topic)
        dropped = topics.catalog
        topics.journal._drop(OSError(errno.EIO, "planted"), [])
        monkeypatch.setattr("headrace.broker.topics._DEAD_RECORDS_MIN", -1_000_000)
        monkeypatch.setattr(Topics, "_checkpoint", _unexpected)
        await topics._whole(topics._open_missing(topic.id))
        assert topics.catalog is dropped

    play(Inside, scene)


async def _unexpected(*_: object) -> None:
    raise AssertionError("a checkpoint of a state that was dropped")
