"""A group of KIP-848: what a heartbeat is refused for, and what it is told."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.core.consumer_words import Beaten, ConsumerBeat, ConsumerState
from headrace.core.errors import Why
from headrace.core.types import MemberId

Drive = Callable[..., Any]


@pytest.fixture
def group(drive_consumers: Drive) -> Any:
    return drive_consumers()


JOIN = {"epoch": 0, "topics": frozenset({"t"}), "rebalance_ms": 1000, "owned": frozenset()}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"group": ""}, Why.INVALID_REQUEST),
        ({"member": MemberId("")}, Why.INVALID_REQUEST),
        ({"instance": ""}, Why.INVALID_REQUEST),
        ({"rack": ""}, Why.INVALID_REQUEST),
        ({"rebalance_ms": None}, Why.INVALID_REQUEST),
        ({"owned": None}, Why.INVALID_REQUEST),
        ({"topics": None}, Why.INVALID_REQUEST),
        ({"epoch": -3}, Why.INVALID_REQUEST),
        ({"epoch": -2}, Why.INVALID_REQUEST),
        ({"member": MemberId("m" * 40_000)}, Why.INVALID_REQUEST),
        ({"regex": "t" * 40_000}, Why.INVALID_REQUEST),
        ({"assignor": "mine"}, Why.UNKNOWN_ASSIGNOR),
        ({"regex": "("}, Why.INVALID_REGEX),
        ({"epoch": 1}, Why.UNKNOWN_GROUP),
        ({"epoch": -1}, Why.UNKNOWN_GROUP),
        ({"epoch": -2, "instance": "i"}, Why.UNKNOWN_GROUP),
    ],
)
def test_a_heartbeat_to_a_group_that_is_not_there(
    group: Any, changed: dict[str, Any], why: Why
) -> None:
    command = ConsumerBeat(**{"group": "g", "member": MemberId("a"), **JOIN, **changed})
    refused = group.do(command)
    assert refused.why is why
    assert refused.message
    assert group.shard.groups == {}
    assert group.journal == []


def test_a_join_owns_nothing(group: Any) -> None:
    assert group.heartbeat("a", 0, "t:1", topics=frozenset("t"), rebalance_ms=1) is (
        Why.INVALID_REQUEST
    )


def test_who_has_no_id_is_given_one_with_version_0_only(group: Any) -> None:
    assert group.enter("", new_id=MemberId("fresh")).member == "fresh"
    assert group.heartbeat("", 2) is Why.INVALID_REQUEST
    assert group.heartbeat("", 2, new_id=MemberId("other")) is Why.INVALID_REQUEST


def test_a_share_groups_name_is_taken(group: Any) -> None:
    group.share_groups.add("s")
    assert group.enter("a", group="s") is Why.WRONG_GROUP_TYPE


@pytest.mark.parametrize(
    ("member", "epoch", "told", "why"),
    [
        ("x", 2, {}, Why.UNKNOWN_MEMBER),
        ("x", -1, {}, Why.UNKNOWN_MEMBER),
        ("a", 4, {}, Why.STALE_EPOCH),
        ("a", 1, {}, Why.STALE_EPOCH),
        ("a", 3, {"instance": "none"}, Why.UNKNOWN_MEMBER),
        ("a", -2, {"instance": "none"}, Why.UNKNOWN_MEMBER),
        ("a", 3, {"instance": "i"}, Why.FENCED_INSTANCE),
        ("a", -1, {"instance": "i"}, Why.FENCED_INSTANCE),
        ("a", 3, {"regex": "("}, Why.INVALID_REGEX),
        ("a", 3, {"assignor": "mine"}, Why.UNKNOWN_ASSIGNOR),
    ],
)
def test_a_heartbeat_to_a_group_of_two(
    group: Any, member: str, epoch: int, told: dict[str, Any], why: Why
) -> None:
    group.enter("a")
    group.enter("s", instance="i")
    group.settle("a", "s")
    before = len(group.journal)
    assert group.heartbeat(member, epoch, **told) is why
    assert len(group.journal) == before


def test_an_instance_that_is_alive_is_not_given_away(group: Any) -> None:
    group.enter("s", instance="i")
    assert group.enter("s2", instance="i") is Why.INSTANCE_IN_USE
    assert list(group.consumers().members) == ["s"]


def test_a_full_group_takes_its_members_only(group: Any) -> None:
    group.consumer_limits = replace(group.consumer_limits, members_max=1)
    group.enter("s", instance="i")
    assert group.enter("b") is Why.GROUP_FULL
    assert group.enter("s", instance="i").epoch == 2
    group.heartbeat("s", -2, instance="i")
    assert group.enter("s2", instance="i").epoch == 2


def test_one_epoch_behind_is_an_answer_lost_if_no_more_is_owned_than_given(group: Any) -> None:
    group.enter("a")
    group.enter("b")
    group.settle("a", "b")
    held = group.consumers().holdings["a"]
    assert (held.previous_epoch, held.epoch) == (2, 3)
    assert group.heartbeat("a", 2) is Why.STALE_EPOCH
    assert group.heartbeat("a", 2, "t:0,1,2,3") is Why.STALE_EPOCH
    answer = group.heartbeat("a", 2, group.holds("a"), topics=frozenset("t"), rebalance_ms=1)
    assert answer == Beaten(MemberId("a"), 3, 5000, held.assigned)


# ---- what is told


def test_a_first_answer_is_complete(group: Any) -> None:
    answer = group.enter("a")
    assert answer == Beaten(MemberId("a"), 2, 5000, group.partitions("t:0,1,2,3"))
    assert group.consumers().state is ConsumerState.STABLE


def test_a_first_answer_to_a_regular_expression_is_complete(group: Any) -> None:
    group.make_topic("tea", 1)
    group.make_topic("coffee", 1)
    answer = group.enter("a", regex="t.*")
    assert (answer.epoch, group.text(answer.assignment)) == (2, "t:0,1,2,3 tea:0")
    assert group.consumers().regexes["t.*"].topics == {"t", "tea"}


def test_names_and_a_regular_expression_go_together(group: Any) -> None:
    group.make_topic("tea", 1)
    group.make_topic("coffee", 1)
    assert group.text(group.enter("a", "coffee", regex="te.").assignment) == "coffee:0 tea:0"


def test_an_assignment_is_told_when_it_changed_or_everything_is_asked(group: Any) -> None:
    group.enter("a")
    assert group.heartbeat("a", 2).assignment is None
    assert group.heartbeat("a", 2, "t:0,1,2,3").assignment is None
    everything = {"topics": frozenset("t"), "rebalance_ms": 1000}
    assert group.text(group.heartbeat("a", 2, "t:0", **everything).assignment) == "t:0,1,2,3"
    assert group.text(group.enter("a").assignment) == "t:0,1,2,3"


def test_a_rejoin_that_changes_nothing_begins_no_epoch(group: Any) -> None:
    group.enter("a")
    assert group.enter("a").epoch == 2
    assert group.consumers().epoch == 2


def test_a_heartbeat_that_changes_nothing_is_not_journaled(group: Any) -> None:
    group.enter("a")
    before = len(group.journal)
    group.heartbeat("a", 2, "t:0,1,2,3")
    assert len(group.journal) == before


def test_a_member_without_a_topic_that_exists_has_nothing(group: Any) -> None:
    answer = group.enter("a", "later")
    assert (answer.epoch, answer.assignment) == (2, frozenset())
    assert group.consumers().state is ConsumerState.STABLE


@pytest.mark.parametrize("by", ["name", "regex"])
def test_a_topic_that_is_made_later_is_assigned_with_the_next_heartbeat(
    group: Any, by: str
) -> None:
    if by == "name":
        group.enter("a", "later")
    else:
        group.enter("a", regex="l.*")
    group.make_topic("later", 2)
    answer = group.heartbeat("a", 2)
    assert (answer.epoch, group.text(answer.assignment)) == (3, "later:0,1")


def test_a_topic_that_grows_or_goes_is_assigned_anew(group: Any) -> None:
    group.enter("a")
    group.make_topic("t", 6)
    assert group.text(group.heartbeat("a", 2).assignment) == "t:0,1,2,3,4,5"
    group.drop_topic("t")
    assert group.heartbeat("a", 3).assignment == frozenset()
    assert group.heartbeat("a", 3, "").epoch == 4


def test_topics_that_a_group_does_not_read_do_not_concern_it(group: Any) -> None:
    group.enter("a")
    group.make_topic("other", 6)
    before = len(group.journal)
    assert group.heartbeat("a", 2).epoch == 2
    assert len(group.journal) == before


def test_a_regular_expression_that_nobody_has_any_more_is_forgotten(group: Any) -> None:
    group.enter("a", regex="t.*")
    group.enter("b", regex="t.*")
    group.heartbeat("b", -1)
    assert list(group.consumers().regexes) == ["t.*"]
    group.heartbeat("a", 2, regex="", topics=frozenset({"t"}))
    assert group.consumers().regexes == {}
    assert group.holds("a") == "t:0,1,2,3"


def test_the_assignor_is_the_one_that_most_ask_for(group: Any) -> None:
    group.make_topic("u", 4)
    asked = iter(["range", None, "range", "uniform"])
    for member, assignor in zip("abcd", asked, strict=True):
        group.enter(member, assignor=assignor)
    assert group.consumers().assignor(default="uniform") == "range"


def test_an_assignment_waits_for_its_interval_if_one_is_set(group: Any) -> None:
    group.assignment_interval_ms = 1000
    assert group.enter("a").epoch == 2
    answer = group.enter("b")
    assert (answer.epoch, answer.assignment) == (2, frozenset())
    assert group.consumers().state is ConsumerState.ASSIGNING
    group.elapse(999)
    assert group.heartbeat("a", 2).epoch == 2
    group.elapse(1)
    group.settle("a", "b")
    assert (group.holds("a"), group.holds("b")) == ("t:0,1", "t:2,3")


def test_topics_that_are_unsubscribed_go_at_once_even_before_a_new_assignment(group: Any) -> None:
    group.assignment_interval_ms = 1000
    group.make_topic("u", 2)
    group.enter("a", "t", "u")
    answer = group.heartbeat("a", 2, topics=frozenset("u"))
    assert (answer.epoch, group.text(answer.assignment)) == (2, "u:0,1")
    assert group.consumers().state is ConsumerState.ASSIGNING


def test_a_clock_that_was_set_back_keeps_no_assignment_waiting(group: Any) -> None:
    group.assignment_interval_ms = 1000
    group.enter("a")
    group.set_back_ms = 3_600_000
    assert group.enter("b").epoch == 3


def test_members_that_ask_alike_share_one_set_of_topics(group: Any) -> None:
    """A pattern may match a hundred thousand topics, and each of a thousand members ask with it."""
    group.make_topic("tea", 1)
    for member, topics in (("a", []), ("b", []), ("c", ["u"]), ("d", ["u"])):
        group.enter(member, regex="t.*", topics=frozenset(topics))
    asked = group.consumers().subscriptions()
    assert asked["a"] is asked["b"]
    assert asked["c"] is asked["d"]
    assert asked["a"] == {"t", "tea"}
    assert asked["c"] == {"t", "tea", "u"}
    assert group.consumers().subscribed == {"t", "tea", "u"}
    existing = group.consumers().existing(group)
    assert existing == dict.fromkeys("abcd", frozenset({"t", "tea"}))
    assert len(set(map(id, existing.values()))) == 1


def test_a_heartbeat_looks_only_at_names_that_are_new_to_the_group(group: Any) -> None:
    """A member may name ten thousand topics that do not exist, and so may all others."""
    for member in "abc":
        group.enter(member, topics=frozenset({"t", f"unknown-{member}"}))
    group.looked_up.clear()
    group.enter("d", topics=frozenset({"t", "unknown-d"}))
    assert group.looked_up == [frozenset({"t", "unknown-d"})]
    assert group.consumers().existing(group) == dict.fromkeys("abcd", frozenset("t"))
    group.looked_up.clear()
    group.make_topic("unknown-a", 1)
    assert group.consumers().existing(group)["a"] == {"t", "unknown-a"}
    assert len(group.looked_up) == 4
