"""Random histories of the core and its journal alone, against the reference model: many, and quick.

After each step machine and model agree on every record. `World` is what finds faults between the
parts; this finds those inside.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from random import Random

from headrace.core.browsing import Budget, page
from headrace.core.errors import Refused, Why
from headrace.core.runs import Piece, State
from headrace.core.shard_words import (
    AdminCommand,
    AlterShareOffsets,
    ClearArchived,
    DeleteShareGroup,
    DeleteShareOffsets,
    Event,
    On,
    ReleaseMember,
)
from headrace.core.share_admin import TO_POLICY
from headrace.core.share_group import Heartbeat
from headrace.core.share_words import (
    Acknowledge,
    Acknowledged,
    Acquire,
    DeadLettered,
    Delayed,
    LogStartMoved,
    ReleaseHeld,
    Settled,
    Verdict,
)
from headrace.core.types import MemberId, Span
from headrace.sim.core_rig import KEY, LOCK_MS, MEMBERS, CoreRig, given
from headrace.sim.model import ACQUIRED, ARCHIVING, LEASE, Ask
from headrace.sim.random_leases import LeaseSteps

STEPS_MAX = 16
_VERDICTS = {
    "accept": Verdict.ACCEPT,
    "release": Verdict.RELEASE,
    "reject": Verdict.REJECT,
    "renew": Verdict.RENEW,
    "gap": Verdict.GAP,
}
_SAYINGS = ("accept", "accept", "release", "release", "release", "reject", "renew", "gap")


class RandomHistory:
    """One history; `run` returns how many steps it had. Raises: AssertionError where they part."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._rig = CoreRig(self._rng)
        self._model = self._rig.model
        self._leases = LeaseSteps(self._rig)
        self.steps: list[str] = []

    def run(self) -> int:
        """Draw and take the steps, comparing after each."""
        self._rig.join()
        leases = self._leases
        choices: list[Callable[[], str]] = [
            *[self._acquire] * 6, *[self._acknowledge] * 6, *[self._elapse] * 2,
            *[leases.acquires] * 2, *[self._crash] * 2, self._session_ends, self._leaves,
            self._portion, *[self._copy] * 2, self._cut, self._clear, self._look, self._produce,
            self._set, leases.asks_again, leases.renews, leases.stages, leases.commits,
            leases.runs_batches,
            leases.is_replaced, leases.strays, self._reset, self._delete, self._prune, self._wear,
        ]  # fmt: skip
        for _ in range(self._rng.randint(4, STEPS_MAX)):
            self.steps.append(self._rng.choice(choices)())
            self._rig.agree()
        if self._rng.random() < 0.2:
            for offset in self._rng.sample(range(30), 3):
                self._rig.explain(offset)
        return len(self.steps)

    # ---- members

    def _acquire(self) -> str:
        rig, rng, model = self._rig, self._rng, self._model
        holder = rng.choice(MEMBERS)
        looked_from = max(model.start, rig.partition.next_fetch_offset() - rng.randrange(4))
        first = looked_from + (rng.randint(1, 6) if rng.random() < 0.2 else 0)
        sizes = [rng.randint(1, 6) for _ in range(rng.randint(1, 4))]
        ends = [end - 1 for end in accumulate(sizes, initial=first) if end <= rig.log_end]
        batches = [Span(a + 1, b) for a, b in pairwise(ends)]
        if first > rig.log_end:
            return "the log is at its end"
        budget, exact, isolate = rng.randint(1, 12), rng.random() < 0.5, rng.random() < 0.5
        return self._ask(holder, looked_from, batches, first - 1, budget, exact, isolate)

    def _ask(
        self,
        holder: str,
        looked_from: int,
        batches: list[Span],
        looked_to: int,
        budget: int,
        exact: bool,
        isolate: bool,
    ) -> str:
        rig, model = self._rig, self._model
        window = rig.outside_policy.window
        command = Acquire(
            MemberId(holder), batches, budget, window, exact, looked_from, looked_to, isolate
        )
        room = window - model.unfinished
        events = rig.send(On(KEY, command))
        if looked_to >= looked_from:
            model.gap(looked_from, looked_to)
        last = batches[-1].last if batches else looked_to
        batch_ends = () if exact else tuple(batch.last for batch in batches)
        ask = Ask(holder, looked_to + 1, last, budget, room, batch_ends, isolate)
        model.give(ask, given(events), rig.mono)
        return f"{looked_from} is looked from; {ask}: {given(events)}"

    def _wear(self) -> str:
        """Records come back again and again, up to where redelivery shrinks, but for some."""
        rig, model = self._rig, self._model
        told = []
        for _ in range(self._rng.randint(2, 5)):
            first = rig.partition.next_fetch_offset()
            if first >= rig.log_end:
                break
            last = min(first + 11, rig.log_end - 1)
            told.append(self._ask("ann", first, [Span(first, last)], first - 1, 12, True, True))
            flight = range(model.start, model.end)
            mine = [o for o in flight if model.may_say("ann", o, o)]
            said = {o: "accept" if self._rng.random() < 0.1 else "release" for o in mine}
            batches = [Acknowledged(Span(o, o), [_VERDICTS[one]]) for o, one in said.items()]
            rig.send(On(KEY, Acknowledge(MemberId("ann"), batches)))
            model.say(said, "", rig.mono)
            rig.agree()
        return "; ".join(told)

    def _acknowledge(self) -> str:
        """A holder says something of one range or of some, or somebody else does."""
        rng, model = self._rng, self._model
        held = [o for o in range(model.start, model.end) if model.cells[o].state == ACQUIRED]
        said: dict[int, str] = {}
        batches: list[Acknowledged] = []
        holder, reason = rng.choice(MEMBERS), rng.choice(("", "bad"))
        if held and rng.random() < 0.8:
            first = rng.choice(held)
            if (owner := model.cells[first].holder) != LEASE:
                holder = owner
        else:
            first = rng.randrange(model.end + 2)
        may = True
        for _ in range(rng.choice((1, 1, 2, 3))):
            last = first + rng.randrange(4)
            span, whole = Span(first, last), rng.random() < 0.5
            told = [rng.choice(_SAYINGS) for _ in range(1 if whole else len(span))]
            if rng.random() < 0.02:
                told, may = ["accept"] * (len(span) + 1), False
            batches.append(Acknowledged(span, [_VERDICTS[one] for one in told], reason or None))
            may = may and model.may_say(holder, first, last)
            parts = told * len(span) if whole else told
            said |= {o: v for o, v in zip(span, parts, strict=False) if o >= model.start}
            first = last + rng.choice((1, 1, 2))
        if len(batches) > 1 and rng.random() < 0.05:
            batches.reverse()
            may = False
        answer = self._rig.send(On(KEY, Acknowledge(MemberId(holder), batches)))
        assert isinstance(answer, Refused) != may, f"{holder} says {batches}: {answer}"
        if may:
            model.say(said, reason, self._rig.mono)
        return f"{holder} says {said}: {may}"

    def _session_ends(self) -> str:
        holder = self._rng.choice(MEMBERS)
        self._rig.send(ReleaseMember("group", MemberId(holder)))
        self._model.release(holder)
        return f"{holder} is gone"

    def _leaves(self) -> str:
        """A session ends whose records are released in portions."""
        holder, runs_max = self._rng.choice(MEMBERS), self._rng.randint(0, 2)
        events = self._rig.send(On(KEY, ReleaseHeld(MemberId(holder), runs_max)))
        released = _released(events)
        assert len(released) <= runs_max
        self._model.leave(holder, [offset for span in released for offset in span])
        return f"{holder} goes, and leaves {released}"

    # ---- what happens to them

    def _elapse(self) -> str:
        self._rig.mono += self._rng.choice((1, 400, 999, 1000, 5000))
        if self._rng.random() < 0.3:
            return f"it is {self._rig.mono}, and the alarm is late"
        self._rig.tick()
        return f"it is {self._rig.mono}"

    def _portion(self) -> str:
        """Of what has ended, some is released."""
        rig, model, runs_max = self._rig, self._model, self._rng.randint(1, 3)
        events = rig.shard.tick(rig.now, runs_max)
        rig.take(events)
        released = _released(events)
        model.portion([offset for span in released for offset in span], rig.mono)
        left = [o for o in range(model.start, model.end) if model.is_ended(o, rig.mono)]
        assert len(released) <= runs_max
        assert not left or len(released) == runs_max, f"{left} have ended, {released} released"
        return f"of what has ended {released} is released"

    def _copy(self) -> str:
        """Dead letters are written: all of them, or those of a range."""
        partition = self._rig.partition
        spans = [run.span for run in partition.runs]
        if spans and self._rng.random() < 0.5:
            first = self._rng.randrange(partition.start, partition.end)
            spans = [Span(first, first + self._rng.randrange(6))]
        trouble = self._rng.choice((None, None, "", "it is internal"))
        copied_to = "letters-0" if trouble is None else None
        self._rig.send(On(KEY, DeadLettered(spans, copied_to, trouble or "")))
        for span in spans:
            self._model.copied(span.first, span.last, trouble)
        return f"dead letters of {spans} are written, but for {trouble}"

    def _clear(self) -> str:
        """Somebody has seen what was archived, up to a number."""
        known = self._rig.shard.archive.lists.get(KEY)
        through = self._rng.randrange(known.upcoming + 1) if known else 0
        seen = [
            (offset, run.deliveries, run.reason)
            for run in (known.runs if known else ())
            for offset in run.span
            if run.number <= through
        ]
        left = self._model.listed
        for one in seen:
            left.remove(next(listed for listed in left if listed[:3] == one))
        self._rig.send(ClearArchived(KEY, through))
        return f"the list is cleared through {through}"

    def _look(self) -> str:
        """Somebody browses, a page at a time: all in flight is told, and nothing changes."""
        rig, runs_max = self._rig, self._rng.randint(1, 4)
        state, at, found = self._rng.choice([*State]), 0, list[Piece]()
        before = [*rig.partition.runs.pieces()]
        while at < rig.partition.end:
            budget = Budget(runs_max, 1000, self._rng.randint(1, 5))
            one = page(rig.partition, at, {state, State.AVAILABLE}, budget, lambda _: 10)
            assert one.next > at, "a walk goes on"
            assert len(one.runs) <= runs_max
            found, at = found + one.runs, one.next
        assert before == [*rig.partition.runs.pieces()]
        assert found == [run for run in before if run[2].state in (state, State.AVAILABLE)]
        return f"somebody looks for {state.name}"

    def _cut(self) -> str:
        rig = self._rig
        start = self._rng.randrange(min(self._model.end + 3, rig.log_end))
        rig.log_start = max(rig.log_start, start)
        rig.send(On(KEY, LogStartMoved(start)))
        self._model.cut(start)
        return f"the log starts at {start}"

    def _produce(self) -> str:
        self._rig.log_end += self._rng.randint(1, 20)
        return f"the log ends at {self._rig.log_end}"

    def _set(self) -> str:
        """The settings of the group change."""
        rng = self._rng
        changes: list[dict[str, int]] = [
            {"delivery_limit": rng.randint(2, 6)},
            {"dead_letters": rng.random() < 0.6},
            {"window": rng.choice((6, 30)), "lease_window": rng.choice((6, 30))},
        ]
        chosen = rng.choice(changes)
        self._rig.set_policy(**chosen)
        return f"the group gets {chosen}"

    # ---- administration

    def _reset(self) -> str:
        rig = self._rig
        wanted = self._rng.choice((TO_POLICY, self._rng.randrange(rig.log_end + 1)))
        start = rig.first_start if wanted == TO_POLICY else max(wanted, rig.log_start)
        beyond = AlterShareOffsets("group", (("topic", 0, rig.log_end + 1), ("topic", 7, 0)))
        told = self._administered(AlterShareOffsets("group", (("topic", 0, wanted),)), beyond)
        if not told:
            return "a reset waits for dead letters"
        self._model.reset(start)
        rig.join()
        return f"the group is set to {start}"

    def _delete(self) -> str:
        rig, whole = self._rig, self._rng.random() < 0.5
        topics = DeleteShareOffsets("group", ("topic",))
        unknown = DeleteShareOffsets("group", ("nothing",))
        if not self._administered(DeleteShareGroup("group") if whole else topics, unknown):
            return "a deletion waits for dead letters"
        if whole:
            assert not rig.shard.leases
            self._leases.forgotten()
        rig.crash()  # also with nothing left
        assert not rig.shard.partitions
        rig.earliest = self._rng.random() < 0.8
        self._model.reset(rig.first_start)
        self._model.listed.clear()
        rig.join()
        return "the group is deleted" if whole else "the topic is forgotten"

    def _administered(self, command: AdminCommand, vain: AdminCommand) -> bool:
        """Whether it is done, with nobody at work; members and drivers at work are in its way."""
        rig, model = self._rig, self._model
        rig.join()
        refused = rig.send(command)
        assert isinstance(refused, Refused), "the group is not empty"
        assert refused.why is Why.NON_EMPTY_GROUP
        rig.send(Heartbeat("group", MemberId("ann"), -1))
        rig.mono += LOCK_MS
        rig.tick()
        waits = any(model.cells[o].state == ARCHIVING for o in range(model.start, model.end))
        if not waits:
            assert all(isinstance(one, Refused) for one in rig.send(vain))
            rig.agree()
        answer = rig.send(command)
        assert isinstance(answer, Refused) == waits, answer
        if waits:
            assert answer.why is Why.COORDINATOR_GONE
            rig.join()
        return not waits

    # ---- the process

    def _prune(self) -> str:
        return f"the journal begins at {self._rig.prune(renew=self._rng.random() < 0.5)}"

    def _crash(self) -> str:
        self._rig.restart()
        return "crash and recovery"


def _released(events: Sequence[Event]) -> list[Span]:
    return [event.span for event in events if isinstance(event, Settled | Delayed)]


def first_difference(seed: int) -> str | None:
    """Run a history.

    Returns: Steps and the difference of machine and model, or the exception of the machine.
    """
    history = RandomHistory(seed)
    try:
        history.run()
    except AssertionError as parted:
        return "\n".join((*history.steps, f"then: {parted}"))
    except Exception as error:
        return "\n".join((*history.steps, f"then: {error!r}"))
    return None
