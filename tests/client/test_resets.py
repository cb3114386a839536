"""Where a reader begins and goes on that keeps its own positions: the tables beside a real log."""

import time
from itertools import count

import pytest
from confluent_kafka import Producer

import headrace
from headrace.client.admin import create_topic
from headrace.client.connection import Cluster
from headrace.client.resets import OutOfRange, Strategy, goes_on, starts

SECONDS_MAX = 60.0
_NUMBERS = count()
LOG = (5, 9)


@pytest.fixture
def written(real: Cluster, running: headrace.Broker) -> tuple[str, int]:
    """A topic with a partition that has records and one that has none; when the first came."""
    topic, now = f"sights-{next(_NUMBERS)}", time.time_ns() // 1_000_000
    create_topic(real, topic, 2)
    producer = Producer({"bootstrap.servers": running.bootstrap_servers})
    for later in range(3):
        producer.produce(topic, b"v", partition=0, timestamp=now + later)
    assert producer.flush(SECONDS_MAX) == 0
    return topic, now


@pytest.mark.parametrize(
    ("strategy", "new", "older", "younger"),
    [
        (Strategy.EARLIEST, 0, 0, 0),
        (Strategy.LATEST, 3, 3, 3),
        (Strategy.EARLIEST_ON_START, 0, 0, 0),
        (Strategy.LATEST_ON_START, 3, 3, 3),
        (Strategy.SAFE_LATEST, 3, 0, 3),
    ],
)
def test_a_start_is_that_of_the_first_table(
    strategy: Strategy, new: int, older: int, younger: int, written: tuple[str, int], real: Cluster
) -> None:
    """Of a reader that starts now, of one older than the partition, and of one younger."""
    topic, first = written
    logs = {(topic, 0): (0, 3), (topic, 1): (0, 0)}
    for since, wanted in ((None, new), (first - 1, older), (first, older), (first + 1, younger)):
        found = starts(real, strategy, logs, since)
        assert found == {(topic, 0): wanted, (topic, 1): 0}, since


def test_a_start_that_is_refused_is_none(real: Cluster) -> None:
    assert starts(real, Strategy.NONE, {("t", 0): LOG}, None) == {}


@pytest.mark.parametrize(
    ("position", "alone", "to_nearest"),
    [(4, None, 5), (5, 5, 5), (7, 7, 7), (9, 9, 9), (10, None, 9)],
)
def test_a_position_outside_the_log_goes_on_at_the_nearest_end_or_not_at_all(
    position: int, alone: int | None, to_nearest: int
) -> None:
    assert goes_on(position, LOG, OutOfRange.NONE) == alone
    assert goes_on(position, LOG, OutOfRange.NEAREST) == to_nearest
