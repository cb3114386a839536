"""What a classic group decides: joins, syncs, leaves, and what the passing of time does.

One command may set off a chain: somebody joins, so all have joined, so the generation begins and
everybody is answered. A decision therefore thinks ahead on a copy of the group, to which it applies
each event as it goes; the group itself is not touched. Source: Kafka 4.3, GroupMetadataManager.
"""

from dataclasses import replace

from headrace.core.classic_group import ClassicGroup
from headrace.core.errors import Refused, Why
from headrace.core.group_events import (
    Answered,
    DelayExtended,
    GenerationBegan,
    GroupStored,
    JoinParked,
    MemberEvent,
    MemberGone,
    MemberReplaced,
    MemberSet,
    RebalanceBegan,
    SyncParked,
    TimerCleared,
    TimerSet,
)
from headrace.core.group_words import (
    NOBODY,
    Gone,
    IdRequired,
    Join,
    Joined,
    Leave,
    Leaver,
    Limits,
    Member,
    Phase,
    Sync,
    Synced,
    Ticket,
    Timer,
)
from headrace.core.types import MemberId, Now, after

NEW_MEMBER_MS = 300_000  # how long a first join may wait for the others (Kafka fixes it too)
_LOOK_AGAIN_MS_MIN = 1_000  # whatever timeout members ask for, who is away costs next to nothing


