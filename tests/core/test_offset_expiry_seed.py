"""When committed offsets expire: the tables of KIP-211, and what Kafka 4.3.1 was seen to do.

On a clock that stands still unless it is told to go on. The retention is an hour; every limit is
tried a millisecond early, when nothing may happen, and to the millisecond, when it has to.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.core.errors import Why
from headrace.core.group_events import GroupStored
from headrace.core.group_words import TIME_UNKNOWN, Cause, Expired, Phase, Snapshot
from headrace.log.group_records import CAUSE_HEADER

Groups = Callable[..., Any]
Subscribing = Callable[..., bytes]
MINUTE = 60_000
HOUR = 60 * MINUTE
LONG = 500 * HOUR
NOTHING = Expired(0, (), 0)


@pytest.fixture
def groups(drive_groups: Groups) -> Any:
    """A shard whose members are patient: only offsets grow old."""
    return drive_groups(session_ms_max=LONG)


@pytest.fixture
def consumers(groups: Any, subscribing: Subscribing) -> Callable[..., int]:
    """Makes a Stable group "g" of two members; its generation."""

    def make(*topics: str, told: bytes | None = None, kind: str = "consumer") -> int:
        offers = {"range": subscribing(*topics) if told is None else told}
        generation = groups.stable(2, offers=offers, kind=kind, session_ms=LONG, rebalance_ms=LONG)
        return int(generation)

    return make


def leave(groups: Any) -> None:
    assert groups.leave(("m1", None), ("m2", None)) == [None, None]
    assert groups.group().phase is Phase.EMPTY


def rejoin(groups: Any, member: str, told: bytes) -> None:
    groups.join(member, offers={"range": told}, session_ms=LONG, rebalance_ms=LONG)


def expires_after(groups: Any, ms: int, *, left: tuple[str, ...] = (), removed: int = 0) -> None:
    """Nothing goes until `ms` have passed; then all does but `left`, and groups if so."""
    before = groups.kept()
    groups.elapse(ms - 1)
    assert groups.expire() == NOTHING
    assert groups.kept() == before
    groups.elapse(1)
    assert groups.expire() == Expired(len(before) - len(left), ("g",), removed)
    assert groups.kept() == list(left)


def is_dead(groups: Any) -> bool:
    """Whether the group is gone, also for who reads its journal."""
    return "g" not in groups.shard.groups and "g" not in groups.rebuilt().groups


# ---- KIP-211, "The following table summarizes ..."


@pytest.mark.parametrize("kind", ["consumer", "connect"])
def test_table_row_1_empty_group_with_a_protocol_type(
    groups: Any, consumers: Callable[..., int], kind: str
) -> None:
    """All offsets, by when the group became empty; and the group transitions to Dead."""
    generation = consumers("topic", kind=kind)
    groups.commit("g", 5, "m1", generation)
    groups.elapse(2 * HOUR)
    groups.commit("g", 5, "m1", generation, topic="late")
    groups.elapse(HOUR // 2)
    leave(groups)
    expires_after(groups, HOUR, removed=1)
    assert is_dead(groups)


def test_table_row_2_partitions_that_a_group_does_not_consume_from(
    groups: Any, consumers: Callable[..., int]
) -> None:
    """Each by its commit; the others stay, however old."""
    generation = consumers("topic")
    groups.commit("g", 5, "m1", generation)
    groups.commit("g", 5, "m1", generation, topic="old")
    groups.elapse(MINUTE)
    groups.commit("g", 5, "m1", generation, topic="older")
    expires_after(groups, HOUR - MINUTE, left=("older", "topic"))
    expires_after(groups, MINUTE, left=("topic",))
    groups.elapse(LONG // 5)
    assert groups.expire() == NOTHING
    assert groups.kept() == ["topic"]


def test_table_row_3_empty_group_without_a_protocol_type(groups: Any) -> None:
    """A simple consumer: each by its commit; and the group goes with its last offset."""
    groups.commit("g", 5, topic="first")
    groups.elapse(MINUTE)
    groups.commit("g", 5, topic="second")
    expires_after(groups, HOUR - MINUTE, left=("second",))
    assert "g" in groups.shard.groups
    expires_after(groups, MINUTE, removed=1)
    assert is_dead(groups)


# ---- KIP-211, "This is a breakdown of group states and how the offsets expiration works"


def stable(groups: Any, told: bytes) -> None:
    assert groups.group().phase is Phase.STABLE


def preparing(groups: Any, told: bytes) -> None:
    rejoin(groups, "m1", told)
    assert groups.group().phase is Phase.PREPARING


def completing(groups: Any, told: bytes) -> None:
    rejoin(groups, "m1", told)
    rejoin(groups, "m2", told)
    assert groups.group().phase is Phase.COMPLETING


@pytest.mark.parametrize("into", [stable, preparing, completing])
def test_offsets_do_not_expire_in_a_group_that_is_not_empty(
    groups: Any,
    consumers: Callable[..., int],
    subscribing: Subscribing,
    into: Callable[[Any, bytes], None],
) -> None:
    groups.commit("g", 5, "m1", consumers("topic"))
    into(groups, subscribing("topic"))
    groups.elapse(LONG // 5)
    assert groups.expire() == NOTHING
    assert groups.kept() == ["topic"]


@pytest.mark.parametrize("into", [preparing, completing])
def test_amid_a_rebalance_nothing_expires_subscribed_or_not(
    groups: Any,
    consumers: Callable[..., int],
    subscribing: Subscribing,
    into: Callable[[Any, bytes], None],
) -> None:
    """As Kafka has it: who is still to come may subscribe to it again."""
    groups.commit("g", 5, "m1", consumers("topic"), topic="other", retention_ms=0)
    into(groups, subscribing("topic"))
    groups.elapse(2 * HOUR)
    assert groups.expire() == NOTHING
    assert groups.kept() == ["other"]


def test_empty_counts_from_when_the_group_last_became_so(
    groups: Any, consumers: Callable[..., int], subscribing: Subscribing
) -> None:
    """Who comes back in time resets the timer."""
    groups.commit("g", 5, "m1", consumers("topic"))
    leave(groups)
    groups.elapse(HOUR - 1)
    groups.join(offers={"range": subscribing("topic")}, session_ms=LONG, rebalance_ms=LONG)
    groups.sync("m3", groups.group().generation, {"m3": b""})
    assert groups.group().phase is Phase.STABLE
    groups.elapse(HOUR)
    assert groups.expire() == NOTHING
    groups.leave(("m3", None))
    expires_after(groups, HOUR, removed=1)


def test_dead_needs_nothing_more(groups: Any, consumers: Callable[..., int]) -> None:
    groups.commit("g", 5, "m1", consumers("topic"))
    leave(groups)
    groups.elapse(HOUR)
    groups.expire()
    assert is_dead(groups)
    groups.elapse(HOUR)
    assert groups.expire("g") == NOTHING
    assert groups.commit("g", 5, "m1", 1) is Why.UNKNOWN_GROUP


# ---- KIP-211, "Compatibility": retention that an old client chose


def test_an_old_client_without_a_retention_of_its_own_has_the_brokers(groups: Any) -> None:
    groups.commit("g", 5, retention_ms=None)
    expires_after(groups, HOUR, removed=1)


@pytest.mark.parametrize("retention_ms", [MINUTE, 3 * HOUR])
def test_a_retention_of_its_own_counts_from_the_commit(groups: Any, retention_ms: int) -> None:
    groups.commit("g", 5, retention_ms=retention_ms)
    expires_after(groups, retention_ms, removed=1)


@pytest.mark.parametrize("retention_ms", [0, -2])
def test_a_retention_of_nothing_ends_with_the_next_look(groups: Any, retention_ms: int) -> None:
    groups.commit("g", 5, retention_ms=retention_ms)
    assert groups.expire() == Expired(1, ("g",), 1)


@pytest.mark.parametrize("retention_ms", [MINUTE, 3 * HOUR])
def test_a_retention_of_its_own_overrides_when_the_group_became_empty(
    groups: Any, consumers: Callable[..., int], retention_ms: int
) -> None:
    groups.commit("g", 5, "m1", consumers("topic"), retention_ms=retention_ms)
    leave(groups)
    expires_after(groups, retention_ms, removed=1)


def test_a_partly_expired_group_stays(groups: Any, consumers: Callable[..., int]) -> None:
    generation = consumers("topic")
    groups.commit("g", 5, "m1", generation)
    groups.commit("g", 5, "m1", generation, topic="kept", retention_ms=2 * HOUR)
    leave(groups)
    expires_after(groups, HOUR, left=("kept",))
    assert groups.group().phase is Phase.EMPTY
    expires_after(groups, HOUR, removed=1)


# ---- Kafka 4.3.1's decisions, row by row, where KIP-211 does not have them above


@pytest.mark.parametrize("retention_ms", [None, MINUTE])
@pytest.mark.parametrize(
    ("kind", "told", "committed", "base"),
    [
        pytest.param("consumer", None, "topic", None, id="consumer, subscribed"),
        pytest.param("consumer", None, "other", "commit", id="consumer, not subscribed"),
        pytest.param("consumer", b"", "other", None, id="consumer, nobody can read what it says"),
        pytest.param("consumer", b"\0\0\x7f\xff\xff\xff", "other", None, id="impossible length"),
        pytest.param("connect", None, "other", None, id="of another type"),
    ],
)
def test_stable_classic_groups(
    groups: Any, consumers: Callable[..., int], retention_ms: int | None,
    kind: str, told: bytes | None, committed: str, base: str | None,
) -> None:  # fmt: skip
    generation = consumers("topic", told=told, kind=kind)
    groups.commit("g", 5, "m1", generation, topic=committed, retention_ms=retention_ms)
    if base is None:
        groups.elapse(LONG // 5)
        assert groups.expire() == NOTHING
        assert groups.kept() == [committed]
    else:
        expires_after(groups, retention_ms or HOUR)
        assert groups.group().phase is Phase.STABLE


def test_empty_since_nobody_knows_when(groups: Any, consumers: Callable[..., int]) -> None:
    """As old brokers wrote it: then by the commit."""
    groups.commit("g", 5, "m1", consumers("topic"))
    groups.elapse(HOUR // 2)
    leave(groups)
    unknown = replace(groups.group().stored, state_at=TIME_UNKNOWN)
    groups.take([GroupStored("g", unknown)])
    expires_after(groups, HOUR // 2, removed=1)


def test_simple_groups_of_which_something_is_stored(groups: Any) -> None:
    """As Kafka does for every group that is new; they go by the commit all the same."""
    groups.take([GroupStored("g", Snapshot(None, 0, None, None, groups.now.wall, ()))])
    groups.elapse(HOUR // 2)
    groups.commit("g", 5)
    expires_after(groups, HOUR, removed=1)


def test_a_subscription_that_changes(
    groups: Any, consumers: Callable[..., int], subscribing: Subscribing
) -> None:
    """What the group turns away from has its retention from its last commit on."""
    generation = consumers("topic", "other")
    for topic in ("topic", "other"):
        groups.commit("g", 5, "m1", generation, topic=topic)
    groups.elapse(2 * HOUR)
    assert groups.expire() == NOTHING
    for member in ("m1", "m2"):
        rejoin(groups, member, subscribing("topic"))
    groups.sync("m1", generation + 1, {})
    assert groups.group().phase is Phase.STABLE
    assert groups.expire() == Expired(1, ("g",), 0)
    assert groups.kept() == ["topic"]


def test_one_member_is_enough_to_keep_a_topic(
    groups: Any, consumers: Callable[..., int], subscribing: Subscribing
) -> None:
    generation = consumers("topic")
    for member, topic in (("m1", "topic"), ("m2", "other")):
        rejoin(groups, member, subscribing(topic))
    groups.sync("m1", generation + 1, {})
    groups.commit("g", 5, "m1", generation + 1, topic="other")
    groups.elapse(2 * HOUR)
    assert groups.expire() == NOTHING


def test_a_subscription_is_known_after_a_restart(
    groups: Any, consumers: Callable[..., int]
) -> None:
    generation = consumers("topic")
    for topic in ("topic", "other"):
        groups.commit("g", 5, "m1", generation, topic=topic)
    groups.restart()
    expires_after(groups, HOUR, left=("topic",))


# ---- groups that have nothing left


def test_an_empty_group_without_offsets_goes_with_the_next_look(
    groups: Any, consumers: Callable[..., int]
) -> None:
    consumers("topic")
    leave(groups)
    assert groups.expire() == Expired(0, (), 1)
    assert is_dead(groups)


def test_a_group_that_somebody_was_told_to_join_stays(
    groups: Any, consumers: Callable[..., int]
) -> None:
    groups.commit("g", 5, "m1", consumers("topic"))
    leave(groups)
    groups.elapse(HOUR)
    told = groups.join(id_required=True, session_ms=LONG).answer()
    assert groups.expire() == Expired(1, ("g",), 0)
    assert groups.group().is_pending(told.member)


def test_a_group_with_members_and_no_offsets_stays(
    groups: Any, consumers: Callable[..., int]
) -> None:
    consumers("topic")
    assert groups.expire() == NOTHING
    assert groups.group().phase is Phase.STABLE


# ---- a retention for one group


def test_a_group_may_have_a_retention_of_its_own(groups: Any) -> None:
    groups.retention["g"] = 120
    groups.commit("g", 5)
    groups.commit("other", 5)
    groups.elapse(HOUR)
    assert groups.expire() == Expired(1, ("other",), 1)
    expires_after(groups, HOUR, removed=1)


def test_the_journal_tells_why(groups: Any) -> None:
    groups.commit("g", 5)
    groups.elapse(HOUR)
    del groups.journal[:]
    groups.expire()
    offset, group = groups.journal
    assert (offset.value, dict(offset.headers)) == (None, {CAUSE_HEADER: b"expiry"})
    assert (group.value, Cause(offset.headers[0][1].decode())) == (None, Cause.EXPIRY)
