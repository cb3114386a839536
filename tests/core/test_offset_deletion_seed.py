"""Deletion of committed offsets: KIP-496, and the rules that Kafka 4.3.1 was seen to follow."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.errors import Why
from headrace.core.group_words import Expired, Phase
from headrace.log.group_records import BY_HEADER, CAUSE_HEADER

Groups = Callable[..., Any]
Subscribing = Callable[..., bytes]
SUBSCRIBED = Why.SUBSCRIBED_TO_TOPIC


@pytest.fixture
def groups(drive_groups: Groups) -> Any:
    return drive_groups()


@pytest.fixture
def consumers(groups: Any, subscribing: Subscribing) -> Callable[..., int]:
    """Makes a Stable group "g" of two members that committed `topic` and `other`."""

    def make(*topics: str, told: bytes | None = None, kind: str = "consumer") -> int:
        offers = {"range": subscribing(*topics) if told is None else told}
        generation = int(groups.stable(2, offers=offers, kind=kind))
        for topic in ("topic", "other"):
            groups.commit("g", 5, "m1", generation, topic=topic)
        return generation

    return make


def both(groups: Any) -> Any:
    return groups.delete_offsets("g", ("topic", 0), ("other", 0))


# ---- KIP-496, "Deletion Semantics"


def test_what_may_expire_may_be_deleted_though_the_group_is_active(
    groups: Any, consumers: Callable[..., int]
) -> None:
    """And at once, however new it is."""
    consumers("topic")
    assert both(groups) == [SUBSCRIBED, None]
    assert groups.kept() == ["topic"]
    assert groups.group().phase is Phase.STABLE


def test_in_an_empty_group_everything_may_be_deleted(
    groups: Any, consumers: Callable[..., int]
) -> None:
    """As if its subscription were empty."""
    consumers("topic")
    groups.leave(("m1", None), ("m2", None))
    assert both(groups) == [None, None]
    assert groups.kept() == []


@pytest.mark.parametrize("version", [0, 3, 77, -1])
@pytest.mark.parametrize("after", [b"", b"\xff\xff\xff\xff", b"anything"])
def test_subscriptions_are_read_as_version_0_only(
    groups: Any, consumers: Callable[..., int], subscribing: Subscribing,
    version: int, after: bytes,
) -> None:  # fmt: skip
    consumers(told=subscribing("topic", version=version, after=after))
    assert both(groups) == [SUBSCRIBED, None]


def test_the_subscriptions_of_all_members_count(
    groups: Any, consumers: Callable[..., int], subscribing: Subscribing
) -> None:
    generation = consumers("topic")
    for member, topic in (("m1", "topic"), ("m2", "other")):
        groups.join(member, offers={"range": subscribing(topic)})
    groups.sync("m1", generation + 1, {})
    assert both(groups) == [SUBSCRIBED, SUBSCRIBED]


# ---- the rules, in their order


@pytest.mark.parametrize(
    ("group", "why"),
    [("", Why.INVALID_GROUP), ("absent", Why.UNKNOWN_GROUP), ("shared", Why.WRONG_GROUP_TYPE)],
)
@pytest.mark.parametrize("partitions", [(), (("topic", 0),)])
def test_rule_2_groups_that_are_none(
    groups: Any, group: str, why: Why, partitions: tuple[tuple[str, int], ...]
) -> None:
    groups.share_groups.add("shared")
    assert groups.delete_offsets(group, *partitions) is why


@pytest.mark.parametrize("partitions", [(), (("other", 0),)])
def test_rule_3_members_of_another_type(
    groups: Any, consumers: Callable[..., int], partitions: tuple[tuple[str, int], ...]
) -> None:
    consumers("topic", kind="connect")
    assert groups.delete_offsets("g", *partitions) is Why.NON_EMPTY_GROUP
    assert groups.kept() == ["other", "topic"]
    groups.leave(("m1", None), ("m2", None))
    assert groups.delete_offsets("g", *partitions) == [None] * len(partitions)


@pytest.mark.parametrize(
    "told", [b"", b"\0\0\0\0\0\1\0\5topi", b"\0\0\x7f\xff\xff\xff", b"\0\0\xff\xff\xff\xff"]
)
def test_rule_6_who_cannot_be_read_subscribes_to_everything(
    groups: Any, consumers: Callable[..., int], told: bytes
) -> None:
    consumers(told=told)
    assert both(groups) == [SUBSCRIBED, SUBSCRIBED]
    assert groups.kept() == ["other", "topic"]


def test_rule_7_what_was_never_committed_is_deleted_too(
    groups: Any, consumers: Callable[..., int]
) -> None:
    consumers("topic")
    del groups.journal[:]
    assert groups.delete_offsets("g", ("never", 0), ("other", 7)) == [None, None]
    assert groups.journal == []
    assert groups.delete_offsets("g") == []


def test_what_is_asked_for_twice_is_answered_twice_and_deleted_once(
    groups: Any, consumers: Callable[..., int]
) -> None:
    consumers("topic")
    del groups.journal[:]
    asked = ("other", 0), ("topic", 0), ("other", 0)
    assert groups.delete_offsets("g", *asked) == [None, SUBSCRIBED, None]
    assert len(groups.journal) == 1


# ---- in every state


def test_amid_a_rebalance_the_last_subscription_that_was_known_counts(
    groups: Any, consumers: Callable[..., int], subscribing: Subscribing
) -> None:
    generation = consumers("topic")
    groups.join("m1", offers={"range": subscribing("other")})
    assert groups.group().phase is Phase.PREPARING
    assert groups.delete_offsets("g", ("topic", 0)) == [SUBSCRIBED]
    groups.join("m2", offers={"range": subscribing("other")})
    assert groups.group().phase is Phase.COMPLETING
    assert both(groups) == [None, SUBSCRIBED]
    groups.sync("m1", generation + 1, {})
    assert groups.delete_offsets("g", ("other", 0)) == [SUBSCRIBED]


def test_before_its_first_generation_a_group_subscribes_to_everything(
    drive_groups: Groups, subscribing: Subscribing
) -> None:
    groups = drive_groups(initial_delay_ms=3_000)
    groups.commit("g", 5)
    groups.join(offers={"range": subscribing("topic")})
    assert groups.group().phase is Phase.PREPARING
    assert groups.delete_offsets("g", ("topic", 0), ("other", 0)) == [SUBSCRIBED, SUBSCRIBED]


def test_so_does_a_group_whose_first_member_just_came_back(
    drive_groups: Groups, subscribing: Subscribing
) -> None:
    """Kafka goes by what the group was when it was empty, and deletes what is about to be read."""
    groups = drive_groups(initial_delay_ms=3_000)
    groups.join(offers={"range": subscribing("topic")})
    groups.elapse(3_000)
    groups.leave(("m1", None))
    groups.commit("g", 5)
    groups.join(offers={"range": subscribing("topic")})
    assert groups.group().phase is Phase.PREPARING
    assert groups.delete_offsets("g", ("topic", 0)) == [SUBSCRIBED]


def test_a_subscription_is_known_after_a_restart(
    groups: Any, consumers: Callable[..., int]
) -> None:
    consumers("topic")
    groups.restart()
    assert both(groups) == [SUBSCRIBED, None]


def test_a_static_member_that_comes_back_with_another_subscription(
    groups: Any, subscribing: Subscribing
) -> None:
    groups.join(instance="i", offers={"range": subscribing("topic")})
    groups.sync("m1", 1, {"m1": b""}, instance="i")
    groups.join(instance="i", offers={"range": subscribing("other")})
    assert groups.group().phase is Phase.STABLE
    assert both(groups) == [None, SUBSCRIBED]
    groups.restart()
    assert both(groups) == [None, SUBSCRIBED]


# ---- what is left


def test_deleting_the_last_offset_leaves_the_group_to_the_next_look(
    groups: Any, consumers: Callable[..., int]
) -> None:
    consumers("topic")
    groups.leave(("m1", None), ("m2", None))
    both(groups)
    assert groups.group().phase is Phase.EMPTY
    assert groups.expire() == Expired(0, (), 1)
    assert "g" not in groups.rebuilt().groups


def test_the_journal_tells_who_asked(groups: Any, consumers: Callable[..., int]) -> None:
    consumers("topic")
    del groups.journal[:]
    groups.delete_offsets("g", ("other", 0), by="admin /10.0.0.7")
    (entry,) = groups.journal
    assert entry.value is None
    assert dict(entry.headers) == {CAUSE_HEADER: b"deletion", BY_HEADER: b"admin /10.0.0.7"}


# ---- groups of KIP-848, which the seed did not know


def test_kip_848_by_name_and_by_regular_expression(drive_consumers: Groups) -> None:
    groups = drive_consumers()
    groups.make_topic("u", 1)
    groups.enter("a", "t")
    groups.enter("b", regex="u.*")
    groups.settle("a", "b")
    epoch = groups.consumers().holdings["a"].epoch
    for topic in ("t", "u", "v"):
        assert groups.commit("g", 5, "a", epoch, topic=topic) == [None]
    told = groups.delete_offsets("g", ("t", 0), ("u", 0), ("v", 0), ("v", 7))
    assert told == [SUBSCRIBED, SUBSCRIBED, None, None]
    assert groups.kept() == ["t", "u"]
    for member in ("a", "b"):
        groups.heartbeat(member, -1)
    assert groups.delete_offsets("g", ("t", 0), ("u", 0)) == [None, None]
    assert groups.expire() == Expired(0, (), 1)
    assert "g" not in groups.rebuilt().groups
