"""A share consumer of a cluster: sessions with several leaders, and partitions that move."""

import asyncio
from collections.abc import Iterator

import pytest

import headrace

from .conftest import ScriptedBroker
from .share_script import ACKNOWLEDGE, FETCH, ShareScript, consumer, until

ACCEPT = 1


@pytest.fixture
def share(broker: ScriptedBroker) -> ShareScript:
    return ShareScript(broker)


@pytest.fixture
def other(share: ShareScript) -> Iterator[ShareScript]:
    """A second broker, which leads partition 1."""
    broker = ScriptedBroker()
    broker.start()
    script = ShareScript(broker)
    script.number = 1
    share.leaders.append(script)
    yield script
    broker.close()


def test_leaders_are_fetched_from_in_turn_and_never_for_more_than_was_asked(
    share: ShareScript, other: ShareScript
) -> None:
    share.records.extend(range(5))
    other.records.extend(range(5))

    async def story() -> None:
        async with consumer(share) as opened:
            seen: set[tuple[int, int]] = set()
            while len(seen) < 10:
                for record in await opened.poll(1):
                    seen.add((record.partition, record.offset))
                    await record.accept()
            assert opened.stats.in_hand == 0
            assert opened.assignment == {("t", 0), ("t", 1)}

    asyncio.run(story())
    for script in (share, other):
        assert [first for first, *_ in script.said] == list(range(5))
        assert {limit for _, limit, _ in script.fetches} <= {0, 1}
        assert script.epochs[-1] == (ACKNOWLEDGE, -1)


def test_a_partition_that_moves_is_read_at_its_new_leader(
    share: ShareScript, other: ShareScript
) -> None:
    share.records.append(0)

    async def story() -> None:
        async with consumer(share) as opened:
            (record,) = await opened.poll()
            share.leaders[:] = [other, other]
            other.number = 0
            other.records.append(0)
            share.ack_codes.append(6)
            with pytest.raises(headrace.LockLost):
                await record.accept()
            share.fetch_codes.extend([6] * 3)
            (again,) = await opened.poll()
            await again.accept()

    asyncio.run(story())
    assert (share.said, other.said) == ([], [(0, 0, ACCEPT, None)])


def test_a_leader_that_is_away_does_not_keep_the_other_waiting(
    share: ShareScript, other: ShareScript
) -> None:
    async def story() -> None:
        async with consumer(share) as opened:
            await until(lambda: bool(share.epochs and other.epochs))
            other.broker.stop()
            share.records.extend(range(3))
            for _ in range(3):
                (record,) = await opened.poll(1)
                await record.accept()

    asyncio.run(story())
    assert [first for first, *_ in share.said] == [0, 1, 2]


def test_a_leader_without_room_for_a_session_does_not_keep_the_other_waiting(
    share: ShareScript, other: ShareScript
) -> None:
    other.codes[FETCH].extend([133] * 1_000)
    share.records.extend(range(3))

    async def story() -> None:
        async with consumer(share) as opened:
            await until(lambda: bool(other.epochs))
            async with asyncio.timeout(10):
                for _ in range(3):
                    (record,) = await opened.poll(1)
                    await record.accept()
            other.codes[FETCH].clear()

    asyncio.run(story())
