"""The words of consumer groups of the new protocol (KIP-848): what they are, asked, and told.

What happens to them is in `consumer_events.py`; groups of the classic protocol have
`group_words.py`, committed offsets are the same in both. Source: KIP-848; Kafka 4.3.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol
from uuid import UUID

from headrace.core.errors import Refused
from headrace.core.group_words import INT_MAX, NOBODY, Candidate, Command, Outside, ResetPolicy
from headrace.core.types import MemberId, TopicPartition, WallMs

Partitions = frozenset[TopicPartition]
NOTHING: Partitions = frozenset()
LEAVING = -1  # the epoch with which a member leaves
LEAVING_FOR_NOW = -2  # a static member that will be back
JOINING = 0
FIRST_EPOCH = 1  # of a group that has just been made


class ConsumerState(Enum):
    """Where a group is, in Kafka's words."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class Progress(Enum):
    """How far a member is on the way to its target; the values are those of the journal."""

    STABLE = 0
    UNREVOKED = 1  # it has to let go of partitions first
    UNRELEASED = 2  # it waits for partitions that others still hold


@dataclass(frozen=True, slots=True)
class Classic:
    """What a member of the classic protocol brought along into a group of the new one."""

    session_ms: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """What a member said of itself; `regex` is empty when it has none."""

    id: MemberId
    instance: str | None
    rack: str | None
    client_id: str
    client_host: str
    topics: frozenset[str]
    regex: str
    rebalance_ms: int
    assignor: str | None
    classic: Classic | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """What a member holds: `assigned`, and `revoking` until it said that it let go.

    `epochs`: the member epoch in which each partition was given to it.
    """

    epoch: int
    previous_epoch: int
    progress: Progress = Progress.STABLE
    assigned: Partitions = NOTHING
    revoking: Partitions = NOTHING
    epochs: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """The topics that a regular expression matches; `version` is the catalogue's at that time."""

    topics: frozenset[str]
    version: int
    at: WallMs


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as assignment needs it."""

    id: UUID
    partitions: int


@dataclass(frozen=True, slots=True)
class AssignMember:
    """A member as an assignor needs it; `owned` is its target so far."""

    subscribed: frozenset[str]
    instance: str | None = None
    owned: Partitions = NOTHING


# Gives each member its partitions of the topics that exist; each partition to one member alone.
Assignor = Callable[
    [Mapping[MemberId, AssignMember], Mapping[str, TopicView]], dict[MemberId, Partitions]
]


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """Settings of all consumer groups; the first assignor is for groups that ask for none.

    While members of the other protocol are in the group, those of the consumer protocol wait if
    `upgrades`, and those of the classic protocol if `downgrades`; otherwise they are refused.
    """

    assignors: Mapping[str, Assignor]
    members_max: int = INT_MAX
    upgrades: bool = True
    downgrades: bool = True


@dataclass(frozen=True, slots=True)
class Pace:
    """Settings of one group, in milliseconds."""

    session_ms: int = 45_000
    heartbeat_ms: int = 5_000
    assignment_interval_ms: int = 0


class ConsumerOutside(Outside, Protocol):
    """What decisions on groups of both protocols may read beyond the shard."""

    @property
    def consumer_limits(self) -> ConsumerLimits: ...
    @property
    def catalogue_version(self) -> int:
        """Another number after each change of topics, as long as the process lives."""

    def topic(self, name: str) -> TopicView | None: ...
    def existing(self, names: frozenset[str]) -> frozenset[str]:
        """Those of the names that are topics."""

    def matching(self, regex: str) -> frozenset[str] | Refused:
        """The topics whose whole name matches; refused with INVALID_REGEX."""

    def pace(self, group: str) -> Pace: ...
    def reset_policy(self, group: str) -> ResetPolicy | None:
        """By what its offsets are seeded; None: its clients see to it, as with Kafka."""


# ---- commands


@dataclass(frozen=True, slots=True)
class ConsumerBeat:
    """ConsumerGroupHeartbeat. Reply: Beaten, or Refused. What is None is as it was told before.

    A member that has no id yet (version 0) is given `new_id`.
    """

    group: str
    member: MemberId
    epoch: int
    new_id: MemberId = NOBODY
    instance: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_ms: int | None = None
    topics: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None


GroupCommand = Command | ConsumerBeat


# ---- what is told


@dataclass(frozen=True, slots=True)
class Beaten:
    """The answer to a heartbeat; `assignment` is None when it is as it was."""

    member: MemberId
    epoch: int
    heartbeat_ms: int
    assignment: Partitions | None
