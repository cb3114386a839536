"""The members of one share group: epochs, subscriptions, assignment, sessions. KIP-932.

All of it is volatile: a member that a restarted broker does not know is told so and rejoins under
its id, while its records, held by share-partitions, are not touched by membership at all.
A member is told its whole assignment in the answer that first knows it; there is no revocation
phase, because acquisition locks protect the records (reference: heartbeat rules of Kafka 4.3).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never
from uuid import UUID

from headrace.core.assignors import Assignment, share
from headrace.core.errors import Refused, Why
from headrace.core.types import MemberId, MonoMs, Now, TopicPartition, after, elapsed_ms

JOIN, LEAVE = 0, -1  # epochs with a meaning of their own in a heartbeat
_WAITING_MS = 200  # between heartbeats of a member that has nothing to read yet


@dataclass(frozen=True, slots=True)
class Timing:
    """Settings of a group's membership, in milliseconds, and how many members it may have.

    Between two assignments lie `assignment_interval_ms` at least; with 0 each change is assigned at
    once.
    """

    session_ms: int = 45_000
    heartbeat_ms: int = 5_000
    members_max: int = 200
    assignment_interval_ms: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """ShareGroupHeartbeat: join (epoch 0), stay, or leave (epoch -1).

    `topics` is None when the subscription did not change. `starts` has, by the name of a topic,
    where share.auto.offset.reset by duration leads in each partition.
    """

    group: str
    member: MemberId
    epoch: int
    topics: frozenset[str] | None = None
    client_id: str = ""
    client_host: str = ""
    rack: str | None = None
    starts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Member:
    """One member as its last heartbeat left it; `told` is the assignment it knows of."""

    id: MemberId
    epoch: int
    previous_epoch: int
    topics: frozenset[str]
    expires: MonoMs
    told: frozenset[TopicPartition]
    client_id: str = ""
    client_host: str = ""
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """A member joined or its heartbeat was accepted. Volatile."""

    group: str
    member: Member


@dataclass(frozen=True, slots=True)
class MemberGone:
    """A member left or its session timed out. Volatile."""

    group: str
    member: MemberId


@dataclass(frozen=True, slots=True)
class Basis:
    """What an assignment is made from: the topics each member wants, and their partitions."""

    wanted: Mapping[MemberId, frozenset[UUID]]
    partitions: Mapping[UUID, int]


@dataclass(frozen=True, slots=True)
class Assigned:
    """A new group epoch, with the target assignment that was made `at` a time. Volatile.

    `basis` is None when the assignment is not yet what its basis asks for.
    """

    group: str
    epoch: int
    assignment: Assignment
    at: MonoMs | None = None
    basis: Basis | None = None


@dataclass(frozen=True, slots=True)
class GroupForgotten:
    """The group was deleted: its epoch begins anew. Volatile."""

    group: str


@dataclass(frozen=True, slots=True)
class GroupRetained:
    """A group without share-partitions stays known until it is deleted; then not `is_retained`.

    Durable, as Kafka's record of a share group.
    """

    group: str
    is_retained: bool = True


GroupEvent = MemberSeen | MemberGone | Assigned


@dataclass(frozen=True, slots=True)
class Seen:
    """What a heartbeat is answered with; `assignment` is None when nothing is new to the member."""

    epoch: int
    interval_ms: int
    assignment: frozenset[TopicPartition] | None


CLOSED = -1  # begin and end of a log that cannot be opened


@dataclass(frozen=True, slots=True)
class TopicView:
    """What a group may know of a topic: its id and, by partition, where its log begins and ends.

    Both are `CLOSED` where the log cannot be opened; `closed` has why, by these partitions.
    """

    id: UUID
    starts: Sequence[int]
    ends: Sequence[int]
    closed: Mapping[int, str] = field(default_factory=dict)

    @property
    def partitions(self) -> int:
        return len(self.ends)

    def since(self, found: tuple[int, ...]) -> "TopicView":
        """The same, beginning where was `found` for the first partitions, the rest as it is."""
        if not found:
            return self
        moved = (max(pair) for pair in zip(self.starts, found, strict=False))
        return replace(self, starts=(*moved, *self.starts[len(found) :]))


class ShareGroup:
    """The state machine of one group's membership."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.members: dict[MemberId, Member] = {}
        self.assignment: Assignment = {}
        self.assigned_at: MonoMs | None = None
        self.basis: Basis | None = None

    def topics(self) -> frozenset[str]:
        """Every topic that some member subscribes to."""
        return frozenset().union(*(member.topics for member in self.members.values()))

    def next_deadline(self) -> MonoMs | None:
        """When the next member's session ends."""
        return min((member.expires for member in self.members.values()), default=None)

    def heartbeat(
        self, command: Heartbeat, now: Now, timing: Timing, topics: Mapping[str, TopicView]
    ) -> tuple[list[GroupEvent], Seen] | Refused:
        """Decide a heartbeat; `topics` are those that exist of the group's and the command's."""
        known = self.members.get(command.member)
        if command.epoch == LEAVE:
            if known is None:
                return _unknown(command.member)
            return self._gone({known.id}, now, timing, topics), Seen(LEAVE, 0, None)
        refused = self.check(command, timing)
        if refused is not None:
            return refused
        subscribed = command.topics if command.topics is not None else None
        if subscribed is None:
            assert known is not None
            subscribed = known.topics
        joined = known is None or command.epoch == JOIN
        seen = Member(
            command.member,
            self.epoch,
            known.epoch if known else 0,
            subscribed,
            after(now.mono, timing.session_ms),
            frozenset(),
            command.client_id,
            command.client_host,
            command.rack if joined or known is None else known.rack,
        )
        events: list[GroupEvent] = []
        members = {**self.members, seen.id: seen}
        assigned = self._assigned(members, now, timing, topics, changed=known is None)
        if assigned is not None:
            events.append(assigned)
        epoch, target = self.epoch, self.assignment
        if assigned is not None:
            epoch, target = assigned.epoch, assigned.assignment
        told = target.get(seen.id, frozenset())
        changed = known is None or (told is not known.told and told != known.told)
        unchanged_epoch = known is not None and known.epoch == epoch
        previous_epoch = seen.previous_epoch
        if known is not None and unchanged_epoch:
            previous_epoch = known.previous_epoch
        seen = Member(
            seen.id, epoch, previous_epoch, subscribed, seen.expires, told, seen.client_id,
            seen.client_host, seen.rack,
        )  # fmt: skip
        events.append(MemberSeen(self.name, seen))
        tell = joined or command.topics is not None or changed
        # Clients hear of a new topic only in a heartbeat; who waits for one asks often.
        waits = subscribed and not told
        interval_ms = min(timing.heartbeat_ms, _WAITING_MS) if waits else timing.heartbeat_ms
        return events, Seen(epoch, interval_ms, told if tell else None)

    def expired(
        self, now: Now, timing: Timing, topics: Mapping[str, TopicView]
    ) -> list[GroupEvent]:
        """Remove the members whose session ended."""
        late = {member.id for member in self.members.values() if member.expires <= now.mono}
        return self._gone(late, now, timing, topics) if late else []

    def apply(self, event: GroupEvent) -> None:
        """The only place where membership changes."""
        match event:
            case MemberSeen(_, member):
                self.members[member.id] = member
            case MemberGone(_, member_id):
                self.members.pop(member_id, None)
            case Assigned(_, epoch, assignment, at, basis):
                self.epoch, self.assignment = epoch, assignment
                self.assigned_at, self.basis = at, basis
            case _:
                assert_never(event)

    def check(self, command: Heartbeat, timing: Timing) -> Refused | None:
        """Return why a heartbeat that does not leave is refused, if it is."""
        known = self.members.get(command.member)
        if command.epoch == JOIN:
            if not command.topics:
                return Refused(
                    Why.INVALID_REQUEST, "SubscribedTopicNames must be set in the first request."
                )
            if known is None and len(self.members) >= timing.members_max:
                return Refused(
                    Why.GROUP_FULL,
                    f"The share group has reached its maximum capacity of {timing.members_max} "
                    "members (group.share.max.size).",
                )
            return None
        if known is None:
            return _unknown(command.member)
        if command.epoch not in (known.epoch, known.previous_epoch):
            return Refused(
                Why.STALE_EPOCH,
                f"The member epoch {command.epoch} is not the group's {known.epoch}; rejoin.",
            )
        return None

    def _assigned(
        self,
        members: Mapping[MemberId, Member],
        now: Now,
        timing: Timing,
        topics: Mapping[str, TopicView],
        *,
        changed: bool,
    ) -> Assigned | None:
        """The next epoch, where there is one: `changed` members, or another assignment."""
        wanted = {
            member.id: frozenset(topics[name].id for name in member.topics if name in topics)
            for member in members.values()
        }
        sizes = {view.id: view.partitions for view in topics.values()}
        basis: Basis | None = Basis(wanted, sizes)
        if basis == self.basis and not changed:
            return None
        target, at = share(wanted, sizes, self.assignment), now.mono
        if self.assigned_at is not None and target != self.assignment:
            kept = {
                member: frozenset(
                    one for one in self.assignment.get(member, ()) if one.topic_id in topics_of
                )
                for member, topics_of in wanted.items()
            }
            age_ms = elapsed_ms(self.assigned_at, now.mono)
            if age_ms < timing.assignment_interval_ms and any(kept.values()):
                # The next heartbeat after the interval brings the other one (KIP-1263).
                target, at, basis = kept, self.assigned_at, None
        elif self.assigned_at is not None:
            at = self.assigned_at
        if target == self.assignment and not changed:
            return None
        return Assigned(self.name, self.epoch + 1, target, at, basis)

    def _gone(
        self, gone: set[MemberId], now: Now, timing: Timing, topics: Mapping[str, TopicView]
    ) -> list[GroupEvent]:
        left = {key: member for key, member in self.members.items() if key not in gone}
        events: list[GroupEvent] = [MemberGone(self.name, member) for member in sorted(gone)]
        assigned = self._assigned(left, now, timing, topics, changed=True)
        return [*events, assigned] if assigned is not None else events


def _unknown(member: MemberId) -> Refused:
    return Refused(Why.UNKNOWN_MEMBER, f"Member {member} is not a member of the group; rejoin.")
