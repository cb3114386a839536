"""The seed's tables on share-partitions, row by row: states, diagram, example, walkthrough."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.errors import Refused, Why
from headrace.core.runs import Run, State
from headrace.core.share_words import LogStartMoved, Policy, Reclaim, Verdict
from headrace.core.types import MemberId, Span

LOCK_MS = 30_000


def test_walkthrough_from_100_to_120(drive: Callable[..., Any]) -> None:
    share = drive(start=100)
    assert share.describe() == "SPSO=100, SPEO=100"

    assert share.fetch(100, 109) == [Span(100, 109)]
    assert share.describe() == "SPSO=100, SPEO=110, 100-109 acquired 1"

    share.say(Verdict.ACCEPT, 100, 109)
    assert share.describe() == "SPSO=110, SPEO=110"

    share.fetch(110, 112)
    share.mono += 1  # 111 and 112 get the earlier lock, so that they can end alone
    share.fetch(113, 119)
    assert "SPSO=110, SPEO=120" in share.describe()

    share.say(Verdict.RELEASE, 110, 110)
    share.say(Verdict.ACCEPT, 119, 119)
    assert share.describe() == (
        "SPSO=110, SPEO=120, 110 available 1, 111-112 acquired 1, 113-118 acquired 1, "
        "119 acknowledged"
    )

    share.mono += 1
    assert share.fetch(110, 120) == [Span(110, 110), Span(120, 120)]
    assert share.describe() == (
        "SPSO=110, SPEO=121, 110 acquired 2, 111-112 acquired 1, 113-118 acquired 1, "
        "119 acknowledged, 120 acquired 1"
    )

    share.elapse(LOCK_MS - 2)
    assert share.describe() == (
        "SPSO=110, SPEO=121, 110 acquired 2, 111-112 available 1, 113-118 acquired 1, "
        "119 acknowledged, 120 acquired 1"
    )

    share.say(Verdict.ACCEPT, 113, 118)
    assert share.describe() == (
        "SPSO=110, SPEO=121, 110 acquired 2, 111-112 available 1, 113-119 acknowledged, "
        "120 acquired 1"
    )

    assert share.fetch(110, 120) == [Span(111, 112)]
    share.say(Verdict.ACCEPT, 110, 110)
    assert share.describe() == (
        "SPSO=111, SPEO=121, 111-112 acquired 2, 113-119 acknowledged, 120 acquired 1"
    )

    share.say(Verdict.ACCEPT, 111, 112)
    assert share.describe() == "SPSO=120, SPEO=121, 120 acquired 1"


def test_walkthrough_as_the_seed_groups_its_fetches(drive: Callable[..., Any]) -> None:
    share = drive(start=110)
    share.fetch(110, 119)
    assert share.describe() == "SPSO=110, SPEO=120, 110-119 acquired 1"
    share.say(Verdict.RELEASE, 110, 110)
    assert share.describe() == "SPSO=110, SPEO=120, 110 available 1, 111-119 acquired 1"
    share.say(Verdict.ACCEPT, 119, 119)
    assert share.describe() == (
        "SPSO=110, SPEO=120, 110 available 1, 111-118 acquired 1, 119 acknowledged"
    )
    assert share.fetch(110, 120) == [Span(110, 110), Span(120, 120)]


def test_in_flight_example(drive: Callable[..., Any]) -> None:
    """Offsets 0 to 9 of the seed's figure, reached by the operations that it implies."""
    share = drive()
    share.fetch(0, 6)
    share.say(Verdict.ACCEPT, 0, 1)  # 0 and 1 are below SPSO: archived
    share.say(Verdict.RELEASE, 3, 3)
    share.fetch(3, 3)
    share.say(Verdict.RELEASE, 3, 3)  # 3 is available with delivery count 2
    share.say(Verdict.ACCEPT, 5, 5)
    share.say(Verdict.REJECT, 6, 6)
    share.fetch(7, 8)
    share.say(Verdict.RELEASE, 7, 8)
    assert share.describe() == (
        "SPSO=2, SPEO=9, 2 acquired 1, 3 available 2, 4 acquired 1, 5 acknowledged, "
        "6 archived, 7-8 available 1"
    )
    assert share.partition.next_fetch_offset() == 3
    assert share.fetch(2, 9) == [Span(3, 3), Span(7, 8), Span(9, 9)]


@pytest.mark.parametrize(
    ("verdict", "delivery", "state"),
    [
        (Verdict.ACCEPT, 1, State.ACKNOWLEDGED),
        (Verdict.ACCEPT, 5, State.ACKNOWLEDGED),
        (Verdict.RELEASE, 1, State.AVAILABLE),
        (Verdict.RELEASE, 4, State.AVAILABLE),
        (Verdict.RELEASE, 5, State.ARCHIVED),
        (Verdict.REJECT, 1, State.ARCHIVED),
        (Verdict.REJECT, 5, State.ARCHIVED),
        (Verdict.GAP, 1, State.ARCHIVED),
    ],
)
def test_state_diagram_of_a_holder(
    drive: Callable[..., Any], verdict: Verdict, delivery: int, state: State
) -> None:
    share = drive()
    share.fetch(0, 0, member="stuck")  # holds SPSO back, so that the outcome stays visible
    for _ in range(delivery - 1):
        share.fetch(1, 1)
        share.say(Verdict.RELEASE, 1, 1)
    assert share.fetch(1, 1) == [Span(1, 1)]
    share.say(verdict, 1, 1)
    assert _at(share, 1).state is state
    assert _at(share, 1).deliveries == delivery


