"""Rows of `headrace share browse`: a record or a run as cells, and as a JSON object."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from headrace.cli.consume_format import AsMessage, Format
from headrace.cli.decoders import Undecodable, as_json
from headrace.cli.ending import Trouble
from headrace.cli.table import Cell, harmless, shortened, text_of
from headrace.cli.times import in_words
from headrace.cli.topic_partitions import spelled
from headrace.client.share_browse import BrowsedRecord
from headrace.client.share_records import BrowsedRun, RecordHolder, RecordState

_CREATE_TIME = 1
_PLACE = (("TOPIC", 8), ("PARTITION", 9))
_STATE = (("STATE", 12), ("DELIVERIES", 10), ("LOCK-LEFT", 9), ("HOLDER", 6))
RECORD_COLUMNS = (*_PLACE, ("OFFSET", 8), *_STATE)
RUN_COLUMNS = (
    *_PLACE, ("FIRST", 8), ("LAST", 8), ("RECORDS", 8), *_STATE,
    ("HELD", 6), ("CLIENT-ID", 9), ("HOST", 6),
)  # fmt: skip
_PARTS = ("timestamp", "partition", "offset", "delivery", "epoch", "headers", "key", "value")

Line = tuple[Sequence[Cell], bytes]  # cells, and what stands behind them


class _Told(Protocol):
    """What records and runs have in common."""

    @property
    def state(self) -> RecordState: ...
    @property
    def delivery_count(self) -> int: ...
    @property
    def holder(self) -> RecordHolder | None: ...
    @property
    def lock_left_ms(self) -> int | None: ...
    @property
    def lock_until(self) -> int | None: ...
    @property
    def acquired_at(self) -> int | None: ...
    @property
    def reason(self) -> str | None: ...


def record_line(record: BrowsedRecord, text: Format) -> Line:
    holder = record.holder
    who = None if holder is None else holder.session or holder.client_id or holder.member
    cells = (record.topic, record.partition, record.offset, *_state_cells(record), who)
    if record.damage is not None:
        return cells, f"(cannot be read: {record.damage})\n".encode(errors="replace")
    try:
        return cells, text(_as_message(record))
    except Undecodable as error:
        place = spelled((record.topic, record.partition))
        raise Trouble(f"{place} offset {record.offset}: {error}") from error


def _state_cells(one: _Told) -> tuple[Cell, Cell, Cell]:
    left = None if one.lock_left_ms is None else in_words(one.lock_left_ms)
    return one.state, one.delivery_count, left


def head_of_parts(shown: Mapping[str, str]) -> bytes:
    """The names of what the formatter prints of a record, between its own separators."""
    on = {"print.value": "true", **shown}
    names = [
        part.upper() for part in _PARTS if on.get(f"print.{part}", "").strip().lower() == "true"
    ]
    return shown.get("key.separator", "\t").join(names).encode()


def in_a_row(part: bytes) -> bytes:
    """What is shown of a key, a value or headers: their beginning, harmless to a terminal."""
    return harmless(shortened(part)).encode(errors="replace")


def record_object(record: BrowsedRecord) -> Mapping[str, Any]:
    return {
        "type": "record",
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_state_object(record),
        "headers": [[name, as_json(value)] for name, value in record.headers],
        "key": as_json(record.key),
        "value": as_json(record.value),
        "damage": record.damage,
    }


def _state_object(one: _Told) -> Mapping[str, Any]:
    holder = one.holder
    return {
        "state": one.state,
        "delivery_count": one.delivery_count,
        "holder": holder
        and {
            "member": holder.member,
            "client_id": holder.client_id,
            "host": holder.host,
            "session": holder.session,
        },
        "lock_left_ms": one.lock_left_ms,
        "lock_until": one.lock_until,
        "acquired_at": one.acquired_at,
        "reason": one.reason,
    }


def _as_message(record: BrowsedRecord) -> AsMessage:
    found = record.timestamp
    return AsMessage(record, (0, 0) if found is None else (_CREATE_TIME, found))


def run_line(run: BrowsedRun) -> Line:
    holder = run.holder or RecordHolder("")
    cells = (
        run.topic,
        run.partition,
        run.first,
        run.last,
        run.records,
        *_state_cells(run),
        holder.session or holder.member or None,
        _held(run),
        holder.client_id,
        holder.host,
    )
    return cells, text_of(run.reason or None).encode(errors="replace") + b"\n"


def _held(run: BrowsedRun) -> Cell:
    """How long the holder has had it, by the broker's clock."""
    if run.lock_until is None or run.lock_left_ms is None or run.acquired_at is None:
        return None
    return in_words(max(run.lock_until - run.lock_left_ms - run.acquired_at, 0))


def run_object(run: BrowsedRun) -> Mapping[str, Any]:
    place = {"type": "run", "topic": run.topic, "partition": run.partition}
    span = {"first": run.first, "last": run.last, "records": run.records}
    return place | span | dict(_state_object(run))
