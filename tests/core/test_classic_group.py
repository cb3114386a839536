"""Classic groups: the tables of joins, syncs, heartbeats and leaves, rule by rule."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.errors import Why
from headrace.core.group_words import IdRequired, Joined, Peer, Phase, Synced
from headrace.core.types import MemberId

Groups = Callable[..., Any]
LONG = "x" * 32_768
M1 = MemberId("m1")
A, B, C = {"A": b"a"}, {"B": b"b"}, {"C": b"c"}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"group": ""}, Why.INVALID_GROUP),
        ({"group": LONG}, Why.INVALID_GROUP),
        ({"session_ms": 5_999}, Why.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, Why.INVALID_SESSION_TIMEOUT),
        ({"group": "shared"}, Why.INCONSISTENT_PROTOCOL),
        ({"group": "absent", "member": "m"}, Why.UNKNOWN_MEMBER),
        ({"kind": ""}, Why.INCONSISTENT_PROTOCOL),
        ({"offers": {}}, Why.INCONSISTENT_PROTOCOL),
        ({"kind": LONG}, Why.INVALID_REQUEST),
        ({"instance": LONG}, Why.INVALID_REQUEST),
        ({"offers": {LONG: b""}}, Why.INVALID_REQUEST),
    ],
)
def test_joins_that_are_refused(drive_groups: Groups, asked: dict[str, Any], why: Why) -> None:
    groups = drive_groups()
    groups.share_groups.add("shared")
    assert groups.join(**asked).why is why
    assert groups.shard.groups == {}  # and nothing is kept of the name
    assert groups.journal == []


def test_first_member_leads_generation_one(drive_groups: Groups) -> None:
    groups = drive_groups()
    joined = groups.join().answer()
    peers = (Peer(M1, None, b"topics"),)
    assert joined == Joined(M1, 1, "consumer", "range", M1, peers, skip_assignment=False)
    assert groups.group().phase is Phase.COMPLETING
    synced = groups.sync("m1", 1, {"m1": b"mine"}).answer()
    assert synced == Synced("consumer", "range", b"mine")
    assert groups.group().phase is Phase.STABLE


def test_new_member_has_to_come_back_with_its_id(drive_groups: Groups) -> None:
    groups = drive_groups()
    assert groups.join(id_required=True).answer() == IdRequired(M1)
    assert groups.group().phase is Phase.EMPTY
    assert groups.join("m1", id_required=True).answer().generation == 1
    assert groups.join("stranger").why is Why.UNKNOWN_MEMBER


def test_id_that_is_not_used_is_forgotten_with_its_group(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.join(id_required=True, session_ms=7_000)
    groups.elapse(6_999)
    assert "g" in groups.shard.groups
    groups.elapse(1)
    assert groups.shard.groups == {}
    assert groups.join("m1").why is Why.UNKNOWN_MEMBER


def test_leader_learns_of_all_and_followers_of_none(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.join()
    second = groups.join()
    assert second.answer() is None  # the first has to rejoin
    assert groups.beat("m1", 1) is Why.REBALANCE_IN_PROGRESS
    first = groups.join("m1")
    assert (first.answer().generation, second.answer().generation) == (2, 2)
    assert [peer.id for peer in first.answer().members] == ["m1", "m2"]
    assert second.answer().members == ()
    assert second.answer().leader == "m1"


@pytest.mark.parametrize(
    ("others", "kind", "fits"),
    [(A, "consumer", True), (A | B, "consumer", True), (B, "consumer", False), (A, "x", False)],
)
def test_members_need_a_protocol_in_common(
    drive_groups: Groups, others: dict[str, bytes], kind: str, fits: bool
) -> None:
    groups = drive_groups()
    groups.join(offers=A)
    assert (groups.join(offers=others, kind=kind).why is None) == fits


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        ((A | B | C, B | A, B | A | C), "B"),
        ((A | B, B | A), "A"),  # a tie goes by the leader's order
        ((B | A, A | B), "B"),
        ((A | B, B), "B"),  # what not all have is no choice
    ],
)
def test_protocol_that_most_prefer_wins(
    drive_groups: Groups, offers: tuple[dict[str, bytes], ...], chosen: str
) -> None:
    groups = drive_groups()
    for offered in offers:
        groups.join(offers=offered)
    assert groups.join("m1", offers=offers[0]).answer().protocol == chosen


def test_known_member_that_joins_again(drive_groups: Groups) -> None:
    groups = drive_groups()
    generation = groups.stable(2)
    assert groups.join("m2").answer().generation == generation  # nothing is new: it is told again
    assert groups.group().phase is Phase.STABLE
    changed = groups.join("m2", offers={"range": b"other topics"})
    assert changed.answer() is None
    leader = groups.join("m1").answer()
    assert leader.generation == generation + 1
    assert [peer.metadata for peer in leader.members] == [b"topics", b"other topics"]
    # The assignment is not there yet: who joins again as before is told again.
    assert groups.join("m1").answer() == leader
    assert groups.join("m2", offers={"range": b"other topics"}).answer() == changed.answer()
    assert groups.join("m2", offers={"range": b"third"}).answer() is None
    assert groups.group().phase is Phase.PREPARING


def test_leader_that_joins_again_always_rebalances(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.stable(2)
    assert groups.join("m1").answer() is None
    assert groups.group().phase is Phase.PREPARING


def test_join_that_is_asked_twice_is_answered_once_more(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.join()
    lost = groups.join()
    again = groups.join("m2")
    assert lost.why is Why.REBALANCE_IN_PROGRESS
    groups.join("m1")
    assert again.answer().generation == 2


def test_member_of_an_empty_group_is_unknown(drive_groups: Groups) -> None:
    groups = drive_groups()
    generation = groups.stable(1)
    assert groups.leave(("m1", None)) == [None]
    assert groups.group().phase is Phase.EMPTY
    assert (groups.group().generation, groups.group().protocol) == (generation + 1, None)
    assert groups.group().protocol_type == "consumer"
    assert groups.join("m1").why is Why.UNKNOWN_MEMBER
    assert groups.sync("m1", generation).why is Why.UNKNOWN_MEMBER
    assert groups.beat("m1", generation) is Why.UNKNOWN_MEMBER


@pytest.mark.parametrize(
    ("member", "generation", "told", "why"),
    [
        ("stranger", 2, {}, Why.UNKNOWN_MEMBER),
        ("m1", 1, {}, Why.ILLEGAL_GENERATION),
        ("m1", 2, {"protocol_type": "connect"}, Why.INCONSISTENT_PROTOCOL),
        ("m1", 2, {"protocol": "sticky"}, Why.INCONSISTENT_PROTOCOL),
        ("m1", 2, {"protocol_type": "consumer", "protocol": "range"}, None),
    ],
)
def test_syncs(
    drive_groups: Groups, member: str, generation: int, told: dict[str, str], why: Why | None
) -> None:
    groups = drive_groups()
    assert groups.stable(2) == 2
    assert groups.sync(member, generation, **told).why is why


def test_followers_wait_for_the_leaders_sync(drive_groups: Groups) -> None:
    groups = drive_groups()
    for _ in range(3):
        groups.join()
    groups.join("m1")
    follower = groups.sync("m2", 2)
    assert follower.answer() is None
    assert groups.beat("m2", 2) is None
    before = len(groups.journal)
    groups.sync("m1", 2, {"m1": b"1", "m2": b"2"})
    assert follower.answer().assignment == b"2"
    assert groups.sync("m3", 2, {"m3": b"ignored"}).answer().assignment == b""  # left out
    assert len(groups.journal) == before + 1


def test_rebalance_ends_syncs_that_wait(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.join()
    groups.join()
    groups.join("m1")
    waiting = groups.sync("m2", 2)
    groups.join()
    assert waiting.why is Why.REBALANCE_IN_PROGRESS
    assert groups.sync("m1", 2).why is Why.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("member", "generation", "why"),
    [
        ("m1", 2, None),
        ("m2", 2, None),
        ("m1", 3, Why.ILLEGAL_GENERATION),
        ("m1", -1, Why.ILLEGAL_GENERATION),
        ("stranger", 2, Why.UNKNOWN_MEMBER),
        ("", 2, Why.UNKNOWN_MEMBER),
    ],
)
def test_heartbeats(drive_groups: Groups, member: str, generation: int, why: Why | None) -> None:
    groups = drive_groups()
    groups.stable(2)
    assert groups.beat(member, generation) is why


def test_leaving_is_told_one_by_one_and_rebalances_once(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.stable(4)
    answers = groups.leave(("m2", None), ("stranger", None), ("m3", None), ("", None))
    assert answers == [None, Why.UNKNOWN_MEMBER, None, Why.UNKNOWN_MEMBER]
    groups.join("m1")
    waiting = groups.join("m4")
    assert waiting.answer().generation == groups.group().generation == 3
    assert list(groups.group().members) == ["m1", "m4"]


def test_leaving_nobody_or_no_group_changes_nothing(drive_groups: Groups) -> None:
    groups = drive_groups()
    assert groups.leave() == []
    assert groups.leave(("m1", None)) == [Why.UNKNOWN_MEMBER]
    assert groups.shard.groups == {}


def test_leader_that_leaves_is_followed_by_another(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.stable(2)
    groups.leave(("m1", None))
    answer = groups.join("m2").answer()
    assert answer.leader == "m2"
    assert [peer.id for peer in answer.members] == ["m2"]


def test_pending_id_that_leaves_is_not_waited_for(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.stable(1)
    groups.join(id_required=True)
    waiting = groups.join("m1")
    assert waiting.answer() is None  # for m2 to come back
    assert groups.leave(("m2", None)) == [None]
    assert waiting.answer().generation == 2


def test_waiting_member_that_is_removed_is_told(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.stable(1)
    waiting = groups.join()
    assert groups.leave(("m2", None)) == [None]
    assert waiting.why is Why.UNKNOWN_MEMBER
    assert groups.group().phase is Phase.PREPARING  # m1 was told to rejoin
    assert groups.join("m1").answer().generation == 2


def test_full_group_takes_only_whom_it_knows(drive_groups: Groups) -> None:
    groups = drive_groups(members_max=2)
    groups.stable(2)
    assert groups.join(id_required=True).why is Why.GROUP_FULL
    assert groups.join("m1").answer() is None
    groups.leave(("m2", None))
    assert groups.join(id_required=True).why is None
    # While it rebalances, those count who wait in it.
    groups = drive_groups(members_max=2)
    groups.stable(2)
    groups.join("m1")
    groups.join(offers={"range": b""})
    assert groups.join().why is Why.GROUP_FULL


def test_deleting_needs_an_empty_group(drive_groups: Groups) -> None:
    groups = drive_groups()
    assert groups.delete("g") is Why.UNKNOWN_GROUP
    assert groups.delete("") is Why.UNKNOWN_GROUP
    groups.stable(1)
    assert groups.delete("g") is Why.NON_EMPTY_GROUP
    groups.leave(("m1", None))
    groups.commit("g", 5)
    assert groups.delete("g") is None
    assert groups.shard.groups == {}
    assert groups.shard.offsets == {}
    assert groups.rebuilt().groups == {}
