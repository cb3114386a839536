"""Records that were removed before they were read: told and never skipped silently."""

import logging
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from headrace.client.errors import DataLost
from headrace.client.topics import create_topic, delete_records, delete_topic

from .asking import planned, rows

pytestmark = pytest.mark.spark


def remove(log: Any) -> None:
    """Of 10 records of partition 0, the first 7."""
    delete_records(log.cluster, {("t", 0): 7})


def test_a_query_fails_and_names_what_was_lost(log: Any) -> None:
    log.produce(4)
    log.run(rows(log), log.note)
    log.produce(16)
    remove(log)
    with pytest.raises(
        StreamingQueryException, match=r"t-0: offsets 2 to 6 were removed .* failOnDataLoss"
    ):
        log.run(rows(log), log.note)


def test_or_goes_on_with_what_is_there(log: Any) -> None:
    log.produce(4)
    log.run(rows(log), log.note)
    log.produce(16)
    remove(log)
    log.run(rows(log, failOnDataLoss="false"), log.note)
    kept = [offset for offset in range(10) if offset not in range(2, 7)]
    assert log.noted == [*((0, o) for o in kept), *((1, o) for o in range(10))]


def test_and_tells_it_once(log: Any, reading: Any, caplog: pytest.LogCaptureFixture) -> None:
    log.produce(20)
    remove(log)
    reader = reading(failOnDataLoss="false", startingOffsets='{"t":{"0":2,"1":10}}')
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(2))
    assert planned(reader, start, end) == [(0, 7, 8)]
    assert reader.latestOffset(end, ReadMaxRows(2))["offsets"] == {"t": {"0": 10, "1": 10}}
    told = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert told == [
        "records were lost before they were read: t-0: offsets 2 to 6 were removed (retention "
        "or deletion); it is read from offset 7, as failOnDataLoss is false"
    ]


def test_a_batch_that_runs_again_says_what_it_misses(log: Any, reading: Any) -> None:
    log.produce(20)
    before = reading()
    start = before.initialOffset()
    end = before.latestOffset(start, ReadAllAvailable())
    assert planned(before, start, end) == [(0, 0, 9), (1, 0, 9)]
    remove(log)
    with pytest.raises(DataLost, match="t-0: of offsets 0 to 9 some are not there"):
        planned(reading(), start, end)
    lenient = reading(failOnDataLoss="false")
    assert planned(lenient, start, end) == [(0, 7, 9), (1, 0, 9)]


def test_a_task_that_finds_less_than_was_planned(log: Any, reading: Any) -> None:
    log.produce(20)
    schema = rows(log).schema
    for lenient, reader in ((False, reading()), (True, reading(failOnDataLoss="false"))):
        reader._schema = schema
        start = reader.initialOffset()
        end = {**start, "offsets": {"t": {"0": 10, "1": 10}}, "from": {"t": {"0": 2, "1": 10}}}
        reader.latestOffset(start, ReadAllAvailable())  # so that nothing is checked again
        remove(log)
        (task,) = reader.partitions(start, end)
        if lenient:
            found = [o for batch in reader.read(task) for o in batch["offset"].to_pylist()]
            assert found == [7, 8, 9]
        else:
            with pytest.raises(DataLost, match=r"2 to 6 were removed .*Nothing was skipped"):
                list(reader.read(task))


def test_a_topic_that_was_made_again_is_told_however_long_it_is(log: Any, reading: Any) -> None:
    log.produce(10)
    reader = reading()
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    delete_topic(log.cluster, "t")
    create_topic(log.cluster, "t", 2)
    log.produce(40)
    with pytest.raises(DataLost, match="its topic was deleted and created again after offset"):
        reader.latestOffset(end, ReadAllAvailable())
    lenient = reading(failOnDataLoss="false")
    following = lenient.latestOffset(end, ReadAllAvailable())
    assert planned(lenient, end, following) == [(0, 0, 19), (1, 0, 19)]
    assert lenient.latestOffset(following, ReadAllAvailable()) == following


def test_a_topic_made_again_is_read_though_offsets_look_the_same(log: Any, reading: Any) -> None:
    log.produce(10)
    before = reading()
    end = before.latestOffset(before.initialOffset(), ReadAllAvailable())
    delete_topic(log.cluster, "t")
    create_topic(log.cluster, "t", 2)
    log.produce(20)
    lenient = reading(failOnDataLoss="false")
    following = lenient.latestOffset(end, ReadMaxRows(10))
    assert following["offsets"] == end["offsets"]
    assert planned(lenient, end, following) == [(0, 0, 4), (1, 0, 4)]
    rest = lenient.latestOffset(following, ReadMaxRows(100))
    assert planned(lenient, following, rest) == [(0, 5, 9), (1, 5, 9)]
    assert lenient.latestOffset(rest, ReadMaxRows(100)) == rest


def test_a_topic_that_is_gone(log: Any, reading: Any, caplog: pytest.LogCaptureFixture) -> None:
    log.produce(10)
    soon = {"fetchOffset_retryIntervalMs": "1"}
    reader = reading(**soon)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    delete_topic(log.cluster, "t")
    with pytest.raises(DataLost, match="t-0: it is gone; it was read up to offset 5"):
        reader.latestOffset(end, ReadAllAvailable())
    assert caplog.text.count("asking again") == 3, "a broker just started may not know it yet"
    lenient = reading(failOnDataLoss="false", **soon)
    following = lenient.latestOffset(end, ReadAllAvailable())
    assert following["offsets"] == {}
    create_topic(log.cluster, "t", 2)
    log.produce(4)
    latest = lenient.latestOffset(following, ReadAllAvailable())
    assert planned(lenient, following, latest) == [(0, 0, 1), (1, 0, 1)]


def test_an_offset_beyond_the_end_is_asked_for_again_before_it_is_called_lost(
    log: Any, reading: Any, caplog: pytest.LogCaptureFixture
) -> None:
    log.produce(10)
    given = {"startingOffsets": '{"t":{"0":9,"1":5}}', "fetchOffset_retryIntervalMs": "1"}
    reader = reading(**given)
    start = reader.initialOffset()
    with pytest.raises(DataLost, match="t-0: offsets 5 to 8 are beyond the end of the log"):
        reader.latestOffset(start, ReadAllAvailable())
    assert caplog.text.count("asking again") == 3
    lenient = reading(failOnDataLoss="false", **given)
    end = lenient.latestOffset(start, ReadAllAvailable())
    assert end["offsets"] == {"t": {"0": 5, "1": 5}}
    assert planned(lenient, start, end) == []
