"""A name is a group of one protocol; it becomes one of the other when it has no members."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.core.consumer_events import ConsumerGroupDropped, HoldingDropped, TargetDropped
from headrace.core.consumer_group import ConsumerGroup
from headrace.core.consumer_words import ConsumerBeat
from headrace.core.errors import Refused, Why
from headrace.core.group_events import GroupDropped
from headrace.core.group_words import Commit, Join, Offset, Ticket
from headrace.core.types import MemberId

BEAT_MS, RETENTION_MS = 40_000, 60 * 60_000


@pytest.fixture
def group(drive_consumers: Callable[..., Any]) -> Any:
    return drive_consumers()


def committed(group: Any) -> int | None:
    found = group.shard.offsets["g"].get("t", 0)
    return None if found is None else found.offset


def commit(
    group: Any, member: str, generation: int, *indexes: int, tells_epoch: bool = True
) -> Any:
    view = group.topics["t"]
    offsets = tuple(Offset("t", index, 5, -1, "", view.id) for index in indexes)
    command = Commit("g", MemberId(member), None, generation, offsets, tells_epoch=tells_epoch)
    answer = group.do(command)
    return answer.why if isinstance(answer, Refused) else answer


# ---- from one kind to the other


def test_a_simple_group_becomes_one_of_the_new_protocol_with_its_offsets(group: Any) -> None:
    group.commit("g", 7, topic="t")
    assert group.enter("a").epoch == 2
    assert committed(group) == 7
    assert isinstance(group.rebuilt().groups["g"], ConsumerGroup)
    assert group.rebuilt().offsets["g"].get("t", 0).offset == 7


def test_an_empty_classic_group_becomes_one_of_the_new_protocol(group: Any) -> None:
    generation = group.stable(1)
    group.commit("g", 7, "m1", generation, topic="t")
    assert group.enter("a") is Why.OTHER_PROTOCOL, "it waits"
    assert group.group().members
    group.leave(("m1", None))
    answer = group.shard.decide(
        ConsumerBeat(
            "g", MemberId("a"), 0, topics=frozenset("t"), rebalance_ms=1, owned=frozenset()
        ),
        group.now,
    )
    assert answer.events[0] == GroupDropped("g")
    assert group.enter("a").epoch == 2
    assert committed(group) == 7
    assert group.rebuilt().groups["g"].members.keys() == {"a"}


def test_an_empty_group_of_the_new_protocol_becomes_a_classic_one(group: Any) -> None:
    group.enter("a", regex="t.*")
    commit(group, "a", 2, 0)
    assert group.join().why is Why.OTHER_PROTOCOL, "it waits"
    group.heartbeat("a", -1)
    assert group.join("m7").why is Why.UNKNOWN_MEMBER
    assert isinstance(group.shard.groups["g"], ConsumerGroup)
    assert group.join(offers={}).why is Why.INCONSISTENT_PROTOCOL
    assert isinstance(group.shard.groups["g"], ConsumerGroup)
    group.stable(1)
    assert committed(group) == 5
    assert group.rebuilt().groups["g"].generation == 1
    assert group.rebuilt().offsets["g"].get("t", 0).offset == 5


def test_an_id_that_was_only_given_out_makes_it_a_classic_group_too(group: Any) -> None:
    group.enter("a")
    commit(group, "a", 2, 0)
    group.heartbeat("a", -1)
    group.join(id_required=True)
    assert group.group().is_pending(MemberId("m1"))
    rebuilt = group.rebuilt().groups["g"]
    assert (rebuilt.protocol_type, rebuilt.is_empty) == ("consumer", True)


def test_who_only_asks_for_an_id_does_not_let_offsets_expire_early(group: Any) -> None:
    """They go by when the group became empty, not by commits that are older than that."""
    group.enter("a")
    commit(group, "a", 2, 0)
    for _ in range(2 * RETENTION_MS // BEAT_MS):
        group.elapse(BEAT_MS)
        group.heartbeat("a", 2)
    group.heartbeat("a", -1)
    emptied = group.mono
    group.join(id_required=True)
    group.restart()
    group.elapse(emptied + RETENTION_MS - 1 - group.mono)
    assert group.expire().offsets == 0
    group.elapse(1)
    assert group.expire().offsets == 1
    assert group.rebuilt().groups == {}


def test_a_refused_heartbeat_changes_no_groups_kind(group: Any) -> None:
    group.commit("g", 7, topic="t")
    assert group.enter("a", regex="(") is Why.INVALID_REGEX
    assert not group.group().members


def test_tombstones_of_another_kind_do_no_harm(group: Any) -> None:
    """Compaction may keep the tombstones of a kind that the group was before."""
    group.commit("g", 7, topic="t")
    group.enter("a")
    group.heartbeat("a", -1)
    group.stable(1)
    newest = {entry.key: entry for entry in group.journal}
    group.journal = [entry for entry in group.journal if newest[entry.key] is entry]
    assert any(entry.value is None for entry in group.journal)
    rebuilt = group.rebuilt()
    assert rebuilt.groups["g"].members.keys() == {"m1"}
    assert rebuilt.offsets["g"].get("t", 0).offset == 7


def test_a_tombstone_is_for_its_own_kind_and_makes_no_group(group: Any) -> None:
    for event in (HoldingDropped("g", MemberId("a")), TargetDropped("g"), GroupDropped("g")):
        group.shard.apply(event)
    assert group.shard.groups == {}
    group.enter("a")
    group.shard.apply(GroupDropped("g"))
    assert group.consumers().members.keys() == {"a"}
    group.join(group="h")
    group.shard.apply(TargetDropped("h"))
    group.shard.apply(ConsumerGroupDropped("h"))
    assert group.group("h").members.keys() == {"m1"}


def test_all_that_a_group_has_goes_with_it(group: Any) -> None:
    """Kafka may have left more than we would; its order is 8, 7, 6, 5, 16, 3."""
    group.enter("a", regex="t.*")
    entries = group.codec.records(group.consumers().ended(), group.now.wall)
    kinds = [int.from_bytes(entry.key[:2], "big") for entry in entries]
    assert kinds == [8, 7, 6, 5, 16, 3]
    assert all(entry.value is None for entry in entries)


# ---- classic requests to a group of the new protocol


def test_members_do_not_speak_the_classic_protocol(group: Any) -> None:
    group.enter("a")
    assert group.beat("a", 2) is Why.UNKNOWN_MEMBER
    assert group.sync("a", 2).why is Why.UNKNOWN_MEMBER
    join = Join(
        "g", MemberId("a"), None, MemberId("n"), "c", "/h", 10_000, 10_000, "consumer", (),
        Ticket(1),
    )  # fmt: skip
    assert group.do(join).why is Why.OTHER_PROTOCOL


@pytest.mark.parametrize("upgrades", [False, True])
@pytest.mark.parametrize("downgrades", [False, True])
def test_the_migration_policy_says_which_members_wait(
    group: Any, upgrades: bool, downgrades: bool
) -> None:
    """`group.consumer.migration.policy`: who may not wait fails as in Kafka."""
    limits = replace(group.consumer_limits, upgrades=upgrades, downgrades=downgrades)
    group.consumer_limits = limits
    group.stable(1)
    assert group.enter("a") is (Why.OTHER_PROTOCOL if upgrades else Why.UNKNOWN_GROUP)
    group.leave(("m1", None))
    group.enter("a")
    wanted = Why.OTHER_PROTOCOL if downgrades else Why.INCONSISTENT_PROTOCOL
    assert group.join().why is wanted


# ---- commits (groups-wire 8.4)


def test_commits_of_members_of_the_new_protocol(group: Any) -> None:
    group.enter("a")
    assert commit(group, "", -1, 0) is Why.UNKNOWN_MEMBER
    assert commit(group, "x", 2, 0) is Why.UNKNOWN_MEMBER
    assert commit(group, "a", 2, 0, tells_epoch=False) is Why.OLD_PROTOCOL
    assert commit(group, "a", 3, 0) is Why.WRONG_EPOCH
    assert commit(group, "a", 3) is Why.WRONG_EPOCH
    assert commit(group, "a", 1, 0) is Why.WRONG_EPOCH
    assert commit(group, "a", 2, 0, 99) == [None, None]  # its own or not


def test_who_is_behind_commits_for_what_it_has_had_since(group: Any) -> None:
    group.enter("a")
    group.enter("b")
    group.settle("a", "b")
    kept, lost = group.holds("a"), group.holds("b")
    assert (kept, lost) == ("t:0,1", "t:2,3")
    assert commit(group, "a", 2, 0, 1) == [None, None]
    assert commit(group, "a", 2, 0, 2) is Why.WRONG_EPOCH
    assert commit(group, "a", 1, 0) is Why.WRONG_EPOCH
    assert commit(group, "b", 2, 2) is Why.WRONG_EPOCH


def test_who_has_to_let_go_may_commit_until_it_has(group: Any) -> None:
    group.enter("a")
    group.enter("b")
    group.heartbeat("a", 2)
    assert commit(group, "a", 2, 2, 3) == [None, None]


def test_an_empty_group_takes_commits_from_outside(group: Any) -> None:
    group.enter("a")
    group.heartbeat("a", -1)
    assert commit(group, "", -1, 0) == [None]
    assert commit(group, "a", 2, 0) is Why.UNKNOWN_MEMBER


@pytest.mark.parametrize(
    ("member", "epoch", "why"),
    [
        (None, -1, None),
        (None, 2, Why.UNKNOWN_MEMBER),
        ("x", 2, Why.UNKNOWN_MEMBER),
        ("a", 2, None),
        ("a", 1, Why.WRONG_EPOCH),
        ("a", 3, Why.WRONG_EPOCH),
    ],
)
def test_who_fetches_offsets_has_to_be_up_to_date(
    group: Any, member: str | None, epoch: int, why: Why | None
) -> None:
    group.enter("a")
    refused = group.consumers().check_reader(member, epoch)
    assert (refused and refused.why) == why


# ---- the end of a group


def test_a_group_with_members_is_not_deleted(group: Any) -> None:
    group.enter("a")
    commit(group, "a", 2, 0)
    assert group.delete("g") is Why.NON_EMPTY_GROUP
    group.heartbeat("a", -1)
    before = len(group.journal)
    assert group.delete("g") is None
    kinds = [int.from_bytes(entry.key[:2], "big") for entry in group.journal[before:]]
    assert kinds == [1, 6, 3]  # as Kafka has them
    assert group.shard.groups == group.rebuilt().groups == {}
    assert group.shard.offsets == {}


def test_leaving_drops_a_members_records_in_kafkas_order(group: Any) -> None:
    group.enter("a", regex="t.*")
    before = len(group.journal)
    group.heartbeat("a", -1)
    dropped = group.journal[before:]
    kinds = [int.from_bytes(entry.key[:2], "big") for entry in dropped]
    assert kinds == [8, 7, 5, 16, 3]
    assert [entry.value is None for entry in dropped] == [True, True, True, True, False]