class Decision:
    """One decision about a group: `events` is what it comes to."""

    def __init__(self, group: ClassicGroup, now: Now, limits: Limits) -> None:
        self._group = group.thinking()
        self._now = now
        self._limits = limits
        self.events: list[MemberEvent] = []

    # ---- what is asked

    def join(self, command: Join) -> Joined | IdRequired | Refused | None:
        """The answer to a join; None when it waits."""
        group = self._group
        if self._is_full(command.member):
            return Refused(
                Why.GROUP_FULL,
                f"Group {group.name} has its {self._limits.members_max} members (group.max.size).",
            )
        if not group.supports(command.protocol_type, command.candidates):
            return Refused(
                Why.INCONSISTENT_PROTOCOL,
                f"{command.protocol_type!r} with these protocols does not go with the members of"
                f" group {group.name}.",
            )
        if command.member == NOBODY:
            return self._join_anew(command)
        if command.instance is None and group.is_pending(command.member):
            self._add(command.member, command)
            return None
        refused = group.check(command.member, command.instance)
        if refused is not None:
            return refused
        return self._rejoin(command)

    def sync(self, command: Sync) -> Synced | Refused | None:
        """The answer to a member's sync in its generation; None when it waits for the leader's."""
        group, member = self._group, command.member
        told = (command.protocol_type, group.protocol_type), (command.protocol, group.protocol)
        if any(said is not None and said != known for said, known in told):
            return Refused(
                Why.INCONSISTENT_PROTOCOL,
                f"Group {group.name} is of type {group.protocol_type} and chose {group.protocol}.",
            )
        if group.phase is Phase.PREPARING:
            return rebalancing(group.name)
        self._emit(TimerCleared(group.name, Timer.SYNC, member))
        if group.phase is Phase.STABLE:
            # A join of the same generation renews nothing. Kafka's coordinator in Scala renews
            # here, the one in Java does not.
            self._renew(member)
            return self._assignment(member)
        self._supersede(group.syncs, member)
        if member == group.leader:
            self._assign(command)
            return self._assignment(member)
        self._emit(TimerCleared(group.name, Timer.SESSION, member))
        self._emit(SyncParked(group.name, member, command.ticket))
        return None

    def leave(self, command: Leave) -> list[Refused | None]:
        """For each leaver the refusal, or None: it left."""
        answers = [self._leave(leaver) for leaver in command.leavers]
        self._rebalance_if_anything_changed()
        return answers

    def restart(self) -> None:
        """The group was read from the journal: all sessions begin anew."""
        for member in self._group.members:
            self._renew(member)
        if len(self._group.members) > self._limits.members_max:
            self._prepare()

    def expire(self) -> None:
        """Carry out what time alone made true."""
        group = self._group
        due = list(group.due(self._now.mono))
        for timer, member in due:
            if timer is Timer.PENDING:
                self._emit(TimerCleared(group.name, timer, member))
            elif timer is not Timer.REBALANCE and member in group.members:
                self._remove(member, Gone.SILENT if timer is Timer.SESSION else Gone.LATE)
        if (Timer.REBALANCE, NOBODY) not in due:
            self._rebalance_if_anything_changed()
        elif group.delay_left_ms and group.joined_in_delay:
            delay_ms = min(self._limits.initial_delay_ms, group.delay_left_ms)
            self._emit(DelayExtended(group.name, group.delay_left_ms - delay_ms))
            self._set_rebalance_timer(delay_ms)
        else:
            self._complete()

    # ---- joining

    def _is_full(self, member: MemberId) -> bool:
        group, limit = self._group, self._limits.members_max
        match group.phase:
            case Phase.EMPTY:
                return False
            case Phase.PREPARING:
                return member not in group.joins and len(group.joins) >= limit
            case Phase.COMPLETING | Phase.STABLE:
                return member not in group.members and len(group.members) >= limit

    def _join_anew(self, command: Join) -> Joined | IdRequired | None:
        group = self._group
        if command.instance is not None:
            static = group.with_instance(command.instance)
            if static is not None:
                return self._replace(static, command)
        elif command.id_required:
            deadline = after(self._now.mono, command.session_ms)
            self._emit(TimerSet(group.name, Timer.PENDING, command.new_id, deadline))
            return IdRequired(command.new_id)
        self._add(command.new_id, command)
        return None

    def _add(self, member: MemberId, command: Join) -> None:
        group = self._group
        self._emit(TimerCleared(group.name, Timer.PENDING, member))
        self._emit(MemberSet(group.name, _member(member, command), command.protocol_type))
        deadline = after(self._now.mono, NEW_MEMBER_MS)
        self._emit(TimerSet(group.name, Timer.SESSION, member, deadline))
        self._emit(JoinParked(group.name, member, command.ticket))
        self._prepare_or_complete()

    def _rejoin(self, command: Join) -> Joined | None:
        group, known = self._group, self._group.members[command.member]
        same = known.candidates == command.candidates
        unmoved = group.phase is Phase.COMPLETING or (
            group.phase is Phase.STABLE and group.leader != known.id
        )
        if same and unmoved:
            return group.joined(known.id)
        if not self._supersede(group.joins, known.id):
            self._emit(TimerCleared(group.name, Timer.SESSION, known.id))
        changed = replace(_member(known.id, command), assignment=known.assignment)
        self._emit(MemberSet(group.name, changed, command.protocol_type))
        self._emit(JoinParked(group.name, known.id, command.ticket))
        self._prepare_or_complete()
        return None

    def _replace(self, static: Member, command: Join) -> Joined | None:
        """A static member is back without its id: it goes on under a new one (KIP-345)."""
        group, leader = self._group, self._group.leader
        assert leader is not None
        fenced = Refused(
            Why.FENCED_INSTANCE, f"Instance {static.instance} is member {command.new_id} now."
        )
        self._answer_parked(static.id, fenced)
        back = replace(_member(command.new_id, command), assignment=static.assignment)
        self._emit(MemberReplaced(group.name, static.id, back))
        if group.phase is not Phase.STABLE or group.elected() != group.protocol:
            self._emit(JoinParked(group.name, back.id, command.ticket))
            self._prepare_or_complete()
            return None
        self._emit(GroupStored(group.name, group.snapshot()))
        self._renew(back.id)
        joined = group.joined(back.id)
        if command.may_skip:
            return replace(joined, skip_assignment=group.leader == back.id)
        # An older client that finds itself leader would assign anew (KIP-814).
        return replace(joined, leader=leader, members=())

    # ---- the join phase

    def _prepare_or_complete(self) -> None:
        if self._group.phase is not Phase.PREPARING:
            self._prepare()
        elif self._group.all_joined and self._group.delay_left_ms is None:
            self._complete()

    def _rebalance_if_anything_changed(self) -> None:
        if any(isinstance(event, MemberGone) for event in self.events):
            if self._group.phase is not Phase.EMPTY:
                self._prepare_or_complete()
        elif self._group.phase is Phase.PREPARING:
            self._prepare_or_complete()  # an id less may be waited for

    def _prepare(self) -> None:
        """Begin a rebalance: everybody has to rejoin."""
        group, delay_ms = self._group, self._limits.initial_delay_ms
        for member in list(group.syncs):
            self._answer_parked(member, rebalancing(group.name))
            self._renew(member)
        for timer, member in list(group.timers):
            if timer is Timer.SYNC:
                self._emit(TimerCleared(group.name, timer, member))
        if group.phase is Phase.EMPTY and delay_ms:
            left_ms = max(group.rebalance_ms - delay_ms, 0)
            self._emit(RebalanceBegan(group.name, left_ms))
            self._set_rebalance_timer(delay_ms)
            return
        first = group.phase is Phase.EMPTY
        self._emit(RebalanceBegan(group.name))
        if first or group.all_joined:
            self._complete()
        else:
            self._set_rebalance_timer(group.rebalance_ms)

    def _complete(self) -> None:
        """End the join phase with those who joined."""
        group = self._group
        self._emit(TimerCleared(group.name, Timer.REBALANCE, NOBODY))
        for member in list(group.members.values()):
            if member.id not in group.joins and member.instance is None:
                self._emit(MemberGone(group.name, member.id, Gone.LATE))
        if not group.members:
            empty = replace(
                group.snapshot(),
                generation=group.generation + 1,
                protocol=None,
                leader=None,
                state_at=self._now.wall,
            )
            self._emit(GroupStored(group.name, empty))
            return
        if not group.joins:
            # There are static members only, and none is back yet.
            self._set_rebalance_timer(max(group.rebalance_ms, _LOOK_AGAIN_MS_MIN))
            return
        leader = group.leader if group.leader in group.joins else next(iter(group.joins))
        assert leader is not None
        self._emit(
            GenerationBegan(
                group.name, group.generation + 1, group.elected(), leader, self._now.wall
            )
        )
        deadline = after(self._now.mono, group.rebalance_ms)
        for id_ in list(group.members):
            if id_ in group.joins:
                self._answer_parked(id_, group.joined(id_))
                self._renew(id_)
            self._emit(TimerSet(group.name, Timer.SYNC, id_, deadline))

    def _set_rebalance_timer(self, duration_ms: int) -> None:
        deadline = after(self._now.mono, duration_ms)
        self._emit(TimerSet(self._group.name, Timer.REBALANCE, NOBODY, deadline))

    # ---- the sync phase

    def _assign(self, command: Sync) -> None:
        group = self._group
        assigned = tuple(
            replace(member, assignment=command.assignments.get(member.id, b""))
            for member in group.members.values()
        )
        generation = replace(group.snapshot(), members=assigned)
        self._emit(GroupStored(group.name, generation, completes=True))
        for member in list(group.syncs):
            self._answer_parked(member, self._assignment(member))
        for member in group.members:
            self._renew(member)

    def _assignment(self, member: MemberId) -> Synced:
        group = self._group
        return Synced(group.protocol_type, group.protocol, group.members[member].assignment)

    # ---- leaving

    def _leave(self, leaver: Leaver) -> Refused | None:
        group = self._group
        if leaver.instance is None:
            if group.is_pending(leaver.member):
                self._emit(TimerCleared(group.name, Timer.PENDING, leaver.member))
                return None
            gone = leaver.member
        else:
            static = group.with_instance(leaver.instance)
            gone = static.id if static is not None and not leaver.member else leaver.member
        refused = group.check(gone, leaver.instance)
        if refused is None:
            self._remove(gone, Gone.LEFT)
        return refused

    def _remove(self, member: MemberId, why: Gone) -> None:
        unknown = f"{member} is no member of group {self._group.name} any more; rejoin."
        self._answer_parked(member, Refused(Why.UNKNOWN_MEMBER, unknown))
        self._emit(MemberGone(self._group.name, member, why))

    # ---- small things

    def _answer_parked(self, member: MemberId, answer: Joined | Synced | Refused) -> None:
        for parked in (self._group.joins, self._group.syncs):
            ticket = parked.get(member)
            if ticket is not None:
                self._emit(Answered(self._group.name, member, ticket, answer))

    def _supersede(self, parked: dict[MemberId, Ticket], member: MemberId) -> bool:
        """Let go of a waiting request that its client has asked again; whether there was one."""
        there = member in parked
        if there:
            self._answer_parked(member, rebalancing(self._group.name))
        return there

    def _renew(self, member: MemberId) -> None:
        for event in self._group.renewed(member, self._now):
            self._emit(event)

    def _emit(self, event: MemberEvent) -> None:
        self._group.apply(event)
        self.events.append(event)


def rebalancing(group: str) -> Refused:
    """What a member is told that has to rejoin."""
    return Refused(Why.REBALANCE_IN_PROGRESS, f"Group {group} is rebalancing; rejoin.")


def _member(member: MemberId, command: Join) -> Member:
    return Member(
        member,
        command.instance,
        command.client_id,
        command.client_host,
        command.rebalance_ms,
        command.session_ms,
        command.candidates,
    )
