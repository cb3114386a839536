"""What happens to classic groups and committed offsets.

Durable are GroupStored, GroupDropped, OffsetCommitted and OffsetDropped; all other events of
classic groups die with the process, as members, timers and waiting requests do. Groups of the new
protocol have `consumer_events.py`. What comes with every commit is a tuple, which costs a third of
a frozen dataclass.
"""

from dataclasses import dataclass
from typing import NamedTuple

from headrace.core.consumer_events import ConsumerEvent
from headrace.core.errors import Refused
from headrace.core.group_words import (
    Cause,
    Committed,
    Gone,
    Joined,
    Member,
    Snapshot,
    Synced,
    Ticket,
    Timer,
)
from headrace.core.types import MemberId, MonoMs, WallMs


@dataclass(frozen=True, slots=True)
class MemberSet:
    """A member was added, or said something else."""

    group: str
    member: Member
    protocol_type: str


@dataclass(frozen=True, slots=True)
class MemberReplaced:
    """A static member came back under a new id."""

    group: str
    old: MemberId
    member: Member


@dataclass(frozen=True, slots=True)
class MemberGone:
    """`why` is for the log, which people read."""

    group: str
    member: MemberId
    why: Gone


class TimerSet(NamedTuple):
    group: str
    timer: Timer
    member: MemberId
    deadline: MonoMs


@dataclass(frozen=True, slots=True)
class TimerCleared:
    """Volatile: a timer of a member does not run any more."""

    group: str
    timer: Timer
    member: MemberId


@dataclass(frozen=True, slots=True)
class JoinParked:
    """A join waits for the others."""

    group: str
    member: MemberId
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class SyncParked:
    """A sync waits for the leader's assignment."""

    group: str
    member: MemberId
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Answered:
    """A parked join or sync has its answer."""

    group: str
    member: MemberId
    ticket: Ticket
    answer: Joined | Synced | Refused


@dataclass(frozen=True, slots=True)
class RebalanceBegan:
    """All members have to rejoin. `delay_left_ms`: how far a first rebalance may be put off yet."""

    group: str
    delay_left_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DelayExtended:
    """Somebody joined while a first rebalance was put off, so it is put off further."""

    group: str
    delay_left_ms: int


@dataclass(frozen=True, slots=True)
class GenerationBegan:
    """The members of a generation are known; it waits for the leader's assignment."""

    group: str
    generation: int
    protocol: str
    leader: MemberId
    at: WallMs


@dataclass(frozen=True, slots=True)
class GroupStored:
    """A generation is assigned, or the group is empty. Durable.

    `completes`: a rebalance ended with it; for the meter alone, a journal does not tell it.
    """

    group: str
    snapshot: Snapshot
    completes: bool = False


@dataclass(frozen=True, slots=True)
class GroupDropped:
    """The group is no more. Durable; `cause` and `by` are for the history that people read."""

    group: str
    cause: Cause | None = None
    by: str = ""


class OffsetCommitted(NamedTuple):
    """Durable. `cause` and `by` are for the history that people read."""

    group: str
    topic: str
    partition: int
    committed: Committed
    cause: Cause = Cause.COMMIT
    by: str = ""


class OffsetDropped(NamedTuple):
    """Durable. `cause` is None where a journal does not tell it."""

    group: str
    topic: str
    partition: int
    cause: Cause | None = None
    by: str = ""


@dataclass(frozen=True, slots=True)
class OffsetsDetached:
    """All offsets of a group are no more. Volatile: the OffsetsDropped that follow are durable."""

    group: str


class OffsetsDropped(NamedTuple):
    """Offsets of a group were dropped. Durable, in its journal as an `OffsetDropped` each.

    One event, as a group may have tens of thousands; `partitions` are by topic.
    """

    group: str
    partitions: tuple[tuple[str, tuple[int, ...]], ...]
    cause: Cause | None = None
    by: str = ""


MemberEvent = (
    MemberSet
    | MemberReplaced
    | MemberGone
    | TimerSet
    | TimerCleared
    | JoinParked
    | SyncParked
    | Answered
    | RebalanceBegan
    | DelayExtended
    | GenerationBegan
    | GroupStored
)
Event = (
    MemberEvent
    | ConsumerEvent
    | GroupDropped
    | OffsetCommitted
    | OffsetDropped
    | OffsetsDetached
    | OffsetsDropped
)
