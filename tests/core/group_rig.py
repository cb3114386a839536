"""A shard of consumer groups that tests drive, with members of both protocols."""

import itertools
import re
import struct
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from headrace.core.classic_group import ClassicGroup
from headrace.core.consumer_assignors import ASSIGNORS
from headrace.core.consumer_group import ConsumerGroup
from headrace.core.consumer_words import (
    NOTHING,
    ConsumerBeat,
    ConsumerLimits,
    GroupCommand,
    Pace,
    Partitions,
    TopicView,
)
from headrace.core.errors import Refused, Why
from headrace.core.group_events import Answered
from headrace.core.group_events import Event as GroupEvent
from headrace.core.group_shard import GroupShard
from headrace.core.group_words import (
    DELETION_PORTION,
    Beat,
    Candidate,
    Commit,
    DeleteGroup,
    DeleteOffsets,
    Expire,
    Expired,
    Extent,
    ForgetOffsets,
    Join,
    Leave,
    Leaver,
    Limits,
    Look,
    Offset,
    Phase,
    ResetPolicy,
    RestartSessions,
    Seed,
    Sync,
    Ticket,
)
from headrace.core.machine import Entry, Unfinished
from headrace.core.runs import State
from headrace.core.types import MemberId, MonoMs, Now, TopicPartition, WallMs
from headrace.log.group_records import GroupJournal

TOPIC = UUID(int=1)
WORDS = {
    State.AVAILABLE: "available",
    State.ACQUIRED: "acquired",
    State.ACKNOWLEDGED: "acknowledged",
    State.ARCHIVING: "archiving",
    State.ARCHIVED: "archived",
}


class Asked:
    """A request to a group; its answer is None as long as it waits."""

    def __init__(self, told: dict[Ticket, Any], ticket: Ticket, reply: Any) -> None:
        self._told, self._ticket, self._reply = told, ticket, reply

    def answer(self) -> Any:
        return self._told.get(self._ticket) if self._reply is None else self._reply

    @property
    def why(self) -> Why | None:
        """The reason of a refusal; None without one."""
        return answer.why if isinstance(answer := self.answer(), Refused) else None


