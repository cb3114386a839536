"""What counts as memory of groups."""

import pytest
from tests.broker.inside_rig import Inside, play

from headrace.broker.group_memory import ENTRY_BYTES
from headrace.core.share_group import GroupRetained


@pytest.mark.parametrize("count", [1, 1000])
def test_share_groups_without_share_partitions_count(count: int) -> None:
    async def scene(broker: Inside) -> None:
        services = broker.services
        for number in range(count):
            services.shares.machine("q").apply(GroupRetained(f"q{number}"))
        await services.group_memory.start()  # as after a start
        assert services.group_memory.groups == count
        assert services.group_memory.bytes >= count * ENTRY_BYTES

    play(Inside, scene)
