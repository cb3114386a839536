"""Redelivery near the delivery limit, as Apache Kafka 4.3.1 was seen to shrink it."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.redelivery import shrinks_from
from headrace.core.runs import State
from headrace.core.settling import Settling
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import Acquire, Acquired, Ended, Policy, ShareKey, Verdict
from headrace.core.spans import Spans
from headrace.core.types import MemberId, MonoMs, Now, Span, WallMs

MEMBER = MemberId("member")
TOPIC = UUID(int=1)
Seen = tuple[int, int, int]  # first, last, delivery


class Consumer:
    """One member that gets what there is and says the same of all of it."""

    def __init__(self, drive: Callable[..., Any], limit: int, records_max: int = 1000) -> None:
        self.share = drive(policy=Policy(delivery_limit=limit))
        self.records_max = records_max

    def poll(self, size: int) -> list[Seen]:
        command = Acquire(
            MEMBER, [Span(0, size - 1)], self.records_max, 10_000, exact=True, isolate=True
        )
        events = self.share.run(command)
        return [
            (first, last, event.deliveries)
            for event in events
            if isinstance(event, Acquired)
            for first, last in event.spans
        ]

    def release_all(self, size: int) -> list[list[Seen]]:
        """Each poll until nothing is left, of records that are released whenever they come."""
        polls = []
        while seen := self.poll(size):
            polls.append(seen)
            for first, last, _ in seen:
                self.share.say(Verdict.RELEASE, first, last)
        return polls


def singles(first: int, last: int, delivery: int) -> list[list[Seen]]:
    return [[(offset, offset, delivery)] for offset in range(first, last + 1)]


@pytest.mark.parametrize(
    ("limit", "size", "polls"),
    [
        (
            5,
            16,
            [
                [(0, 15, 1)], [(0, 15, 2)], [(0, 15, 3)], [(0, 7, 4)], *singles(0, 7, 5),
                [(8, 15, 4)], *singles(8, 15, 5),
            ],
        ),
        (
            10,
            500,
            [
                *([(0, 499, delivery)] for delivery in range(1, 6)), [(0, 249, 6)], [(0, 124, 7)],
                [(0, 61, 8)], [(0, 30, 9)], *singles(0, 30, 10),
            ],
        ),
        (4, 8, [[(0, 7, 1)], [(0, 7, 2)], [(0, 3, 3)], *singles(0, 3, 4), [(4, 7, 3)]]),
        (3, 4, [[(0, 3, 1)], [(0, 3, 2)], *singles(0, 3, 3)]),
        (2, 4, [[(0, 3, 1)], [(0, 3, 2)]]),
    ],
)  # fmt: skip
def test_deliveries_of_a_range_that_is_always_released(
    drive: Callable[..., Any], limit: int, size: int, polls: list[list[Seen]]
) -> None:
    """The table of the reference; of the largest limit only the first round."""
    consumer = Consumer(drive, limit)
    assert consumer.release_all(size)[: len(polls)] == polls


def test_a_suspect_is_never_given_behind_others(drive: Callable[..., Any]) -> None:
    consumer = Consumer(drive, 5)
    consumer.share.fetch(0, 3)
    for _ in range(2):  # 2 and 3 were delivered thrice, 0 and 1 once
        consumer.share.say(Verdict.RELEASE, 2, 3)
        consumer.share.fetch(2, 3)
    consumer.share.say(Verdict.RELEASE, 0, 3)
    assert consumer.poll(20) == [(0, 1, 2)]  # nor anything new behind it
    assert consumer.poll(20) == [(2, 2, 4)]


def test_the_limit_of_records_counts_too(drive: Callable[..., Any]) -> None:
    consumer = Consumer(drive, 6)
    for _ in range(3):
        consumer.share.fetch(0, 15)
        consumer.share.say(Verdict.RELEASE, 0, 15)
    consumer.records_max = 3
    assert consumer.poll(16) == [(0, 2, 4)]


def test_ranges_that_are_alike_are_acquired_together(drive: Callable[..., Any]) -> None:
    """One event of each stretch of them; those that come near the limit are lots of their own."""
    share = drive(policy=Policy(delivery_limit=6))
    asked = Acquire(MEMBER, [Span(0, 19)], 20, 20, exact=True, isolate=True)
    share.run(asked)
    for at in range(0, 20, 2):
        share.say(Verdict.RELEASE, at, at)
    for at in (8, 10):
        share.fetch(at, at)
        share.say(Verdict.RELEASE, at, at)
    events = [(one.spans, one.deliveries, one.lot) for one in share.run(asked)]
    assert events == [
        (Spans.of((0, 0), (2, 2), (4, 4), (6, 6)), 2, None),
        (Spans.of((8, 8)), 3, Span(8, 8)),
        (Spans.of((10, 10)), 3, Span(10, 10)),
        (Spans.of((12, 12), (14, 14), (16, 16), (18, 18)), 2, None),
    ]


def test_the_last_chance_is_alone(drive: Callable[..., Any]) -> None:
    consumer = Consumer(drive, 4)
    for _ in range(2):
        consumer.poll(8)
        consumer.share.say(Verdict.RELEASE, 0, 7)
    assert consumer.poll(8) == [(0, 3, 3)]
    consumer.share.say(Verdict.RELEASE, 2, 3)
    consumer.share.say(Verdict.ACCEPT, 0, 1)
    assert consumer.poll(8) == [(2, 2, 4)]
    assert consumer.poll(8) == [(3, 3, 4)]
    assert consumer.poll(8) == [(4, 7, 3)]


def test_renewal_and_release_keep_the_size_of_the_lot(drive: Callable[..., Any]) -> None:
    consumer = Consumer(drive, 10)
    for _ in range(5):
        consumer.poll(16)
        consumer.share.say(Verdict.RENEW, 4, 9)
        consumer.share.say(Verdict.RELEASE, 0, 15)
    consumer.poll(16)
    consumer.share.say(Verdict.ACCEPT, 0, 7)
    assert consumer.poll(16) == [(8, 15, 6)]  # half of 16, not of the 8 that are left


@pytest.mark.parametrize(
    ("accepted", "asked_to", "expected"),
    [
        ((1, 6), 7, [(0, 0, 4), (7, 7, 4)]),  # to the very last of the lot
        ((2, 3), 7, [(0, 1, 4), (4, 5, 4)]),  # half of it
        ((2, 3), 2, [(0, 1, 4)]),  # no further than was asked for
        ((0, 5), 15, [(6, 7, 4)]),  # not into what was never delivered with it
    ],
)
def test_what_is_left_of_a_lot_is_given_together(
    drive: Callable[..., Any], accepted: tuple[int, int], asked_to: int, expected: list[Seen]
) -> None:
    consumer = Consumer(drive, 5)
    for _ in range(2):
        consumer.poll(8)
        consumer.share.say(Verdict.RELEASE, 0, 7)
    consumer.poll(8)
    consumer.share.say(Verdict.ACCEPT, *accepted)
    for offset in set(range(8)) - set(range(accepted[0], accepted[1] + 1)):
        consumer.share.say(Verdict.RELEASE, offset, offset)
    consumer.share.fetch(8, 15)
    consumer.share.say(Verdict.RELEASE, 8, 15)
    assert consumer.poll(asked_to + 1) == expected


def test_what_is_finished_is_of_no_lot(drive: Callable[..., Any]) -> None:
    consumer = Consumer(drive, 4, records_max=4)
    for _ in range(2):
        assert len(consumer.poll(8) + consumer.poll(8)) == 2
        consumer.share.say(Verdict.RELEASE, 0, 7)
    consumer.share.fetch(0, 7)
    consumer.share.say(Verdict.ACCEPT, 1, 7)
    assert consumer.share.describe() == "SPSO=0, SPEO=8, 0 acquired 3, 1-7 acknowledged"


def test_leases_and_whoever_does_not_ask_get_all(drive: Callable[..., Any]) -> None:
    share = drive(policy=Policy(delivery_limit=3))
    for _ in range(3):
        assert share.fetch(0, 9) == [Span(0, 9)]
        share.say(Verdict.RELEASE, 0, 9)
    assert share.describe() == "SPSO=10, SPEO=10"


@given(
    limit=st.integers(2, 10),
    size=st.integers(1, 24),
    said=st.lists(
        st.sampled_from([Verdict.RELEASE, Verdict.ACCEPT, Verdict.REJECT]), min_size=1, max_size=40
    ),
    records_max=st.integers(1, 30),
)
def test_everything_is_finished_within_the_limit(
    limit: int, size: int, said: list[Verdict], records_max: int
) -> None:
    """However it shrinks: no record is given too often, skipped, or never."""
    share = SharePartition(ShareKey("group", TOPIC, 0), 0)
    policy, now = Policy(delivery_limit=limit), Now(MonoMs(0), WallMs(0))
    deliveries = [0] * size
    for turn in range(size * limit * 2 + 1):
        command = Acquire(MEMBER, [Span(0, size - 1)], records_max, 99, exact=True, isolate=True)
        events = share.decide(command, now, policy)
        assert isinstance(events, list)
        if not events:
            break
        share.apply_all(events)
        given_now = [event for event in events if isinstance(event, Acquired)]
        assert sum(event.records for event in given_now) <= records_max
        late = [event for event in given_now if event.deliveries > shrinks_from(limit)]
        assert not late or len({event.lot for event in given_now}) == 1
        spans = [(event, Span(*bounds)) for event in given_now for bounds in event.spans]
        for index, (event, span) in enumerate(spans):
            for offset in span:
                deliveries[offset] += 1
                assert deliveries[offset] == event.deliveries <= limit
            status = share.runs.at(span.first)
            assert status is not None
            assert status.state is State.ACQUIRED
            verdict = said[(turn + index) % len(said)]
            share.apply(Settling(share.key, policy, Ended.ACKNOWLEDGED)(span, status, verdict))
    assert share.start == size
    assert min(deliveries) >= 1