class GroupDriver:
    """A shard of classic groups with its journal; members are named m1, m2, ... as they come."""

    def __init__(self, **limits: int) -> None:
        self.limits = Limits(**limits)
        self.share_groups: set[str] = set()
        self.retention: dict[str, int] = {}  # minutes, of groups with a retention of their own
        self.policies: dict[str, ResetPolicy] = {}
        self.shard, self.codec = GroupShard(self), GroupJournal()
        self.journal: list[Entry] = []
        self.mono = 0
        self.set_back_ms = 0  # how far somebody set the calendar clock back
        self.told: dict[Ticket, Any] = {}
        self._tickets = itertools.count(1)
        self._names = itertools.count(1)
        self.consumer_limits = ConsumerLimits(ASSIGNORS)
        self.assignment_interval_ms = 0
        self.topics: dict[str, TopicView] = {}
        self.looked_up: list[frozenset[str]] = []  # names of which those that exist were asked for
        self.catalogue_version = 0

    def topic(self, name: str) -> TopicView | None:
        return self.topics.get(name)

    def existing(self, names: frozenset[str]) -> frozenset[str]:
        self.looked_up.append(names)
        return names.intersection(self.topics)

    def matching(self, regex: str) -> frozenset[str] | Refused:
        try:
            return frozenset(name for name in self.topics if re.fullmatch(regex, name))
        except re.error as fault:
            return Refused(Why.INVALID_REGEX, str(fault))

    def pace(self, group: str) -> Pace:  # all groups have the same
        return Pace(assignment_interval_ms=self.assignment_interval_ms)

    def is_share_group(self, group: str) -> bool:
        return group in self.share_groups

    def retention_minutes(self, group: str) -> int:
        return self.retention.get(group, 60)

    def reset_policy(self, group: str) -> ResetPolicy | None:
        return self.policies.get(group)

    @property
    def now(self) -> Now:
        return Now(MonoMs(self.mono), WallMs(1_700_000_000_000 + self.mono - self.set_back_ms))

    def group(self, name: str = "g") -> ClassicGroup:
        group = self.shard.groups[name]
        assert isinstance(group, ClassicGroup)
        return group

    def do(self, command: GroupCommand) -> Any:
        answer = self.do_once(command)
        while isinstance(answer, Unfinished):
            answer = self.do_once(answer.following())
        return answer

    def do_once(self, command: GroupCommand) -> Any:
        """Decide one portion of a command."""
        answer = self.shard.decide(command, self.now)
        if isinstance(answer, Refused):
            return answer
        self.take(answer.events)
        return answer.reply

    def join(
        self,
        member: str = "",
        *,
        instance: str | None = None,
        group: str = "g",
        kind: str = "consumer",
        offers: dict[str, bytes] | None = None,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        id_required: bool = False,
        may_skip: bool = True,
    ) -> Asked:
        ticket = Ticket(next(self._tickets))
        offered = {"range": b"topics"} if offers is None else offers
        new_id = MemberId(member or f"m{next(self._names)}")
        command = Join(
            group, MemberId(member), instance, new_id, "client", "/host", session_ms, rebalance_ms,
            kind, tuple(Candidate(*one) for one in offered.items()), ticket, id_required, may_skip,
        )  # fmt: skip
        return Asked(self.told, ticket, self.do(command))

    def sync(
        self,
        member: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        instance: str | None = None,
        group: str = "g",
        **told: str,
    ) -> Asked:
        ticket = Ticket(next(self._tickets))
        given = {MemberId(name): data for name, data in (assignments or {}).items()}
        command = Sync(group, MemberId(member), instance, generation, ticket, given, **told)
        return Asked(self.told, ticket, self.do(command))

    def beat(self, member: str, generation: int, instance: str | None = None) -> Why | None:
        refused = self.do(Beat("g", MemberId(member), instance, generation))
        return None if refused is None else refused.why

    def leave(self, *leavers: tuple[str, str | None]) -> list[Why | None]:
        command = Leave("g", tuple(Leaver(MemberId(m), i) for m, i in leavers))
        return [None if refused is None else refused.why for refused in self.do(command)]

    def commit(
        self,
        group: str,
        offset: int,
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        *,
        topic: str = "topic",
        topic_id: UUID = TOPIC,
        metadata: str = "",
        leader_epoch: int = -1,
        retention_ms: int | None = None,
    ) -> Why | list[Why | None]:
        """Commit one offset for partition 0."""
        one = Offset(topic, 0, offset, leader_epoch, metadata, topic_id)
        answer = self.do(
            Commit(group, MemberId(member), instance, generation, (one,), retention_ms)
        )
        if isinstance(answer, Refused):
            return answer.why
        return [None if refused is None else refused.why for refused in answer]

    def seed(self, *extents: Extent, group: str = "g", added: bool = False, by: str = "") -> int:
        """How many offsets a group's policy committed; topics that are not known are made."""
        for one in extents:
            self.topics.setdefault(one.topic, TopicView(one.topic_id, one.partition + 1))
        count = self.do(Seed(group, extents, added, by))
        assert isinstance(count, int)
        return count

    def committed(self, group: str = "g") -> dict[tuple[str, int], int]:
        """What a group has committed; live and journal agree on it."""
        found = [
            {(topic, index): one.offset for topic, index, one in shard.offsets.get(group, ())}
            for shard in (self.shard, self.rebuilt())
        ]
        assert found[0] == found[1]
        return found[0]

    def expire(self, *groups: str) -> Expired:
        """One look at some groups, or at all that there are."""
        looks = tuple(Look(name) for name in groups or list(self.shard.groups))
        expired = self.do(Expire(looks, self.now.wall))
        assert isinstance(expired, Expired)
        return expired

    def forget(self, topic: str, topic_id: UUID, until: int | None = None) -> None:
        """A topic was deleted: now, or earlier."""
        looks = tuple(Look(name) for name in self.shard.groups)
        when = self.now.wall if until is None else WallMs(until)
        self.do(ForgetOffsets(topic, topic_id, when, looks))

    def kept(self, group: str = "g") -> list[str]:
        """The topics for which a group has committed offsets; live and journal agree on them."""
        found = [
            sorted({topic for topic, _, _ in shard.offsets.get(group, ())})
            for shard in (self.shard, self.rebuilt())
        ]
        assert found[0] == found[1]
        return found[0]

    def delete_offsets(
        self, group: str, *partitions: tuple[str, int], by: str = ""
    ) -> Why | list[Why | None]:
        answer = self.do(DeleteOffsets(group, partitions, by))
        if isinstance(answer, Refused):
            return answer.why
        return [None if refused is None else refused.why for refused in answer]

    def delete(self, group: str, offsets_max: int = DELETION_PORTION) -> Why | None:
        refused = self.do(DeleteGroup(group, offsets_max=offsets_max))
        return None if refused is None else refused.why

    def stable(self, count: int, **joining: Any) -> int:
        """A Stable group of m1 to m<count>, led by m1; its generation."""
        self.join(**joining)
        for _ in range(count - 1):
            self.join(**joining)
        for member in list(self.group().members):
            self.join(member, **joining)
        generation = self.group().generation
        self.sync("m1", generation, {name: name.encode() for name in self.group().members})
        for member in list(self.group().members):
            self.sync(member, generation)
        assert self.group().phase is Phase.STABLE
        return generation

    def elapse(self, ms: int) -> None:
        """Let time pass as the runtime does: from one deadline to the next."""
        until = self.mono + ms
        while (deadline := self.shard.next_deadline()) is not None and deadline <= until:
            self.mono = max(self.mono, deadline)
            self.take(self.shard.tick(self.now))
        self.mono = until

    def restart(self) -> None:
        """A process that ends, and one that begins with what the journal has."""
        self.shard = self.rebuilt()
        self.told = {}
        self.do(RestartSessions(1))

    def rebuilt(self) -> GroupShard:
        """What the journal alone has."""
        shard = GroupShard(self)
        for key, value, _ in self.journal:
            for event in self.codec.events(key, value):
                shard.apply(event)
        return shard

    def take(self, events: Sequence[GroupEvent]) -> None:
        for event in events:
            self.shard.apply(event)
            if isinstance(event, Answered):
                self.told[event.ticket] = event.answer
        require_deadlines(self.shard)
        self.journal += self.codec.records(events, self.now.wall)


