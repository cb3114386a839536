"""What waits for the disk on the event loop: little of it in one turn."""

import asyncio
from collections import Counter
from typing import Any

from tests.broker.inside_rig import Inside, play

from headrace.broker.handlers import delete_records
from headrace.broker.request import Request
from headrace.core.catalog import CreateTopic
from headrace.log.manifest import START_OFFSETS
from headrace.wire import codec
from headrace.wire.batches import Record

PARTITIONS = 60
DELETE_RECORDS, VERSION = 21, 2


class Turns:
    """Counts the turns of the event loop from `begin` on."""

    def __init__(self) -> None:
        self.number = 0

    def begin(self) -> None:
        self.number += 1
        self._next = asyncio.get_running_loop().call_soon(self.begin)

    def end(self) -> None:
        self._next.cancel()


async def created(broker: Inside, partitions: int) -> None:
    """Topic `orders` with some records in each partition."""
    topics = broker.services.topics
    await topics.create(CreateTopic("orders", topics.new_id(), partitions, {}))
    for index in range(partitions):
        partition = broker.services.partition("orders", index)
        assert partition is not None
        partition.append_records([Record(0, 1, None, b"a"), Record(0, 1, None, b"b")])


def deletion(partitions: int) -> Request:
    asked = [{"partition_index": index, "offset": 1} for index in range(partitions)]
    fields = {"topics": [{"name": "orders", "partitions": asked}], "timeout": 1000}
    body = memoryview(codec.encode_request(DELETE_RECORDS, VERSION, fields))
    return Request(DELETE_RECORDS, VERSION, 1, None, "::1", 1, body, 0, None, 10_000)


def test_each_partition_of_delete_records_has_a_turn_of_its_own(monkeypatch: Any) -> None:
    turns, writes = Turns(), Counter[int]()

    async def scene(broker: Inside) -> None:
        await created(broker, PARTITIONS)
        write = broker.disk.write

        def counted(path: str, data: bytes, *, durable: bool = True) -> None:
            writes[turns.number] += path == START_OFFSETS
            write(path, data, durable=durable)

        monkeypatch.setattr(broker.disk, "write", counted)
        turns.begin()
        answer: Any = await delete_records.handle(deletion(PARTITIONS), broker.services)
        turns.end()
        (topic,) = answer["topics"]
        assert [one["low_watermark"] for one in topic["partitions"]] == [1] * PARTITIONS

    play(Inside, scene)
    assert sum(writes.values()) == PARTITIONS
    assert max(writes.values()) == 1
