"""The words of a shard: what it may know of the outside, its commands, events and replies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol
from uuid import UUID

from headrace.core.archived import ArchiveEvent
from headrace.core.leases import (
    FREED_MAX,
    Acquisition,
    Claim,
    Held,
    LeaseEvent,
    LeaseForgotten,
    LeaseKey,
    Remainders,
    Staged,
)
from headrace.core.runs import Runs
from headrace.core.share_group import (
    GroupEvent,
    GroupForgotten,
    GroupRetained,
    Heartbeat,
    Timing,
    TopicView,
)
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import PORTION_RUNS, Policy, Range, ShareKey
from headrace.core.share_words import Command as PartitionCommand
from headrace.core.share_words import Event as PartitionEvent
from headrace.core.types import MemberId, MonoMs


class Outside(Protocol):
    """What decisions may read beyond the shard: settings, and topics as they are now."""

    def policy(self, group: str) -> Policy: ...
    def timing(self, group: str) -> Timing: ...
    def starts_earliest(self, group: str) -> bool:
        """Whether share.auto.offset.reset of the group leads to the start of a log, or to its end.

        By duration it is the start: where it leads really comes with the command, and what the
        command does not tell of was created since.
        """

    def topic(self, name: str) -> TopicView | None: ...


STAGED_PORTION = 2_000  # dispositions that are checked in one step: some milliseconds


# ---- commands


@dataclass(frozen=True, slots=True)
class On:
    """A command to one share-partition."""

    key: ShareKey
    command: PartitionCommand


@dataclass(frozen=True, slots=True)
class StartPartitions:
    """Begin share-partitions before the heartbeat that needs them, because they are many.

    `starts` has topic, partition and SPSO. Partition 0 of a topic is started last: a group knows a
    topic once it has partition 0 of it, also when the broker dies amid the portions.
    """

    group: str
    starts: tuple[tuple[UUID, int, int], ...]


@dataclass(frozen=True, slots=True)
class ReleaseMember:
    """A member's share session ended: release all that it holds in the group."""

    group: str
    member: MemberId


@dataclass(frozen=True, slots=True)
class OpenLease:
    """Open a session, subscribed to `topics`; ones new to the group start as told.

    `runs_max` bounds a portion: runs of records that are claimed in one step.
    """

    lease: LeaseKey
    topics: tuple[str, ...]
    earliest: bool
    runs_max: int = PORTION_RUNS


@dataclass(frozen=True, slots=True)
class AcquireLease:
    """Acquire up to `records_max` under `seq`; the same ranges when it is asked again.

    Where there are `bounds`, by share-partition, what lies below them alone. Fewer records are
    acquired where they are in more than `ACQUIRED_RANGES_MAX` ranges.
    """

    lease: LeaseKey
    epoch: int
    seq: int
    records_max: int
    bounds: Mapping[ShareKey, int] = field(default_factory=dict)
    runs_max: int = PORTION_RUNS


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Restart the locks of all that the session holds."""

    lease: LeaseKey
    epoch: int
    runs_max: int = PORTION_RUNS


@dataclass(frozen=True, slots=True)
class StageLease:
    """Keep dispositions for the commit of `seq`, in place of those that `part` gave before.

    More than `ranges_max` of them are in the order of `leases.in_order`, and are checked in
    portions: the first `checked` lie inside of `held`.
    """

    lease: LeaseKey
    epoch: int
    seq: int
    staged: tuple[Staged, ...]
    part: str = ""
    ranges_max: int = STAGED_PORTION
    checked: int = 0
    held: tuple[Held, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitLease:
    """Settle all numbers up to `seq`, at most `runs_max` runs of records in one step."""

    lease: LeaseKey
    epoch: int
    seq: int
    runs_max: int = PORTION_RUNS


@dataclass(frozen=True, slots=True)
class SettleLease:
    """Settle what is left of a commit.

    The session is not asked: its numbers are committed since the first portion. Of `claims`, blocks
    of at most `runs_max`, those of share-partitions count whose in-flight state is still one of
    `lives`: after a deletion, a reset, or the loss of a log's end, the same offsets are other
    deliveries. Delays count from `since`. `done` is the reply so far, in which all that is not
    settled yet is refused.
    """

    lease: LeaseKey
    claims: tuple[tuple[Claim, ...], ...]
    lives: frozenset[Runs]
    since: MonoMs
    runs_max: int
    done: "Committed"


@dataclass(frozen=True, slots=True)
class ReclaimLease:
    """Restart the locks of what is left of a session's acquisitions.

    These are `numbers`, the first of them from its range `at` and the offset `first` on, as long as
    it holds `held`. The reply is `reply`; if that is None, it counts `records`, and those that were
    `reclaimed`; `before` has both as they were when the first number was begun.
    """

    lease: LeaseKey
    epoch: int
    runs_max: int
    numbers: tuple[int, ...]
    reply: object = None
    held: tuple[Held, ...] = ()
    at: int = 0
    first: int = 0
    records: int = 0
    reclaimed: int = 0
    before: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class ForgetTopic:
    """A topic was deleted: forget its share-partitions."""

    topic_id: UUID


@dataclass(frozen=True, slots=True)
class Keep:
    """Write the state of these anew, so that what the journal has of them before can go."""

    partitions: tuple[ShareKey, ...]
    leases: tuple[LeaseKey, ...]
    pages: tuple[tuple[ShareKey, int], ...] = ()  # of lists of archived records
    groups: tuple[str, ...] = ()  # that are retained

    def __len__(self) -> int:
        return sum(map(len, (self.partitions, self.leases, self.pages, self.groups)))


class RecoveryStep(NamedTuple):
    """One step of a recovery.

    With `held`, a lease of the group that is called `holder` takes back the locks of a range; with
    `lease`, that counts as a member for a while; otherwise the members of the group are forgotten.
    """

    group: str
    holder: MemberId = MemberId("")
    held: Held | None = None
    lease: LeaseKey | None = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """The journal was replayed: give leases the locks back that died with the process.

    At most `runs_max` runs of records are locked in one step. `blocks` of as many steps are left,
    of the first of them what is from the offset `first` on; None before they are worked out.
    """

    runs_max: int = PORTION_RUNS
    blocks: tuple[tuple[RecoveryStep, ...], ...] | None = field(default=None, repr=False)
    first: int = 0


@dataclass(frozen=True, slots=True)
class AlterShareOffsets:
    """Set SPSO of partitions of a group without members, by name of their topics.

    A start of TO_POLICY is where share.auto.offset.reset of the group leads now; `policy` has where
    that is by duration, as a Heartbeat's `starts`. The reply has a Refused or None for each, in
    order. Where leases have more than `ranges_max` ranges outstanding, `known` has what is left of
    them.
    """

    group: str
    starts: tuple[tuple[str, int, int], ...]  # topic, partition, start
    policy: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ranges_max: int = FREED_MAX
    known: Remainders = field(default_factory=Remainders, repr=False)


@dataclass(frozen=True, slots=True)
class DeleteShareOffsets:
    """Forget all of these topics in a group without members; the reply as AlterShareOffsets'."""

    group: str
    topics: tuple[str, ...]
    ranges_max: int = FREED_MAX
    known: Remainders = field(default_factory=Remainders, repr=False)


