"""Idempotent producers: the table of what a partition answers (reference: Apache Kafka 4.3.1)."""

import pytest

from headrace.core.types import WallMs
from headrace.log.producers import Duplicate, Fenced, OutOfOrder, Producers
from headrace.wire import batches
from headrace.wire.batches import BatchHeader, Record

HEADER = batches.read_header(batches.build([Record(0, 0, None, None)]))
SEQUENCES = 1 << 31


def batch(sequence: int, count: int = 1, *, epoch: int = 3, producer: int = 7) -> BatchHeader:
    return HEADER._replace(
        producer_id=producer, producer_epoch=epoch, base_sequence=sequence,
        record_count=count, last_offset_delta=count - 1,
    )  # fmt: skip


@pytest.fixture
def known() -> Producers:
    """Producer 7 in epoch 3 has written seven batches of two; the last has sequences 12 and 13."""
    producers = Producers()
    for n in range(7):
        producers.record(batch(2 * n, 2), 100 + 2 * n)
    return producers


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        pytest.param(batch(14), None, id="the next"),
        pytest.param(batch(12, 2), Duplicate, id="the last again"),
        pytest.param(batch(4, 2), Duplicate, id="the fifth last again"),
        pytest.param(batch(2, 2), OutOfOrder, id="the sixth last again"),
        pytest.param(batch(15), OutOfOrder, id="a gap"),
        pytest.param(batch(12, 3), OutOfOrder, id="the last again, longer"),
        pytest.param(batch(0, epoch=4), None, id="a new epoch from 0"),
        pytest.param(batch(14, epoch=4), OutOfOrder, id="a new epoch from elsewhere"),
        pytest.param(batch(14, epoch=2), Fenced, id="an old epoch"),
        pytest.param(batch(55, producer=8), None, id="an unknown producer, anywhere"),
        pytest.param(batch(-1, producer=-1), None, id="no producer"),
    ],
)
def test_the_table(known: Producers, asked: BatchHeader, answer: type | None) -> None:
    found = known.check(asked)
    assert found is None if answer is None else isinstance(found, answer)


def test_a_duplicate_names_the_first_offset_it_got(known: Producers) -> None:
    assert known.check(batch(6, 2)) == Duplicate(106)


def test_a_new_epoch_forgets_the_batches_of_the_old(known: Producers) -> None:
    known.record(batch(0, 2, epoch=4), 200)
    assert isinstance(known.check(batch(12, 2, epoch=3)), Fenced)
    assert isinstance(known.check(batch(12, 2, epoch=4)), OutOfOrder)
    assert known.check(batch(2, epoch=4)) is None


def test_sequences_wrap() -> None:
    producers = Producers()
    producers.record(batch(SEQUENCES - 2, 4), 0)
    assert producers.check(batch(2)) is None
    assert isinstance(producers.check(batch(SEQUENCES - 2, 4)), Duplicate)
    assert isinstance(producers.check(batch(SEQUENCES - 1)), OutOfOrder)


def test_a_producer_whose_clock_is_behind_is_not_silent() -> None:
    producers, day = Producers(), 86_400_000
    header = batch(0)._replace(max_timestamp=0)
    producers.record(header, 100, is_live=True)
    for now, forgotten in ((100 * day, 0), (101 * day - 1, 0), (101 * day, 1)):
        assert producers.expire(WallMs(now), day) == forgotten


def test_a_clock_that_is_in_doubt_and_set_forward_ages_no_producer() -> None:
    """The earlier time advances by days while the wall clock is behind trusted time."""
    producers, day = Producers(), 86_400_000
    producers.record(batch(0)._replace(max_timestamp=0), 100, is_live=True)
    assert producers.expire(WallMs(10 * day), day, WallMs(30 * day)) == 0
    assert producers.expire(WallMs(13 * day), day, WallMs(30 * day)) == 0
    assert producers.expire(WallMs(31 * day - 1), day) == 0
    assert producers.expire(WallMs(31 * day), day) == 1


def test_a_clock_that_was_ahead_keeps_no_producer_once_it_is_set_back() -> None:
    producers, day = Producers(), 86_400_000
    producers.record(batch(0)._replace(max_timestamp=0), 100, is_live=True)
    assert producers.expire(WallMs(10 * day), day, WallMs(300 * day)) == 0
    assert producers.expire(WallMs(10 * day + 5), day) == 0
    assert producers.expire(WallMs(11 * day + 4), day) == 0
    assert producers.expire(WallMs(11 * day + 5), day) == 1


def test_of_producers_in_the_log_the_newest_is_silent_from_now_on() -> None:
    day, now = 86_400_000, 100 * 86_400_000
    producers = Producers()
    for producer, timestamp in ((1, 2 * day), (2, 3 * day - 1), (3, 3 * day)):
        header = batch(0, producer=producer)._replace(max_timestamp=timestamp)
        producers.record(header, 100)
    assert producers.expire(WallMs(now), day) == 1, "a day behind the newest"
    assert producers.expire(WallMs(now + day - 2), day) == 0
    assert producers.expire(WallMs(now + day - 1), day) == 1
    assert producers.expire(WallMs(now + day), day) == 1
    producers.record(batch(0)._replace(max_timestamp=now), 100)
    producers.record(batch(0, producer=8)._replace(max_timestamp=now * 10), 101)
    assert producers.expire(WallMs(now + 1), day) == 0, "a clock that is ahead ages no other"
