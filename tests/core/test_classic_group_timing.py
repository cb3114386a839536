"""Classic groups and time: join phases, sessions, ids that wait, what a restart begins anew."""

from collections.abc import Callable
from typing import Any

from headrace.core.errors import Why
from headrace.core.group_words import Phase

Groups = Callable[..., Any]


def test_first_rebalance_waits_for_more_members(drive_groups: Groups) -> None:
    """Joins at 0 and 2 s with a delay of 3 s are answered at 6 s; a lone one at 3 s."""
    groups = drive_groups(initial_delay_ms=3_000)
    first = groups.join()
    groups.elapse(2_000)
    second = groups.join()
    groups.elapse(3_999)
    assert (first.answer(), second.answer()) == (None, None)
    groups.elapse(1)
    assert first.answer().generation == second.answer().generation == 1
    groups = drive_groups(initial_delay_ms=3_000)
    alone = groups.join(rebalance_ms=1_000)  # even when it wants less
    groups.elapse(2_999)
    assert alone.answer() is None
    groups.elapse(1)
    assert alone.answer().generation == 1


def test_first_rebalance_is_put_off_no_longer_than_members_allow(drive_groups: Groups) -> None:
    groups = drive_groups(initial_delay_ms=3_000)
    first = groups.join(rebalance_ms=7_000)
    for _ in range(6):
        groups.elapse(1_000)
        groups.join()
    groups.elapse(999)
    assert first.answer() is None
    groups.elapse(1)
    assert first.answer().generation == 1
    assert len(first.answer().members) == 7


def test_first_rebalance_that_nobody_waits_for_leaves_an_empty_group(drive_groups: Groups) -> None:
    groups = drive_groups(initial_delay_ms=3_000)
    waiting = groups.join()
    groups.leave(("m1", None))
    assert waiting.why is Why.UNKNOWN_MEMBER
    groups.elapse(3_000)
    assert groups.group().phase is Phase.EMPTY
    assert groups.group().timers == {}


