"""What `headrace share explain` prints: a record, what it is now, and a line for each delivery."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.cli.ending import Trouble, tell
from headrace.cli.offsets_journal import SHARE_TOPIC, Source
from headrace.cli.share_explain import COMMAND
from headrace.cli.share_explain_places import Ends, Log
from headrace.cli.table import Cell, Table, harmless, shortened
from headrace.cli.times import in_words, local
from headrace.client.share_records import BrowsedRun
from headrace.core.runs import State
from headrace.core.share_words import ShareKey
from headrace.log.share_history import Delivery, Happening, Outcome, RecordHistory, What
from headrace.wire.batches import Record
from headrace.wire.primitives import Malformed

_COLUMNS = (
    ("DELIVERY", 8), ("FROM", 29), ("UNTIL", 29), ("HELD", 7), ("OUTCOME", 12), ("HOLDER", 8),
    ("CLIENT", 8), ("NOTE", 0),
)  # fmt: skip
_LEFT_OPEN = (
    "Deliveries that ended with the broker's process were not written, and do not count;"
    " they are not told."
)

Told = dict[str, Any]


def show(source: Source, log: Log, group: str, *, as_json: bool) -> None:
    """Print it. Raises: Trouble for what there is not; as the source and the log."""
    topic, partition, offset = log.place
    ends = log.ends()
    if offset >= ends.end:
        raise Trouble(
            f"{topic}-{partition} ends at offset {ends.end}: there is no record {offset} yet"
        )
    history = RecordHistory(ShareKey(group, log.topic_id, partition), offset)
    count = 0
    for record in source.read():
        count += 1
        history.take(record, is_whole=source.records.whole_since is None)
    journal = f"{SHARE_TOPIC}-{source.partition}"
    if not count:
        raise Trouble(f"share group {group} is unknown: {journal} has no record of it")
    if not history.is_read:
        raise Trouble(
            f"share group {group} does not read {topic}-{partition}: {journal} knows nothing of it"
        )
    held = log.held(group)
    about = [
        _record(log, ends, group, source),
        _now(history, held, is_live=log.is_live),
        *(_told(one) for one in history.biography()),
    ]
    for line in map(json.dumps, about) if as_json else _text(about):
        print(line)
    if history.unreadable:
        tell(
            COMMAND,
            f"{len(history.unreadable)} records cannot be read, the first at offset"
            f" {history.unreadable[0]} of {journal}: a newer version wrote them",
        )


# ---- as JSON objects


def _record(log: Log, ends: Ends, group: str, source: Source) -> Told:
    topic, partition, offset = log.place
    since = source.records.whole_since
    about: Told = {
        "type": "record",
        "group": group,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "journal": f"{SHARE_TOPIC}-{source.partition}",
        "complete": since is None,
        "complete_since": None if since is None else local(since),
        "log_start": ends.start,
        "log_end": ends.end,
    }
    try:
        record = log.record() if offset >= ends.start else None
    except Malformed as error:
        return about | {"in_log": True, "damage": str(error)}
    return about | {"in_log": record is not None} | (_content(record) if record else {})


def _content(record: Record) -> Told:
    has_time = record.timestamp >= 0
    return {
        "timestamp": record.timestamp if has_time else None,
        "time": local(record.timestamp) if has_time else None,
        "key": None if record.key is None else shortened(record.key),
        "value": None if record.value is None else shortened(record.value),
        "value_bytes": None if record.value is None else len(record.value),
    }


def _now(history: RecordHistory, held: BrowsedRun | None, *, is_live: bool) -> Told:
    """What the record is; of a delivery under way a running broker alone knows."""
    if held is None:
        about = {"state": _state(history), "deliveries": history.deliveries}
        return {"type": "now"} | about | {"by": "broker" if is_live else "journal"}
    holder = held.holder
    return {
        "type": "now",
        "state": "acquired",
        "deliveries": held.delivery_count,
        "by": "broker",
        "holder": None if holder is None else (holder.session or holder.member),
        "client": None if holder is None or not holder.client_id
        else f"{holder.client_id} {holder.host}",
        "from": None if held.acquired_at is None else local(held.acquired_at),
        "from_timestamp": held.acquired_at,
        "lock_until": None if held.lock_until is None else local(held.lock_until),
        "lock_left_ms": held.lock_left_ms,
    }  # fmt: skip


def _state(history: RecordHistory) -> str:
    match history.state:
        case State.AVAILABLE | State.ACQUIRED:
            return "available"
        case State.ACKNOWLEDGED:
            return "accepted"
        case State.ARCHIVED | State.ARCHIVING as state:
            return state.name.lower()
    told = [one for one in history.biography() if isinstance(one, Happening)]
    match told[-1].what if told else None:
        case What.REMOVED:
            return "removed from the log, unfinished"
        case What.DELETED:
            return "forgotten"
        case What.RESET | What.STARTED:
            return "passed over"
    return "finished, or removed, before the journal begins"


def _told(one: Delivery | Happening) -> Told:
    if isinstance(one, Happening):
        return {
            "type": "happening",
            "time": local(one.at),
            "timestamp": one.at,
            "what": one.what.value,
            "state": None if one.state is None else one.state.name.lower(),
            "deliveries": one.deliveries,
            "start": one.start,
            "detail": one.detail,
        }
    return {
        "type": "delivery",
        "number": one.number,
        "from": None if one.since is None else local(one.since),
        "from_timestamp": one.since,
        "until": None if one.until is None else local(one.until),
        "until_timestamp": one.until,
        "outcome": None if one.outcome is None else one.outcome.value,
        "state": one.state.name.lower(),
        "reason": one.reason,
        "holder": one.session or one.holder,
        "client": one.client,
        "session": one.session,
        "seq": one.seq,
    }


# ---- as text


def _text(about: Sequence[Told]) -> Iterator[str]:
    record, now, *told = about
    place = f"{record['topic']}-{record['partition']}"
    yield harmless(f"Record {record['offset']} of {place} in share group {record['group']}.")
    yield harmless(f"Content: {_contents(record)}.")
    whole = (
        "complete" if record["complete"]
        else f"complete since {record['complete_since']}; what is older may be missing"
    )  # fmt: skip
    yield f"Journal: {record['journal']}, {whole}."
    yield harmless(f"Now: {_sentence(now)}.")
    yield ""
    table = Table(*_COLUMNS)
    for one in told:
        table.add(*(_happening(one) if one["type"] == "happening" else _delivery(one)))
    yield from (line.rstrip() for line in table.lines())
    yield ""
    yield _LEFT_OPEN


def _contents(record: Told) -> str:
    if not record["in_log"]:
        if record["offset"] < record["log_start"]:
            return f"no longer in the log, which begins at {record['log_start']}"
        return "there is no record at this offset"
    if "damage" in record:
        return f"cannot be read, the batch is damaged: {record['damage']}"
    told = [record["time"] or "no timestamp"]
    told.append("no key" if record["key"] is None else f"key {json.dumps(record['key'])}")
    if record["value"] is None:
        told.append("no value")
    else:
        shown = json.dumps(record["value"], ensure_ascii=False)
        told.append(f"value {shown} ({record['value_bytes']} bytes)")
    return ", ".join(told)


def _times(count: int) -> str:
    return f"delivered {count} time{'s' * (count != 1)}" if count else "never delivered"


_DELAYED = "delayed"  # the broker's name for who has what waits to be delivered again


def _sentence(now: Told) -> str:
    count = now["deliveries"]
    times = _times(count)
    state = now["state"]
    if state == "acquired":
        by = f"acquired by {now['holder']}" + (f" ({now['client']})" if now["client"] else "")
        left = now["lock_left_ms"]
        until = "" if left is None else f", until {now['lock_until']} (in {in_words(left)})"
        since = f" since {now['from']}" if now["from"] else ""
        if now["holder"] == _DELAYED:
            return f"released with a delay, {times}{until}"
        return f"{by}{since}, delivery {count}{until}"
    if state == "available":
        known = "" if now["by"] == "broker" else "; who may have it now, a running broker knows"
        return f"available, {times}{known}"
    return f"{state}, {times}" if count else state


def _happening(one: Told) -> Sequence[Cell]:
    notes = [] if one["start"] is None else [f"start offset {one['start']}"]
    if one["what"] == What.FOUND.value:
        notes.insert(0, _found(one))
    if one["detail"]:
        notes.append(one["detail"])
    return None, None, one["time"], None, one["what"], None, None, ", ".join(notes)


def _found(one: Told) -> str:
    state, count = one["state"], one["deliveries"]
    if state is None:
        return "finished before"
    return f"{state}, {_times(count)} before"


def _delivery(one: Told) -> Sequence[Cell]:
    since, until = one["from_timestamp"], one["until_timestamp"]
    held = None if since is None or until is None else in_words(max(until - since, 0))
    notes = [one["reason"]] if one["reason"] else []
    if notes and one["outcome"] not in (Outcome.REJECTED.value, Outcome.NO_RECORD.value):
        notes = [f"archived: {one['reason']}"]
    if one["seq"] is not None:
        notes.append(f"batch {one['seq']} of the lease")
    outcome = one["outcome"] or "acquired"
    cells = one["number"], one["from"], one["until"], held, outcome, one["holder"], one["client"]
    return *cells, ", ".join(notes)
