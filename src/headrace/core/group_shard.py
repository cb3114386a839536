"""One shard of consumer groups, of both protocols: routes commands to their groups, and events.

A shard is the unit of journaling: the members of a group and all that it has committed live in one
shard, so what is decided over both is one atomic record batch.
"""

import heapq
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import assert_never

from headrace.core import consumer_checks, offset_life, seeding
from headrace.core.classic_group import ClassicGroup
from headrace.core.consumer_decision import ConsumerDecision
from headrace.core.consumer_events import (
    ConsumerEvent,
    ConsumerGroupDropped,
    ConsumerGroupStored,
    ConsumerMemberStored,
    ConsumerTimerSet,
    HoldingStored,
    RegexResolved,
    TargetSet,
    TargetStored,
)
from headrace.core.consumer_group import ConsumerGroup, Group
from headrace.core.consumer_words import JOINING, ConsumerBeat, ConsumerOutside, GroupCommand
from headrace.core.errors import Refused, Why
from headrace.core.group_events import (
    Answered,
    Event,
    GroupDropped,
    GroupStored,
    JoinParked,
    MemberEvent,
    OffsetCommitted,
    OffsetDropped,
    OffsetsDetached,
    OffsetsDropped,
    SyncParked,
    TimerCleared,
    TimerSet,
)
from headrace.core.group_words import (
    NOBODY,
    Beat,
    Commit,
    DeleteGroup,
    DeleteOffsets,
    DropDetached,
    Expire,
    ForgetOffsets,
    Join,
    Leave,
    Phase,
    RestartSessions,
    Seed,
    Snapshot,
    Sync,
    Timer,
)
from headrace.core.machine import Decided, Unfinished
from headrace.core.offsets import Offsets
from headrace.core.rebalance import Decision, rebalancing
from headrace.core.roster import Roster
from headrace.core.share_words import NAME_BYTES_MAX
from headrace.core.types import MemberId, MonoMs, Now

_NO_MIXING = "and group.consumer.migration.policy does not let this member wait for them to leave"
_WAITS = "this member joins when they have left"
# What a group can begin with in a compacted journal.
_CONSUMER_BEGINNINGS = (
    ConsumerGroupStored,
    ConsumerMemberStored,
    TargetStored,
    TargetSet,
    HoldingStored,
    RegexResolved,
)
_EMPTY_GROUP_COST = 0.1  # of what a member costs in a restart
_DEADLINES_MIN = 1_000  # fewer are not worth a look for those that count no more

OffsetsEvent = OffsetCommitted | OffsetDropped | OffsetsDetached | OffsetsDropped
_OF_OFFSETS = (OffsetCommitted, OffsetDropped, OffsetsDetached, OffsetsDropped)

_Due = tuple[MonoMs, int, str, Timer, MemberId]


