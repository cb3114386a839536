"""Large consumer groups are served in short steps."""

from collections.abc import Iterator

import pytest

from .loop_rig import Client, LoopRig
from .test_loop_time import ELEMENTS, SECONDS_MAX, WIDE, beat, created

_JOINS = 10


@pytest.fixture(scope="module")
def rig() -> Iterator[LoopRig]:
    rig = LoopRig()
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
