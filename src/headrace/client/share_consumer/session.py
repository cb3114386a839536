"""The share session with one broker: fetches, verdicts and renewals, one request at a time.

A session belongs to its connection: when that ends, the broker lets go of every lock. So what is
held then is lost, and a new session begins (KIP-932). The epoch counts requests; a broker that does
not know it (122, 123) is asked to open another, with all locks as they were.
"""

import asyncio
import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.client.connection import Address
from headrace.client.errors import BrokerError, ClientError
from headrace.client.share_consumer import wire
from headrace.client.share_consumer.hand import Hand
from headrace.client.share_consumer.owner import Owner
from headrace.client.share_consumer.parcels import INVALID_RECORD_STATE, Parcel
from headrace.client.share_consumer.stream import Stream
from headrace.client.share_consumer.words import Place, Settings, Verdict
from headrace.wire.primitives import Malformed

LOG = logging.getLogger(__name__)

_EPOCH_MAX = 2**31 - 1
_NO_SESSION = frozenset({122, 123})
_TOO_MANY_SESSIONS = 133
_REFUSED = frozenset({24, 29, 30, 35, 42, 69})  # the same however often it is asked
_NEW_LEADER = frozenset({3, 6, 9, 56, 74, 75, 100, 103})  # look up the topic again
_NOTHING_YET = frozenset({0, 78})
_TOPIC_REFUSED = 29
_HELD_WAIT_MS_MAX = 100  # a fetch waits no longer while verdicts may come that it would hold up
_FIRST_PAUSE_S, _PAUSE_S_MAX = 0.05, 1.0
_WARN_AFTER = 5  # attempts to connect
_ASK_AGAIN_S = 5.0  # whether the group renews locks at all: a refusal does not tell


