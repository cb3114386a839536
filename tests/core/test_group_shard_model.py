"""A shard of classic groups against a model of a few sets, with crashes in between.

The model knows members, who has joined and who leads, and a dictionary of offsets; it knows nothing
of timers, tickets or journals. After every step the journal alone has to give the last assigned
generation and every committed offset.
"""

import itertools
from dataclasses import replace
from typing import Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.core.classic_group import ClassicGroup
from headrace.core.consumer_assignors import ASSIGNORS
from headrace.core.consumer_words import ConsumerLimits, Pace
from headrace.core.errors import Refused, Why
from headrace.core.group_events import Answered, Event
from headrace.core.group_shard import GroupShard
from headrace.core.group_words import (
    DELETION_PORTION,
    Beat,
    Candidate,
    Command,
    Commit,
    DeleteGroup,
    ForgetOffsets,
    Join,
    Joined,
    Leave,
    Leaver,
    Limits,
    Look,
    Offset,
    ResetPolicy,
    RestartSessions,
    Snapshot,
    Sync,
    Synced,
    Ticket,
)
from headrace.core.machine import Entry, Unfinished
from headrace.core.types import MemberId, MonoMs, Now, WallMs
from headrace.log.group_records import GroupJournal

from .group_rig import require_deadlines

TOPICS = {"orders": UUID(int=1), "bills": UUID(int=2)}
HOUR_MS = 3_600_000
EMPTY, JOINING, SYNCING, STABLE = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"


