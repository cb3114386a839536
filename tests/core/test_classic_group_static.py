"""Static members: who comes back under an instance id goes on where it was (KIP-345, KIP-814)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.core.errors import Why
from headrace.core.group_events import GroupStored
from headrace.core.group_words import Phase
from headrace.core.types import MemberId

Groups = Callable[..., Any]


def stable(groups: Any) -> None:
    """m1 (instance i1, leader) and m2 (instance i2) in generation 2."""
    groups.join(instance="i1")
    groups.join(instance="i2")
    groups.join("m1", instance="i1")
    groups.sync("m1", 2, {"m1": b"1", "m2": b"2"}, "i1")
    groups.sync("m2", 2, None, "i2")
    assert groups.group().phase is Phase.STABLE


def test_static_member_needs_no_second_join(drive_groups: Groups) -> None:
    groups = drive_groups()
    assert groups.join(instance="i1", id_required=True).answer().generation == 1


def test_follower_that_comes_back_keeps_its_assignment(drive_groups: Groups) -> None:
    groups = drive_groups()
    stable(groups)
    before = len(groups.journal)
    answer = groups.join(instance="i2").answer()
    assert (answer.member, answer.generation, answer.leader) == ("m3", 2, "m1")
    assert not answer.skip_assignment
    assert groups.sync("m3", 2, None, "i2").answer().assignment == b"2"
    assert len(groups.journal) == before + 1  # so that it is still m3 after a restart
    groups.restart()
    assert groups.beat("m3", 2, "i2") is None


def test_leader_that_comes_back_must_not_assign(drive_groups: Groups) -> None:
    groups = drive_groups()
    stable(groups)
    answer = groups.join(instance="i1").answer()
    assert (answer.leader, answer.skip_assignment) == ("m3", True)
    assert {peer.id for peer in answer.members} == {"m2", "m3"}
    groups = drive_groups()
    stable(groups)
    answer = groups.join(instance="i1", may_skip=False).answer()
    assert (answer.leader, answer.skip_assignment, answer.members) == ("m1", False, ())
    assert groups.sync("m3", 2, None, "i1").answer().assignment == b"1"


def test_other_subscription_is_no_rebalance_but_another_protocol_is(drive_groups: Groups) -> None:
    groups = drive_groups()
    stable(groups)
    assert groups.join(instance="i2", offers={"range": b"other"}).answer().generation == 2
    groups.join(instance="i2", offers={"sticky": b"", "range": b""})
    assert groups.group().phase is Phase.STABLE  # one vote each: the leader's range stays
    groups = drive_groups()
    stable(groups)
    assert groups.join(instance="i2", offers={"sticky": b""}).why is Why.INCONSISTENT_PROTOCOL
    groups = drive_groups()
    both = {"range": b"", "sticky": b""}
    groups.stable(1, instance="i1", offers=both)
    assert groups.join(instance="i1", offers=dict(reversed(both.items()))).answer().generation == 2


def test_coming_back_amid_the_assignment_rebalances(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.join(instance="i1")
    groups.join(instance="i2")
    groups.join("m1", instance="i1")
    waiting = groups.sync("m2", 2, None, "i2")
    again = groups.join(instance="i2")
    assert waiting.why is Why.FENCED_INSTANCE
    assert groups.group().phase is Phase.PREPARING
    groups.join("m1", instance="i1")
    assert again.answer().generation == 3


def test_waiting_join_of_the_old_id_is_fenced(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.stable(1)
    waiting = groups.join(instance="i")
    again = groups.join(instance="i")
    assert waiting.why is Why.FENCED_INSTANCE
    groups.join("m1")
    assert again.answer().generation == 2


@pytest.mark.parametrize(
    ("member", "instance", "why"),
    [
        ("m2", "i2", Why.FENCED_INSTANCE),
        ("m2", None, Why.UNKNOWN_MEMBER),
        ("m2", "unknown", Why.UNKNOWN_MEMBER),
        ("m3", "i2", None),
        ("m3", None, None),
    ],
)
def test_old_id_is_shut_out(
    drive_groups: Groups, member: str, instance: str | None, why: Why | None
) -> None:
    groups = drive_groups()
    stable(groups)
    groups.join(instance="i2")  # as m3
    assert groups.beat(member, 2, instance) is why
    assert groups.sync(member, 2, None, instance).why is why
    committed = groups.commit("g", 1, member, 2, instance)
    assert committed == ([None] if why is None else why)
    if why is not None:
        assert groups.join(member, instance=instance).why is why


@pytest.mark.parametrize(
    ("leaver", "why"),
    [
        (("m2", "i2"), None),
        (("", "i2"), None),  # an administrator knows the instance only
        (("m2", None), None),
        (("", "unknown"), Why.UNKNOWN_MEMBER),
        (("m1", "i2"), Why.FENCED_INSTANCE),
        (("", None), Why.UNKNOWN_MEMBER),
    ],
)
def test_leaving(drive_groups: Groups, leaver: tuple[str, str | None], why: Why | None) -> None:
    groups = drive_groups()
    stable(groups)
    assert groups.leave(leaver) == [why]
    assert ("m2" in groups.group().members) == (why is not None)


def test_static_member_that_does_not_rejoin_stays_until_its_session_ends(
    drive_groups: Groups,
) -> None:
    groups = drive_groups()
    times = {"session_ms": 30_000, "rebalance_ms": 10_000}
    groups.join(instance="i1", **times)
    groups.join(**times)
    groups.join("m1", instance="i1", **times)
    for member, instance in (("m1", "i1"), ("m2", None)):
        groups.sync(member, 2, None, instance)
    waiting = groups.join("m2", offers={"range": b"new"}, **times)
    groups.elapse(10_000)
    assert waiting.answer().generation == 3
    assert waiting.answer().leader == "m2"
    assert set(groups.group().members) == {"m1", "m2"}


@pytest.mark.parametrize("rebalance_ms", [10_000, 0])
def test_rebalance_waits_while_only_static_members_are_left(
    drive_groups: Groups, rebalance_ms: int
) -> None:
    groups = drive_groups()
    times = {"session_ms": 30_000, "rebalance_ms": rebalance_ms}
    groups.join(instance="i1", **times)
    groups.join(**times)
    groups.join("m1", instance="i1", **times)
    groups.sync("m1", 2, None, "i1")
    groups.leave(("m2", None))
    groups.elapse(25_000)  # and looks again as often as that says, but never all the time
    assert groups.group().phase is Phase.PREPARING
    assert list(groups.group().members) == ["m1"]
    groups.elapse(5_000)
    assert groups.group().phase is Phase.EMPTY


@pytest.mark.parametrize("leader", [None, MemberId("gone")])
def test_a_journal_whose_group_has_no_leader_can_be_served(
    drive_groups: Groups, leader: MemberId | None
) -> None:
    groups = drive_groups()
    stable(groups)
    stored = replace(groups.group().stored, leader=leader)
    groups.journal += groups.codec.records([GroupStored("g", stored)], groups.now.wall)
    groups.restart()
    assert groups.join(instance="i2").answer().leader == "m1"
