"""One shard of classic groups: routes commands to their groups, events to the same.

A shard is the unit of journaling: the members of a group and all that it has committed live in one
shard, so what is decided over both is one atomic record batch.
"""

import heapq
from collections.abc import Sequence
from itertools import count
from typing import assert_never

from headrace.core.classic_group import ClassicGroup
from headrace.core.errors import Refused, Why
from headrace.core.group_events import Event, GroupDropped, OffsetCommitted, OffsetDropped, TimerSet
from headrace.core.group_words import (
    NOBODY,
    Beat,
    Cause,
    Command,
    Commit,
    Committed,
    DeleteGroup,
    ForgetOffsets,
    Join,
    Leave,
    Offset,
    Outside,
    Phase,
    RestartSessions,
    Sync,
    Timer,
)
from headrace.core.machine import Decided
from headrace.core.offsets import Offsets
from headrace.core.rebalance import Decision, rebalancing
from headrace.core.share_words import NAME_BYTES_MAX
from headrace.core.types import MemberId, MonoMs, Now, WallMs

_SIMPLE = -1  # the generation of a commit from outside the group
_WALL_MAX = 2**63 - 1
_DEADLINES_MIN = 1_000  # fewer are not worth a look for those that count no more
_TOO_LONG = f"A name of more than {NAME_BYTES_MAX} bytes."


class GroupShard:
    """The machine of one shard's groups and their committed offsets."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets: dict[str, Offsets] = {}
        self._due: list[tuple[MonoMs, int, str, Timer, MemberId]] = []
        self._due_max = _DEADLINES_MIN
        self._pushes = count()

    def decide(self, command: Command, now: Now) -> Decided[Event] | Refused:
        """The events that `command` makes true and the caller's reply, or why not."""
        match command:
            case Join():
                return self._join(command, now)
            case Sync() | Beat():
                return self._as_member(command, now)
            case Leave(name):
                group = self.groups.get(name) or ClassicGroup(name)
                decision = Decision(group, now, self._outside.limits)
                answers = decision.leave(command)
                return Decided(decision.events, answers)
            case Commit():
                return self._commit(command, now)
            case DeleteGroup():
                return self._delete(command)
            case ForgetOffsets(topic, topic_id):
                return Decided(
                    [
                        OffsetDropped(name, topic, partition, Cause.TOPIC_DELETION)
                        for name, offsets in self.offsets.items()
                        for partition in offsets.of_topic(topic, topic_id)
                    ]
                )
            case RestartSessions():
                return Decided(self._restarted(now))
            case _:
                assert_never(command)

    def tick(self, now: Now) -> Sequence[Event]:
        """Sessions that ended, members that did not come, phases that took too long."""
        events: list[Event] = []
        for group in self.groups.values():
            if next(group.due(now.mono), None) is not None:
                decision = Decision(group, now, self._outside.limits)
                decision.expire()
                events += decision.events
        return events

    def next_deadline(self) -> MonoMs | None:
        """When the next timer of a group runs out."""
        while self._due:
            deadline, _, name, timer, member = self._due[0]
            group = self.groups.get(name)
            if group is not None and group.timers.get((timer, member)) == deadline:
                return deadline
            heapq.heappop(self._due)
        return None

    def apply(self, event: Event) -> None:
        """The only place where the shard's state changes; live and in recovery."""
        name = event.group
        if isinstance(event, OffsetCommitted):  # nearly all are; they make no group blank
            self._put(event)
            return
        if isinstance(event, TimerSet):
            self._set_timer(event)
            return
        match event:
            case GroupDropped():
                self.groups.pop(name, None)
            case OffsetDropped(_, topic, partition):
                if name in self.offsets:
                    self.offsets[name].drop(topic, partition)
            case _:
                self.groups.setdefault(name, ClassicGroup(name)).apply(event)
        self._forget_if_blank(name)

    def _put(self, event: OffsetCommitted) -> None:
        name = event.group
        if name not in self.groups:
            self.groups[name] = ClassicGroup(name)  # at first a simple one, empty
        offsets = self.offsets.get(name)
        if offsets is None:
            offsets = self.offsets[name] = Offsets()
        offsets.put(event.topic, event.partition, event.committed)

    def _set_timer(self, event: TimerSet) -> None:
        name = event.group
        if name not in self.groups:
            self.groups[name] = ClassicGroup(name)
        self.groups[name].apply(event)
        entry = (event.deadline, next(self._pushes), name, event.timer, event.member)
        heapq.heappush(self._due, entry)
        if len(self._due) > self._due_max:
            self._forget_past_deadlines()

    def _forget_past_deadlines(self) -> None:
        """Every heartbeat and commit leaves one behind, for as long as a session may last."""
        self._due = [
            (deadline, next(self._pushes), name, timer, member)
            for name, group in self.groups.items()
            for (timer, member), deadline in group.timers.items()
        ]
        heapq.heapify(self._due)
        self._due_max = max(_DEADLINES_MIN, 2 * len(self._due))

    def _forget_if_blank(self, name: str) -> None:
        """Keep nothing of names that somebody only asked with."""
        if name in self.offsets and not self.offsets[name]:
            del self.offsets[name]
        group = self.groups.get(name)
        if group is not None and group.blank and name not in self.offsets:
            del self.groups[name]

    # ---- decisions

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
        if group is None and command.member != NOBODY:
            return _unknown(command.member, command.group)
        decision = Decision(group or ClassicGroup(command.group), now, limits)
        return _decided(decision, decision.join(command))

    def _as_member(self, command: Sync | Beat, now: Now) -> Decided[Event] | Refused:
        if not command.group:
            return Refused(Why.INVALID_GROUP, "The group id is empty.")
        group = self.groups.get(command.group)
        if group is None or group.phase is Phase.EMPTY:
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

    def _commit(self, command: Commit, now: Now) -> Decided[Event] | Refused:
        name = command.group
        if _too_long(name):
            return Refused(Why.INVALID_GROUP, _TOO_LONG)
        if self._outside.is_share_group(name):
            return Refused(Why.WRONG_GROUP_TYPE, f"Group {name} is a share group.")
        group = self.groups.get(name)
        refused = _may_commit(command, group)
        if refused is not None:
            return refused
        events: list[Event] = []
        answers: list[Refused | None] = []
        from_outside = group is not None and command.member not in group.members
        once_had_members = group is not None and group.protocol_type is not None
        cause = Cause.RESET if from_outside and once_had_members else Cause.COMMIT
        for offset in command.offsets:
            refused = self._fits(offset)
            answers.append(refused)
            if refused is None:
                committed = _committed(offset, now.wall, command.retention_ms)
                events.append(
                    OffsetCommitted(
                        name, offset.topic, offset.partition, committed, cause, command.by
                    )
                )
        if group is not None and command.member in group.members:
            events += group.renewed(command.member, now)
        return Decided(events, answers)

    def _fits(self, offset: Offset) -> Refused | None:
        limit = self._outside.limits.metadata_max
        # Kafka counts what Java calls characters, whatever the setting is called.
        if 2 * len(offset.metadata) <= limit:
            return None
        if len(offset.metadata.encode("utf-16-be", "surrogatepass")) // 2 <= limit:
            return None
        return Refused(
            Why.METADATA_TOO_LARGE,
            f"The metadata for {offset.topic}-{offset.partition} has more than {limit} characters "
            "(offset.metadata.max.bytes).",
        )

    def _delete(self, command: DeleteGroup) -> Decided[Event] | Refused:
        name = command.group
        group = self.groups.get(name)
        if group is None:
            return Refused(Why.UNKNOWN_GROUP, f"Group {name} does not exist.")
        if group.phase is not Phase.EMPTY:
            return Refused(Why.NON_EMPTY_GROUP, f"Group {name} has members.")
        offsets = self.offsets.get(name, Offsets())
        dropped: list[Event] = [
            OffsetDropped(name, topic, index, Cause.GROUP_DELETION, command.by)
            for topic, index, _ in offsets
        ]
        return Decided([*dropped, GroupDropped(name)])

    def _restarted(self, now: Now) -> list[Event]:
        events: list[Event] = []
        for group in self.groups.values():
            if group.phase is not Phase.EMPTY:
                decision = Decision(group, now, self._outside.limits)
                decision.restart()
                events += decision.events
        return events


