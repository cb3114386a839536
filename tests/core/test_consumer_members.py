"""Members of a KIP-848 group come, go, and hand partitions over. groups-wire 8.2 and 8.3."""

import struct
from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.consumer_words import LEAVING_FOR_NOW, Beaten, ConsumerState, Progress
from headrace.core.errors import Why
from headrace.core.group_words import TIME_UNKNOWN, Timer
from headrace.core.types import MemberId
from headrace.log.consumer_group_records import GROUP_EPOCH, MEMBER

SESSION_MS, REBALANCE_MS = 45_000, 60_000


@pytest.fixture
def group(drive_consumers: Callable[..., Any]) -> Any:
    return drive_consumers()


def progress(group: Any, member: str) -> Progress:
    found: Progress = group.consumers().holdings[member].progress
    return found


# ---- one hands over to another


def test_a_partition_is_given_up_before_it_is_given_away(group: Any) -> None:
    group.enter("a")
    entered = group.enter("b")
    assert (entered.epoch, entered.assignment) == (3, frozenset())
    assert progress(group, "b") is Progress.UNRELEASED
    assert group.consumers().state is ConsumerState.RECONCILING

    told = group.heartbeat("a", 2)
    assert (told.epoch, group.text(told.assignment)) == (2, "t:0,1")
    assert progress(group, "a") is Progress.UNREVOKED
    assert group.heartbeat("b", 3).assignment is None

    assert group.heartbeat("a", 2).assignment is None  # not a word of what it owns
    assert group.heartbeat("a", 2, "t:0,1,2").epoch == 2  # not all of it yet
    assert group.heartbeat("b", 3).assignment is None

    assert group.heartbeat("a", 2, "t:0,1").epoch == 3
    given = group.heartbeat("b", 3)
    assert (given.epoch, group.text(given.assignment)) == (3, "t:2,3")
    assert group.consumers().state is ConsumerState.STABLE


def test_who_says_at_once_that_it_owns_none_of_it_need_not_say_it_twice(group: Any) -> None:
    group.enter("a")
    group.enter("b")
    answer = group.heartbeat("a", 2, "t:0")
    assert (answer.epoch, group.text(answer.assignment)) == (3, "t:0,1")


def test_what_is_free_is_given_before_the_rest(group: Any) -> None:
    group.make_topic("u", 2)
    group.enter("a", "t", "u")
    group.enter("b", "t", "u")
    group.make_topic("t", 8)  # four that nobody has
    answer = group.heartbeat("b", 3)
    assert group.text(answer.assignment).startswith("t:")
    assert progress(group, "b") is Progress.UNRELEASED
    group.settle("a", "b")
    assert sorted(len(group.consumers().holding(member)) for member in "ab") == [5, 5]


def test_a_new_target_while_letting_go_is_followed_afterwards(group: Any) -> None:
    group.enter("a")
    group.enter("b")
    group.heartbeat("a", 2)  # has to let go of two
    group.enter("c")
    answer = group.heartbeat("a", 2, "t:0,1,2,3")
    assert answer.epoch == 2
    group.settle("a", "b", "c")
    assert sorted(len(group.consumers().holding(member)) for member in "abc") == [1, 1, 2]


