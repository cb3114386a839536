"""What was archived without a dead letter is listed: when, how long, and against a second model."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.core import archived
from headrace.core.archived import Archive, ArchivedRun, PageForgotten
from headrace.core.leases import Staged
from headrace.core.runs import State
from headrace.core.shard import ShareShard
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
    Recovered,
    ReleaseMember,
    StageLease,
)
from headrace.core.share_group import Heartbeat, TopicView
from headrace.core.share_words import (
    Acknowledge,
    Acknowledged,
    Acquire,
    DeadLettered,
    LogStartMoved,
    Policy,
    ShareKey,
    Verdict,
)
from headrace.core.types import MemberId, Span, WallMs
from headrace.log.archived_records import ARCHIVED
from headrace.log.record_codec import ShareJournal

from .share_shard_rig import ShardRig

TOPIC, LOG_END, LIMIT = UUID(int=7), 1000, 2
KEY, ME = ShareKey("work", TOPIC, 0), MemberId("me")
LEASE = ("work", "checkpoint")
PAGE = ARCHIVED.to_bytes(2, "big")
REMOVED = "removed from the log, by retention or an administrator, before it was finished"
EXHAUSTED = f"delivery count limit {LIMIT} reached"


class Work(ShardRig):
    """A group that reads one topic from its start."""

    def __init__(self) -> None:
        self.dead_letters = False
        super().__init__()
        self.earliest = True

    def policy(self, group: str) -> Policy:
        return Policy(LIMIT, 1000, 500, 500, dead_letters=self.dead_letters)

    def topic(self, name: str) -> TopicView | None:
        return TopicView(TOPIC, (0,), (LOG_END,)) if name == "jobs" else None

    def join(self) -> None:
        self.ask(Heartbeat("work", ME, 0, frozenset({"jobs"})))

    def fetch(self, first: int, last: int, member: MemberId = ME) -> None:
        wanted = Acquire(member, [Span(first, last)], 1000, 500, exact=True, looked_from=first)
        self.ask(On(KEY, wanted))

    def say(self, verdict: Verdict, first: int, last: int, reason: str | None = None) -> Any:
        said = Acknowledged(Span(first, last), [verdict], reason)
        return self.ask(On(KEY, Acknowledge(ME, [said])))

    def runs(self) -> list[ArchivedRun]:
        found = self.shard.archive.lists.get(KEY)
        return [] if found is None else found.runs

    def listed(self) -> list[tuple[int, int, int, str, str, int]]:
        return [
            (one.span.first, one.span.last, one.deliveries, one.reason, one.member, one.at)
            for one in self.runs()
        ]

    def lost(self) -> int:
        return self.shard.archive.lists[KEY].dropped


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

    def run(first: int) -> ArchivedRun:
        return ArchivedRun(0, Span(first, first), 1, "r", MemberId(""), WallMs(0))

    for first in (0, 100):
        for event in archive.listed(KEY, [run(first + at) for at in range(0, 20, 2)]):
            archive.apply(event)
    found = archive.lists[KEY]
    assert [one.span.first for one in found.runs] == [108, 110, 112, 114, 116, 118]
    assert found.dropped == 14
    assert [type(one) for one in archive.forgotten(KEY)] == [PageForgotten] * 3


@dataclass(frozen=True)
class Seen:
    """A record in the second model's list."""

    offset: int
    deliveries: int
    reason: str


