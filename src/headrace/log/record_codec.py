"""The journal of a share shard: events as records of `__share_group_state`, and back.

Layout of Kafka 4.3's ShareSnapshotKey/Value (type 0) and ShareUpdateKey/Value (type 1), so that
Kafka's tools read it, with two additions they pass over: a tagged field in a state batch that says
why records were archived, and records of type 20900 that keep leases, which Kafka does not have.
A key begins with its type, a value with its version, both int16.

A command's settled records become one ShareUpdate a share-partition, with SPSO as it is after the
command (Kafka writes it one write late); a ShareSnapshot follows `updates_per_snapshot` updates.
Acquisitions are never written. Sources: ShareSnapshotValue.json, ShareUpdateValue.json;
KIP-932 "Share coordinator"; KIP-1226 for DeliveryCompleteCount.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.core.leases import (
    Acquisition,
    Held,
    Lease,
    LeaseAcquired,
    LeaseCommitted,
    LeaseDiscarded,
    LeaseForgotten,
    LeaseKey,
    LeaseOpened,
    LeaseRestored,
    LeaseStaged,
    Staged,
)
from headrace.core.machine import Entry
from headrace.core.runs import Run, State
from headrace.core.shard import ShareShard
from headrace.core.shard_words import Event, Forgotten
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import Advanced, Settled, ShareKey, Started, Verdict
from headrace.core.types import Span, WallMs
from headrace.wire.primitives import Malformed, Reader, Writer

SNAPSHOT, UPDATE, LEASE = 0, 1, 20900
_VALUE_VERSION = 0
_DELIVERY_COMPLETE_COUNT = 0  # a tag of Kafka's
_REASON = 10_000  # a tag of ours, far from any that Kafka may add
_UNCHANGED = -1

Bytes = bytes | None


@dataclass(frozen=True, slots=True)
class StateBatch:
    """One range of a snapshot or update, as the journal has it."""

    span: Span
    state: State
    deliveries: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ShareRecord:
    """A decoded ShareSnapshot (`state_epoch` set) or ShareUpdate (`state_epoch` None)."""

    key: ShareKey
    snapshot_epoch: int
    state_epoch: int | None
    start: int
    batches: tuple[StateBatch, ...]


class ShareJournal:
    """Encodes what a shard's events make durable, and gives the events back in recovery."""

    def __init__(self, shard: ShareShard, updates_per_snapshot: int = 500) -> None:
        self._shard = shard
        self._updates_per_snapshot = updates_per_snapshot
        self._snapshot_epochs: dict[ShareKey, int] = {}
        self._updates: dict[ShareKey, int] = {}

    def records(self, events: Sequence[Event], written_at: WallMs) -> list[Entry]:
        """One record a touched share-partition or lease; none for volatile events."""
        settled: dict[ShareKey, list[StateBatch]] = {}
        started: set[ShareKey] = set()
        leases: dict[LeaseKey, None] = {}
        out: list[Entry] = []
        for event in events:
            match event:
                case Started(key):
                    started.add(key)
                    settled.setdefault(key, [])
                case Settled(key, span, state, deliveries, reason):
                    settled.setdefault(key, []).append(StateBatch(span, state, deliveries, reason))
                case Advanced(key):
                    settled.setdefault(key, [])
                case LeaseOpened() | LeaseAcquired() | LeaseStaged() | LeaseCommitted():
                    leases[event.lease] = None
                case LeaseDiscarded(lease):
                    leases[lease] = None
                case LeaseForgotten(lease):
                    out.append(Entry(_lease_key(lease), None))
                case Forgotten(key):
                    out.append(Entry(_share_key(SNAPSHOT, key), None))
                    self._snapshot_epochs.pop(key, None)
                case _:
                    pass  # members, assignments and acquisition locks die with the process
        for key, batches in settled.items():
            partition = self._shard.partitions[key]
            if key not in started:
                # Also before a snapshot: it does not tell what became of records below SPSO.
                out.append(self._update(partition, batches))
            if key in started or self._updates[key] >= self._updates_per_snapshot:
                out.append(self._snapshot(partition, written_at))
        out += [_lease_record(self._shard.leases[lease]) for lease in leases]
        return out

    def events(self, key: Bytes, value: Bytes) -> list[Event]:
        """What a record stands for. Raises: Malformed for bytes, types or versions not known."""
        if key is None:
            raise Malformed("a record of the share-group journal without a key")
        source = Reader(key)
        kind = source.int16()
        if kind == LEASE:
            lease = (_text(source), _text(source))
            return [_restored(lease, value) if value is not None else LeaseForgotten(lease)]
        if kind not in (SNAPSHOT, UPDATE):
            raise Malformed(f"record type {kind} is from the future; a newer Headrace wrote it")
        share_key = ShareKey(_text(source), source.uuid(), source.int32())
        if value is None:
            return [Forgotten(share_key)]
        record = _share_record(share_key, kind, value)
        return self._replayed(record)

    def _replayed(self, record: ShareRecord) -> list[Event]:
        key = record.key
        settled: list[Event] = [
            Settled(key, batch.span, batch.state, batch.deliveries, batch.reason)
            for batch in record.batches
        ]
        if record.state_epoch is not None:
            self._snapshot_epochs[key] = record.snapshot_epoch
            self._updates[key] = 0
            return [Started(key, record.start, record.state_epoch), *settled]
        if record.snapshot_epoch != self._snapshot_epochs.get(key):
            raise Malformed(f"an update of snapshot {record.snapshot_epoch} of {key} without it")
        self._updates[key] += 1
        return [*settled, Advanced(key, record.start)] if record.start != _UNCHANGED else settled

    def _snapshot(self, partition: SharePartition, written_at: WallMs) -> Entry:
        key = partition.key
        epoch = self._snapshot_epochs.get(key, -1) + 1
        self._snapshot_epochs[key], self._updates[key] = epoch, 0
        out = Writer()
        out.int16(_VALUE_VERSION)
        out.int32(epoch)
        out.int32(partition.state_epoch)
        out.int32(0)  # leader epoch: one broker, one leader
        out.int64(partition.start)
        out.int64(written_at)
        out.int64(written_at)
        _write_batches(out, _durable(partition.runs))
        _write_complete_count(out, partition)
        return Entry(_share_key(SNAPSHOT, key), bytes(out.data))

    def _update(self, partition: SharePartition, batches: list[StateBatch]) -> Entry:
        key = partition.key
        self._updates[key] += 1
        out = Writer()
        out.int16(_VALUE_VERSION)
        out.int32(self._snapshot_epochs[key])
        out.int32(0)
        out.int64(partition.start)
        _write_batches(out, batches)
        _write_complete_count(out, partition)
        return Entry(_share_key(UPDATE, key), bytes(out.data))