class Groups(RuleBasedStateMachine):
    """One group "g" with members, and commits to it and to a simple group "s"."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = Limits()
        self.live, self.codec = GroupShard(self), GroupJournal()
        self.journal: list[Entry] = []
        self.mono = 0
        self.names = (MemberId(f"m{n}") for n in itertools.count())
        self.tickets = itertools.count()
        self.told: dict[Ticket, Any] = {}
        # ---- the model
        self.phase = EMPTY
        self.generation = 0
        self.members: list[MemberId] = []
        self.leader: MemberId | None = None
        self.waiting: dict[MemberId, Ticket] = {}
        self.syncing: dict[MemberId, Ticket] = {}
        self.stored: tuple[int, tuple[MemberId, ...], MemberId | None] | None = None
        self.offsets: dict[tuple[str, str, int], tuple[int, int | None]] = {}

    def is_share_group(self, group: str) -> bool:
        return False

    def retention_minutes(self, group: str) -> int:
        return 60

    def reset_policy(self, group: str) -> ResetPolicy | None:
        return None

    # Of groups of the new protocol, which are not met here.
    consumer_limits = ConsumerLimits(ASSIGNORS)
    catalogue_version = 0

    def topic(self, name: str) -> None:
        return None

    def existing(self, names: frozenset[str]) -> frozenset[str]:
        return frozenset()

    def matching(self, regex: str) -> frozenset[str]:
        return frozenset()

    def pace(self, group: str) -> Pace:
        return Pace()

    # ---- driving the machine

    @property
    def now(self) -> Now:
        return Now(MonoMs(self.mono), WallMs(self.mono))

    def run_command(self, command: Command) -> Any:
        answer = self.live.decide(command, self.now)
        while not isinstance(answer, Refused):
            self.take(answer.events)
            if not isinstance(answer.reply, Unfinished):
                return answer.reply
            answer = self.live.decide(answer.reply.following(), self.now)
        return answer

    def take(self, events: Any) -> None:
        for event in events:
            self.apply(event)
        self.journal += self.codec.records(events, self.now.wall)

    def apply(self, event: Event) -> None:
        self.live.apply(event)
        if isinstance(event, Answered):
            self.told[event.ticket] = event.answer

    def ask_join(self, member: MemberId, new_id: MemberId) -> tuple[Ticket, Any]:
        ticket = Ticket(next(self.tickets))
        offers = (Candidate("range", b"topics"),)
        command = Join(
            "g", member, None, new_id, "c", "/h", 10_000, 10_000, "consumer", offers, ticket,
            id_required=False,
        )  # fmt: skip
        reply = self.run_command(command)
        return ticket, self.told.get(ticket) if reply is None else reply

    # ---- the model's rules

    def rebalance(self) -> None:
        if self.phase != JOINING:
            self.phase = JOINING
            for ticket in self.syncing.values():
                assert self.told[ticket].why is Why.REBALANCE_IN_PROGRESS
            self.syncing = {}
        if set(self.waiting) != set(self.members):
            return
        self.generation += 1
        if not self.members:
            self.phase, self.leader = EMPTY, None
            self.stored = self.generation, (), None
            return
        self.phase = SYNCING
        for member, ticket in self.waiting.items():
            answer = self.told[ticket]
            assert isinstance(answer, Joined)
            assert (answer.member, answer.generation) == (member, self.generation)
            told = [peer.id for peer in answer.members]
            assert told == (self.members if member == self.leader else [])
        self.waiting = {}

    @precondition(lambda self: len(self.members) < 5)
    @rule()
    def join(self) -> None:
        member = next(self.names)
        ticket, _ = self.ask_join(MemberId(""), member)
        self.members.append(member)
        self.leader = self.leader or member
        self.waiting[member] = ticket
        self.rebalance()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def rejoin(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        ticket, answer = self.ask_join(member, MemberId("unused"))
        if self.phase == SYNCING or (self.phase == STABLE and member != self.leader):
            assert answer.generation == self.generation
            return
        self.waiting[member] = ticket
        self.rebalance()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), behind=st.sampled_from([0, 0, 0, 1]))
    def sync(self, data: st.DataObject, behind: int) -> None:
        member = data.draw(st.sampled_from(self.members))
        ticket = Ticket(next(self.tickets))
        shares = {name: name.encode() for name in self.members}
        reply = self.run_command(Sync("g", member, None, self.generation - behind, ticket, shares))
        if behind or self.phase == JOINING:
            expected = Why.ILLEGAL_GENERATION if behind else Why.REBALANCE_IN_PROGRESS
            assert reply.why is expected
        elif self.phase == SYNCING and member != self.leader:
            assert reply is None
            self.syncing[member] = ticket
        else:
            assert reply == Synced("consumer", "range", member.encode())
            if self.phase == SYNCING:
                self.phase = STABLE
                self.stored = self.generation, tuple(self.members), self.leader
            for follower, waiting in self.syncing.items():
                assert self.told[waiting].assignment == follower.encode()
            self.syncing = {}

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        assert self.run_command(Leave("g", (Leaver(member),))) == [None]
        self.members.remove(member)
        for parked in (self.waiting, self.syncing):
            if member in parked:
                assert self.told[parked.pop(member)].why is Why.UNKNOWN_MEMBER
        if self.leader == member:
            self.leader = self.members[0] if self.members else None
        self.rebalance()

    @rule(data=st.data(), behind=st.sampled_from([0, 1]))
    def beat(self, data: st.DataObject, behind: int) -> None:
        member = data.draw(st.sampled_from([*self.members, MemberId("stranger")]))
        refused = self.run_command(Beat("g", member, None, self.generation - behind))
        expected = Why.REBALANCE_IN_PROGRESS if self.phase == JOINING else None
        if behind:
            expected = Why.ILLEGAL_GENERATION
        if member not in self.members:
            expected = Why.UNKNOWN_MEMBER
        assert (refused and refused.why) == expected

    @rule(
        data=st.data(),
        group=st.sampled_from("gs"),
        topic=st.sampled_from(sorted(TOPICS)),
        partition=st.integers(0, 2),
        offset=st.integers(-1, 9),
        retention_ms=st.sampled_from([None, None, 0, 5_000]),
    )
    def commit(
        self,
        data: st.DataObject,
        group: str,
        topic: str,
        partition: int,
        offset: int,
        retention_ms: int | None,
    ) -> None:
        member, generation = MemberId(""), -1
        if group == "g":
            member = data.draw(st.sampled_from([*self.members, member]))
            generation = data.draw(st.sampled_from([self.generation, -1]))
        one = Offset(topic, partition, offset, 0, "", TOPICS[topic])
        answer = self.run_command(Commit(group, member, None, generation, (one,), retention_ms))
        if group == "g" and self.phase != EMPTY:
            known = member in self.members and generation == self.generation
            allowed = known and self.phase != SYNCING
        else:
            allowed = generation == -1
        assert (answer == [None]) == allowed
        if allowed:
            expires = None if retention_ms is None else self.mono + retention_ms
            self.offsets[group, topic, partition] = offset, expires

    @rule(topic=st.sampled_from(sorted(TOPICS)))
    def topic_is_deleted(self, topic: str) -> None:
        looks = tuple(Look(group) for group in self.live.groups)
        self.run_command(ForgetOffsets(topic, TOPICS[topic], self.now.wall, looks))
        self.offsets = {key: one for key, one in self.offsets.items() if key[1] != topic}

    @rule(group=st.sampled_from("gs"), offsets_max=st.sampled_from([1, 2, DELETION_PORTION]))
    def delete(self, group: str, offsets_max: int) -> None:
        there = any(key[0] == group for key in self.offsets)
        if group == "g":
            there = there or self.phase != EMPTY or self.stored is not None
        refused = self.run_command(DeleteGroup(group, offsets_max=offsets_max))
        if group == "g" and self.phase != EMPTY:
            assert refused.why is Why.NON_EMPTY_GROUP
            return
        assert (refused and refused.why) == (None if there else Why.UNKNOWN_GROUP)
        self.offsets = {key: one for key, one in self.offsets.items() if key[0] != group}
        if group == "g":
            self.generation, self.stored = 0, None

    @rule()
    def everybody_falls_silent(self) -> None:
        until = self.mono + HOUR_MS
        while (deadline := self.live.next_deadline()) is not None and deadline <= until:
            self.mono = deadline
            self.take(self.live.tick(self.now))
        self.mono = until
        if self.members:
            group = _classic(self.live, "g")
            assert group is not None
            assert group.generation > self.generation
            self.generation, self.phase, self.leader = group.generation, EMPTY, None
            self.stored = self.generation, (), None
        self.members, self.waiting, self.syncing = [], {}, {}

    @rule()
    def crash(self) -> None:
        self.live = self.rebuilt()
        self.run_command(RestartSessions(1))
        self.waiting, self.syncing = {}, {}
        self.generation, members, self.leader = self.stored or (0, (), None)
        self.members = list(members)
        self.phase = STABLE if self.members else EMPTY

    def rebuilt(self) -> GroupShard:
        shard = GroupShard(self)
        for key, value, _ in self.journal:
            for event in self.codec.events(key, value):
                shard.apply(event)
        return shard

    # ---- what must always hold

    @invariant()
    def machine_and_model_agree(self) -> None:
        group = _classic(self.live, "g")
        if group is None:
            assert (self.phase, self.members, self.stored) == (EMPTY, [], None)
        else:
            assert group.phase.value == self.phase
            assert group.generation == self.generation
            assert list(group.members) == self.members
            assert group.leader == self.leader
            assert group.joins.keys() == self.waiting.keys()
            assert group.syncs.keys() == self.syncing.keys()
        assert _offsets(self.live) == self.offsets

    @invariant()
    def every_timer_has_a_deadline(self) -> None:
        require_deadlines(self.live)

    @invariant()
    def journal_rebuilds_what_is_durable(self) -> None:
        rebuilt = self.rebuilt()
        assert _offsets(rebuilt) == self.offsets
        assert _stored(rebuilt) == _stored(self.live)
        stored = _stored(rebuilt).get("g")
        if self.stored is None:
            assert stored is None
        else:
            assert stored is not None
            told = stored.generation, tuple(one.id for one in stored.members), stored.leader
            assert told == self.stored
            assert all(one.assignment == one.id.encode() for one in stored.members)

    @invariant()
    def empty_groups_wait_for_nothing(self) -> None:
        if not self.members and "g" in self.live.groups:
            assert self.live.groups["g"].timers == {}


def _offsets(shard: GroupShard) -> dict[tuple[str, str, int], tuple[int, int | None]]:
    return {
        (group, topic, partition): (one.offset, one.expires_at)
        for group, offsets in shard.offsets.items()
        for topic, partition, one in offsets
    }


def _classic(shard: GroupShard, name: str) -> ClassicGroup | None:
    group = shard.groups.get(name)
    assert group is None or isinstance(group, ClassicGroup)
    return group


def _stored(shard: GroupShard) -> dict[str, Snapshot | None]:
    """Each group as its journal has it: of what a member offers, the chosen protocol alone."""
    found: dict[str, Snapshot | None] = {}
    for name in shard.groups:
        group = _classic(shard, name)
        stored = group.stored if group is not None else None
        if stored is not None:
            members = tuple(
                replace(
                    one, candidates=(Candidate(stored.protocol, one.metadata(stored.protocol)),)
                )
                for one in stored.members
                if stored.protocol is not None
            )
            stored = replace(stored, members=members)
            found[name] = stored
    return found


Groups.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestGroups = Groups.TestCase
