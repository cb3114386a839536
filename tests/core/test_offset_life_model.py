"""Expiry and deletion amid whatever else happens to groups: what must hold, and what is replayed.

What a group subscribes to is known here from what was sent, not from how the shard reads it.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import Why
from headrace.core.group_words import Committed, Phase
from headrace.core.offset_life import looks

MINUTE = 60_000
RETENTION = 60 * MINUTE  # of group "g"; the simple group "s" has twice that
TOPICS = ("t", "u", "v")
UNREADABLE = b"\0\0\0\0\0\1"

Places = dict[tuple[str, str], Committed]

topics = st.sampled_from(TOPICS)
sides = st.sampled_from("gs")
STEPS = st.one_of(
    st.tuples(st.just("join"), st.frozensets(topics), st.booleans()),
    st.tuples(st.just("rejoin"), st.frozensets(topics), st.booleans()),
    st.tuples(st.just("settle")),
    st.tuples(st.just("leave"), st.integers(0, 3)),
    st.tuples(st.just("commit"), sides, topics, st.sampled_from([None, None, 0, 5 * MINUTE])),
    st.tuples(st.just("elapse"), st.sampled_from([1, MINUTE, RETENTION // 2, RETENTION])),
    st.tuples(st.just("expire")),
    st.tuples(st.just("expire")),
    st.tuples(st.just("delete"), sides, topics),
    st.tuples(st.just("drop"), sides),
    st.tuples(st.just("forget"), topics),
    st.tuples(st.just("restart")),
)


class Scene:
    """One shard, with what its members said."""

    def __init__(self, groups: Any, subscribing: Callable[..., bytes]) -> None:
        self.groups = groups
        self.groups.retention["s"] = 120
        self._subscribing = subscribing
        self._meaning: dict[bytes, frozenset[str]] = {UNREADABLE: frozenset(TOPICS)}

    def saying(self, wanted: frozenset[str], readable: bool) -> dict[str, Any]:
        told = self._subscribing(*sorted(wanted)) if readable else UNREADABLE
        self._meaning[told] = wanted if readable else frozenset(TOPICS)
        patient = {"session_ms": 2**31 - 1, "rebalance_ms": 2**31 - 1}
        return {"offers": {"range": told}, **patient}

    @property
    def group(self) -> Any:
        return self.groups.shard.groups.get("g")

    @property
    def wanted(self) -> frozenset[str]:
        """What the members of a Stable group said."""
        said = (one.metadata("range") for one in self.group.members.values())
        return frozenset().union(*(self._meaning[one] for one in said))

    @property
    def places(self) -> Places:
        return {
            (group, topic): one
            for group, offsets in self.groups.shard.offsets.items()
            for topic, _, one in offsets
        }

    # ---- steps

    def join(self, wanted: frozenset[str], readable: bool) -> None:
        self.groups.join(**self.saying(wanted, readable))

    def rejoin(self, wanted: frozenset[str], readable: bool) -> None:
        for member in list(self.group.members) if self.group else ():
            self.groups.join(member, **self.saying(wanted, readable))

    def settle(self) -> None:
        """All rejoin as they are, and the leader assigns."""
        group = self.group
        if group is None or group.phase is Phase.EMPTY:
            return
        for member in list(group.members):
            if member not in group.joins and group.phase is Phase.PREPARING:
                wanted = self._meaning[group.members[member].metadata("range")]
                self.groups.join(member, **self.saying(wanted, readable=True))
        group = self.group
        if group.phase is Phase.COMPLETING:
            self.groups.sync(group.leader, group.generation, {})

    def leave(self, number: int) -> None:
        members = list(self.group.members) if self.group else []
        if members:
            self.groups.leave((members[number % len(members)], None))

    def commit(self, name: str, topic: str, retention_ms: int | None) -> None:
        group = self.groups.shard.groups.get(name)
        member, generation = "", -1
        if group is not None and group.members:
            member, generation = next(iter(group.members)), group.generation
        self.groups.commit(name, 5, member, generation, topic=topic, retention_ms=retention_ms)

    def elapse(self, ms: int) -> None:
        self.groups.elapse(ms)

    def drop(self, name: str) -> None:
        self.groups.delete(name)

    def forget(self, topic: str) -> None:
        self.groups.forget(topic, None)
        assert all(one != topic for _, one in self.places)

    def restart(self) -> None:
        self.groups.restart()

    def delete(self, name: str, topic: str) -> None:
        before = self.places
        group = self.groups.shard.groups.get(name)
        answer = self.groups.delete_offsets(name, (topic, 0))
        if group is None:
            assert answer is Why.UNKNOWN_GROUP
            return
        subscribed = answer == [Why.SUBSCRIBED_TO_TOPIC]
        if group.phase is Phase.EMPTY:
            assert not subscribed
        elif group.phase is Phase.STABLE:
            assert subscribed == (topic in self.wanted)
        gone = before.keys() - self.places.keys()
        assert gone == (set() if subscribed else {(name, topic)} & before.keys())

    def expire(self) -> None:
        before, stable = self.places, self.group and self.group.phase is Phase.STABLE
        busy = self.group is not None and self.group.phase is not Phase.EMPTY
        wanted = self.wanted if stable else frozenset(TOPICS)
        expired = self.groups.expire()
        after = self.places
        assert expired.offsets == len(before) - len(after)
        for key in before.keys() - after.keys():
            assert self.is_old(key, before[key])
            assert not (key[0] == "g" and busy and key[1] in wanted)
        for key, one in after.items():
            kept_by_age = not self.is_old(key, one)
            in_use = key[0] == "g" and busy and key[1] in wanted
            empty_later = key[0] == "g" and not busy
            assert kept_by_age or in_use or empty_later
        for name, group in self.groups.shard.groups.items():
            assert group.members or group.pending or name in self.groups.shard.offsets
        assert self.groups.expire() == type(expired)(0, (), 0)

    def is_old(self, key: tuple[str, str], one: Committed) -> bool:
        now = self.groups.now.wall
        if one.expires_at is not None:
            return bool(now >= one.expires_at)
        return bool(now - one.committed_at >= (RETENTION if key[0] == "g" else 2 * RETENTION))


@settings(
    max_examples=200,
    # The fixtures are a class and a function: no example leaves anything to the next.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(STEPS, max_size=40))
def test_what_is_in_use_stays_and_a_replay_ends_in_the_same_state(
    drive_groups: Callable[..., Any],
    subscribing: Callable[..., bytes],
    steps: list[tuple[Any, ...]],
) -> None:
    groups = drive_groups(session_ms_max=2**31 - 1)
    scene = Scene(groups, subscribing)
    for name, *told in steps:
        getattr(scene, name)(*told)
        shard, rebuilt = groups.shard, groups.rebuilt()
        live = {name: one.by_topic for name, one in shard.offsets.items()}
        assert {name: one.by_topic for name, one in rebuilt.offsets.items()} == live
        for one in (shard, rebuilt):
            assert sorted(one.names.walk()) == sorted(one.groups)
            counts = [len(list(offsets)) for offsets in one.offsets.values()]
            assert [len(offsets) for offsets in one.offsets.values()] == counts
            assert one.offset_count == sum(counts)
        durable = {
            name
            for name, group in shard.groups.items()
            if group.stored is not None or name in shard.offsets
        }
        assert rebuilt.groups.keys() == durable


@pytest.mark.parametrize("count", [0, 1, 5])
def test_portions_cover_every_offset_once(drive_groups: Callable[..., Any], count: int) -> None:
    """While nothing changes; `looks` is what sweeps go by."""
    groups = drive_groups()
    for number in range(count):
        for topic in TOPICS[: 1 + number % 3]:
            groups.commit(f"g{number}", 5, topic=topic)
    shard = groups.shard
    expected = sorted((name, *one[:2]) for name, have in shard.offsets.items() for one in have)
    for size in (1, 2, 3, 100):
        found: list[tuple[str, str, int]] = []
        for portion in looks(shard.names, shard.offsets, size):
            weight = 0
            for look in portion:
                places = look.partitions
                if places is None:
                    places = tuple((topic, index) for topic, index, _ in shard.offsets[look.group])
                found += [(look.group, *place) for place in places]
                weight += len(places)
            assert weight <= size
        assert sorted(found) == expected
