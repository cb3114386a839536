"""A share session that ends with many acknowledgements, while its member opens another one."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

import pytest

from headrace.broker.budgets import Budgets
from headrace.broker.errors import Code
from headrace.broker.handlers import share_acknowledge
from headrace.broker.handlers import share_fetch as share_fetch_handler
from headrace.broker.handlers.share_acknowledge import ParsedPart
from headrace.wire import batches
from headrace.wire.batches import Record

from .loop_rig import Client, LoopRig
from .test_loop_time import MEMBER, created, share_fetch

FETCH, ACKNOWLEDGE = 78, 79
GROUP, TOPIC = "sharers", "jobs"
RECORDS, RECORDS_MAX = 20, 10
ACCEPT, FINAL = 1, -1
RECORD_LIMIT, UNKNOWN_MODE = 1, 7  # acquire modes
WAIT_MS = 10_000


async def fill(rig: LoopRig) -> None:
    """Let a group read a topic from its first record on."""
    client = Client(rig.server)
    topics = [created(TOPIC, num_partitions=1)]
    await client.call(19, 7, topics=topics, timeout=0, validate_only=False)
    await client.call(
        44, 1, validate_only=False, resources=[
            {"resource_type": 32, "resource_name": GROUP, "configs": [
                {"name": "share.auto.offset.reset", "value": "earliest", "config_operation": 0}]}
        ],
    )  # fmt: skip
    await client.call(
        76, 1, group_id=GROUP, member_id=MEMBER, member_epoch=0, rack_id=None,
        subscribed_topic_names=[TOPIC],
    )  # fmt: skip
    data = bytes(batches.build([Record(0, 1_700_000_000_000, None, b"v")] * RECORDS))
    parts = [{"index": 0, "records": data}]
    topic = [{"name": TOPIC, "partition_data": parts}]
    await client.call(0, 8, transactional_id=None, acks=1, timeout=1, topic_data=topic)


def named(rig: LoopRig, *accepted: tuple[int, int]) -> list[Any]:
    """Return the topics of a request that accepts ranges of offsets."""
    ranges = [
        {"first_offset": first, "last_offset": last, "acknowledge_types": [ACCEPT]}
        for first, last in accepted
    ]
    part = {"partition_index": 0, "acknowledgement_batches": ranges}
    return [{"topic_id": rig.services.catalog.topics[TOPIC].id, "partitions": [part]}]


async def fetch(client: Client, topics: Sequence[Any], epoch: int, mode: int = RECORD_LIMIT) -> Any:
    fields = share_fetch([*topics]) | {
        "share_session_epoch": epoch, "max_wait": WAIT_MS if epoch >= 0 else 0,
        "max_records": RECORDS_MAX, "share_acquire_mode": mode,
    }  # fmt: skip
    return await client.call(FETCH, 2, **fields)


async def end(key: int, client: Client, topics: Sequence[Any]) -> Any:
    """Send the last request of a session by the API of this key."""
    if key == FETCH:
        return await fetch(client, topics, FINAL)
    return await client.call(
        ACKNOWLEDGE, 2, group_id=GROUP, member_id=MEMBER, share_session_epoch=FINAL,
        is_renew_ack=False, topics=topics,
    )  # fmt: skip


def ranges(answer: Any) -> list[tuple[int, int, int]]:
    """Return first offset, last offset and delivery count of what was acquired."""
    assert answer.error_code == 0, answer
    return [
        (one.first_offset, one.last_offset, one.delivery_count)
        for topic in answer.responses
        for part in topic.partitions
        for one in part.acquired_records
    ]


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopRig]:
    yield from acknowledging_in_portions(monkeypatch)


def acknowledging_in_portions(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopRig]:
    """Yield a broker that carries out acknowledgements in portions."""
    rig = LoopRig()
    try:
        rig.run(fill(rig))
        for handler in (share_acknowledge, share_fetch_handler):
            monkeypatch.setattr(handler, "ACKNOWLEDGE_PORTION", 0)
        monkeypatch.setattr(Budgets, "portions", slowly)
        yield rig
    finally:
        rig.close()


async def slowly(_: Budgets, parts: Iterable[ParsedPart], __: int) -> AsyncIterator[ParsedPart]:
    """Let others have several turns before acknowledgements are carried out."""
    for part in parts:
        for _turn in range(10 if part.has_batches else 0):
            await asyncio.sleep(0)
        yield part


@pytest.mark.parametrize("key", [FETCH, ACKNOWLEDGE])
def test_a_session_that_follows_in_the_same_turn_keeps_its_records(rig: LoopRig, key: int) -> None:
    """And is given those of the session before."""

    async def scene() -> None:
        before, after = (Client(rig.server) for _ in range(2))
        assert ranges(await fetch(before, named(rig), 0)) == [(0, 9, 1)]
        ended, opened = await asyncio.gather(
            end(key, before, named(rig, (0, 4))), fetch(after, named(rig), 0)
        )
        assert ended.error_code == 0, ended
        assert ranges(opened) == [(5, 9, 2), (10, 14, 1)]
        answer = await fetch(after, named(rig, (5, 14)), 1)
        assert ranges(answer) == [(15, 19, 1)]
        assert [part.acknowledge_error_code for part in answer.responses[0].partitions] == [0]

    rig.run(scene())


@pytest.mark.parametrize("key", [FETCH, ACKNOWLEDGE])
def test_a_session_ends_although_its_connection_is_lost(rig: LoopRig, key: int) -> None:
    async def scene() -> None:
        before, after = (Client(rig.server) for _ in range(2))
        assert ranges(await fetch(before, named(rig), 0)) == [(0, 9, 1)]
        ending = asyncio.ensure_future(end(key, before, named(rig, (0, 4))))
        while rig.services.shares.sessions.sessions:  # noqa: ASYNC110  # its end sets no event
            await asyncio.sleep(0)
        await before.hang_up()
        ending.cancel()
        assert ranges(await fetch(after, named(rig), 0)) == [(5, 9, 2), (10, 14, 1)]

    rig.run(scene())


@pytest.mark.parametrize("acked", [(), ((0, 4),)], ids=["without", "with"])
def test_a_session_that_a_refused_request_ends_keeps_no_records(
    rig: LoopRig, acked: Sequence[tuple[int, int]]
) -> None:
    async def scene() -> None:
        before, after = (Client(rig.server) for _ in range(2))
        assert ranges(await fetch(before, named(rig), 0)) == [(0, 9, 1)]
        refused = await fetch(before, named(rig, *acked), FINAL, UNKNOWN_MODE)
        assert refused.error_code == Code.INVALID_REQUEST
        assert ranges(await fetch(after, named(rig), 0)) == [(0, 9, 2)]

    rig.run(scene())


@pytest.mark.parametrize("key", [FETCH, ACKNOWLEDGE])
def test_a_stop_waits_for_the_end_of_a_session(rig: LoopRig, key: int) -> None:
    async def scene() -> None:
        client, services = Client(rig.server), rig.services
        assert ranges(await fetch(client, named(rig), 0)) == [(0, 9, 1)]
        ending = asyncio.ensure_future(end(key, client, named(rig, (0, 4))))
        while services.shares.sessions.sessions:  # noqa: ASYNC110  # its end sets no event
            await asyncio.sleep(0)
        await client.hang_up()
        ending.cancel()
        await services.shares.close()
        (share,) = services.shares.machine(GROUP).partitions.values()
        assert share.start == 5
        assert services.shares.shard(GROUP).is_durable

    rig.run(scene())
