"""The journal of a share shard: events as records of `__share_group_state`, and back.

Layout of Kafka 4.3's ShareSnapshotKey/Value (type 0) and ShareUpdateKey/Value (type 1), so that
Kafka's tools read it, with additions they pass over: a tagged field in a state batch that says why
records were archived, one of a record that says who had them (log.share_holds), and records of
types that Kafka does not have: 20900 keeps leases, 20907 lists what was archived without a dead
letter, 20910 retains groups without share-partitions. A key begins with its type, a value with its
version, both int16.

A command's settled records become one ShareUpdate a share-partition, with SPSO as it is after the
command (Kafka writes it one write late); a ShareSnapshot follows `updates_per_snapshot` updates, or
more where it would be long: never more often than an update for every 64 runs in it. What is too
long for one record goes on in updates of the same snapshot behind it, in the same atomic append,
which Kafka merges just so. Acquisitions are never written.

A journal may be pruned (`pruned`): updates whose snapshot is gone are passed over then, because
a later snapshot contains them; `unfounded` has the share-partitions without one. A repair begins
share-partitions with such updates (`founding`).

Sources: ShareSnapshotValue.json, ShareUpdateValue.json;
KIP-932 "Share coordinator"; KIP-1226 for DeliveryCompleteCount.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile
from typing import NamedTuple

from headrace.core.archived import ArchiveEvent, PageForgotten, PageListed
from headrace.core.lasting import durable
from headrace.core.leases import (
    Lease,
    LeaseAcquired,
    LeaseCommitted,
    LeaseDiscarded,
    LeaseForgotten,
    LeaseKey,
    LeaseOpened,
    LeaseStaged,
)
from headrace.core.machine import Entry, LateEntries
from headrace.core.runs import State
from headrace.core.shard import ShareShard
from headrace.core.shard_words import Event, Forgotten, Keep, LeaseKept, PartitionKept
from headrace.core.share_group import GroupRetained, MemberSeen
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import (
    Acquired,
    Advanced,
    Delayed,
    Hold,
    Range,
    Replayed,
    Settled,
    ShareKey,
    Started,
)
from headrace.core.types import MemberId, Span, WallMs
from headrace.log import archived_records, share_holds
from headrace.log.archived_records import ARCHIVED, page_record
from headrace.log.buggify import buggify
from headrace.log.group_records import CAUSE_HEADER
from headrace.log.lease_records import (
    LEASE,
    PART,
    lease_key,
    lease_record,
    part_record,
    part_restored,
    restored,
)
from headrace.log.retained_groups import (
    RETAINED,
    group_of,
    retained_record,
    retained_restored,
)
from headrace.log.share_batches import portions, read
from headrace.wire.primitives import Malformed, NewerVersionError, Reader, Writer

SNAPSHOT, UPDATE = 0, 1
_VALUE_VERSION = 0
_DELIVERY_COMPLETE_COUNT = 0  # a tag of Kafka's
_CHANGE_KEYS = (UPDATE.to_bytes(2, "big"), PART.to_bytes(2, "big"))  # of no whole state
_UNCHANGED = -1
_RUNS_PER_UPDATE = 64
_RANGES_ON_LOOP = 4_000  # that are encoded without a thread: 4 ms
_RANGES_PER_KEEP = 4_000  # that whole states of one command have, or those of one of them: 4 ms
_CLIENTS_MAX = 10_000  # that are remembered
_CLIENT_TOLD_MAX = 100  # characters of the name that a client gives itself

Bytes = bytes | None


@dataclass(frozen=True, slots=True)
class StateBatch:
    """One range of a snapshot or update, as the journal has it."""

    span: Span
    state: State
    deliveries: int
    reason: str | None = None
    hold: Hold | None = None


@dataclass(frozen=True, slots=True)
class ShareRecord:
    """A decoded ShareSnapshot (`state_epoch` set) or ShareUpdate (`state_epoch` None).

    `count` is how many state batches it has, also where not all were asked for.
    """

    key: ShareKey
    snapshot_epoch: int
    state_epoch: int | None
    start: int
    batches: tuple[StateBatch, ...]
    count: int = 0


class _Decoded(NamedTuple):
    """The same, with what is in it as it is applied."""

    key: ShareKey
    snapshot_epoch: int
    state_epoch: int | None
    start: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class _Head:
    """What the records of a share-partition have beside its ranges."""

    key: ShareKey
    snapshot_epoch: int
    state_epoch: int
    start: int
    finished: int
    client: Callable[[MemberId], str | None]


class ShareJournal:
    """Encodes what a shard's events make durable, and gives the events back in recovery."""

    def __init__(
        self,
        shard: ShareShard,
        updates_per_snapshot: int = 500,
        *,
        pruned: bool = False,
        founding: bool = False,
    ) -> None:
        self._shard = shard
        self._updates_per_snapshot = updates_per_snapshot
        self._pruned = pruned
        self._founding = founding
        self._snapshot_epochs: dict[ShareKey, int] = {}
        self._updates: dict[ShareKey, int] = {}
        self._clients: dict[tuple[str, MemberId], str] = {}  # by group and member, oldest first
        self.unfounded: set[ShareKey] = set()  # of whom an update came, and no snapshot yet
        self._newest: dict[bytes, int] = {}  # offset of the newest whole state by key, ascending

    def records(self, events: Sequence[Event], written_at: WallMs) -> Sequence[Entry | LateEntries]:
        """The records of each touched share-partition or lease; none for volatile events.

        Whole states and dispositions of many ranges are encoded later.
        """
        settled: dict[ShareKey, list[Range]] = {}
        snapshots: set[ShareKey] = set()
        leases: dict[LeaseKey, None] = {}
        out: list[Entry | LateEntries] = []
        told: list[Range] = []
        told_of: ShareKey | None = None
        for event in _without_locks(events):
            match event:
                case Settled():
                    key, span, state, deliveries, reason, hold = event
                    if key is not told_of:  # hashing names costs more than all the rest
                        told, told_of = settled.setdefault(key, []), key
                    told.append((span.first, span.last, state, deliveries, reason, hold))
                case Replayed(key, ranges):
                    settled.setdefault(key, []).extend(ranges)
                case Started(key) | PartitionKept(key):
                    snapshots.add(key)
                    settled.setdefault(key, [])
                case Advanced(key):
                    settled.setdefault(key, [])
                case (
                    LeaseOpened()
                    | LeaseAcquired()
                    | LeaseCommitted()
                    | LeaseDiscarded()
                    | LeaseKept()
                ):
                    leases[event.lease] = None
                case (
                    PageListed()
                    | PageForgotten()
                    | Forgotten()
                    | LeaseForgotten()
                    | LeaseStaged()
                    | GroupRetained()
                ):
                    out.append(self._entry(event))
                case _:
                    self._remember(event)  # what members are dies with the process
        for key, ranges in settled.items():
            partition = self._shard.partitions[key]
            if key not in snapshots:
                # Also before a snapshot: it does not tell what became of records below SPSO.
                out += self._entries(partition, ranges)
            if key in snapshots or self._snapshot_is_due(partition):
                out += self._snapshot(partition, written_at)
        out += [self._lease(self._shard.leases[lease]) for lease in leases]
        return out

    def placed(self, offset: int, key: Bytes, value: Bytes) -> None:
        """A record is in the journal at `offset`."""
        if key is not None and not key.startswith(_CHANGE_KEYS):
            self._newest.pop(key, None)
            if value is not None:
                self._newest[key] = offset

    def needed_from(self, end: int) -> int:
        """The smallest offset that recovery needs, of a journal that ends at `end`."""
        return next(iter(self._newest.values()), end)

    def count_below(self, offset: int) -> int:
        """How many share-partitions and leases have their newest whole state below an offset."""
        return sum(1 for _ in takewhile(lambda one: one < offset, self._newest.values()))

    def cold(self, before: int, count_max: int) -> Keep:
        """Of whom the newest whole state lies below an offset: the oldest so many.

        There are fewer where they have many ranges, and at least one, if there is any.
        """
        partitions, leases = list[ShareKey](), list[LeaseKey]()
        pages: list[tuple[ShareKey, int]] = []
        groups = list[str]()
        ranges = 0
        for key, offset in islice(self._newest.items(), count_max):
            if offset >= before or ranges >= _RANGES_PER_KEEP:
                break
            source = Reader(key)
            kind = source.int16()
            if kind == LEASE:
                leases.append((_text(source), _text(source)))
                ranges += self._ranges_of_lease(leases[-1])
            elif kind == ARCHIVED:
                pages.append((_named(source), source.int64()))
            elif kind == RETAINED:
                groups.append(group_of(source))
            else:
                partitions.append(_named(source))
                partition = self._shard.partitions.get(partitions[-1])
                ranges += 0 if partition is None else len(partition.runs)
        return Keep(tuple(partitions), tuple(leases), tuple(pages), tuple(groups))

    def _ranges_of_lease(self, key: LeaseKey) -> int:
        lease = self._shard.leases.get(key)
        acquisitions = () if lease is None else lease.acquisitions.values()
        return sum(acquisition.ranges for acquisition in acquisitions)

    def events(self, key: Bytes, value: Bytes) -> list[Event]:
        """What a record stands for. Raises: Malformed for bytes, types or versions not known."""
        if key is None:
            raise Malformed("a record of the share-group journal without a key")
        source = Reader(key)
        kind = source.int16()
        if kind == LEASE:
            lease = (_text(source), _text(source))
            return [restored(lease, value) if value is not None else LeaseForgotten(lease)]
        if kind == PART:
            return self._staged(part_restored(source, value))
        if kind == ARCHIVED:
            return [archived_records.restored(source, value)]
        if kind == RETAINED:
            return [retained_restored(source, value)]
        if kind not in (SNAPSHOT, UPDATE):
            raise NewerVersionError(
                f"record type {kind} is from the future; a newer Headrace wrote it"
            )
        share_key = _named(source)
        if value is None:
            self.unfounded.discard(share_key)
            return [Forgotten(share_key)]
        return self._replayed(_decoded(share_key, kind, value, all_holds=False))

    def _staged(self, staged: LeaseStaged) -> list[Event]:
        lease = self._shard.leases.get(staged.lease)
        if lease is not None and staged.seq in lease.acquisitions:
            return [staged]
        if self._pruned:  # a whole state that has it comes later, or it is settled
            return []
        raise Malformed(f"number {staged.seq} of lease {staged.lease} was staged, not acquired")

    def _replayed(self, record: _Decoded) -> list[Event]:
        key = record.key
        if record.state_epoch is not None:
            self._snapshot_epochs[key] = record.snapshot_epoch
            self._updates[key] = 0
            self.unfounded.discard(key)
            started = Started(key, record.start, record.state_epoch)
            return [started, Replayed(key, record.ranges)]
        known = self._snapshot_epochs.get(key)
        if self._founding and record.snapshot_epoch != known:
            return self._founded(record)
        if self._pruned and known is None:
            self.unfounded.add(key)
            return []
        if record.snapshot_epoch != known:
            raise Malformed(f"an update of snapshot {record.snapshot_epoch} of {key} without it")
        self._updates[key] += 1
        settled: list[Event] = [Replayed(key, record.ranges)]
        return [*settled, Advanced(key, record.start)] if record.start != _UNCHANGED else settled

    def _founded(self, record: _Decoded) -> list[Event]:
        """Begin a share-partition with an update; where its log begins, if that has no SPSO."""
        key, start = record.key, record.start
        known = self._shard.partitions.get(key)
        if start == _UNCHANGED:
            start = 0 if known is None else known.start
        first = min([start, *(one[0] for one in record.ranges)])  # also of what is below the SPSO
        self._snapshot_epochs[key] = record.snapshot_epoch
        self._updates[key] = 0
        self.unfounded.add(key)
        return [Started(key, first, 0), Replayed(key, record.ranges), Advanced(key, start)]

    def _entry(
        self, event: ArchiveEvent | Forgotten | LeaseForgotten | LeaseStaged | GroupRetained
    ) -> Entry | LateEntries:
        """The one record of an event: a page, what a part staged, or a tombstone."""
        if isinstance(event, GroupRetained):
            return retained_record(event)
        if isinstance(event, LeaseStaged):
            if _is_late(len(event.staged)):
                return LateEntries(lambda: [part_record(event)])
            return part_record(event)
        if isinstance(event, LeaseForgotten):
            return Entry(lease_key(event.lease), None)
        if not isinstance(event, Forgotten):
            return page_record(event)
        self._snapshot_epochs.pop(event.key, None)
        self._updates.pop(event.key, None)
        told = ((CAUSE_HEADER, event.removal.encode()),) if event.removal is not None else ()
        return Entry(share_key(SNAPSHOT, event.key), None, told)

    def _snapshot_is_due(self, partition: SharePartition) -> bool:
        updates = self._updates[partition.key]
        runs_paid_for = updates * _RUNS_PER_UPDATE  # or a long one would be most of the journal
        return updates >= self._updates_per_snapshot and runs_paid_for >= len(partition.runs)

    def _entries(self, partition: SharePartition, ranges: Sequence[Range]) -> list[Entry]:
        """A ShareUpdate, and the updates that it goes on in."""
        entries = _entries(self._head(partition), ranges)
        self._updates[partition.key] += len(entries)
        return entries

    def _snapshot(
        self, partition: SharePartition, written_at: WallMs
    ) -> Sequence[Entry | LateEntries]:
        """A ShareSnapshot, and the updates that it goes on in.

        Those of a snapshot that is encoded later do not count as updates, as nothing is gained by
        another one.
        """
        key = partition.key
        self._snapshot_epochs[key] = self._snapshot_epochs.get(key, -1) + 1
        self._updates[key] = 0
        head = self._head(partition)
        if _is_late(len(partition.runs)):
            runs = partition.runs.copied()
            return (LateEntries(lambda: _entries(head, durable(runs), written_at)),)
        entries = _entries(head, durable(partition.runs), written_at)
        self._updates[key] += len(entries) - 1
        return entries

    def _head(self, partition: SharePartition) -> _Head:
        key = partition.key
        client = partial(self._client, key.group)
        return _Head(
            key, self._snapshot_epochs[key], partition.state_epoch, partition.start,
            partition.finished, client,
        )  # fmt: skip

    def _lease(self, lease: Lease) -> Entry | LateEntries:
        """The whole state of a lease."""
        if not _is_late(self._ranges_of_lease(lease.key)):
            return lease_record(lease)
        copied = replace(lease, acquisitions=dict(lease.acquisitions))
        return LateEntries(lambda: [lease_record(copied)])

    def _client(self, group: str, member: MemberId) -> str | None:
        """Who a member says it is, if it was heard of."""
        return self._clients.get((group, member))

    def _remember(self, event: Event) -> None:
        """Who a member says it is: it may be gone when its records are released."""
        if not isinstance(event, MemberSeen):
            return
        member = event.member
        key = event.group, member.id
        if key in self._clients:
            return
        if len(self._clients) >= _CLIENTS_MAX:
            del self._clients[next(iter(self._clients))]
        self._clients[key] = f"{member.client_id[:_CLIENT_TOLD_MAX] or '-'} /{member.client_host}"


