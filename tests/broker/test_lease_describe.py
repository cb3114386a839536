"""LeaseDescribe makes its response in portions."""

import asyncio
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest

from headrace.broker.handlers import leases
from headrace.broker.request import Request
from headrace.core.catalog import CreateTopic, Topic
from headrace.core.runs import State
from headrace.core.shard_words import StartPartitions
from headrace.core.share_words import Replayed, ShareKey
from headrace.wire import leases as wire
from headrace.wire.primitives import Writer

from .inside_rig import Inside, play

PARTITIONS, RUNS = 20, 400  # less of either than is described without a pause, or as many
ROWS_MAX = 1_000  # in a turn of the event loop: 5 ms


def test_share_partitions_of_some_ranges_are_described_with_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(broker: Inside) -> None:
        services, machine = broker.services, broker.services.shares.machine("g")
        topic = await services.topics.create(CreateTopic("orders", uuid4(), PARTITIONS, {}))
        assert isinstance(topic, Topic)
        starts = tuple((topic.id, index, 0) for index in range(PARTITIONS))
        await services.shares.ask("g", StartPartitions("g", starts))
        states = [(n, n, State.AVAILABLE, 1 + n % 2, None, None) for n in range(RUNS)]
        for index in range(PARTITIONS):
            machine.apply(Replayed(ShareKey("g", topic.id, index), states))
        rows, made = Counter[int](), wire.InFlight
        turn = 0

        async def count_turns() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        def row(*fields: Any) -> wire.InFlight:
            rows[turn] += 1
            return made(*fields)

        monkeypatch.setattr(wire, "InFlight", row)
        out = Writer()
        wire.DescribeRequest("g", "", -1).write(out)
        request = Request(wire.LeaseApi.DESCRIBE, 0, 1, "client", "::1", 1, memoryview(out.data))
        counting = asyncio.ensure_future(count_turns())
        await leases.handle(request, services)
        counting.cancel()
        assert rows.total() == PARTITIONS * RUNS
        assert max(rows.values()) <= ROWS_MAX

    play(Inside, scene)
