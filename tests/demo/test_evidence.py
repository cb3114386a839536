"""What the readers make of a journal, of dead letters and of Parquet files."""

from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.core.runs import State
from headrace.core.share_words import ShareKey
from headrace.core.types import Span
from headrace.demo.evidence import (
    BadDeadLetter,
    DeadLetter,
    Verdicts,
    dead_letter,
    processed,
    reasons,
)
from headrace.log.record_codec import ShareRecord, StateBatch

KEY = ShareKey("delays", UUID(int=7), 0)


def verdicts(*states: tuple[int, int, State]) -> Verdicts:
    """The verdicts of a journal with one record for each (first, last, state)."""
    found = Verdicts()
    for first, last, state in states:
        batch = StateBatch(Span(first, last), state, 1)
        found.add(ShareRecord(KEY, 0, None, 0, (batch,)))
    return found


def test_the_last_verdict_of_each_offset_counts() -> None:
    found = verdicts(
        (0, 5, State.AVAILABLE),
        (0, 2, State.ACKNOWLEDGED),
        (3, 3, State.ARCHIVING),
        (3, 3, State.ARCHIVED),
        (4, 5, State.ACKNOWLEDGED),
    )
    assert found.offsets(State.ACKNOWLEDGED) == {0, 1, 2, 4, 5}
    assert found.offsets(State.ARCHIVED) == {3}
    assert found.undone == set()


def test_a_snapshot_may_repeat_what_is_known() -> None:
    found = verdicts((0, 2, State.ACKNOWLEDGED), (0, 2, State.ACKNOWLEDGED))
    assert found.undone == set()


@pytest.mark.parametrize(
    ("finished", "later"),
    [
        (State.ACKNOWLEDGED, State.AVAILABLE),
        (State.ACKNOWLEDGED, State.ARCHIVED),
        (State.ARCHIVED, State.ACKNOWLEDGED),
        (State.ARCHIVED, State.AVAILABLE),
        (State.ARCHIVING, State.AVAILABLE),
    ],
)
def test_a_finished_record_that_changes_is_found(finished: State, later: State) -> None:
    assert verdicts((0, 9, finished), (4, 5, later)).undone == {4, 5}


HEADERS = [
    ("__dlq.errors.group", b"delays"),
    ("__dlq.errors.topic", b"flights"),
    ("__dlq.errors.partition", b"3"),
    ("__dlq.errors.offset", b"41"),
    ("__dlq.errors.delivery.count", b"1"),
    ("__dlq.errors.message", b"cancelled: no departure time"),
]


def test_a_dead_letter_says_where_it_came_from_and_why() -> None:
    expected = DeadLetter("delays", "flights", 3, 41, 1, "cancelled: no departure time")
    assert dead_letter([("of the record itself", None), *HEADERS]) == expected


@pytest.mark.parametrize("missing", range(len(HEADERS)))
def test_a_dead_letter_without_one_of_its_headers_is_not_taken(missing: int) -> None:
    with pytest.raises(BadDeadLetter):
        dead_letter(HEADERS[:missing] + HEADERS[missing + 1 :])


def test_all_parquet_files_are_read_and_doubles_are_kept(tmp_path: Path) -> None:
    for batch, offsets in enumerate([[0, 1], [1, 2]]):
        folder = tmp_path / f"batch_id={batch}"
        folder.mkdir()
        table = pa.table({"partition": pa.array([0, 1], pa.int32()), "offset": offsets})
        pq.write_table(table, folder / "part-0.parquet")
    assert processed(tmp_path) == {0: [0, 1], 1: [1, 2]}
    assert processed(tmp_path / "absent") == {}


def test_reasons_are_counted_by_kind() -> None:
    told = [
        "cancelled: no departure time",
        "JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "cancelled: no departure time",
        "JSONDecodeError: Unterminated string starting at: line 1 column 88 (char 87)",
        "JSONDecodeError: Expecting value: line 1 column 9 (char 8)",
        "cancelled: no departure time",
    ]
    assert reasons(DeadLetter("delays", "flights", 0, 0, 1, reason) for reason in told) == [
        ("cancelled: no departure time", 3),
        ("JSONDecodeError: Expecting value", 2),
        ("JSONDecodeError: Unterminated string starting at", 1),
    ]
