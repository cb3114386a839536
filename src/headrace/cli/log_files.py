"""The files of a partition's folder, read piece by piece: segments, indexes, producer snapshots.

A segment of any size is read a batch at a time. What is damaged is a `Damage` among what is found,
and reading goes on behind it where that can be told.
Source: Kafka's DumpLogSegments, OffsetIndex, TimeIndex, ProducerStateManager (4.3).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from headrace.wire import batches
from headrace.wire.batches import HEADER_BYTES, BatchHeader, CorruptBatch, Record
from headrace.wire.checksums import crc32c
from headrace.wire.primitives import Reader

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_SEAL_BYTES = 4  # of Headrace, behind what Kafka reads
_SNAPSHOT_VERSION = 1
_SNAPSHOT_CRC_FROM = 6
_ENTRIES_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong with a file, in one line; `trailing` counts bytes at its end that are lost."""

    message: str
    trailing: int = 0


@dataclass(frozen=True, slots=True)
class Marker:
    """A control record: the end of a transaction."""

    offset: int
    timestamp: int
    key: bytes
    value: bytes

    @property
    def kind(self) -> str:
        """COMMIT, ABORT, or the number of another type."""
        number = Reader(self.key, 2).int16()
        return {0: "ABORT", 1: "COMMIT"}.get(number, str(number))

    @property
    def coordinator_epoch(self) -> int:
        return Reader(self.value, 2).int32()


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch at `position` of a segment; `data` is all of it, `damage` what is wrong with it."""

    position: int
    header: BatchHeader
    data: bytes
    damage: str | None

    def records(self) -> Iterator[Record | Marker]:
        """Its records. Raises: Malformed."""
        if self.header.is_control:
            payload = batches.payload(self.data, 0, self.header)
            source = Reader(payload)
            for _ in range(self.header.record_count):
                yield _marker(source, self.header)
        else:
            yield from batches.records(self.data)


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """One producer of a snapshot; `transaction_first` is -1 without an open transaction."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_first: int


def segment(path: Path, bytes_max: int) -> Iterator[Batch | Damage]:
    """The batches in the first `bytes_max` bytes of a `.log` file. Raises: OSError."""
    with path.open("rb") as file:
        size = path.stat().st_size
        position, following = 0, None
        while position < min(size, bytes_max):
            found = _batch_at(file, position, size)
            if isinstance(found, Damage):
                yield found
                return
            base = found.header.base_offset
            if following is not None and base < following:
                yield Damage(f"at byte {position} offset {base} follows {following - 1}")
            yield found
            position += found.header.size
            following = found.header.last_offset + 1


def _batch_at(file: BinaryIO, position: int, size: int) -> Batch | Damage:
    file.seek(position)
    head = file.read(HEADER_BYTES)
    try:
        header = batches.read_header(head)
        if header.size > size - position:
            raise CorruptBatch(f"a batch of {header.size} bytes, {size - position} are there")
    except CorruptBatch as error:
        return Damage(f"no whole batch at byte {position}: {error}", trailing=size - position)
    data = head + file.read(header.size - HEADER_BYTES)
    try:
        batches.verify(data, 0, header)
    except CorruptBatch as error:
        return Batch(position, header, data, str(error))
    return Batch(position, header, data, None)


def _marker(source: Reader, header: BatchHeader) -> Marker:
    source.varlong()
    source.int8()
    timestamp = header.base_timestamp + source.varlong()
    offset = header.base_offset + source.varlong()
    key, value = (bytes(source.take(max(source.varlong(), 0))) for _ in range(2))
    for _ in range(source.varlong()):
        source.take(source.varlong())
        source.take(max(source.varlong(), 0))
    return Marker(offset, timestamp, key, value)


def offset_index(path: Path) -> Iterator[tuple[int, int] | Damage]:
    """Offset and position of each entry of an `.index` file. Raises: OSError."""
    base = first_offset(path) or 0
    previous = (-1, -1)
    for entry in _entries(path, _OFFSET_ENTRY):
        if isinstance(entry, Damage):
            yield entry
            return
        relative, position = entry
        if relative <= previous[0] or position <= previous[1]:
            yield Damage(f"entry {relative}, {position} follows {previous[0]}, {previous[1]}")
        previous = (relative, position)
        yield base + relative, position


def time_index(path: Path) -> Iterator[tuple[int, int] | Damage]:
    """Timestamp and offset of each entry of a `.timeindex` file. Raises: OSError."""
    base = first_offset(path) or 0
    previous = (-1, -1)
    for entry in _entries(path, _TIME_ENTRY):
        if isinstance(entry, Damage):
            yield entry
            return
        timestamp, relative = entry
        if timestamp < previous[0] or relative < previous[1]:
            yield Damage(f"entry {timestamp}, {relative} follows {previous[0]}, {previous[1]}")
        previous = (timestamp, relative)
        yield timestamp, base + relative


def misplaced(path: Path, entries: Iterator[tuple[int, int] | Damage]) -> Iterator[Damage]:
    """Entries of an offset index that lead to no batch of its segment. Raises: OSError."""
    log = path.with_suffix(".log")
    if not log.exists():
        yield Damage(f"{log.name} is missing, so positions cannot be checked")
        return
    size = log.stat().st_size
    with log.open("rb") as file:
        for entry in entries:
            if isinstance(entry, Damage):
                yield entry
                continue
            offset, position = entry
            found = _batch_at(file, position, size)
            if isinstance(found, Damage) or not (
                found.header.base_offset <= offset <= found.header.last_offset
            ):
                yield Damage(f"offset {offset} is not in a batch at byte {position} of {log.name}")


def _entries(path: Path, layout: struct.Struct) -> Iterator[tuple[int, int] | Damage]:
    with path.open("rb") as file:
        while data := file.read(layout.size * _ENTRIES_AT_ONCE):
            whole = len(data) - len(data) % layout.size
            yield from layout.iter_unpack(data[:whole])
            if whole < len(data):
                rest = len(data) - whole
                yield Damage(f"{rest} bytes at the end are no entry", trailing=rest)


def producer_snapshot(path: Path) -> Iterator[ProducerEntry | Damage]:
    """The producers in a `.snapshot` file. Raises: OSError."""
    data = path.read_bytes()
    if len(data) < _SNAPSHOT_HEAD.size:
        yield Damage(f"{len(data)} bytes are no snapshot")
        return
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        yield Damage(f"version {version} is not known")
        return
    if crc32c(data[_SNAPSHOT_CRC_FROM:]) != crc:
        yield Damage("its checksum is wrong")
        return
    end = _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size
    if len(data) not in {end, end + _SNAPSHOT_SEAL_BYTES}:
        yield Damage(f"{len(data)} bytes do not hold {count} producers")
        return
    for fields in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size : end]):
        yield ProducerEntry(*fields)


def first_offset(path: Path) -> int | None:
    """The offset that names a file; None when something else does."""
    return int(path.stem) if path.stem.isdecimal() else None
