"""Members that behave as stock clients do, in any interleaving, end in one generation.

Each member follows the client's half of the protocol (Kafka's AbstractCoordinator): join, take the
id it is given, sync, heartbeat, and join again when told to. Between its steps anything may happen:
others come, leave, stall for longer than their sessions, lose an answer, time passes. Once the
stalling ends, all members that still want to be there are in one generation, under one leader, and
hold what that leader assigned.
"""

import itertools
from collections.abc import Iterator
from enum import Enum, auto
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import Refused, Why
from headrace.core.group_events import Answered
from headrace.core.group_shard import GroupShard
from headrace.core.group_words import (
    Beat,
    Candidate,
    Command,
    IdRequired,
    Join,
    Joined,
    Leave,
    Leaver,
    Limits,
    Phase,
    Sync,
    Synced,
    Ticket,
)
from headrace.core.types import MemberId, MonoMs, Now, WallMs

NOBODY = MemberId("")
SESSION_MS, REBALANCE_MS = 10_000, 30_000
BEAT_MS = 3_000
CALM_MS = 30 * REBALANCE_MS


class Broker:
    """A shard on a clock of its own, with the answers that waiting requests got."""

    def __init__(self, initial_delay_ms: int) -> None:
        self.limits = Limits(initial_delay_ms=initial_delay_ms)
        self.shard = GroupShard(self)
        self.mono = 0
        self.tickets: Iterator[int] = itertools.count()
        self.answers: dict[Ticket, Any] = {}

    def is_share_group(self, group: str) -> bool:
        return False

    def retention_minutes(self, group: str) -> int:
        return 60

    @property
    def now(self) -> Now:
        return Now(MonoMs(self.mono), WallMs(self.mono))

    def ask(self, command: Command) -> Any:
        """The answer, or None when it comes later."""
        decided = self.shard.decide(command, self.now)
        if isinstance(decided, Refused):
            return decided
        self._take(decided.events)
        if isinstance(command, Join | Sync) and decided.reply is None:
            return self.answers.pop(command.ticket, None)
        return decided.reply

    def elapse(self, ms: int) -> None:
        until = self.mono + ms
        while (deadline := self.shard.next_deadline()) is not None and deadline <= until:
            self.mono = max(self.mono, deadline)
            self._take(self.shard.tick(self.now))
        self.mono = until

    def _take(self, events: Any) -> None:
        for event in events:
            self.shard.apply(event)
            if isinstance(event, Answered):
                self.answers[event.ticket] = event.answer


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

    def __init__(self, broker: Broker, name: str, instance: str | None) -> None:
        self.broker, self.name, self.instance = broker, name, instance
        self.doing = Doing.OUT
        self.id = NOBODY
        self.generation = -1
        self.joined: Joined | None = None
        self.assignment = b""
        self.ids = itertools.count()
        self.ticket: Ticket | None = None

    def step(self) -> None:
        """What the client does when it is its turn."""
        match self.doing:
            case Doing.TO_JOIN:
                self.doing, self.ticket = Doing.JOINING, Ticket(next(self.broker.tickets))
                self._hear(self.broker.ask(self._join(self.ticket)))
            case Doing.TO_SYNC:
                self.doing, self.ticket = Doing.SYNCING, Ticket(next(self.broker.tickets))
                self._hear(self.broker.ask(self._sync(self.ticket)))
            case Doing.JOINING | Doing.SYNCING:
                assert self.ticket is not None
                self._hear(self.broker.answers.pop(self.ticket, None))
            case Doing.STABLE:
                beat = Beat("g", self.id, self.instance, self.generation)
                self._hear(self.broker.ask(beat) or self.joined)

    def leave(self) -> None:
        if self.id != NOBODY:
            self.broker.ask(Leave("g", (Leaver(self.id, self.instance),)))
        self.doing, self.id, self.generation = Doing.OUT, NOBODY, -1

    def lose_answer(self) -> None:
        """The connection broke: whatever was told of the request is not heard, so ask again."""
        if self.doing in (Doing.JOINING, Doing.SYNCING):
            self.doing = Doing.TO_JOIN

    def _join(self, ticket: Ticket) -> Join:
        new_id = MemberId(f"{self.instance or self.name}-{next(self.ids)}")
        return Join(
            "g", self.id, self.instance, new_id, self.name, "/h", SESSION_MS, REBALANCE_MS,
            "consumer", (Candidate("range", self.name.encode()),), ticket,
        )  # fmt: skip

    def _sync(self, ticket: Ticket) -> Sync:
        assert self.joined is not None
        shares = {
            peer.id: f"{peer.id} of {self.generation} by {self.id}".encode()
            for peer in self.joined.members
        }
        leads = self.joined.leader == self.id and not self.joined.skip_assignment
        return Sync("g", self.id, self.instance, self.generation, ticket, shares if leads else {})

    def _hear(self, answer: Any) -> None:
        match answer:
            case None:
                pass
            case IdRequired(member):
                self.id, self.doing = member, Doing.TO_JOIN
            case Joined(member, generation):
                if self.doing is Doing.STABLE:
                    return
                self.id, self.generation, self.joined = member, generation, answer
                self.doing = Doing.TO_SYNC
            case Synced(_, _, assignment):
                self.assignment, self.doing = assignment, Doing.STABLE
            case Refused(Why.FENCED_INSTANCE):
                self.doing = Doing.FENCED
            case Refused(why):
                if why is Why.UNKNOWN_MEMBER:
                    self.id = NOBODY
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


@settings(max_examples=300)
@given(steps=st.lists(STEPS, max_size=60), delay_ms=st.sampled_from([0, 0, 3_000]))
def test_any_interleaving_ends_in_one_generation(
    steps: list[tuple[str, str, int]], delay_ms: int
) -> None:
    broker = Broker(delay_ms)
    clients = {name: Client(broker, name, instance) for name, instance in NAMES.items()}
    for what, name, ms in steps:
        client = clients[name]
        match what:
            case "begin":
                if client.doing in (Doing.OUT, Doing.FENCED):
                    client.doing, client.id = Doing.TO_JOIN, NOBODY
            case "step":
                client.step()
            case "leave":
                client.leave()
            case "lose":
                client.lose_answer()
            case _:
                broker.elapse(ms)
        never_two_generations_at_once(broker, clients)
    for _ in range(0, CALM_MS, BEAT_MS):
        for client in clients.values():
            client.step()
        broker.elapse(BEAT_MS)
    wanted = [one for one in clients.values() if one.doing not in (Doing.OUT, Doing.FENCED)]
    all_agree(broker, wanted)


def never_two_generations_at_once(broker: Broker, clients: dict[str, Client]) -> None:
    """What a leader assigned never reaches a member of another generation."""
    for one in clients.values():
        if one.doing is Doing.STABLE and one.assignment:
            assert one.assignment.startswith(f"{one.id} of {one.generation} by ".encode())


def all_agree(broker: Broker, wanted: list[Client]) -> None:
    assert all(one.doing is Doing.STABLE for one in wanted)
    group = broker.shard.groups.get("g")
    if not wanted:
        assert group is None or (group.phase, group.members) == (Phase.EMPTY, {})
        return
    assert group is not None
    assert group.phase is Phase.STABLE
    assert {one.generation for one in wanted} == {group.generation}
    assert {one.id for one in wanted} == set(group.members)
    assert group.leader in group.members
    told = {one.assignment for one in wanted}
    assert len(told) == len(wanted)
    assert not any(not assignment for assignment in told)
    assert not broker.answers.keys() & {*group.joins.values(), *group.syncs.values()}
