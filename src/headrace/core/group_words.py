"""The words of classic groups and committed offsets: what they are, what is asked, what is told.

What happens to them is in `group_events.py`. Source: Kafka 4.3's group coordinator.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, NewType, Protocol
from uuid import UUID

from headrace.core.reset import OutOfRange, Strategy
from headrace.core.types import MemberId, WallMs

Ticket = NewType("Ticket", int)  # of a request whose answer comes later, as an Answered
NOBODY = MemberId("")
INT_MAX = 2**31 - 1
TIME_UNKNOWN = WallMs(-1)
DELETION_PORTION = 2_000  # offsets that are dropped in one step: some milliseconds
RESTART_PORTION = 500  # members whose sessions begin in one step: some milliseconds


class Phase(Enum):
    """Where a group is, in Kafka's words. A deleted group is gone: there is no state for it."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Cause(Enum):
    """Why a committed offset moved or went."""

    COMMIT = "commit"  # by a member, or by a consumer that has no group but the name
    RESET = "reset"  # from outside, in a group that had members before
    EXPIRY = "expiry"
    DELETION = "deletion"
    GROUP_DELETION = "group deletion"
    TOPIC_DELETION = "topic deletion"
    SEEDED = "seeded"  # by the group's reset policy, before a client's own rule could say where


class Gone(Enum):
    """Why a member is no member any more."""

    LEFT = "left"
    SILENT = "was silent for its session timeout"
    LATE = "did not take part in the rebalance in time"


class Timer(Enum):
    """What a deadline is about: one member, but a classic group has one REBALANCE for all."""

    SESSION = auto()
    PENDING = auto()  # an id was given out and has not joined yet
    SYNC = auto()
    REBALANCE = auto()


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of classic groups; durations in milliseconds, metadata in UTF-16 units."""

    session_ms_min: int = 6_000
    session_ms_max: int = 1_800_000
    members_max: int = INT_MAX
    initial_delay_ms: int = 0
    metadata_max: int = 4096


@dataclass(frozen=True, slots=True)
class ResetPolicy:
    """A group's `auto.offset.reset` and `offset.reset.strategy.offset-out-of-range` (KIP-842)."""

    strategy: Strategy
    out_of_range: OutOfRange = OutOfRange.NONE


class Outside(Protocol):
    """What decisions may read beyond the shard."""

    @property
    def limits(self) -> Limits: ...
    def is_share_group(self, group: str) -> bool:
        """Whether the name is a share group's, or is set apart for one by `group.type`."""

    def retention_minutes(self, group: str) -> int:
        """How long its offsets are kept once nobody uses them (offsets.retention.minutes)."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A protocol that a member offers: an assignor's name and what the member tells it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a classic group; `instance` makes it a static one (KIP-345)."""

    id: MemberId
    instance: str | None
    client_id: str
    client_host: str
    rebalance_ms: int
    session_ms: int
    candidates: tuple[Candidate, ...]
    assignment: bytes = b""

    def metadata(self, protocol: str | None) -> bytes:
        """What the member said for a protocol; nothing when it does not offer it."""
        return next((one.metadata for one in self.candidates if one.name == protocol), b"")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A group as its journal has it: with members it is Stable, without it is Empty.

    `began`: when its first generation did; TIME_UNKNOWN before that, or where nobody wrote it down.
    """

    protocol_type: str | None
    generation: int
    protocol: str | None
    leader: MemberId | None
    state_at: WallMs
    members: tuple[Member, ...]
    began: WallMs = TIME_UNKNOWN


@dataclass(slots=True)  # not frozen, which costs four times as much; each commit makes one
class Committed:
    """One committed offset, never changed.

    `expires_at` is set where an old client chose its own retention.
    """

    offset: int
    leader_epoch: int
    metadata: str
    committed_at: WallMs
    expires_at: WallMs | None = None
    topic_id: UUID | None = None


# ---- commands


@dataclass(frozen=True, slots=True)
class Join:
    """JoinGroup. Reply: Joined, IdRequired, Refused, or None: the answer comes as an Answered.

    `new_id` is for a member that has none; with `id_required` (version 4 on) it has to come back
    with it. `may_skip` (version 9 on): the client understands `skip_assignment`.
    """

    group: str
    member: MemberId
    instance: str | None
    new_id: MemberId
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    candidates: tuple[Candidate, ...]
    ticket: Ticket
    id_required: bool = True
    may_skip: bool = True


@dataclass(frozen=True, slots=True)
class Sync:
    """SyncGroup. Reply: Synced, Refused, or None: the answer comes as an Answered.

    `protocol_type` and `protocol` are None where the version does not tell them.
    """

    group: str
    member: MemberId
    instance: str | None
    generation: int
    ticket: Ticket
    assignments: Mapping[MemberId, bytes] = field(default_factory=dict)
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class Beat:
    """Heartbeat. Reply: None, or Refused."""

    group: str
    member: MemberId
    instance: str | None
    generation: int


@dataclass(frozen=True, slots=True)
class Leaver:
    """Who is to leave: a member, or by its instance whoever has that now."""

    member: MemberId
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """LeaveGroup. Reply: for each leaver None, or Refused."""

    group: str
    leavers: tuple[Leaver, ...]


class Offset(NamedTuple):
    """What is to be committed for one partition."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    topic_id: UUID | None


