"""What `headrace share browse` prints: rows of records or runs as they come, and a summary.

Rows are printed as they are read, so that the first page of a queue of millions is there at once;
how wide columns are is settled by the first rows.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from headrace.cli.consume_format import formatter
from headrace.cli.ending import Trouble
from headrace.cli.group_deletion import for_share_group
from headrace.cli.share_browse_rows import (
    RECORD_COLUMNS,
    RUN_COLUMNS,
    Line,
    head_of_parts,
    in_a_row,
    record_line,
    record_object,
    run_line,
    run_object,
)
from headrace.cli.table import text_of
from headrace.cli.times import local
from headrace.cli.topic_partitions import spelled
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.offsets import TopicPartition
from headrace.client.share_browse import (
    BrowsedRecord,
    browse_share_group,
    browse_share_group_runs,
)
from headrace.client.share_records import (
    RecordState,
    describe_share_partitions,
)

_WIDTH_ROWS = 200  # the first ones, by which columns are made
_FINISHED = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})
_UNFINISHED = tuple(state for state in RecordState if state not in _FINISHED)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is shown of a group; `topics` as in `named_partitions`, all of them when it is empty.

    `shown` are the formatter properties of `consume`.
    """

    group: str
    topics: Mapping[str, Sequence[int] | None]
    states: tuple[RecordState, ...] | None
    from_offset: int
    rows_max: int | None
    as_runs: bool
    as_json: bool
    shown: Mapping[str, str]

    @property
    def places(self) -> list[str | TopicPartition] | None:
        """The topics as the client takes them."""
        found: list[str | TopicPartition] = []
        for topic, partitions in self.topics.items():
            found += [topic] if partitions is None else [(topic, one) for one in partitions]
        return found or None


def show(cluster: Cluster, wanted: Wanted) -> None:
    """Print it. Raises: Trouble; as the client."""
    text = formatter(wanted.shown, in_a_row)
    _require_queue(cluster, wanted)
    if wanted.as_runs:
        runs = browse_share_group_runs(
            wanted.group,
            topics=wanted.places,
            states=wanted.states,
            from_offset=wanted.from_offset,
        ).over(cluster)
        _print(islice(runs, wanted.rows_max), wanted, RUN_COLUMNS, run_line, run_object, b"REASON")
    else:
        records = browse_share_group(
            wanted.group,
            topics=wanted.places,
            states=wanted.states,
            from_offset=wanted.from_offset,
        ).over(cluster)

        def line(record: BrowsedRecord) -> Line:
            return record_line(record, text)

        head = head_of_parts(wanted.shown)
        _print(islice(records, wanted.rows_max), wanted, RECORD_COLUMNS, line, record_object, head)
    _sum_up(cluster, wanted)


def _require_queue(cluster: Cluster, wanted: Wanted) -> None:
    """Raises: Trouble where there is no queue to browse."""
    group = wanted.group
    try:
        found = describe_share_partitions(cluster, group, wanted.places)
        known = {place: one for place, one in found.items() if one is not None}
        if not known and wanted.topics:
            all_ = describe_share_partitions(cluster, group)
            known = {place: one for place, one in all_.items() if one is not None}
            if known:
                names = ", ".join(sorted({topic for topic, _ in known}))
                asked = ", ".join(wanted.topics)
                raise Trouble(f"group {group} does not read {asked}; it reads {names}")
    except BrokerError as error:
        raise for_share_group(error, group) from None
    if not known:
        raise Trouble(
            f"group {group} has not begun to read any topic; its queue begins with the first "
            "subscription, or with share-groups --reset-offsets"
        )


def _print(
    rows: Iterator[Any],
    wanted: Wanted,
    columns: Sequence[tuple[str, int]],
    line: Callable[[Any], Line],
    as_object: Callable[[Any], Mapping[str, Any]],
    head: bytes,
) -> None:
    out = sys.stdout.buffer
    if wanted.as_json:
        for row in rows:
            out.write(_json(as_object(row)))
        return
    first = [line(row) for row in islice(rows, _WIDTH_ROWS)]
    if not first:
        return
    widths = [
        max(least, *(len(text_of(cells[at])) for cells, _ in first))
        for at, (_, least) in enumerate(columns)
    ]
    names: Line = ([name for name, _ in columns], head + b"\n")
    for cells, rest in chain([names], first, map(line, rows)):
        padded = (f"{text_of(cell):<{width}}" for cell, width in zip(cells, widths, strict=True))
        text = " ".join(padded).encode(errors="replace")
        out.write(text + b" " + rest if rest.strip() else text.rstrip() + b"\n")
        if cells is first[-1][0]:
            out.flush()  # what follows may take its time


def _json(about: Mapping[str, Any]) -> bytes:
    return json.dumps(about, ensure_ascii=False).encode(errors="replace") + b"\n"


def _sum_up(cluster: Cluster, wanted: Wanted) -> None:
    """Print what all of the queue is by now, whatever was shown of it."""
    now = describe_share_partitions(cluster, wanted.group, wanted.places)
    records = dict.fromkeys(RecordState, 0)
    unfinished: list[TopicPartition] = []
    for place, one in now.items():
        for state, count in one.records.items() if one else ():
            records[state] += count
        if one is not None and any(one.records[state] for state in _UNFINISHED):
            unfinished.append(place)
    oldest = _oldest(cluster, wanted.group, unfinished)
    if wanted.as_json:
        sys.stdout.buffer.write(_json(_summary_object(wanted.group, records, oldest)))
        return
    counts = [f"{count} {state.lower()}" for state, count in records.items() if count]
    told = f"Group {wanted.group}: {', '.join(counts) or 'nothing is left'}"
    if oldest is not None:
        told += f"; the oldest unfinished is {spelled((oldest.topic, oldest.partition))}"
        told += f" offset {oldest.offset}"
        told += "" if oldest.timestamp is None else f", of {local(oldest.timestamp)}"
    sys.stdout.buffer.write(f"\n{told}.\n".encode(errors="replace"))


def _summary_object(
    group: str, records: Mapping[RecordState, int], oldest: BrowsedRecord | None
) -> Mapping[str, Any]:
    return {
        "type": "summary",
        "group": group,
        "records": {state.lower(): count for state, count in records.items()},
        "oldest_unfinished": oldest
        and {
            "topic": oldest.topic,
            "partition": oldest.partition,
            "offset": oldest.offset,
            "timestamp": oldest.timestamp,
        },
    }


def _oldest(cluster: Cluster, group: str, places: Sequence[TopicPartition]) -> BrowsedRecord | None:
    """The first unfinished record of each partition: the oldest of them."""
    found: list[BrowsedRecord] = []
    for place in places:
        walk = browse_share_group(group, topics=[place], states=_UNFINISHED)
        found += islice(walk.over(cluster), 1)
    return min(found, key=_age, default=None)


def _age(record: BrowsedRecord) -> int:
    return -1 if record.timestamp is None else record.timestamp
