"""A log against the plainest model of one: a list of records, and what of it is promised.

Hypothesis appends, rolls, syncs, deletes, drops, compacts, closes in order, kills the process or
cuts the power, fails syncs of files and of folders, and opens again; after each step every record
that has to be there is read back, once and in order, and nothing that was deleted comes back.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count as count_from
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.types import WallMs
from headrace.log.api import OffsetOutOfRange
from headrace.log.producers import Duplicate
from headrace.log.recovery_point import RecoveryPoint
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import Record

from .names_disk import NamesDisk

FOLDER = "orders-0"
PRODUCER = {"producer_id": 7, "producer_epoch": 0}


class LogMachine(RuleBasedStateMachine):
    """`records` are (offset, timestamp, value), deleted ones included; `synced` of offsets hold."""

    @initialize(
        segment_bytes=st.sampled_from([1, 200, 500, 1 << 20]),
        segment_ms=st.sampled_from([5, 1 << 40]),
        interval=st.sampled_from([0, 100, 4096]),
    )
    def begin(self, segment_bytes: int, segment_ms: int, interval: int) -> None:
        self.disk = NamesDisk()
        self.disk.write(f"{FOLDER}/{0:020d}.log", b"", durable=False)
        RecoveryPoint(self.disk, FOLDER).secure()  # and with it the name of the segment
        self.kept_start = 0
        self.settings = {
            "segment_bytes": segment_bytes,
            "segment_ms": segment_ms,
            "index_interval_bytes": interval,
        }
        self.records: list[tuple[int, int, bytes]] = []
        self.start = self.synced = self.end = self.time = 0
        self.sent: list[tuple[int, batches.BatchHeader]] = []
        self.open(clean=False)

    def open(self, *, clean: bool) -> None:
        settings: dict[str, Any] = self.settings
        self.log = SegmentedLog(
            self.disk,
            FOLDER,
            clean=clean,
            start_offset=self.kept_start,
            **settings,
        )

    @rule(count=st.integers(1, 4), size=st.integers(0, 90), step=st.integers(-3, 9))
    def append(self, count: int, size: int, step: int) -> None:
        self.time = max(0, self.time + step)
        records = [Record(0, self.time + n % 2, None, b"v" * size) for n in range(count)]
        sequence = 0 if not self.sent else self.sent[-1][1].base_sequence + len_of(self.sent[-1][1])
        data = bytearray(batches.build(records, base_sequence=sequence, **PRODUCER))
        headers = batches.headers(data)
        assert self.log.append(data, headers) == self.end
        self.sent.append((self.end, headers[0]))
        for record in records:
            self.records.append((self.end, record.timestamp, b"v" * size))
            self.end += 1
        # A segment is synced before the next one begins.
        self.synced = max(self.synced, self.log.segments()[-1].base_offset)

    @rule()
    def roll(self) -> None:
        self.log.roll()
        active = self.log.segments()[-1]
        assert (active.base_offset, active.size, active.sealed) == (self.end, 0, False)
        self.synced = self.end

    @rule()
    def sync(self) -> None:
        self.log.sync()
        self.synced = self.log.durable_end
        assert self.synced == self.end

    @rule(part=st.floats(0, 1))
    def delete(self, part: float) -> None:
        offset = self.start + int((self.end - self.start) * part)
        self.kept_start = max(self.kept_start, offset)
        self.log.advance_start(offset)
        self.start = offset
        with pytest.raises(OffsetOutOfRange):
            self.log.advance_start(self.end + 1)

    @rule(part=st.floats(0, 1))
    def drop(self, part: float) -> None:
        before = self.log.segments()
        until = self.start + int((self.end - self.start) * part)
        self.log.allow_drop(until)
        dropped = self.log.drop_segments(until)
        assert dropped == len([one for one in before[:-1] if one.end_offset <= until])
        assert self.log.segments() == before[dropped:]
        self.start = max(self.start, before[dropped].base_offset)

    @precondition(lambda self: len(self.log.segments()) > 2)
    @rule(data=st.data(), prepared=st.booleans(), crashes=st.booleans())
    def merge(self, data: st.DataObject, prepared: bool, crashes: bool) -> None:
        """What a cleaner does with nothing to clean: neighbouring segments become one."""
        sealed = self.log.segments()[:-1]
        first = data.draw(st.integers(0, len(sealed) - 1))
        chosen = sealed[first : first + 1 + data.draw(st.integers(0, 2))]
        cleaned = f"{chosen[0].path}.log.cleaned"
        self.disk.write(cleaned, b"".join(self.disk.read(f"{one.path}.log") for one in chosen))
        bases = [one.base_offset for one in chosen]
        if prepared:
            self.log.prepare(bases, cleaned)
            assert self.log.take_place(bases)
            if crashes:  # which leaves old segments beside the one that takes their place
                self.killed()
                return
            self.log.finish_replacement(self.log.put_away_replaced())
        else:
            self.log.replace(bases, cleaned)
        assert chosen[-1].end_offset in {one.end_offset for one in self.log.segments()}

    @rule()
    def stop_and_start(self) -> None:
        self.log.settle()
        self.log.close()
        self.synced = self.end
        self.open(clean=True)

    @rule(
        keep=st.floats(0, 1),
        names=st.booleans(),
        again=st.none() | st.tuples(st.integers(0, 4), st.booleans()),
    )
    def power_cut(self, keep: float, names: bool, again: tuple[int, bool] | None) -> None:
        """The power is cut, perhaps a second time amid the opening that follows."""
        cut = self.disk.crash if names else self.disk.power_cut
        cut(keep)
        if again is not None:
            with self.failing_folder(again[0]), suppress(InterruptedError):
                self.open(clean=False)
            cut(1.0 if again[1] else keep)
        self.opened_after(self.synced)

    @rule(at=st.integers(0, 2), removes=st.booleans(), dies=st.booleans(), cuts=st.booleans())
    def failing_roll(self, at: int, removes: bool, dies: bool, cuts: bool) -> None:
        """A folder cannot be synced, and perhaps no file be removed; or the process dies there.

        Records that are synced afterwards outlive a power cut that takes names.
        """
        with (
            pytest.MonkeyPatch.context() as patch,
            self.failing_folder(at),
            suppress(InterruptedError),
        ):
            if not removes:
                patch.setattr(self.disk, "remove", self.not_removed)
            self.log.roll()
        self.synced = self.log.durable_end
        if dies:
            self.killed()
        if cuts:
            self.append(1, 9, 1)
            self.sync()
            self.power_cut(0.0, names=False, again=None)

    def not_removed(self, path: str) -> None:
        raise InterruptedError(path)

    @contextmanager
    def failing_folder(self, at: int) -> Iterator[None]:
        """Let one sync of a folder fail with an InterruptedError."""
        syncs = count_from()
        self.disk.fails = lambda: next(syncs) == at
        try:
            yield
        finally:
            self.disk.fails = lambda: False

    @rule()
    def killed(self) -> None:
        self.disk.crash(1.0)
        self.opened_after(self.end)

    @rule(keep=st.booleans())
    def failing_sync(self, keep: bool) -> None:
        self.sync()
        self.append(2, 9, 1)
        self.append(1, 9, 1)
        self.disk.failing.add("sync")
        with pytest.raises(OSError, match="Input/output"):
            self.log.sync()
        self.disk.failing.clear()
        self.log.heal(keep=keep)
        self.cut(self.end if keep else self.synced)
        self.synced = self.end
        assert self.log.durable_end == self.end

    def opened_after(self, at_least: int) -> None:
        self.open(clean=False)
        assert self.log.end_offset >= max(at_least, self.kept_start)
        self.cut(self.log.end_offset)
        if self.end == self.kept_start > at_least and not len(self.log.producers):
            self.sent.clear()  # all that survived was deleted: the log began anew
        self.synced = self.end

    def cut(self, end: int) -> None:
        """What was not synced is gone; the log goes on with `end`."""
        self.records = [one for one in self.records if one[0] < end]
        self.sent = [one for one in self.sent if one[0] < end]
        self.end = end

    @invariant()
    def everything_kept_is_read_back(self) -> None:
        assert (self.log.start_offset, self.log.end_offset) == (self.start, self.end)
        offset, found = self.start, []
        while offset < self.end:
            piece = self.log.read(offset, 300)
            found += [one for one in batches.records(piece.data) if one.offset >= offset]
            offset = piece.headers[-1].last_offset + 1
        kept = [one for one in self.records if one[0] >= self.start]
        assert [(one.offset, one.timestamp, one.value) for one in found] == kept
        for wrong in (self.start - 1, self.end + 1):
            with pytest.raises(OffsetOutOfRange):
                self.log.read(wrong, 1)

    @invariant()
    def times_are_found(self) -> None:
        kept = [one for one in self.records if one[0] >= self.start]
        for asked in {0, self.time, self.time - 4, *(one[1] for one in kept[:3])}:
            wanted = next(((one[0], one[1]) for one in kept if one[1] >= asked), None)
            assert self.log.offset_for_time(WallMs(asked)) == wanted
        highest = max((one[1] for one in kept), default=-1)
        first = next(((one[0], one[1]) for one in kept if one[1] == highest), None)
        assert self.log.offset_of_max_time() == first

    @invariant()
    def the_last_five_batches_are_known(self) -> None:
        for base_offset, header in self.sent[-5:]:
            assert self.log.producers.check(header) == Duplicate(base_offset)


def len_of(header: batches.BatchHeader) -> int:
    return header.last_offset_delta + 1


LogMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30)
TestLogModel = LogMachine.TestCase
