"""Long records are encoded later, from what does not change: they are those of when they arose."""

from collections.abc import Sequence
from random import Random
from uuid import UUID

import pytest

from headrace.core.leases import (
    Acquisition,
    Held,
    LeaseAcquired,
    LeaseCommitted,
    LeaseOpened,
    LeaseStaged,
    Staged,
)
from headrace.core.machine import LateEntries, encoded
from headrace.core.runs import Runs, State
from headrace.core.shard import ShareShard
from headrace.core.shard_words import Event, LeaseKept, Outside, PartitionKept
from headrace.core.share_words import Ended, Hold, Settled, ShareKey, Started, Verdict
from headrace.core.types import MemberId, Span, WallMs
from headrace.log import record_codec
from headrace.log.record_codec import ShareJournal

KEY = ShareKey("g", UUID(int=3), 0)
LEASE = ("g", "session")
HELD = tuple(Held(KEY, Span(n, n), 1) for n in range(0, 40, 2))
SAID = tuple(Staged(KEY, Span(n, n), Verdict.REJECT, "poison") for n in range(0, 20, 2))
HOLD = Hold(MemberId("ann"), None, Ended.ACKNOWLEDGED)


class _Process:
    """A shard with a journal, of a share-partition and a lease of twenty ranges."""

    def __init__(self, outside: Outside) -> None:
        self.shard = ShareShard(outside)
        self.journal = ShareJournal(self.shard)
        self.take([Started(KEY, 0, 3)])
        self.take(
            [
                Settled(KEY, Span(n, n), State.ARCHIVED if n % 4 else State.AVAILABLE, 1, why, HOLD)
                for n in range(1, 40, 2)
                for why in ("poison" if n % 4 else None,)
            ]
        )
        self.take([LeaseOpened(LEASE, 1, ("topic",)), LeaseAcquired(LEASE, 1, HELD)])

    def take(self, events: Sequence[Event]) -> Sequence[object]:
        self.shard.apply_all(events)
        return self.journal.records(events, WallMs(7))


@pytest.mark.parametrize(
    "event",
    [PartitionKept(KEY), LeaseKept(LEASE), LeaseStaged(LEASE, 1, "part", 1, SAID)],
    ids=lambda one: type(one).__name__,
)
def test_what_is_encoded_later_is_what_was_to_be_written(
    event: Event, nowhere: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = _Process(nowhere).take([event])
    monkeypatch.setattr(record_codec, "_RANGES_ON_LOOP", 5)
    process = _Process(nowhere)
    (late,) = process.take([event])
    assert isinstance(late, LateEntries)
    process.take([Settled(KEY, Span(0, 39), State.ACKNOWLEDGED, 1)])
    process.take([LeaseStaged(LEASE, 1, "other", 1, SAID), LeaseCommitted(LEASE, 1)])
    process.take([Started(KEY, 5, 4)])
    assert encoded([late]) == at_once
    assert encoded([late]) == at_once  # after a failed append it is encoded again


def test_short_records_are_encoded_at_once(nowhere: Outside) -> None:
    process = _Process(nowhere)
    kept = process.take([PartitionKept(KEY), LeaseKept(LEASE)])
    assert not any(isinstance(one, LateEntries) for one in kept)


def test_copied_runs_are_those_of_when_they_were_copied() -> None:
    rng, runs = Random(1), Runs(5)
    assert list(runs.copied().pieces()) == []
    states = (State.AVAILABLE, State.ACKNOWLEDGED, State.ARCHIVED)
    for _ in range(2_000):
        runs.lay(runs.end, runs.end + rng.randint(0, 2), runs.status(rng.choice(states)))
    before, copied = list(runs.pieces()), runs.copied()
    assert list(copied.pieces()) == before
    runs.lay(5, runs.end + 9, runs.status(State.ARCHIVED))
    assert list(copied.pieces()) == before


def test_the_ranges_of_an_acquisition_are_counted() -> None:
    assert Acquisition(HELD, {"a": SAID, "b": SAID[:3]}).ranges == 20 + 10 + 3
