"""Who looks is told what is durable: nothing of what was decided while that was waited for."""

from collections.abc import AsyncIterator, Iterable
from typing import Any
from uuid import uuid4

import pytest

from headrace.broker.budgets import Budgets
from headrace.broker.errors import Code
from headrace.broker.handlers import (
    archived_records,
    consumer_group_describe,
    describe_groups,
    describe_share_group_offsets,
    lease_sessions,
    leases,
    list_groups,
    offset_expiry,
    offset_fetch,
    share_group_describe,
)
from headrace.broker.request import Raw, Request
from headrace.broker.runtime import ShardRuntime
from headrace.broker.shards import shard_index
from headrace.core.catalog import CreateTopic, Topic
from headrace.core.consumer_words import ConsumerBeat
from headrace.core.errors import Refused
from headrace.core.group_words import Commit, Offset
from headrace.core.shard_words import AcquireLease, AlterShareOffsets, OpenLease
from headrace.core.share_group import Heartbeat
from headrace.core.types import MemberId
from headrace.wire import codec
from headrace.wire import lease_sessions as session_words
from headrace.wire import leases as wire
from headrace.wire import offset_expiry as offset_expiry_words
from headrace.wire.batches import Record
from headrace.wire.primitives import Writer
from headrace.wire.share_archived import ArchivedApi, ClearArchivedRequest, ListArchivedRequest
from headrace.wire.structs import Struct

from .inside_rig import Inside, play

MEMBER = MemberId("m")
ORDERS = uuid4()
COMMIT = Commit("g", MemberId(""), None, -1, (Offset("orders", 0, 7, -1, "", ORDERS),))
BEAT = ConsumerBeat(
    "g", MEMBER, 0, rebalance_ms=60_000, topics=frozenset(["orders"]), owned=frozenset()
)
JOIN = Heartbeat("g", MEMBER, 0, frozenset(["orders"]))
RESET = AlterShareOffsets("g", (("orders", 0, 7),))

ALL_OF_G = {"group_id": "g", "topics": None}
NO_OPERATIONS = {"include_authorized_operations": False}


def written(struct: Struct) -> bytearray:
    out = Writer()
    struct.write(out)
    return out.data


LOOK_AT_LEASES = written(wire.DescribeRequest("g", "", -1))
LOOK_AT_SESSIONS = written(session_words.ListLeaseSessionsRequest("g"))
LOOK_AT_EXPIRY = written(offset_expiry_words.DescribeOffsetExpiryRequest("g"))
LOOK_AT_ARCHIVED = written(ListArchivedRequest("g"))
CLEAR_ARCHIVED = written(ClearArchivedRequest("g", ()))


def decide_meanwhile(shard: Any, command: Any) -> None:
    """As soon as what was decided before is durable, and who waits for that is told."""
    durable = shard.durable

    async def then_decide() -> None:
        await durable()
        shard.durable = durable
        assert not isinstance(shard.decide(command), Refused)

    shard.durable = then_decide


def shard_of(broker: Inside, command: Any) -> ShardRuntime[Any, Any]:
    if isinstance(command, Heartbeat | AlterShareOffsets):
        return broker.services.shares.shard(command.group)
    shards = broker.services.groups.shards
    return shards[shard_index(command.group, len(shards))]


READS_OF_GROUPS = [
    (list_groups, 16, 5, {}, COMMIT),
    (list_groups, 16, 5, {}, JOIN),
    (describe_groups, 15, 6, {"groups": ("g",)} | NO_OPERATIONS, COMMIT),
    (describe_groups, 15, 6, {"groups": ("g",)} | NO_OPERATIONS, JOIN),
]


