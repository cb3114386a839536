"""A share-partition and a lease against a model with one entry an offset; crashes included.

The model is written from the seed's state diagram and docs/spark.md and shares no code with the
machine. After every step both agree, and the journal alone rebuilds the state without its locks.
"""

from itertools import pairwise
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.errors import Refused, Why
from headrace.core.leases import Acquisition, Staged
from headrace.core.machine import Entry, encoded
from headrace.core.runs import State
from headrace.core.shard import ShareShard
from headrace.core.shard_words import (
    AcquireLease,
    AlterShareOffsets,
    Command,
    CommitLease,
    DeleteShareGroup,
    DeleteShareOffsets,
    On,
    OpenLease,
    Recovered,
    ReleaseMember,
    RenewLease,
    StageLease,
)
from headrace.core.share_group import Heartbeat
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import (
    Acknowledge,
    Acknowledged,
    Acquire,
    Acquired,
    DeadLettered,
    Settled,
    Verdict,
)
from headrace.core.types import MemberId, MonoMs, Now, Span, WallMs
from headrace.log.record_codec import ShareJournal

from .share_world import KEY, LEASE, LIMIT, LOCK_MS, LOG_END, MEMBERS, WINDOW, Cell, World, durable


class Deliveries(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.mono = 0
        self.journal_records: list[Entry] = []
        self.journal_start = 0  # what is before it was pruned
        self.live, self.codec = self._machine()
        self.cells: dict[int, Cell] = {}
        self.end = 0
        self.seq = 0
        self.outstanding: dict[int, list[int]] = {}
        self.staged: dict[int, dict[int, Verdict]] = {}
        self.highest_start = 0
        self.accepted: set[int] = set()

    def _machine(self) -> tuple[ShareShard, ShareJournal]:
        shard = ShareShard(World())
        return shard, ShareJournal(shard, updates_per_snapshot=3, pruned=self.journal_start > 0)

    def run(self, command: Command) -> Any:
        answer = self.live.decide(command, Now(MonoMs(self.mono), WallMs(self.mono)))
        if isinstance(answer, Refused):
            return answer
        self.take(answer.events)
        return answer.reply

    def take(self, events: Any) -> None:
        for event in events:
            if isinstance(event, Acquired):
                again = {o for one in event.spans for o in Span(*one)} & self.accepted
                assert not again, f"accepted once, delivered again: {again}"
            if isinstance(event, Settled) and event.state is State.ACKNOWLEDGED:
                self.accepted |= set(event.span)
            self.live.apply(event)
        for entry in encoded(self.codec.records(events, WallMs(self.mono))):
            self.codec.placed(self.journal_end, entry.key, entry.value)
            self.journal_records.append(entry)

    @property
    def journal_end(self) -> int:
        return self.journal_start + len(self.journal_records)

    @property
    def partition(self) -> SharePartition:
        return self.live.partitions[KEY]

    @property
    def holder(self) -> str:
        return self.live.leases[LEASE].holder

    def start(self) -> int:
        at = 0
        while at < self.end and self.cells[at].finished:
            at += 1
        return at

    def give(self, offset: int, holder: str, deliveries: int) -> None:
        cell = self.cells[offset]
        if cell.state != "acquired":
            cell.since = self.mono
        cell.state, cell.holder, cell.deliveries = "acquired", holder, deliveries
        cell.until = self.mono + LOCK_MS

    def expect_acquire(self, first: int, last: int, budget: int, holder: str) -> list[int]:
        """Which records an exact acquisition must take, and take them."""
        taken: list[int] = []
        for offset in range(max(first, self.start()), min(last + 1, self.end)):
            if self.cells[offset].state == "available" and len(taken) < budget:
                taken.append(offset)
        unfinished = sum(1 for o in range(self.end) if not self.cells[o].finished)
        fresh = max(0, min(budget - len(taken), WINDOW - unfinished, last + 1 - self.end))
        if first <= self.end:
            for _ in range(fresh):
                self.cells[self.end] = Cell()
                taken.append(self.end)
                self.end += 1
        for offset in taken:
            self.give(offset, holder, self.cells[offset].deliveries + 1)
        return taken

    def mine(self, offset: int, deliveries: int) -> bool:
        cell = self.cells.get(offset)
        return cell is not None and cell.may_be_taken_back(self.holder, deliveries)

    def reclaim(self) -> tuple[int, int]:
        held = lost = 0
        for offsets in self.outstanding.values():
            for offset in offsets:
                deliveries = self.cells[offset].leased
                assert deliveries is not None
                if self.mine(offset, deliveries):
                    self.give(offset, self.holder, deliveries)
                    held += 1
                else:
                    lost += 1
        return held, lost

    # ---- steps

    @initialize()
    def subscribe(self) -> None:
        """Join as the first member, which never falls silent, and open the lease."""
        joined = self.run(Heartbeat("group", MEMBERS[0], 0, frozenset({"topic"})))
        assert joined.assignment
        self.epoch = self.run(OpenLease(LEASE, ("topic",), True)).epoch

    @rule(
        member=st.sampled_from(MEMBERS),
        size=st.integers(1, 12),
        budget=st.integers(1, 15),
        back=st.integers(0, 5),
    )
    def acquire(self, member: MemberId, size: int, budget: int, back: int) -> None:
        first = max(self.start(), self.partition.next_fetch_offset() - back)
        last = min(first + size - 1, LOG_END - 1)
        if first > last:
            return
        command = Acquire(member, [Span(first, last)], budget, WINDOW, exact=True)
        events = self.run(On(KEY, command))
        taken = [Span(*bounds) for event in events for bounds in event.spans]
        assert [offset for span in taken for offset in span] == self.expect_acquire(
            first, last, budget, member
        )

    @rule(data=st.data(), member=st.sampled_from(MEMBERS), verdict=st.sampled_from([*Verdict]))
    def acknowledge(self, data: st.DataObject, member: MemberId, verdict: Verdict) -> None:
        first = data.draw(st.integers(0, self.end + 1))
        last = data.draw(st.integers(first, min(first + 6, self.end + 2)))
        live_part = [o for o in range(first, last + 1) if o >= self.start()]
        allowed = last < self.start() or (
            last < self.end
            and all(
                self.cells[o].state == "acquired" and self.cells[o].holder == member
                for o in live_part
            )
        )
        said = Acknowledge(member, [Acknowledged(Span(first, last), [verdict])])
        answer = self.run(On(KEY, said))
        assert isinstance(answer, Refused) != allowed
        if allowed:
            for offset in live_part:
                if verdict is Verdict.RENEW:
                    self.give(offset, member, self.cells[offset].deliveries)
                else:
                    self.cells[offset].settle(verdict)

    @rule(ms=st.sampled_from([1, 400, 999, 1_000]))
    def elapse(self, ms: int) -> None:
        self.mono += ms
        self.take(self.live.tick(Now(MonoMs(self.mono), WallMs(self.mono))))
        for cell in self.cells.values():
            if cell.state == "acquired" and cell.until <= self.mono:
                cell.settle(Verdict.RELEASE)

    @rule(member=st.sampled_from(MEMBERS))
    def session_ends(self, member: MemberId) -> None:
        self.run(ReleaseMember("group", member))
        for cell in self.cells.values():
            if cell.state == "acquired" and cell.holder == member:
                cell.settle(Verdict.RELEASE)

    @rule()
    def dead_letters_are_written(self) -> None:
        for run in [run for run in self.partition.runs if run.state is State.ARCHIVING]:
            self.run(On(KEY, DeadLettered([run.span])))
        for cell in self.cells.values():
            if cell.state == "archiving":
                cell.state = "archived"
        assert KEY not in self.live.archiving

    @rule(budget=st.integers(1, 15))
    def lease_acquires(self, budget: int) -> None:
        self.seq += 1
        held = self.run(AcquireLease(LEASE, self.epoch, self.seq, budget))
        free = (o for o in range(self.start(), self.end) if self.cells[o].state == "available")
        first = next(free, self.end)
        taken = self.expect_acquire(first, LOG_END - 1, budget, self.holder)
        assert [offset for one in held for offset in one.span] == taken
        if not taken:
            self.seq -= 1
            return
        for offset in taken:
            self.cells[offset].leased = self.cells[offset].deliveries
        for offsets in self.outstanding.values():
            offsets[:] = [o for o in offsets if o not in taken]  # the newest number owns it
        self.outstanding[self.seq] = taken

    @precondition(lambda self: self.outstanding)
    @rule(data=st.data())
    def lease_acquires_again_after_a_lost_answer(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.outstanding)))
        before = self.live.leases[LEASE].acquisitions[seq].held
        assert self.run(AcquireLease(LEASE, self.epoch, seq, 5)) == before
        self.reclaim()

    @rule()
    def lease_renews(self) -> None:
        self.run(RenewLease(LEASE, self.epoch))
        self.reclaim()

    @precondition(lambda self: self.outstanding)
    @rule(data=st.data(), verdict=st.sampled_from([Verdict.RELEASE, Verdict.REJECT]))
    def lease_stages(self, data: st.DataObject, verdict: Verdict) -> None:
        seq = data.draw(st.sampled_from(sorted(self.outstanding)))
        offsets = self.outstanding[seq]
        chosen = data.draw(st.lists(st.sampled_from(offsets), unique=True)) if offsets else []
        staged = tuple(Staged(KEY, Span(o, o), verdict, "why") for o in chosen)
        assert not isinstance(self.run(StageLease(LEASE, self.epoch, seq, staged)), Refused)
        self.staged[seq] = dict.fromkeys(chosen, verdict)

    @precondition(lambda self: self.outstanding)
    @rule(data=st.data())
    def lease_commits(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.outstanding)))
        self.run(CommitLease(LEASE, self.epoch, seq))
        for number in [n for n in sorted(self.outstanding) if n <= seq]:
            for offset in self.outstanding.pop(number):
                deliveries = self.cells[offset].leased
                assert deliveries is not None
                if self.mine(offset, deliveries):
                    said = self.staged.get(number, {}).get(offset, Verdict.ACCEPT)
                    self.cells[offset].settle(said, self.holder)
                self.cells[offset].leased = None
            self.staged.pop(number, None)

    @rule()
    def driver_restarts(self) -> None:
        stale = self.epoch
        self.epoch = self.run(OpenLease(LEASE, ("topic",), True)).epoch
        assert isinstance(self.run(RenewLease(LEASE, stale)), Refused)
        self.reclaim()

    def empty_the_group(self) -> None:
        """Have everybody go, which a lease does by being silent for as long as a lock lasts."""
        self.run(Heartbeat("group", MEMBERS[0], 0, frozenset({"topic"})))  # as after a crash
        alter = AlterShareOffsets("group", (("topic", 0, 0),))
        for change in (alter, DeleteShareOffsets("group", ("topic",)), DeleteShareGroup("group")):
            assert self.run(change).why is Why.NON_EMPTY_GROUP
        self.run(Heartbeat("group", MEMBERS[0], -1))
        self.elapse(LOCK_MS)
        if any(cell.state == "archiving" for cell in self.cells.values()):
            assert self.run(alter).why is Why.COORDINATOR_GONE
            self.dead_letters_are_written()

    @rule(start=st.integers(0, LOG_END))
    def offsets_are_set(self, start: int) -> None:
        self.empty_the_group()
        held = {seq: one.held for seq, one in self.live.leases[LEASE].acquisitions.items()}
        assert self.run(AlterShareOffsets("group", (("topic", 0, start),))) == (None,)
        assert self.partition.start == self.partition.end == start
        left = self.live.leases[LEASE].acquisitions
        assert {seq: one.held for seq, one in left.items()} == dict.fromkeys(held, ())
        self.cells = {offset: Cell("acknowledged") for offset in range(start)}
        self.end = self.highest_start = start
        self.accepted.clear()
        self.outstanding = {seq: [] for seq in self.outstanding}
        self.staged.clear()
        self.run(Heartbeat("group", MEMBERS[0], 0, frozenset({"topic"})))

    @rule(topics_alone=st.booleans())
    def state_is_deleted(self, topics_alone: bool) -> None:
        self.empty_the_group()
        if topics_alone:
            assert self.run(DeleteShareOffsets("group", ("topic",))) == (None,)
            assert not self.live.leases[LEASE].acquisitions.get(self.seq, Acquisition(())).held
            self.outstanding = {seq: [] for seq in self.outstanding}
        else:
            self.run(DeleteShareGroup("group"))
            assert not self.live.leases
            assert not self.live.groups
            self.outstanding, self.seq = {}, 0
        rebuilt, _ = self._replayed()
        assert rebuilt.partitions == self.live.partitions == {}
        assert rebuilt.leases == self.live.leases
        self.cells, self.end, self.highest_start = {}, 0, 0
        self.accepted.clear()
        self.staged.clear()
        self.subscribe()

    @rule()
    def crash(self) -> None:
        self.live, self.codec = self._replayed()
        self.run(Recovered())
        for cell in self.cells.values():
            if cell.state == "acquired":
                cell.state, cell.holder = "available", None
                cell.deliveries = cell.stored
        self.reclaim()

    @rule(renew=st.booleans())
    def journal_is_pruned(self, renew: bool) -> None:
        if renew:
            self.run(self.codec.cold(self.journal_end, 10))
        needed = self.codec.needed_from(self.journal_end)
        del self.journal_records[: needed - self.journal_start]
        self.journal_start = max(self.journal_start, needed)

    def _replayed(self) -> tuple[ShareShard, ShareJournal]:
        shard, codec = self._machine()
        for offset, (key, value, _) in enumerate(self.journal_records, self.journal_start):
            for event in codec.events(key, value):
                shard.apply(event)
            codec.placed(offset, key, value)
        assert not codec.unfounded
        return shard, codec

    # ---- what must always hold

    @invariant()
    def machine_and_model_agree(self) -> None:
        if KEY not in self.live.partitions:
            return
        assert self.partition.start == self.start()
        seen = {
            offset: (run.state.name.lower(), run.deliveries, run.holder, run.since)
            for run in self.partition.runs
            for offset in run.span
        }
        expected = {
            offset: cell.seen for offset, cell in self.cells.items() if offset >= self.start()
        }
        # After a crash the tail that nobody settled is not in flight any more.
        for offset in range(self.partition.end, self.end):
            assert expected.pop(offset)[:2] == ("available", 0)
        assert seen == expected

    @invariant()
    def invariants_hold(self) -> None:
        if KEY not in self.live.partitions:
            return
        assert self.partition.start >= self.highest_start
        self.highest_start = self.partition.start
        assert all(run.deliveries <= LIMIT for run in self.partition.runs)
        runs = list(self.partition.runs)
        assert all(a.span.last + 1 == b.span.first for a, b in pairwise(runs))
        assert not any(a.alike(b) for a, b in pairwise(runs))

    @invariant()
    def journal_rebuilds_the_state_without_locks(self) -> None:
        if KEY not in self.live.partitions:
            return
        rebuilt, _ = self._replayed()
        assert durable(rebuilt.partitions[KEY]) == durable(self.partition)
        assert rebuilt.partitions[KEY].start == self.partition.start
        ours, theirs = self.live.leases.get(LEASE), rebuilt.leases.get(LEASE)
        assert ours == theirs
        assert rebuilt.archive.lists == self.live.archive.lists


Deliveries.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
TestDeliveries = Deliveries.TestCase
