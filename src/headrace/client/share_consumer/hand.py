"""What a consumer holds at one broker, what was said of it, and what of that was not heard yet.

Verdicts wait here until a request takes them along as parcels, one for each partition: brokers
carry out a partition's part of a request whole or not at all. So a parcel that is refused is cut in
two until the records that are not held any more are alone; the others' verdicts then hold.
Renewals are parcels of their own, as one that fails must not take verdicts with it.
No I/O; the clock, in seconds, is given.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from headrace.client.errors import ClientError, Unsupported
from headrace.client.share_consumer.parcels import (
    AGAIN,
    INVALID_RECORD_STATE,
    INVALID_REQUEST,
    MOVED,
    Parcel,
    Saying,
)
from headrace.client.share_consumer.records import Acknowledgement, BaseRecord, lost, must_be_open
from headrace.client.share_consumer.words import (
    LockLost,
    Place,
    Verdict,
    must_be_text,
    sendable_text,
)

PARCEL_SAYINGS_MAX = 10_000  # of one partition in one request
_RENEW_PART = 3  # a lock is renewed when a third of its time has passed
_RENEW_AGAIN_S = 1.0
_OFF = "locks are not renewed: the group has it off, or the broker is too old"


class Listener(Protocol):
    """Who is told what becomes of sayings."""

    def said(self) -> None:
        """There is something new to send."""

    def ended(self, sayings: Sequence[Saying], error: ClientError | None) -> None:
        """These verdicts and renewals hold, or have failed for good."""


class Hand:
    """What is held at one broker."""

    def __init__(
        self, listener: Listener, *, clock: Callable[[], float], renew_s_max: float
    ) -> None:
        self.clock = clock
        self.renews = True
        self._listener = listener
        self._renew_s_max = renew_s_max
        self._held: dict[Place, dict[int, BaseRecord]] = {}
        self._said: dict[Place, list[Saying]] = {}
        self._apart: deque[Parcel] = deque()
        self._unheard: set[Acknowledgement] = set()
        self._wishes: dict[Place, list[Saying]] = {}  # renewals that were asked for
        self._renewals_apart: deque[Parcel] = deque()
        self._renew_at = math.inf

    def __len__(self) -> int:
        """Records held, those included whose verdict was not answered yet."""
        return sum(len(records) for records in self._held.values())

    @property
    def open(self) -> int:
        """Records without a verdict."""
        return sum(1 for _ in self._open_records())

    @property
    def unheard(self) -> tuple[Acknowledgement, ...]:
        """Verdicts without an answer."""
        return tuple(self._unheard)

    @property
    def has_said(self) -> bool:
        """Whether there is something to send but renewals."""
        return bool(self._said or self._apart)

    def holds(self, record: BaseRecord) -> bool:
        """Whether this very delivery of a record is held."""
        return self._held.get(record.place, {}).get(record.offset) is record

    def take(self, records: Sequence[BaseRecord], *, asked_at: float, lock_s: float) -> None:
        """Hold what an answer brought; its locks began after `asked_at` and last `lock_s`."""
        now = self.clock()
        for record in records:
            self._held.setdefault(record.place, {})[record.offset] = record
            record.first_held = now
            record.lock_end = now + lock_s
            record.renew_at = asked_at + lock_s / _RENEW_PART
        if records:
            self._renew_at = min(self._renew_at, records[0].renew_at)

    def unseen(self, place: Place, spans: Iterable[tuple[int, int]], verdict: Verdict) -> None:
        """Say this of offsets that were acquired and hold no record, or none that can be read."""
        for first, last in spans:
            self._said.setdefault(place, []).append(Saying(first, last, verdict))

    def say(
        self, record: BaseRecord, verdict: Verdict, reason: str | None = None
    ) -> Acknowledgement:
        """Give a record its verdict, or have its lock renewed. Raises: `AlreadyAcknowledged`."""
        answer = self.begin(record, verdict, reason)
        self.file(record, verdict, reason, answer)
        return answer

    @staticmethod
    def begin(record: BaseRecord, verdict: Verdict, reason: str | None) -> Acknowledgement:
        """The part of `say` that any thread may do. Raises: `AlreadyAcknowledged`; TypeError."""
        must_be_open(record)
        must_be_text(reason)
        answer = Acknowledgement()
        if verdict is not Verdict.RENEW:
            record.said = answer
        return answer

    def file(
        self, record: BaseRecord, verdict: Verdict, reason: str | None, answer: Acknowledgement
    ) -> None:
        """The other part of `say`, for the event loop's own thread."""
        told = None if reason is None else sendable_text(reason)
        saying = Saying(record.offset, record.offset, verdict, told, record, answer)
        renews = verdict is Verdict.RENEW
        if renews and not self.renews:
            self._end([saying], Unsupported(_OFF))
        elif not self.holds(record):
            self._end([saying], lost(record))
        else:
            self._unheard.add(answer)
            waiting = self._wishes if renews else self._said
            waiting.setdefault(record.place, []).append(saying)
            self._listener.said()

    def release_rest(self) -> None:
        """Release everything that has no verdict; one that is given later comes too late."""
        for record in list(self._open_records()):
            self.give_back(record)

    def give_back(self, record: BaseRecord) -> None:
        """Release a record for its user, who may still try to give it a verdict."""
        if record.said is None and self.holds(record):
            self.forget(record)
            record.why_gone = "it was released"
            saying = Saying(record.offset, record.offset, Verdict.RELEASE, None, record)
            self._said.setdefault(record.place, []).append(saying)
            self._listener.said()

    def forget(self, record: BaseRecord) -> None:
        """Its lock has ended, or is about to be given back."""
        if self.holds(record):
            del self._held[record.place][record.offset]

    def parcels(self) -> dict[Place, Parcel]:
        """What the next request is to say: at most one parcel for each partition."""
        found = _one_each(self._apart)
        for place in [place for place in self._said if place not in found]:
            found[place], rest = _parcel(place, self._said.pop(place))
            if rest:
                self._said[place] = rest
        return found

    def unsent(self, parcels: Iterable[Parcel]) -> None:
        """These were not carried out, and are to be sent again."""
        self._apart.extend(parcels)

    def heard(self, parcel: Parcel, code: int, message: str | None = None) -> bool:
        """The broker's answer to a parcel; whether it is to be sent again only after a pause."""
        if code in AGAIN:
            self._apart.append(parcel)
            return True
        if code in (INVALID_RECORD_STATE, INVALID_REQUEST) and parcel.can_be_cut:
            self._apart.extend(parcel.halves())
            return False
        self._end(parcel.sayings, parcel.error(code, message))
        if code in MOVED:
            self.lose_place(parcel.place, "its partition has another leader")
        return False

    # ---- renewal

    def next_renewal(self) -> float:
        """When a lock is to be renewed, by the clock; infinite when none is."""
        if not self.renews:
            return math.inf
        return -math.inf if self._wishes or self._renewals_apart else self._renew_at

    def renewals(self) -> dict[Place, Parcel]:
        """What is to be renewed now, at most one parcel for each partition."""
        if not self.renews:
            return {}
        if not self._renewals_apart:
            for place, sayings in self._due().items():
                while sayings:
                    parcel, sayings = _parcel(place, sayings)
                    self._renewals_apart.append(parcel)
        found = _one_each(self._renewals_apart)
        for parcel in found.values():  # what has its verdict by now needs no lock
            settled = [one for one in parcel.sayings if not self._is_open(one)]
            parcel.sayings = [one for one in parcel.sayings if self._is_open(one)]
            for one in settled:
                if one.answer is not None and one.record is not None:
                    is_lost = one.record.said is None
                    self._end([one], lost(one.record) if is_lost else None)
        return {place: parcel for place, parcel in found.items() if parcel.sayings}

    def _due(self) -> dict[Place, list[Saying]]:
        """What was wished for, and every lock a third of whose time has passed."""
        due: dict[Place, dict[int, Saying]] = {}
        wishes, self._wishes = self._wishes, {}
        for place, wished in wishes.items():
            for one in wished:
                if due.setdefault(place, {}).setdefault(one.first, one) is not one:
                    self._wishes.setdefault(place, []).append(one)  # a request names it once
        now = self.clock()
        if now >= self._renew_at:
            self._renew_at = math.inf
            for record in self._open_records():
                if record.renew_at > now:
                    self._renew_at = min(self._renew_at, record.renew_at)
                elif now < record.first_held + self._renew_s_max:
                    saying = Saying(record.offset, record.offset, Verdict.RENEW, None, record)
                    due.setdefault(record.place, {}).setdefault(record.offset, saying)
        return {place: list(sayings.values()) for place, sayings in due.items()}

    def unrenewed(self, parcels: Iterable[Parcel]) -> None:
        """These renewals were not carried out, and are to be sent again."""
        self._renewals_apart.extend(parcels)

    def renewed(
        self, parcel: Parcel, code: int, message: str | None, *, asked_at: float, lock_s: float
    ) -> bool:
        """The broker's answer to a renewal; whether more than one record was refused together."""
        if code in (INVALID_RECORD_STATE, INVALID_REQUEST) and parcel.can_be_cut:
            self._renewals_apart.extend(parcel.halves())
            return True
        now = self.clock()
        for one in parcel.sayings:
            assert one.record is not None, "a renewal is of a record"
            if code == 0:
                one.record.lock_end = now + lock_s
                one.record.renew_at = asked_at + lock_s / _RENEW_PART
            elif code in AGAIN:
                one.record.renew_at = now + _RENEW_AGAIN_S
            else:
                one.record.renew_at = math.inf  # a verdict will tell whether it is lost
            self._renew_at = min(self._renew_at, one.record.renew_at)
        self._end(parcel.sayings, parcel.error(code, message))
        return False

    def cannot_renew(self) -> None:
        """The group or the broker does not renew locks."""
        self.renews = False
        self._drop_renewals(Unsupported(_OFF))

    # ---- what is lost

    def lose(self, why: str, parcels: Iterable[Parcel] = ()) -> None:
        """Nothing is held any more, nor were `parcels`, which were on their way, answered."""
        self._apart.extend(parcels)
        self._drop_renewals(LockLost(why))
        for place in self._held.keys() | self._said.keys() | {one.place for one in self._apart}:
            self.lose_place(place, why)
        self._renew_at = math.inf

    def lose_place(self, place: Place, why: str) -> None:
        """Nothing of a partition is held any more."""
        sayings = self._said.pop(place, [])
        for parcel in [parcel for parcel in self._apart if parcel.place == place]:
            self._apart.remove(parcel)
            sayings += parcel.sayings
        if sayings:
            sayings.sort(key=lambda one: one.first)
            self._end(sayings, Parcel(place, sayings).lost(why))
        for record in self._held.pop(place, {}).values():
            record.why_gone = why

    def _drop_renewals(self, error: ClientError) -> None:
        dropped = [one for wishes in self._wishes.values() for one in wishes]
        dropped += [one for parcel in self._renewals_apart for one in parcel.sayings]
        self._wishes.clear()
        self._renewals_apart.clear()
        self._end(dropped, error)

    def _open_records(self) -> Iterator[BaseRecord]:
        for records in self._held.values():
            yield from (record for record in records.values() if record.said is None)

    def _is_open(self, saying: Saying) -> bool:
        record = saying.record
        return record is not None and record.said is None and self.holds(record)

    def _end(self, sayings: Sequence[Saying], error: ClientError | None) -> None:
        if isinstance(error, LockLost):
            # What was to be released and is not held any more has been released.
            released = [one for one in sayings if one.verdict is Verdict.RELEASE]
            if released:
                sayings = [one for one in sayings if one.verdict is not Verdict.RELEASE]
                self._end(released, None)
        for one in sayings:
            if one.record is None:
                continue
            if one.verdict is not Verdict.RENEW and self.holds(one.record):
                del self._held[one.record.place][one.first]
            if one.answer is not None:
                self._unheard.discard(one.answer)
                one.answer.settle(error)
        if sayings:
            self._listener.ended(sayings, error)


def _parcel(place: Place, sayings: list[Saying]) -> tuple[Parcel, list[Saying]]:
    """The first of these by offset, and the rest."""
    ordered = sorted(sayings, key=lambda one: one.first)
    return Parcel(place, ordered[:PARCEL_SAYINGS_MAX]), ordered[PARCEL_SAYINGS_MAX:]


def _one_each(waiting: deque[Parcel]) -> dict[Place, Parcel]:
    """Out of those that wait, one for each partition."""
    found: dict[Place, Parcel] = {}
    for _ in range(len(waiting)):
        parcel = waiting.popleft()
        if parcel.place in found:
            waiting.append(parcel)
        else:
            found[parcel.place] = parcel
    return found