@pytest.mark.parametrize(("delivery", "state"), [(1, State.AVAILABLE), (5, State.ARCHIVED)])
def test_state_diagram_of_the_acquisition_lock(
    drive: Callable[..., Any], delivery: int, state: State
) -> None:
    share = drive()
    share.fetch(0, 1)
    for _ in range(delivery - 1):
        share.elapse(LOCK_MS)
        share.fetch(0, 1)
    share.say(Verdict.RENEW, 0, 0)
    share.elapse(LOCK_MS - 1)
    assert _at(share, 1).state is State.ACQUIRED
    share.say(Verdict.RENEW, 0, 0)
    share.elapse(1)
    assert _at(share, 1).state is state


def test_renewal_restarts_the_lock_and_counts_no_delivery(drive: Callable[..., Any]) -> None:
    share = drive()
    share.fetch(0, 9)
    share.elapse(LOCK_MS - 1)
    share.say(Verdict.RENEW, 0, 4)
    share.elapse(1)
    assert share.describe() == "SPSO=0, SPEO=10, 0-4 acquired 1, 5-9 available 1"


def test_rejected_record_waits_for_its_dead_letter(drive: Callable[..., Any]) -> None:
    from headrace.core.share_words import DeadLettered

    share = drive(policy=Policy(dead_letters=True))
    share.fetch(0, 2)
    share.say(Verdict.REJECT, 0, 0)
    share.say(Verdict.ACCEPT, 1, 2)
    assert share.describe() == "SPSO=0, SPEO=3, 0 archiving, 1-2 acknowledged"
    share.run(DeadLettered([Span(0, 0)]))
    assert share.describe() == "SPSO=3, SPEO=3"


def test_window_bounds_unfinished_records_only(drive: Callable[..., Any]) -> None:
    share = drive(policy=Policy(window=100))
    share.fetch(0, 999)
    assert share.partition.end == 100
    assert share.fetch(0, 999) == []
    share.say(Verdict.ACCEPT, 1, 99)  # one stuck record does not stall the partition
    assert share.fetch(0, 999) == [Span(100, 198)]


def test_a_million_records_are_few_runs(drive: Callable[..., Any]) -> None:
    share = drive(policy=Policy(window=10_000_000))
    share.fetch(0, 999_999, records_max=1_000_000)
    for first in range(0, 1_000_000, 100_000):
        share.say(Verdict.RELEASE, first, first)
    assert len(share.partition.runs) == 20
    assert share.partition.unfinished == 1_000_000


@pytest.mark.parametrize(
    ("first", "last", "member", "why"),
    [
        (10, 10, "other", Why.NOT_THE_HOLDER),
        (10, 14, "member", Why.NOT_THE_HOLDER),  # 13 was released
        (13, 13, "member", Why.NOT_THE_HOLDER),
        (10, 20, "member", Why.INVALID_REQUEST),  # past the last in-flight record
        (20, 21, "member", Why.INVALID_REQUEST),  # begins past it
    ],
)
def test_acknowledgements_that_are_refused(
    drive: Callable[..., Any], first: int, last: int, member: str, why: Why
) -> None:
    share = drive(start=10)
    share.fetch(10, 19)
    share.say(Verdict.RELEASE, 13, 13)
    before = share.describe()
    answer = share.say(Verdict.ACCEPT, first, last, member)
    assert isinstance(answer, Refused)
    assert answer.why is why
    assert share.describe() == before


def test_acknowledgement_below_spso_is_silently_fine(drive: Callable[..., Any]) -> None:
    share = drive(start=10)
    share.fetch(10, 19)
    share.say(Verdict.ACCEPT, 10, 14)
    assert share.say(Verdict.ACCEPT, 10, 14) == []
    share.say(Verdict.ACCEPT, 10, 19)  # the part below SPSO is passed over
    assert share.describe() == "SPSO=20, SPEO=20"


def test_retention_moves_spso(drive: Callable[..., Any]) -> None:
    share = drive()
    share.fetch(0, 9)
    share.say(Verdict.RELEASE, 2, 3)
    share.run(LogStartMoved(5))
    assert share.describe() == "SPSO=5, SPEO=10, 5-9 acquired 1"
    share.run(LogStartMoved(50))
    assert share.describe() == "SPSO=50, SPEO=50"


def test_retention_moves_spso_in_portions(drive: Callable[..., Any]) -> None:
    share = drive()
    share.fetch(0, 9)
    share.say(Verdict.ACCEPT, 2, 3)
    share.say(Verdict.RELEASE, 6, 6)
    for start, rest in ((4, "4-5 acquired 1, "), (6, "")):  # the accepted records go along
        share.run(LogStartMoved(8, runs_max=1))
        assert share.describe() == f"SPSO={start}, SPEO=10, {rest}6 available 1, 7-9 acquired 1"
    share.run(LogStartMoved(8, runs_max=9))
    assert share.describe() == "SPSO=8, SPEO=10, 8-9 acquired 1"


def _at(share: Any, offset: int) -> Run:
    (run,) = share.partition.runs.within(Span(offset, offset))
    assert isinstance(run, Run)
    return run


def test_what_is_archived_no_lease_takes_back(drive: Callable[..., Any]) -> None:
    """Its lock lapsed with the last delivery that there may be."""
    share = drive(policy=Policy(delivery_limit=2))
    share.fetch(0, 0)
    share.fetch(1, 9, "lease")
    share.say(Verdict.RELEASE, 1, 9, "lease")
    share.fetch(1, 9, "lease")
    share.elapse(LOCK_MS - 1)
    share.say(Verdict.RENEW, 0, 0)
    share.elapse(1)
    assert share.describe() == "SPSO=0, SPEO=10, 0 acquired 1, 1-9 archived"
    assert share.run(Reclaim(MemberId("lease"), Span(1, 9), 2)) == []