def read_share_record(key: Bytes, value: Bytes, *, at: int | None = None) -> ShareRecord | None:
    """A record of `__share_group_state` as it stands; None for tombstones and leases.

    Given an offset, only the state batches that have it are told.
    Raises: Malformed as `ShareJournal.events` does.
    """
    if key is None or value is None:
        return None
    source = Reader(key)
    kind = source.int16()
    if kind not in (SNAPSHOT, UPDATE):
        return None
    decoded = _decoded(_named(source), kind, value, all_holds=True)
    batches = tuple(
        StateBatch(Span(first, last), state, deliveries, reason, hold)
        for first, last, state, deliveries, reason, hold in decoded.ranges
        if at is None or first <= at <= last
    )
    return ShareRecord(
        decoded.key,
        decoded.snapshot_epoch,
        decoded.state_epoch,
        decoded.start,
        batches,
        len(decoded.ranges),
    )


def _is_late(ranges: int) -> bool:
    """Return whether so many ranges are encoded in a thread."""
    return ranges > _RANGES_ON_LOOP or buggify("journal.late")


def _entries(
    head: _Head, ranges: Sequence[Range], snapshot_at: WallMs | None = None
) -> list[Entry]:
    """A ShareUpdate, or a ShareSnapshot of a time, and the updates that it goes on in."""
    key, entries = head.key, list[Entry]()
    arrays = list(portions(ranges))
    for number, (array, rows) in enumerate(arrays, 1):
        out = Writer()
        out.int16(_VALUE_VERSION)
        out.int32(head.snapshot_epoch)
        kind = SNAPSHOT if snapshot_at is not None and not entries else UPDATE
        if kind == SNAPSHOT:
            out.int32(head.state_epoch)
        out.int32(0)  # leader epoch: one broker, one leader
        # SPSO moves with the last of it, when all that is below it was told.
        out.int64(head.start if kind == SNAPSHOT or number == len(arrays) else _UNCHANGED)
        if kind == SNAPSHOT and snapshot_at is not None:
            out.int64(snapshot_at)
            out.int64(snapshot_at)
        out.raw(array)
        tags = {_DELIVERY_COMPLETE_COUNT: head.finished.to_bytes(4, "big")}
        holds = share_holds.encoded(rows, head.client)
        if holds is not None:
            tags[share_holds.TAG] = holds
        out.tags(tags)
        entries.append(Entry(share_key(kind, key), bytes(out.data)))
    return entries


