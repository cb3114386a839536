"""What the journal of consumer groups tells of one group, for people: what moved, when and why.

Two halves. `GroupRecords` finds the records of one group in pieces of a journal, without decoding
the others, and sees where compaction took records away: offsets that nobody has any more are a
hole. `GroupHistory` makes of these records, in order, what happened; it remembers the newest
offset of each partition, so that a move has a beginning. Both also read the journals of Apache
Kafka, where nobody wrote down why and for whom: a reset is then told by the group having had
members and having none.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.core.consumer_events import (
    ConsumerGroupDropped,
    ConsumerGroupStored,
    ConsumerMemberDropped,
    ConsumerMemberStored,
)
from headrace.core.consumer_words import ConsumerMember
from headrace.core.group_events import (
    Event,
    GroupDropped,
    GroupStored,
    OffsetCommitted,
    OffsetDropped,
)
from headrace.core.group_words import TIME_UNKNOWN, Cause, Committed, Member, Snapshot
from headrace.core.types import MemberId, WallMs
from headrace.log import consumer_group_records
from headrace.log.group_records import (
    BY_HEADER,
    CAUSE_HEADER,
    GROUP,
    LEGACY_OFFSET,
    OFFSET,
    GroupJournal,
)
from headrace.wire import batches
from headrace.wire.batches import TRANSACTIONAL, BatchHeader, Record
from headrace.wire.compression import Codec
from headrace.wire.primitives import Malformed, Reader, Writer

_KNOWN = frozenset((LEGACY_OFFSET, OFFSET, GROUP)) | consumer_group_records.KINDS
_CAUSES: dict[bytes | None, Cause] = {one.value.encode(): one for one in Cause}
_OTHER = {GroupDropped: "consumer", ConsumerGroupDropped: "classic"}
_COMMIT_MARKER = 1


# ---- what happened


@dataclass(frozen=True, slots=True)
class Moved:
    """A committed offset changed; `after` is None when it was removed.

    `before` is None when there was none, or, unless `is_known`, when the journal no longer has it.
    `cause` is None when it was not recorded.
    """

    at: WallMs
    topic: str
    partition: int
    before: Committed | None
    after: Committed | None
    is_known: bool
    cause: Cause | None
    by: str

    @property
    def rewound(self) -> int:
        """By how many records the offset went back."""
        if self.before is None or self.after is None:
            return 0
        return max(0, self.before.offset - self.after.offset)

    @property
    def is_repeat(self) -> bool:
        """Whether it is a commit of what was committed already."""
        if self.before is None or self.after is None:
            return False
        after = self.after
        return (self.before.offset, self.before.metadata) == (after.offset, after.metadata)


@dataclass(frozen=True, slots=True)
class Assigned:
    """A generation of members was assigned."""

    at: WallMs
    generation: int
    protocol: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Emptied:
    """The last member went; `generation` is that of the group since, or its epoch."""

    at: WallMs
    generation: int


@dataclass(frozen=True, slots=True)
class Deleted:
    """The group is no more; `cause` is None when it was not recorded."""

    at: WallMs
    cause: Cause | None
    by: str


@dataclass(frozen=True, slots=True)
class EpochBegan:
    """A group of the new protocol has a new epoch: members came or went, or want something else."""

    at: WallMs
    epoch: int
    members: int


@dataclass(frozen=True, slots=True)
class MemberCame:
    """Somebody joined a group of the new protocol."""

    at: WallMs
    member: ConsumerMember


@dataclass(frozen=True, slots=True)
class MemberWent:
    """A member left a group of the new protocol, or was silent for too long."""

    at: WallMs
    member: ConsumerMember


@dataclass(frozen=True, slots=True)
class Converted:
    """The group goes on under the other protocol, `classic` or `consumer`; its offsets stay."""

    at: WallMs
    kind: str


Happening = Moved | Assigned | Emptied | Deleted | EpochBegan | MemberCame | MemberWent | Converted


class GroupHistory:
    """What happened to one group: `take` its records in the order of the journal."""

    def __init__(self) -> None:
        self.unreadable: list[int] = []  # offsets of records that only a newer version understands
        self._codec = GroupJournal()
        self._offsets: dict[tuple[str, int], Committed] = {}
        self._members: dict[MemberId, ConsumerMember] = {}
        self._had_members = self._has_members = False

    def take(self, record: Record, *, is_whole: bool) -> list[Happening]:
        """What the record made happen; `is_whole`: nothing of the journal before it is missing."""
        assert record.key is not None
        if Reader(record.key).int16() not in _KNOWN:
            return []
        try:
            events = self._codec.events(record.key, record.value)
        except Malformed:
            self.unreadable.append(record.offset)
            return []
        return [one for event in events for one in self._taken(event, record, is_whole)]

    def _taken(self, event: Event, record: Record, is_whole: bool) -> list[Happening]:
        at = WallMs(record.timestamp)
        match event:
            case OffsetCommitted(_, topic, partition, committed):
                before = self._offsets.get((topic, partition))
                self._offsets[topic, partition] = committed
                known = is_whole or before is not None
                cause, by = _told(record)
                why = cause or self._guessed(by)
                return [Moved(at, topic, partition, before, committed, known, why, by)]
            case OffsetDropped(_, topic, partition):
                before = self._offsets.pop((topic, partition), None)
                if before is None and is_whole:
                    return []  # what was not there cannot go: a tombstone written twice
                known = before is not None
                return [Moved(at, topic, partition, before, None, known, *_told(record))]
            case GroupStored(_, snapshot):
                return self._stored(at, snapshot)
            case GroupDropped() | ConsumerGroupDropped():
                self._has_members = self._had_members = False
                self._members.clear()
                cause, by = _told(record)
                if cause is None and self._offsets:  # else they go before their group does
                    return [Converted(at, _OTHER[type(event)])]
                return [Deleted(at, cause, by)]
            case ConsumerMemberStored() | ConsumerMemberDropped() | ConsumerGroupStored():
                return self._taken_of_members(event, at)
            case _:
                return []

    def _taken_of_members(
        self, event: ConsumerMemberStored | ConsumerMemberDropped | ConsumerGroupStored, at: WallMs
    ) -> list[Happening]:
        match event:
            case ConsumerMemberStored(_, member):
                is_new = member.id not in self._members
                self._members[member.id] = member
                return [MemberCame(at, member)] if is_new else []
            case ConsumerMemberDropped(_, id_):
                gone = self._members.pop(id_, None)
                return [] if gone is None else [MemberWent(at, gone)]
            case ConsumerGroupStored(_, epoch):
                self._had_members, self._has_members = True, bool(self._members)
                if self._members:
                    return [EpochBegan(at, epoch, len(self._members))]
                return [Emptied(at, epoch)]

    def _stored(self, at: WallMs, snapshot: Snapshot) -> list[Happening]:
        had = self._has_members or self._had_members
        self._has_members = bool(snapshot.members)
        self._had_members = snapshot.protocol_type is not None
        if snapshot.members:
            name = snapshot.protocol or ""
            return [Assigned(at, snapshot.generation, name, snapshot.members)]
        # An empty group is also written before its first member comes.
        emptied = snapshot.generation > 0 and (had or self._had_members)
        return [Emptied(at, snapshot.generation)] if emptied else []

    def _guessed(self, by: str) -> Cause:
        """Why an offset moved where only that it was committed is recorded.

        Headrace records a reset, and else who committed; where there is neither, the rule by which
        Headrace knows a reset is applied here.
        """
        from_outside = not by and self._had_members and not self._has_members
        return Cause.RESET if from_outside else Cause.COMMIT


def _told(record: Record) -> tuple[Cause | None, str]:
    """Why and by whom, as the headers of a record have it."""
    cause, by = None, ""
    for name, value in record.headers:
        if name == CAUSE_HEADER:
            cause = _CAUSES.get(value)
        elif name == BY_HEADER:
            by = (value or b"").decode(errors="replace")
    return cause, by


# ---- finding the records


class GroupRecords:
    """The records of one group in a journal that is given piece by piece, from its start.

    `whole_since` is the time from which on nothing is missing: that of the newest batch in which or
    before which offsets are missing, None while none are. The bytes of a batch are searched for the
    name of the group first; only batches that have it are decoded. A commit within a transaction
    counts when the transaction does.
    """

    def __init__(self, group: str) -> None:
        self.whole_since: WallMs | None = None
        self.position = 0  # the offset after the last one seen
        mark = Writer()
        mark.nullable_string(group)
        self._mark = bytes(mark.data)  # how the name stands in each key, behind the type
        self._pending: dict[int, list[Record]] = {}  # by producer, of transactions under way

    def read(self, data: memoryview) -> Iterator[Record]:
        """The group's records in the batches of `data`. Raises: Malformed."""
        at = 0
        for header in batches.headers(data):
            piece = data[at : at + header.size]
            at += header.size
            if header.last_offset < self.position:
                continue
            self._look_for_holes(header)
            self.position = header.last_offset + 1
            if header.is_control:
                yield from self._ended(piece, header)
            elif self._mark in _searchable(piece, header):
                found = filter(self._is_ours, batches.records(piece))
                if header.attributes & TRANSACTIONAL:
                    self._pending.setdefault(header.producer_id, []).extend(found)
                else:
                    yield from found

    def _look_for_holes(self, header: BatchHeader) -> None:
        is_full = header.record_count == header.last_offset_delta + 1
        if header.base_offset > self.position or not is_full:
            # Records of a batch were written at one moment; later ones are all there so far.
            earlier = self.whole_since or TIME_UNKNOWN
            self.whole_since = WallMs(max(earlier, header.max_timestamp))

    def _is_ours(self, record: Record) -> bool:
        return record.key is not None and record.key.startswith(self._mark, 2)

    def _ended(self, piece: memoryview, header: BatchHeader) -> Iterator[Record]:
        """What a transaction held back, when it was committed; it counts from then on."""
        held = self._pending.pop(header.producer_id, [])
        if held and _commits(batches.payload(piece, 0, header)):
            at = header.max_timestamp
            yield from (one._replace(timestamp=at) for one in held)


def _searchable(piece: memoryview, header: BatchHeader) -> bytes:
    """The bytes of a batch, decompressed; checked are only those that somebody decodes."""
    plain = header.codec == Codec.NONE
    return bytes(piece if plain else batches.payload(piece, 0, header))


def _commits(marker: memoryview) -> bool:
    """Whether the control record ends its transaction by a commit (ControlRecordType.json)."""
    source = Reader(marker)
    source.varlong()  # its size
    source.int8()
    for _ in range(3):  # timestamp, offset, size of the key
        source.varlong()
    source.int16()
    return source.int16() == _COMMIT_MARKER