class Commit(NamedTuple):
    """OffsetCommit. Reply: for each offset None, or Refused; Refused when it is all of them.

    `retention_ms` is None where the group's retention holds. `by` tells people who asked.
    `tells_epoch` (version 9 on): `generation` may be the epoch of a KIP-848 member.
    """

    group: str
    member: MemberId
    instance: str | None
    generation: int
    offsets: tuple[Offset, ...]
    retention_ms: int | None = None
    by: str = ""
    tells_epoch: bool = True


class Extent(NamedTuple):
    """A partition's log at one moment: from `start` up to, and without, `end`.

    `first` is the timestamp of its first record; None where it has none.
    """

    topic: str
    topic_id: UUID
    partition: int
    start: int
    end: int
    first: WallMs | None = None


@dataclass(frozen=True, slots=True)
class Seed:
    """Commit for the group what its reset policy says. Reply: how many offsets.

    `added`: the partitions were added a moment ago, and are empty. Otherwise a member asks for
    them. `by` tells people who.
    """

    group: str
    extents: tuple[Extent, ...]
    added: bool = False
    by: str = ""


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Reply: None, or Refused.

    A group with more than `offsets_max` offsets is deleted in portions of as many.
    """

    group: str
    by: str = ""
    offsets_max: int = DELETION_PORTION


# Offsets of a group by topic; where a topic has many partitions, it may be in several blocks.
OffsetsBlock = tuple[tuple[str, Mapping[int, Committed]], ...]


@dataclass(frozen=True, slots=True)
class DropDetached:
    """The rest of a DeleteGroup: drop offsets that its first portion detached. Reply: None."""

    group: str
    blocks: tuple[OffsetsBlock, ...] = field(repr=False)
    by: str = ""


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """OffsetDelete. Reply: for each (topic, partition) None, or Refused; Refused when it is all."""

    group: str
    partitions: tuple[tuple[str, int], ...]
    by: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """A group to look at, and some (topic, partition) of it; None: all that it has committed."""

    group: str
    partitions: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class ForgetOffsets:
    """A topic was deleted at `until`: forget what was committed for it, or may have been.

    A commit that does not tell its topic's id was for this one when it was not made later.
    """

    topic: str
    topic_id: UUID | None
    until: WallMs
    looks: tuple[Look, ...]
    by: str = ""


@dataclass(frozen=True, slots=True)
class Expire:
    """Drop what nobody used for too long, and groups that have nothing left. Reply: Expired.

    `at` decides what is due: a time at which nothing is deleted early while the clock is in doubt.
    """

    looks: tuple[Look, ...]
    at: WallMs


@dataclass(frozen=True, slots=True)
class RestartSessions:
    """The journal was replayed: members have their whole session timeout to show themselves.

    The sessions of `members_max` members, and some more of the last group, begin in one step.
    `groups` are left, from number `at` on; None before the first step.
    """

    members_max: int = RESTART_PORTION
    groups: tuple[str, ...] | None = field(default=None, repr=False)
    at: int = 0


Command = (
    Join
    | Sync
    | Beat
    | Leave
    | Commit
    | Seed
    | DeleteGroup
    | DropDetached
    | DeleteOffsets
    | ForgetOffsets
    | Expire
    | RestartSessions
)


# ---- what is told


@dataclass(frozen=True, slots=True)
class Peer:
    """A member as the leader is told of it."""

    id: MemberId
    instance: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """A join is done; `members` are for the leader alone, who assigns unless told to skip it."""

    member: MemberId
    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: MemberId
    members: tuple[Peer, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class IdRequired:
    """The id with which a new member has to join again (KIP-394)."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class Synced:
    """A member's assignment."""

    protocol_type: str | None
    protocol: str | None
    assignment: bytes


@dataclass(frozen=True, slots=True)
class Expired:
    """What an Expire came to: how many offsets went, of which groups, and how many groups."""

    offsets: int
    groups: tuple[str, ...]
    groups_removed: int
