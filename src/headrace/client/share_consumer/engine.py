"""What a consumer does behind its face: a member, a session with each leader, and a buffer.

Records are fetched when somebody waits for them, never more than were asked for. What comes when he
waits no longer is kept for the next who does until its lock would be renewed, and then given back.
With several brokers the sessions fetch in turn, as each could bring all that is wanted.
Source: KIP-932; Kafka's ShareConsumeRequestManager for the order of things.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from headrace.client.connection import Address
from headrace.client.errors import ClientError, Closed
from headrace.client.share_consumer.hand import Hand
from headrace.client.share_consumer.member import Control, Member
from headrace.client.share_consumer.outcomes import Outcomes
from headrace.client.share_consumer.parcels import Parcel, Saying
from headrace.client.share_consumer.records import BaseRecord
from headrace.client.share_consumer.session import Session
from headrace.client.share_consumer.words import HandFull, Place, Settings, ShareStats
from headrace.wire.primitives import Malformed

LOG = logging.getLogger(__name__)

MakeRecord = Callable[..., BaseRecord]
CLOSE_S_MAX = 10.0
_LOOK_AGAIN_S = 0.25
_FIRST_LOOK_S_MAX = 1.0
_WARN_EVERY_S = 10.0


class Engine:
    """The inside of one consumer, on the event loop where it is made."""

    def __init__(self, settings: Settings, make_record: MakeRecord) -> None:
        self.settings = settings
        self.stats = ShareStats()
        self.is_stopping = False
        self.prefetch = 0
        # Loops and runs that go on: what is held ready for them is theirs while they work.
        self.readers: WeakSet[object] = WeakSet()
        self._make = make_record
        self._clock = time.monotonic
        self._loop = asyncio.get_running_loop()
        self._control = Control(settings)
        self._member = Member(settings, self._control, on_assigned=self._assigned)
        self._assignment: frozenset[Place] = frozenset()
        self._names: dict[Any, str] = {}
        self._has_leaders = True  # whatever is assigned
        self._sessions: dict[Address, Session] = {}
        self._turn = 0
        self._buffer: deque[BaseRecord] = deque()
        self._is_left = False
        self._waiting: dict[asyncio.Future[None], tuple[int, int]] = {}
        self._outcomes = Outcomes(settings, self.stats, failed=self.failed)
        self._error: ClientError | None = None
        self._warn_at = -math.inf
        self._look = asyncio.Event()
        self._looked = self._loop.create_future()
        self._tasks: dict[asyncio.Task[None], Session | None] = {}
        self._is_closed = False
        self._has_closed = asyncio.Event()

    # ---- life

    async def start(self) -> None:
        """Join the group. Raises: `ClientError`."""
        try:
            await self._member.join()
        except BaseException:
            await self._control.close()
            raise
        self._look.set()  # tells also which topics are not there
        self._run(self._member.stay())
        self._run(self._keep_looking())
        try:  # what was assigned is to have its names; without them it goes on all the same
            await asyncio.wait([self._looked], timeout=_FIRST_LOOK_S_MAX)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Settle what has a verdict, release the rest, leave the group."""
        if self._is_closed:
            await self._has_closed.wait()
            return
        self._is_closed = True
        try:
            await self._close()
        finally:
            self._has_closed.set()

    async def _close(self) -> None:
        self.stop()
        own = [task for task, session in self._tasks.items() if session is None]
        ending = [task for task, session in self._tasks.items() if session is not None]
        for session in self._sessions.values():
            session.end()
        try:
            if ending:
                await asyncio.wait(ending, timeout=CLOSE_S_MAX)
        finally:
            for task in (*own, *ending):
                task.cancel()
            await asyncio.gather(*own, *ending, return_exceptions=True)
            self._outcomes.close()
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._member.leave()
        except (OSError, Malformed, ClientError) as error:
            LOG.info("share group %s did not hear the leaving (%s)", self.settings.group, error)
        finally:
            await self._control.close()

    def stop(self) -> None:
        """Fetch no more, and have everybody who waits for records wait no longer."""
        self.is_stopping = True
        self.release_buffer()
        self._wake_waiting(everybody=True)

    def stop_soon(self) -> None:
        """The same from any thread."""
        self.is_stopping = True  # at once: what is asked for from now on gets nothing
        with suppress(RuntimeError):  # the event loop is gone
            self._loop.call_soon_threadsafe(self.stop)

    def _run(self, work: Any, session: Session | None = None) -> None:
        task = asyncio.create_task(work)
        self._tasks[task] = session
        task.add_done_callback(self._ended_task)

    def _ended_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, ClientError):
            self.failed(error)
        else:
            self.failed(Closed(f"a bug in the consumer: {error!r}"))
            task.get_loop().call_exception_handler(
                {"message": "share consumer", "exception": error}
            )

    # ---- what users ask for

    async def take(
        self, count: int, timeout_s: float | None, *, ahead: int = 0
    ) -> list[BaseRecord]:
        """One to `count` records; none when the time is up or `stop` was called.

        Where there is none, `ahead` are fetched if that is more.
        """
        loop = asyncio.get_running_loop()
        until = None if timeout_s is None else loop.time() + timeout_s
        self.must_be_open()
        self._is_left = False
        while True:
            self._must_go_on()
            if self.is_stopping:
                return []
            found = self._pop(count)
            if found and self.prefetch:
                self._wake_all()
            if found or (until is not None and loop.time() >= until):
                return found
            self._must_have_room()
            waiting = loop.create_future()
            self._waiting[waiting] = (count, max(count, ahead))
            self._wake_all()
            try:
                async with asyncio.timeout_at(until):
                    await waiting
            except TimeoutError:
                continue  # the loop looks a last time
            finally:
                del self._waiting[waiting]
                if waiting.done() and self._buffer:
                    self._wake_waiting()  # it may have been cancelled meanwhile

    async def commit(self) -> None:
        """Until every verdict given so far is answered. Raises: the first failure nobody saw."""
        self.must_be_open()
        pending = [one for session in self._sessions.values() for one in session.hand.unheard]
        for answer in pending:
            await answer.until_done()
        self._must_go_on()
        error = self._outcomes.unseen()
        if error is None:  # a concurrent commit may have taken the failure
            failed = (one.error for one in pending if not one.is_observed)
            error = next((one for one in failed if one is not None), None)
        if error is not None:
            raise error

    @property
    def in_hand(self) -> int:
        return sum(len(session.hand) for session in self._sessions.values())

    @property
    def assignment(self) -> frozenset[tuple[str, int]]:
        return frozenset(
            (self._names[topic_id], partition)
            for topic_id, partition in self._assignment
            if topic_id in self._names
        )

    @property
    def is_connected(self) -> bool:
        away = any(one.is_away for one in tuple(self._sessions.values()))
        return self._member.is_heard and self._has_leaders and not away

    def release_buffer(self) -> None:
        """Give back what nobody took, also what is on its way unless somebody waits for it."""
        self._is_left = True
        while self._buffer:
            record = self._buffer.popleft()
            record.hand.give_back(record)

    def _pop(self, count: int) -> list[BaseRecord]:
        found: list[BaseRecord] = []
        while self._buffer and len(found) < count:
            record = self._buffer.popleft()
            if record.is_held:
                found.append(record)
            else:  # its lock has ended: it is somebody else's, or will come again
                record.hand.forget(record)
        return found

    def _must_go_on(self) -> None:
        if self._error is not None:
            raise self._error

    def must_be_open(self) -> None:
        """Raises: `Closed`."""
        if self._is_closed:
            raise Closed("the consumer is closed; make a new one")

    def _must_have_room(self) -> None:
        limit = self.settings.max_in_hand
        if sum(session.hand.open for session in self._sessions.values()) >= limit:
            raise HandFull(
                f"{limit} records are in hand without a verdict: accept(), release() or reject() "
                "each, or raise max_in_hand"
            )

    def _wake_waiting(self, *, everybody: bool = False) -> None:
        left = len(self._buffer)
        for waiting, (count, _) in self._waiting.items():
            if left <= 0 and not everybody:
                return
            if not waiting.done():
                waiting.set_result(None)
            left -= count

    def _wake_all(self) -> None:
        for session in self._sessions.values():
            session.wake()

    # ---- what sessions ask for

    @property
    def fetching(self) -> int:
        return sum(1 for one in self._sessions.values() if one.can_fetch)

    def demand(self, session: Session) -> int:
        """How many records a session is to fetch now. See `owner.Owner`, also for what follows."""
        ready = [one for one in self._sessions.values() if one.can_fetch]
        if self.is_stopping or not ready or ready[self._turn % len(ready)] is not session:
            return 0
        asked = sum(most for waiting, (_, most) in self._waiting.items() if not waiting.done())
        have = len(self._buffer)
        if not asked and have > self.prefetch // 2:
            return 0
        room = self.settings.max_in_hand - self.in_hand
        return max(0, min(asked + self.prefetch - have, room))

    def turn_over(self) -> None:
        self._turn += 1
        if len(self._sessions) > 1:
            self._wake_all()

    def make(self, hand: Hand, place: Place, found: Any) -> BaseRecord | None:
        topic = self._names.get(place[0])
        if topic is None:
            return None
        record, timestamp_type, deliveries = found
        return self._make(
            hand, place, topic, record, timestamp_type=timestamp_type, delivery_count=deliveries
        )

    def arrived(self, records: Sequence[BaseRecord]) -> None:
        self.stats.acquired += len(records)
        self._buffer.extend(records)
        if self.is_stopping or (self._is_left and not self._waiting):
            self.release_buffer()
        self._wake_waiting()

    def due(self, hand: Hand) -> dict[Place, Parcel]:
        now = self._clock()
        if not self._waiting and not self.readers:
            for record in [record for record in self._buffer if record.renew_at <= now]:
                self._buffer.remove(record)
                record.hand.give_back(record)
        return hand.renewals()

    def stale(self) -> None:
        self._look.set()

    def lost(self) -> None:
        self.stats.reconnects += 1
        self._buffer = deque(record for record in self._buffer if record.is_held)

    def crowded(self, address: Address) -> None:
        now = self._clock()
        if now >= self._warn_at:
            self._warn_at = now + _WARN_EVERY_S
            LOG.warning(
                "share group %s: %s has no room for another share session, so nothing comes from "
                "there; end a consumer, or raise the broker's group.share.max.share.sessions",
                self.settings.group, address,
            )  # fmt: skip

    def failed(self, error: ClientError) -> None:
        if self._error is None:
            self._error = error
            LOG.error("share group %s: %s", self.settings.group, error, exc_info=error.__cause__)
        self._wake_waiting(everybody=True)

    def said(self) -> None:
        self._wake_all()

    def ended(self, sayings: Sequence[Saying], error: ClientError | None) -> None:
        self._outcomes.ended(sayings, error)

    async def renewal_is_off(self) -> bool:
        return await self._control.renewal_is_off()

    # ---- assignment

    def _assigned(self, places: frozenset[Place]) -> None:
        if places != self._assignment:
            self._assignment = places
            LOG.debug("share group %s: %d partitions", self.settings.group, len(places))
            self._look.set()

    async def _keep_looking(self) -> None:
        """Find the leaders of what is assigned, now and whenever something has changed."""
        while True:
            await self._look.wait()
            self._look.clear()
            try:
                is_complete = self._distribute(await self._control.metadata())
            except (OSError, Malformed):
                is_complete = False
            finally:
                if not self._looked.done():
                    self._looked.set_result(None)
            self._has_leaders = is_complete
            if not is_complete:
                self._look.set()
            await asyncio.sleep(_LOOK_AGAIN_S)

    def _distribute(self, metadata: Any) -> bool:
        """Give each leader's session its partitions; whether all have a leader."""
        nodes = {one.node_id: Address(one.host, int(one.port)) for one in metadata.brokers}
        parts: dict[Address, set[Place]] = {}
        found = 0
        for topic in metadata.topics:
            if topic.error_code or topic.topic_id is None:
                continue
            self._names[topic.topic_id] = topic.name
            for one in topic.partitions:
                place = (topic.topic_id, int(one.partition_index))
                if place in self._assignment and one.leader_id in nodes:
                    parts.setdefault(nodes[one.leader_id], set()).add(place)
                    found += 1
        for address in parts.keys() - self._sessions.keys():
            self._open(address)
        for address, session in self._sessions.items():
            session.assign(frozenset(parts.get(address, ())))
        self._wake_all()  # it may be another's turn now
        return found == len(self._assignment)

    def _open(self, address: Address) -> None:
        session = Session(self, self.settings, address, self._member.id, clock=self._clock)
        self._sessions[address] = session
        self._run(session.run(), session)
