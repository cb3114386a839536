"""Consumer groups on a disk that fails: who waits is told, and what was answered stays true."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from headrace.broker.config import Config
from headrace.broker.services import Services
from headrace.broker.shards import shard_index
from headrace.core.catalog import CreateTopic, DeleteTopic
from headrace.core.errors import Refused, Why
from headrace.core.group_words import Beat, Candidate, Commit, Join, Joined, Offset, Sync, Synced
from headrace.core.types import MemberId
from headrace.log.memory_disk import MemoryDisk, VirtualClock

from .test_runtime import rebuilt

NOBODY = MemberId("")


async def started(disk: MemoryDisk, **settings: str) -> Services:
    """A broker, without its server, on what a disk has."""
    given = {name.replace("_", "."): text for name, text in settings.items()}
    services = Services(Config.parse(given), disk, VirtualClock(), uuid4)
    services.topics.load()
    await services.start()
    return services


async def joining(services: Services, member: MemberId = NOBODY) -> Any:
    groups = services.groups
    command = Join(
        "g", member, None, groups.new_member("c"), "c", "/h", 10_000, 10_000, "consumer",
        (Candidate("range", b""),), groups.ticket(), id_required=False,
    )  # fmt: skip
    return await groups.ask_and_wait(command)


async def syncing(services: Services, member: MemberId, generation: int) -> Any:
    shares = {member: b"all"}
    command = Sync("g", member, None, generation, services.groups.ticket(), shares)
    return await services.groups.ask_and_wait(command)


async def until_waiting(services: Services) -> None:
    while not services.waits.waiting:  # noqa: ASYNC110  # there is no event to wait for
        await asyncio.sleep(0)


async def committing(services: Services, topic: Any, offset: int) -> Any:
    one = Offset(topic.name, 0, offset, -1, "", topic.id)
    return await services.groups.ask("simple", Commit("simple", NOBODY, None, -1, (one,)))


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_who_waits_is_told_when_the_disk_fails() -> None:
    async def work() -> None:
        disk = MemoryDisk()
        services = await started(disk)
        member = (await joining(services)).member
        assert isinstance(await syncing(services, member, 1), Synced)
        waiting = asyncio.ensure_future(joining(services))
        beats = [await services.groups.ask("g", Beat("g", member, None, 1)) for _ in range(3)]
        assert beats[-1].why is Why.REBALANCE_IN_PROGRESS  # every beat is a turn for the join
        disk.fail_after(0)
        created = services.catalog.topics["__consumer_offsets"]
        refused = await committing(services, created, 5)
        assert isinstance(refused, Refused)
        assert refused.why is Why.COORDINATOR_GONE
        disk.fail_after(None)
        answer = await asyncio.wait_for(waiting, 5)
        assert isinstance(answer, Refused)
        assert answer.why is Why.COORDINATOR_GONE
        await rebuilt(services.groups.shards[shard_index("g", len(services.groups.shards))])
        # The member goes on in the generation that the journal has.
        assert await services.groups.ask("g", Beat("g", member, None, 1)) is None
        assert not services.groups.offsets("simple")
        await services.close()

    run(work)


def test_who_waited_in_vain_is_not_told_what_is_decided_before_the_disk_has_it() -> None:
    """A wait ends without an answer when the broker stops, and after five minutes."""

    async def work() -> None:
        services = await started(MemoryDisk(), group_initial_rebalance_delay_ms="0")
        shard: Any = services.groups.shards[shard_index("g", len(services.groups.shards))]
        first = (await joining(services)).member
        assert isinstance(await syncing(services, first, 1), Synced)
        coming = asyncio.ensure_future(joining(services))
        await until_waiting(services)
        leader = await joining(services, first)
        follower = await coming
        assert leader.leader == first
        waiting = asyncio.ensure_future(syncing(services, follower.member, 2))
        await until_waiting(services)
        durable = shard.durable

        async def then_decide() -> None:
            await durable()
            ticket = services.groups.ticket()
            shares = {first: b"mine", follower.member: b"yours"}
            decided = shard.decide(Sync("g", first, None, 2, ticket, shares))
            assert not isinstance(decided, Refused)

        shard.durable = then_decide
        services.waits.close()
        answer = await asyncio.wait_for(waiting, 5)
        assert isinstance(answer, Refused)
        assert answer.message == "Group g is still rebalancing; join again."
        shard.durable = durable
        await services.close()

    run(work)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_what_was_answered_is_there_after_a_crash(durability: str) -> None:
    async def work() -> None:
        disk = MemoryDisk()
        settings = {"headrace_durability": durability}
        services = await started(disk, **settings)
        topic = await services.topics.create(CreateTopic("orders", uuid4(), 1, {}))
        joined = await joining(services)
        assert isinstance(joined, Joined)
        assert isinstance(await syncing(services, joined.member, 1), Synced)
        answers = await asyncio.gather(*(committing(services, topic, n) for n in range(5)))
        assert answers == [[None]] * 5
        disk.crash(keep=0.0 if durability == "fsync" else 1.0)
        services = await started(disk, **settings)
        found = services.groups.offsets("simple").find("orders", 0, None)
        assert found is not None
        assert found.offset == 4
        assert await services.groups.ask("g", Beat("g", joined.member, None, 1)) is None
        await services.close()

    run(work)


def test_offsets_of_a_topic_that_went_just_before_a_crash() -> None:
    async def work() -> None:
        disk = MemoryDisk()
        services = await started(disk)
        topic = await services.topics.create(CreateTopic("orders", uuid4(), 1, {}))
        assert not isinstance(topic, Refused)
        assert await committing(services, topic, 5) == [None]
        services.topics.on_deleted.clear()  # the process dies before anybody hears of it
        await services.topics.delete(DeleteTopic(topic.id))
        services = await started(disk)
        assert list(services.groups.walk()) == []
        await services.close()

    run(work)
