"""How committed offsets come, how long they stay, and what makes them go.

Decisions only, for groups of every kind: a group tells what is asked here by being an `Owner`.
What its members subscribe to is kept; the rest has its retention, from each commit, or from when
the group became empty. Sources: KIP-211, KIP-496; Kafka 4.3, OffsetMetadataManager, where
`docs/consumer-groups.md` names no difference.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from itertools import islice
from typing import Protocol

from headrace.core import subscription
from headrace.core.errors import Refused, Why
from headrace.core.group_events import (
    Event,
    OffsetCommitted,
    OffsetDropped,
    OffsetsDetached,
    OffsetsDropped,
)
from headrace.core.group_words import (
    TIME_UNKNOWN,
    Cause,
    Commit,
    Committed,
    DeleteGroup,
    DeleteOffsets,
    DropDetached,
    Expire,
    Expired,
    ForgetOffsets,
    Look,
    Offset,
    OffsetsBlock,
    Outside,
)
from headrace.core.machine import Decided, Unfinished
from headrace.core.offsets import Offsets, is_same
from headrace.core.roster import Roster
from headrace.core.share_words import NAME_BYTES_MAX
from headrace.core.subscription import Matching
from headrace.core.types import MemberId, Now, WallMs

_SIMPLE = -1  # the generation of a commit from outside the group
NAMES_BYTES_MAX = 4 * 1024 * 1024  # of the group's name, in what one commit writes
TOO_LONG = f"A name of more than {NAME_BYTES_MAX} bytes."
_WALL_MAX = 2**63 - 1
_MS_PER_MINUTE = 60_000
_NONE = Offsets()

OffsetsByTopic = Mapping[str, Mapping[int, Committed]]


class Owner(Protocol):
    """What decisions about offsets ask of a group; nothing of it takes long."""

    @property
    def name(self) -> str: ...
    @property
    def protocol_type(self) -> str | None:
        """None for a simple group: a name to commit under, which never had members."""

    @property
    def is_empty(self) -> bool: ...
    @property
    def is_awaited(self) -> bool:
        """Whether somebody was told to come, so that even an empty group must stay."""

    @property
    def is_rebalancing(self) -> bool:
        """Whether the subscription of its members is not settled: nothing expires meanwhile."""

    @property
    def empty_since(self) -> WallMs:
        """When an empty group lost its last member; TIME_UNKNOWN where nobody knows."""

    @property
    def began(self) -> WallMs:
        """When its first member joined; TIME_UNKNOWN where none has, or nobody knows."""

    @property
    def subscribed(self) -> Container[str]:
        """The topics of its members together, as last known."""

    def reads(self, topic: str, matching: Matching) -> bool:
        """Whether a member is known to subscribe, also to a topic that came a moment ago."""

    def has_member(self, member: MemberId) -> bool: ...
    def check_commit(self, command: Commit) -> Refused | None:
        """Why nothing of a commit is accepted; None when it may be."""

    def after_commit(self, member: MemberId, now: Now) -> Sequence[Event]:
        """What else a member's accepted commit makes true."""

    def ended(self, cause: Cause | None = None, by: str = "") -> Sequence[Event]:
        """With these the group is no more; its offsets aside."""


# ---- commits


def commit(
    command: Commit, owner: Owner | None, outside: Outside, now: Now
) -> Decided[Event] | Refused:
    """OffsetCommit: the reply tells each offset whether it was accepted."""
    name = command.group
    refused = _check_commit(command, owner, outside)
    if refused is not None:
        return refused
    is_member = owner is not None and owner.has_member(command.member)
    once_had_members = owner is not None and owner.protocol_type is not None
    cause = Cause.RESET if once_had_members and not is_member else Cause.COMMIT
    events: list[Event] = []
    answers: list[Refused | None] = []
    for offset in command.offsets:
        refused = _fits(offset, outside.limits.metadata_max)
        answers.append(refused)
        if refused is None:
            committed = _committed(offset, now.wall, command.retention_ms)
            events.append(
                OffsetCommitted(name, offset.topic, offset.partition, committed, cause, command.by)
            )
    if owner is not None and is_member:
        events += owner.after_commit(command.member, now)
    return Decided(events, answers)


def _check_commit(command: Commit, owner: Owner | None, outside: Outside) -> Refused | None:
    name = command.group
    name_bytes = len(name.encode())
    if name_bytes > NAME_BYTES_MAX:
        return Refused(Why.INVALID_GROUP, TOO_LONG)
    if name_bytes * len(command.offsets) > NAMES_BYTES_MAX:
        return Refused(
            Why.INVALID_REQUEST,
            f"{len(command.offsets)} offsets are too many at once for a group whose name has "
            f"{name_bytes} bytes, because it is written with each.",
        )
    if outside.is_share_group(name):
        return Refused(Why.WRONG_GROUP_TYPE, f"Group {name} is a share group.")
    if owner is not None:
        return owner.check_commit(command)
    if command.generation <= _SIMPLE:
        return None
    return _unknown(name)


