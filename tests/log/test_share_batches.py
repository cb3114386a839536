"""Very many state batches: in records of a bounded size, and as the slow way reads them."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.machine import encoded
from headrace.core.runs import State
from headrace.core.shard import ShareShard
from headrace.core.shard_words import Event, Outside, PartitionKept
from headrace.core.share_words import (
    Advanced,
    Ended,
    Hold,
    Range,
    Replayed,
    Settled,
    ShareKey,
    Started,
)
from headrace.core.types import MemberId, Span, WallMs
from headrace.log import share_batches, share_holds
from headrace.log.record_codec import ShareJournal, read_share_record
from headrace.log.share_batches import portions, read
from headrace.log.share_holds import attached
from headrace.wire.primitives import Malformed, Reader

KEY = ShareKey("group", UUID(int=4), 2)
DURABLE = [State.AVAILABLE, State.ACKNOWLEDGED, State.ARCHIVING, State.ARCHIVED]
MEMBERS = st.sampled_from([None, MemberId("one"), MemberId("zwei")])
HOLDS = st.none() | st.builds(
    Hold,
    MEMBERS,
    st.none() | st.integers(0, 1 << 42).map(WallMs),
    st.none() | st.sampled_from(Ended),
    st.sampled_from([None, "letters-0"]),
    st.none(),
)
RANGES = st.lists(
    st.tuples(
        st.integers(0, 1 << 40),
        st.integers(0, 1 << 20),
        st.sampled_from(DURABLE),
        st.integers(0, 20),
        st.sampled_from([None, None, None, "why", "naïve"]),
        HOLDS,
    ).map(lambda one: (one[0], one[0] + one[1], *one[2:])),
    max_size=20,
)


@given(ranges=RANGES, size=st.integers(1, 200))
def test_portions_are_bounded_and_say_the_same(ranges: list[Range], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(share_batches, "RECORD_BYTES_MAX", size)
        told = list(portions(ranges))
    assert told
    arrays = [array for array, _ in told]
    longest = 20 + 3 + 1 + len("naïve".encode())
    assert all(len(array) <= size + longest + 2 for array in arrays)
    again = [
        one for array, rows in told for one in _read(array, share_holds.encoded(rows, _nobody))
    ]
    assert again == ranges


@pytest.mark.parametrize(("holders", "bytes_max"), [(1, 120), (2, 120 + 40 + 2 * 1_000)])
def test_who_had_records_is_written_once_for_all(holders: int, bytes_max: int) -> None:
    """Of runs that two members had in turn, it costs two bytes a run."""
    holds = [Hold(MemberId("m" * 22 + str(at)), WallMs(1 << 40), Ended(0)) for at in range(holders)]
    ranges: list[Range] = [
        (at, at, State.AVAILABLE, 1, None, holds[at % holders]) for at in range(1_000)
    ]
    ((_, rows),) = portions(ranges)
    field = share_holds.encoded(rows, lambda _: "client /127.0.0.1")
    assert field is not None
    assert len(field) <= bytes_max
    told = [hold for count, hold in share_holds.decoded(field) for _ in range(count)]
    assert [(one.holder, one.client) for one in told if one is not None] == [
        (one[5].holder, "client /127.0.0.1") for one in ranges if one[5] is not None
    ]


@pytest.mark.parametrize(
    ("field", "told"),
    [("0104", "varint|bytes"), ("010101", "hold 1 of 0"), ("010500", "not as many")],
)
def test_holds_that_make_no_sense(field: str, told: str) -> None:
    with pytest.raises(Malformed, match=told):
        attached(
            ((0, 0, State.AVAILABLE, 1, None, None),), share_holds.decoded(bytes.fromhex(field))
        )


def _nobody(member: MemberId) -> None:
    """Nobody knows who a member is."""


def _read(array: bytes, holds: bytes | None) -> tuple[Range, ...]:
    ranges = read(Reader(array))
    return ranges if holds is None else attached(ranges, share_holds.decoded(holds))


@pytest.mark.parametrize(
    ("place", "byte", "told"),
    [(17, 1, "state 1 cannot"), (17, 9, "state 9"), (1, 0x80, "not a range"), (0, 0, "null")],
)
def test_bytes_that_are_no_state_batches(place: int, byte: int, told: str) -> None:
    ((array, _),) = portions([(3, 4, State.AVAILABLE, 1, None, None)])
    damaged = bytearray(array)
    damaged[place] = byte
    with pytest.raises(Malformed, match=told):
        read(Reader(damaged))


def test_a_long_snapshot_goes_on_in_updates(
    nowhere: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = ShareShard(nowhere)
    journal = ShareJournal(shard)
    settled = [Settled(KEY, Span(at, at), State.ACKNOWLEDGED, 1) for at in range(1, 200, 2)]
    shard.apply_all([Started(KEY, 0, 3), *settled])
    journal.records([Started(KEY, 0, 3)], WallMs(5))
    monkeypatch.setattr(share_batches, "RECORD_BYTES_MAX", 400)
    entries = encoded(journal.records([PartitionKept(KEY)], WallMs(7)))
    decoded = [read_share_record(key, value) for key, value, _ in entries]
    assert [one.state_epoch for one in decoded if one is not None] == [3, None, None, None, None]
    assert {one.snapshot_epoch for one in decoded if one is not None} == {1}
    assert all(len(entry.value or b"") < 500 for entry in entries)

    again = ShareShard(nowhere)
    reading = ShareJournal(again)
    for key, value, _ in entries:
        again.apply_all(reading.events(key, value))
    ours, theirs = shard.partitions[KEY], again.partitions[KEY]
    assert ours.start == theirs.start
    assert [(r.span, r.state) for r in ours.runs] == [(r.span, r.state) for r in theirs.runs]
    assert again.partitions[KEY].state_epoch == 3


def test_a_long_update_moves_the_start_with_its_last_record(
    nowhere: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, again = ShareShard(nowhere), ShareShard(nowhere)
    writing, reading = ShareJournal(shard), ShareJournal(again)
    monkeypatch.setattr(share_batches, "RECORD_BYTES_MAX", 100)
    for events in (
        [Started(KEY, 0, 0)],
        [Settled(KEY, Span(at, at), State(2 + at % 2 * 2), 1) for at in range(100)],
    ):
        shard.apply_all(events)
        for key, value, _ in encoded(writing.records(events, WallMs(5))):
            assert len(value or b"") < 200
            again.apply_all(reading.events(key, value))
    assert shard.partitions[KEY].start == again.partitions[KEY].start == 100


def test_a_snapshot_is_no_more_often_than_its_length_allows(nowhere: Outside) -> None:
    """500 runs: not before 8 updates, although 2 are set."""
    shard = ShareShard(nowhere)
    journal = ShareJournal(shard, updates_per_snapshot=2)

    def write(*events: Event) -> int:
        shard.apply_all(events)
        return len(journal.records(events, WallMs(7)))

    write(Started(KEY, 0, 0))
    write(*(Settled(KEY, Span(at, at), State.ACKNOWLEDGED, 1) for at in range(1, 500, 2)))
    one_more = Settled(KEY, Span(0, 0), State.AVAILABLE, 1)
    assert [write(one_more) for _ in range(8)] == [1, 1, 1, 1, 1, 1, 2, 1]


def test_updates_of_a_pruned_snapshot_are_passed_over(nowhere: Outside) -> None:
    shard = ShareShard(nowhere)
    writing = ShareJournal(shard)
    settled = Settled(KEY, Span(2, 3), State.ACKNOWLEDGED, 1)
    shard.apply_all([Started(KEY, 0, 0), settled])
    writing.records([Started(KEY, 0, 0)], WallMs(1))
    (update,) = encoded(writing.records([settled], WallMs(1)))
    (snapshot,) = encoded(writing.records([PartitionKept(KEY)], WallMs(1)))

    reading = ShareJournal(ShareShard(nowhere), pruned=True)
    assert reading.events(update.key, update.value) == []
    assert reading.unfounded == {KEY}
    assert reading.events(snapshot.key, snapshot.value) == [
        Started(KEY, 0, 0), Replayed(KEY, ((2, 3, State.ACKNOWLEDGED, 1, None, None),))
    ]  # fmt: skip
    assert not reading.unfounded


def test_the_journal_is_needed_from_the_oldest_newest_state(nowhere: Outside) -> None:
    shard = ShareShard(nowhere)
    journal = ShareJournal(shard)
    other = ShareKey("other", UUID(int=5), 0)
    offset = 0
    for events in (
        [Started(KEY, 0, 0)],
        [Started(other, 0, 0)],
        [Advanced(KEY, 5)],
        [PartitionKept(KEY)],
    ):
        shard.apply_all(events)
        for entry in encoded(journal.records(events, WallMs(1))):
            journal.placed(offset, entry.key, entry.value)
            offset += 1
    assert (journal.needed_from(offset), journal.count_below(offset)) == (1, 2)
    assert journal.cold(3, 9).partitions == (other,)
    assert journal.cold(9, 1).partitions == (other,)
    assert journal.cold(9, 9).partitions == (other, KEY)
    assert ShareJournal(shard).needed_from(7) == 7
