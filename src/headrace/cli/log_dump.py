"""Printing of what `log_files` reads: Kafka's lines, or a JSON object a line.

Source of the lines: Kafka's DumpLogSegments (4.3).
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.cli.decoders import Decoder, Undecodable
from headrace.cli.decoders import as_json as spelled
from headrace.cli.ending import tell
from headrace.cli.log_files import (
    Batch,
    Damage,
    Marker,
    ProducerEntry,
    first_offset,
    misplaced,
    offset_index,
    producer_snapshot,
    segment,
    time_index,
)
from headrace.wire.batches import TRANSACTIONAL, BatchHeader, Record
from headrace.wire.primitives import Malformed

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_TIMESTAMPS = ("CreateTime", "LogAppendTime")
_DELETE_HORIZON = 0x40
_SEQUENCES = 1 << 31
_COMMAND = "log dump"
Bytes = bytes | None
Decode = Callable[[Bytes, Bytes, int], tuple[str | Bytes, str | Bytes]]


@dataclass(frozen=True, slots=True)
class Raw:
    """Keys and payloads as they are, or by the names of Kafka's decoders."""

    key: Decoder
    value: Decoder

    def decode(self, key: Bytes, value: Bytes, offset: int) -> tuple[str | Bytes, str | Bytes]:  # noqa: ARG002 -- asked by Decode
        """Raises: Undecodable."""
        return (
            None if key is None else self.key(key),
            None if value is None else self.value(value),
        )


@dataclass(frozen=True, slots=True)
class Options:
    """What is printed. `checks_only`: of indexes only whether they are sound."""

    decode: Decode
    prints_data: bool
    is_deep: bool
    skips_metadata: bool
    checks_only: bool
    follows_index: bool
    bytes_max: int
    as_json: bool


class Dump:
    """Prints files one after the other.

    `damages` counts what was found wrong, `unread` has the reasons why files cannot be read.
    """

    def __init__(self, options: Options) -> None:
        self.damages = 0
        self.unread: list[str] = []
        self._options = options
        self._out = sys.stdout.buffer
        self._path = Path()

    def file(self, path: Path) -> None:
        """Print one file, or note why it cannot be read."""
        self._path = path
        printers = {
            ".log": self._segment,
            ".index": self._offset_index,
            ".timeindex": self._time_index,
            ".snapshot": self._snapshot,
        }
        self._line(f"Dumping {path}")
        try:
            if path.suffix in printers:
                printers[path.suffix]()
            elif not path.exists():
                self.unread.append(f"{path}: no such file; give files of a partition's folder")
            else:
                self.unread.append(f"{path}: is none of {', '.join(printers)} files")
        except BrokenPipeError:
            raise
        except OSError as error:
            self.unread.append(f"{path}: {error.strerror or error}")
        self._out.flush()

    def _segment(self) -> None:
        start = first_offset(self._path)
        if start is not None:
            self._line(f"Log starting offset: {start}")
        for found in segment(self._path, self._options.bytes_max):
            if isinstance(found, Damage):
                if found.trailing:
                    self._line(
                        f"Found {found.trailing} invalid bytes at the end of {self._path.name}"
                    )
                self._damage(found.message)
                continue
            self._batch(found)
            if found.damage is not None:
                self._damage(f"at byte {found.position}: {found.damage}")
            elif self._options.is_deep:
                self._records(found)

    def _batch(self, batch: Batch) -> None:
        about = _about_batch(batch)
        if self._options.as_json:
            self._object({"type": "batch", **about})
            return
        about["deleteHorizonMs"] = _optional(about["deleteHorizonMs"])
        self._line(" ".join(f"{name}: {_java(value)}" for name, value in about.items()))

    def _records(self, batch: Batch) -> None:
        try:
            for record in batch.records():
                if isinstance(record, Marker):
                    self._marker(record, batch.header)
                else:
                    self._record(record, batch.header)
        except Malformed as error:
            self._damage(f"at byte {batch.position}: {error}")

    def _record(self, record: Record, header: BatchHeader) -> None:
        about = _about_record(record, header)
        key, value = self._decoded(record)
        if self._options.as_json:
            about["headers"] = [[name, spelled(data)] for name, data in record.headers]
            if self._options.prints_data:
                about |= {"key": _parsed(key), "payload": _parsed(value)}
            self._object({"type": "record", **about})
            return
        names = ",".join(name for name, _ in record.headers)
        parts = [] if self._options.skips_metadata else [_text(about), f"headerKeys: [{names}]"]
        line = b"| " + " ".join(parts).encode()
        if self._options.prints_data:
            between = b"" if self._options.skips_metadata else b" "
            for what, data in ((b"key: ", key), (b"payload: ", value)):
                if data is not None:
                    line += between + what + _encoded(data)
                    between = b" "
        self._out.write((b"" if line == b"| " else line) + b"\n")

    def _decoded(self, record: Record) -> tuple[str | Bytes, str | Bytes]:
        if not self._options.prints_data:
            return None, None
        try:
            return self._options.decode(record.key, record.value, record.offset)
        except (Malformed, Undecodable) as error:
            self._damage(f"offset {record.offset} cannot be decoded: {error}")
            return record.key, record.value

    def _marker(self, marker: Marker, header: BatchHeader) -> None:
        if self._options.skips_metadata:
            self._line("")
            return
        about = {
            "offset": marker.offset,
            _TIMESTAMPS[header.timestamp_type]: marker.timestamp,
            "keySize": len(marker.key),
            "valueSize": len(marker.value),
            "sequence": -1,
        }
        end = {"endTxnMarker": marker.kind, "coordinatorEpoch": marker.coordinator_epoch}
        if self._options.as_json:
            self._object({"type": "marker", **about, **end})
        else:
            self._line(f"| {_text(about)} headerKeys: [] {_text(end)}")

    def _offset_index(self) -> None:
        if self._options.follows_index:
            for damage in misplaced(self._path, offset_index(self._path)):
                self._damage(damage.message)
        self._entries(offset_index(self._path), ("offset", "position"))

    def _time_index(self) -> None:
        self._entries(time_index(self._path), ("timestamp", "offset"))

    def _entries(self, entries: Iterator[tuple[int, int] | Damage], names: tuple[str, str]) -> None:
        count, damages = 0, self.damages
        for entry in entries:
            if isinstance(entry, Damage):
                self._damage(entry.message)
                continue
            count += 1
            about = dict(zip(names, entry, strict=True))
            if self._options.checks_only:
                continue
            if self._options.as_json:
                self._object({"type": "index entry", **about})
            else:
                self._line(_text(about))
        if self._options.checks_only and damages == self.damages:
            self._line(f"{self._path} passed sanity check.")
        elif count == 0 and names[0] == "offset":
            self._line(f"{self._path} is empty.")

    def _snapshot(self) -> None:
        for entry in producer_snapshot(self._path):
            if isinstance(entry, Damage):
                self._damage(entry.message)
            elif self._options.as_json:
                self._object({"type": "producer", **asdict(entry)})
            else:
                self._line(_text(_about_producer(entry)))

    def _line(self, text: str) -> None:
        """A line of text; those that JSON objects replace or do not need are left out there."""
        if not self._options.as_json:
            self._out.write(text.encode() + b"\n")

    def _object(self, about: dict[str, Any]) -> None:
        line = json.dumps({"file": str(self._path), **about}, ensure_ascii=False)
        self._out.write(line.encode(errors="replace") + b"\n")

    def _damage(self, message: str) -> None:
        self._out.flush()
        self.damages += 1
        tell(_COMMAND, f"{self._path}: {message}")


