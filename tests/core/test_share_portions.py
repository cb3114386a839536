"""What ends for very many runs at once goes in portions, and nothing is forgotten in between."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from headrace.core.errors import Refused
from headrace.core.runs import State
from headrace.core.shard import ShareShard
from headrace.core.shard_words import Command, Event, Forgotten, On, Outside, ReleaseMember
from headrace.core.share_words import (
    PORTION_RUNS,
    Acknowledge,
    Acknowledged,
    Acquire,
    Settled,
    ShareKey,
    Started,
    Verdict,
)
from headrace.core.types import MemberId, MonoMs, Now, Span, WallMs

KEYS = [ShareKey("group", UUID(int=number), 0) for number in (1, 2)]
GONE, OTHER = MemberId("gone"), MemberId("other")
LOCK_MS = 30_000
RUNS = 2 * PORTION_RUNS + 7


class Process:
    """A shard with two share-partitions, of which every second record is in the hands of GONE."""

    def __init__(self, outside: Outside) -> None:
        self.shard = ShareShard(outside)
        self.mono = 0
        self.shard.apply_all([Started(key, 0, 0) for key in KEYS])
        for key in KEYS:
            self.run(On(key, _acquire(GONE, 0, 2 * RUNS - 1)))
            said = [Acknowledged(Span(at, at), [Verdict.RELEASE]) for at in range(0, 2 * RUNS, 2)]
            self.run(On(key, Acknowledge(GONE, said)))
            self.run(On(key, _acquire(OTHER, 0, 0)))

    @property
    def now(self) -> Now:
        return Now(MonoMs(self.mono), WallMs(self.mono))

    def run(self, command: Command) -> Any:
        answer = self.shard.decide(command, self.now)
        if isinstance(answer, Refused):
            return answer
        self.shard.apply_all(answer.events)
        return answer.events

    def tick(self) -> list[Event]:
        events = list(self.shard.tick(self.now))
        self.shard.apply_all(events)
        return events

    def held(self, holder: MemberId) -> int:
        runs = (run for key in KEYS for run in self.shard.partitions[key].runs)
        return sum(1 for run in runs if run.holder == holder)

    def tick_on(self) -> list[int]:
        """Tick as long as something is due; how many events each tick made."""
        made: list[int] = []
        while self.is_due:
            made.append(len(self.tick()))
            assert len(made) < 20
        return made

    @property
    def is_due(self) -> bool:
        due = self.shard.next_deadline()
        return due is not None and due <= self.mono


def _acquire(member: MemberId, first: int, last: int) -> Acquire:
    return Acquire(member, [Span(first, last)], last - first + 1, 1 << 40, exact=True)


@pytest.fixture
def process(nowhere: Outside) -> Process:
    return Process(nowhere)


def test_locks_that_end_together_end_in_portions(process: Process) -> None:
    assert process.held(GONE) == 2 * RUNS
    process.mono += LOCK_MS
    portions = process.tick_on()
    assert max(portions) == PORTION_RUNS
    assert sum(portions) == 2 * RUNS + 2  # and those of the other member
    assert process.held(GONE) == process.held(OTHER) == 0
    assert process.shard.next_deadline() is None


def test_a_session_that_ended_is_released_in_portions(process: Process) -> None:
    first = process.run(ReleaseMember("group", GONE))
    assert len([event for event in first if isinstance(event, Settled)]) == PORTION_RUNS
    assert max(process.tick_on()) <= PORTION_RUNS
    assert process.held(GONE) == 0
    assert process.held(OTHER) == 2  # whose lock goes on
    assert process.shard.next_deadline() == LOCK_MS
    for key in KEYS:
        assert process.shard.partitions[key].runs.records[State.ACQUIRED] == 1


@pytest.mark.parametrize("change", [Forgotten, lambda key: Started(key, 5, 1)])
def test_nothing_is_due_of_a_share_partition_that_is_forgotten_or_reset_meanwhile(
    process: Process, change: Callable[[ShareKey], Event]
) -> None:
    process.run(ReleaseMember("group", GONE))
    process.shard.apply_all([change(key) for key in KEYS])
    assert process.shard.next_deadline() is None


def test_who_is_leaving_gets_nothing_and_who_came_back_does(process: Process) -> None:
    process.run(ReleaseMember("group", GONE))
    again = On(KEYS[1], _acquire(GONE, 0, 9))
    assert process.run(again) == []
    process.tick_on()
    assert len(process.run(again)) > 0
    assert not process.is_due


def test_what_it_settles_meanwhile_is_settled(process: Process) -> None:
    process.run(ReleaseMember("group", GONE))
    said = Acknowledged(Span(2 * RUNS - 1, 2 * RUNS - 1), [Verdict.ACCEPT])
    process.run(On(KEYS[1], Acknowledge(GONE, [said])))
    process.tick_on()
    status = process.shard.partitions[KEYS[1]].runs.at(2 * RUNS - 1)
    assert status is not None
    assert status.state is State.ACKNOWLEDGED
