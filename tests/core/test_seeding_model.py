"""Seeding amid whatever else happens to a group, against a dictionary; and what is replayed.

The model has its own tables, knows members from what was sent, and when the group began from what
the clock said. Extents are drawn as logs are: they grow, are cut at their start, and begin anew.
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.consumer_words import TopicView
from headrace.core.group_words import TIME_UNKNOWN, Extent, ResetPolicy
from headrace.core.reset import OutOfRange, Strategy
from headrace.core.types import WallMs

TOPIC = UUID(int=1)
PARTITIONS = 3
MINUTE = 60_000
RETENTION = 60 * MINUTE
START, END = "start", "end"

MISSING = {"none": None, "earliest": START, "latest": END}
MISSING |= {"earliest_on_start": START, "latest_on_start": END}
OUTSIDE = {"none": None, "earliest": START, "latest": END, "safe_latest": END}
OUTSIDE |= {"earliest_on_start": None, "latest_on_start": None}

places = st.integers(0, PARTITIONS - 1)
STEPS = st.one_of(
    st.tuples(st.just("policy"), st.sampled_from([None, *Strategy]), st.sampled_from(OutOfRange)),
    st.tuples(st.just("enter")),
    st.tuples(st.just("give_way")),
    st.tuples(st.just("leave")),
    st.tuples(st.just("commit"), places, st.integers(0, 30)),
    st.tuples(st.just("produce"), places, st.integers(1, 9)),
    st.tuples(st.just("cut"), places, st.integers(1, 9)),
    st.tuples(st.just("ask"), st.frozensets(places)),
    st.tuples(st.just("ask"), st.frozensets(places)),
    st.tuples(st.just("add"), places),
    st.tuples(st.just("add"), places),
    st.tuples(st.just("elapse"), st.sampled_from([1, MINUTE, RETENTION])),
    st.tuples(st.just("expire")),
    st.tuples(st.just("drop")),
    st.tuples(st.just("restart")),
)


class Log:
    """What a partition has: the times of its records."""

    def __init__(self) -> None:
        self.start, self.times = 0, list[WallMs]()

    @property
    def end(self) -> int:
        return self.start + len(self.times)

    def extent(self, index: int) -> Extent:
        return Extent("t", TOPIC, index, self.start, self.end, next(iter(self.times), None))


class Scene:
    """Group "g" of either protocol, in turns; and the model of it."""

    def __init__(self, groups: Any, told: bytes) -> None:
        self.groups = groups
        groups.topics["t"] = TopicView(TOPIC, PARTITIONS)
        self._told = told
        self._is_modern = False
        self.member: str | None = None
        self.policy: ResetPolicy | None
        self.set_policy(Strategy.SAFE_LATEST, OutOfRange.NEAREST)
        self.logs = [Log() for _ in range(PARTITIONS)]
        self.offsets: dict[int, int] = {}
        self.began: int | None = None

    def set_policy(self, strategy: Strategy | None, other: OutOfRange) -> None:
        self.policy = ResetPolicy(strategy, other) if strategy is not None else None
        self.groups.policies = {"g": self.policy}

    def enter(self) -> None:
        """A member comes to a group without one: in turn of either protocol."""
        if self.member is not None:
            return
        self._is_modern = not self._is_modern
        if self._is_modern:
            self.member = "modern"
            self.groups.enter(self.member, "t")
        else:
            joined = self.groups.join(offers={"range": self._told}, session_ms=1_800_000).answer()
            self.member = joined.member
            self.groups.sync(self.member, joined.generation, {self.member: b""})
        self.began = self.groups.now.wall if self.began is None else self.began

    def give_way(self) -> None:
        """Another member comes, of the other protocol, when the first is gone."""
        self.leave()
        self.groups.elapse(1)
        self.enter()

    def leave(self) -> None:
        if self.member is not None:
            self.groups.leave((self.member, None))
        self.member = None

    def commit(self, index: int, offset: int) -> None:
        member, epoch = "", -1
        if self.member is not None:
            group = self.groups.shard.groups["g"]
            member = self.member
            epoch = group.epoch if self._is_modern else group.generation
        if index == 0:  # the rig commits for that
            assert self.groups.commit("g", offset, member, epoch, topic="t") == [None]
            self.offsets[0] = offset

    def produce(self, index: int, count: int) -> None:
        self.logs[index].times += [self.groups.now.wall] * count

    def cut(self, index: int, count: int) -> None:
        log = self.logs[index]
        log.start += len(log.times[:count])
        del log.times[:count]

    def add(self, index: int) -> None:
        """The partition is new: its log is another, and empty."""
        self.logs[index] = Log()
        uses = self.member is not None or bool(self.offsets)
        self.groups.seed(self.logs[index].extent(index), added=True)
        if self.policy is not None and uses and self.policy.strategy != "none":
            self.offsets.setdefault(index, 0)

    def ask(self, indexes: frozenset[int]) -> None:
        self.groups.seed(*(self.logs[index].extent(index) for index in indexes))
        if self.policy is None or self.member is None:
            return
        for index in indexes:
            log = self.logs[index]
            where = self._missing(log) if index not in self.offsets else self._outside(index, log)
            if where is not None:
                self.offsets[index] = log.start if where == START else log.end

    def _missing(self, log: Log) -> str | None:
        assert self.policy is not None
        assert self.began is not None
        if self.policy.strategy == "safe_latest":
            return START if not log.times or log.times[0] >= self.began else END
        return MISSING[self.policy.strategy]

    def _outside(self, index: int, log: Log) -> str | None:
        assert self.policy is not None
        under, over = self.offsets[index] < log.start, self.offsets[index] > log.end
        if not (under or over):
            return None
        if self.policy.out_of_range == "nearest":
            return START if under else END
        if self.offsets[index] == 0:  # of a new partition nothing was read yet
            return {"safe_latest": START, **MISSING}[self.policy.strategy]
        return OUTSIDE[self.policy.strategy]

    def elapse(self, ms: int) -> None:
        """Members of both protocols are silent meanwhile."""
        if ms > 1:
            self.leave()
        self.groups.elapse(ms)

    def expire(self) -> None:
        self.groups.expire("g")
        if "g" not in self.groups.shard.groups:
            self.offsets, self.began = {}, None
        else:
            known = self.groups.committed()
            self.offsets = {n: one for n, one in self.offsets.items() if ("t", n) in known}

    def drop(self) -> None:
        if self.groups.delete("g") is None:
            self.offsets, self.began = {}, None

    def restart(self) -> None:
        self.groups.restart()

    def check(self) -> None:
        wanted = {("t", n): one for n, one in self.offsets.items()}
        for shard in (self.groups.shard, self.groups.rebuilt()):
            have = shard.offsets.get("g", ())
            assert {(topic, n): one.offset for topic, n, one in have} == wanted
            group = shard.groups.get("g")
            began = group.began if group is not None else TIME_UNKNOWN
            assert began == (TIME_UNKNOWN if self.began is None else self.began)


@settings(
    max_examples=60,
    # The fixtures are a class and a function: no example leaves anything to the next.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEPS, min_size=20, max_size=40))
def test_the_shard_and_its_journal_agree_with_the_tables(
    drive_consumers: Callable[..., Any], subscribing: Callable[..., bytes], steps: list[Any]
) -> None:
    scene = Scene(drive_consumers(), subscribing("t"))
    for name, *arguments in steps:
        getattr(scene, "set_policy" if name == "policy" else name)(*arguments)
        scene.check()