@pytest.mark.parametrize(
    ("api", "key", "version", "asked", "command"),
    [
        *READS_OF_GROUPS,
        (offset_expiry, offset_expiry_words.KEY, 0, LOOK_AT_EXPIRY, COMMIT),
        (archived_records, ArchivedApi.LIST, 0, LOOK_AT_ARCHIVED, RESET),
        (archived_records, ArchivedApi.CLEAR, 0, CLEAR_ARCHIVED, RESET),
        (consumer_group_describe, 69, 1, {"group_ids": ("g",)} | NO_OPERATIONS, BEAT),
        (offset_fetch, 9, 8, {"groups": (ALL_OF_G,)}, COMMIT),
        (share_group_describe, 77, 1, {"group_ids": ("g",)} | NO_OPERATIONS, JOIN),
        (describe_share_group_offsets, 90, 1, {"groups": (ALL_OF_G,)}, RESET),
        (leases, wire.LeaseApi.DESCRIBE, 0, LOOK_AT_LEASES, RESET),
    ],
)
def test_what_is_decided_meanwhile_is_not_told(
    api: Any, key: int, version: int, asked: Any, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is always a write under way that the look waits for.
    monkeypatch.setattr(ShardRuntime, "is_durable", False)

    async def scene(broker: Inside) -> None:
        services = broker.services
        made = await services.topics.create(CreateTopic("orders", ORDERS, 1, {}))
        assert isinstance(made, Topic)
        partition: Any = services.partition("orders", 0)
        partition.append_records([Record(0, 5, b"k", b"v")] * 9)

        is_ours = isinstance(asked, bytearray)
        body = asked if is_ours else codec.encode_request(key, version, asked)

        async def look() -> Any:
            request = Request(key, version, 1, "client", "::1", 1, memoryview(body))
            answer = await api.handle(request, services)
            return answer.buffers if isinstance(answer, Raw) else answer

        before = await look()
        decide_meanwhile(shard_of(broker, command), command)
        assert await look() == before
        assert await look() != before, "and what was decided is told later"

    play(Inside, scene)


@pytest.mark.parametrize(
    ("api", "key", "asked"),
    [
        (describe_share_group_offsets, 90, {"groups": (ALL_OF_G,)}),
        (leases, wire.LeaseApi.DESCRIBE, LOOK_AT_LEASES),
        (lease_sessions, session_words.KEY, LOOK_AT_SESSIONS),
    ],
)
def test_what_a_fault_takes_back_in_a_pause_is_not_told(
    api: Any, key: int, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the end of the pause, the journal works again."""

    async def scene(broker: Inside) -> None:
        services, shard = broker.services, broker.services.shares.shard("g")
        await services.topics.create(CreateTopic("orders", ORDERS, 1, {}))
        partition: Any = services.partition("orders", 0)
        partition.append_records([Record(0, 5, b"k", b"v")] * 9)
        opened = await shard.ask(OpenLease(("g", "session"), ("orders",), True))
        await shard.ask(AcquireLease(("g", "session"), opened.epoch, 1, 9))
        machine = shard.machine

        async def recovered(_: Any, items: Iterable[Any], __: int = 0) -> AsyncIterator[Any]:
            for item in items:
                yield item
                if shard.machine is machine:
                    shard.load()

        is_ours = isinstance(asked, bytearray)
        body = asked if is_ours else codec.encode_request(key, 0, asked)
        request = Request(key, 0, 1, "client", "::1", 1, memoryview(body))
        monkeypatch.setattr(Budgets, "portions", recovered)
        answer = await api.handle(request, services)
        if isinstance(answer, Raw):
            code = int.from_bytes(answer.buffers[0][:2], "big")
        else:
            code = answer["groups"][0]["error_code"]
        assert shard.machine is not machine
        assert code in (Code.COORDINATOR_NOT_AVAILABLE, Code.STORAGE_ERROR)

    play(Inside, scene)


@pytest.mark.parametrize(
    ("api", "key", "version", "asked", "command"),
    [
        *READS_OF_GROUPS,
        (consumer_group_describe, 69, 1, {"group_ids": ("g",)} | NO_OPERATIONS, BEAT),
        (offset_fetch, 9, 8, {"groups": (ALL_OF_G,)}, COMMIT),
        (share_group_describe, 77, 1, {"group_ids": ("g",)} | NO_OPERATIONS, JOIN),
    ],
)
def test_what_a_fault_takes_back_of_a_group_in_a_pause_is_not_told(
    api: Any, key: int, version: int, asked: Any, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the end of the last pause, the journal works again."""

    async def scene(broker: Inside) -> None:
        await broker.services.topics.create(CreateTopic("orders", ORDERS, 1, {}))
        shard = shard_of(broker, command)
        assert not isinstance(await shard.ask(command), Refused)
        durable, portions, waits = ShardRuntime.durable, Budgets.portions, list[None]()

        def waiting(one: ShardRuntime[Any, Any]) -> Any:
            waits.append(None)
            return durable(one)

        async def recovered(
            budgets: Budgets, items: Iterable[Any], size: int = 1
        ) -> AsyncIterator[Any]:
            async for item in portions(budgets, items, size):
                yield item
                if not waits:
                    shard.load()

        body = codec.encode_request(key, version, asked)
        request = Request(key, version, 1, "client", "::1", 1, memoryview(body))
        monkeypatch.setattr(ShardRuntime, "durable", waiting)
        monkeypatch.setattr(Budgets, "portions", recovered)
        answer = await api.handle(request, broker.services)
        codes = [answer.get("error_code"), *(one["error_code"] for one in answer["groups"])]
        assert {Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR} & set(codes)

    play(Inside, scene)