class GroupShard:
    """The machine of one shard's groups and their committed offsets."""

    def __init__(self, outside: ConsumerOutside) -> None:
        self._outside = outside
        self.groups: dict[str, Group] = {}
        self.offsets: dict[str, Offsets] = {}
        self.names = Roster()  # of all groups, for who walks over them
        self.offset_count = 0
        self._due: list[_Due] = []
        self._due_max = _DEADLINES_MIN
        self._pushes = count()

    def decide(self, command: GroupCommand, now: Now) -> Decided[Event] | Refused:
        """The events that `command` makes true and the caller's reply, or why not."""
        match command:
            case Join():
                return self._join(command, now)
            case Sync() | Beat():
                return self._as_member(command, now)
            case ConsumerBeat():
                return self._consumer_beat(command, now)
            case Leave(name):
                decision = self._decision(self.groups.get(name) or ClassicGroup(name), now)
                answers = decision.leave(command)
                return Decided(decision.events, answers)
            case Commit(name):
                return offset_life.commit(command, self.groups.get(name), self._outside, now)
            case Seed(name):
                group, offsets = self.groups.get(name), self.offsets.get(name)
                return seeding.seed(command, group, offsets, self._outside, now)
            case DeleteOffsets() | DeleteGroup() | DropDetached() | ForgetOffsets() | Expire():
                return self._drop(command)
            case RestartSessions():
                return self._restarted(command, now)
            case _:
                assert_never(command)

    def tick(self, now: Now) -> Sequence[Event]:
        """Sessions that ended, members that did not come, phases that took too long."""
        events: list[Event] = []
        for name in self._overdue(now.mono):
            decision = self._decision(self.groups[name], now)
            decision.expire()
            events += decision.events
        return events

    def _overdue(self, until: MonoMs) -> dict[str, None]:
        """The groups with a timer that ran out; the others, which may be many, are not looked at.

        `_due` is a heap: no entry is earlier than the one above it.
        """
        found: dict[str, None] = {}
        places = [0]
        while places:
            place = places.pop()
            if place >= len(self._due) or self._due[place][0] > until:
                continue
            if self._counts(self._due[place]):
                found[self._due[place][2]] = None
            places += 2 * place + 2, 2 * place + 1
        return found

    def _counts(self, entry: _Due) -> bool:
        """Whether a timer has not been set anew or cleared since."""
        deadline, _, name, timer, member = entry
        group = self.groups.get(name)
        return group is not None and group.timers.get((timer, member)) == deadline

    def next_deadline(self) -> MonoMs | None:
        """When the next timer of a group runs out."""
        while self._due:
            if self._counts(self._due[0]):
                return self._due[0][0]
            heapq.heappop(self._due)
        return None

    def apply(self, event: Event) -> None:
        """The only place where the shard's state changes; live and in recovery."""
        name = event.group
        is_kept = False  # then the group cannot be blank
        if isinstance(event, _OF_OFFSETS):  # nearly all are
            self._apply_to_offsets(event)
            is_kept = bool(self.offsets[name])
        elif isinstance(event, TimerSet):
            self._apply_to_classic(event)
            self._put_deadline(event)
            is_kept = True
        if is_kept:
            if name not in self.names:
                self.names.add(name)
            return
        match event:
            case OffsetCommitted() | OffsetDropped() | OffsetsDetached() | OffsetsDropped():
                pass
            case GroupDropped():
                self._end(name, ClassicGroup)
            case ConsumerGroupDropped():
                self._end(name, ConsumerGroup)
            case Answered() | TimerCleared() | JoinParked() | SyncParked():  # the most frequent
                self._apply_to_classic(event)
            case _ if isinstance(event, ConsumerEvent):
                self._apply_to_consumers(event)
            case _:
                self._apply_to_classic(event)
        self._forget_if_blank(name)
        if name not in self.groups:
            self.names.drop(name)
        elif name not in self.names:
            self.names.add(name)

    def _put_deadline(self, event: TimerSet | ConsumerTimerSet) -> None:
        """Add a deadline to the heap, after the group has it: others may be dropped on the way."""
        entry = (event.deadline, next(self._pushes), event.group, event.timer, event.member)
        heapq.heappush(self._due, entry)
        if len(self._due) > self._due_max:
            self._forget_past_deadlines()

    def _apply_to_offsets(self, event: OffsetsEvent) -> None:
        name = event.group
        offsets = self.offsets.get(name)
        if offsets is None:
            offsets = self.offsets[name] = Offsets()
            self.groups.setdefault(name, ClassicGroup(name))  # at first a simple one, empty
        before = len(offsets)
        if isinstance(event, OffsetCommitted):
            offsets.put(event.topic, event.partition, event.committed)
        elif isinstance(event, OffsetDropped):
            offsets.drop(event.topic, event.partition)
        elif isinstance(event, OffsetsDropped):
            for topic, partitions in event.partitions:
                for partition in partitions:
                    offsets.drop(topic, partition)
        else:
            offsets.clear()
        self.offset_count += len(offsets) - before

    def _apply_to_classic(self, event: MemberEvent) -> None:
        group = self.groups.get(event.group)
        if not isinstance(group, ClassicGroup):
            group = self.groups[event.group] = ClassicGroup(event.group)
        group.apply(event)

    def _apply_to_consumers(self, event: ConsumerEvent) -> None:
        """A compacted journal may have kept tombstones of a group, and nothing else of it."""
        group = self.groups.get(event.group)
        if not isinstance(group, ConsumerGroup):
            if not isinstance(event, _CONSUMER_BEGINNINGS):
                return
            group = self.groups[event.group] = ConsumerGroup(event.group)
        group.apply(event)
        if isinstance(event, ConsumerTimerSet):
            self._put_deadline(event)

    def _end(self, name: str, kind: type[Group]) -> None:
        """A group of this kind is no more; what it committed is a simple group's from now on."""
        if isinstance(self.groups.get(name), kind):
            del self.groups[name]
        if name in self.offsets:
            self.groups.setdefault(name, ClassicGroup(name))

    def _forget_past_deadlines(self) -> None:
        """Every heartbeat and commit leaves one behind, for as long as a session may last."""
        # One entry a timer: it may have been set anew within the same millisecond.
        counting = {entry[2:]: entry for entry in self._due if self._counts(entry)}
        self._due = list(counting.values())
        heapq.heapify(self._due)
        self._due_max = max(_DEADLINES_MIN, 2 * len(self._due))

    def _forget_if_blank(self, name: str) -> None:
        """Keep nothing of names that somebody only asked with."""
        if name in self.offsets and not self.offsets[name]:
            del self.offsets[name]
        group = self.groups.get(name)
        if isinstance(group, ClassicGroup) and group.blank and name not in self.offsets:
            del self.groups[name]

    # ---- decisions

    def _drop(
        self, command: DeleteOffsets | DeleteGroup | DropDetached | ForgetOffsets | Expire
    ) -> Decided[Event] | Refused:
        groups, offsets = self.groups, self.offsets
        match command:
            case DeleteOffsets(name):
                return offset_life.delete_offsets(
                    command, groups.get(name), offsets.get(name), self._outside
                )
            case DeleteGroup(name):
                return offset_life.delete_group(command, groups.get(name), offsets.get(name))
            case DropDetached(name):
                return offset_life.drop_detached(command, offsets.get(name))
            case ForgetOffsets():
                return offset_life.forget(command, offsets)
            case Expire():
                return offset_life.expire(command, groups, offsets, self._outside)
            case _:
                assert_never(command)

    def _join(self, command: Join, now: Now) -> Decided[Event] | Refused:
        limits = self._outside.limits
        refused = _misnamed(command)
        if refused is not None:
            return refused
        if not limits.session_ms_min <= command.session_ms <= limits.session_ms_max:
            return Refused(
                Why.INVALID_SESSION_TIMEOUT,
                f"A session of {command.session_ms} ms is outside {limits.session_ms_min} to"
                f" {limits.session_ms_max} (group.min.session.timeout.ms and group.max...).",
            )
        if self._outside.is_share_group(command.group):
            return Refused(
                Why.INCONSISTENT_PROTOCOL, f"Group {command.group} is a share group (group.type)."
            )
        group = self.groups.get(command.group)
        begun: list[Event] = []
        if isinstance(group, ConsumerGroup):
            if not group.is_empty:
                told = (
                    f"Group {group.name} has {len(group.members)} members of the consumer protocol"
                )
                if self._outside.consumer_limits.downgrades:
                    return Refused(Why.OTHER_PROTOCOL, f"{told}; {_WAITS}")
                return Refused(Why.INCONSISTENT_PROTOCOL, f"{told}, {_NO_MIXING}.")
            begun, group = _as_classic(group, command.protocol_type)
        if (group is None or begun) and command.member != NOBODY:
            return _unknown(command.member, command.group)
        decision = Decision(group or ClassicGroup(command.group), now, limits)
        return _decided(decision, decision.join(command), begun)

    def _consumer_beat(self, command: ConsumerBeat, now: Now) -> Decided[Event] | Refused:
        name, outside = command.group, self._outside
        refused = consumer_checks.check_beat(command, outside.consumer_limits)
        if refused is not None:
            return refused
        if outside.is_share_group(name):
            return Refused(Why.WRONG_GROUP_TYPE, f"Group {name} is a share group.")
        group = self.groups.get(name)
        begun: list[Event] = []
        if not isinstance(group, ConsumerGroup):
            if command.epoch != JOINING:
                return Refused(Why.UNKNOWN_GROUP, f"Consumer group {name} not found.")
            if group is not None and not group.is_empty:
                told = f"Group {name} has {len(group.members)} members of the classic protocol"
                if outside.consumer_limits.upgrades:
                    return Refused(Why.OTHER_PROTOCOL, f"{told}; {_WAITS}")
                return Refused(Why.UNKNOWN_GROUP, f"{told}, {_NO_MIXING}.")
            begun = [GroupDropped(name)] if group is not None else []
            group = ConsumerGroup(name) if group is None else ConsumerGroup(name, group.began)
        decision = ConsumerDecision(group, now, outside)
        return _decided(decision, decision.beat(command), begun)

    def _as_member(self, command: Sync | Beat, now: Now) -> Decided[Event] | Refused:
        if not command.group:
            return Refused(Why.INVALID_GROUP, "The group id is empty.")
        group = self.groups.get(command.group)
        if not isinstance(group, ClassicGroup) or group.is_empty:
            return _unknown(command.member, command.group)
        refused = group.check(command.member, command.instance)
        if refused is None:
            refused = group.check_generation(command.generation)
        if refused is not None:
            return refused
        if isinstance(command, Sync):
            decision = Decision(group, now, self._outside.limits)
            return _decided(decision, decision.sync(command))
        late = group.phase is Phase.PREPARING
        return Decided(
            group.renewed(command.member, now), rebalancing(group.name) if late else None
        )

    def _decision(self, group: Group, now: Now) -> Decision | ConsumerDecision:
        if isinstance(group, ConsumerGroup):
            return ConsumerDecision(group, now, self._outside)
        return Decision(group, now, self._outside.limits)

    def _restarted(self, command: RestartSessions, now: Now) -> Decided[Event]:
        """Begin the sessions of some groups anew, and reply with the rest of the command."""
        names = tuple(self.groups) if command.groups is None else command.groups
        events: list[Event] = []
        at, left = command.at, float(command.members_max)
        while at < len(names) and left > 0:
            group = self.groups.get(names[at])
            at += 1
            left -= _EMPTY_GROUP_COST
            if group is not None and (not group.is_empty or isinstance(group, ConsumerGroup)):
                decision = self._decision(group, now)
                decision.restart()
                events += decision.events
                left -= 1 + len(group.members)
        if at == len(names):
            return Decided(events)
        return Decided(events, Unfinished(replace(command, groups=names, at=at)))


