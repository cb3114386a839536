"""Administration while the disk is full: an error that names the cause, and no lost connection."""

from typing import Any
from uuid import uuid4

import pytest

from headrace.broker.handlers import alter_configs, create_partitions, metadata, topics
from headrace.broker.request import Raw, Request
from headrace.core.catalog import CreateTopic
from headrace.log.memory_disk import MemoryDisk
from headrace.wire import codec

from .inside_rig import Inside, play

STORAGE_ERROR = 56
NAMED = {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": [],
         "configs": []}  # fmt: skip
CREATE: tuple[Any, ...] = (topics, 19, 7, {"topics": [NAMED], "timeout": 0, "validate_only": False})
DELETE: tuple[Any, ...] = (
    topics, 20, 6, {"topics": [{"name": "orders", "topic_id": None}], "timeout": 0}
)  # fmt: skip
GROW: tuple[Any, ...] = (
    create_partitions, 37, 3,
    {"topics": [{"name": "orders", "count": 2, "assignments": None}], "timeout": 0,
     "validate_only": False},
)  # fmt: skip
CONFIGURE: tuple[Any, ...] = (
    alter_configs, 44, 1,
    {"resources": [{"resource_type": 2, "resource_name": "orders", "configs": [
        {"name": "retention.ms", "config_operation": 0, "value": "5"}]}], "validate_only": False},
)  # fmt: skip
METADATA: tuple[Any, ...] = (
    metadata, 3, 12,
    {"topics": [{"topic_id": None, "name": "new"}], "allow_auto_topic_creation": True,
     "include_topic_authorized_operations": False},
)  # fmt: skip


@pytest.mark.parametrize("asked", [CREATE, DELETE, GROW, CONFIGURE, METADATA])
def test_an_administrator_reads_why(asked: tuple[Any, int, int, dict[str, Any]]) -> None:
    api, key, version, fields = asked
    disk = MemoryDisk()

    async def ask(broker: Inside) -> Any:
        body = codec.encode_request(key, version, fields)
        request = Request(key, version, 1, "c", "::1", 1, memoryview(body))
        answer = await api.handle(request, broker.services)
        assert not isinstance(answer, Raw)
        ((part,),) = (answer[name] for name in ("topics", "responses", "results") if name in answer)
        return part

    async def scene(broker: Inside) -> None:
        await broker.services.topics.create(CreateTopic("orders", uuid4(), 1, {}))
        disk.fail_after(0)
        failed = await ask(broker)
        assert failed["error_code"] == STORAGE_ERROR
        assert api is metadata or "No space left on device" in failed["error_message"]
        assert api is metadata or "free space" in failed["error_message"]
        disk.fail_after(None)
        broker.clock.advance(10_000)
        done = await ask(broker)
        assert done["error_code"] in {0, 37}, "a partition may have been added before the failure"

    play(lambda: Inside(disk), scene)


def test_a_topic_that_could_be_neither_opened_nor_deleted_is_opened_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()

    async def scene(broker: Inside) -> None:
        services = broker.services
        opening = services.partitions.open_topic

        async def fail(topic: Any, catalog: Any) -> None:
            disk.fail_after(0)
            await opening(topic, catalog)
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(services.partitions, "open_topic", fail)
        with pytest.raises(OSError, match="No space"):
            await services.topics.create(CreateTopic("new", uuid4(), 1, {}))
        disk.fail_after(None)
        broker.clock.advance(10_000)
        monkeypatch.setattr(services.partitions, "open_topic", opening)
        (topic,) = (one for one in services.catalog.topics.values() if one.name == "new")
        await services.topics._open_missing(topic.id)
        assert services.partition("new", 0) is not None

    play(lambda: Inside(disk), scene)