class Session:
    """What one consumer has with one broker. `run` is its only task."""

    def __init__(
        self,
        owner: Owner,
        settings: Settings,
        address: Address,
        member_id: str,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.address = address
        self.hand = Hand(owner, clock=clock, renew_s_max=settings.renew_s_max)
        self._is_connected = False
        self._owner = owner
        self._settings = settings
        self._member_id = member_id
        self._clock = clock
        self._stream: Stream | None = None
        self._epoch = wire.OPEN
        self._wanted: frozenset[Place] = frozenset()
        self._known: set[Place] = set()  # to the broker, as parts of the session
        self._sent: Mapping[Place, Parcel] = {}
        self._wake = asyncio.Event()
        self._is_ending = False
        self._lock_s = math.inf
        self._renews_until = -math.inf  # the group does, as far as is known

    @property
    def can_fetch(self) -> bool:
        """Whether it would use its turn."""
        return self._is_connected and bool(self._wanted)

    @property
    def is_away(self) -> bool:
        """Whether there is something to fetch, and no connection to fetch it from."""
        return bool(self._wanted) and not self._is_connected

    def assign(self, places: frozenset[Place]) -> None:
        """Fetch from these partitions from now on."""
        if places != self._wanted:
            self._wanted = places
            self._wake.set()

    def wake(self) -> None:
        """There is something to do."""
        self._wake.set()

    def end(self) -> None:
        """Have `run` return once what is held is settled or released."""
        self._is_ending = True
        self._wake.set()

    async def run(self) -> None:
        """Speak with the broker until the end, through its restarts, or a refusal that stays."""
        failures = 0
        why = "the consumer is closed"
        try:
            while not self._is_ending:
                try:
                    if self._stream is None:
                        if not self._wanted:
                            await self._idle()
                            continue
                        await self._connect()
                        failures = 0
                    await self._turn()
                except (OSError, Malformed) as error:
                    failures += 1
                    await self._recover(error, failures)
            await self._finish()
        except ClientError as error:
            why = str(error)
            self._owner.failed(error)
        finally:
            self.hand.lose(why, self._sent.values())
            if self._stream is not None:
                await self._stream.closed()

    async def _connect(self) -> None:
        settings = self._settings
        stream = await Stream.open(
            self.address, client_id=settings.client_id, timeout_s=settings.timeout_s
        )
        self._stream = stream
        stream.newest(wire.SHARE_ACKNOWLEDGE, wire.FETCH_VERSIONS)
        if stream.newest(wire.SHARE_FETCH, wire.FETCH_VERSIONS) < wire.RENEW_VERSION:
            self._cannot_renew(f"{self.address} is older than Kafka 4.2")
        self._is_connected = True

    async def _recover(self, error: OSError | Malformed, failures: int) -> None:
        was_connected, self._is_connected = self._is_connected, False
        why = f"the connection to {self.address} was lost ({error or type(error).__name__})"
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._reopen()
        sent, self._sent = self._sent, {}
        self.hand.lose(why, sent.values())
        self._owner.turn_over()
        if was_connected:
            LOG.info("share group %s: %s; connecting again", self._settings.group, why)
            self._owner.lost()
        elif failures % _WARN_AFTER == 0:
            LOG.warning("share group %s: %s; trying on", self._settings.group, why)
        self._owner.stale()
        pause = min(_FIRST_PAUSE_S * 2 ** min(failures - 1, 10), _PAUSE_S_MAX)
        await self._pause(pause * random.uniform(0.5, 1.0))  # noqa: S311 -- jitter, not a secret

    async def _pause(self, seconds: float) -> None:
        """Sleep, unless it is the end."""
        if self._is_ending:
            return
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                while not self._is_ending:
                    await self._wake.wait()
                    self._wake.clear()
        except TimeoutError:
            self._wake.set()

    def _reopen(self) -> None:
        self._epoch = wire.OPEN
        self._known.clear()

    async def _turn(self) -> None:
        """One request, or a wait until there is a reason for one."""
        self._wake.clear()
        if self._epoch == wire.OPEN:
            # At once, also where nothing is asked for: Kafka finds `latest` with the first fetch.
            if self._wanted or len(self.hand):
                await self._fetch(self._owner.demand(self))
            else:
                await self._idle()
        elif self.hand.next_renewal() <= self._clock() and (due := self._owner.due(self.hand)):
            await self._renew(due)
        elif self._wanted and (demand := self._owner.demand(self)):
            await self._fetch(demand)
        elif self.hand.has_said:
            await self._acknowledge()
        else:
            await self._idle()

    async def _idle(self) -> None:
        self._wake.clear()
        left = self.hand.next_renewal() - self._clock()
        try:
            async with asyncio.timeout(None if left == math.inf else max(left, 0)):
                await self._wake.wait()
        except TimeoutError:
            return

    # ---- fetching

    async def _fetch(self, demand: int) -> None:
        settings = self._settings
        is_new = self._epoch == wire.OPEN
        parcels = {} if is_new else self.hand.parcels()
        wanted = self._wanted
        added = wanted - self._known
        dropped = frozenset() if is_new else (self._known | parcels.keys()) - wanted
        # An answer waits for records as long as it may, also for that to verdicts.
        wait_ms = 0 if parcels or not demand else self._wait_ms()
        asked_at = self._clock()
        answer = await self._ask(
            wire.SHARE_FETCH,
            parcels,
            wait_s=wait_ms / 1000,
            fields={
                "max_wait": wait_ms,
                "min_bytes": settings.fetch_min_bytes,
                "max_bytes": settings.fetch_max_bytes,
                "max_records": demand,
                "batch_size": max(demand, 1),
                "share_acquire_mode": wire.RECORD_LIMIT,
                "is_renew_ack": False,
                "topics": wire.topics(parcels, added),
                "forgotten_topics_data": wire.forgotten(dropped),
            },
        )
        if answer is None:
            self._owner.turn_over()  # else a broker that refuses fetches would stop all others
            return
        self._known = set(wanted)
        self._lock_s = answer.acquisition_lock_timeout / 1000
        answered = wire.fetched(answer)
        pause = self._heard(parcels, answered)
        for one in answered:
            pause |= self._take(one, asked_at)
        self._owner.turn_over()
        if pause:
            await asyncio.sleep(_FIRST_PAUSE_S)

    def _wait_ms(self) -> int:
        wait_ms = self._settings.fetch_max_wait_ms // max(self._owner.fetching, 1)
        if len(self.hand):
            wait_ms = min(wait_ms, _HELD_WAIT_MS_MAX, int(self._lock_s * 1000 / 6))
        return wait_ms

    def _take(self, one: wire.Answered, asked_at: float) -> bool:
        """Hold what came of one partition; whether a pause is due before it is asked again."""
        if one.code not in _NOTHING_YET:
            what = f"share group {self._settings.group!r}: fetching from {self.address}"
            error = BrokerError(one.code, what, one.message)
            if one.code == _TOPIC_REFUSED:
                raise error
            LOG.debug("%s", error)
            if one.code in _NEW_LEADER or one.code < 0:
                self._owner.stale()
            return True
        if not one.acquired:
            return False
        found = wire.unpacked(one)
        made = [self._owner.make(self.hand, one.place, record) for record in found.found]
        records = [record for record in made if record is not None]
        if len(records) < len(made):
            self._owner.stale()
            found.unread += [
                (record.offset, record.offset)
                for (record, _, _), known in zip(found.found, made, strict=True)
                if known is None
            ]
        if found.damage:
            LOG.error(
                "share group %s: partition %d of topic %s at %s: %s; released what cannot be read",
                self._settings.group, one.place[1], one.place[0], self.address, found.damage,
            )  # fmt: skip
        self.hand.unseen(one.place, found.gaps, Verdict.GAP)
        self.hand.unseen(one.place, found.unread, Verdict.RELEASE)
        self.hand.take(records, asked_at=asked_at, lock_s=self._lock_s)
        self._owner.arrived(records)
        return bool(found.unread)

    # ---- verdicts

    async def _acknowledge(self) -> None:
        parcels = self.hand.parcels()
        fields = {"is_renew_ack": False, "topics": wire.topics(parcels)}
        answer = await self._ask(wire.SHARE_ACKNOWLEDGE, parcels, fields=fields)
        if answer is not None and self._heard(parcels, wire.acknowledged(answer)):
            await asyncio.sleep(_FIRST_PAUSE_S)

    def _heard(self, parcels: Mapping[Place, Parcel], answered: Sequence[wire.Answered]) -> bool:
        """What became of these parcels; whether some are to be sent again after a pause."""
        by_place = {one.place: one for one in answered}
        pause = False
        for place, parcel in parcels.items():
            one = by_place.get(place)
            if one is None:
                pause |= self.hand.heard(parcel, -1, "the broker's answer left it out")
            else:
                pause |= self.hand.heard(parcel, one.acked_code, one.acked_message)
        return pause

    async def _renew(self, parcels: Mapping[Place, Parcel]) -> None:
        fields = {"is_renew_ack": True, "topics": wire.topics(parcels)}
        asked_at = self._clock()
        answer = None
        try:
            answer = await self._ask(wire.SHARE_ACKNOWLEDGE, parcels, fields=fields, renewing=True)
        finally:
            if answer is None:
                self.hand.unrenewed(parcels.values())
        if answer is None:
            return
        by_place = {one.place: one for one in wire.acknowledged(answer)}
        lock_s = answer.acquisition_lock_timeout / 1000
        is_unsure = False
        for place, parcel in parcels.items():
            one = by_place.get(place)
            code, text = (-1, None) if one is None else (one.acked_code, one.acked_message)
            if code == INVALID_RECORD_STATE and self._clock() >= self._renews_until:
                is_unsure = True
                self.hand.unrenewed([parcel])
            else:
                self.hand.renewed(parcel, code, text, asked_at=asked_at, lock_s=lock_s)
        if is_unsure:
            await self._find_out_whether_it_renews()

    async def _find_out_whether_it_renews(self) -> None:
        """Renewals that wait are dropped if the group has none; else they are tried once more."""
        if await self._owner.renewal_is_off():
            self._cannot_renew("share.renew.acknowledge.enable is false")
        else:
            self._renews_until = self._clock() + _ASK_AGAIN_S

    def _cannot_renew(self, why: str) -> None:
        if self.hand.renews:
            LOG.warning(
                "share group %s: locks are not renewed (%s); what takes longer is delivered again",
                self._settings.group, why,
            )  # fmt: skip
        self.hand.cannot_renew()

    # ---- requests

    async def _ask(
        self,
        key: int,
        parcels: Mapping[Place, Parcel],
        *,
        fields: dict[str, Any],
        wait_s: float = 0,
        renewing: bool = False,
    ) -> Any:
        """The answer, or None when nothing of the request was carried out."""
        assert self._stream is not None, "connected before"
        epoch = self._epoch
        head = {
            "group_id": self._settings.group,
            "member_id": self._member_id,
            "share_session_epoch": epoch,
        }
        version = self._stream.newest(key, wire.FETCH_VERSIONS)
        self._sent = {} if renewing else parcels
        answer = await self._stream.ask(key, version, head | fields, wait_s=wait_s)
        self._sent = {}
        code = int(answer.error_code)
        if code in _NO_SESSION:
            LOG.info("share group %s: %s opens a new session (code %d)",
                     self._settings.group, self.address, code)  # fmt: skip
            self._reopen()
        elif code == _TOO_MANY_SESSIONS:
            self._owner.crowded(self.address)
            self._reopen()
        else:
            self._epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        if code == 0:
            return answer
        if not renewing:
            self.hand.unsent(parcels.values())
        what = f"share group {self._settings.group!r} at {self.address}"
        error = BrokerError(code, what, answer.error_message)
        if code in _REFUSED:
            raise error
        if code not in _NO_SESSION:
            LOG.debug("%s", error)
            self._owner.stale()
            await asyncio.sleep(_PAUSE_S_MAX)
        return None

    async def _finish(self) -> None:
        """Send every verdict, release the rest and end the session."""
        try:
            if self._stream is None:
                return
            self.hand.release_rest()
            while self.hand.has_said:
                if self._epoch == wire.OPEN:
                    await self._fetch(0)
                else:
                    await self._acknowledge()
            if self._epoch != wire.OPEN:
                self._epoch = wire.FINAL
                fields = {"is_renew_ack": False, "topics": []}
                await self._ask(wire.SHARE_ACKNOWLEDGE, {}, fields=fields)
        except (OSError, Malformed) as error:
            LOG.info("share group %s: %s did not hear the end of the session (%s)",
                     self._settings.group, self.address, error)  # fmt: skip
