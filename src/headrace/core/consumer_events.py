"""What happens to consumer groups of the new protocol (KIP-848).

Each event that is not called volatile is one record of `__consumer_offsets` (types 3, 5, 6, 7, 8
and 16); what was dropped is its tombstone.
"""

from dataclasses import dataclass

from headrace.core.consumer_words import ConsumerMember, Holding, Partitions, Resolved
from headrace.core.group_words import TIME_UNKNOWN, Cause, Gone, Timer
from headrace.core.types import MemberId, MonoMs, WallMs


@dataclass(frozen=True, slots=True)
class ConsumerGroupStored:
    """A group began, or has a new epoch. `empty_since`: when its last member went, if it has none.

    `began`: when its first member joined. Kafka keeps neither time: they stand in tagged fields of
    ours, which others pass over.
    """

    group: str
    epoch: int
    metadata_hash: int
    empty_since: WallMs = TIME_UNKNOWN
    began: WallMs = TIME_UNKNOWN


@dataclass(frozen=True, slots=True)
class ConsumerGroupDropped:
    """`cause` and `by` are for the history that people read."""

    group: str
    cause: Cause | None = None
    by: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerMemberStored:
    """A member joined, or what it asks for has changed."""

    group: str
    member: ConsumerMember


@dataclass(frozen=True, slots=True)
class ConsumerMemberDropped:
    """`why` is for the log, which people read; a journal does not tell it."""

    group: str
    member: MemberId
    why: Gone | None = None


@dataclass(frozen=True, slots=True)
class TargetStored:
    """The target assignment is that of a group epoch now; members follow as TargetSet."""

    group: str
    epoch: int
    at: WallMs


@dataclass(frozen=True, slots=True)
class TargetDropped:
    """The group has no target assignment any more."""

    group: str


@dataclass(frozen=True, slots=True)
class TargetSet:
    """What a member is to hold."""

    group: str
    member: MemberId
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class TargetUnset:
    """A member has no target assignment any more."""

    group: str
    member: MemberId


@dataclass(frozen=True, slots=True)
class HoldingStored:
    """What a member holds now, and in which epoch it is."""

    group: str
    member: MemberId
    holding: Holding


@dataclass(frozen=True, slots=True)
class HoldingDropped:
    """A member holds nothing any more."""

    group: str
    member: MemberId


@dataclass(frozen=True, slots=True)
class RegexResolved:
    """The topics that a regular expression matches."""

    group: str
    regex: str
    resolved: Resolved


@dataclass(frozen=True, slots=True)
class RegexDropped:
    """No member subscribes by a regular expression any more."""

    group: str
    regex: str


@dataclass(frozen=True, slots=True)
class ConsumerTimerSet:
    """Volatile: the member has until then to beat, or to let go of partitions."""

    group: str
    timer: Timer
    member: MemberId
    deadline: MonoMs


@dataclass(frozen=True, slots=True)
class ConsumerTimerCleared:
    """Volatile."""

    group: str
    timer: Timer
    member: MemberId


@dataclass(frozen=True, slots=True)
class CatalogueSeen:
    """Volatile: regular expressions and metadata hash are those of this catalogue version."""

    group: str
    version: int


ConsumerEvent = (
    ConsumerGroupStored
    | ConsumerGroupDropped
    | ConsumerMemberStored
    | ConsumerMemberDropped
    | TargetStored
    | TargetDropped
    | TargetSet
    | TargetUnset
    | HoldingStored
    | HoldingDropped
    | RegexResolved
    | RegexDropped
    | ConsumerTimerSet
    | ConsumerTimerCleared
    | CatalogueSeen
)
