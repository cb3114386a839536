"""What tests of the core drive: a share-partition, and shards of consumer groups."""

from collections.abc import Callable
from uuid import UUID

import pytest

from group_driver import ConsumerDriver, GroupDriver, subscribing
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import Policy, ShareKey
from share_driver import Driver


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