def test_who_lets_go_in_time_stays_however_often_the_target_changes(group: Any) -> None:
    """Each partition has all its time, and is free as soon as it was let go of."""
    group.make_topic("t", 24)
    group.enter("a")
    group.enter("b")
    group.heartbeat("a", 2)
    for newcomer in "cdef":
        given_up = group.consumers().holdings["a"].revoking
        assert given_up, newcomer
        owned = group.holds("a")  # it does as it was told, and says so
        group.elapse(REBALANCE_MS // 3)
        group.enter(newcomer)
        told = group.heartbeat("a", group.consumers().holdings["a"].epoch, owned)
        assert isinstance(told, Beaten), newcomer
        assert not given_up & group.consumers().holding("a")
        for other in "bcdef"[: "bcdef".index(newcomer)]:
            held = group.consumers().holdings[other]
            group.heartbeat(other, held.epoch, group.holds(other))
    group.settle(*"abcdef")
    assert {len(group.consumers().holding(member)) for member in "abcdef"} == {4}


def test_what_is_given_back_while_it_is_let_go_of_is_first_let_go_of(group: Any) -> None:
    group.enter("a")
    group.enter("b")
    group.heartbeat("a", 2)
    group.heartbeat("b", -1)
    assert group.heartbeat("a", 2).assignment is None
    assert group.text(group.heartbeat("a", 2, "t:0,1").assignment) == "t:0,1,2,3"


def test_who_does_not_let_go_in_time_is_removed(group: Any) -> None:
    group.enter("a")
    group.enter("b")
    group.heartbeat("a", 2, "t:0,1,2,3")
    group.elapse(REBALANCE_MS // 2)
    group.heartbeat("a", 2, "t:0,1,2,3")
    group.heartbeat("b", 3)
    group.elapse(REBALANCE_MS // 2 - 1)
    assert group.heartbeat("a", 2, "t:0,1,2,3").epoch == 2
    group.elapse(1)
    assert group.heartbeat("a", 2) is Why.UNKNOWN_MEMBER
    assert group.text(group.heartbeat("b", 3).assignment) == "t:0,1,2,3"


def test_who_let_go_in_time_stays(group: Any) -> None:
    group.enter("a")
    group.enter("b")
    group.heartbeat("a", 2)
    group.heartbeat("a", 2, "t:0,1")
    assert (Timer.REBALANCE, "a") not in group.consumers().timers


def test_a_rejoin_has_let_go_of_everything(group: Any) -> None:
    group.enter("a")
    group.enter("b")
    group.heartbeat("a", 2)
    assert group.text(group.enter("a").assignment) == "t:0,1"
    assert group.text(group.heartbeat("b", 3).assignment) == "t:2,3"


# ---- leaving


@pytest.mark.parametrize("told", [{}, {"instance": "i"}])
def test_who_leaves_is_gone_and_the_others_have_its_partitions(group: Any, told: Any) -> None:
    group.enter("a", **told)
    group.enter("b")
    group.settle("a", "b")
    assert group.heartbeat("a", -1, **told) == Beaten(MemberId("a"), -1, 0, None)
    assert list(group.consumers().members) == ["b"]
    answer = group.heartbeat("b", 3)
    assert (answer.epoch, group.text(answer.assignment)) == (4, "t:0,1,2,3")


def test_the_last_member_leaves_an_empty_group(group: Any) -> None:
    group.enter("a", regex="t")
    assert group.consumers().empty_since == TIME_UNKNOWN
    group.elapse(10)
    group.heartbeat("a", -1)
    left = group.consumers()
    assert left.state is ConsumerState.EMPTY
    assert left.empty_since == group.now.wall
    assert (left.epoch, left.members, left.targets, left.regexes, left.timers) == (
        3,
        {},
        {},
        {},
        {},
    )
    assert group.enter("b").epoch == 4
    assert group.consumers().empty_since == TIME_UNKNOWN


def test_who_is_silent_is_removed(group: Any) -> None:
    group.enter("a")
    group.elapse(SESSION_MS - 1)
    assert group.heartbeat("a", 2).epoch == 2
    group.elapse(SESSION_MS - 1)
    assert group.consumers().members
    group.elapse(1)
    assert group.consumers().empty_since == group.now.wall
    assert group.heartbeat("a", 2) is Why.UNKNOWN_MEMBER


def test_several_that_are_silent_are_one_new_epoch(group: Any) -> None:
    for member in "abc":
        group.enter(member)
    group.elapse(SESSION_MS)
    assert group.consumers().epoch == 5


def test_members_are_removed_from_outside_by_id_or_instance(group: Any) -> None:
    for member, instance in (("a", None), ("s", "i"), ("u", "j")):
        group.enter(member, instance=instance)
    epoch = group.consumers().epoch
    answers = group.leave(("a", None), ("x", None), ("", "i"), ("a", "j"), ("", "none"))
    assert answers == [None, Why.UNKNOWN_MEMBER, None, Why.FENCED_INSTANCE, Why.UNKNOWN_MEMBER]
    assert list(group.consumers().members) == ["u"]
    assert group.consumers().epoch == epoch + 1


# ---- static members


def test_a_static_member_that_is_back_has_what_it_had(group: Any) -> None:
    group.enter("s", instance="i")
    group.enter("b")
    group.settle("s", "b")
    had, epoch = group.holds("s"), group.consumers().epoch
    assert group.heartbeat("s", -2, instance="i") == Beaten(MemberId("s"), -2, 0, None)
    assert group.consumers().state is ConsumerState.RECONCILING
    assert group.holds("s") == had

    answer = group.enter("s2", instance="i")
    assert (answer.epoch, group.text(answer.assignment)) == (epoch, had)
    assert group.consumers().epoch == epoch
    assert sorted(group.consumers().members) == ["b", "s2"]
    assert group.consumers().state is ConsumerState.STABLE
    assert group.heartbeat("s", epoch, instance="i") is Why.FENCED_INSTANCE
    assert group.heartbeat("s", epoch) is Why.UNKNOWN_MEMBER


def test_a_static_member_may_be_back_under_its_own_id(group: Any) -> None:
    group.enter("s", instance="i")
    group.heartbeat("s", -2, instance="i")
    assert group.heartbeat("s", 2, instance="i") is Why.STALE_EPOCH
    assert group.text(group.enter("s", instance="i").assignment) == "t:0,1,2,3"


def test_a_static_member_that_asks_for_other_topics_begins_an_epoch(group: Any) -> None:
    group.make_topic("u", 1)
    group.enter("s", instance="i")
    group.heartbeat("s", -2, instance="i")
    answer = group.enter("s2", "u", instance="i")
    assert (answer.epoch, group.text(answer.assignment)) == (3, "u:0")


def test_a_member_that_takes_the_place_of_another_leaves_its_own(group: Any) -> None:
    group.enter("s", instance="i")
    group.enter("a")
    group.settle("s", "a")
    group.heartbeat("s", -2, instance="i")
    group.enter("a", instance="i")
    assert list(group.consumers().members) == ["a"]
    assert group.holds("a") == "t:0,1,2,3"


def test_a_static_member_that_had_to_let_go_has_done_so_when_it_is_away(group: Any) -> None:
    group.enter("s", instance="i")
    group.enter("b")
    group.heartbeat("s", 2)
    group.heartbeat("s", -2, instance="i")
    held = group.consumers().holdings["s"]
    assert (held.epoch, held.revoking) == (LEAVING_FOR_NOW, frozenset())
    assert group.text(group.heartbeat("b", 3).assignment) == "t:2,3"
    group.elapse(SESSION_MS - 1)
    assert "s" in group.consumers().members


def test_a_static_member_that_does_not_come_back_is_removed(group: Any) -> None:
    group.enter("s", instance="i")
    group.heartbeat("s", -2, instance="i")
    group.elapse(SESSION_MS)
    assert group.consumers().state is ConsumerState.EMPTY


# ---- a broker that restarts


def test_after_a_restart_everybody_has_all_its_time_anew(group: Any) -> None:
    group.enter("a")
    group.enter("b")
    group.heartbeat("a", 2)
    group.elapse(SESSION_MS - 1)
    group.restart()
    deadlines = dict(group.consumers().timers)
    assert deadlines == {
        (Timer.SESSION, "a"): group.mono + SESSION_MS,
        (Timer.SESSION, "b"): group.mono + SESSION_MS,
        (Timer.REBALANCE, "a"): group.mono + REBALANCE_MS,
    }
    assert group.heartbeat("a", 2, "t:0,1").epoch == 3


def test_what_became_of_topics_while_the_broker_was_down_is_noticed(group: Any) -> None:
    group.enter("a", regex="t.*")
    group.make_topic("tea", 1)
    group.restart()
    assert group.text(group.heartbeat("a", 2).assignment) == "t:0,1,2,3 tea:0"


# ---- a journal that lost records, and was repaired


def lose(group: Any, kind: int, member: str = "") -> None:
    """Remove the records of a type and a member from the journal."""
    key = struct.pack(">hh", kind, 1) + b"g"
    if member:
        key += struct.pack(">h", len(member)) + member.encode()
    kept = [entry for entry in group.journal if entry.key != key]
    assert len(kept) < len(group.journal)
    group.journal = kept


@pytest.mark.parametrize("others", [["b"], []])
def test_partitions_of_a_lost_member_are_free_when_its_session_ends(
    group: Any, others: list[str]
) -> None:
    group.enter("a")
    for member in others:
        group.enter(member)
    lose(group, MEMBER, "a")
    group.restart()
    assert group.heartbeat("a", 2) is Why.UNKNOWN_MEMBER
    group.elapse(SESSION_MS - 1)
    group.enter("c")
    assert group.heartbeat("c", group.consumers().epoch).assignment is None
    group.elapse(1)
    assert "a" not in group.consumers().holdings
    assert group.rebuilt().groups["g"].holdings.keys() == {"c"}
    group.settle("c")
    assert group.holds("c") == "t:0,1,2,3"


def test_a_lost_member_may_join_again_before_its_session_ends(group: Any) -> None:
    group.enter("a")
    lose(group, MEMBER, "a")
    group.restart()
    assert group.text(group.enter("a").assignment) == "t:0,1,2,3"
    group.elapse(SESSION_MS - 1)
    assert group.consumers().members.keys() == {"a"}


def test_a_group_whose_epoch_was_lost_has_a_new_target_at_once(group: Any) -> None:
    members = ["a", "b", "c", "d"]
    for member in members:
        group.enter(member)
    group.settle(*members)
    lose(group, GROUP_EPOCH)
    group.restart()
    group.heartbeat("a", -1)
    group.settle(*members[1:])
    assert sum(len(group.holds(member).split(",")) for member in members[1:]) == 4


def test_an_epoch_that_a_member_was_in_is_not_used_again(group: Any) -> None:
    group.enter("a")
    before = len(group.journal)
    group.enter("b")
    lost = slice(before, len(group.journal))
    group.heartbeat("a", 2, "t:0,1")
    assert (group.consumers().holdings["a"].epoch, group.holds("a")) == (3, "t:0,1")
    del group.journal[lost]
    group.restart()
    assert group.consumers().epoch == 2
    group.enter("c", "u")
    group.settle("a", "c")
    assert group.holds("a") == "t:0,1,2,3"


def test_partitions_that_a_target_leaves_out_are_assigned_after_a_restart(group: Any) -> None:
    group.enter("a")
    before = len(group.journal)
    group.enter("b")
    lost = slice(before, len(group.journal))
    group.enter("c")
    group.heartbeat("a", 2, "t:0")
    del group.journal[lost]
    group.restart()
    assert {id_: group.text(one) for id_, one in group.consumers().targets.items()} == {
        "a": "t:0",
        "c": "t:1",
    }
    group.settle("a", "c")
    assert (group.holds("a"), group.holds("c")) == ("t:0,2", "t:1,3")


def test_a_restart_begins_no_epoch_when_nothing_was_lost(group: Any) -> None:
    group.make_topic("u", 3)
    group.enter("a")
    group.enter("b", "t", "u")
    group.enter("c", regex="u.*", instance="i")
    group.settle("a", "b", "c")
    epoch = group.consumers().epoch
    group.heartbeat("c", -2, instance="i")
    group.restart()
    group.settle("a", "b")
    assert group.consumers().epoch == epoch
