"""Much at once: what a turn of the loop costs then. And one that comes back: who waits for it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from uuid import UUID

from headrace.core.runs import State
from headrace.core.share_group import TopicView
from headrace.core.share_words import (
    PORTION_RUNS,
    Acquire,
    Acquired,
    Policy,
    Settled,
    ShareKey,
    Started,
    Verdict,
)
from headrace.core.spans import Spans
from headrace.core.types import MemberId, MonoMs, Span

from .share_shard_rig import ShardRig

KEY = ShareKey("group", UUID(int=1), 0)
ANN, BOB = MemberId("ann"), MemberId("bob")
RECORDS, RECORDS_A_RUN = 1_000_000, 5
LOCK_MS = 30_000
TURN_LINES_MAX = 60_000  # of Python: some six milliseconds
LIMIT, WINDOW = 25, 100


class Storm(ShardRig):
    """A million records in flight, in the hands of two members by turns."""

    def __init__(self) -> None:
        super().__init__()
        self._take([Started(KEY, 0, 0)])
        holders = (ANN, BOB)
        locked: list[Any] = [
            Acquired(
                KEY,
                Spans.of((at, at + RECORDS_A_RUN - 1)),
                1,
                holders[at // 5 % 2],
                MonoMs(LOCK_MS),
            )
            for at in range(0, RECORDS, RECORDS_A_RUN)
        ]
        self.shard.apply_all(locked)

    def topic(self, name: str) -> TopicView | None:
        raise NotImplementedError

    @property
    def locks(self) -> int:
        return self.shard.partitions[KEY].runs.records[State.ACQUIRED]

    def turn(self) -> int:
        """What the runtime does when its alarm goes off; how many runs were settled."""
        events = list(self.shard.tick(self.now))
        self._take(events)
        assert len(self.records) <= 3, "the journal gets an update a turn, and a snapshot seldom"
        self.records.clear()
        return sum(isinstance(event, Settled) for event in events)


@contextmanager
def counting() -> Iterator[list[int]]:
    """Count the lines of Headrace that run: work, on whatever machine and however busy."""
    lines = [0]

    def line(frame: FrameType, what: str, _: object) -> Callable[..., Any]:
        lines[0] += what == "line"
        return line

    def call(frame: FrameType, what: str, argument: object) -> Callable[..., Any] | None:
        return line if "headrace" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield lines
    finally:
        sys.settrace(before)


def test_a_million_locks_that_end_at_once_hold_nobody_up() -> None:
    storm = Storm()
    assert storm.locks == RECORDS
    storm.mono = LOCK_MS
    turns, portion = 0, PORTION_RUNS * RECORDS_A_RUN
    while storm.locks:
        turns += 1
        assert storm.shard.next_deadline() == LOCK_MS, "the alarm goes off again at once"
        if turns % 50 == 1:
            with counting() as lines:
                assert storm.turn() == PORTION_RUNS
            assert PORTION_RUNS < lines[0] <= TURN_LINES_MAX
        else:
            storm.turn()
        assert storm.locks == max(RECORDS - turns * portion, 0)
    assert turns == RECORDS // portion
    partition = storm.shard.partitions[KEY]
    assert [(run.span, run.state, run.deliveries) for run in partition.runs] == [
        (Span(0, RECORDS - 1), State.AVAILABLE, 1)
    ]


def test_locks_that_end_one_by_one_cost_what_they_are() -> None:
    """Each in a turn of its own, however many others there are."""
    storm = Storm()
    storm.shard.apply_all([Settled(KEY, Span(0, RECORDS - 1), State.AVAILABLE, 1)])
    locks = 20_000
    storm.shard.apply_all(
        [Acquired(KEY, Spans.of((at, at)), 2, ANN, MonoMs(LOCK_MS + at)) for at in range(locks)]
    )
    for at in range(0, locks, locks // 4):
        storm.mono = LOCK_MS + at - 1
        while storm.turn():
            pass
        storm.mono += 1
        with counting() as lines:
            assert storm.turn() == 1
        assert lines[0] < locks // 4


def test_locks_that_were_short_leave_nothing_behind() -> None:
    """A deadline that comes first keeps those behind it from being met."""
    storm = Storm()
    first = RECORDS - 1
    storm.shard.apply_all([Settled(KEY, Span(0, first - 1), State.AVAILABLE, 1)])
    for at in range(10_000):
        until = MonoMs(LOCK_MS + 1 + at)
        storm.shard.apply(Acquired(KEY, Spans.of((0, 0)), 2, BOB, until))
        storm.shard.apply(Settled(KEY, Span(0, 0), State.AVAILABLE, 2))
    assert len(storm.shard._due) < 10
    assert storm.shard.next_deadline() == LOCK_MS
    storm.mono = LOCK_MS
    assert storm.turn() == 1
    assert storm.shard.next_deadline() is None


def test_a_poison_record_at_the_head_blocks_nobody(drive: Callable[..., Any]) -> None:
    """It stays with somebody until its lock ends, 25 times, and takes one place in the window."""
    share = drive(policy=Policy(delivery_limit=LIMIT, window=WINDOW))
    produced = 0

    def poll(member: MemberId) -> list[Span]:
        at = share.partition.next_fetch_offset()
        batches = [Span(at, produced - 1)] if at < produced else []
        asked = Acquire(member, batches, 10, WINDOW, exact=True, isolate=True)
        taken = [one for one in share.run(asked) if isinstance(one, Acquired)]
        return [Span(*bounds) for one in taken for bounds in one.spans]

    for delivery in range(1, LIMIT + 1):
        assert share.partition.start == 0
        produced += 3 * WINDOW
        (first, *others) = poll(ANN)
        assert first.first == 0
        for span in ([Span(1, first.last)] if len(first) > 1 else []) + others:
            share.say(Verdict.ACCEPT, span.first, span.last, ANN)
        while given := poll(BOB):
            for span in given:
                share.say(Verdict.ACCEPT, span.first, span.last, BOB)
        assert share.describe() == (
            f"SPSO=0, SPEO={produced}, 0 acquired {delivery}, 1-{produced - 1} acknowledged"
        )
        share.elapse(LOCK_MS)
    assert share.partition.start == produced


def test_poison_that_is_released_at_once_is_given_alone_and_is_over_soon(
    drive: Callable[..., Any],
) -> None:
    """One member, which gets it again before all others: every other poll, and 25 times at most."""
    share = drive(policy=Policy(delivery_limit=LIMIT, window=WINDOW))
    accepted, poisoned, polls = 0, 0, 0
    while accepted < WINDOW - 1:
        polls += 1
        at = share.partition.next_fetch_offset()
        asked = Acquire(ANN, [Span(at, WINDOW - 1)], 10, WINDOW, exact=True, isolate=True)
        for span in [Span(*bounds) for event in share.run(asked) for bounds in event.spans]:
            for offset in span:
                share.say(Verdict.ACCEPT if offset else Verdict.RELEASE, offset, offset, ANN)
                accepted, poisoned = accepted + bool(offset), poisoned + (not offset)
    assert poisoned <= LIMIT
    assert polls <= LIMIT + WINDOW // 10 + 1