@dataclass(frozen=True, slots=True)
class DeleteShareGroup:
    """Forget a group without members, with all its state."""

    group: str


@dataclass(frozen=True, slots=True)
class ClearArchived:
    """Forget what was archived without a dead letter in a share-partition, up to a number."""

    key: ShareKey
    through: int


LeaseCommand = (
    OpenLease | AcquireLease | RenewLease | StageLease | CommitLease | SettleLease | ReclaimLease
)
AdminCommand = AlterShareOffsets | DeleteShareOffsets | DeleteShareGroup
GroupCommand = Heartbeat | StartPartitions | ReleaseMember | AdminCommand


@dataclass(frozen=True, slots=True)
class LogEndLost:
    """A log ends at `end`, though records behind that were known of: they are no more.

    At most `ranges_max` ranges are handled in one step. `known` has what is left of leases without
    the share-partition, and `behind` the acquisitions that have records behind `end`.
    """

    key: ShareKey
    end: int
    ranges_max: int = FREED_MAX
    known: Remainders = field(default_factory=Remainders, repr=False)
    behind: tuple[Acquisition, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class ReturnRanges:
    """The rest of a LogEndLost: blocks of ranges that are in flight again.

    They count for this share-partition as long as it has this `state_epoch`.
    """

    share: SharePartition = field(repr=False)
    state_epoch: int
    blocks: tuple[tuple[Range, ...], ...] = field(repr=False)


Command = (
    GroupCommand
    | On
    | LeaseCommand
    | ForgetTopic
    | Keep
    | Recovered
    | ClearArchived
    | LogEndLost
    | ReturnRanges
)


# ---- events and replies


class Removal(StrEnum):
    """What an administrator removed; the words stand in the journal, for people."""

    GROUP = "group deletion"
    OFFSETS = "offset deletion"


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A share-partition is no more: its topic was deleted, or as `removal` says. Durable."""

    key: ShareKey
    removal: Removal | None = None


@dataclass(frozen=True, slots=True)
class PartitionKept:
    """The state of a share-partition is to be journaled, as it is. Durable."""

    key: ShareKey


@dataclass(frozen=True, slots=True)
class LeaseKept:
    """The state of a lease is to be journaled, as it is. Durable."""

    lease: LeaseKey


@dataclass(frozen=True, slots=True)
class Restarted:
    """The members that these groups had before are forgotten, and may be heard of. Volatile.

    It is in each portion of a recovery.
    """

    at: MonoMs
    groups: frozenset[str]


Kept = PartitionKept | LeaseKept | GroupRetained
GroupsForgotten = Forgotten | LeaseForgotten | GroupForgotten
Event = PartitionEvent | GroupEvent | LeaseEvent | ArchiveEvent | GroupsForgotten | Kept | Restarted


@dataclass(frozen=True, slots=True)
class Opened:
    """A lease as its driver finds it."""

    epoch: int
    committed: int
    lock_ms: int
    outstanding: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Renewed:
    """Records still held and records lost."""

    held: int
    lost: int


@dataclass(frozen=True, slots=True)
class Committed:
    """Records settled by a commit, by verdict; `refused` were not held any more."""

    accepted: int
    released: int
    rejected: int
    refused: int
