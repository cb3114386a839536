"""Offsets that compaction removed: passed over once, by nobody's hands, and not delivered again."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from headrace.core.errors import Refused
from headrace.core.runs import State
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import (
    Acknowledge,
    Acknowledged,
    Acquire,
    LogStartMoved,
    Policy,
    ShareKey,
    Verdict,
)
from headrace.core.types import MemberId, MonoMs, Now, Span, WallMs

MEMBER = MemberId("member")
NOW = Now(MonoMs(0), WallMs(0))


class Reader:
    """One member of a share-partition that begins at 0."""

    def __init__(self) -> None:
        self.share = SharePartition(ShareKey("group", UUID(int=1), 0), 0)

    def decide(self, command: Any) -> list[Any] | Refused:
        events = self.share.decide(command, NOW, Policy())
        for event in [] if isinstance(events, Refused) else events:
            self.share.apply(event)
        return events

    def take(self, *spans: tuple[int, int], to: int = -1, window: int = 1000) -> None:
        found = [Span(*one) for one in spans]
        at = self.share.next_fetch_offset()
        self.decide(Acquire(MEMBER, found, 1000, window, looked_from=at, looked_to=to))

    def say(self, verdict: Verdict, first: int, last: int) -> list[Any] | Refused:
        return self.decide(Acknowledge(MEMBER, [Acknowledged(Span(first, last), [verdict])]))

    def runs(self) -> Sequence[tuple[int, int, State]]:
        return [(run.span.first, run.span.last, run.state) for run in self.share.runs]


def test_a_gap_before_the_first_record_is_finished() -> None:
    reader = Reader()
    reader.take((10, 19))
    assert reader.runs() == [(10, 19, State.ACQUIRED)]
    assert reader.share.start == 10
    reader.take((30, 39))
    assert reader.share.next_fetch_offset() == 40
    reader.say(Verdict.ACCEPT, 10, 19)
    assert reader.share.start == 30


def test_where_nothing_is_left_the_end_is_reached_without_a_member() -> None:
    reader = Reader()
    reader.take(to=99)
    assert (reader.share.start, reader.share.end, reader.runs()) == (100, 100, [])


def test_released_records_in_a_gap_are_finished_and_held_ones_are_not() -> None:
    reader = Reader()
    reader.take((0, 9), (10, 19))
    reader.say(Verdict.RELEASE, 0, 4)
    reader.say(Verdict.RELEASE, 10, 14)
    reader.take((10, 19))
    assert [first for first, _, state in reader.runs() if state is State.ACQUIRED] == [5, 10, 15]
    assert reader.share.start == 5
    reader.say(Verdict.ACCEPT, 5, 19)
    assert reader.share.start == 20


def test_a_gap_takes_no_room_in_the_window() -> None:
    reader = Reader()
    reader.take((500, 504), window=5)
    assert reader.runs() == [(500, 504, State.ACQUIRED)]
    reader.take(to=600, window=5)
    assert reader.share.unfinished == 5
    assert reader.share.next_fetch_offset() == 601


def test_what_the_log_start_passed_is_acknowledged_without_effect() -> None:
    reader = Reader()
    reader.take((0, 9), (10, 19))
    reader.decide(LogStartMoved(5))
    assert (reader.share.start, reader.share.end) == (5, 20)
    assert reader.say(Verdict.REJECT, 0, 4) == []
    assert reader.say(Verdict.ACCEPT, 0, 9) != []
    assert reader.share.start == 10
    reader.decide(LogStartMoved(50))
    assert (reader.share.start, reader.share.end, reader.runs()) == (50, 50, [])
    assert reader.say(Verdict.RELEASE, 10, 19) == []
