"""What a share consumer makes of an answer's records: what did not come is not finished."""

from dataclasses import dataclass
from uuid import UUID

import pytest

from headrace.client.share_consumer.wire import Answered, forgotten, topics, unpacked
from headrace.wire.batches import CONTROL, HEADER_BYTES, Record, build
from headrace.wire.compression import Codec


@dataclass(frozen=True)
class Range:
    """A part of AcquiredRecords."""

    first_offset: int
    last_offset: int
    delivery_count: int = 1


def batch(base: int, count: int, codec: int = Codec.NONE, attributes: int = 0) -> bytes:
    records = [Record(0, 5, b"k", b"v%d" % (base + n)) for n in range(count)]
    return build(records, base_offset=base, compression=codec, attributes=attributes)


def answered(data: bytes, *acquired: Range) -> Answered:
    return Answered((UUID(int=1), 0), 0, None, 0, None, data, acquired)


@pytest.mark.parametrize("codec", list(Codec))
def test_records_of_the_acquired_ranges_with_their_deliveries(codec: Codec) -> None:
    data = batch(10, 5, codec) + batch(15, 5, codec)
    found = unpacked(answered(data, Range(12, 13, 3), Range(14, 16, 1)))
    assert [(one.offset, one.value, count) for one, _, count in found.found] == [
        (12, b"v12", 3), (13, b"v13", 3), (14, b"v14", 1), (15, b"v15", 1), (16, b"v16", 1),
    ]  # fmt: skip
    assert (found.gaps, found.unread, found.damage) == ([], [], "")


def test_offsets_without_a_record_between_batches_are_gaps() -> None:
    data = batch(0, 2) + batch(5, 2)
    found = unpacked(answered(data, Range(0, 6)))
    assert [one.offset for one, _, _ in found.found] == [0, 1, 5, 6]
    assert (found.gaps, found.unread) == ([(2, 4)], [])


def test_markers_of_transactions_are_gaps() -> None:
    found = unpacked(answered(batch(0, 1) + batch(1, 1, attributes=CONTROL), Range(0, 1)))
    assert [one.offset for one, _, _ in found.found] == [0]
    assert found.gaps == [(1, 1)]


@pytest.mark.parametrize("data", [b"", b"\0" * HEADER_BYTES])
def test_what_did_not_come_is_not_finished(data: bytes) -> None:
    found = unpacked(answered(data, Range(3, 9)))
    assert (found.found, found.gaps, found.unread) == ([], [], [(3, 9)])
    assert bool(found.damage) == bool(data)


def test_what_lies_outside_the_batches_that_came_is_not_finished() -> None:
    whole, cut = batch(4, 2), batch(6, 2)[:-1]
    found = unpacked(answered(whole + cut, Range(2, 7)))
    assert [one.offset for one, _, _ in found.found] == [4, 5]
    assert (found.gaps, found.unread) == ([], [(2, 3), (6, 7)])


def test_a_damaged_batch_costs_itself_only() -> None:
    damaged = bytearray(batch(2, 2))
    damaged[-1] ^= 1
    found = unpacked(answered(batch(0, 1) + bytes(damaged) + batch(4, 1), Range(0, 4)))
    assert [one.offset for one, _, _ in found.found] == [0, 4]
    assert (found.gaps, found.unread) == ([(1, 1)], [(2, 3)])
    assert "checksum" in found.damage


def test_log_append_time_is_told() -> None:
    data = build([Record(0, 5, None, b"v")], attributes=0x08)
    ((record, kind, _),) = unpacked(answered(data, Range(0, 0))).found
    assert (record.timestamp, kind) == (5, 1)


def test_partitions_are_named_by_topic() -> None:
    one, two = UUID(int=1), UUID(int=2)
    assert topics({}, [(two, 0), (one, 3), (one, 1)]) == [
        {
            "topic_id": one,
            "partitions": [
                {"partition_index": 1, "acknowledgement_batches": []},
                {"partition_index": 3, "acknowledgement_batches": []},
            ],
        },
        {"topic_id": two, "partitions": [{"partition_index": 0, "acknowledgement_batches": []}]},
    ]
    assert forgotten([(two, 1), (two, 0)]) == [{"topic_id": two, "partitions": [0, 1]}]
