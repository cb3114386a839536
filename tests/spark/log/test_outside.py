"""KIP-842 for a log in Spark: positions outside the log."""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headrace.client.errors import DataLost, TopicLost
from headrace.client.group_offsets import alter_group_offsets
from headrace.client.topics import create_topic, delete_records, delete_topic
from headrace.spark.columns import schema_of
from headrace.spark.log.options import LogOptions
from headrace.spark.log.stream import LogStream
from headrace.spark.read import _skip

from .asking import GROUP, planned

pytestmark = pytest.mark.spark
ALL = ReadAllAvailable()
OUTSIDE = "offset.reset.strategy.offset-out-of-range"
NEAREST = {OUTSIDE: "nearest"}
UNDER = "t-0: offsets 2 to 6 were removed (retention or deletion)"
OVER = "t-0: offsets 10 to 11 are beyond the end of the log"
VALUES = ("earliest", "latest", "earliest_on_start", "latest_on_start", "safe_latest", "committed")
Reading = Callable[..., LogStream]


def outside(log: Any, position: int, **options: str) -> dict[str, str]:
    """Of 10 records of a partition the first 7 are gone, and the group stands at `position`."""
    log.produce(20)
    delete_records(log.cluster, {("t", 0): 7})
    alter_group_offsets(log.cluster, GROUP, {("t", 0): position, ("t", 1): 10}).check()
    return {"kafka_group_id": GROUP, "fetchOffset_retryIntervalMs": "1", **options}


@pytest.mark.parametrize("value", VALUES[2:])
@pytest.mark.parametrize(("position", "told"), [(2, UNDER), (12, OVER)], ids=["under", "over"])
def test_none_fails_with_one_line_that_names_the_option(
    value: str, position: int, told: str, log: Any, reading: Reading
) -> None:
    given = outside(log, position, startingOffsets=value)
    either = f"Set {OUTSIDE} to nearest, or failOnDataLoss to false, to go on with what is there"
    this = f"Set {OUTSIDE} to nearest to go on with what is there"
    for more, remedy in (({}, either), ({OUTSIDE: "none"}, this)):
        reader = reading(**given, **more)
        with pytest.raises(DataLost) as raised:
            reader.latestOffset(reader.initialOffset(), ALL)
        text = str(raised.value)
        assert text.startswith(f"records were lost before they were read: {told}. {remedy}")
        assert "\n" not in text
    lenient = reading(**given, **{OUTSIDE: "none", "failOnDataLoss": "false"})
    start = lenient.initialOffset()
    with pytest.raises(DataLost, match=this):
        lenient.latestOffset(start, ALL)


@pytest.mark.parametrize("value", VALUES[2:])
@pytest.mark.parametrize(
    ("position", "told", "to", "left"),
    [
        (2, f"{UNDER}; it is read from offset 7", 7, [(0, 7, 9)]),
        (12, f"{OVER}; it is read on from its end, 10", 10, []),
    ],
    ids=["under", "over"],
)
def test_nearest_goes_on_at_the_next_end_tells_it_once_and_counts_it(
    value: str, position: int, told: str, to: int, left: list[tuple[int, ...]],
    log: Any, reading: Reading, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    reader = reading(**outside(log, position, startingOffsets=value), **NEAREST)
    start = reader.initialOffset()
    assert start["offsets"]["t"]["0"] == position
    end = reader.latestOffset(start, ALL)
    assert planned(reader, start, end) == left
    assert end["from"]["t"]["0"] == to
    assert reader.latestOffset(end, ALL) == end
    warnings = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert [one for one in warnings if "asking again" not in one] == [
        f"records were lost before they were read: {told}, as {OUTSIDE} is nearest"
    ]
    latest = reader.reportLatestOffset()
    assert latest is not None
    assert latest["resets"] == 1


@pytest.mark.parametrize("value", VALUES[:5])
def test_a_running_query_is_told_so_whatever_its_start_was(
    value: str, log: Any, reading: Reading
) -> None:
    """A jump to the end, which consumers make under `latest`, would lose what is left."""
    before = reading(startingOffsets=value)
    start = before.latestOffset(before.initialOffset(), ALL)
    log.produce(20)
    delete_records(log.cluster, {("t", 0): 7})
    with pytest.raises(DataLost, match=f"t-0: offsets 0 to 6 were removed .* Set {OUTSIDE} to nea"):
        reading(startingOffsets=value).latestOffset(start, ALL)
    after = reading(startingOffsets=value, **NEAREST)
    assert planned(after, start, after.latestOffset(start, ALL)) == [(0, 7, 9), (1, 0, 9)]


def test_nearest_says_nothing_of_a_topic_that_is_another_one(log: Any, reading: Reading) -> None:
    log.produce(20)
    reader = reading(**NEAREST)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    delete_topic(log.cluster, "t")
    create_topic(log.cluster, "t", 2)
    other = reading(**NEAREST, fetchOffset_retryIntervalMs="1")
    with pytest.raises(DataLost, match=r"created again after offset 10; .* Set failOnDataLoss to"):
        other.latestOffset(end, ALL)


def test_a_batch_that_runs_again_has_what_is_left(log: Any, reading: Reading) -> None:
    log.produce(20)
    before = reading()
    start = before.initialOffset()
    end = before.latestOffset(start, ALL)
    delete_records(log.cluster, {("t", 0): 7})
    with pytest.raises(DataLost, match=f"some are not there, .* Set {OUTSIDE} to nearest"):
        planned(reading(), start, end)
    assert planned(reading(**NEAREST), start, end) == [(0, 7, 9), (1, 0, 9)]


def test_a_task_goes_on_where_positions_do(log: Any, reading: Reading) -> None:
    log.produce(20)
    tasks = {}
    schema = schema_of(LogOptions.parse(log.log_options), delivery=False)
    for name, given in (("near", NEAREST), ("none", {OUTSIDE: "none", "failOnDataLoss": "false"})):
        reader = reading(**given)
        reader._schema = schema
        start = reader.initialOffset()
        tasks[name] = reader, reader.partitions(start, reader.latestOffset(start, ALL))
    delete_records(log.cluster, {("t", 0): 7})
    reader, (task, _) = tasks["near"]
    assert [o for batch in reader.read(task) for o in batch["offset"].to_pylist()] == [7, 8, 9]
    reader, (task, _) = tasks["none"]
    with pytest.raises(DataLost, match="0 to 6 were removed"):
        list(reader.read(task))


@pytest.mark.parametrize(
    ("given", "removed", "topic"),
    [
        ({"failOnDataLoss": "false"}, False, False),
        (NEAREST, False, True),
        ({OUTSIDE: "none", "failOnDataLoss": "false"}, True, False),
    ],
)
def test_a_topic_that_goes_while_a_task_reads_is_for_the_other_option(
    given: dict[str, str], removed: bool, topic: bool
) -> None:
    options = LogOptions.parse({"kafka.bootstrap.servers": "h:1", "subscribe": "t", **given})
    for lost, raises in ((DataLost("gone"), removed), (TopicLost("gone"), topic)):
        with pytest.raises(DataLost) if raises else nullcontext():
            _skip(options, lost)
