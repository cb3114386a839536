"""When committed offsets of KIP-848 groups expire, which the seed did not know."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.group_words import Expired

Groups = Callable[..., Any]
MINUTE = 60_000
HOUR = 60 * MINUTE
NOTHING = Expired(0, (), 0)


@pytest.fixture
def beating(drive_consumers: Groups) -> Any:
    """A shard with a KIP-848 group "g" of one member, that committed `t` and `other`."""
    groups = drive_consumers()
    groups.enter("a", "t")
    groups.settle("a")
    return groups


def committed(groups: Any, *topics: str, retention_ms: int | None = None) -> None:
    epoch = groups.consumers().holdings["a"].epoch
    for topic in topics:
        told = groups.commit("g", 5, "a", epoch, topic=topic, retention_ms=retention_ms)
        assert told == [None]


def stay(groups: Any, ms: int) -> None:
    """Let time pass with a member that beats."""
    while ms > 0:
        groups.elapse(min(ms, 30_000))
        groups.settle("a")
        ms -= 30_000


@pytest.mark.parametrize("retention_ms", [None, MINUTE])
def test_not_subscribed_by_the_commit_subscribed_never(
    beating: Any, retention_ms: int | None
) -> None:
    committed(beating, "t", "other", retention_ms=retention_ms)
    stay(beating, (retention_ms or HOUR) - 30_000)
    beating.elapse(29_999)
    assert beating.expire() == NOTHING
    beating.elapse(1)
    assert beating.expire() == Expired(1, ("g",), 0)
    assert beating.kept() == ["t"]


def test_empty_by_when_it_became_so(beating: Any) -> None:
    """As KIP-211 wants it; Kafka goes by the commit, so that quiet partitions go early."""
    committed(beating, "t", "other")
    stay(beating, HOUR // 2)
    beating.heartbeat("a", -1)
    beating.elapse(HOUR - 1)
    assert beating.expire() == NOTHING
    beating.elapse(1)
    assert beating.expire() == Expired(2, ("g",), 1)
    assert "g" not in beating.shard.groups
    assert "g" not in beating.rebuilt().groups


def test_amid_a_rebalance(beating: Any) -> None:
    """Members are rebalanced one by one, so what the group subscribes to is known all the time."""
    committed(beating, "t", "other")
    stay(beating, HOUR)
    beating.enter("b", "t")
    assert beating.expire() == Expired(1, ("g",), 0)
    assert beating.kept() == ["t"]
