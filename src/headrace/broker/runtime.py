"""The shell around a state machine: submit, append, sync, release answers, keep time (design §3).

Events are applied when they are decided, so the next command sees them; answers, reads included,
leave once the journal holds everything decided before them, as durably as configured: `os` after
the write, `fsync` after one fdatasync for all that wait (group commit). There is no undo: if
an append or a sync fails, the machine is dropped, the journal healed and the machine rebuilt from
it, and the callers are told so. That is tried again, with pauses, for as long as it takes.

A rebuild replays the journal in a thread (`replay.py`), as a large journal takes seconds, and then
decides the recovery command in portions. The new machine is invisible until both are complete.
Until then the runtime refuses commands with StorageFault, as while the disk fails, and runs no
timer. Readers of the state find the dropped one, of which neither `durable` nor `when_durable`
confirms anything. The rebuild ends and is tried again if another fault comes, or if the log drops
or compacts batches that were to be replayed.

A command that takes too long for one step of the loop is decided in portions, of which each replies
with the rest (`machine.Unfinished`). Other commands have their turn in between and see what is
decided so far. The portions of all shards of a broker take turns, first in, first out, and one turn
of the loop has one of them. A fault drops what was decided with the machine, and the rest of the
command is abandoned.

During an atomic command nothing is written until the last portion is decided, so all of them, and
what was decided in between, are one batch; all answers wait for it. A shard has one such command at
a time. Another one begins, first in, first out, when everything decided before is with the journal,
so no answer waits for more than one of them.
"""

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter, thread_time
from typing import Any, Generic, TypeVar

from headrace.broker.background import in_background
from headrace.broker.listeners import Listeners
from headrace.broker.loop_turns import TURN_SECONDS, Turns
from headrace.broker.replay import JournalDamaged, replay, replay_in_thread
from headrace.core.errors import Refused
from headrace.core.machine import (
    Decided,
    Entry,
    Journal,
    LateEntries,
    Machine,
    Unfinished,
    applier,
    encoded,
    placer,
)
from headrace.core.types import MonoMs, Now, WallMs, after, elapsed_ms
from headrace.log.api import Clock, CorruptLog, JournalLog
from headrace.log.buggify import buggify
from headrace.wire import batches

log = logging.getLogger(__name__)

_PAUSE_MS_MIN = 100  # before the second attempt to go on after a fault; the first is made at once
_PAUSE_MS_MAX = 5_000
_FLUSH_LATE_SECONDS = _PORTION_LATE_SECONDS = 0.02  # in simulations
_ENCODED_MAX = 2_000  # records of a batch that is encoded on the event loop: some milliseconds
_TO_TELL_MAX = 10_000  # kept while a fault lasts; what they tell is found again at the next start
_TOLD_AT_ONCE = 100  # of these, in one turn of the loop

CommandT = TypeVar("CommandT")
EventT = TypeVar("EventT")


class StorageFault(Exception):
    """The journal could not be written; the command may or may not have taken effect."""


# Told the reply, or the Refused, or a StorageFault; must not raise.
Told = Callable[[Any], None]
_Record = Entry | LateEntries
_Batch = tuple[list[Entry], bytearray, batches.BatchHeader]
_Parked = tuple[Told, Any]  # a caller whose answer waits for the journal, with the answer