def test_later_rebalances_wait_for_all_but_not_forever(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.stable(3, rebalance_ms=20_000, session_ms=30_000)
    waiting = groups.join("m2", offers={"range": b"new"}, rebalance_ms=20_000, session_ms=30_000)
    groups.elapse(19_999)
    assert groups.beat("m1", 2) is Why.REBALANCE_IN_PROGRESS
    assert waiting.answer() is None
    groups.elapse(1)
    assert waiting.answer().generation == 3
    assert waiting.answer().leader == "m2"  # who rejoined leads
    assert list(groups.group().members) == ["m2"]
    assert groups.join("m1").why is Why.UNKNOWN_MEMBER


def test_silent_member_is_removed(drive_groups: Groups) -> None:
    groups = drive_groups()
    generation = groups.stable(2, session_ms=10_000)
    groups.elapse(6_000)
    assert groups.beat("m1", generation) is None
    groups.elapse(4_000)
    assert groups.group().phase is Phase.PREPARING
    assert list(groups.group().members) == ["m1"]
    groups.elapse(6_000)
    assert groups.group().phase is Phase.EMPTY
    assert groups.group().timers == {}


def test_sync_in_a_stable_group_renews_the_session(drive_groups: Groups) -> None:
    """A follower that joins again after a lost connection is in its generation at once."""
    groups = drive_groups()
    generation = groups.stable(2, session_ms=10_000)
    groups.elapse(9_000)
    assert groups.beat("m1", generation) is None
    assert groups.join("m2", session_ms=10_000).answer().generation == generation
    assert groups.sync("m2", generation).answer().assignment
    groups.elapse(9_999)
    assert list(groups.group().members) == ["m1", "m2"]
    groups.elapse(1)
    assert groups.group().members == {}


def test_waiting_request_stands_for_heartbeats(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.stable(2, session_ms=10_000, rebalance_ms=60_000)
    waiting = groups.join("m2", offers={"range": b"x"}, session_ms=10_000, rebalance_ms=60_000)
    for _ in range(5):
        groups.elapse(9_000)
        groups.beat("m1", 2)
    assert "m2" in groups.group().members
    groups.join("m1")
    assert waiting.answer().generation == 3
    groups.elapse(10_000)  # and from its answer on it has a session again
    assert "m2" not in groups.group().members


def test_new_member_waits_five_minutes_at_most(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.stable(1, rebalance_ms=1_000_000, session_ms=1_000_000)
    waiting = groups.join()
    groups.elapse(299_999)
    assert waiting.answer() is None
    groups.elapse(1)
    assert waiting.why is Why.UNKNOWN_MEMBER
    assert list(groups.group().members) == ["m1"]


def test_pending_id_holds_a_rebalance_up_until_its_session_ends(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.stable(1)
    groups.join(id_required=True, session_ms=7_000)
    waiting = groups.join("m1")
    groups.elapse(6_999)
    assert waiting.answer() is None
    groups.elapse(1)
    assert waiting.answer().generation == 2


def test_member_that_never_syncs_is_removed(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.join(rebalance_ms=4_000)
    groups.elapse(3_999)
    assert groups.beat("m1", 1) is None
    groups.elapse(1)
    assert groups.beat("m1", 1) is Why.UNKNOWN_MEMBER
    assert groups.group().phase is Phase.EMPTY


def test_follower_that_never_syncs_is_removed_from_a_stable_group(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.join(rebalance_ms=4_000)
    groups.join(rebalance_ms=4_000)
    groups.join("m1", rebalance_ms=4_000)
    groups.sync("m1", 2)
    assert groups.group().phase is Phase.STABLE
    groups.elapse(4_000)
    assert list(groups.group().members) == ["m1"]
    assert groups.beat("m1", 2) is Why.REBALANCE_IN_PROGRESS


def test_leader_that_never_syncs_sends_its_followers_to_rejoin(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.join(rebalance_ms=4_000)
    groups.join(rebalance_ms=4_000)
    groups.join("m1", rebalance_ms=4_000)
    waiting = groups.sync("m2", 2)
    groups.elapse(4_000)
    assert waiting.why is Why.REBALANCE_IN_PROGRESS
    assert groups.join("m2").answer().leader == "m2"


def test_commit_stands_for_a_heartbeat(drive_groups: Groups) -> None:
    groups = drive_groups()
    generation = groups.stable(1, session_ms=10_000)
    groups.elapse(9_000)
    assert groups.commit("g", 1, "m1", generation) == [None]
    groups.elapse(9_000)
    assert groups.beat("m1", generation) is None


def test_restart_goes_on_with_the_generation_that_was_assigned(drive_groups: Groups) -> None:
    groups = drive_groups()
    generation = groups.stable(2, session_ms=10_000)
    groups.elapse(9_000)
    groups.restart()
    assert groups.group().phase is Phase.STABLE
    assert groups.sync("m2", generation).answer().assignment == b"m2"
    groups.elapse(9_999)  # a whole session for everybody
    assert groups.beat("m1", generation) is None
    groups.elapse(1)
    assert list(groups.group().members) == ["m1"]


def test_restart_forgets_what_was_not_assigned(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.stable(1)
    groups.join()
    groups.restart()
    assert groups.group().phase is Phase.STABLE
    assert list(groups.group().members) == ["m1"]
    assert groups.join("m2").why is Why.UNKNOWN_MEMBER


def test_restart_with_a_lower_limit_rebalances(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.stable(3)
    groups.limits = type(groups.limits)(members_max=2)
    groups.restart()
    assert groups.group().phase is Phase.PREPARING
    assert groups.join("m1").why is None
    assert groups.join("m2").why is None
    assert groups.join("m3").why is Why.GROUP_FULL


def test_heartbeats_leave_nothing_behind(drive_groups: Groups) -> None:
    """A deadline that comes first keeps those behind it from being met."""
    groups = drive_groups()
    generation = groups.stable(1, session_ms=1_800_000)
    groups.join(group="other", session_ms=60_000)
    for _ in range(10_000):
        groups.elapse(1)
        assert groups.beat("m1", generation) is None
    assert len(groups.shard._due) < 2_000
    groups.elapse(1_799_999)
    assert groups.group().phase is Phase.STABLE
    groups.elapse(1)
    assert groups.group().phase is Phase.EMPTY


def test_who_waits_already_takes_no_second_place_in_a_full_group(drive_groups: Groups) -> None:
    groups = drive_groups(members_max=1, initial_delay_ms=3_000)
    first = groups.join()
    again = groups.join("m1")
    assert first.why is Why.REBALANCE_IN_PROGRESS
    assert again.why is None
    assert groups.join().why is Why.GROUP_FULL
