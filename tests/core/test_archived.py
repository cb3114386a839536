"""What was archived without a dead letter is listed: when, how long, and against a second model."""

from typing import Any

import pytest

from headrace.core import archived
from headrace.core.archived import Archive, PageForgotten
from headrace.core.leases import Staged
from headrace.core.shard_words import (
    AcquireLease,
    AlterShareOffsets,
    ClearArchived,
    CommitLease,
    DeleteShareGroup,
    DeleteShareOffsets,
    ForgetTopic,
    On,
    OpenLease,
    ReleaseMember,
    StageLease,
)
from headrace.core.share_group import Heartbeat
from headrace.core.share_words import (
    Acquire,
    DeadLettered,
    LogStartMoved,
    ShareKey,
    Verdict,
)
from headrace.core.types import MemberId, Span, WallMs

from .archived_rig import EXHAUSTED, KEY, LEASE, LIMIT, ME, PAGE, REMOVED, TOPIC, Work


@pytest.fixture
def work() -> Work:
    found = Work()
    found.join()
    return found


def test_a_rejected_record_is_listed_with_who_had_it_and_when(work: Work) -> None:
    work.fetch(0, 9)
    work.mono = 700
    work.say(Verdict.REJECT, 3, 3, "not JSON")
    work.say(Verdict.ACCEPT, 0, 2)
    assert work.listed() == [(3, 3, 1, "not JSON", "me", 700)]
    assert work.shard.partitions[KEY].start == 4, "SPSO has passed it"


def test_neighbours_that_are_alike_are_one_run(work: Work) -> None:
    work.fetch(0, 9)
    for at in range(5):
        work.mono = at
        work.say(Verdict.REJECT, at, at)
    assert work.listed() == [(0, 4, 1, "rejected by the consumer", "me", 4)]
    assert work.runs()[0].number == 5
    work.say(Verdict.REJECT, 5, 5, "another")
    assert [one.span for one in work.runs()] == [Span(0, 4), Span(5, 5)]


@pytest.mark.parametrize("ends", ["release", "lock", "session"])
def test_an_exhausted_record_is_listed(work: Work, ends: str) -> None:
    for _ in range(LIMIT):
        work.fetch(0, 0)
        if ends == "release":
            work.say(Verdict.RELEASE, 0, 0)
        elif ends == "lock":
            work.elapse(1000)
        else:
            work.ask(ReleaseMember("work", ME))
    assert work.listed() == [(0, 0, LIMIT, EXHAUSTED, "me", work.mono)]


def test_what_a_lease_rejects_is_listed(work: Work) -> None:
    epoch = work.ask(OpenLease(LEASE, ("jobs",), earliest=True)).epoch
    work.ask(AcquireLease(LEASE, epoch, 1, 10))
    staged = (Staged(KEY, Span(4, 5), Verdict.REJECT, "poison"),)
    work.ask(StageLease(LEASE, epoch, 1, staged))
    work.ask(CommitLease(LEASE, epoch, 1))
    (run,) = work.runs()
    assert (run.span, run.reason) == (Span(4, 5), "poison")
    assert "checkpoint" in run.member


def test_a_gap_is_not_listed_nor_what_is_accepted_or_released(work: Work) -> None:
    work.fetch(0, 9)
    work.say(Verdict.GAP, 0, 0)
    work.say(Verdict.ACCEPT, 1, 1)
    work.say(Verdict.RELEASE, 2, 2)
    wanted = Acquire(ME, [Span(30, 30)], 1, 500, exact=True, looked_from=10)  # 10-29 compacted
    work.ask(On(KEY, wanted))
    assert work.listed() == []


def test_a_record_with_a_dead_letter_is_not_listed_and_one_that_got_none_is(work: Work) -> None:
    work.dead_letters = True
    work.fetch(0, 9)
    work.say(Verdict.REJECT, 0, 3, "not JSON")
    assert work.listed() == [], "they are on their way"
    work.ask(On(KEY, DeadLettered([Span(0, 1)], "dlq.jobs-0")))
    assert work.listed() == []
    work.ask(On(KEY, DeadLettered([Span(2, 3)], None, "dlq.jobs does not exist")))
    told = "not JSON; no dead letter: dlq.jobs does not exist"
    assert [one[:4] for one in work.listed()] == [(2, 3, 1, told)]


def test_what_retention_overtakes_is_listed_alike_in_portions(work: Work) -> None:
    work.fetch(0, 9)
    for offset in range(0, 10, 2):
        work.say(Verdict.RELEASE, offset, offset)
    starts = list[int]()
    while not starts or starts[-1] < 12:
        work.ask(On(KEY, LogStartMoved(12, runs_max=4)))
        starts.append(work.shard.partitions[KEY].start)
    assert starts == [4, 8, 12]
    found = [(one[0], one[1], one[4]) for one in work.listed()]
    each = [(offset, offset, "me" if offset % 2 else "") for offset in range(10)]
    assert found == [*each, (10, 11, "")]