class ShardRuntime(Generic[CommandT, EventT]):
    """Drives one machine with one journal on one event loop.

    Args:
        build: makes the machine, empty, and its journal codec.
        fsync: answers wait for fdatasync, not only for the write.
        recovered: a command to run once the journal is replayed; it cannot be refused.
        sync: makes what was appended durable; fdatasync in a thread when not given.
        roll: prepares the next segment of the journal, where an append must not do that itself.
        turns: turns of portions, shared by the shards of a broker.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[], tuple[Machine[CommandT, EventT], Journal[EventT]]],
        journal: JournalLog,
        clock: Clock,
        *,
        roll: Callable[[], Awaitable[None]],
        fsync: bool = False,
        recovered: CommandT | None = None,
        sync: Callable[[], Awaitable[None]] | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.name = name
        self.listeners: Listeners[EventT] = Listeners()
        self.on_rebuilt: list[Callable[[], None]] = []  # called when commands are decided again
        self.appends = self.records = 0  # batches and records that the journal got
        self._build = build
        self._log = journal
        self._clock = clock
        self._fsync = fsync
        self._recovered = recovered
        self._sync_journal = sync or self._sync_in_thread
        self._roll_journal = roll
        self._unwritten: list[_Record] = []
        self._decided_at = WallMs(0)  # time of the last decision that has records
        self._to_tell: list[CommandT] = []
        self._parked: list[_Parked] = []
        self._unsynced: list[_Parked] = []
        self._syncing: asyncio.Task[None] | None = None
        # Prepares a segment or encodes a batch in a thread; nothing is written meanwhile.
        self._rolling: asyncio.Task[None] | None = None
        self._turns = turns or Turns(perf_counter, thread_time)
        self._unfinished: set[asyncio.Task[None]] = set()  # decide the rest of a command
        # The machine that has begun an atomic command; nothing is written meanwhile.
        self._amid: Machine[CommandT, EventT] | None = None
        self._held_back: deque[tuple[CommandT, Told]] = deque()  # atomic ones that wait for that
        self._must_sync = False  # something was written since the last sync began
        self._flush_due: asyncio.Handle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = MonoMs(0)
        self._fault: OSError | None = None
        self._failures = 0
        self._retry: asyncio.TimerHandle | None = None
        self._retry_at = MonoMs(0)
        self._rebuilding: asyncio.Task[None] | None = None
        self._is_closing = False
        self._begin(*build())

    @property
    def waiting(self) -> int:
        """Callers whose answer waits for the journal."""
        return len(self._parked) + len(self._unsynced)

    @property
    def is_durable(self) -> bool:
        """Whether everything decided so far is durable: an answer has nothing to wait for."""
        is_waiting = self._unwritten or self._must_sync or self._syncing or self.waiting
        return not is_waiting and self._fault is None

    @property
    def codec(self) -> Journal[EventT]:
        """The journal's codec; another one after a rebuild."""
        return self._codec

    @property
    def fault(self) -> OSError | None:
        """Why the journal cannot be written now, if so; also while the state is rebuilt."""
        return self._fault

    def load(self) -> None:
        """Replay the journal into a new machine, which takes the place of the old one when done.

        Raises: JournalDamaged for a record that is not known; OSError.
        """
        if self._fsync:
            self._log.sync()  # what is replayed is promised from now on
        machine, codec = self._build()
        replay(self._log, machine, codec, self._clock, self.name)
        self._begin(machine, codec)

    def start(self) -> None:
        """Begin to keep time, on the running event loop, and run the recovery command.

        All of it in one step, as the replay before: nobody is served yet.
        """
        if self._recovered is not None:
            reply = self._decide(self._recovered)
            while isinstance(reply, Unfinished):
                reply = self._decide(reply.following())
            self.when_durable(_nobody, reply)
        self._arm()

    async def ask(self, command: CommandT) -> Any:
        """Decide a command; its reply, or the Refused, once all it rests on is durable.

        Raises: StorageFault when the journal cannot be written.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit(command, partial(_settle, future))
        return await future

    def tell(self, command: CommandT) -> None:
        """Decide a command whose caller does not wait; it cannot be refused.

        What a fault takes back is decided again once the machine is rebuilt.
        """
        self.submit(command, partial(self._told, command))

    def _told(self, command: CommandT, reply: Any) -> None:
        if isinstance(reply, StorageFault) and len(self._to_tell) < _TO_TELL_MAX:
            self._to_tell.append(command)

    def durable(self) -> "asyncio.Future[None]":
        """Done once everything decided so far is durable: up to this call, not to its await.

        Raises: StorageFault, by the future, also where a fault took back what was decided, which
        the caller may have read: the state is rebuilt then, if it can be, for who asks again.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._fault is None:
            self.when_durable(partial(_settle, future))
        else:
            future.set_exception(StorageFault(f"{self.name}: {self._fault}"))
            self._rebuild_if_due()
        return future

    def when_durable(self, told: Told, reply: Any = None) -> None:
        """Call `told` with `reply` once everything decided so far is durable, or a StorageFault.

        At once on a known fault: it took back what the caller may have read or decided.
        """
        if self._fault is not None:
            told(StorageFault(f"{self.name}: {self._fault}"))
            return
        self._parked.append((told, reply))
        self._schedule()

    async def close(self) -> None:
        """Write and sync what is decided, then stop keeping time; a rebuild is abandoned."""
        self._is_closing = True
        for timer in (self._alarm, self._retry):
            if timer is not None:
                timer.cancel()
        self._alarm = None
        if self._rebuilding is not None:
            await asyncio.wait([self._rebuilding])
        self._refuse_held_back("the broker stops")
        while self._unfinished:
            await asyncio.wait(self._unfinished)
        self._flush()
        while (under_way := self._rolling or self._syncing) is not None:
            await under_way
        self._log.sync()

    def submit(self, command: CommandT, told: Told) -> None:
        """As `ask`, but calls `told` with what `ask` returns or raises; at once on a known fault.

        For callers that go on with other requests meanwhile: it costs no task and no future.
        """
        refused = self._refused()
        if refused is None:
            self._carry_out(command, told)
        else:
            told(refused)

    def _carry_out(self, command: CommandT, told: Told, *, is_next: bool = False) -> None:
        """Decide a command, its first portion, or leave it until others are written.

        Args:
            is_next: It is the first of those that were held back.
        """
        now = self._clock.now()
        answer = self.machine.decide(command, now)
        reply = None if isinstance(answer, Refused) else answer.reply
        if not isinstance(reply, Unfinished):
            self.when_durable(told, self._applied(answer, now))
        elif reply.is_atomic and not (self._may_hold and (is_next or not self._held_back)):
            if self._is_closing:
                told(StorageFault(f"{self.name}: the broker stops"))
            else:
                self._held_back.append((command, told))
        else:
            self._applied(answer, now)
            if reply.is_atomic:
                self._amid = self.machine
            self._unfinished.add(in_background(self._finish(reply, told, self.machine)))

    @property
    def _may_hold(self) -> bool:
        """Whether nothing is left to be written for which an atomic command would be in the way."""
        is_waiting = self._unwritten or self._parked or self._rolling is not None
        return not (is_waiting or self._is_amid_portions())

    def _begin_held_back(self) -> None:
        while self._held_back and self._may_hold:
            command, told = self._held_back.popleft()
            try:
                self._carry_out(command, told, is_next=True)
            except Exception:
                told(StorageFault(f"{self.name}: a bug ended the command"))
                self._schedule()  # begins the next one
                raise

    def _refuse_held_back(self, reason: object) -> None:
        held_back, self._held_back = self._held_back, deque()
        for _, told in held_back:
            told(StorageFault(f"{self.name}: {reason}"))

    def decide(self, command: CommandT) -> Any:
        """Decide and apply: the reply, the Refused, or a StorageFault on a known fault.

        Commands that may be decided in portions go to `submit`, which sees to the rest of them.
        Nobody may be told of it unless it `is_durable`, or before `when_durable` calls, which has
        to be asked in the same turn: once for all the commands of a request.
        """
        refused = self._refused()
        return self._decide(command) if refused is None else refused

    def _refused(self) -> StorageFault | None:
        """Return why no command is decided now; None if one can be."""
        if self._fault is None and self._rebuilding is None:
            return None
        self._rebuild_if_due()
        return StorageFault(f"{self.name}: {self._fault or 'its state is being rebuilt'}")

    def _decide(self, command: CommandT) -> Any:
        """Decide and apply on a machine that is there: the reply, or the Refused."""
        now = self._clock.now()
        return self._applied(self.machine.decide(command, now), now)

    def _applied(self, answer: Decided[EventT] | Refused, now: Now) -> Any:
        """Apply what was decided at the time `now`: the reply, or the Refused."""
        if isinstance(answer, Refused):
            return answer
        if answer.events:
            self._take(answer.events, now)
        if answer.unused:  # in the next turn, as the command may refer to it as well
            asyncio.get_running_loop().call_soon(_free_in_thread, list(answer.unused))
        return answer.reply

    async def _finish(
        self, reply: Unfinished[CommandT], told: Told, machine: Machine[CommandT, EventT]
    ) -> None:
        """Decide the rest of a command that `machine` began, a portion in each of its turns."""
        answer: Any = reply
        is_atomic = reply.is_atomic
        del reply  # what is settled of a long command is freed portion by portion
        try:
            while isinstance(answer, Unfinished):
                command = await self._rest(answer)
                # The machine of before a fault has no part of the command any more, nor has a new
                # one.
                if self._fault is not None or self.machine is not machine:
                    answer = StorageFault(f"{self.name}: {self._fault or 'its state was rebuilt'}")
                else:
                    answer = self._decide(command)
                del command
        except Exception:
            self._end_portions(machine if is_atomic else None)
            if self._fault is None and self.machine is machine:  # half of it must not be written
                self._drop(OSError(errno.EIO, "a bug ended a command amid its portions"), [])
            told(StorageFault(f"{self.name}: a bug ended the command"))
            raise
        self._end_portions(machine if is_atomic else None)
        if isinstance(answer, StorageFault):
            told(answer)
            self._schedule()
        else:
            self.when_durable(told, answer)

    def _end_portions(self, held: Machine[CommandT, EventT] | None) -> None:
        """Forget the task that runs, and the hold of its atomic command."""
        task = asyncio.current_task()
        assert task is not None
        self._unfinished.discard(task)
        if held is not None and self._amid is held:
            self._amid = None

    async def _rest(self, reply: Unfinished[CommandT]) -> CommandT:
        """Return the command of the next portion once others had their turn."""
        if buggify("portion.late"):
            await asyncio.sleep(_PORTION_LATE_SECONDS)
        if reply.prepare is None:
            following = reply.following()
        else:
            following = await asyncio.get_running_loop().run_in_executor(None, reply.following)
        await self._turns.turn(TURN_SECONDS)
        return following

    def _begin(self, machine: Machine[CommandT, EventT], codec: Journal[EventT]) -> None:
        self.machine, self._codec = machine, codec
        self._apply, self._placed = applier(machine), placer(codec)

    def _take(self, events: Sequence[EventT], now: Now) -> None:
        self._apply(events)
        self._unwritten += self._codec.records(events, now.wall)
        self._decided_at = now.wall
        self.listeners.tell(events)
        self._arm()
        if self._unwritten:  # who was woken decides before the write, which then serves it too
            self._schedule()

    def _schedule(self) -> None:
        if self._flush_due is None:
            loop = asyncio.get_running_loop()
            if buggify("journal.flush"):
                self._flush_due = loop.call_later(_FLUSH_LATE_SECONDS, self._flush)
            else:
                self._flush_due = loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Append everything decided since the last flush as one batch; let the answers out.

        If the journal needs a new segment for it, everything waits until that is prepared; if it
        has many records, until they are encoded in a thread; if an atomic command is decided in
        portions, until the last of them.
        """
        if self._flush_due is not None:
            self._flush_due.cancel()
            self._flush_due = None
        if self._rolling is not None or self._is_amid_portions():
            return
        if self._unwritten and self._takes_long():
            unwritten, waiting = list(self._unwritten), len(self._parked)
            self._rolling = in_background(self._encode(unwritten, waiting))
        else:
            parked, self._parked = self._parked, []
            records, self._unwritten = self._unwritten, []
            self._write(records, parked)
        self._begin_held_back()

    def _takes_long(self) -> bool:
        """Return whether the unwritten records are to be encoded in a thread."""
        is_long = len(self._unwritten) > _ENCODED_MAX or buggify("journal.encode")
        return is_long or LateEntries in map(type, self._unwritten)

    def _is_amid_portions(self) -> bool:
        """Return whether only a part of an atomic command is decided."""
        return self._amid is self.machine

    def _write(
        self, records: list[_Record], parked: list[_Parked], batch: _Batch | None = None
    ) -> None:
        """Append records, perhaps encoded already, and let the answers out that rest on them."""
        if records:
            try:
                is_written = self._append(batch or _encoded(records, self._decided_at))
            except OSError as error:
                self._drop(error, parked)
                return
            if not is_written:
                self._parked, self._unwritten = parked + self._parked, records + self._unwritten
                self._rolling = in_background(self._make_room())
                return
        if self._must_sync or self._syncing is not None:
            self._unsynced += parked
            if self._unsynced and self._syncing is None:  # else it has time until somebody waits
                self._syncing = in_background(self._sync())
        else:
            if records:
                self._over()
            _release(parked)

    def _append(self, batch: _Batch) -> bool:
        """Append a batch of records; False, and nothing is appended, without room for it."""
        records, data, header = batch
        if self._log.must_roll(header):
            return False
        first = self._log.append(data, [header])
        if self._placed is not None:
            for offset, entry in enumerate(records, first):
                self._placed(offset, entry.key, entry.value)
        self.appends += 1
        self.records += len(records)
        self._must_sync = self._fsync
        return True

    async def _encode(self, records: list[_Record], parked: int) -> None:
        """Encode the first unwritten records in a thread, and write them.

        The first parked answers rest on them.
        """
        encode = partial(_encoded, records, self._decided_at)
        try:
            batch = await asyncio.get_running_loop().run_in_executor(None, encode)
        except Exception:
            self._rolling = None
            self._drop(OSError(errno.EIO, "a bug ended the encoding of a batch"), [])
            raise
        self._rolling = None
        if self._fault is not None:  # a failed sync dropped the state, with all but what came since
            self._drop(self._fault, [])
            return
        self._unwritten = self._unwritten[len(records) :]
        waiting, self._parked = self._parked[:parked], self._parked[parked:]
        self._write(records, waiting, batch)
        del batch
        asyncio.get_running_loop().run_in_executor(None, _free, records)
        self._flush()

    async def _make_room(self) -> None:
        """Prepare a new segment of the journal, and write what waits for it."""
        fault: OSError | None = None
        try:
            await self._roll_journal()
        except OSError as error:
            fault = error
        finally:
            self._rolling = None
        # A failed sync may have dropped the state meanwhile, with all but what was parked since.
        if (fault := fault or self._fault) is not None:
            self._drop(fault, [])
        else:
            self._flush()

    async def _sync(self) -> None:
        try:
            while self._unsynced:
                waiting, self._unsynced, self._must_sync = self._unsynced, [], False
                try:
                    await self._sync_journal()
                except OSError as error:
                    self._drop(error, waiting + self._unsynced)
                    self._unsynced = []
                    return
                self._over()
                _release(waiting)
        finally:
            self._syncing = None

    async def _sync_in_thread(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._log.sync)

    def _drop(self, error: OSError, parked: list[_Parked]) -> None:
        """Give up the state and all that waits; told once, however often it fails again."""
        if not self._failures:
            log.error(
                "%s: journal write failed: %s. Callers are told so, state is rebuilt from the "
                "journal. Check space and permissions of the data folder; no restart is needed.",
                self.name,
                error,
            )
        self._fault = error
        self._unwritten, self._must_sync = [], False
        given_up, self._parked = parked + self._parked, []
        for told, _ in given_up:
            told(StorageFault(f"{self.name}: {error}"))
        self._refuse_held_back(error)
        self._fail()

    def _fail(self) -> None:
        """Try again to go on: at once for the first time, then after growing pauses."""
        pause_ms = 0
        if self._failures:
            pause_ms = min(_PAUSE_MS_MIN << min(self._failures - 1, 10), _PAUSE_MS_MAX)
        self._failures += 1
        if self._is_closing:
            return
        self._retry_at = after(self._clock.mono(), pause_ms)
        if self._retry is not None:
            self._retry.cancel()
        loop = asyncio.get_running_loop()
        self._retry = loop.call_later(pause_ms / 1000, self._try_again)

    def _try_again(self) -> None:
        self._retry_at = self._clock.mono()
        self._rebuild_if_due()

    def _over(self) -> None:
        if self._failures:
            log.warning(
                "%s: journal is written again, after %d failures", self.name, self._failures
            )
            self._failures = 0

    def _rebuild_if_due(self) -> None:
        """Begin to rebuild the state after a fault, unless that has to wait."""
        if self._fault is None or self._rebuilding is not None or self._is_closing:
            return
        # While `_rolling`, a thread works on the journal.
        if self._rolling is None and elapsed_ms(self._retry_at, self._clock.mono()) >= 0:
            self._rebuilding = in_background(self._rebuild(self._fault))

    async def _rebuild(self, fault: OSError) -> None:
        """Make the journal whole after a fault, and replay it into a new machine."""
        try:
            machine, codec = await self._replayed(fault)
            records, events = await self._recover(machine, codec, fault)
            dropped = [self.machine, self._codec, self._apply, self._placed]
            self._begin(machine, codec)
            # In a thread: to free a large state takes long.
            asyncio.get_running_loop().run_in_executor(None, dropped.clear)
            self._fault = None
            self._unwritten += records
            self.listeners.tell(events)
            self.when_durable(_nobody)
            while self._to_tell and self._fault is None:  # before any other command
                some, self._to_tell = self._to_tell[:_TOLD_AT_ONCE], self._to_tell[_TOLD_AT_ONCE:]
                for command in some:
                    self._carry_out(command, partial(self._told, command))
                await asyncio.sleep(0)
        except OSError as error:
            self._not_rebuilt(fault, error)
        except (JournalDamaged, CorruptLog) as error:
            # What was written is damaged now, and needs an operator.
            self._not_rebuilt(fault, OSError(errno.EIO, str(error)))
        except Exception:
            self._not_rebuilt(fault, OSError(errno.EIO, "a bug ended the rebuild of the state"))
            raise
        finally:
            self._rebuilding = None
        if self._fault is None:
            self._arm()
            for notify in self.on_rebuilt:
                notify()
        else:
            self._rebuild_if_due()  # a timer that ended during the rebuild did nothing

    async def _replayed(self, fault: OSError) -> tuple[Machine[CommandT, EventT], Journal[EventT]]:
        """Return a new machine with the state of the journal, and its codec.

        Raises: JournalDamaged; CorruptLog; OSError, also where another fault came meanwhile.
        """

        is_abandoned = partial(self._is_abandoned, fault)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, partial(self._log.mend, keep=not self._fsync))
        self._log.resume()
        if self._fsync:
            await self._sync_journal()  # what is replayed is promised from now on
        machine, codec = self._build()
        await replay_in_thread(self._log, machine, codec, self._clock, self.name, is_abandoned)
        return machine, codec

    async def _recover(
        self, machine: Machine[CommandT, EventT], codec: Journal[EventT], fault: OSError
    ) -> tuple[list[_Record], Sequence[EventT]]:
        """Decide the recovery command on a machine that is still invisible.

        One portion in each turn of the loop. Listeners are told of all but the last one.

        Returns:
            What the journal is to get of it, and the events of the last portion, of which listeners
            are to be told when they find the new machine.

        Raises: OSError where another fault came meanwhile.
        """
        records, command = list[_Record](), self._recovered
        if command is None:
            return records, ()
        apply = applier(machine)
        while True:
            now = self._clock.now()
            answer = machine.decide(command, now)
            assert not isinstance(answer, Refused), answer  # nobody could be told
            apply(answer.events)
            records += codec.records(answer.events, now.wall)
            self._decided_at = now.wall
            if not isinstance(answer.reply, Unfinished):
                return records, answer.events
            self.listeners.tell(answer.events)
            command = await self._rest(answer.reply)
            if self._is_abandoned(fault):
                raise OSError(errno.ECANCELED, f"{self.name}: its recovery was abandoned")

    def _is_abandoned(self, fault: OSError) -> bool:
        """Return whether the rebuild after a fault cannot succeed any more."""
        return self._is_closing or self._fault is not fault

    def _not_rebuilt(self, fault: OSError, error: OSError) -> None:
        """Try again later, unless another fault that came meanwhile sees to that."""
        if self._fault is None or self._fault is fault:
            self._drop(error, [])

    def _arm(self) -> None:
        """Have `_tick` called at the next deadline of the machine.

        An alarm that is early stays, as nearly every heartbeat moves a deadline: it ticks without
        an effect, and is set again.
        """
        deadline = None if self._is_closing else self.machine.next_deadline()
        if deadline is None:
            return
        if self._alarm is not None:
            if self._alarm_at <= deadline:
                return
            self._alarm.cancel()
        self._alarm_at = deadline
        delay_ms = max(0, elapsed_ms(self._clock.mono(), deadline))
        self._alarm = asyncio.get_running_loop().call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._alarm = None
        if self._fault is not None or self._rebuilding is not None:
            self._rebuild_if_due()
            return
        now = self._clock.now()
        events = self.machine.tick(now)
        if events:
            self._take(events, now)
        else:
            self._arm()


def _encoded(records: list[_Record], decided_at: WallMs) -> _Batch:
    entries = encoded(records)
    given = [batches.Record(0, decided_at, *one) for one in entries]
    data, header = batches.build_with_header(given)
    _free(given)
    return entries, data, header


def _free_in_thread(columns: list[tuple[object, ...]]) -> None:
    """Free long data that nothing else refers to any more, in a thread."""
    asyncio.get_running_loop().run_in_executor(None, _free_columns, columns)


def _free_columns(columns: list[tuple[object, ...]]) -> None:
    while columns:
        _free(list(columns.pop()))


def _free(items: list[Any]) -> None:
    """Empty a list with pauses for other threads; a long one takes some ten milliseconds."""
    while items:
        del items[-_ENCODED_MAX:]


def _release(parked: list[_Parked]) -> None:
    for told, reply in parked:
        told(reply)


def _settle(future: asyncio.Future[Any], reply: Any) -> None:
    """Tell a coroutine that waits, unless it was cancelled."""
    if future.done():
        return
    if isinstance(reply, StorageFault):
        future.set_exception(reply)
    else:
        future.set_result(reply)


def _nobody(reply: Any) -> None:  # Told's signature
    """The caller does not wait."""
