"""Ranges as Arrow: exactly the records asked for, whatever the batches, or an error."""

from typing import Any

import pyarrow as pa
import pytest

from headrace.client import arrow
from headrace.client.arrow import read_range, read_ranges
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError, DataLost
from headrace.client.records import read_records
from headrace.wire import columns_numpy
from headrace.wire.batches import Record, build
from headrace.wire.compression import Codec


def offsets(batches: Any) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@pytest.fixture
def filled(broker: Any) -> Any:
    broker.append(*(b"value %d" % number for number in range(100)))
    return broker


@pytest.mark.parametrize(("first", "last"), [(0, 99), (0, 0), (9, 10), (15, 72), (99, 99)])
def test_a_range_holds_its_records_and_no_others(
    cluster: Cluster, filled: Any, first: int, last: int
) -> None:
    found = list(read_range(cluster, "t", 0, first, last))
    assert offsets(found) == list(range(first, last + 1))
    values = [value for batch in found for value in batch.column("value").to_pylist()]
    assert values == [b"value %d" % number for number in range(first, last + 1)]


def test_a_range_larger_than_a_fetch_is_read_whole(
    cluster: Cluster, filled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "_FETCH_BYTES_MIN", 500)
    monkeypatch.setattr(arrow, "_FETCH_BYTES_MAX", 500)
    assert offsets(read_range(cluster, "t", 0, 3, 97)) == list(range(3, 98))
    assert filled.asked.count(1) > 3


def test_near_ranges_share_a_fetch_and_far_ones_do_not(cluster: Cluster, broker: Any) -> None:
    broker.append(*(b"x" for _ in range(5000)), size=500)
    wanted = [(0, 0), (2, 3), (20, 20), (4000, 4001), (4003, 4003)]
    found = list(read_ranges(cluster, "t", 0, wanted))
    assert offsets(found) == [0, 2, 3, 20, 4000, 4001, 4003]
    assert broker.asked.count(1) == 2
    assert len(found) == 1


def test_batches_are_neither_tiny_nor_huge(
    cluster: Cluster, filled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "ROWS_MIN", 20)
    monkeypatch.setattr(arrow, "ROWS_MAX", 30)
    assert [batch.num_rows for batch in read_range(cluster, "t", 0, 0, 99)] == [30, 30, 30, 10]
    monkeypatch.setattr(arrow, "_FETCH_BYTES_MIN", 1)
    monkeypatch.setattr(arrow, "_FETCH_BYTES_MAX", 1)
    assert [batch.num_rows for batch in read_range(cluster, "t", 0, 0, 99)] == [20] * 5


def test_records_removed_by_retention_are_an_error_that_names_them(
    cluster: Cluster, filled: Any
) -> None:
    filled.log_start = 40
    with pytest.raises(DataLost, match=r"of offsets 30 to 50, 30 to 39 were removed"):
        list(read_range(cluster, "t", 0, 30, 50))
    with pytest.raises(DataLost, match=r"of offsets 30 to 35, 30 to 35 were removed"):
        list(read_range(cluster, "t", 0, 30, 35))


def test_records_beyond_the_end_are_an_error_that_names_them(
    cluster: Cluster, filled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "_BEYOND_END_S", 0.05)
    with pytest.raises(DataLost, match="100 to 105 are beyond the end"):
        list(read_range(cluster, "t", 0, 95, 105))
    with pytest.raises(DataLost, match="200 to 205 are beyond the end"):
        list(read_range(cluster, "t", 0, 200, 205))


def test_or_the_loss_is_told_and_what_is_left_is_read(
    cluster: Cluster, filled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "_BEYOND_END_S", 0.05)
    filled.log_start = 40
    lost: list[DataLost] = []
    assert offsets(read_ranges(cluster, "t", 0, [(30, 50)], lost=lost.append)) == [*range(40, 51)]
    assert offsets(read_ranges(cluster, "t", 0, [(30, 35)], lost=lost.append)) == []
    assert offsets(read_ranges(cluster, "t", 0, [(95, 105)], lost=lost.append)) == [*range(95, 100)]
    assert [str(one).partition("; ")[0] for one in lost] == [
        "t-0: of offsets 30 to 50, 30 to 39 were removed (retention or deletion)",
        "t-0: of offsets 30 to 35, 30 to 35 were removed (retention or deletion)",
        "t-0: of offsets 100 to 105, 100 to 105 are beyond the end of the log",
    ]


