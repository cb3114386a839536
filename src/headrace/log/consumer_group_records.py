"""Records of groups of the new protocol in `__consumer_offsets`: types 3 to 8 and 16, both ways.

Layout of Kafka 4.3. Type 4, the partitions of the topics, Kafka itself writes no more: it is read
and passed over. When a group began, and since when it is empty, stand in tagged fields of ours,
which Kafka passes over.
Sources: ConsumerGroup*Key.json and *Value.json of Kafka's group coordinator.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

from headrace.core.consumer_events import (
    ConsumerEvent,
    ConsumerGroupDropped,
    ConsumerGroupStored,
    ConsumerMemberDropped,
    ConsumerMemberStored,
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
    Classic,
    ConsumerMember,
    Holding,
    Partitions,
    Progress,
    Resolved,
)
from headrace.core.group_events import Event
from headrace.core.group_words import TIME_UNKNOWN, Candidate
from headrace.core.machine import Entry
from headrace.core.types import MemberId, TopicPartition, WallMs, by_topic
from headrace.wire.primitives import Malformed, NewerVersionError, Reader, Writer

GROUP_EPOCH, TOPICS, MEMBER, TARGET_EPOCH, TARGET, HOLDING = 3, 4, 5, 6, 7, 8
REGEX = 16
KINDS = frozenset({GROUP_EPOCH, TOPICS, MEMBER, TARGET_EPOCH, TARGET, HOLDING, REGEX})
_NAMES = {GROUP_EPOCH: 1, TOPICS: 1, MEMBER: 2, TARGET_EPOCH: 1, TARGET: 2, HOLDING: 2, REGEX: 2}
_VERSION = 0
# Tags; those of ours are far from those that Kafka may yet give out.
_HASH, _EMPTY_SINCE, BEGAN = 0, 848_000, 842_000
_CLASSIC, _ASSIGNED_AT, _EPOCHS = 0, 0, 0
_NULL, _THERE = 0, 1  # before a structure in a tagged field

Bytes = bytes | None


def entry(event: Event) -> Entry | None:
    """The record that an event stands for; None when it is no durable one of these groups."""
    match event:
        case ConsumerGroupStored(group):
            return Entry(_key(GROUP_EPOCH, group), _group(event))
        case ConsumerGroupDropped(group):
            return Entry(_key(GROUP_EPOCH, group), None)
        case ConsumerMemberStored(group, member):
            return Entry(_key(MEMBER, group, member.id), _member(member))
        case ConsumerMemberDropped(group, id_):
            return Entry(_key(MEMBER, group, id_), None)
        case TargetStored() | TargetDropped() | TargetSet() | TargetUnset():
            return _target_entry(event)
        case HoldingStored(group, id_, holding):
            return Entry(_key(HOLDING, group, id_), _holding(holding))
        case HoldingDropped(group, id_):
            return Entry(_key(HOLDING, group, id_), None)
        case RegexResolved(group, regex, resolved):
            return Entry(_key(REGEX, group, regex), _resolved(resolved))
        case RegexDropped(group, regex):
            return Entry(_key(REGEX, group, regex), None)
        case _:
            return None


def _target_entry(event: TargetStored | TargetDropped | TargetSet | TargetUnset) -> Entry:
    match event:
        case TargetStored(group, epoch, at):
            out = _value()
            out.int32(epoch)
            out.tags({_ASSIGNED_AT: _int64(at)} if at != TIME_UNKNOWN else None)
            return Entry(_key(TARGET_EPOCH, group), bytes(out.data))
        case TargetDropped(group):
            return Entry(_key(TARGET_EPOCH, group), None)
        case TargetSet(group, member, partitions):
            out = _value()
            _write_partitions(out, partitions)
            out.tags()
            return Entry(_key(TARGET, group, member), bytes(out.data))
        case TargetUnset(group, member):
            return Entry(_key(TARGET, group, member), None)
        case _:
            assert_never(event)


def events(kind: int, key: Reader, value: Bytes) -> list[ConsumerEvent]:
    """What a record of one of `KINDS` stands for; `key` is behind the kind.

    Raises: Malformed for bytes and versions not known.
    """
    group, other = names(kind, key)
    if kind == TOPICS:
        return []
    if value is None:
        return [_dropped(kind, group, other)]
    source = Reader(value)
    version = source.int16()
    if version != _VERSION:
        raise NewerVersionError(f"version {version} of record type {kind} is from the future")
    event = _stored(kind, group, other, source)
    if source.remaining:
        raise Malformed(f"{source.remaining} bytes more than the record has fields")
    return [event]


def names(kind: int, key: Reader) -> tuple[str, str]:
    """The group of a record, and the member or the regular expression; "" where it has none.

    Raises: Malformed.
    """
    found = [key.nullable_string() for _ in range(_NAMES[kind])]
    if None in found:
        raise Malformed("null where a name must stand")
    if key.remaining:
        raise Malformed(f"{key.remaining} bytes more than the record has fields")
    return found[0] or "", "".join(one or "" for one in found[1:])


def _dropped(kind: int, group: str, other: str) -> ConsumerEvent:
    if kind == GROUP_EPOCH:
        return ConsumerGroupDropped(group)
    if kind == TARGET_EPOCH:
        return TargetDropped(group)
    if kind == REGEX:
        return RegexDropped(group, other)
    of_member: Mapping[int, Callable[[str, MemberId], ConsumerEvent]] = {
        MEMBER: ConsumerMemberDropped, TARGET: TargetUnset, HOLDING: HoldingDropped,
    }  # fmt: skip
    return of_member[kind](group, MemberId(other))


def _stored(kind: int, group: str, other: str, source: Reader) -> ConsumerEvent:
    if kind == GROUP_EPOCH:
        epoch, tags = source.int32(), source.tags()
        empty_since = WallMs(_tag(tags, _EMPTY_SINCE, TIME_UNKNOWN))
        began = WallMs(_tag(tags, BEGAN, TIME_UNKNOWN))
        return ConsumerGroupStored(group, epoch, _tag(tags, _HASH, 0), empty_since, began)
    if kind == TARGET_EPOCH:
        epoch, tags = source.int32(), source.tags()
        return TargetStored(group, epoch, WallMs(_tag(tags, _ASSIGNED_AT, TIME_UNKNOWN)))
    if kind == REGEX:
        topics = frozenset(source.compact_array(Reader.compact_string))
        resolved = Resolved(topics, source.int64(), WallMs(source.int64()))
        source.tags()
        return RegexResolved(group, other, resolved)
    member = MemberId(other)
    if kind == MEMBER:
        return ConsumerMemberStored(group, _read_member(member, source))
    if kind == TARGET:
        partitions = frozenset(_read_partitions(source))
        source.tags()
        return TargetSet(group, member, partitions)
    return HoldingStored(group, member, _read_holding(source))


# ---- groups and members


def _group(event: ConsumerGroupStored) -> bytes:
    out = _value()
    out.int32(event.epoch)
    tags = {}
    if event.metadata_hash:
        tags[_HASH] = _int64(event.metadata_hash)
    if event.empty_since != TIME_UNKNOWN:
        tags[_EMPTY_SINCE] = _int64(event.empty_since)
    if event.began != TIME_UNKNOWN:
        tags[BEGAN] = _int64(event.began)
    out.tags(tags)
    return bytes(out.data)


def _member(member: ConsumerMember) -> bytes:
    out = _value()
    out.compact_nullable_string(member.instance)
    out.compact_nullable_string(member.rack)
    out.compact_string(member.client_id)
    out.compact_string(member.client_host)
    out.compact_array(sorted(member.topics), Writer.compact_string)
    out.compact_string(member.regex)
    out.int32(member.rebalance_ms)
    out.compact_nullable_string(member.assignor)
    # Never left out: to Kafka that would be a classic member which offers nothing.
    out.tags({_CLASSIC: _classic(member.classic)})
    return bytes(out.data)


def _read_member(name: MemberId, source: Reader) -> ConsumerMember:
    instance, rack = source.compact_nullable_string(), source.compact_nullable_string()
    client_id, client_host = source.compact_string(), source.compact_string()
    topics = frozenset(source.compact_array(Reader.compact_string))
    regex = source.compact_nullable_string() or ""  # null in those of Kafka before 4.0
    rebalance_ms, assignor = source.int32(), source.compact_nullable_string()
    classic = source.tags().get(_CLASSIC)
    return ConsumerMember(
        name, instance, rack, client_id, client_host, topics, regex, rebalance_ms, assignor,
        _read_classic(Reader(classic)) if classic is not None else None,
    )  # fmt: skip


def _classic(classic: Classic | None) -> bytes:
    out = Writer()
    if classic is None:
        out.uvarint(_NULL)
        return bytes(out.data)
    out.uvarint(_THERE)
    out.int32(classic.session_ms)

    def candidate(out: Writer, one: Candidate) -> None:
        out.compact_string(one.name)
        out.uvarint(len(one.metadata) + 1)
        out.raw(one.metadata)
        out.tags()

    out.compact_array(classic.candidates, candidate)
    out.tags()
    return bytes(out.data)


def _read_classic(source: Reader) -> Classic | None:
    if source.uvarint() == _NULL:
        return None
    session_ms = source.int32()

    def candidate(source: Reader) -> Candidate:
        name = source.compact_string()
        metadata = bytes(source.take(source.uvarint() - 1))
        source.tags()
        return Candidate(name, metadata)

    candidates = tuple(source.compact_array(candidate))
    source.tags()
    return Classic(session_ms, candidates)


# ---- what members hold and are to hold


def _holding(holding: Holding) -> bytes:
    out = _value()
    out.int32(holding.epoch)
    out.int32(holding.previous_epoch)
    out.int8(holding.progress.value)
    _write_partitions(out, holding.assigned, holding.epochs or {})
    _write_partitions(out, holding.revoking, holding.epochs or {})
    out.tags()
    return bytes(out.data)


def _read_holding(source: Reader) -> Holding:
    epoch, previous_epoch = source.int32(), source.int32()
    state = source.int8()
    if state not in {one.value for one in Progress}:
        raise NewerVersionError(f"a member in state {state}, which is from the future")
    assigned, revoking = _read_partitions(source), _read_partitions(source)
    source.tags()
    told = {one: at for one, at in (assigned | revoking).items() if at is not None}
    return Holding(
        epoch, previous_epoch, Progress(state), frozenset(assigned), frozenset(revoking),
        told or None,
    )  # fmt: skip


def _resolved(resolved: Resolved) -> bytes:
    out = _value()
    out.compact_array(sorted(resolved.topics), Writer.compact_string)
    out.int64(resolved.version)
    out.int64(resolved.at)
    out.tags()
    return bytes(out.data)


def _write_partitions(
    out: Writer, partitions: Partitions, epochs: Mapping[TopicPartition, int] | None = None
) -> None:
    """By topic, and for each topic the epochs of its partitions if all of them are known."""
    topics = by_topic(partitions)
    out.uvarint(len(topics) + 1)
    for topic_id, indexes in topics.items():
        out.uuid(topic_id)
        out.compact_array(indexes, Writer.int32)
        told = [epochs.get(TopicPartition(topic_id, one)) for one in indexes] if epochs else []
        known = [one for one in told if one is not None]
        out.tags({_EPOCHS: _int32_array(known)} if len(known) == len(indexes) else None)


def _read_partitions(source: Reader) -> dict[TopicPartition, int | None]:
    """The partitions, each with the epoch in which it was given out, where that is told."""
    found: dict[TopicPartition, int | None] = {}

    def topic(source: Reader) -> None:
        topic_id = source.uuid()
        indexes = source.compact_array(Reader.int32)
        told = source.tags().get(_EPOCHS)
        epochs = Reader(told).compact_array(Reader.int32) if told is not None else []
        if epochs and len(epochs) != len(indexes):
            raise Malformed(f"{len(epochs)} assignment epochs of {len(indexes)} partitions")
        for place, index in enumerate(indexes):
            found[TopicPartition(topic_id, index)] = epochs[place] if epochs else None

    source.compact_array(topic)
    return found


# ---- parts


def _key(kind: int, *texts: str) -> bytes:
    out = Writer()
    out.int16(kind)
    for text in texts:
        out.nullable_string(text)
    return bytes(out.data)


def _value() -> Writer:
    out = Writer()
    out.int16(_VERSION)
    return out


def _int64(value: int) -> bytes:
    out = Writer()
    out.int64(value)
    return bytes(out.data)


def _int32_array(values: Iterable[int]) -> bytes:
    out = Writer()
    out.compact_array(values, Writer.int32)
    return bytes(out.data)


def _tag(tags: Mapping[int, memoryview], tag: int, default: int) -> int:
    return Reader(tags[tag]).int64() if tag in tags else default