def _without_locks(events: Sequence[Event]) -> list[Event]:
    """What is no lock: they come by the hundred, and die with the process."""
    return [event for event in events if type(event) not in (Acquired, Delayed)]


def _named(source: Reader) -> ShareKey:
    return ShareKey(_text(source), source.uuid(), source.int32())


def _text(source: Reader) -> str:
    text = source.nullable_string()
    if text is None:
        raise Malformed("null where a name must stand")
    return text


def share_key(kind: int, key: ShareKey) -> bytes:
    """The key of a share-partition's records of a kind, SNAPSHOT or UPDATE."""
    out = Writer()
    out.int16(kind)
    out.nullable_string(key.group)
    out.uuid(key.topic_id)
    out.int32(key.partition)
    return bytes(out.data)


def _decoded(key: ShareKey, kind: int, value: bytes, *, all_holds: bool) -> _Decoded:
    """Without `all_holds`, those of archived records are enough: they are state."""
    source = Reader(value)
    version = source.int16()
    if version != _VALUE_VERSION:
        raise NewerVersionError(f"version {version} of record type {kind} is from the future")
    snapshot_epoch = source.int32()
    state_epoch = source.int32() if kind == SNAPSHOT else None
    source.int32()
    start = source.int64()
    if kind == SNAPSHOT:
        source.int64()
        source.int64()
    ranges = read(source)
    holds = source.tags().get(share_holds.TAG)
    if holds is not None and (all_holds or any(one[4] is not None for one in ranges)):
        ranges = share_holds.attached(ranges, share_holds.decoded(holds))
    return _Decoded(key, snapshot_epoch, state_epoch, start, ranges)
