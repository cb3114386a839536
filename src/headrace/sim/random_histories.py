"""Random histories of the core and its journal alone, against the reference model: many, and quick.

No log, no broker, no network: commands go to the machine of a shard, its events through the codec
of its journal, and a crash replays what was encoded. After each step machine and model agree on
every record. `World` is what finds faults between the parts; this finds those inside.
"""

from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

from headrace.core.errors import Refused, Why
from headrace.core.leases import Staged
from headrace.core.machine import Entry
from headrace.core.runs import State
from headrace.core.shard import ShareShard
from headrace.core.shard_words import (
    AcquireLease,
    AdminCommand,
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
from headrace.core.share_group import Heartbeat, Timing, TopicView
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
from headrace.sim.model import ACQUIRED, ARCHIVING, LEASE, Model, Taken

STEPS_MAX = 16
_TOPIC = UUID(int=9)
_KEY = ShareKey("group", _TOPIC, 0)
_LEASE = ("group", "checkpoint")
_LOCK_MS = 1000
_LOG_END = 60
_MEMBERS = ("ann", "bob")
_VERDICTS = {
    "accept": Verdict.ACCEPT,
    "release": Verdict.RELEASE,
    "reject": Verdict.REJECT,
    "renew": Verdict.RENEW,
    "gap": Verdict.GAP,
}


class _Outside:
    """What decisions may read; as drawn."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._timing = Timing(session_ms=1 << 40)

    def policy(self, group: str) -> Policy:  # noqa: ARG002  # there is one group
        return self._policy

    def timing(self, group: str) -> Timing:  # noqa: ARG002  # there is one group
        return self._timing

    def starts_earliest(self, group: str) -> bool:  # noqa: ARG002  # there is one group
        return True

    def topic(self, name: str) -> TopicView | None:  # noqa: ARG002  # there is one topic
        return TopicView(_TOPIC, (0,), (_LOG_END,))


class RandomHistory:
    """One history; `run` returns how many steps it had. Raises: AssertionError where they part."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = Random(seed)
        limit, window, dead = rng.randint(2, 4), rng.choice((6, 30)), rng.random() < 0.5
        self._policy = Policy(limit, _LOCK_MS, window, window, dead_letters=dead)
        self._window = window
        self._outside = _Outside(self._policy)
        self._updates_per_snapshot = rng.choice((0, 1, 3, 500))
        self._model = Model(limit=limit, lock_ms=_LOCK_MS, window=window, dead_letters=dead)
        self._entries: list[Entry] = []
        self._begin = 0  # what is before it was pruned
        self._mono = 0
        self._epoch = 0
        self._number = 0
        self._shard, self._codec = self._machine()
        self.steps: list[str] = []

    def run(self) -> int:
        """Draw and take the steps, comparing after each."""
        self._join()
        choices: list[Callable[[], str]] = [
            *[self._acquire] * 5, *[self._acknowledge] * 6, *[self._elapse] * 2,
            *[self._lease_acquires] * 2, *[self._crash] * 2, self._session_ends, self._copy,
            self._cut, self._lease_asks_again, self._lease_renews, self._lease_stages,
            self._lease_commits, self._driver_restarts, self._reset, self._delete, self._prune,
        ]  # fmt: skip
        for _ in range(self._rng.randint(4, STEPS_MAX)):
            self.steps.append(self._rng.choice(choices)())
            self._agree()
        return len(self.steps)

    def _join(self) -> None:
        """A member that never falls silent joins, and the lease is opened."""
        self._send(Heartbeat("group", MemberId("ann"), 0, frozenset({"topic"})))
        self._epoch = self._send(OpenLease(_LEASE, ("topic",), True)).epoch
        self._model.reclaim(self._mono)

    # ---- steps

    def _acquire(self) -> str:
        partition, rng = self._shard.partitions[_KEY], self._rng
        holder = rng.choice(_MEMBERS)
        first = max(partition.start, partition.next_fetch_offset() - rng.randrange(4))
        batches: list[Span] = []
        at = first
        for _ in range(rng.randint(1, 4)):
            size = rng.randint(1, 6)
            if at + size > _LOG_END:
                break
            batches.append(Span(at, at + size - 1))
            at += size
        if not batches:
            return "the log is at its end"
        budget, exact = rng.randint(1, 12), rng.random() < 0.5
        may = self._model.may_give(first, at - 1)
        events = self._send(
            On(_KEY, Acquire(MemberId(holder), batches, budget, self._window, exact))
        )
        taken: Taken = [
            (offset, event.deliveries)
            for event in events
            if isinstance(event, Acquired)
            for offset in event.span
        ]
        assert bool(taken) == may, f"{taken} of {first}-{at - 1}, may give: {may}"
        self._model.give(holder, taken, self._mono, budget if exact else None)
        return f"{holder} acquires {budget} of {first}-{at - 1}, exact {exact}: {taken}"

    def _acknowledge(self) -> str:
        rng, model = self._rng, self._model
        held = [o for o in range(model.start, model.end) if model.cells[o].state == ACQUIRED]
        if held and rng.random() < 0.8:
            first = rng.choice(held)
            holder = model.cells[first].holder
            last = min(first + rng.randrange(4), held[-1])
            if holder == LEASE:
                holder = _MEMBERS[0]
        else:
            first, holder = rng.randrange(model.end + 2), rng.choice(_MEMBERS)
            last = first + rng.randrange(3)
        verdict = rng.choice(("accept", "accept", "release", "release", "reject", "renew", "gap"))
        may = model.may_say(holder, first, last)
        batch = Acknowledged(Span(first, last), [_VERDICTS[verdict]])
        answer = self._send(On(_KEY, Acknowledge(MemberId(holder), [batch])))
        assert isinstance(answer, Refused) != may, f"{holder} {verdict} {first}-{last}: {answer}"
        if may:
            model.say(first, last, verdict, self._mono)
        return f"{holder} says {verdict} of {first}-{last}: {may}"

    def _elapse(self) -> str:
        self._mono += self._rng.choice((1, 400, 999, 1000, 5000))
        self._take(self._shard.tick(self._now()))
        self._model.expire(self._mono)
        return f"it is {self._mono}"

    def _session_ends(self) -> str:
        holder = self._rng.choice(_MEMBERS)
        self._send(ReleaseMember("group", MemberId(holder)))
        self._model.release(holder)
        return f"{holder} is gone"

    def _copy(self) -> str:
        partition = self._shard.partitions[_KEY]
        self._send(On(_KEY, DeadLettered([run.span for run in partition.runs])))
        self._model.copied()
        return "dead letters are written"

    def _cut(self) -> str:
        start = self._rng.randrange(min(self._model.end + 3, _LOG_END))
        self._send(On(_KEY, LogStartMoved(start)))
        self._model.cut(start)
        return f"the log starts at {start}"

    def _lease_acquires(self) -> str:
        number, budget = self._number + 1, self._rng.randint(1, 12)
        first = self._shard.partitions[_KEY].next_fetch_offset()
        may = self._model.may_give(first, _LOG_END - 1)
        held = self._send(AcquireLease(_LEASE, self._epoch, number, budget))
        taken: Taken = [(offset, one.deliveries) for one in held for offset in one.span]
        assert bool(taken) == may, f"{taken} from {first}, may give: {may}"
        self._model.lease(number, taken, self._mono, budget)
        self._number += bool(taken)
        return f"the lease acquires {budget} as {number}: {taken}"

    def _lease_asks_again(self) -> str:
        if not self._model.numbers:
            return "the lease has nothing"
        number = self._rng.choice(sorted(self._model.numbers))
        before = self._shard.leases[_LEASE].acquisitions[number].held
        assert self._send(AcquireLease(_LEASE, self._epoch, number, 5)) == before
        self._model.reclaim(self._mono)
        return f"the lease asks again for {number}"

    def _lease_renews(self) -> str:
        told = self._send(RenewLease(_LEASE, self._epoch))
        assert told.held == self._model.reclaim(self._mono)[0]
        return f"the lease renews: {told}"

    def _lease_stages(self) -> str:
        if not self._model.numbers:
            return "the lease has nothing"
        number = self._rng.choice(sorted(self._model.numbers))
        said = {
            offset: self._rng.choice(("release", "reject"))
            for offset in self._model.numbers[number]
            if self._rng.random() < 0.5
        }
        staged = tuple(Staged(_KEY, Span(o, o), _VERDICTS[v], "why") for o, v in said.items())
        answer = self._send(StageLease(_LEASE, self._epoch, number, staged))
        assert not isinstance(answer, Refused), answer
        self._model.staged[number] = said
        return f"the lease stages {said} under {number}"

    def _lease_commits(self) -> str:
        if not self._model.numbers:
            return "the lease has nothing"
        number = self._rng.choice(sorted(self._model.numbers))
        self._send(CommitLease(_LEASE, self._epoch, number))
        self._model.commit(number)
        return f"the lease commits {number}"

    def _driver_restarts(self) -> str:
        stale = self._epoch
        self._epoch = self._send(OpenLease(_LEASE, ("topic",), True)).epoch
        assert isinstance(self._send(RenewLease(_LEASE, stale)), Refused)
        self._model.reclaim(self._mono)
        return f"a new driver, epoch {self._epoch}"

    def _reset(self) -> str:
        start = self._rng.randrange(_LOG_END + 1)
        if not self._administered(AlterShareOffsets("group", (("topic", 0, start),))):
            return "a reset waits for dead letters"
        self._model.reset(start)
        self._join()
        return f"the group is set to {start}"

    def _delete(self) -> str:
        whole = self._rng.random() < 0.5
        topics = DeleteShareOffsets("group", ("topic",))
        if not self._administered(DeleteShareGroup("group") if whole else topics):
            return "a deletion waits for dead letters"
        self._model.reset(0)
        if whole:
            assert not self._shard.leases
            self._model.numbers, self._number = {}, 0
        self._crash_now()  # also with nothing left
        assert not self._shard.partitions
        self._join()
        return "the group is deleted" if whole else "the topic is forgotten"

    def _administered(self, command: AdminCommand) -> bool:
        """Whether it is done, with nobody at work; members and drivers at work are in its way."""
        self._join()
        refused = self._send(command)
        assert isinstance(refused, Refused), "the group is not empty"
        assert refused.why is Why.NON_EMPTY_GROUP
        self._send(Heartbeat("group", MemberId("ann"), -1))
        self._mono += _LOCK_MS
        self._take(self._shard.tick(self._now()))
        self._model.expire(self._mono)
        answer = self._send(command)
        model = self._model
        waits = any(model.cells[o].state == ARCHIVING for o in range(model.start, model.end))
        assert isinstance(answer, Refused) == waits, answer
        if waits:
            assert answer.why is Why.COORDINATOR_GONE
            self._join()
        return not waits

    def _prune(self) -> str:
        if self._rng.random() < 0.5:
            self._send(self._codec.cold(self._end, 10))
        needed = max(self._codec.needed_from(self._end), self._begin)
        del self._entries[: needed - self._begin]
        self._begin = needed
        return f"the journal begins at {needed}"

    def _crash(self) -> str:
        self._crash_now()
        self._model.crash()
        self._agree()
        self._send(Recovered())
        self._model.reclaim(self._mono)
        return "crash and recovery"

    # ---- the machine

    def _machine(self) -> tuple[ShareShard, ShareJournal]:
        shard = ShareShard(self._outside)
        return shard, ShareJournal(shard, self._updates_per_snapshot, pruned=self._begin > 0)

    def _crash_now(self) -> None:
        """The journal alone is left of the machine."""
        self._shard, self._codec = self._machine()
        for offset, (key, value, _) in enumerate(self._entries, self._begin):
            self._shard.apply_all(self._codec.events(key, value))
            self._codec.placed(offset, key, value)
        assert not self._codec.unfounded

    @property
    def _end(self) -> int:
        return self._begin + len(self._entries)

    def _send(self, command: Command) -> Any:
        answer = self._shard.decide(command, self._now())
        if isinstance(answer, Refused):
            return answer
        self._take(answer.events)
        return answer.reply

    def _take(self, events: Any) -> None:
        self._shard.apply_all(events)
        for entry in self._codec.records(events, WallMs(self._mono)):
            self._codec.placed(self._end, entry.key, entry.value)
            self._entries.append(entry)

    def _now(self) -> Now:
        return Now(MonoMs(self._mono), WallMs(self._mono))

    def _agree(self) -> None:
        """Machine and model say the same of every record."""
        assert _KEY in self._shard.partitions, "the queue is gone"
        assert _LEASE in self._shard.leases, "the lease is gone"
        partition, model = self._shard.partitions[_KEY], self._model
        ends = (partition.start, partition.end)
        assert ends == (model.start, model.end), f"{ends}, not {model.start}, {model.end}"
        cells = model.cells
        lease = self._shard.leases[_LEASE].holder
        for run in partition.runs:
            held_by = run.holder if run.state is State.ACQUIRED else None
            holder = LEASE if held_by == lease else (held_by or "")
            seen = (run.state.name.lower(), run.deliveries, holder)
            for offset in run.span:
                cell = cells[offset]
                known = (cell.state, cell.deliveries, cell.holder)
                assert seen == known, f"{offset} is {seen}, not {known}"


def first_difference(seed: int) -> str | None:
    """Run a history; where machine and model part, in words, with the steps that led there."""
    history = RandomHistory(seed)
    try:
        history.run()
    except AssertionError as parted:
        return "\n".join((*history.steps, f"then: {parted}"))
    return None
