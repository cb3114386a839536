"""One simulated history: a broker, its disk, its clocks, its clients, and what befalls them.

First all is allowed: crashes, faults, rude clients. Then the faults stop, honest members take over,
and everything must come to its end. Whatever is drawn is drawn from the seed, every actor with dice
of its own. The broker is the shipped one from the frames of requests down to the disk.
"""

import asyncio
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, ClassVar
from uuid import UUID

from headrace.broker.replay import JournalDamaged
from headrace.core.catalog import CreateTopic, Resource, SetConfigs
from headrace.log.api import CorruptLog
from headrace.log.buggify import install
from headrace.log.clock_checkpoint import FILE as CLOCK_CHECKPOINT
from headrace.log.manifest import START_OFFSETS
from headrace.sim.auditor import Auditor
from headrace.sim.consumers import REBALANCE_MS, ClassicReader, ConsumerReader
from headrace.sim.damage import CLEAN_MARK
from headrace.sim.disk import FaultyDisk
from headrace.sim.drivers import LeaseDriver
from headrace.sim.ending import Ending
from headrace.sim.facts import Place
from headrace.sim.fate import Fate
from headrace.sim.history import BrokerLog, Events, History, rare_collections
from headrace.sim.hostile import HostilePeer
from headrace.sim.lease_auditor import LEASE
from headrace.sim.loop import OUTSIDE, Livelock, VirtualLoop
from headrace.sim.members import Habits, ShareMember
from headrace.sim.membership_auditor import MembershipAuditor
from headrace.sim.misusers import LyingProducer, SwitchedOffMember, TransactionalPeer
from headrace.sim.network import Connection
from headrace.sim.offset_auditor import OffsetAuditor
from headrace.sim.operator import Operator
from headrace.sim.options import (
    CONSUMER_SESSION_MS,
    DEAD_LETTERS,
    GROUPS,
    SHARE_SESSION_MS,
    Options,
)
from headrace.sim.process import Process, WorldClock
from headrace.sim.record_actors import Deleter, IdempotentProducer, PipelinedProducer, Seeker
from headrace.sim.record_auditor import EVERYTHING
from headrace.sim.record_ending import RecordEnding
from headrace.sim.resets import Resets
from headrace.sim.resources import Reconfigurer
from headrace.sim.static_auditor import StaticAuditor
from headrace.sim.static_members import StaticClassicReader, StaticConsumerReader
from headrace.sim.topic_actors import TopicKeeper
from headrace.sim.unread import UnreadPeer
from headrace.sim.work_meter import WorkMeter
from headrace.sim.workload import Administrator, Producer