def _about_batch(batch: Batch) -> dict[str, Any]:
    header = batch.header
    last_sequence = header.base_sequence
    if last_sequence >= 0:
        last_sequence = (last_sequence + header.last_offset_delta) % _SEQUENCES
    return {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.leader_epoch,
        "isTransactional": bool(header.attributes & TRANSACTIONAL),
        "isControl": header.is_control,
        "deleteHorizonMs": header.base_timestamp if header.attributes & _DELETE_HORIZON else None,
        "position": batch.position,
        _TIMESTAMPS[header.timestamp_type]: header.max_timestamp,
        "size": header.size,
        "magic": header.magic,
        "compresscodec": _CODECS[header.codec] if header.codec < len(_CODECS) else header.codec,
        "crc": header.crc,
        "isvalid": batch.damage is None,
    }


def _about_record(record: Record, header: BatchHeader) -> dict[str, Any]:
    sequence = header.base_sequence
    if sequence >= 0:
        sequence = (sequence + record.offset - header.base_offset) % _SEQUENCES
    return {
        "offset": record.offset,
        _TIMESTAMPS[header.timestamp_type]: record.timestamp,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
        "sequence": sequence,
    }


def _about_producer(entry: ProducerEntry) -> dict[str, Any]:
    return {
        "producerId": entry.producer_id,
        "producerEpoch": entry.epoch,
        "coordinatorEpoch": entry.coordinator_epoch,
        "currentTxnFirstOffset": _optional(entry.transaction_first),
        "lastTimestamp": entry.timestamp,
        "firstSequence": (entry.last_sequence - entry.offset_delta) % _SEQUENCES,
        "lastSequence": entry.last_sequence,
        "lastOffset": entry.last_offset,
        "offsetDelta": entry.offset_delta,
        "timestamp": entry.timestamp,
    }


def _text(about: dict[str, Any]) -> str:
    return " ".join(f"{name}: {value}" for name, value in about.items())


def _java(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None or value < 0 else f"OptionalLong[{value}]"


def _encoded(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _parsed(data: str | Bytes) -> Any:
    """A decoded record in JSON: an object where a journal's decoder made one."""
    if not isinstance(data, str):
        return spelled(data)
    return json.loads(data) if data.startswith("{") else data
