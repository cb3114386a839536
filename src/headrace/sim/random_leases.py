"""Random steps of a lease: a driver that acquires, asks again, stages, commits, and is replaced."""

from headrace.core.errors import Refused, Why
from headrace.core.leases import Staged
from headrace.core.shard_words import AcquireLease, CommitLease, RenewLease, StageLease
from headrace.core.share_words import Verdict
from headrace.core.types import Span
from headrace.sim.core_rig import KEY, LOCK_MS, SESSION, CoreRig
from headrace.sim.model import LEASE, Ask

_VERDICTS = {"accept": Verdict.ACCEPT, "release": Verdict.RELEASE, "reject": Verdict.REJECT}
_SAYINGS = (
    ("accept", 0), ("release", 0), ("release", 0), ("release", LOCK_MS // 2),
    ("release", 3 * LOCK_MS), ("reject", 0),
)  # fmt: skip


class LeaseSteps:
    """What the driver of the one lease does; each step returns what it was."""

    def __init__(self, rig: CoreRig) -> None:
        self._rig = rig
        self._rng = rig.rng
        self._number = 0

    def acquires(self) -> str:
        """Records under a new number."""
        rig, model = self._rig, self._rig.model
        number, budget = self._number + 1, self._rng.randint(1, 12)
        room = rig.outside_policy.lease_window - model.unfinished
        first = rig.partition.next_fetch_offset()
        end = self._rng.choice((rig.log_end, rig.log_end, self._rng.randint(0, rig.log_end)))
        bounds = {} if end == rig.log_end else {KEY: end}
        held = rig.send(
            AcquireLease(SESSION, rig.lease_epoch, number, budget, bounds, self._portion())
        )
        taken = [(one.span.first, one.span.last, one.deliveries) for one in held]
        model.lease(number, Ask(LEASE, first, end - 1, budget, room), taken, rig.mono)
        self._number += bool(taken)
        return f"the lease acquires {budget} as {number}: {taken}"

    def asks_again(self) -> str:
        """An answer was lost: the same number once more."""
        rig = self._rig
        number = self._some_number()
        if number is None:
            return "the lease has nothing"
        before = rig.shard.leases[SESSION].acquisitions[number].held
        again = AcquireLease(SESSION, rig.lease_epoch, number, 5, {}, self._portion())
        assert rig.send(again) == before
        rig.model.reclaim(rig.mono)
        return f"the lease asks again for {number}"

    def renews(self) -> str:
        rig = self._rig
        told = rig.send(RenewLease(SESSION, rig.lease_epoch, self._portion()))
        assert told.held == rig.model.reclaim(rig.mono)[0]
        return f"the lease renews: {told}"

    def stages(self) -> str:
        """Verdicts for the commit of a number."""
        rig, number = self._rig, self._some_number()
        if number is None:
            return "the lease has nothing"
        part = self._rng.choice(("", "", "one task", "another"))
        said = {
            offset: self._rng.choice(_SAYINGS)
            for offset in rig.model.numbers[number]
            if self._rng.random() < 0.5
        }
        staged = tuple(
            Staged(KEY, Span(offset, offset), _VERDICTS[verdict], "why", delay_ms)
            for offset, (verdict, delay_ms) in said.items()
        )
        answer = rig.send(
            StageLease(SESSION, rig.lease_epoch, number, staged, part, self._portion())
        )
        assert not isinstance(answer, Refused), answer
        rig.model.staged.stage(number, part, rig.lease_epoch, said)
        return f"the lease stages {said} under {number} as {part!r}"

    def commits(self) -> str:
        rig, number = self._rig, self._some_number()
        if number is None:
            return "the lease has nothing"
        rig.send(CommitLease(SESSION, rig.lease_epoch, number, self._portion()))
        rig.model.commit(number, rig.mono)
        return f"the lease commits {number}"

    def runs_batches(self) -> str:
        """Some batches, one after the other, with what time makes of what they released."""
        rig, rng = self._rig, self._rng
        told: list[str] = []
        for _ in range(rng.randint(1, 4)):
            told.append(self.acquires())
            told += [self.stages() for _ in range(rng.randint(0, 3))]
            if rng.random() < 0.3:
                told += [self.is_replaced(), *(self.stages() for _ in range(rng.randint(0, 2)))]
            if rng.random() < 0.1:
                rig.restart()
                told.append("crash and recovery")
            told.append(self.commits())
            rig.agree()
            rig.mono += rng.choice((0, LOCK_MS // 2, 4 * LOCK_MS))
            rig.tick()
        return "; ".join(told)

    def is_replaced(self) -> str:
        """A new driver opens the session; the old one is fenced."""
        stale = self._rig.lease_epoch
        self._rig.open_lease()
        assert self._rig.send(RenewLease(SESSION, stale)).why is Why.STALE_EPOCH
        return f"a new driver, epoch {self._rig.lease_epoch}"

    def strays(self) -> str:
        """What a driver asks that was restored from long ago: nothing comes of it."""
        rig, done, nobody = self._rig, self._rig.model.committed, ("group", "nobody")
        epoch, strange = rig.lease_epoch, (Staged(KEY, Span(0, 0), Verdict.REJECT),)
        assert rig.send(RenewLease(nobody, 1)).why is Why.UNKNOWN_MEMBER
        if done:
            assert rig.send(AcquireLease(SESSION, epoch, done, 5)).why is Why.INVALID_REQUEST
            assert rig.send(StageLease(SESSION, epoch, done, strange)) is None
            told = rig.send(CommitLease(SESSION, epoch, done))
            assert (told.accepted, told.released, told.rejected, told.refused) == (0, 0, 0, 0)
        unknown = StageLease(SESSION, epoch, self._number + 1, strange)
        assert rig.send(unknown).why is Why.INVALID_REQUEST
        number = self._some_number()
        if number is not None and 0 not in self._of(number):
            assert rig.send(StageLease(SESSION, epoch, number, strange)).why is Why.INVALID_REQUEST
        return "the lease asks for what is over"

    def forgotten(self) -> None:
        """The group was deleted, with the session."""
        self._rig.model.forget_lease()
        self._number = 0

    def _portion(self) -> int:
        """How much of a command is decided in one step."""
        return self._rng.choice((1, 2, 500))

    def _some_number(self) -> int | None:
        numbers = sorted(self._rig.model.numbers)
        return self._rng.choice(numbers) if numbers else None

    def _of(self, number: int) -> set[int]:
        held = self._rig.shard.leases[SESSION].acquisitions[number].held
        return {offset for one in held for offset in one.span}
