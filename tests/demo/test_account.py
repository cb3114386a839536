"""The account closes for a clean run, and each way of not adding up is found and named."""

from dataclasses import replace
from typing import Any

import pytest

from headrace.demo.account import Evidence, settle

CLEAN = Evidence(
    produced=6,
    log_end=6,
    start=6,
    end=6,
    accepted=frozenset({0, 1, 3, 5}),
    archived=frozenset({2, 4}),
    undone=frozenset(),
    processed=[0, 1, 3, 5],
    dead=[4, 2],
)


def complaints(unprocessable: int = 2, **changed: Any) -> tuple[str, ...]:
    return settle({0: replace(CLEAN, **changed)}, unprocessable=unprocessable).complaints


def test_a_clean_run_closes() -> None:
    account = settle({1: CLEAN, 0: CLEAN}, unprocessable=4)
    assert account.closes
    assert (account.produced, account.accepted, account.rejected) == (12, 8, 4)
    assert list(account.partitions) == [0, 1]


def test_an_empty_partition_closes() -> None:
    nothing: frozenset[int] = frozenset()
    empty = Evidence(0, 0, 0, 0, nothing, nothing, nothing, [], [])
    assert settle({0: empty}, unprocessable=0).closes


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"accepted": frozenset({0, 1, 3}), "processed": [0, 1, 3]},
            "1 record (5) never finished",
        ),
        (
            {"accepted": frozenset(range(6)) - {4}, "processed": [0, 1, 2, 3, 5]},
            "1 record (2) both accepted and archived",
        ),
        ({"undone": frozenset({1})}, "1 record (1) finished and then changed"),
        (
            {"accepted": frozenset({0, 1, 3, 5, 6}), "processed": [0, 1, 3, 5, 6]},
            "1 record (6) finished beyond the end of the log",
        ),
        ({"processed": [5]}, "3 records (0-1, 3) accepted but missing in the Parquet output"),
        ({"processed": range(6)}, "2 records (2, 4) in the Parquet output but not accepted"),
        ({"processed": [0, 1, 1, 3, 5]}, "1 record (1) more than once in the Parquet output"),
        ({"dead": [2]}, "1 record (4) archived but missing in the dead-letter topic"),
        ({"dead": [2, 4, 5]}, "1 record (5) in the dead-letter topic but not archived"),
        ({"dead": [2, 2, 4]}, "1 record (2) more than once in the dead-letter topic"),
        ({"produced": 7}, "7 records were confirmed, the log ends at 6"),
        ({"start": 5}, "SPSO 5, SPEO 6 and log end 6 are not the same"),
        ({"end": 7}, "SPSO 6, SPEO 7 and log end 6 are not the same"),
    ],
)
def test_what_does_not_add_up_is_said(changed: dict[str, Any], words: str) -> None:
    assert complaints(**changed) == (f"partition 0: {words}",)


def test_a_record_that_should_have_been_rejected_is_missed() -> None:
    assert complaints(unprocessable=3) == (
        "2 records were rejected, 3 of the input cannot be processed",
    )


def test_many_offsets_are_told_by_their_first_spans() -> None:
    [complaint] = complaints(
        produced=30,
        log_end=30,
        start=30,
        end=30,
        accepted=frozenset(range(1, 30, 2)),
        processed=range(1, 30, 2),
        archived=frozenset({2, 4}),
    )
    assert complaint == "partition 0: 13 records (0, 6, 8, 10, 12, ...) never finished"
