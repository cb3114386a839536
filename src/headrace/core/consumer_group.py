"""One consumer group of the new protocol: its members, what each is to hold, and what it holds.

The state, and `apply`, the only place where it changes; what is to happen is decided in
`consumer_decision.py`. Three epochs follow each other: the group's (who is here and wants what),
the target's (who is to hold what), and each member's (how far it has come). All of it is in the
journal but timers and `seen_version`. Source: KIP-848; Kafka 4.3, ConsumerGroup.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import assert_never

from headrace.core.classic_group import ClassicGroup
from headrace.core.consumer_events import (
    CatalogueSeen,
    ConsumerEvent,
    ConsumerGroupDropped,
    ConsumerGroupStored,
    ConsumerMemberDropped,
    ConsumerMemberStored,
    ConsumerTimerCleared,
    ConsumerTimerSet,
    HoldingDropped,
    HoldingStored,
    RegexDropped,
    RegexResolved,
    TargetDropped,
    TargetSet,
    TargetStored,
    TargetUnset,
)
from headrace.core.consumer_words import (
    JOINING,
    NOTHING,
    ConsumerMember,
    ConsumerOutside,
    ConsumerState,
    Holding,
    Partitions,
    Progress,
    Resolved,
)
from headrace.core.errors import Refused, Why
from headrace.core.group_words import TIME_UNKNOWN, Cause, Commit, Offset, Timer
from headrace.core.subscription import Matching
from headrace.core.types import MemberId, MonoMs, Now, TopicPartition, WallMs

_UNCHECKED = -1  # an epoch that is not told


@dataclass(slots=True)
class _Existing:
    """Keep what `ConsumerGroup.existing` last found: a cache, no state.

    An entry holds as long as the member, what its regular expression matches, and the catalogue
    are the same. Groups that differ in the cache alone are equal.
    """

    version: int = field(default=0, compare=False)
    of_members: dict[MemberId, tuple[ConsumerMember, Resolved | None, frozenset[str]]] = field(
        default_factory=dict, compare=False
    )


class ConsumerGroup:
    """The state of one consumer group. Every member has a holding, if only of nothing.

    Only a journal that lost records has holdings of other members; they last for a session.
    """

    protocol_type = "consumer"
    is_awaited = False  # there is no waiting in this protocol
    is_rebalancing = False  # what members subscribe to is always known

    def __init__(self, name: str, began: WallMs = TIME_UNKNOWN) -> None:
        self.name = name
        self.began = began
        self.epoch = 0
        self.metadata_hash = 0
        self.empty_since: WallMs = TIME_UNKNOWN
        self.target_epoch = 0
        self.target_at: WallMs = TIME_UNKNOWN
        self.members: dict[MemberId, ConsumerMember] = {}
        self.holdings: dict[MemberId, Holding] = {}
        self.targets: dict[MemberId, Partitions] = {}
        self.regexes: dict[str, Resolved] = {}
        self.timers: dict[tuple[Timer, MemberId], MonoMs] = {}
        self.seen_version: int | None = None  # of the catalogue; a new process has to look anew
        self._holders: dict[TopicPartition, MemberId] = {}
        self._subscribed: frozenset[str] | None = None  # to be worked out
        self._existing = _Existing()  # one for the group and its copies

    def thinking(self) -> "ConsumerGroup":
        """A group in the same state, on which `consumer_decision.py` thinks ahead."""
        ahead = copy(self)
        ahead.members, ahead.holdings = self.members.copy(), self.holdings.copy()
        ahead.targets, ahead.regexes = self.targets.copy(), self.regexes.copy()
        ahead.timers, ahead._holders = self.timers.copy(), self._holders.copy()
        return ahead

    # ---- what there is to know

    @property
    def state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerState.ASSIGNING
        if all(self.is_settled(member) for member in self.members):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def subscribed(self) -> frozenset[str]:
        """Every topic that some member asks for, by its name or by a regular expression."""
        if self._subscribed is None:
            self._subscribed = frozenset().union(*set(self.subscriptions().values()))
        return self._subscribed

    def wanted(self, member: ConsumerMember) -> frozenset[str]:
        """The topics that a member asks for, whether they exist or not."""
        resolved = self.regexes.get(member.regex)
        if resolved is None:
            return member.topics
        return member.topics | resolved.topics if member.topics else resolved.topics

    def existing(self, outside: ConsumerOutside) -> dict[MemberId, frozenset[str]]:
        """Return the topics that each member asks for and that exist.

        Kept for members that did not change: one may ask for ten thousand others, and a heartbeat
        must not cost what the members of its group have asked for together. Equal sets are one.
        """
        is_same_catalogue = self._existing.version == outside.catalogue_version
        before = self._existing.of_members if is_same_catalogue else {}
        known: dict[tuple[frozenset[str], str], frozenset[str]] = {}
        shared = {topics: topics for _, _, topics in before.values()}
        now: dict[MemberId, tuple[ConsumerMember, Resolved | None, frozenset[str]]] = {}
        for id_, member in self.members.items():
            resolved = self.regexes.get(member.regex)
            kept = before.get(id_)
            if kept is None or kept[0] is not member or kept[1] is not resolved:
                asked = member.topics, member.regex
                if asked not in known:
                    topics = outside.existing(self.wanted(member))
                    known[asked] = shared.setdefault(topics, topics)
                kept = member, resolved, known[asked]
            now[id_] = kept
        self._existing.version, self._existing.of_members = outside.catalogue_version, now
        return {id_: topics for id_, (_, _, topics) in now.items()}

    def subscriptions(self) -> dict[MemberId, frozenset[str]]:
        """The same for every member. Who asks alike has the same set: each may be large."""
        known: dict[tuple[frozenset[str], str], frozenset[str]] = {}
        found = {}
        for member in self.members.values():
            asked = member.topics, member.regex
            if asked not in known:
                known[asked] = self.wanted(member)
            found[member.id] = known[asked]
        return found

    def assignor(self, default: str) -> str:
        """The assignor that most members ask for."""
        votes = Counter(one.assignor for one in self.members.values() if one.assignor is not None)
        return max(votes, key=lambda name: (votes[name], name)) if votes else default

    def with_instance(self, instance: str) -> ConsumerMember | None:
        """The static member that has this instance id now, here or away for now."""
        return next((one for one in self.members.values() if one.instance == instance), None)

    def holder(self, partition: TopicPartition) -> MemberId | None:
        """Who has been given a partition and has not let go of it."""
        return self._holders.get(partition)

    def target(self, member: MemberId) -> Partitions:
        return self.targets.get(member, NOTHING)

    def holding(self, member: MemberId) -> Partitions:
        """All that a member has until it says that it let go."""
        held = self.holdings.get(member)
        return held.assigned | held.revoking if held is not None else NOTHING

    def is_settled(self, member: MemberId) -> bool:
        """Whether a member holds its target, and knows so."""
        held = self.holdings[member]
        return held.progress is Progress.STABLE and held.epoch == self.target_epoch

    def unknown(self, member: MemberId | None) -> Refused:
        return Refused(Why.UNKNOWN_MEMBER, f"{member!r} is no member of group {self.name}; rejoin.")

    def due(self, until: MonoMs) -> Iterator[tuple[Timer, MemberId]]:
        """The timers that have run out."""
        return (key for key, deadline in self.timers.items() if deadline <= until)

    # ---- its committed offsets

    def reads(self, topic: str, matching: Matching) -> bool:
        """Whether a member asks for it; expressions are matched now, not with the next beat."""
        if topic in self.subscribed:
            return True
        found = map(matching, self.regexes)
        return any(topic in topics for topics in found if not isinstance(topics, Refused))

    def has_member(self, member: MemberId) -> bool:
        return member in self.members

    def check_reader(self, member: MemberId | None, epoch: int) -> Refused | None:
        """Refuse an OffsetFetch of who is no member, or is in another epoch than it thinks."""
        if member is None and epoch == _UNCHECKED:
            return None
        held = self.holdings.get(member) if member is not None else None
        if held is None:
            return self.unknown(member)
        if held.epoch == epoch:
            return None
        return Refused(Why.WRONG_EPOCH, f"{member} is in epoch {held.epoch}, not {epoch}.")

    def check_commit(self, command: Commit) -> Refused | None:
        """Why nothing of a commit is accepted; None when it may be.

        A member that is behind may commit for the partitions that it has had since then.
        """
        if command.generation < 0 and self.is_empty:
            return None
        held = self.holdings.get(command.member)
        if held is None:
            return self.unknown(command.member)
        if not command.tells_epoch:
            return Refused(
                Why.OLD_PROTOCOL, "Members of the new protocol commit with version 9 or newer."
            )
        if command.generation == held.epoch:
            return None
        if command.generation < held.epoch and all(
            self._had_by(held, offset, command.generation) for offset in command.offsets
        ):
            return None
        return Refused(
            Why.WRONG_EPOCH,
            f"{command.member} is in epoch {held.epoch}, not {command.generation}.",
        )

    @staticmethod
    def _had_by(held: Holding, offset: Offset, epoch: int) -> bool:
        """Whether a member has had a partition since this epoch, or longer."""
        if offset.topic_id is None or held.epochs is None:
            return False
        since = held.epochs.get(TopicPartition(offset.topic_id, offset.partition))
        return since is not None and since <= epoch

    def after_commit(self, member: MemberId, now: Now) -> Sequence[ConsumerEvent]:  # noqa: ARG002  # as for classic groups
        """A commit is no heartbeat."""
        return ()

    def ended(self, cause: Cause | None = None, by: str = "") -> list[ConsumerEvent]:
        """With these the group is no more; its offsets aside."""
        name = self.name
        return [
            *(HoldingDropped(name, member) for member in self.holdings),
            *(TargetUnset(name, member) for member in self.targets),
            TargetDropped(name),
            *(ConsumerMemberDropped(name, member) for member in self.members),
            *(RegexDropped(name, regex) for regex in self.regexes),
            ConsumerGroupDropped(name, cause, by),
        ]

    # ---- changes

    def apply(self, event: ConsumerEvent) -> None:
        """The only place where the group changes. What is dropped may never have been there:
        a compacted journal keeps a tombstone longer than what it is for."""
        match event:
            case ConsumerGroupStored(_, epoch, metadata_hash, empty_since, began):
                self.epoch, self.metadata_hash = epoch, metadata_hash
                self.empty_since, self.began = empty_since, began
            case ConsumerGroupDropped():
                pass  # the shard drops it
            case ConsumerMemberStored() | ConsumerMemberDropped():
                self._apply_to_members(event)
            case TargetStored() | TargetDropped() | TargetSet() | TargetUnset():
                self._apply_to_targets(event)
            case HoldingStored(_, id_, holding):
                self._hold(id_, holding)
            case HoldingDropped(_, id_):
                self._hold(id_, None)
            case RegexResolved() | RegexDropped():
                self._apply_to_regexes(event)
            case ConsumerTimerSet() | ConsumerTimerCleared() | CatalogueSeen():
                self._apply_volatile(event)
            case _:
                assert_never(event)

    def _apply_to_members(self, event: ConsumerMemberStored | ConsumerMemberDropped) -> None:
        self._subscribed = None
        match event:
            case ConsumerMemberStored(_, member):
                self.members[member.id] = member
                self.holdings.setdefault(member.id, Holding(JOINING, JOINING))
            case ConsumerMemberDropped(_, gone):
                self.members.pop(gone, None)

    def _apply_to_regexes(self, event: RegexResolved | RegexDropped) -> None:
        self._subscribed = None
        match event:
            case RegexResolved(_, regex, resolved):
                self.regexes[regex] = resolved
            case RegexDropped(_, regex):
                self.regexes.pop(regex, None)

    def _apply_to_targets(
        self, event: TargetStored | TargetDropped | TargetSet | TargetUnset
    ) -> None:
        match event:
            case TargetStored(_, epoch, at):
                self.target_epoch, self.target_at = epoch, at
            case TargetDropped():
                self.target_epoch, self.target_at = 0, TIME_UNKNOWN
            case TargetSet(_, member, partitions):
                self.targets[member] = partitions
            case TargetUnset(_, member):
                self.targets.pop(member, None)

    def _apply_volatile(
        self, event: ConsumerTimerSet | ConsumerTimerCleared | CatalogueSeen
    ) -> None:
        match event:
            case ConsumerTimerSet(_, timer, member, deadline):
                self.timers[timer, member] = deadline
            case ConsumerTimerCleared(_, timer, member):
                self.timers.pop((timer, member), None)
            case CatalogueSeen(_, version):
                self.seen_version = version

    def _hold(self, member: MemberId, holding: Holding | None) -> None:
        before = self.holding(member)
        if holding is None:
            self.holdings.pop(member, None)
        else:
            self.holdings[member] = holding
        held = self.holding(member)
        self._let_go(member, before - held)
        self._holders.update(dict.fromkeys(held, member))

    def _let_go(self, member: MemberId, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            if self._holders.get(partition) == member:
                del self._holders[partition]


Group = ClassicGroup | ConsumerGroup
