"""What a fetch with committed reads leaves out; `tests/spark/log` has it from Apache Kafka."""

import pytest

from headrace.client.fetch import Fetched, committed
from headrace.wire.batches import CONTROL, TRANSACTIONAL, Record, build, headers

GOOD, BAD = 7, 8
Piece = tuple[int, int, int]  # producer, offset, attributes


def stored(*pieces: Piece) -> bytes:
    return b"".join(
        build(
            [Record(offset, 0, b"k", b"v")],
            base_offset=offset,
            producer_id=producer,
            attributes=attributes,
        )
        for producer, offset, attributes in pieces
    )


def kept(data: bytes, *aborted: tuple[int, int]) -> list[int]:
    """The offsets that are left, markers among them."""
    fetched = Fetched(memoryview(data), 100, aborted)
    pieces = committed(fetched, headers(fetched.records))
    return [one.base_offset for piece in pieces for one in headers(piece)]


INTERLEAVED = stored(
    (GOOD, 10, TRANSACTIONAL),
    (BAD, 11, TRANSACTIONAL),
    (BAD, 12, 0),
    (GOOD, 13, TRANSACTIONAL),
    (BAD, 14, TRANSACTIONAL),
    (BAD, 15, TRANSACTIONAL | CONTROL),
    (BAD, 16, TRANSACTIONAL),
    (GOOD, 17, TRANSACTIONAL | CONTROL),
    (BAD, 18, TRANSACTIONAL | CONTROL),
)


@pytest.mark.parametrize(
    ("aborted", "left"),
    [
        ([], [10, 11, 12, 13, 14, 15, 16, 17, 18]),
        ([(BAD, 11)], [10, 12, 13, 15, 16, 17, 18]),
        ([(BAD, 16)], [10, 11, 12, 13, 14, 15, 17, 18]),
        ([(BAD, 16), (BAD, 11)], [10, 12, 13, 15, 17, 18]),
        ([(BAD, 3)], [10, 12, 13, 15, 16, 17, 18]),
        ([(BAD, 99)], [10, 11, 12, 13, 14, 15, 16, 17, 18]),
        ([(BAD, 11), (BAD, 16), (GOOD, 10)], [12, 15, 17, 18]),
    ],
)
def test_batches_of_aborted_transactions_are_left_out(
    aborted: list[tuple[int, int]], left: list[int]
) -> None:
    assert kept(INTERLEAVED, *aborted) == left


def test_a_last_batch_that_is_cut_off_is_left_to_the_next_fetch() -> None:
    assert kept(INTERLEAVED[:-5], (BAD, 11)) == [10, 12, 13, 15, 16, 17]


def test_nothing_is_copied_where_nothing_was_aborted() -> None:
    fetched = Fetched(memoryview(INTERLEAVED), 100)
    assert committed(fetched, headers(fetched.records)) == [fetched.records]
