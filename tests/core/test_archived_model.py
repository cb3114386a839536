"""The lists of archived records against a second model: record by record; the journal is cut."""

from dataclasses import dataclass
from itertools import takewhile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.core import archived
from headrace.core.runs import State
from headrace.core.shard_words import (
    ClearArchived,
    On,
)
from headrace.core.share_words import (
    DeadLettered,
    LogStartMoved,
    Verdict,
)

from .archived_rig import KEY, REMOVED, Pruned


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


Lists.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestLists = Lists.TestCase