def read_share_record(key: Bytes, value: Bytes) -> ShareRecord | None:
    """A record of `__share_group_state` as it stands; None for tombstones and leases.

    Raises: Malformed as `ShareJournal.events` does.
    """
    if key is None or value is None:
        return None
    source = Reader(key)
    kind = source.int16()
    if kind not in (SNAPSHOT, UPDATE):
        return None
    return _share_record(ShareKey(_text(source), source.uuid(), source.int32()), kind, value)


def _durable(runs: Iterable[Run]) -> list[StateBatch]:
    """What outlives the process: locks forgotten, never-delivered records not mentioned."""
    batches = []
    for run in runs:
        acquired = run.state is State.ACQUIRED
        state = State.AVAILABLE if acquired else run.state
        deliveries = run.stored if acquired else run.deliveries
        if state is not State.AVAILABLE or deliveries:
            batches.append(StateBatch(run.span, state, deliveries, run.reason))
    return batches


def _text(source: Reader) -> str:
    text = source.nullable_string()
    if text is None:
        raise Malformed("null where a name must stand")
    return text


def _share_key(kind: int, key: ShareKey) -> bytes:
    out = Writer()
    out.int16(kind)
    out.nullable_string(key.group)
    out.uuid(key.topic_id)
    out.int32(key.partition)
    return bytes(out.data)


def _write_batches(out: Writer, batches: Sequence[StateBatch]) -> None:
    def write(sink: Writer, batch: StateBatch) -> None:
        sink.int64(batch.span.first)
        sink.int64(batch.span.last)
        sink.int8(batch.state)
        sink.int16(batch.deliveries)
        sink.tags({_REASON: batch.reason.encode()} if batch.reason else None)

    out.compact_array(batches, write)


