"""One classic group: its members, its generation, who waits for what, and until when.

The state, and `apply`, the only place where it changes; what is to happen is decided in
`rebalance.py`. `stored` is the group as its journal has it: a generation that is not assigned yet
is not in there, and is gone with the process. Source: Kafka 4.3, ClassicGroup.
"""

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from copy import copy
from typing import assert_never

from headrace.core import subscription
from headrace.core.errors import Refused, Why
from headrace.core.group_events import (
    Answered,
    DelayExtended,
    GenerationBegan,
    GroupDropped,
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
    TIME_UNKNOWN,
    Candidate,
    Cause,
    Commit,
    Joined,
    Member,
    Peer,
    Phase,
    Snapshot,
    Ticket,
    Timer,
)
from headrace.core.subscription import Matching
from headrace.core.types import MemberId, MonoMs, Now, WallMs, after


class ClassicGroup:
    """The state of one classic group."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.phase = Phase.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: MemberId | None = None
        self.state_at: WallMs = TIME_UNKNOWN
        self.began: WallMs = TIME_UNKNOWN
        self.stored: Snapshot | None = None
        self.begun: Snapshot | None = None  # the newest generation, assigned or not
        self.members: dict[MemberId, Member] = {}
        self.joins: dict[MemberId, Ticket] = {}
        self.syncs: dict[MemberId, Ticket] = {}
        self.timers: dict[tuple[Timer, MemberId], MonoMs] = {}
        self.delay_left_ms: int | None = None  # while a first rebalance is put off
        self.joined_in_delay = False
        self._offers = Counter[str]()  # how many members offer each protocol
        self._topics_of: tuple[Snapshot, Container[str]] | None = None

    def thinking(self) -> "ClassicGroup":
        """A group in the same state, on which `rebalance.py` thinks ahead."""
        ahead = copy(self)
        ahead.members, ahead.timers = self.members.copy(), self.timers.copy()
        ahead.joins, ahead.syncs = self.joins.copy(), self.syncs.copy()
        ahead._offers = self._offers.copy()
        return ahead

    # ---- what there is to know

    @property
    def pending(self) -> bool:
        """Whether somebody was given an id and has not joined yet."""
        return any(timer is Timer.PENDING for timer, _ in self.timers)

    @property
    def blank(self) -> bool:
        """Whether nothing would be lost if the group had never been there."""
        known = self.stored is not None or self.members or self.timers
        return self.phase is Phase.EMPTY and not known

    @property
    def all_joined(self) -> bool:
        """Whether the join phase waits for nobody."""
        return not self.members or (len(self.joins) == len(self.members) and not self.pending)

    @property
    def rebalance_ms(self) -> int:
        """How long the slowest member may take to rejoin."""
        return max((member.rebalance_ms for member in self.members.values()), default=0)

    def is_pending(self, member: MemberId) -> bool:
        return (Timer.PENDING, member) in self.timers

    def with_instance(self, instance: str) -> Member | None:
        """The static member that has this instance id now."""
        return next((one for one in self.members.values() if one.instance == instance), None)

    def check(self, member: MemberId, instance: str | None) -> Refused | None:
        """Refuse who is no member, or a static member whose instance is taken by another."""
        known = self.members.get(member)
        if known is not None and instance in (None, known.instance):
            return None  # as nearly always, and without a look at the others
        if instance is not None:
            static = self.with_instance(instance)
            if static is not None:
                return Refused(
                    Why.FENCED_INSTANCE,
                    f"Instance {instance} of group {self.name} is member {static.id} now.",
                )
        return Refused(Why.UNKNOWN_MEMBER, f"{member!r} is no member of group {self.name}; rejoin.")

    def check_generation(self, generation: int) -> Refused | None:
        if generation == self.generation:
            return None
        return Refused(
            Why.ILLEGAL_GENERATION,
            f"Group {self.name} is in generation {self.generation}, not {generation}.",
        )

    def supports(self, protocol_type: str, candidates: Sequence[Candidate]) -> bool:
        """Whether a member that offers these may be in the group."""
        if not self.members:
            return bool(protocol_type and candidates)
        common = self._common()
        return protocol_type == self.protocol_type and any(one.name in common for one in candidates)

    def elected(self) -> str:
        """The protocol that all members offer and most prefer; the leader's order breaks a tie."""
        common = self._common()
        votes = Counter(
            next(one.name for one in member.candidates if one.name in common)
            for member in self.members.values()
        )
        leader = self.members.get(self.leader or NOBODY) or next(iter(self.members.values()))
        order = [one.name for one in leader.candidates]
        return max(votes, key=lambda name: (votes[name], -order.index(name)))

    def renewed(self, member: MemberId, now: Now) -> list[TimerSet]:
        """A member's session begun anew, unless a waiting request of its stands for it."""
        if member in self.joins or member in self.syncs:
            return []
        deadline = after(now.mono, self.members[member].session_ms)
        return [TimerSet(self.name, Timer.SESSION, member, deadline)]

    def joined(self, member: MemberId) -> Joined:
        """What a member is told of the generation that is; members are for the leader alone."""
        assert self.leader is not None
        peers: tuple[Peer, ...] = ()
        if member == self.leader:
            peers = tuple(
                Peer(one.id, one.instance, one.metadata(self.protocol))
                for one in self.members.values()
            )
        return Joined(
            member,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            peers,
        )

    def snapshot(self) -> Snapshot:
        """The group as it would be stored now."""
        return Snapshot(
            self.protocol_type,
            self.generation,
            self.protocol,
            self.leader,
            self.state_at,
            tuple(self.members.values()),
            self.began,
        )

    def _common(self) -> set[str]:
        return {name for name, count in self._offers.items() if count == len(self.members)}

    # ---- what decides over its offsets (core.offset_life.Owner)

    @property
    def is_empty(self) -> bool:
        return self.phase is Phase.EMPTY

    @property
    def is_awaited(self) -> bool:
        return self.pending

    @property
    def is_rebalancing(self) -> bool:
        return self.phase in (Phase.PREPARING, Phase.COMPLETING)

    @property
    def empty_since(self) -> WallMs:
        return self.state_at if self.phase is Phase.EMPTY else TIME_UNKNOWN

    @property
    def subscribed(self) -> Container[str]:
        """The topics of the newest generation; everything until there is one.

        Only for groups of the consumer protocol: what others say to each other is not known.
        """
        begun = self.begun
        if begun is None or not begun.members:
            return subscription.EVERYTHING
        if self._topics_of is None or self._topics_of[0] is not begun:
            told = (member.metadata(begun.protocol) for member in begun.members)
            self._topics_of = begun, subscription.subscribed(told)
        return self._topics_of[1]

    def reads(self, topic: str, matching: Matching) -> bool:  # noqa: ARG002  # as for KIP-848
        """Whether a member subscribes to it by name; regular expressions stay with the clients."""
        if self.is_empty or self.protocol_type != subscription.PROTOCOL_TYPE:
            return False
        subscribed = self.subscribed
        return subscribed is not subscription.EVERYTHING and topic in subscribed

    def has_member(self, member: MemberId) -> bool:
        return member in self.members

    def check_commit(self, command: Commit) -> Refused | None:
        """Why nothing of a commit is accepted; None when it may be."""
        if self.phase is Phase.EMPTY and command.generation < 0:
            return None
        refused = self.check(command.member, command.instance)
        if refused is None:
            refused = self.check_generation(command.generation)
        if refused is None and self.phase is Phase.COMPLETING:
            refused = Refused(
                Why.REBALANCE_IN_PROGRESS, f"Group {self.name} is rebalancing; commit afterwards."
            )
        return refused

    def after_commit(self, member: MemberId, now: Now) -> list[TimerSet]:
        """A commit shows that the member lives."""
        return self.renewed(member, now)

    def ended(self, cause: Cause | None = None, by: str = "") -> list[GroupDropped]:
        """With these the group is no more; its offsets aside."""
        return [GroupDropped(self.name, cause, by)]

    # ---- changes

    def apply(self, event: MemberEvent) -> None:
        """The only place where the group changes."""
        match event:
            case MemberSet() | MemberReplaced() | MemberGone():
                self._apply_to_members(event)
            case TimerSet(_, timer, member, deadline):
                self.timers[timer, member] = deadline
            case TimerCleared(_, timer, member):
                self.timers.pop((timer, member), None)
            case JoinParked() | SyncParked() | Answered():
                self._apply_to_requests(event)
            case RebalanceBegan(_, delay_left_ms) | DelayExtended(_, delay_left_ms):
                self.phase = Phase.PREPARING
                self.delay_left_ms, self.joined_in_delay = delay_left_ms, False
            case GenerationBegan(_, generation, protocol, leader, at):
                self.phase = Phase.COMPLETING
                self.generation, self.protocol, self.leader = generation, protocol, leader
                self.state_at, self.delay_left_ms = at, None
                self.began = at if self.began == TIME_UNKNOWN else self.began
                self.begun = self.snapshot()
            case GroupStored(_, snapshot):
                self._restore(snapshot)
            case _:
                assert_never(event)

    def _apply_to_members(self, event: MemberSet | MemberReplaced | MemberGone) -> None:
        match event:
            case MemberSet(_, member, protocol_type):
                if not self.members:
                    self.protocol_type = protocol_type
                if self.leader is None:
                    self.leader = member.id
                if member.id not in self.members and self.delay_left_ms is not None:
                    self.joined_in_delay = True
                self._put(member)
            case MemberReplaced(_, old, member):
                self._remove(old)
                self._put(member)
                if self.leader == old:
                    self.leader = member.id
            case MemberGone(_, gone):
                self._remove(gone)
                if self.leader == gone:
                    self.leader = next(iter(self.members), None)

    def _apply_to_requests(self, event: JoinParked | SyncParked | Answered) -> None:
        match event:
            case JoinParked(_, member, ticket):
                self.joins[member] = ticket
            case SyncParked(_, member, ticket):
                self.syncs[member] = ticket
            case Answered(_, member, ticket):
                for parked in (self.joins, self.syncs):
                    if parked.get(member) == ticket:
                        del parked[member]

    def _put(self, member: Member) -> None:
        self._offer(self.members.get(member.id), -1)
        self._offer(member, 1)
        self.members[member.id] = member

    def _offer(self, member: Member | None, step: int) -> None:
        for name in {one.name for one in member.candidates} if member is not None else ():
            self._offers[name] += step
            if not self._offers[name]:
                del self._offers[name]

    def _remove(self, member: MemberId) -> None:
        self._offer(self.members.pop(member, None), -1)
        self.joins.pop(member, None)
        self.syncs.pop(member, None)
        for timer in (Timer.SESSION, Timer.SYNC):
            self.timers.pop((timer, member), None)

    def _restore(self, snapshot: Snapshot) -> None:
        self.stored = self.begun = snapshot
        self.phase = Phase.STABLE if snapshot.members else Phase.EMPTY
        self.generation = snapshot.generation
        self.protocol_type, self.protocol = snapshot.protocol_type, snapshot.protocol
        self.state_at, self.began = snapshot.state_at, snapshot.began
        self.members = {}
        self._offers = Counter()
        for member in snapshot.members:
            self._put(member)
        known = snapshot.leader in self.members  # whatever a foreign journal may tell
        self.leader = snapshot.leader if known else next(iter(self.members), None)
        self.delay_left_ms = None

    def due(self, until: MonoMs) -> Iterator[tuple[Timer, MemberId]]:
        """The timers that have run out."""
        return (key for key, deadline in self.timers.items() if deadline <= until)
