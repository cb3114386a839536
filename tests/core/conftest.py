"""Shards of consumer groups, and a share-partition, that tests drive."""

from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from headrace.core import group_shard
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import Policy, ShareKey

from .group_rig import ConsumerDriver, GroupDriver, subscribing
from .share_rig import Driver


@pytest.fixture(scope="package", autouse=True)
def _few_deadlines() -> Iterator[None]:
    """Have shards drop past deadlines in tests of few steps, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_shard, "_DEADLINES_MIN", 3)
        yield


@pytest.fixture
def drive() -> Callable[..., Driver]:
    def make(start: int = 0, policy: Policy | None = None) -> Driver:
        key = ShareKey("group", UUID(int=7), 0)
        return Driver(SharePartition(key, start), policy or Policy())

    return make


@pytest.fixture(name="subscribing")
def _subscribing() -> Callable[..., bytes]:
    return subscribing


@pytest.fixture
def drive_groups() -> Callable[..., GroupDriver]:
    return GroupDriver


@pytest.fixture
def drive_consumers() -> Callable[..., ConsumerDriver]:
    return ConsumerDriver
