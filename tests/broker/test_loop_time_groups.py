"""Large consumer groups are served in short steps."""

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from headrace.broker.config import Config
from headrace.core.classic_group import ClassicGroup
from headrace.core.group_words import NOBODY, Commit, Offset

from .loop_rig import TRIES, Client, LoopRig, framed
from .test_loop_time import ELEMENTS, SECONDS_MAX, WIDE, beat, created, scaled

_JOINS = 10
_PARTITIONS_MAX = 1000
_ID_REQUIRED = 79
_NO_DELAY = {"group_initial_rebalance_delay_ms": "0"}


@pytest.fixture(scope="module")
def rig() -> Iterator[LoopRig]:
    rig = LoopRig(**_NO_DELAY)
    try:
        rig.run(_create(rig))
        yield rig
    finally:
        rig.close()


async def _create(rig: LoopRig) -> None:
    topics = [created(WIDE, num_partitions=4)]
    answer = await Client(rig.server).call(19, 7, topics=topics, timeout=0, validate_only=False)
    assert answer.topics[0].error_code == 0


def test_members_that_subscribe_to_unknown_topics_cost_no_other_member(rig: LoopRig) -> None:
    """Each names as many as one request may have, and others than the members before it."""
    numbers = iter(range(1000))  # a member that repeats its join costs next to nothing

    async def join() -> None:
        for _ in range(_JOINS):
            number = next(numbers)
            topics = [WIDE, *(f"unknown-{number}-{one}" for one in range(ELEMENTS))]
            member = beat(group_id="wishes", member_id=f"m{number}", subscribed_topic_names=topics)
            answer = await Client(rig.server).call(68, 1, **member)
            assert answer.error_code == 0, answer

    rig.require_short(join, SECONDS_MAX)


@pytest.mark.parametrize(
    "regex",
    ["(.*a.*)*" * 1000, "(.{1,30}){1,30}z", ".*a.{100}b.*c"],
    ids=["8 kB", "large program", "slow"],
)
def test_a_costly_pattern_is_matched_in_short_steps(rig: LoopRig, regex: str) -> None:
    """B7: a pattern of 8 kB over 2,000 topics held the loop for three seconds."""
    rng = Random(1)
    names = {"".join(rng.choices("ab", k=200)): None for _ in range(2000)}
    regexes = [{"subscribed_topic_regex": regex + "x" * n} for n in range(TRIES)]
    group = {"group_id": "patterns", "subscribed_topic_names": []}
    requests = iter([framed(68, 1, beat(**group, **one)) for one in regexes])

    async def join() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rig.services.topics.catalog, "topics", names)
            assert await Client(rig.server).ask(next(requests))

    rig.require_short(join, SECONDS_MAX)


def test_the_largest_consumer_group_takes_a_member_in_in_short_steps(rig: LoopRig) -> None:
    numbers = iter(range(Config.parse({}).consumer_size_max))
    before = scaled(Config.parse({}).consumer_size_max) - TRIES * _JOINS

    async def join(count: int) -> None:
        for _ in range(count):
            member = beat(
                group_id="large", member_id=f"m{next(numbers)}", subscribed_topic_names=[WIDE]
            )
            answer = await Client(rig.server).call(68, 1, **member)
            assert answer.error_code == 0, answer

    rig.run(join(before))
    rig.require_short(lambda: join(_JOINS), SECONDS_MAX)


def test_the_largest_classic_group_rebalances_in_short_steps(rig: LoopRig) -> None:
    count = scaled(Config.parse({}).group_size_max)
    names = iter(("first", "second", "third"))

    async def rebalance() -> None:
        group = next(names)
        clients = [Client(rig.server) for _ in range(count)]
        leader = await _join(clients[0], group)
        joins = [asyncio.ensure_future(_join(client, group)) for client in clients[1:]]
        await _until(rig, group, joining=count - 1)
        joined = [await _join(clients[0], group, leader.member_id), *await asyncio.gather(*joins)]
        assert len(joined[0].members) == count
        assert {one.generation_id for one in joined} == {joined[0].generation_id}
        rest = zip(clients[1:], joined[1:], strict=True)
        syncs = [asyncio.ensure_future(_sync(client, group, one)) for client, one in rest]
        await _until(rig, group, syncing=count - 1)
        answers = [await _sync(clients[0], group, joined[0]), *await asyncio.gather(*syncs)]
        assert [one.assignment for one in answers] == [one.member_id.encode() for one in joined]

    rig.require_short(rebalance, SECONDS_MAX)


async def _join(client: Client, group: str, member: str = "") -> Any:
    """What JoinGroup answers a member, which takes the id that it is given."""
    fields = {
        "group_id": group, "session_timeout": 45_000, "rebalance_timeout": 60_000,
        "group_instance_id": None, "protocol_type": "test",
        "protocols": [{"name": "range", "metadata": b"m" * 40}],
    }  # fmt: skip
    answer = await client.call(11, 5, member_id=member, **fields)
    if answer.error_code == _ID_REQUIRED:
        answer = await client.call(11, 5, member_id=answer.member_id, **fields)
    assert answer.error_code == 0, answer
    return answer


async def _sync(client: Client, group: str, joined: Any) -> Any:
    """What SyncGroup answers; the leader gives each member its id as its assignment."""
    assignments = [
        {"member_id": one.member_id, "assignment": one.member_id.encode()} for one in joined.members
    ]
    answer = await client.call(
        14, 3, group_id=group, generation_id=joined.generation_id, member_id=joined.member_id,
        group_instance_id=None, assignments=assignments,
    )  # fmt: skip
    assert answer.error_code == 0, answer
    return answer


async def _until(rig: LoopRig, group: str, joining: int = 0, syncing: int = 0) -> None:
    """Return once so many requests wait."""
    while True:
        await asyncio.sleep(0)
        known = rig.services.groups.find(group)
        assert isinstance(known, ClassicGroup)
        if len(known.joins) >= joining and len(known.syncs) >= syncing:
            return


def test_a_group_with_many_offsets_is_deleted_in_short_steps(rig: LoopRig) -> None:
    topics, partitions = 200, scaled(_PARTITIONS_MAX)
    names = iter(("first", "second", "third"))

    async def delete() -> None:
        group, groups = f"many-{next(names)}", rig.services.groups
        for topic in range(topics):
            offsets = tuple(Offset(f"t{topic}", n, 0, -1, "", None) for n in range(partitions))
            assert await groups.ask(group, Commit(group, NOBODY, None, -1, offsets))
        assert len(groups.offsets(group)) == topics * partitions
        await asyncio.sleep(0)
        answer = await Client(rig.server).call(42, 2, groups_names=[group])
        assert answer.results[0].error_code == 0, answer
        assert groups.find(group) is None
        assert not groups.offsets(group)

    rig.require_short(delete, SECONDS_MAX)
