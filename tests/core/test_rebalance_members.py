"""Members that behave as stock clients do, in any interleaving, end in one generation.

Each member follows the client's half of the protocol (Kafka's AbstractCoordinator): join, take the
id it is given, sync, heartbeat, and join again when told to. Between its steps anything may happen:
others come, leave, stall for longer than their sessions, lose an answer, time passes. Once the
stalling ends, all members that still want to be there are in one generation, under one leader, and
hold what that leader assigned.
"""

from enum import Enum, auto
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import Refused, Why
from headrace.core.group_words import Beat, IdRequired, Joined, Phase, Synced
from headrace.core.types import MemberId

SESSION_MS, REBALANCE_MS = 10_000, 30_000
BEAT_MS = 3_000
CALM_MS = 30 * REBALANCE_MS


class Doing(Enum):
    OUT = auto()
    TO_JOIN = auto()
    JOINING = auto()
    TO_SYNC = auto()
    SYNCING = auto()
    STABLE = auto()
    FENCED = auto()


class Client:
    """The client's half: what it does next follows from what it was told last."""

    def __init__(self, groups: Any, name: str, instance: str | None) -> None:
        self.groups, self.name, self.instance = groups, name, instance
        self.doing = Doing.OUT
        self.id = ""
        self.generation = -1
        self.joined: Joined | None = None
        self.assignment = b""
        self.asked: Any = None

    def step(self) -> None:
        """What the client does when it is its turn."""
        match self.doing:
            case Doing.TO_JOIN:
                self.doing = Doing.JOINING
                offers = {"range": self.name.encode()}
                self.asked = self.groups.join(
                    self.id, instance=self.instance, offers=offers, id_required=True,
                    session_ms=SESSION_MS, rebalance_ms=REBALANCE_MS,
                )  # fmt: skip
                self._hear(self.asked.answer())
            case Doing.TO_SYNC:
                self.doing = Doing.SYNCING
                self.asked = self.groups.sync(
                    self.id, self.generation, self._shares(), self.instance
                )
                self._hear(self.asked.answer())
            case Doing.JOINING | Doing.SYNCING:
                self._hear(self.asked.answer())
            case Doing.STABLE:
                beat = Beat("g", MemberId(self.id), self.instance, self.generation)
                self._hear(self.groups.do(beat))

    def leave(self) -> None:
        if self.id:
            self.groups.leave((self.id, self.instance))
        self.doing, self.id, self.generation = Doing.OUT, "", -1

    def lose_answer(self) -> None:
        """The connection broke: whatever was told of the request is not heard, so ask again."""
        if self.doing in (Doing.JOINING, Doing.SYNCING):
            self.doing = Doing.TO_JOIN

    def _shares(self) -> dict[str, bytes]:
        """What the client assigns as a leader."""
        assert self.joined is not None
        if self.joined.leader != self.id or self.joined.skip_assignment:
            return {}
        return {
            peer.id: f"{peer.instance or peer.id} of {self.generation}".encode()
            for peer in self.joined.members
        }

    def _hear(self, answer: Any) -> None:
        match answer:
            case None:
                pass
            case IdRequired(member):
                self.id, self.doing = member, Doing.TO_JOIN
            case Joined(member, generation):
                self.id, self.generation, self.joined = member, generation, answer
                self.doing = Doing.TO_SYNC
            case Synced(_, _, assignment):
                self.assignment, self.doing = assignment, Doing.STABLE
            case Refused(Why.FENCED_INSTANCE):
                self.doing = Doing.FENCED
            case Refused(why):
                if why is Why.UNKNOWN_MEMBER:
                    self.id = ""
                else:
                    assert why in (Why.REBALANCE_IN_PROGRESS, Why.ILLEGAL_GENERATION), answer
                self.doing = Doing.TO_JOIN


NAMES = {"a": None, "b": None, "c": None, "s": "one", "t": "one", "u": "two"}
STEPS = st.one_of(
    st.tuples(st.just("step"), st.sampled_from(sorted(NAMES)), st.just(0)),
    st.tuples(st.just("step"), st.sampled_from(sorted(NAMES)), st.just(0)),
    st.tuples(st.just("begin"), st.sampled_from(sorted(NAMES)), st.just(0)),
    st.tuples(st.sampled_from(["leave", "lose"]), st.sampled_from(sorted(NAMES)), st.just(0)),
    st.tuples(
        st.just("elapse"), st.just("a"),
        st.sampled_from([1, BEAT_MS, SESSION_MS - 1, SESSION_MS, REBALANCE_MS]),
    ),
)  # fmt: skip


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEPS, min_size=15, max_size=60), delay_ms=st.sampled_from([0, 0, 3_000]))
def test_any_interleaving_ends_in_one_generation(
    drive_groups: Any, steps: list[tuple[str, str, int]], delay_ms: int
) -> None:
    groups = drive_groups(initial_delay_ms=delay_ms)
    clients = {name: Client(groups, name, instance) for name, instance in NAMES.items()}
    told: dict[int, set[str]] = {}
    for what, name, ms in steps:
        client = clients[name]
        match what:
            case "begin":
                if client.doing in (Doing.OUT, Doing.FENCED):
                    client.doing, client.id = Doing.TO_JOIN, ""
            case "step":
                client.step()
            case "leave":
                client.leave()
            case "lose":
                client.lose_answer()
            case _:
                groups.elapse(ms)
        never_two_generations_at_once(clients, told)
    for _ in range(0, CALM_MS, BEAT_MS):
        for client in clients.values():
            client.step()
        groups.elapse(BEAT_MS)
    wanted = [one for one in clients.values() if one.doing not in (Doing.OUT, Doing.FENCED)]
    all_agree(groups, wanted)


def never_two_generations_at_once(clients: dict[str, Client], told: dict[int, set[str]]) -> None:
    """A generation has one set of members, and what its leader assigned reaches no other."""
    for one in clients.values():
        if one.joined is not None and one.joined.members:
            members = {peer.instance or peer.id for peer in one.joined.members}
            assert told.setdefault(one.joined.generation, members) == members
        if one.doing is Doing.STABLE and one.assignment:
            assert one.assignment == f"{one.instance or one.id} of {one.generation}".encode()


def all_agree(groups: Any, wanted: list[Client]) -> None:
    assert all(one.doing is Doing.STABLE for one in wanted)
    group = groups.shard.groups.get("g")
    if not wanted:
        assert group is None or (group.phase, group.members) == (Phase.EMPTY, {})
        return
    assert group is not None
    assert group.phase is Phase.STABLE
    assert {one.generation for one in wanted} == {group.generation}
    assert {one.id for one in wanted} == set(group.members)
    assert group.leader in group.members
    told = {f"{one.instance or one.id} of {one.generation}".encode() for one in wanted}
    assert {one.assignment for one in wanted} == told
    assert (group.joins, group.syncs) == ({}, {})