def _fits(offset: Offset, limit: int) -> Refused | None:
    if 2 * len(offset.metadata) <= limit:
        return None  # which needs no look at the characters
    # Kafka counts what Java calls characters, whatever the setting is called.
    if len(offset.metadata.encode("utf-16-be", "surrogatepass")) // 2 <= limit:
        return None
    return Refused(
        Why.METADATA_TOO_LARGE,
        f"The metadata for {offset.topic}-{offset.partition} has more than {limit} characters "
        "(offset.metadata.max.bytes).",
    )


def _committed(offset: Offset, at: WallMs, retention_ms: int | None) -> Committed:
    if retention_ms is None:
        return Committed(
            offset.offset, offset.leader_epoch, offset.metadata, at, None, offset.topic_id
        )
    # The record that keeps a retention of its own has no place for epoch and topic id.
    expires_at = WallMs(min(at + retention_ms, _WALL_MAX))
    return Committed(offset.offset, -1, offset.metadata, at, expires_at)


# ---- deletion


def delete_offsets(
    command: DeleteOffsets, owner: Owner | None, offsets: Offsets | None, outside: Outside
) -> Decided[Event] | Refused:
    """OffsetDelete: whatever no member subscribes to may go, however new it is (KIP-496)."""
    name = command.group
    if not name:
        return Refused(Why.INVALID_GROUP, "The group id is empty.")
    if outside.is_share_group(name):
        return Refused(Why.WRONG_GROUP_TYPE, f"Group {name} is a share group.")
    if owner is None:
        return _unknown(name)
    if not owner.is_empty and owner.protocol_type != subscription.PROTOCOL_TYPE:
        return Refused(
            Why.NON_EMPTY_GROUP,
            f"Group {name} has members of type {owner.protocol_type}, whose topics are not known.",
        )
    subscribed = subscription.NOTHING if owner.is_empty else owner.subscribed
    events: dict[tuple[str, int], Event] = {}
    answers: list[Refused | None] = []
    for topic, partition in command.partitions:
        if topic in subscribed:
            answers.append(
                Refused(Why.SUBSCRIBED_TO_TOPIC, f"Members of group {name} subscribe to {topic}.")
            )
            continue
        answers.append(None)
        if offsets is not None and offsets.get(topic, partition) is not None:
            events[topic, partition] = OffsetDropped(
                name, topic, partition, Cause.DELETION, command.by
            )
    return Decided(list(events.values()), answers)


def delete_group(
    command: DeleteGroup, owner: Owner | None, offsets: Offsets | None
) -> Decided[Event] | Refused:
    """DeleteGroups: a group without members goes, with all that it committed."""
    name = command.group
    if owner is None:
        return _unknown(name)
    if not owner.is_empty:
        return Refused(Why.NON_EMPTY_GROUP, f"Group {name} has members.")
    ended = owner.ended(Cause.GROUP_DELETION, command.by)
    if not offsets:
        return Decided(ended)
    if len(offsets) <= command.offsets_max:
        return Decided([_dropped(command, offsets.by_topic.items()), *ended])
    # Detached offsets never change: a commit from now on begins new ones.
    rest = partial(_rest_of_deletion, command, offsets.by_topic)
    return Decided([OffsetsDetached(name), *ended], Unfinished(prepare=rest))


def _rest_of_deletion(command: DeleteGroup, detached: OffsetsByTopic) -> DropDetached:
    """Return the command that drops detached offsets, in blocks of at most `offsets_max`."""
    blocks: list[OffsetsBlock] = []
    block: list[tuple[str, Mapping[int, Committed]]] = []
    room = command.offsets_max
    for topic, partitions in detached.items():
        if len(partitions) < room:
            block.append((topic, partitions))
            room -= len(partitions)
            continue
        items = iter(partitions.items())
        while part := dict(islice(items, room)):
            block.append((topic, part))
            room -= len(part)
            if not room:
                blocks.append(tuple(block))
                block, room = [], command.offsets_max
    if block:
        blocks.append(tuple(block))
    return DropDetached(command.group, tuple(blocks), command.by)


def drop_detached(command: DropDetached, offsets: Offsets | None) -> Decided[Event]:
    """Make the loss of one block of detached offsets durable, and reply with the rest.

    A partition with a commit since is left out: its tombstone would stand behind that commit.
    """
    block, rest = command.blocks[0], command.blocks[1:]
    known = _NONE if offsets is None else offsets
    gone = [
        (topic, [index for index in partitions if known.get(topic, index) is None])
        for topic, partitions in block
    ]
    reply = Unfinished(replace(command, blocks=rest)) if rest else None
    return Decided([_dropped(command, gone)], reply)


def _dropped(
    command: DeleteGroup | DropDetached, partitions: Iterable[tuple[str, Iterable[int]]]
) -> OffsetsDropped:
    """Return the event that these partitions, by topic, lose their offsets with the group."""
    places = tuple([(topic, tuple(indexes)) for topic, indexes in partitions])
    return OffsetsDropped(command.group, places, Cause.GROUP_DELETION, command.by)


