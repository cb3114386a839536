"""Pages of archived records in the journal: back and forth, and what is refused."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.archived import ArchivedRun, PageForgotten, PageListed
from headrace.core.share_words import ShareKey
from headrace.core.types import MemberId, Span, WallMs
from headrace.log.archived_records import ARCHIVED, page_record, restored
from headrace.wire.primitives import Malformed, Reader

KEY = ShareKey("grüppe", UUID(int=5), 3)
RUN = ArchivedRun(4, Span(10, 12), 5, "not JSON", MemberId("me"), WallMs(1_700_000_000_000))
SPANS = st.builds(lambda at, more: Span(at, at + more), st.integers(0, 2**62), st.integers(0, 9))
RUNS = st.builds(
    ArchivedRun,
    st.integers(1, 2**63 - 1),
    SPANS,
    st.integers(0, 2**15 - 1),
    st.text(),
    st.text().map(MemberId),
    st.integers(0, 2**62).map(WallMs),
)  # fmt: skip


def read(key: bytes | None, value: bytes | None) -> PageListed | PageForgotten:
    source = Reader(key or b"")
    assert source.int16() == ARCHIVED
    return restored(source, value)


@given(st.lists(RUNS, max_size=5), st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_page_comes_back(runs: list[ArchivedRun], upcoming: int, dropped: int) -> None:
    event = PageListed(KEY, 7, tuple(runs), upcoming, dropped)
    entry = page_record(event)
    assert read(entry.key, entry.value) == event


def test_a_tombstone_forgets_the_page() -> None:
    entry = page_record(PageForgotten(KEY, 7))
    assert entry.value is None
    assert read(entry.key, None) == PageForgotten(KEY, 7)


def test_the_bytes_stay_what_they_are() -> None:
    entry = page_record(PageListed(KEY, 1, (RUN,), 5, 2))
    assert entry.key is not None
    assert entry.value is not None
    assert entry.key.hex() == (
        "51ab00076772c3bc707065" + "00" * 15 + "05" + "00000003" + "0000000000000001"
    )
    assert entry.value.hex() == (
        "0000" "0000000000000005" "0000000000000002" "03" "096e6f74204a534f4e" "036d65" "02"
        "0000000000000004" "000000000000000a" "000000000000000c" "0005" "0000018bcfe56800"
        "00000000" "00000001" "00"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("at", "byte", "message"),
    [(1, 1, "version 1 of a list"), (48, 0xFF, "is no run"), (66, 9, "is no run")],
)
def test_what_cannot_be_read_is_refused(at: int, byte: int, message: str) -> None:
    entry = page_record(PageListed(KEY, 1, (RUN,), 5, 2))
    assert entry.value is not None
    value = bytearray(entry.value)
    value[at] = byte
    with pytest.raises(Malformed, match=message):
        read(entry.key, bytes(value))
