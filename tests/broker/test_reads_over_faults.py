"""Reads of groups that pause, and a journal that fails and is replayed during a pause."""

import errno
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

import pytest

from headrace.broker.budgets import Budgets
from headrace.core.group_words import Commit, Offset
from headrace.core.types import MemberId
from headrace.wire import lease_sessions, offset_expiry
from headrace.wire import leases as wire
from headrace.wire.primitives import Reader, Writer
from headrace.wire.structs import Struct

from .loop_rig import Client, LoopRig
from .test_loop_time_own_apis import ask
from .test_runtime import rebuilt
from .test_share_session_ends import GROUP, TOPIC, fill

T = TypeVar("T")
CONSUMERS = "consumers"
OPENING = wire.OpenRequest(GROUP, "session", -1, (TOPIC,), "earliest")


@pytest.fixture
def rig() -> Iterator[LoopRig]:
    rig = LoopRig()
    try:
        rig.run(_begin(rig))
        yield rig
    finally:
        rig.close()


async def _begin(rig: LoopRig) -> None:
    """Let a share group with a member and a lease, and a consumer group, read a topic."""
    await fill(rig)
    client = Client(rig.server)
    epoch = (await ask(client, OPENING, wire.OpenResponse)).epoch
    acquiring = wire.AcquireRequest(GROUP, "session", epoch, 1, 5, 0)
    assert (await ask(client, acquiring, wire.AcquireResponse)).ranges
    joined = await client.call(
        68, 1, group_id=CONSUMERS, member_id="member", member_epoch=0, instance_id=None,
        rack_id=None, rebalance_timeout=60_000, subscribed_topic_names=[TOPIC],
        subscribed_topic_regex=None, server_assignor=None, topic_partitions=[],
    )  # fmt: skip
    assert joined.error_code == 0
    offsets = (Offset(TOPIC, 0, 1, -1, "", None),)
    commit = Commit(CONSUMERS, MemberId("member"), None, joined.member_epoch, offsets)
    assert await rig.services.groups.ask(CONSUMERS, commit) == [None]


async def _consumers(client: Client) -> int:
    answer = await client.call(
        69, 0, group_ids=[CONSUMERS], include_authorized_operations=False
    )  # fmt: skip
    return int(answer.groups[0].error_code)


async def _offsets(client: Client) -> int:
    topics = [{"name": TOPIC, "partition_indexes": [0]}]
    answer = await client.call(
        9, 8, groups=[{"group_id": CONSUMERS, "topics": topics}], require_stable=False
    )  # fmt: skip
    return int(answer.groups[0].error_code)


async def _sharers(client: Client) -> int:
    answer = await client.call(77, 1, group_ids=[GROUP], include_authorized_operations=False)
    return int(answer.groups[0].error_code)


async def _starts(client: Client) -> int:
    topics = [{"topic_name": TOPIC, "partitions": [0]}]
    answer = await client.call(90, 0, groups=[{"group_id": GROUP, "topics": topics}])
    return int(answer.groups[0].error_code)


async def _in_flight(client: Client) -> int:
    request = wire.DescribeRequest(GROUP, "", -1)
    return int((await ask(client, request, wire.DescribeResponse)).error_code)


async def _groups(client: Client) -> int:
    return int((await client.call(16, 4, states_filter=[])).error_code)


async def _sessions(client: Client) -> int:
    request = lease_sessions.ListLeaseSessionsRequest()
    answer = await client.ask(_framed(lease_sessions.KEY, request))
    return lease_sessions.ListLeaseSessionsResponse.read(Reader(answer[1:])).error_code


async def _expiry(client: Client) -> int:
    request = offset_expiry.DescribeOffsetExpiryRequest(CONSUMERS)
    answer = await client.ask(_framed(offset_expiry.KEY, request))
    return offset_expiry.DescribeOffsetExpiryResponse.read(Reader(answer[1:])).error_code


def _framed(key: int, request: Struct) -> bytes:
    body = Writer()
    request.write(body)
    head = struct.pack(">hhihb", key, 0, 1, -1, 0)
    return struct.pack(">i", len(head) + len(body.data)) + head + bytes(body.data)


@pytest.mark.parametrize(
    "read",
    [_consumers, _offsets, _sharers, _starts, _in_flight, _groups, _sessions, _expiry],
)
def test_a_state_that_a_fault_replaced_in_a_pause_is_not_shown(
    rig: LoopRig,
    read: Callable[[Client], Coroutine[Any, Any, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    services, portions = rig.services, Budgets.portions
    shards = services.shares.shard(GROUP), services.groups._shard_of(CONSUMERS)

    async def fault() -> None:
        """Take back what is not written of each state, and replay the rest."""
        for shard in shards:
            shard._drop(OSError(errno.EIO, "planted"), [])
            await rebuilt(shard)

    async def paused(budgets: Budgets, items: Iterable[T], *size: int) -> AsyncIterator[T]:
        async for item in portions(budgets, items, *size):
            yield item
            await fault()

    async def scene() -> None:
        client = Client(rig.server)
        assert await read(client) == 0
        with monkeypatch.context() as patched:
            patched.setattr(Budgets, "portions", paused)
            assert await read(client) != 0
        assert await read(client) == 0

    rig.run(scene())