def _write_complete_count(out: Writer, partition: SharePartition) -> None:
    out.tags({_DELIVERY_COMPLETE_COUNT: partition.finished.to_bytes(4, "big")})


def _share_record(key: ShareKey, kind: int, value: bytes) -> ShareRecord:
    source = Reader(value)
    version = source.int16()
    if version != _VALUE_VERSION:
        raise Malformed(f"version {version} of record type {kind} is from the future")
    snapshot_epoch = source.int32()
    state_epoch = source.int32() if kind == SNAPSHOT else None
    source.int32()
    start = source.int64()
    if kind == SNAPSHOT:
        source.int64()
        source.int64()
    batches = tuple(source.compact_array(_read_batch))
    source.tags()
    return ShareRecord(key, snapshot_epoch, state_epoch, start, batches)


def _read_batch(source: Reader) -> StateBatch:
    span, state, deliveries = _read_span(source), source.int8(), source.int16()
    reason = source.tags().get(_REASON)
    if state not in set(State) or state == State.ACQUIRED:
        raise Malformed(f"delivery state {state} cannot be durable")
    told = bytes(reason).decode(errors="replace") if reason else None
    return StateBatch(span, State(state), deliveries, told)


def _read_span(source: Reader) -> Span:
    first, last = source.int64(), source.int64()
    if not 0 <= first <= last:
        raise Malformed(f"{first}-{last} is not a range of offsets")
    return Span(first, last)


def _lease_key(lease: LeaseKey) -> bytes:
    out = Writer()
    out.int16(LEASE)
    for part in lease:
        out.nullable_string(part)
    return bytes(out.data)


def _lease_record(lease: Lease) -> Entry:
    out = Writer()

    def write_place(sink: Writer, where: ShareKey, span: Span) -> None:
        sink.uuid(where.topic_id)
        sink.int32(where.partition)
        sink.int64(span.first)
        sink.int64(span.last)

    def write_held(sink: Writer, held: Held) -> None:
        write_place(sink, held.key, held.span)
        sink.int16(held.deliveries)

    def write_staged(sink: Writer, staged: Staged) -> None:
        write_place(sink, staged.key, staged.span)
        sink.int8(staged.verdict)
        sink.compact_nullable_string(staged.reason)

    def write_acquisition(sink: Writer, item: tuple[int, Acquisition]) -> None:
        seq, acquisition = item
        sink.int64(seq)
        sink.compact_array(acquisition.held, write_held)
        sink.compact_array(acquisition.staged, write_staged)

    out.int16(_VALUE_VERSION)
    out.int32(lease.epoch)
    out.int64(lease.committed)
    out.compact_array(lease.topics, Writer.compact_string)
    out.compact_array(sorted(lease.acquisitions.items()), write_acquisition)
    out.tags()
    return Entry(_lease_key(lease.key), bytes(out.data))


def _restored(lease: LeaseKey, value: bytes) -> LeaseRestored:
    source = Reader(value)
    version = source.int16()
    if version != _VALUE_VERSION:
        raise Malformed(f"version {version} of a lease is from the future")

    def read_place(source: Reader) -> tuple[ShareKey, Span]:
        return ShareKey(lease[0], source.uuid(), source.int32()), _read_span(source)

    def read_held(source: Reader) -> Held:
        return Held(*read_place(source), source.int16())

    def read_staged(source: Reader) -> Staged:
        key, span = read_place(source)
        verdict = source.int8()
        if verdict not in set(Verdict):
            raise Malformed(f"{verdict} is not a verdict")
        return Staged(key, span, Verdict(verdict), source.compact_nullable_string())

    def read_acquisition(source: Reader) -> tuple[int, Acquisition]:
        seq = source.int64()
        held = tuple(source.compact_array(read_held))
        return seq, Acquisition(held, tuple(source.compact_array(read_staged)))

    restored = LeaseRestored(
        lease,
        source.int32(),
        source.int64(),
        tuple(source.compact_array(Reader.compact_string)),
        tuple(source.compact_array(read_acquisition)),
    )
    source.tags()
    return restored