def require_deadlines(shard: GroupShard) -> None:
    """Check that every timer of every group will be looked at when it runs out."""
    due = {entry[2:] for entry in shard._due if shard._counts(entry)}
    timers = {
        (name, timer, member)
        for name, group in shard.groups.items()
        for timer, member in group.timers
    }
    assert due == timers


def subscribing(*topics: str, version: int = 0, after: bytes = b"\xff\xff\xff\xff") -> bytes:
    """A subscription in the consumer protocol; behind the topics stands no user data."""
    names = b"".join(struct.pack(">h", len(one.encode())) + one.encode() for one in topics)
    return struct.pack(">hi", version, len(topics)) + names + after


# ---- groups of the new protocol


class ConsumerDriver(GroupDriver):
    """A shard of groups with members of KIP-848; topic "t" has four partitions."""

    def __init__(self, **limits: int) -> None:
        super().__init__(**limits)
        self.make_topic("t", 4)

    def make_topic(self, name: str, partitions: int) -> None:
        """A topic that is new, or has grown."""
        known = self.topics.get(name)
        topic_id = known.id if known else UUID(int=100 + self.catalogue_version)
        self.topics[name] = TopicView(topic_id, partitions)
        self.catalogue_version += 1

    def drop_topic(self, name: str) -> None:
        del self.topics[name]
        self.catalogue_version += 1

    def consumers(self, name: str = "g") -> ConsumerGroup:
        group = self.shard.groups[name]
        assert isinstance(group, ConsumerGroup)
        return group

    def heartbeat(
        self, member: str, epoch: int, owned: str | None = None, *, group: str = "g", **told: Any
    ) -> Any:
        """Beaten, or the reason of a refusal; `owned` e.g. as "t:0,1"."""
        asked = None if owned is None else self.partitions(owned)
        answer = self.do(ConsumerBeat(group, MemberId(member), epoch, owned=asked, **told))
        return answer.why if isinstance(answer, Refused) else answer

    def enter(self, member: str, *topics: str, **told: Any) -> Any:
        """Join with these topics; with "t" if none are told."""
        wanted = frozenset(topics or (() if "regex" in told else ("t",)))
        return self.heartbeat(member, 0, "", **{"topics": wanted, "rebalance_ms": 60_000, **told})

    def settle(self, *members: str) -> None:
        """Let all members beat and do as they are told until nothing changes any more."""
        for _ in range(10):
            events = len(self.journal)
            for member in members:
                held = self.consumers().holdings[MemberId(member)]
                self.heartbeat(member, held.epoch, self.holds(member))
            if len(self.journal) == events:
                return
        raise AssertionError("the group does not come to rest")

    def holds(self, member: str, group: str = "g") -> str:
        """What a member may read, e.g. as "t:0,1"."""
        return self.text(self.consumers(group).holdings[MemberId(member)].assigned)

    def text(self, partitions: Partitions | None) -> str:
        names = {view.id: name for name, view in self.topics.items()}
        found: dict[str, list[str]] = {}
        for one in sorted(partitions or NOTHING):
            found.setdefault(names.get(one.topic_id, "?"), []).append(str(one.partition))
        return " ".join(f"{name}:{','.join(indexes)}" for name, indexes in sorted(found.items()))

    def partitions(self, text: str) -> Partitions:
        parsed = (part.split(":") for part in text.split())
        return frozenset(
            TopicPartition(self.topics[name].id, int(index))
            for name, indexes in parsed
            for index in indexes.split(",")
        )