def test_records_that_are_there_and_not_given_are_not_taken_for_lost(
    cluster: Cluster, filled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that answers with nothing, as while a transaction goes on, or a leader lags."""
    monkeypatch.setattr(arrow, "_BEYOND_END_S", 0.05)
    filled.batches.clear()
    lost: list[DataLost] = []
    with pytest.raises(BrokerError, match="reading t-0"):
        list(read_ranges(cluster, "t", 0, [(30, 50)], lost=lost.append))
    assert not lost


def test_large_records_are_not_gathered_in_memory(cluster: Cluster, broker: Any) -> None:
    """Ten thousand of them would be more than an Arrow column takes, and a worker has."""
    broker.append(*(b"x" * 500_000 for _ in range(60)), size=5)
    found = list(read_range(cluster, "t", 0, 0, 59))
    assert offsets(found) == list(range(60))
    assert max(batch.nbytes for batch in found) < 20_000_000


def test_what_compaction_took_is_not_missed(cluster: Cluster, filled: Any) -> None:
    """Whole batches may be gone; the log begins and ends where it did."""
    del filled.batches[3:6]
    assert offsets(read_range(cluster, "t", 0, 25, 65)) == [*range(25, 30), *range(60, 66)]
    assert offsets(read_range(cluster, "t", 0, 35, 50)) == []
    assert offsets(read_range(cluster, "t", 0, 25, 35)) == [*range(25, 30)]


@pytest.mark.parametrize("code", [0, 1, 3])
def test_what_the_log_has_is_never_called_lost(
    cluster: Cluster, filled: Any, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A broker just started knows neither its topics nor the ends of their logs for a moment."""
    monkeypatch.setattr(arrow, "_PAUSE_S", 0.01)
    lost: list[DataLost] = []
    filled.fetch_codes += [code] * 5
    assert offsets(read_ranges(cluster, "t", 0, [(30, 50)], lost=lost.append)) == [*range(30, 51)]
    monkeypatch.setattr(arrow, "_BEYOND_END_S", 0.05)
    if code != 3:
        filled.fetch_codes += [code] * 100_000
        with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
            list(read_ranges(cluster, "t", 0, [(30, 50)], lost=lost.append))
    assert lost == []


def test_what_retention_took_between_the_ranges_is_not_missed(
    cluster: Cluster, filled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "_FETCH_BYTES_MIN", 1)
    monkeypatch.setattr(arrow, "_BYTES_A_RECORD", 1)
    found = read_ranges(cluster, "t", 0, [(0, 5), (70, 75)])
    monkeypatch.setattr(arrow, "ROWS_MIN", 1)
    first = next(found)
    filled.log_start = 60
    assert offsets([first, *found]) == [*range(6), *range(70, 76)]


def test_columns_are_those_of_the_wire(cluster: Cluster, filled: Any) -> None:
    batch = next(read_range(cluster, "t", 0, 7, 7))
    assert isinstance(batch, pa.RecordBatch)
    assert batch.schema.names[:5] == ["key", "value", "offset", "timestamp", "timestamp_type"]
    row = {name: batch.column(name)[0] for name in batch.schema.names}
    assert row["key"].as_py() is None
    assert row["timestamp"].value == 1007 * 1000
    assert row["timestamp_type"].as_py() == 0


def test_plain_records_run_from_an_offset_to_the_end(cluster: Cluster, filled: Any) -> None:
    assert [one.offset for one in read_records(cluster, "t", 0, 95)] == list(range(95, 100))
    filled.log_start = 90
    assert next(read_records(cluster, "t", 0)).value == b"value 90"


def test_batches_that_hold_too_much_together_are_decoded_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = [Record(0, 5, None, b"v" * 1000)]
    data = b"".join(
        build(records, base_offset=offset, compression=Codec.GZIP) for offset in range(5)
    )
    monkeypatch.setattr(columns_numpy, "DECOMPRESSED_BYTES_MAX", 1500)
    found = list(arrow._decoded(data, 1, 3, arrow.PLAIN))
    assert offsets(found) == [1, 2, 3]