def _decided(
    decision: Decision | ConsumerDecision, reply: object, begun: Sequence[Event] = ()
) -> Decided[Event] | Refused:
    """A refusal changes nothing, and begins no group of another kind."""
    if isinstance(reply, Refused):
        return reply
    return Decided([*begun, *decision.events], reply)


def _as_classic(group: ConsumerGroup, protocol_type: str) -> tuple[list[Event], ClassicGroup]:
    """An empty group as one of the classic protocol. Since when it is empty goes along: should
    nobody come after all, its offsets stay as long as they would have."""
    empty = Snapshot(protocol_type, 0, None, None, group.empty_since, (), group.began)
    stored = GroupStored(group.name, empty)
    classic = ClassicGroup(group.name)
    classic.apply(stored)
    return [*group.ended(), stored], classic


def _too_long(name: str) -> bool:
    return len(name.encode()) > NAME_BYTES_MAX


def _misnamed(command: Join) -> Refused | None:
    """Refuse names for which the journal has no room."""
    if not command.group:
        return Refused(Why.INVALID_GROUP, "The group id is empty.")
    if _too_long(command.group):
        return Refused(Why.INVALID_GROUP, offset_life.TOO_LONG)
    others = (command.new_id, command.instance or "", command.protocol_type)
    if any(map(_too_long, others)) or any(_too_long(one.name) for one in command.candidates):
        return Refused(Why.INVALID_REQUEST, offset_life.TOO_LONG)
    return None


def _unknown(member: MemberId, group: str) -> Refused:
    return Refused(Why.UNKNOWN_MEMBER, f"{member!r} is no member of group {group}; rejoin.")
