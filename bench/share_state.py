"""Share-partition state when every second record of a long window was released: no broker needed.

    python bench/share_state.py [--quick] [--runs COUNT]

One member acquires all records, and releases every second one: as many separate runs as records.
Measured: what another member's acquisitions of 500 and of 100 of them take, memory of a run, the
cost of a settlement a run, of all locks' end (`longest`: what holds the event loop at once), and
recovery from the journal; each with the journal's records, by the real shard and codec. Times are
of the processor, which neighbours on the machine change less. With --quick a tenth. The last line
is one JSON object.
"""

import argparse
import gc
import json
import time
import tracemalloc
from collections.abc import Sequence
from uuid import UUID

from headrace.broker.tuning import collector_paused
from headrace.core.errors import Refused
from headrace.core.machine import encoded
from headrace.core.shard import ShareShard
from headrace.core.shard_words import Command, Event, On, Recovered
from headrace.core.share_group import Timing, TopicView
from headrace.core.share_words import (
    Acknowledge,
    Acknowledged,
    Acquire,
    Policy,
    ShareKey,
    Started,
    Verdict,
)
from headrace.core.types import MemberId, MonoMs, Now, Span, WallMs
from headrace.log.record_codec import ShareJournal
from headrace.wire import batches

_KEY = ShareKey("group", UUID(int=1), 0)
_LOCK_MS = 30_000
_BULK = 100_000  # runs that one command settles
_POLL = 500  # max.poll.records
_POLLS = 400
_JOURNAL_BATCH = 500


class _Nowhere:
    """A world with settings and without topics."""

    def policy(self, group: str) -> Policy:  # noqa: ARG002  # every group has the same
        return Policy(lock_ms=_LOCK_MS, window=1 << 40)

    def timing(self, group: str) -> Timing:  # noqa: ARG002  # the same for all groups
        return Timing()

    def starts_earliest(self, group: str) -> bool:  # noqa: ARG002  # the same for all groups
        return True

    def topic(self, name: str) -> TopicView | None:  # noqa: ARG002  # there are no topics
        return None


class _Process:
    """A shard, its journal, and how long its steps took, in seconds."""

    def __init__(self) -> None:
        self.shard = ShareShard(_Nowhere())
        self.codec = ShareJournal(self.shard)
        self.journal: list[bytes] = []
        self.mono = 0
        self._entries: list[batches.Record] = []

    @property
    def now(self) -> Now:
        return Now(MonoMs(self.mono), WallMs(self.mono))

    def run(self, command: Command) -> float:
        """Decide and apply, as the runtime does; the journal's records are part of it."""
        begun = time.process_time()
        answer = self.shard.decide(command, self.now)
        assert not isinstance(answer, Refused), answer
        self.take(answer.events)
        return time.process_time() - begun

    def take(self, events: Sequence[Event]) -> None:
        self.apply(events)
        for entry in encoded(self.codec.records(events, WallMs(7))):
            self._entries.append(batches.Record(0, 7, *entry))
        if len(self._entries) >= _JOURNAL_BATCH:
            self.flush()

    def apply(self, events: Sequence[Event]) -> None:
        self.shard.apply_all(events)

    def flush(self) -> None:
        if self._entries:
            self.journal.append(batches.build(self._entries))
            self._entries = []

    def replay(self, journal: Sequence[bytes]) -> None:
        with collector_paused():  # as the runtime does
            for data in journal:
                for record in batches.records(data):
                    self.apply(self.codec.events(record.key, record.value))
        self.run(Recovered())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of it")
    parser.add_argument("--runs", type=int, default=1_000_000, help="runs, half of them released")
    arguments = parser.parse_args()
    runs = arguments.runs // 10 if arguments.quick else arguments.runs
    print(json.dumps(measure(runs)))


def measure(runs: int) -> dict[str, float]:
    """All figures for one count of runs."""
    gc.freeze()  # as a broker that is up
    live = _Process()
    live.take([Started(_KEY, 0, 0)])
    live.run(_acquire("first", Span(0, runs - 1), runs))
    figures = {"runs": float(runs)}
    figures["settle_us_per_run"], figures["settle_longest_ms"] = _release_every_second(live, runs)
    share = live.shard.partitions[_KEY]
    assert len(share.runs) == runs
    live.flush()
    journal = list(live.journal)

    figures["recovery_s"], figures["bytes_per_run"] = _recovery(journal, runs)
    figures["journal_mb"] = round(sum(map(len, journal)) / 1e6, 1)
    figures["acquire_100_p99_ms"] = _acquisitions(live, runs, 100)
    figures["acquire_p99_ms"] = _acquisitions(live, runs, _POLL)
    figures |= _expiry(live)
    return figures


def _acquire(member: str, span: Span, records_max: int) -> On:
    return On(_KEY, Acquire(MemberId(member), [span], records_max, 1 << 40, exact=True))


def _release_every_second(live: _Process, runs: int) -> tuple[float, float]:
    took = []
    for start in range(1, runs, 2 * _BULK):
        said = [
            Acknowledged(Span(offset, offset), [Verdict.RELEASE])
            for offset in range(start, min(start + 2 * _BULK, runs), 2)
        ]
        took.append(live.run(On(_KEY, Acknowledge(MemberId("first"), said))))
        live.flush()
    return round(sum(took) / (runs / 2) * 1e6, 2), round(max(took) * 1e3, 1)


def _acquisitions(live: _Process, runs: int, records: int) -> float:
    """Milliseconds at the 99th percentile of acquisitions spread over the whole window."""
    step = max(runs // _POLLS, 4 * _POLL)
    took = sorted(
        live.run(_acquire("second", Span(first, runs - 1), records))
        for first in range(0, runs - step + 1, step)
    )
    return round(took[int(len(took) * 0.99)] * 1e3, 3)


def _expiry(live: _Process) -> dict[str, float]:
    live.mono += 2 * _LOCK_MS
    took = []
    while (due := live.shard.next_deadline()) is not None and due <= live.mono:
        begun = time.process_time()
        live.take(live.shard.tick(live.now))
        took.append(time.process_time() - begun)
        live.flush()
    return {
        "expiry_longest_ms": round(max(took) * 1e3, 1),
        "expiry_s": round(sum(took), 2),
    }


def _recovery(journal: Sequence[bytes], runs: int) -> tuple[float, float]:
    gc.collect()
    begun = time.process_time()
    again = _Process()
    again.replay(journal)
    took = time.process_time() - begun
    assert len(again.shard.partitions[_KEY].runs) >= runs - 1
    del again
    tracemalloc.start()
    again = _Process()
    again.replay(journal)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return round(took, 2), round(held / runs, 1)


if __name__ == "__main__":
    main()