class Lists(RuleBasedStateMachine):
    """Records, one by one, beside the runs and pages of the machine; the journal is pruned."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(archived, "RUNS_PER_PAGE", 2)
        self.patch.setattr(archived, "PAGES_MAX", 3)
        self.work = Pruned()
        self.work.join()
        self.expected: list[Seen] = []

    def teardown(self) -> None:
        self.patch.undo()

    @initialize()
    def begin(self) -> None:
        self.work.fetch(0, 59)

    def held(self) -> list[int]:
        runs = self.work.shard.partitions[KEY].runs
        return [at for run in runs if run.state is State.ACQUIRED for at in run.span]

    @rule(dead_letters=st.booleans())
    def setting_changes(self, dead_letters: bool) -> None:
        self.work.dead_letters = dead_letters

    @rule(data=st.data(), reason=st.sampled_from(["a", "b"]))
    def some_are_rejected(self, data: st.DataObject, reason: str) -> None:
        held = self.held()
        if not held:
            return
        first = data.draw(st.sampled_from(held))
        wanted = range(first, first + data.draw(st.integers(1, 4)))
        span = list(takewhile(held.__contains__, wanted))
        counts = {at: self.work.shard.partitions[KEY].runs.at(at) for at in span}
        self.work.say(Verdict.REJECT, span[0], span[-1], reason)
        if not self.work.dead_letters:
            self.expected += [Seen(at, one.deliveries, reason) for at, one in counts.items() if one]

    @rule(first=st.integers(0, 90))
    def some_are_acquired(self, first: int) -> None:
        self.work.fetch(first, first + 20)

    @rule(trouble=st.sampled_from([None, "no room"]))
    def letters_are_written(self, trouble: str | None) -> None:
        runs = list(self.work.shard.partitions[KEY].runs)
        waiting = [run for run in runs if run.state is State.ARCHIVING]
        if trouble is not None:
            self.expected += [
                Seen(at, run.deliveries, f"{run.reason}; no dead letter: {trouble}")
                for run in waiting
                for at in run.span
            ]
        copied_to = "dlq.jobs-0" if trouble is None else None
        spans = [run.span for run in waiting]
        self.work.ask(On(KEY, DeadLettered(spans, copied_to, trouble or "")))

    @rule(ahead=st.integers(0, 15))
    def retention_overtakes(self, ahead: int) -> None:
        partition = self.work.shard.partitions[KEY]
        start = partition.start + ahead
        for at in range(partition.start, start):
            status = partition.runs.at(at)
            if status is None or not status.state.finished:
                why = f"{status.reason}; {REMOVED}" if status and status.reason else REMOVED
                self.expected.append(Seen(at, status.deliveries if status else 0, why))
        self.work.ask(On(KEY, LogStartMoved(start)))

    @rule(data=st.data())
    def somebody_clears(self, data: st.DataObject) -> None:
        runs = self.work.runs()
        if not runs:
            return
        last = data.draw(st.integers(0, len(runs) - 1))
        shown = sum(len(run.span) for run in runs)
        cleared = sum(len(run.span) for run in runs[: last + 1])
        self.expected = self.expected[len(self.expected) - shown + cleared :]
        self.work.ask(ClearArchived(KEY, runs[last].number))

    @rule(renew=st.booleans())
    def journal_is_pruned(self, renew: bool) -> None:
        self.work.prune(renew=renew)

    @rule()
    def process_dies(self) -> None:
        self.work.restart()

    @invariant()
    def list_is_what_the_model_has(self) -> None:
        shown = [
            Seen(at, run.deliveries, run.reason) for run in self.work.runs() for at in run.span
        ]
        lost = len(self.expected) - len(shown)
        assert shown == self.expected[lost:]
        if KEY in self.work.shard.archive.lists:
            assert self.work.lost() == lost
        else:
            assert lost == 0

    @invariant()
    def list_is_bounded_and_numbers_rise(self) -> None:
        numbers = [run.number for run in self.work.runs()]
        assert numbers == sorted(set(numbers))
        assert len(numbers) <= 6

    @invariant()
    def journal_rebuilds_the_lists(self) -> None:
        assert self.work.replayed().archive.lists == self.work.shard.archive.lists


class Pruned(Work):
    """With a journal that is cut at its front."""

    def __init__(self) -> None:
        self.start = self.known = 0
        super().__init__()

    def placed(self) -> Iterator[tuple[int, Any]]:
        return enumerate(self.records, self.start)

    def prune(self, *, renew: bool) -> None:
        self._place()
        if renew:
            self.ask(self.journal.cold(self.start + len(self.records), 10))
            self._place()
        needed = self.journal.needed_from(self.start + len(self.records))
        del self.records[: needed - self.start]
        self.start = max(self.start, needed)

    def replayed(self) -> ShareShard:
        shard = ShareShard(self)
        journal = ShareJournal(shard, pruned=self.start > 0)
        for entry in self.records:
            shard.apply_all(journal.events(entry.key, entry.value))
        return shard

    def restart(self) -> None:
        self.known = self.start
        self._new_process()
        for offset, entry in self.placed():
            self.shard.apply_all(self.journal.events(entry.key, entry.value))
            self.journal.placed(offset, entry.key, entry.value)
            self.known = offset + 1
        self.ask(Recovered())

    def _place(self) -> None:
        for offset, entry in self.placed():
            if offset >= self.known:
                self.journal.placed(offset, entry.key, entry.value)
                self.known = offset + 1

    def _new_process(self) -> None:
        self.shard = ShareShard(self)
        self.journal = ShareJournal(self.shard, 3, pruned=self.start > 0)


Lists.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestLists = Lists.TestCase