_WALL_MS = 1_750_000_000_000
_LOST_ANSWERS = 0.05
_ROUGH = 0.1  # of the requests and responses of a history with rough links
_DOWN_US_MAX = 800_000
_STALL_US = 2_000_000  # a broker that was stopped for longer extends sessions and locks
_CALM_US = 10_000_000  # longer than anything that is under way in the disk, or waits to be mended
_SET_UP_SECONDS_MAX = 60
_LAST_TURN_SECONDS_MAX = 60  # from the end of the faults, for the slowest actor
_OPERATOR_SECONDS = 1.0
_STARTING_SECONDS_MAX = 60
_BUGGIFY = 0.5  # of the points
_KILLS_AT = 0.1  # of the times at which a rare behaviour of `Options.kills_at` is chosen
_KILLS_AT_OPERATIONS = 3  # of the disk, fewer than which pass until the broker dies
_BUGGIFY_CHANCE = 0.2  # at a point that is on
_DAMAGE = 0.6  # of the times at which no broker runs
_RESTORES = 0.5  # of the damages that nothing met
_SHARE_JOURNALS = "__share_group_state-"
LEDGER, TABLE = "ledger", "table"
_LEDGER_PARTITIONS = 2
_KEPT = {"retention.ms": "-1"}
_RETENTION_MS = 7 * 86_400_000  # Kafka's default
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "1024",
    "min.cleanable.dirty.ratio": "0.01",
}
_TOMBSTONES_MS = (500, 86_400_000)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one history; `failures` are broken promises, bugs and livelocks."""

    lost: ClassVar[int] = 0  # to lose a record is a failure in this world

    seed: int
    events: Events
    faults: int
    failures: tuple[str, ...]
    digest: str
    last: tuple[str, ...]
    virtual_s: int = 0  # virtual time from the start to the end


class World:
    """The history of one seed.

    Args:
        tell: called with every line of the history as it happens.
    """

    def __init__(
        self,
        seed: int,
        *,
        tell: Callable[[str], None] | None = None,
        options: Options | None = None,
    ) -> None:
        self.seed = seed
        self._rng = Random(f"{seed}/world")
        self.options = options or Options.drawn(Random(f"{seed}/options"))
        self.loop = VirtualLoop(self._latency)  # type: ignore[abstract]  # all that is called is there
        self.clock = WorldClock(self.loop, _WALL_MS)
        self.history = History(lambda: self.loop.now_us, tell)
        self.disk = self._make_disk()
        self.groups = GROUPS[: self.options.groups] if self.options.queues else ()
        self.auditor = Auditor(
            lambda: self.loop.now_us,
            limit=self.options.limit,
            lock_ms=self.options.lock_ms,
            earliest=frozenset(self.options.earliest),
        )
        self.records = self.auditor.records
        self.offsets = OffsetAuditor(
            self.auditor.timeline.now,
            self.auditor.broken,
            retention_us=self.options.offsets_retention_us,
            session_us=CONSUMER_SESSION_MS * 1000,
            rebalance_us=REBALANCE_MS * 1000,
        )
        self.statics = self._make_statics()
        self.memberships = self._make_memberships()
        self.losses = 0  # power cuts that may take what was acknowledged
        self._producer_ids: dict[tuple[int, int], str] = {}
        self.process: Process | None = None
        self.cluster_id = ""
        self.connections: dict[Connection, None] = {}  # an ordered set
        self.topic_ids: dict[str, UUID] = {}
        self.topic_names: dict[UUID, str] = {}
        self.deleted_topics: set[str] = set()
        self.is_quiet = True
        self.stop_wanted = False
        self.bugs: list[str] = []
        self._done: set[str] = set()
        self._lives = itertools.count(OUTSIDE + 1)
        self._ids = itertools.count(1)
        self._power_cut = False
        self.power_was_cut = False
        self._dice: dict[str, Random] = {}
        self._points: dict[str, bool] = {}
        self.points: Counter[str] = Counter()  # how often each rare behaviour was chosen
        self._had_refusals = False
        self._machines: list[object] = []
        self._errors_before = 0
        self._sealed = set[str]()  # paths of segments, when a scrub began
        self._asleep_us = 0  # time for which the machine was suspended
        self._meter = WorkMeter()
        self.resets = Resets(self, "resets")
        self.operator = Operator(self)
        self.keeper = TopicKeeper(self, "river")

    def _is_replaced(self, group: str, holder: str) -> bool:
        """Return whether a holder is a member whose session may have given way to another one."""
        return not holder.startswith(LEASE) and self.memberships.is_replaced(group, holder)

    def _make_disk(self) -> FaultyDisk:
        disk = FaultyDisk(str(self.seed), self._died)
        disk.now_us = lambda: self.loop.now_us
        disk.fates = self.options.power_cut_fates
        disk.damage.kinds = self.options.damage_kinds
        return disk

    def _make_statics(self) -> StaticAuditor:
        return StaticAuditor(
            lambda: self.loop.now_us,
            self.auditor.broken,
            lambda: self.offsets.losses,
            CONSUMER_SESSION_MS * 1000,
            REBALANCE_MS * 1000,
        )

    def _make_memberships(self) -> MembershipAuditor:
        found = MembershipAuditor(
            lambda: self.loop.now_us,
            self.auditor.broken,
            session_us=SHARE_SESSION_MS * 1000,
            members_max=self.options.share_members_max,
            sessions_max=self.options.share_sessions_max,
        )
        if self.options.crowds:
            self.auditor.is_replaced = self._is_replaced
        return found

    def run(self) -> Outcome:
        """Let the whole history happen."""
        told = BrokerLog(self.history, self.bug)
        told.begin()
        before = install(self._chooses if self.options.buggifies else None)
        if self.options.counts_work:
            self._meter.install()
        try:
            self.history.step("world", f"options: {self.options}")
            with warnings.catch_warnings(), rare_collections():
                # A process that dies has coroutines that it made and never began.
                warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
                self._live()
        except Livelock as stuck:
            self.bugs.append(str(stuck))
        finally:
            self._clear_away()
            self._meter.remove()
            install(before)
            told.end()
        failures = (*self.auditor.failures, *self.bugs, *self.loop.errors)
        return Outcome(
            self.seed,
            self.events,
            self.history.faults,
            failures,
            self.history.digest,
            tuple(self.history.last),
            self.loop.now_us // 1_000_000,
        )

    def _chooses(self, point: str) -> bool:
        """Whether a rare behaviour happens; each point is off in half of the histories."""
        dice = self._dice.get(point)
        if dice is None:
            dice = self._dice[point] = Random(f"{self.seed}/{point}")
            self._points[point] = dice.random() < _BUGGIFY
        chosen = self._points[point] and dice.random() < _BUGGIFY_CHANCE
        chosen |= point in self.options.points
        self.points[point] += chosen
        is_aimed = point in self.options.kills_at and not self.is_quiet
        if chosen and is_aimed and dice.random() < _KILLS_AT:
            self.crash_after(dice.randrange(_KILLS_AT_OPERATIONS), power_cut=False)
        return chosen

    def _look_at_stalls(self, process: Process) -> None:
        """Report steps of a broker that did more work than a step may."""
        stalls = process.services.metrics.stalls
        if self.options.counts_work and stalls.count:
            self.bug(f"steps of the broker held the loop for too long: {sorted(stalls.by_name)}")

    def _clear_away(self) -> None:
        """End everybody, so that nothing of this history happens during the next."""
        if self.process is not None:
            self._look_at_stalls(self.process)
        try:
            for life in (*((self.process.life,) if self.process else ()), OUTSIDE):
                self.disk.dead = True
                self.loop.end(life)
        except Livelock as stuck:
            self.bugs.append(str(stuck))

    # ---- what actors ask

    @property
    def events(self) -> Events:
        """Return the number of events so far."""
        loop = self.loop
        return Events(self.history.steps, loop.timers, loop.deliveries, self.disk.operations)

    @property
    def failed(self) -> bool:
        return bool(self.auditor.failures or self.bugs or self.loop.errors)

    @property
    def is_dead(self) -> bool:
        """Whether the broker's process died."""
        return self.disk.dead

    def is_wanted(self, group: str) -> bool:
        """Whether members of a group are to go on."""
        return group not in self._done

    def done(self, group: str) -> None:
        """A group has nothing more to consume."""
        self._done.add(group)

    def begins_again(self, group: str) -> None:
        """Members of a group are wanted once more."""
        self._done.discard(group)

    def loses_answer(self, rng: Random) -> bool:
        is_on = self.options.lost_answers and not self.is_quiet
        return is_on and rng.random() < _LOST_ANSWERS and self._link_fails("a response is lost")

    def is_rough(self, rng: Random) -> bool:
        """Return whether a request is sent in pieces, or a response is read slowly."""
        is_on = self.options.rough_links and not self.is_quiet
        return is_on and rng.random() < _ROUGH and self._link_fails("a link is rough")

    def _link_fails(self, what: str) -> bool:
        self.history.fault(what)
        return True

    def places(self) -> list[Place]:
        """Every partition that there should be."""
        found = [("orders", n) for n in range(self.options.partitions)]
        return found if "extra" in self.deleted_topics else [*found, ("extra", 0)]

    def record_places(self, topics: Sequence[str] = (LEDGER, TABLE)) -> list[Place]:
        """Return the partitions that idempotent producers write to, of some topics."""
        found = [(LEDGER, n) for n in range(_LEDGER_PARTITIONS)] + [(TABLE, 0)]
        return [place for place in found if place[0] in topics]

    def records_broken(self, promise: str) -> None:
        """Report a broken promise about records."""
        self.auditor.broken(promise)

    def gave_producer_id(self, name: str, producer_id: int, epoch: int) -> None:
        """A response gives a producer its id: nobody else may have the same."""
        other = self._producer_ids.setdefault((producer_id, epoch), name)
        if other != name:
            self.auditor.broken(f"producer id {producer_id}/{epoch} of {other} is given to {name}")

    def bug(self, what: str) -> None:
        """Something happened that no fault explains."""
        self.bugs.append(what)
        self.loop.halted = True

    def look_at_shards(self) -> None:
        """Notice when the broker rebuilt its state: locks are gone then, as after a crash."""
        if self.process is None:
            return
        machines = self.process.machines
        if all(map(lambda a, b: a is b, machines, self._machines)):
            return
        self._machines = machines
        self.auditor.locks_lost()
        self.memberships.lost()
        if self.disk.errors == self._errors_before:
            self.bug("a shard was rebuilt although no operation of the disk had failed")

    # ---- lives and deaths

    def crash_after(self, operations: int, *, power_cut: bool) -> None:
        """Let the broker die amid what it does, so many operations of its disk later."""
        if self.process is not None:
            self._power_cut = power_cut
            self.disk.die_after(operations)

    def _died(self) -> None:
        self.loop.halted = True

    def run_until(self, time_us: int) -> None:
        """Let time pass, with all that happens in it; returns at once when something failed."""
        while not self.failed:
            self.loop.run_until(time_us)
            if self.failed or not self.loop.halted:
                return
            self.loop.halted = False
            if self.disk.dead:
                self._bury()
            elif self.stop_wanted:
                self._stop()
            self.stop_wanted = False

    def finish(self, work: Coroutine[Any, Any, Any], seconds: float, life: int = OUTSIDE) -> bool:
        """Run the world until a task of it is done; False when that takes too long."""
        task = self.loop.spawn(life, work)
        end_us = self.loop.now_us + round(seconds * 1e6)
        while not task.done() and self.loop.now_us < end_us and not self.failed:
            self.run_until(min(end_us, self.loop.now_us + 50_000))
        if task.done() and not task.cancelled() and task.exception() is not None:
            self.bug(f"the simulator itself failed: {task.exception()!r}")
        return task.done()

    def kill(self, *, power_cut: bool) -> None:
        """Let the broker die now, between two things that it does."""
        self._power_cut = power_cut
        self._bury()

    def _bury(self) -> None:
        kind = "the power is cut" if self._power_cut else "the broker is killed"
        self.history.fault(f"{kind}, at operation {self.disk.operations} of the disk")
        self.end_life()
        if self._power_cut and not self.options.fsync:
            self._forget_unsynced()
        self.disk.revive(power_cut=self._power_cut)
        for kind, path in sorted(self.disk.losses.items()):
            self.history.fault(f"unsynced: {kind}: {path}")
        self.power_was_cut |= self._power_cut
        if not self._power_cut:
            self._damage(in_order=False)
        self._power_cut = False
        self.loop.as_life(OUTSIDE, self.start_later)

    def _forget_unsynced(self) -> None:
        """Let auditors forget what a power cut may take that was answered."""
        self.losses += 1
        self.records.power_was_cut(self._synced_us)
        self.offsets.power_was_cut()
        since_us = self._unsynced_us(_SHARE_JOURNALS)
        copies_us = self.disk.unsynced_us(f"{DEAD_LETTERS}-")
        self.auditor.power_was_cut(since_us, are_copies_lost=copies_us is not None)

    def _unsynced_us(self, prefix: str) -> int:
        """Return from when on answers may be taken back that rest on some logs."""
        since_us = self.disk.unsynced_us(prefix)
        return self.loop.now_us + 1 if since_us is None else since_us

    def _synced_us(self, place: Place) -> int:
        """Return the time before which all acknowledged records of a log were synced."""
        topic, index = place
        is_kept = topic not in self.deleted_topics and topic in self.topic_ids
        return self._unsynced_us(f"{topic}-{index}/") if is_kept else 0

    def _stop(self) -> None:
        """Stop the broker in order, amid whatever faults there are."""
        process = self.process
        if process is None or not process.is_up:
            return
        self.history.fault("the broker is stopped in order")
        task = self.loop.spawn(process.life, process.stop())
        # A process that dies while it stops ends with an error that has no reader.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        end_us = self.loop.now_us + _STARTING_SECONDS_MAX * 1_000_000
        while not (task.done() or self.failed or self.disk.dead) and self.loop.now_us < end_us:
            self.loop.halted = False  # another stop may be wanted meanwhile
            self.loop.run_until(self.loop.now_us + 1000)
        if self.disk.dead:
            self._bury()
            return
        if not task.done():
            self.bug("the broker does not stop")
        elif isinstance(error := task.exception(), OSError):  # what failed before is not mended yet
            self.history.step("broker", f"ends without order: {error}")
        elif error is not None:
            self.bug(f"the broker failed to stop: {error!r}")
        self.end_life()
        self.disk.revive(power_cut=False)
        self._damage(in_order=self.disk.exists(CLEAN_MARK))
        self.loop.as_life(OUTSIDE, self.start_later)

    def end_life(self) -> None:
        """End the broker's process, and every connection."""
        process, self.process = self.process, None
        self._had_refusals = process is not None and bool(process.refusals)
        self.operator.forget()
        for connection in list(self.connections):
            connection.broken()
        if process is not None:
            self._look_at_stalls(process)
            self.disk.dead = True
            self.loop.end(process.life)
        self.auditor.locks_lost()
        self.memberships.lost()
        self.offsets.lost_sessions()
        self._machines = []

    def start_later(self) -> None:
        """Start a broker a moment later."""
        self.loop.call_later(self._rng.randrange(_DOWN_US_MAX) / 1e6, self.start)

    def start(self) -> None:
        """Start a broker on the disk as it is."""
        life = next(self._lives)
        self._look_at_starts()
        self.disk.watches_cuts = True
        self._errors_before = self.disk.errors  # a write that fails amid a start is rebuilt after
        try:
            self.process = Process(
                life, self.options.config(), self.disk, self.clock, self.loop, self._new_id,
                self._start_moved,
            )  # fmt: skip
        except OSError as error:
            self._start_failed(None, error)
            return
        except CorruptLog as error:
            self.operator.respond(None, [error])
            return
        self.loop.spawn(life, self._up(self.process))

    async def _up(self, process: Process) -> None:
        try:
            await process.start()
        except OSError as error:
            self.loop.as_life(OUTSIDE, partial(self._fail_soon, process, error))
            return
        except (CorruptLog, JournalDamaged) as error:
            self.loop.as_life(OUTSIDE, partial(self._repair_soon, process, error))
            return
        except AssertionError as error:
            self.bug(f"the broker does not start: {error!r}")
            return
        cluster_id = process.services.cluster_id
        if self.cluster_id not in ("", cluster_id):
            self.auditor.broken(f"the cluster id was {self.cluster_id} and is {cluster_id}")
        self.cluster_id = cluster_id
        if self.options.retention:
            for place, start in process.log_starts():  # its death may have come amid retention
                self._start_moved(place, start)
        for place, end in process.log_ends():
            self._opened(place, end)
        process.watch_openings(partial(self._opened_late, process))
        self.disk.watches_cuts = False
        self.disk.damage.started()
        self._look_at_logs(process)
        for path in self.disk.cut_without_copy:
            self.auditor.broken(f"the end of {path} was cut off without a copy")
        self._machines = process.machines
        self.history.step("broker", f"is up, life {process.life}")
        self._rot_unread(process)

    def _opened(self, place: Place, end: int) -> None:
        """Note where a log ends that the broker opened."""
        self.records.opened(place, end)
        self.auditor.opened(place, end)

    def _opened_late(self, process: Process, place: Place, end: int) -> None:
        """Note where a log ends that a full disk kept closed when the broker started."""
        self._opened(place, end)
        self._look_at_logs(process)

    def _look_at_logs(self, process: Process) -> None:
        """Note when every log was read to its end: a power cut explains no damage from then on."""
        if process.has_opened_all and not process.refusals:
            self.power_was_cut = False

    def _start_moved(self, place: Place, start: int) -> None:
        """Note that the broker deleted records below an offset."""
        self.auditor.deleting(place, start)

    def _fail_soon(self, process: Process, error: OSError) -> None:
        self.loop.call_soon(self._start_failed, process, error)  # from outside its own task

    # ---- the operator, and damage

    @property
    def operator_seconds(self) -> float:
        """Return the pause between two looks of the operator."""
        return _OPERATOR_SECONDS

    def _repair_soon(self, process: Process, error: Exception) -> None:
        # From outside its own task.
        self.loop.call_soon(self.operator.respond, process, [error])

    def stop_and_damage(self) -> None:
        """Stop the broker in order, damage the disk, and start it again."""
        self._stop()
        self.disk.damage.undo()
        if (done := self.disk.damage.offline(in_order=self.disk.exists(CLEAN_MARK))) is not None:
            self.history.fault(f"the disk is damaged: {done}")

    def _damage(self, *, in_order: bool) -> None:
        """Let the disk rot while no broker runs."""
        damage = self.disk.damage
        if damage.standing and (self._had_refusals or self._rng.random() < _RESTORES):
            self.history.step("operator", f"restores {damage.undo()}")
        if damage.standing or not self.options.damages or self.is_quiet:
            return
        if self._rng.random() < _DAMAGE and (done := damage.offline(in_order=in_order)) is not None:
            self.history.fault(f"the disk is damaged: {done}")

    def rot(self) -> None:
        """Damage the disk under the running broker."""
        damage = self.disk.damage
        if self.process is None or not self.process.is_up or damage.standing:
            return
        topics = (LEDGER, TABLE) if self.options.records else ()
        if (done := damage.live(topics)) is not None:
            self.history.fault(f"the disk is damaged under the broker: {done}")

    def _look_at_starts(self) -> None:
        """Allow deleted records to come back with former start offsets, which look sound.

        A broker keeps the starts that it has, and the mark of an orderly stop contains them all. A
        misdirected write can leave former starts and damage the mark.
        """
        damage = self.disk.damage
        is_former = damage.turned_back == START_OFFSETS and START_OFFSETS in damage.standing
        has_mark = CLEAN_MARK in self.disk.contents and CLEAN_MARK not in damage.standing
        if is_former and not has_mark:
            self.records.starts_lost()

    def _rot_unread(self, process: Process) -> None:
        """Damage what a broker trusts at its start, and verifies when it is read."""
        damage, options = self.disk.damage, self.options
        if not options.rots or not options.records or self.is_quiet or damage.standing:
            return
        if (done := damage.live_offset((LEDGER, TABLE), process.is_unread)) is not None:
            self.history.fault(f"the disk is damaged under the broker: offset, {done}")

    def suspend(self, duration_us: int) -> None:
        """Let time pass in which neither the broker nor a client runs."""
        self._stall(duration_us)
        self._asleep_us += duration_us
        self.loop.suspend(duration_us)

    def hold(self, duration_us: int) -> None:
        """Stop the broker's process for some time, in which clients go on."""
        self._stall(duration_us)
        if self.process is not None:
            self.loop.hold(self.process.life, duration_us)

    def _stall(self, duration_us: int) -> None:
        if self.process is None or not self.process.is_up:
            self.offsets.lost_sessions()
            return
        extends = duration_us > _STALL_US
        self.memberships.stalled(duration_us, extends=extends)
        if extends:
            for auditor in (self.auditor, self.offsets, self.statics):
                auditor.stalled(duration_us)

    def set_clock(self, step_ms: int) -> None:
        """Set the wall clock of the machine."""
        self.history.fault(f"the wall clock is set by {step_ms} ms")
        damage = self.disk.damage
        # From now on it is all that shows that the times of records are in doubt.
        damage.spared = frozenset({CLOCK_CHECKPOINT})
        if CLOCK_CHECKPOINT in damage.standing:
            damage.undo_file(CLOCK_CHECKPOINT)  # the broker may have met what else is damaged
            self.history.step("operator", f"restores {CLOCK_CHECKPOINT}")
        self.offsets.clock_was_set = True
        self.records.clock_was_set()
        self.clock.ahead_ms += step_ms

    def stamping(self, place: Place) -> None:
        """Let retention take records to come if the clock of producers is far enough behind."""
        if self.clock.behind_ms >= _RETENTION_MS:
            self.records.deleting(place, EVERYTHING)
            self.auditor.deleting(place, EVERYTHING)

    def scrub(self) -> None:
        """Let the broker verify what is at rest."""
        process = self.process
        if process is not None and process.is_up:
            self.history.step("broker", "begins to scrub")
            self.loop.spawn(process.life, self._scrub(process))

    async def _scrub(self, process: Process) -> None:
        damage, errors = self.disk.damage, self.disk.errors
        sealed = self._sealed = process.sealed_paths()
        damaged = [path for path in damage.standing if path in sealed]
        await process.services.scrub.run_pass()
        if self.disk.errors != errors or not process.is_up:
            return  # it may have failed to read, or was stopped
        for path in damaged:
            is_left = path in damage.standing and path in process.sealed_paths()
            if is_left and path not in process.services.scrub.damages:
                self.auditor.broken(f"the scrub passed over the damage of {path}")

    def is_served_damaged(self, folder: str) -> bool:
        """Return whether a client may meet a wrong checksum; the client then reports it.

        Damage that the scrub finds in a segment that is written to is reported and served. What a
        client reads may come from a segment that retention has removed since.
        """
        known = self.process.services.scrub.damages if self.process is not None else {}
        damage, refused = self.disk.damage, self._sealed.intersection(known)
        segments = {
            one
            for one in (*damage.standing, *damage.gone)
            if one.startswith(f"{folder}/") and one.endswith(".log")
        }
        if not damage.is_live or segments <= refused:
            self.auditor.broken(f"{folder} was served with a wrong checksum")
            return False
        self.history.step("client", f"meets a wrong checksum in {folder}")
        self.operator.report(f"{folder}: the checksum of a batch is wrong")
        return True

    def is_unreadable(self, folder: str) -> None:
        """Let a client report that a log cannot be read, if damage under the broker is why."""
        damage = self.disk.damage
        if damage.is_live and any(one.startswith(f"{folder}/") for one in damage.standing):
            self.operator.report(f"{folder}: a read fails")

    def _start_failed(self, process: Process | None, error: OSError) -> None:
        if self.disk.dead or self.process is not process:
            return  # it died while it started, and is buried or will be
        self.history.step("broker", f"cannot start: {error}")
        self.end_life()
        self.disk.revive(power_cut=False)
        self.start_later()

    def _calm_disk(self) -> None:
        self.disk.failing.clear()
        self.disk.fail_after(None)
        self.disk.die_after(None)

    # ---- the history

    def _live(self) -> None:
        if not self._is_set_up():
            return
        self.is_quiet = False
        actors = self._actors()
        tasks = {actor.name: self.loop.spawn(OUTSIDE, actor.run()) for actor in actors}
        fate = self.loop.spawn(OUTSIDE, Fate(self).run())
        drivers = [actor for actor in actors if isinstance(actor, LeaseDriver)]
        self._be_busy(self.options.seconds * 1_000_000)
        self.is_quiet = True
        self._calm_disk()
        self.history.step("world", "faults stop")
        fate.cancel()
        self._end_actors(tasks, _LAST_TURN_SECONDS_MAX)
        self.run_until(self.loop.now_us + _CALM_US)
        if not self.failed and self.options.queues:
            Ending(self, drivers).run()
        if not self.failed and self.options.records:
            RecordEnding(self).run()

    def _end_actors(self, tasks: Mapping[str, asyncio.Task[None]], seconds: int) -> None:
        """Let actors end their turns, which nothing but the broker can keep them from.

        Args:
            tasks: by the names of the actors.
            seconds: that the last of them may take.
        """
        for group in self.groups:
            self.done(group)
        end_us = self.loop.now_us + seconds * 1_000_000
        while not (all(one.done() for one in tasks.values()) or self.failed):
            if self.loop.now_us >= end_us:
                stuck = [name for name, one in tasks.items() if not one.done()]
                waits = [one.unanswered for one in self.connections if one.unanswered is not None]
                self.bug(
                    f"{seconds} s after the faults have stopped {', '.join(stuck)} cannot end a"
                    f" turn; requests without a response: {'; '.join(waits) or 'none'}"
                )
                break
            self.run_until(min(end_us, self.loop.now_us + 50_000))
        for task in tasks.values():
            task.cancel()
        for connection in list(self.connections):
            connection.close()

    def _be_busy(self, duration_us: int) -> None:
        """Let actors and faults act for some time, in which the machine is not suspended."""
        awake_us = self.loop.now_us - self._asleep_us + duration_us
        while not self.failed and self.loop.now_us - self._asleep_us < awake_us:
            self.run_until(awake_us + self._asleep_us)

    def _is_set_up(self) -> bool:
        """Start the broker and create the topics; return whether both succeeded."""
        self.start()
        self.run_until(self.loop.now_us + 1_000_000)
        if self.process is None or not self.process.is_up:
            self.bug("the broker does not come up on an empty disk")
            return False
        if not self.finish(self._set_up(self.process), _SET_UP_SECONDS_MAX, self.process.life):
            self.bug("topics cannot be made on an empty disk")
            return False
        if not self.options.fsync:
            self.disk.write_back()  # by then the system has, and a power cut takes no topic
        self.loop.as_life(OUTSIDE, self.operator.look)
        return True

    async def _set_up(self, process: Process) -> None:
        services, settings = process.services, self.options.topic_settings
        for name, partitions in (("orders", self.options.partitions), ("extra", 1)):
            topic_id = self._new_id()
            self.topic_ids[name], self.topic_names[topic_id] = topic_id, name
            await services.topics.create(CreateTopic(name, topic_id, partitions, settings))
        for group in self.groups:
            values: dict[str, str | None] = {}
            if group in self.options.earliest:
                values["share.auto.offset.reset"] = "earliest"
            if self.options.dead_letters:
                values["errors.deadletterqueue.topic.name"] = DEAD_LETTERS
            if values:
                await services.topics.set_configs(SetConfigs(Resource.GROUP, group, values))
        if self.options.dead_letters:
            await services.topics.create(CreateTopic(DEAD_LETTERS, self._new_id(), 1, _KEPT))
        if self.options.records:
            for name, partitions in ((LEDGER, _LEDGER_PARTITIONS), (TABLE, 1)):
                topic_id = self._new_id()
                self.topic_ids[name], self.topic_names[topic_id] = topic_id, name
                compacted = {}
                if name == TABLE and self.options.cleans:
                    tombstones_ms = Random(f"{self.seed}/tombstones").choice(_TOMBSTONES_MS)
                    compacted = _COMPACTED | {"delete.retention.ms": str(tombstones_ms)}
                    self.records.compacts((TABLE, 0), tombstones_ms)
                await services.topics.create(CreateTopic(name, topic_id, partitions, compacted))

    def _actors(self) -> list[Any]:
        actors = self._queue_actors() if self.options.queues else []
        actors += self._record_actors() if self.options.records else []
        if self.options.hostile:
            actors.append(HostilePeer(self, "stranger"))
        if self.options.unread:
            actors.append(UnreadPeer(self, "unread"))
        if self.options.reconfigures:
            actors.append(Reconfigurer(self, "settings"))
        return actors

    def _record_actors(self) -> list[Any]:
        options, places = self.options, self.record_places()
        producer = PipelinedProducer if options.in_flight > 1 else IdempotentProducer
        actors: list[Any] = [
            producer(self, f"writer-{n}", places, frozenset({(TABLE, 0)}))
            for n in range(options.producers)
        ]
        kinds = {"classic": ClassicReader, "consumer": ConsumerReader}
        for protocol in options.consumers:
            for number in range(options.members):
                name = f"{protocol}-{number}"
                actors.append(kinds[protocol](self, name, f"{protocol}-group", [LEDGER]))
        if options.lifecycles:
            actors.append(self.keeper)
        if options.transactions:
            actors.append(TransactionalPeer(self, "transactions", places))
        if options.share_off:
            actors.append(SwitchedOffMember(self, "off", places))
        if options.lies:
            actors.append(LyingProducer(self, "liar", places))
        if options.static_members:
            statics = {"classic": StaticClassicReader, "consumer": StaticConsumerReader}
            actors += [
                statics[protocol](self, f"{protocol}-s{number}", f"{protocol}-static", [LEDGER])
                for protocol in options.consumers
                for number in range(options.members)
            ]
        if options.deletions:
            actors.append(Deleter(self, "deleter", self.record_places([LEDGER])))
        if options.seeks:
            actors.append(Seeker(self, "seeker", places))
        return actors

    def _queue_actors(self) -> list[Any]:
        options, topics = self.options, ("orders", "extra")
        places = [("orders", n) for n in range(options.partitions)] + [("extra", 0)]
        actors: list[Any] = [Producer(self, f"producer-{n}", places) for n in range(2)]
        for group in self.groups:
            for number in range(options.members):
                name = f"{group}-{number}"
                actors.append(ShareMember(self, name, group, topics, self._habits()))
        actors += [
            LeaseDriver(self, f"lease-{n}", self.groups[0], ("orders",))
            for n in range(options.leases)
        ]
        if options.administers:
            actors.append(self.resets)
        return [*actors, Administrator(self, "admin")]

    def _habits(self) -> Habits:
        options, rng = self.options, self._rng
        return Habits(
            accept=rng.choice((0.2, 0.5, 0.9)),
            reject=rng.choice((0.0, 0.1, 0.3)),
            keep=rng.choice((0.0, 0.2)),
            renew=rng.choice((0.0, 0.05)),
            stall=0.08 if options.stalling else 0.0,
            vanish=0.05 if options.vanishing else 0.0,
            leave=0.03,
            lie=0.08 if options.strange_epochs else 0.0,
            repeat=0.5 if options.repeats else 0.0,
        )

    def _latency(self) -> float:
        if self.options.slow_disks and not self.is_quiet and self._rng.random() < 0.02:
            return self._rng.uniform(0.1, 3.0)
        return self._rng.choice((0.0, 0.0005, 0.003))

    def _new_id(self) -> UUID:
        return UUID(int=next(self._ids) << 64 | 0x8000)
