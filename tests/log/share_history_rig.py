"""A share group lived through at random, and what a plain model of it saw of every record."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from headrace.core.errors import Refused
from headrace.core.leases import Staged
from headrace.core.machine import Entry, encoded
from headrace.core.runs import State
from headrace.core.shard import ShareShard
from headrace.core.shard_words import (
    AcquireLease,
    AlterShareOffsets,
    Command,
    CommitLease,
    DeleteShareGroup,
    Keep,
    On,
    OpenLease,
    Recovered,
    ReleaseMember,
    RenewLease,
    StageLease,
)
from headrace.core.share_group import Timing, TopicView
from headrace.core.share_words import (
    Acknowledge,
    Acknowledged,
    Acquire,
    Acquired,
    DeadLettered,
    LogStartMoved,
    Policy,
    ShareKey,
    Verdict,
)
from headrace.core.types import MemberId, MonoMs, Now, Span, WallMs
from headrace.log.record_codec import ShareJournal
from headrace.log.share_history import Outcome, What

KEY = ShareKey("group", UUID(int=9), 0)
LEASE = ("group", "checkpoint")
LIMIT, LOCK_MS, LOG_END = 3, 1_000, 24
LETTERS = "letters-0"
BEGUN = 1_700_000_000_000  # on the wall clock
_MEMBERS = [MemberId("a"), MemberId("b")]
_POLICY = Policy(LIMIT, LOCK_MS, 20, 20, dead_letters=True)
_OF = {
    Verdict.ACCEPT: Outcome.ACCEPTED, Verdict.RELEASE: Outcome.RELEASED,
    Verdict.REJECT: Outcome.REJECTED, Verdict.GAP: Outcome.NO_RECORD,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """One entry of a biography; `written` is where the command that wrote it begins to write."""

    written: int
    what: Outcome | What
    at: int
    number: int = 0
    holder: str | None = None
    since: int | None = None
    seq: int | None = None


@dataclass(slots=True)
class Cell:
    """One record, and all that was seen of it."""

    state: str = "available"
    number: int = 0
    stored: int = 0
    holder: str | None = None
    since: int | None = None
    until: int = 0
    leased: tuple[int, int, int] | None = None  # seq, delivery and time of an acquisition
    ended: set[int] = field(default_factory=set)  # numbers of deliveries, since the last reset
    story: list[Seen] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return self.state in ("acknowledged", "archived", "gone")


class World:
    """The outside of a shard: one topic of one partition."""

    def policy(self, group: str) -> Policy:
        return _POLICY

    def timing(self, group: str) -> Timing:
        return Timing(session_ms=1 << 40, heartbeat_ms=0)  # nobody is waited for

    def starts_earliest(self, group: str) -> bool:
        return True

    def topic(self, name: str) -> TopicView | None:
        return TopicView(KEY.topic_id, (0,), (LOG_END,)) if name == "topic" else None


class Life:
    """Commands to a shard drawn at random, its journal, and the model that watches."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.mono = 0
        self.journal: list[tuple[Entry, int]] = []  # and when it was written
        self.pruned = 0  # so many were removed from the front
        self.cells = {offset: Cell() for offset in range(LOG_END)}
        self.start = 0
        self.seq = 0
        self.staged: dict[int, Verdict] = {}
        self.process()
        self.epoch = self.ask(OpenLease(LEASE, ("topic",), True)).epoch
        self.everywhere(What.STARTED)

    # ---- the machine

    @property
    def wall(self) -> int:
        return BEGUN + self.mono

    @property
    def lease(self) -> str:
        return self.shard.leases[LEASE].holder

    def process(self) -> None:
        """A broker with the same journal."""
        self.shard = ShareShard(World())
        self.codec = ShareJournal(self.shard, updates_per_snapshot=3, pruned=self.pruned > 0)
        for offset, (entry, _) in enumerate(self.journal, self.pruned):
            self.shard.apply_all(self.codec.events(entry.key, entry.value))
            self.codec.placed(offset, entry.key, entry.value)

    @property
    def now(self) -> Now:
        return Now(MonoMs(self.mono), WallMs(self.wall))

    @property
    def end(self) -> int:
        return self.pruned + len(self.journal)

    def ask(self, command: Command) -> Any:
        answer = self.shard.decide(command, self.now)
        if isinstance(answer, Refused):
            return answer
        self.take(answer.events)
        return answer.reply

    def take(self, events: Any) -> None:
        self.shard.apply_all(events)
        self.began = self.end
        for entry in encoded(self.codec.records(events, WallMs(self.wall))):
            self.codec.placed(self.end, entry.key, entry.value)
            self.journal.append((entry, self.wall))

    # ---- what the model sees

    def see(self, cell: Cell, what: Outcome | What, **more: Any) -> None:
        cell.story.append(Seen(self.began, what, self.wall, **more))

    def everywhere(self, what: What) -> None:
        for cell in self.cells.values():
            self.see(cell, what)

    def give(self, offset: int, holder: str) -> None:
        cell = self.cells[offset]
        cell.state, cell.holder, cell.since = "acquired", holder, self.wall
        cell.until, cell.number = self.mono + LOCK_MS, cell.number + 1

    def finish(self, cell: Cell, what: Outcome, verdict: Verdict) -> None:
        """A delivery ends, in the journal since just now."""
        since, seq = cell.since, None
        if cell.leased is not None and cell.leased[1] == cell.number and cell.holder == self.lease:
            seq = cell.leased[0]
            since = since if cell.number in cell.ended else cell.leased[2]
        self.see(cell, what, number=cell.number, holder=cell.holder, since=since, seq=seq)
        cell.ended.add(cell.number)
        cell.holder, cell.since, cell.stored = None, None, cell.number
        if verdict is Verdict.ACCEPT:
            cell.state = "acknowledged"
        elif verdict is Verdict.GAP:
            cell.state = "archived"
        elif verdict is Verdict.REJECT or cell.number >= LIMIT:
            cell.state = "archiving"
        else:
            cell.state = "available"

    def held(self, is_wanted: Callable[[Cell], bool]) -> list[Cell]:
        cells = self.cells.values()
        return [cell for cell in cells if cell.state == "acquired" and is_wanted(cell)]

    def pass_finished(self) -> None:
        while self.start < LOG_END and self.cells[self.start].finished:
            self.start += 1

    # ---- steps

    def step(self) -> None:
        """One thing happens, and time goes on."""
        steps = (
            self.acquire, self.acquire, self.acknowledge, self.acknowledge, self.acknowledge,
            self.leave, self.copy, self.lease_acquires, self.lease_renews, self.lease_commits,
            self.restart, self.snapshot, self.prune, self.lose_the_front, self.administer,
        )  # fmt: skip
        self.rng.choice(steps)()
        self.pass_finished()
        assert self.shard.partitions[KEY].start == self.start
        self.elapse(self.rng.choice((1, 100, 400)))
        self.pass_finished()

    def elapse(self, ms: int) -> None:
        self.mono += ms
        before = self.end
        self.take(self.shard.tick(self.now))
        lapsed = self.held(lambda cell: cell.until <= self.mono)
        assert bool(lapsed) == (self.end > before)
        for cell in lapsed:
            self.finish(cell, Outcome.LOCK_EXPIRED, Verdict.RELEASE)

    def acquire(self) -> None:
        looked_from = self.shard.partitions[KEY].next_fetch_offset()
        first = looked_from + self.rng.choice((0, 0, 0, 0, 2))
        last = min(first + self.rng.randrange(8), LOG_END - 1)
        if first > last:
            return
        member = self.rng.choice(_MEMBERS)
        wanted = Acquire(member, [Span(first, last)], 5, 20, exact=True, looked_from=looked_from)
        reply = self.ask(On(KEY, wanted))
        for offset in range(looked_from, first):
            cell = self.cells[offset]
            if cell.state == "available":
                cell.state = "archived"
                self.see(cell, What.NO_RECORD)
        for event in reply:
            if isinstance(event, Acquired):
                for first, last in event.spans:
                    for offset in range(first, last + 1):
                        self.give(offset, member)

    def acknowledge(self) -> None:
        held = {o: cell for o, cell in self.cells.items() if cell.holder in _MEMBERS}
        mine = [offset for offset, cell in held.items() if cell.state == "acquired"]
        if not mine:
            return
        chosen = sorted(self.rng.sample(mine, self.rng.randint(1, len(mine))))
        member = self.cells[chosen[0]].holder
        chosen = [offset for offset in chosen if self.cells[offset].holder == member]
        verdicts = [self.rng.choice((*_OF, Verdict.RENEW)) for _ in chosen]
        said = [
            Acknowledged(Span(offset, offset), [verdict], self.rng.choice((None, "why")))
            for offset, verdict in zip(chosen, verdicts, strict=True)
        ]
        assert not isinstance(self.ask(On(KEY, Acknowledge(MemberId(member or ""), said))), Refused)
        for offset, verdict in zip(chosen, verdicts, strict=True):
            if verdict is Verdict.RENEW:
                self.cells[offset].until = self.mono + LOCK_MS
            else:
                self.finish(self.cells[offset], _OF[verdict], verdict)

    def leave(self) -> None:
        member = self.rng.choice(_MEMBERS)
        self.ask(ReleaseMember("group", member))
        for cell in self.held(lambda cell: cell.holder == member):
            self.finish(cell, Outcome.MEMBER_LEFT, Verdict.RELEASE)

    def copy(self) -> None:
        where = self.rng.choice((LETTERS, None))
        waiting = [offset for offset, cell in self.cells.items() if cell.state == "archiving"]
        if not waiting:
            return
        self.ask(On(KEY, DeadLettered([Span(offset, offset) for offset in waiting], where)))
        for offset in waiting:
            self.cells[offset].state = "archived"
            self.see(self.cells[offset], What.DEAD_LETTER if where else What.NO_DEAD_LETTER)

    def lease_acquires(self) -> None:
        held = self.ask(AcquireLease(LEASE, self.epoch, self.seq + 1, 6))
        if not held:
            return
        self.seq += 1
        for one in held:
            for offset in one.span:
                self.give(offset, self.lease)
                cell = self.cells[offset]
                cell.leased = self.seq, cell.number, self.wall

    def lease_renews(self) -> None:
        """Also takes back what nobody else was given since its lock lapsed."""
        self.ask(RenewLease(LEASE, self.epoch))
        self.take_back()

    def take_back(self) -> None:
        for cell in self.cells.values():
            if cell.leased is None:
                continue
            if cell.state == "available" and cell.leased[1] - cell.number in (0, 1):
                cell.state, cell.holder, cell.since = "acquired", self.lease, self.wall
                cell.number = cell.leased[1]
            if cell.state == "acquired" and cell.holder == self.lease:
                cell.until = self.mono + LOCK_MS

    def lease_commits(self) -> None:
        outstanding = [one for one in self.shard.leases[LEASE].acquisitions if one <= self.seq]
        if not outstanding:
            return
        mine = [o for o, cell in self.cells.items() if cell.leased and cell.leased[0] == self.seq]
        rejected = [offset for offset in mine if self.rng.random() < 0.3]
        staged = tuple(Staged(KEY, Span(o, o), Verdict.REJECT, "not JSON") for o in rejected)
        assert not isinstance(self.ask(StageLease(LEASE, self.epoch, self.seq, staged)), Refused)
        self.ask(CommitLease(LEASE, self.epoch, self.seq))
        for offset, cell in self.cells.items():
            if cell.leased is None:
                continue
            is_there = cell.state == "available" or cell.holder == self.lease
            if is_there and not cell.finished and cell.number == cell.leased[1]:
                verdict = Verdict.REJECT if offset in rejected else Verdict.ACCEPT
                cell.holder = self.lease
                self.finish(cell, _OF[verdict], verdict)
            cell.leased = None

    def restart(self) -> None:
        self.process()
        for cell in self.held(lambda _: True):
            cell.state, cell.holder, cell.since, cell.number = "available", None, None, cell.stored
        self.ask(Recovered())
        self.take_back()

    def snapshot(self) -> None:
        self.ask(Keep((KEY,), (LEASE,)))

    def prune(self) -> None:
        if self.rng.random() < 0.3:
            until = self.codec.needed_from(self.end)
            del self.journal[: until - self.pruned]
            self.pruned = until

    def lose_the_front(self) -> None:
        """Retention removes the first records of the log."""
        if self.rng.random() < 0.8 or self.start >= LOG_END - 1:
            return
        start = self.start + 1
        self.ask(On(KEY, LogStartMoved(start)))
        cell = self.cells[self.start]
        self.see(cell, What.REMOVED)
        cell.state, cell.holder, cell.leased = "gone", None, None
        self.start = start

    def administer(self) -> None:
        """Set the start, or delete the group and begin anew; nobody is a member any more."""
        if self.rng.random() < 0.7:
            return
        self.elapse(LOCK_MS)
        self.copy()
        if self.rng.random() < 0.5:
            start = self.rng.randrange(LOG_END)
            assert not isinstance(
                self.ask(AlterShareOffsets("group", (("topic", 0, start),))), Refused
            )
            self.anew(start)
            self.everywhere(What.RESET)
            return
        assert not isinstance(self.ask(DeleteShareGroup("group")), Refused)
        self.everywhere(What.DELETED)
        self.epoch = self.ask(OpenLease(LEASE, ("topic",), True)).epoch
        self.seq = 0
        self.anew(0)
        self.everywhere(What.STARTED)

    def anew(self, start: int) -> None:
        for offset, cell in self.cells.items():
            cell.state = "gone" if offset < start else "available"
            cell.number = cell.stored = 0
            cell.holder = cell.since = cell.leased = None
            cell.ended.clear()
        self.start = start


STATES = {
    State.AVAILABLE: "available", State.ACKNOWLEDGED: "acknowledged",
    State.ARCHIVING: "archiving", State.ARCHIVED: "archived", None: "gone",
}  # fmt: skip