def forget(command: ForgetOffsets, offsets: Mapping[str, Offsets]) -> Decided[Event]:
    """A topic is gone: so is what was committed for it."""
    return Decided(
        [
            OffsetDropped(look.group, topic, partition, Cause.TOPIC_DELETION, command.by)
            for look in command.looks
            for topic, partition, one in _seen(look, offsets.get(look.group, _NONE), command.topic)
            if topic == command.topic and _was_for(command, one)
        ]
    )


def _was_for(command: ForgetOffsets, one: Committed) -> bool:
    """Whether a commit was for the topic that is gone, or may have been where it has no id."""
    if one.topic_id is None:
        return one.committed_at <= command.until
    return is_same(one.topic_id, command.topic_id)


# ---- expiry


def expire(
    command: Expire,
    owners: Mapping[str, Owner],
    offsets: Mapping[str, Offsets],
    outside: Outside,
) -> Decided[Event]:
    """Drop what is due of the offsets looked at, and empty groups that have none left."""
    events: list[Event] = []
    touched: list[str] = []
    removed = 0
    for look in command.looks:
        owner = owners.get(look.group)
        if owner is None:
            continue
        have = offsets.get(look.group, _NONE)
        retention_minutes = outside.retention_minutes(look.group)
        due = list(_due(owner, _seen(look, have), command.at, retention_minutes))
        if due:
            touched.append(look.group)
            events += due
        if owner.is_empty and not owner.is_awaited and len(due) == len(have):
            removed += 1
            events += owner.ended(Cause.EXPIRY)
    dropped = sum(isinstance(event, OffsetDropped) for event in events)
    return Decided(events, Expired(dropped, tuple(touched), removed))


def _due(
    owner: Owner,
    seen: Iterable[tuple[str, int, Committed]],
    now: WallMs,
    retention_minutes: int,
) -> Iterator[OffsetDropped]:
    terms = terms_of(owner, retention_minutes)
    if not isinstance(terms, Terms):
        return
    for topic, partition, one in seen:
        if topic not in terms.subscribed and now >= terms.expires_at(one):
            yield OffsetDropped(owner.name, topic, partition, Cause.EXPIRY)


class Spared(Enum):
    """Why nothing of a group expires for now."""

    REBALANCING = auto()
    OTHER_PROTOCOL = auto()  # it has members, and nobody can tell what they read


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a group's offsets stay; what it subscribes to does as long as that is so.

    `empty_since` is TIME_UNKNOWN where each commit counts for itself.
    """

    subscribed: Container[str]
    empty_since: WallMs
    retention_ms: int

    def expires_at(self, one: Committed) -> WallMs:
        """From when on an offset is due that nobody subscribes to."""
        if one.expires_at is not None:
            return one.expires_at
        since = one.committed_at if self.empty_since == TIME_UNKNOWN else self.empty_since
        return WallMs(since + self.retention_ms)


def terms_of(owner: Owner, retention_minutes: int) -> Terms | Spared:
    """By what a group's offsets expire; the sweep and the forecast of it both ask this."""
    subscribed, empty_since = subscription.NOTHING, TIME_UNKNOWN
    if owner.is_empty:
        if owner.protocol_type is not None:
            empty_since = owner.empty_since
    elif owner.is_rebalancing:
        return Spared.REBALANCING
    elif owner.protocol_type != subscription.PROTOCOL_TYPE:
        return Spared.OTHER_PROTOCOL
    else:
        subscribed = owner.subscribed
    return Terms(subscribed, empty_since, retention_minutes * _MS_PER_MINUTE)


# ---- walking over all offsets, a little at a time


def looks(
    names: Roster, offsets: Mapping[str, Offsets], size: int, topic: str | None = None
) -> Iterator[tuple[Look, ...]]:
    """All groups, or what they have of a topic, in portions of at most `size` offsets and groups.

    Everything may change between two portions; whoever gets one decides by what is there then. A
    portion is empty where a stretch of groups has nothing of the topic.
    """
    portion: list[Look] = []
    weight = 0
    for name in names.walk():
        have = offsets.get(name, _NONE)
        count = len(have) if topic is None else len(have.by_topic.get(topic, ()))
        weight += 1 + min(count, size)
        if weight > size:
            yield tuple(portion)
            portion, weight = [], 1 + min(count, size)
        if count > size:
            yield from _parts(name, have, size, topic)
        elif count or topic is None:
            portion.append(Look(name))
    yield tuple(portion)


def _parts(name: str, have: Offsets, size: int, topic: str | None) -> Iterator[tuple[Look, ...]]:
    if topic is None:
        places = ((topic, partition) for topic, partition, _ in have.walk())
    else:
        places = ((topic, partition) for partition in list(have.by_topic.get(topic, ())))
    while part := tuple(islice(places, size)):
        yield (Look(name, part),)


def _seen(
    look: Look, have: Offsets, topic: str | None = None
) -> Iterator[tuple[str, int, Committed]]:
    if look.partitions is not None:
        for name, partition in look.partitions:
            one = have.get(name, partition)
            if one is not None:
                yield name, partition, one
    elif topic is None:
        yield from have
    else:
        for partition, one in have.by_topic.get(topic, {}).items():
            yield topic, partition, one


def _unknown(group: str) -> Refused:
    return Refused(Why.UNKNOWN_GROUP, f"Group {group} does not exist.")
