"""The parts of a run: what counts as finished, when waiting ends, what is printed at the end."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from headrace.core.runs import State
from headrace.demo import run as demo
from headrace.demo.account import Evidence, settle
from headrace.demo.evidence import DeadLetter
from headrace.demo.figures import Delay, Figures
from headrace.demo.plan import Plan
from headrace.demo.producing import Produced
from headrace.demo.report import show
from headrace.demo.run import Outcome, PipelineFailed, finished, run, settled
from headrace.wire.leases import InFlight, SharePartition

WINDOW = (
    InFlight(10, 14, State.ACQUIRED, 1, "one"),
    InFlight(15, 24, State.ACKNOWLEDGED, 1, ""),
    InFlight(25, 25, State.ARCHIVING, 1, ""),
    InFlight(26, 27, State.ARCHIVED, 1, ""),
    InFlight(28, 29, State.AVAILABLE, 1, ""),
)


def test_what_is_below_spso_or_final_is_finished() -> None:
    partition = SharePartition("flights", 0, 10, 30, 40, WINDOW)
    assert finished(partition) == 10 + 10 + 2
    assert not settled(partition)


def test_a_partition_is_settled_when_spso_and_speo_are_the_log_end() -> None:
    assert settled(SharePartition("flights", 0, 40, 40, 40, ()))
    assert not settled(SharePartition("flights", 0, 39, 39, 40, ()))


class FakeQuery:
    """As much of a query as waiting looks at."""

    def __init__(self, *, active: bool = True) -> None:
        self.isActive = active

    def exception(self) -> str:
        return "the disk is full"


def wait(
    look: Callable[[], int | None], *, active: bool = True, stalled_after_s: float = 60
) -> None:
    demo._wait(cast(StreamingQuery, FakeQuery(active=active)), look, stalled_after_s)


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "LOOK_EVERY_S", 0.001)


def test_waiting_ends_when_everything_is_settled() -> None:
    looks = iter([1, 1, 2, None])
    wait(lambda: next(looks))
    assert list(looks) == []


def test_waiting_ends_when_the_query_does() -> None:
    with pytest.raises(PipelineFailed, match="the disk is full"):
        wait(lambda: 1, active=False)


def test_waiting_ends_when_nothing_moves() -> None:
    with pytest.raises(PipelineFailed, match="no record was finished"):
        wait(lambda: 7, stalled_after_s=0.02)


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(FileExistsError, match="not empty"):
        run(Plan(tmp_path), Console(quiet=True))


EVIDENCE = Evidence(
    produced=4,
    log_end=4,
    start=4,
    end=4,
    accepted=frozenset({0, 1, 3}),
    archived=frozenset({2}),
    undone=frozenset(),
    processed=[0, 1, 3],
    dead=[2],
)


def printed(evidence: Evidence) -> str:
    delay = Delay("Endeavor Air Inc.", 3, 4.0, 3.0, None, None)
    outcome = Outcome(
        Plan(Path("kept")),
        settle({0: evidence}, unprocessable=1),
        Figures([delay], [replace(delay, label="05")], 2),
        Produced(by_partition=Counter({0: 4}), seconds=2.0),
        [DeadLetter("delays", "flights", 0, 2, 1, "cancelled: no departure time")],
        kills=1,
        query_seconds=8.0,
        seconds=11.0,
    )
    console = Console(width=120, file=StringIO())
    show(outcome, console)
    return cast(StringIO, console.file).getvalue()


def test_an_outcome_that_adds_up_says_so() -> None:
    text = printed(EVIDENCE)
    assert "The account closes: 4 produced = 3 accepted + 1 rejected" in text
    assert "produced 4 records in 2.0 s (2/s), processed 4 records in 8.0 s (0/s)" in text
    assert "2 flights came on a later delivery" in text
    assert "killed 1 time," in text
    assert "Endeavor Air Inc." in text
    assert "cancelled: no departure time" in text


def test_an_outcome_that_does_not_add_up_says_what() -> None:
    text = printed(replace(EVIDENCE, dead=[]))
    assert "does not add up: partition 0: 1 record (2) archived but missing in the dead" in text
    assert "The account does not close." in text