def _decided(decision: Decision, reply: object) -> Decided[Event] | Refused:
    if isinstance(reply, Refused) and not decision.events:
        return reply
    return Decided(decision.events, reply)


def _too_long(name: str) -> bool:
    return len(name.encode()) > NAME_BYTES_MAX


def _misnamed(command: Join) -> Refused | None:
    """Refuse names for which the journal has no room."""
    if not command.group:
        return Refused(Why.INVALID_GROUP, "The group id is empty.")
    if _too_long(command.group):
        return Refused(Why.INVALID_GROUP, _TOO_LONG)
    others = (command.new_id, command.instance or "", command.protocol_type)
    if any(map(_too_long, others)) or any(_too_long(one.name) for one in command.candidates):
        return Refused(Why.INVALID_REQUEST, _TOO_LONG)
    return None


def _may_commit(command: Commit, group: ClassicGroup | None) -> Refused | None:
    """Why nothing of a commit is accepted; None when it may be."""
    if group is None:
        if command.generation <= _SIMPLE:
            return None
        return Refused(Why.UNKNOWN_GROUP, f"Group {command.group} does not exist.")
    if group.phase is Phase.EMPTY and command.generation <= _SIMPLE:
        return None
    refused = group.check(command.member, command.instance)
    if refused is None:
        refused = group.check_generation(command.generation)
    if refused is None and group.phase is Phase.COMPLETING:
        refused = Refused(
            Why.REBALANCE_IN_PROGRESS, f"Group {group.name} is rebalancing; commit afterwards."
        )
    return refused


def _committed(offset: Offset, at: WallMs, retention_ms: int | None) -> Committed:
    if retention_ms is None:
        return Committed(
            offset.offset, offset.leader_epoch, offset.metadata, at, None, offset.topic_id
        )
    # The record that keeps a retention of its own has no place for epoch and topic id.
    expires_at = WallMs(min(at + retention_ms, _WALL_MAX))
    return Committed(offset.offset, -1, offset.metadata, at, expires_at)


def _unknown(member: MemberId, group: str) -> Refused:
    return Refused(Why.UNKNOWN_MEMBER, f"{member!r} is no member of group {group}; rejoin.")