def test_what_retention_overtakes_is_listed(work: Work) -> None:
    work.dead_letters = True
    work.fetch(0, 9)
    work.say(Verdict.ACCEPT, 0, 4)
    work.say(Verdict.RELEASE, 5, 5)
    work.say(Verdict.REJECT, 6, 6, "not JSON")
    work.ask(On(KEY, LogStartMoved(20)))
    assert [one[:5] for one in work.listed()] == [
        (5, 5, 1, REMOVED, ""),
        (6, 6, 1, f"not JSON; {REMOVED}", "me"),
        (7, 9, 1, REMOVED, "me"),
        (10, 19, 0, REMOVED, ""),
    ]
    work.ask(On(KEY, LogStartMoved(20)))
    assert len(work.listed()) == 4


def test_nothing_finished_is_listed_when_retention_overtakes_it(work: Work) -> None:
    work.fetch(0, 9)
    work.say(Verdict.ACCEPT, 0, 9)
    work.fetch(10, 12)
    work.say(Verdict.ACCEPT, 11, 12)
    work.ask(On(KEY, LogStartMoved(10)))
    assert work.listed() == []
    work.ask(On(KEY, LogStartMoved(13)))
    assert [one[:3] for one in work.listed()] == [(10, 10, 1)]


def test_a_list_outlives_the_process_and_a_reset(work: Work) -> None:
    work.fetch(0, 9)
    work.say(Verdict.REJECT, 0, 3)
    before = work.listed()
    work.restart()
    work.mono += 60_000
    assert work.ask(AlterShareOffsets("work", (("jobs", 0, 0),))) == (None,)
    assert work.listed() == before
    work.restart()
    assert work.listed() == before


@pytest.mark.parametrize(
    "command", [DeleteShareOffsets("work", ("jobs",)), DeleteShareGroup("work"), ForgetTopic(TOPIC)]
)
def test_a_list_goes_with_its_share_partition(work: Work, command: Any) -> None:
    work.fetch(0, 9)
    work.say(Verdict.REJECT, 0, 3)
    work.ask(Heartbeat("work", ME, -1))
    work.ask(command)
    assert not work.shard.archive.lists
    work.restart()
    assert not work.shard.archive.lists
    pages = {entry.key for entry in work.records if (entry.key or b"").startswith(PAGE)}
    gone = {entry.key for entry in work.records if entry.value is None}
    assert pages, "there was one"
    assert pages <= gone, "each has a tombstone, so that pruning is not held back"


def test_clearing_spares_what_came_since(work: Work) -> None:
    work.fetch(0, 9)
    work.say(Verdict.REJECT, 0, 0)
    seen = work.runs()[-1].number
    work.say(Verdict.REJECT, 1, 1)  # the run that was seen has grown
    work.ask(ClearArchived(KEY, seen))
    assert [one.span for one in work.runs()] == [Span(0, 1)]
    work.ask(ClearArchived(KEY, work.runs()[-1].number))
    assert work.runs() == []
    work.restart()
    work.fetch(0, 9)
    work.say(Verdict.REJECT, 5, 5)
    work.ask(ClearArchived(KEY, seen))
    assert [one.span for one in work.runs()] == [Span(5, 5)], "numbers are not used twice"
    work.ask(ClearArchived(ShareKey("nosuch", TOPIC, 0), 5))


def test_a_long_reason_is_cut(work: Work) -> None:
    work.fetch(0, 0)
    work.say(Verdict.REJECT, 0, 0, "x" * 5000)
    assert work.runs()[0].reason == "x" * 1000


def test_the_oldest_pages_go_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archived, "RUNS_PER_PAGE", 2)
    monkeypatch.setattr(archived, "PAGES_MAX", 3)
    work = Work()
    work.join()
    work.fetch(0, 99)
    for at in range(0, 40, 2):
        work.say(Verdict.REJECT, at, at)
    assert [one.span.first for one in work.runs()] == [28, 30, 32, 34, 36, 38]
    assert work.lost() == 14
    work.restart()
    assert (len(work.runs()), work.lost()) == (6, 14)
    work.ask(ClearArchived(KEY, work.runs()[-1].number))
    assert (work.runs(), work.lost()) == ([], 0)


def test_more_at_once_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archived, "RUNS_PER_PAGE", 2)
    monkeypatch.setattr(archived, "PAGES_MAX", 3)
    archive = Archive()

    alike = (1, "r", MemberId(""), WallMs(0))
    for first in (0, 100):
        offsets = range(first, first + 20, 2)
        for event in archive.listed(KEY, [(offset, offset, alike) for offset in offsets]):
            archive.apply(event)
    found = archive.lists[KEY]
    assert [one.span.first for one in found.runs] == [108, 110, 112, 114, 116, 118]
    assert found.dropped == 14
    assert [type(one) for one in archive.forgotten(KEY)] == [PageForgotten] * 3
