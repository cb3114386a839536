"""Idempotent producers: the table of what a partition answers (reference: Apache Kafka 4.3.1)."""

import pytest

from headrace.core.types import WallMs
from headrace.log.producers import (
    Duplicate,
    Fenced,
    OutOfOrder,
    ProducerLimit,
    Producers,
    TooMany,
)
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


def test_producers_in_a_log_are_silent_from_the_first_look_on() -> None:
    """A clock that was set by days between two of their batches has none forgotten."""
    day, now = 86_400_000, 100 * 86_400_000
    producers = Producers()
    for producer, timestamp in ((1, 2 * day), (2, 90 * day), (3, now)):
        header = batch(0, producer=producer)._replace(max_timestamp=timestamp)
        producers.record(header, 100 + producer, is_live=producer == 3)
    assert producers.expire(WallMs(now), day) == 0
    assert producers.expire(WallMs(now + day - 1), day) == 0
    assert producers.check(batch(0, producer=1)) == Duplicate(101)
    assert producers.expire(WallMs(now + day), day) == 3


def test_from_half_of_the_limit_on_producers_in_a_log_are_as_old_as_their_timestamps() -> None:
    """Else new ones would be refused for minutes after each start with many of them."""
    day, now, minutes = 86_400_000, 100 * 86_400_000, 60_000
    limit = ProducerLimit(5)
    producers = Producers(limit)
    for producer, timestamp in ((1, 0), (2, 10 * minutes - 1), (3, 10 * minutes)):
        header = batch(0, producer=producer)._replace(max_timestamp=timestamp)
        producers.record(header, 100)
    producers.count_in()
    assert producers.expire(WallMs(now), day) == 1, "ten minutes behind the newest"
    assert (limit.count, len(producers)) == (2, 2)
    assert producers.expire(WallMs(now + day - 2), day) == 0, "there is room again"
    assert producers.expire(WallMs(now + day - 1), day) == 1
    assert producers.expire(WallMs(now + day), day) == 1
    written(limit, range(3))
    producers.record(batch(0)._replace(max_timestamp=now), 100)
    producers.record(batch(0, producer=8)._replace(max_timestamp=now * 10), 101)
    assert producers.expire(WallMs(now + 1), day) == 0, "a clock that is ahead ages no other"


def written(limit: ProducerLimit, ids: range, offset: int = 0) -> Producers:
    """The producers of a partition that these ids have just written to."""
    producers = Producers(limit)
    producers.count_in()
    for number, producer in enumerate(ids):
        header = batch(0, producer=producer)
        assert producers.check(header) is None
        producers.record(header, offset + number, is_live=True)
    return producers


def test_at_the_limit_only_known_producers_write(caplog: pytest.LogCaptureFixture) -> None:
    limit = ProducerLimit(5)
    full, other = written(limit, range(3)), written(limit, range(2))
    for producers in (full, other):
        for _ in range(2):
            assert isinstance(producers.check(batch(0, producer=99)), TooMany)
    assert [line.levelname for line in caplog.records] == ["WARNING"]
    assert "5 idempotent producers are remembered (headrace.max.producers)" in caplog.text
    assert limit.refused == 4
    assert full.check(batch(1, producer=2)) is None
    assert isinstance(full.check(batch(0, producer=2)), Duplicate)
    assert full.check(batch(0, producer=2, epoch=4)) is None
    assert full.check(batch(-1, producer=-1)) is None
    other.release()
    assert (limit.count, len(other)) == (3, 0)
    assert full.check(batch(0, producer=99)) is None


def test_from_half_of_the_limit_on_silent_producers_are_forgotten_sooner() -> None:
    limit, day, minutes = ProducerLimit(10), 86_400_000, 60_000
    producers = written(limit, range(6))
    assert producers.expire(WallMs(day), day) == 0
    assert producers.expire(WallMs(day + 10 * minutes - 1), day) == 0
    producers.record(batch(1, producer=3), 100, is_live=True)
    assert producers.expire(WallMs(day + 10 * minutes), day) == 5
    assert (limit.count, len(producers)) == (1, 1)
    assert producers.expire(WallMs(day + 50 * minutes), day) == 0, "there is room again"


def test_of_a_log_that_is_opened_the_latest_producers_are_remembered() -> None:
    limit = ProducerLimit(100)
    others = written(limit, range(60))
    opened = Producers(limit)
    for number in range(1000):
        opened.record(batch(0, producer=number * 7919 % 1000), number)
        assert len(opened) <= 200
    opened.count_in()
    assert limit.count == 100
    latest = {number * 7919 % 1000 for number in range(960, 1000)}
    assert {one.producer_id for one in opened.entries()} == latest
    assert isinstance(others.check(batch(0, producer=99)), TooMany)
    more = Producers(limit)
    more.record(batch(0), 1)
    more.count_in()
    assert (limit.count, len(more)) == (100, 0)


def test_what_was_remembered_at_a_moment_stays_so() -> None:
    producers = Producers()
    producers.record(batch(0, 3), 10)
    producers.record(batch(3, 2), 20)
    moment = producers.remembered()
    producers.record(batch(5, 2), 30)
    producers.record(batch(0, producer=8), 40)
    assert [one.last_offset for one in moment.entries()] == [12, 21]
    assert [one.last_sequence for one in moment.last_entries()] == [4]
    assert (moment.last_offset(7), moment.last_offset(8), len(moment)) == (21, None, 1)


def test_logs_that_are_opened_side_by_side_keep_no_more_than_the_limit() -> None:
    def opened(first_id: int) -> Producers:
        producers = Producers(limit)
        for number in range(5):
            producers.record(batch(0, producer=first_id + number), number)
        return producers

    class Between:
        """Stands for the lock, which another thread has before this one."""

        def __enter__(self) -> None:
            if waiting:
                waiting.pop().count_in()

        def __exit__(self, *_: object) -> None:
            pass

    limit = ProducerLimit(5)
    limit._counting = Between()  # type: ignore[assignment]  # as much of a lock as is used
    one, other = opened(0), opened(10)
    waiting = [other]
    one.count_in()
    assert limit.count == len(one) + len(other) == 5
