"""The share journal against bytes that it did not write, and verdicts a snapshot would hide."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.machine import encoded
from headrace.core.runs import State
from headrace.core.shard import ShareShard
from headrace.core.shard_words import Outside
from headrace.core.share_words import Acquired, Settled, ShareKey, Started
from headrace.core.spans import Spans
from headrace.core.types import MemberId, MonoMs, Span, WallMs
from headrace.log.record_codec import ShareJournal, read_share_record
from headrace.wire.primitives import Malformed

KEY = ShareKey("group", UUID(int=4), 2)

REJECTED = Settled(KEY, Span(8, 9), State.ARCHIVED, 2, "naïve reason")


class Process:
    """A shard and its journal."""

    def __init__(self, outside: Outside, updates_per_snapshot: int = 500) -> None:
        self.shard = ShareShard(outside)
        self.journal = ShareJournal(self.shard, updates_per_snapshot)

    def write(self, *events: Started | Acquired | Settled) -> list[tuple[bytes, bytes]]:
        for event in events:
            self.shard.apply(event)
        records = encoded(self.journal.records(events, WallMs(7)))
        return [(key, value) for key, value, _ in records if key is not None and value is not None]


def settled(first: int, last: int) -> Settled:
    return Settled(KEY, Span(first, last), State.ACKNOWLEDGED, 1)


def test_every_verdict_is_told_also_by_the_write_that_makes_a_snapshot(nowhere: Outside) -> None:
    """A snapshot says nothing of what lies below SPSO; its update does."""
    process = Process(nowhere, updates_per_snapshot=2)
    records = process.write(Started(KEY, 0, 0))
    for number in range(7):
        taken = Acquired(KEY, Spans.of((number, number)), 1, MemberId("m"), MonoMs(9))
        records += process.write(taken, settled(number, number))
    decoded = [read_share_record(*record) for record in records]
    told = [batch.span.first for one in decoded if one is not None for batch in one.batches]
    assert told == list(range(7))
    snapshots = [one for one in decoded if one is not None and one.state_epoch is not None]
    assert [one.start for one in snapshots] == [0, 2, 4, 6]


def test_acquisitions_are_not_written(nowhere: Outside) -> None:
    process = Process(nowhere)
    process.write(Started(KEY, 0, 0))
    assert process.write(Acquired(KEY, Spans.of((0, 9)), 1, MemberId("m"), MonoMs(9))) == []


def test_update_without_its_snapshot_stops_the_load(nowhere: Outside) -> None:
    process = Process(nowhere)
    process.write(Started(KEY, 0, 0))
    ((key, value),) = process.write(settled(0, 0))
    with pytest.raises(Malformed, match=r"update of snapshot 0 .* without it"):
        Process(nowhere).journal.events(key, value)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (None, "without a key"),
        (b"\x00\x02" + b"\x00" * 30, "record type 2 is from the future"),
        (b"\x00", "bytes wanted"),
    ],
)
def test_record_that_is_none_of_this_journal(
    nowhere: Outside, key: bytes | None, told: str
) -> None:
    with pytest.raises(Malformed, match=told):
        Process(nowhere).journal.events(key, b"\x00\x00")


@given(data=st.data())
def test_damaged_bytes_are_malformed_or_events(nowhere: Outside, data: st.DataObject) -> None:
    process = Process(nowhere)
    records = process.write(Started(KEY, 3, 1)) + process.write(settled(3, 4), REJECTED)
    key, value = map(bytearray, data.draw(st.sampled_from(records)))
    for target in (key, value):
        for _ in range(data.draw(st.integers(0, 3))):
            target[data.draw(st.integers(0, len(target) - 1))] = data.draw(st.integers(0, 255))
    try:
        events = Process(nowhere).journal.events(
            bytes(key), bytes(value[: data.draw(st.integers(0, 99))])
        )
    except Malformed:
        return
    assert all(event.key is not None for event in events if isinstance(event, Started | Settled))
