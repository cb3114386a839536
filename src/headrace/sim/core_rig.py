"""The machine of a shard with its journal, and the model beside it: what random steps drive.

No log, no broker, no network: commands go to the machine, its events through the codec of its
journal, and a crash replays what was encoded. Machine and model are compared record by record.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

from headrace.core.errors import Refused
from headrace.core.machine import Entry, Unfinished, encoded
from headrace.core.shard import ShareShard
from headrace.core.shard_words import Command, Event, OpenLease, Recovered
from headrace.core.share_group import Heartbeat, Timing, TopicView
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import DELAYED, PORTION_RUNS, Acquired, Policy, ShareKey
from headrace.core.types import MemberId, MonoMs, Now, WallMs
from headrace.log.record_codec import ShareJournal
from headrace.log.share_history import Delivery, RecordHistory
from headrace.sim.model import ACQUIRED, ARCHIVING, AVAILABLE, LEASE, Given, Listed, Model
from headrace.sim.model import DELAYED as LATER
from headrace.wire.batches import Record

TOPIC = UUID(int=9)
KEY = ShareKey("group", TOPIC, 0)
SESSION = ("group", "checkpoint")
MEMBERS = ("ann", "bob")
LOCK_MS = 1000
_PORTIONS = (1, 3, PORTION_RUNS)  # of a recovery, in runs of records


class CoreRig:
    """One queue, two members and one lease, as drawn."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        window, lease_window = rng.choice((6, 30)), rng.choice((6, 30, 30))
        self.outside_policy = Policy(rng.randint(2, 6), LOCK_MS, window, lease_window)
        self.earliest = rng.random() < 0.8
        self.log_start, self.log_end = 0, rng.choice((30, 60))
        self.mono = 0
        self.lease_epoch = 0
        self._updates_per_snapshot = rng.choice((0, 1, 3, 500))
        self._entries: list[Entry] = []
        self._begin = 0  # what is before it was pruned
        policy = self.outside_policy
        self.model = Model(
            limit=policy.delivery_limit,
            lock_ms=LOCK_MS,
            dead_letters=policy.dead_letters,
            start=self.first_start,
        )
        self.shard, self.codec = self._machine()

    # ---- what decisions may read outside the shard

    def policy(self, group: str) -> Policy:  # noqa: ARG002  # there is one group
        return self.outside_policy

    def timing(self, group: str) -> Timing:  # noqa: ARG002  # there is one group
        return Timing(session_ms=1 << 40)

    def starts_earliest(self, group: str) -> bool:  # noqa: ARG002  # there is one group
        return self.earliest

    def topic(self, name: str) -> TopicView | None:
        if name != "topic":
            return None
        return TopicView(TOPIC, (self.log_start,), (self.log_end,))

    # ---- the machine

    @property
    def partition(self) -> SharePartition:
        return self.shard.partitions[KEY]

    @property
    def now(self) -> Now:
        return Now(MonoMs(self.mono), WallMs(self.mono))

    @property
    def first_start(self) -> int:
        """Where the queue begins when the group comes to know the topic."""
        return self.log_start if self.earliest else self.log_end

    def join(self) -> None:
        """A member that never falls silent joins, and the lease is opened."""
        self.send(Heartbeat("group", MemberId("ann"), 0, frozenset({"topic"})))
        self.open_lease()

    def open_lease(self) -> None:
        """A driver opens the session."""
        self.lease_epoch = self.send(OpenLease(SESSION, ("topic",), True)).epoch
        self.model.reclaim(self.mono)

    def set_policy(self, **changes: Any) -> None:
        """Change settings of the group."""
        self.outside_policy = policy = replace(self.outside_policy, **changes)
        self.model.set_policy(policy.delivery_limit, dead_letters=policy.dead_letters)

    def send(self, command: Command) -> Any:
        """The reply to a command, or the refusal; what it decided is applied and written."""
        answer = self.shard.decide(command, self.now)
        while not isinstance(answer, Refused):
            self.take(answer.events)
            if not isinstance(answer.reply, Unfinished):
                return answer.reply
            answer = self.shard.decide(answer.reply.following(), self.now)
        return answer

    def take(self, events: Sequence[Event]) -> None:
        """Apply events and write them to the journal."""
        self.shard.apply_all(events)
        for entry in encoded(self.codec.records(events, WallMs(self.mono))):
            self.codec.placed(self._end, entry.key, entry.value)
            self._entries.append(entry)

    def tick(self) -> None:
        """The alarm goes off."""
        self.take(self.shard.tick(self.now))
        self.model.expire(self.mono)

    # ---- the journal

    def prune(self, *, renew: bool) -> int:
        """Remove what recovery does not need; where the journal begins then."""
        if renew:
            self.send(self.codec.cold(self._end, 10))
        needed = max(self.codec.needed_from(self._end), self._begin)
        del self._entries[: needed - self._begin]
        self._begin = needed
        return needed

    def crash(self) -> None:
        """The journal alone is left of the machine."""
        self.shard, self.codec = self._machine()
        for offset, (key, value, _) in enumerate(self._entries, self._begin):
            self.shard.apply_all(self.codec.events(key, value))
            self.codec.placed(offset, key, value)
        assert not self.codec.unfounded

    def restart(self) -> None:
        """Crash, compare what the journal restores, and recover."""
        self.crash()
        self.model.crash()
        self.agree()
        self.send(Recovered(_PORTIONS[self.mono % len(_PORTIONS)]))
        self.model.reclaim(self.mono)

    def _machine(self) -> tuple[ShareShard, ShareJournal]:
        shard = ShareShard(self)
        return shard, ShareJournal(shard, self._updates_per_snapshot, pruned=self._begin > 0)

    @property
    def _end(self) -> int:
        return self._begin + len(self._entries)

    # ---- the comparison

    def agree(self) -> None:
        """Machine and model say the same of every record."""
        assert KEY in self.shard.partitions, "the queue is gone"
        assert SESSION in self.shard.leases, "the lease is gone"
        partition, model = self.partition, self.model
        ends = (partition.start, partition.end)
        assert ends == (model.start, model.end), f"{ends}, not {model.start}, {model.end}"
        cells = model.cells
        lease = self.shard.leases[SESSION]
        assert lease.epoch == self.lease_epoch, f"the lease is at epoch {lease.epoch}"
        assert lease.committed == model.committed, f"{lease.committed} of the lease is committed"
        assert set(lease.acquisitions) == set(model.numbers), f"it has {set(lease.acquisitions)}"
        for run in partition.runs:
            holder = LEASE if run.holder == lease.holder else (run.holder or "")
            seen = (run.state.name.lower(), run.deliveries, holder, run.reason or "")
            if run.holder == DELAYED:
                seen = (LATER, run.deliveries, "", "")
            for offset in run.span:
                cell = cells[offset]
                known = (cell.state, cell.deliveries, cell.holder, cell.reason)
                assert seen == known, f"{offset} is {seen}, not {known}"
        self._sums_agree()
        assert sorted(self.listed()) == sorted(model.listed), f"{self.listed()} is listed"

    def listed(self) -> list[Listed]:
        """What is archived without a dead letter, record by record."""
        known = self.shard.archive.lists.get(KEY)
        lease = self.shard.leases[SESSION].holder
        return [
            (offset, run.deliveries, run.reason, LEASE if run.member == lease else run.member)
            for run in (known.runs if known else ())
            for offset in run.span
        ]

    def _sums_agree(self) -> None:
        """What the machine keeps account of is what there is."""
        partition, model = self.partition, self.model
        flight = [model.cells[offset] for offset in range(model.start, model.end)]
        assert partition.unfinished == model.unfinished
        assert partition.finished == len(flight) - model.unfinished
        free = (o for o in range(model.start, model.end) if model.is_free(o))
        assert partition.next_fetch_offset() == next(free, model.end)
        waits = any(cell.state == ARCHIVING for cell in flight)
        assert (KEY in self.shard.archiving) == waits, "dead letters are forgotten"
        locks = [cell.until for cell in flight if cell.state in (ACQUIRED, LATER)]
        assert partition.leaving == model.leaving
        if locks:
            due = self.shard.next_deadline()
            assert due is not None, "nobody is woken when locks end"
            assert due <= (0 if model.leaving else min(locks)), f"locks end, and it is due {due}"

    def explain(self, offset: int) -> None:
        """The journal tells of a record what members saw; also where locks were lost since."""
        if self._begin:
            return  # pruned: of what is gone nothing can be told
        history = RecordHistory(KEY, offset)
        for at, (key, value, headers) in enumerate(self._entries):
            history.take(Record(at, at, key, value, headers), is_whole=True)
        told = [one for one in history.biography() if isinstance(one, Delivery) and one.outcome]
        lease = self.shard.leases[SESSION].holder
        seen = [
            (one.number, LEASE if one.holder == lease else one.holder or "", str(one.outcome))
            for one in told
        ]
        known = self.model.told.get(offset, [])
        assert seen == known, f"{offset}: {seen} is explained, not {known}"
        cell = self.model.cells.get(offset)
        if cell is not None and self.model.start <= offset < self.model.end:
            state, count = cell.state, cell.deliveries
            if state in (ACQUIRED, LATER):
                state, count = AVAILABLE, cell.stored
            assert history.state is not None
            found = (history.state.name.lower(), history.deliveries)
            assert found == (state, count), f"{offset} is explained as {found}, not {state, count}"


def given(events: Sequence[Event]) -> Given:
    """What was acquired."""
    return [
        (first, last, event.deliveries)
        for event in events
        if isinstance(event, Acquired)
        for first, last in event.spans
    ]
