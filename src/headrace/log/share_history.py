"""What became of one record of a share group, as the group's journal tells it: for people.

Taken are the records of the group (`group_history.GroupRecords` finds them) in the order of the
journal. A delivery is told when it ends: who had the record, since when, and what it made of it.
That of a lease, which is durable, is told while it lasts. What the journal does not know is left
open: a delivery that ended with the broker's process was never written, nor does it count; what
was pruned is gone, and the first snapshot then says what had come of the record; a journal of
before these words were kept, or one of Apache Kafka, does not say who had it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from headrace.core.leases import Held, Lease
from headrace.core.runs import State
from headrace.core.settling import LIMIT_REACHED
from headrace.core.share_words import NO_RECORD, Ended, Hold, ShareKey
from headrace.core.types import WallMs
from headrace.log import share_batches
from headrace.log.group_records import CAUSE_HEADER
from headrace.log.lease_records import LEASE, restored
from headrace.log.record_codec import (
    SNAPSHOT,
    UPDATE,
    ShareRecord,
    StateBatch,
    read_share_record,
    share_key,
)
from headrace.wire.batches import Record
from headrace.wire.primitives import Malformed, Reader

_UNCHANGED = -1


class Outcome(StrEnum):
    """How a delivery ended."""

    ACCEPTED = "accepted"
    RELEASED = "released"
    REJECTED = "rejected"
    NO_RECORD = "no record"  # the member found none at the offset
    LOCK_EXPIRED = "lock expired"
    MEMBER_LEFT = "member left"
    GIVEN_UP = "given up"  # by a lock's end, a member that went, or its word: not recorded which


class What(StrEnum):
    """What else happened to a record, or to the share-partition that it is in."""

    STARTED = "the group began to read"
    RESET = "reset"
    FOUND = "state found"  # in the first snapshot of a journal that was pruned
    NO_RECORD = "no record"  # the broker found none at the offset
    REMOVED = "removed from the log"
    DEAD_LETTER = "dead letter written"
    NO_DEAD_LETTER = "no dead letter"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The record was with a holder `since` a time `until` another; None where that is not known.

    `outcome` is None, as `until`, while it lasts. `state` is what came of the record. `session` and
    `seq` are those of a lease: its name, and the number of the acquisition.
    """

    number: int
    holder: str | None
    client: str | None
    since: WallMs | None
    until: WallMs | None
    outcome: Outcome | None
    state: State
    reason: str | None = None
    session: str | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class Happening:
    """Something else; `start` is SPSO as it was set, `detail` says where or why.

    `state` and `deliveries` are those of the record since; None where nothing is known of it.
    """

    at: WallMs
    what: What
    state: State | None
    deliveries: int = 0
    start: int | None = None
    detail: str | None = None


class RecordHistory:
    """The biography of one offset: `take` the records of its group.

    `state` is what the record is now, None where that is not known: the group does not read its
    partition, or began behind the record, or the record was finished before the journal begins.
    """

    def __init__(self, key: ShareKey, offset: int) -> None:
        self.state: State | None = None
        self.deliveries = 0
        self.start: int | None = None  # SPSO; None while the group does not read the partition
        self.unreadable: list[int] = []  # offsets of records that only a newer version understands
        self._key, self._offset = key, offset
        self._snapshot, self._update = share_key(SNAPSHOT, key), share_key(UPDATE, key)
        self._told: list[Delivery | Happening] = []
        self._epoch: int | None = None
        self._was_there = False
        self._goes_on = False  # whether the updates that come next belong to a snapshot
        self._leased: dict[tuple[str, int], Delivery] = {}  # by session and number
        self._numbers: set[int] = set()  # of deliveries that ended
        self._sessions: dict[str, str] = {}  # of holders

    @property
    def is_read(self) -> bool:
        """Whether the group reads the partition, or ever did as far as the journal goes back."""
        return self._was_there or self.start is not None

    def biography(self) -> list[Delivery | Happening]:
        """What is known, in the order it became known; what lasts is last."""
        return [*self._told, *self._lasting()]

    def take(self, record: Record, *, is_whole: bool) -> None:
        """Learn from a record; `is_whole`: nothing of the journal before it is missing."""
        key, value = record.key, record.value
        assert key is not None
        try:
            if Reader(key).int16() == LEASE:
                self._take_lease(record, is_whole)
            elif key not in (self._snapshot, self._update):
                return
            elif value is None:
                self._deleted(record)
            else:
                found = read_share_record(key, value, at=self._offset)
                assert found is not None
                self._take(found, WallMs(record.timestamp), len(value), is_whole)
        except Malformed:
            self.unreadable.append(record.offset)

    # ---- the share-partition

    def _take(self, found: ShareRecord, at: WallMs, size: int, is_whole: bool) -> None:
        before = self.start
        if found.state_epoch is not None:
            self._begun(found, at, is_whole)
            self._goes_on = size >= share_batches.RECORD_BYTES_MAX
        is_snapshot = found.state_epoch is not None or self._goes_on
        self._was_there = True
        for batch in found.batches:
            self._take_batch(batch, at, is_snapshot)
        if found.start == _UNCHANGED or found.state_epoch is not None:
            return
        if not found.count and self._is_unfinished(before, found.start):
            self._add(at, What.REMOVED, None, self.deliveries, found.start)
        self.start, self._goes_on = found.start, False

    def _is_unfinished(self, before: int | None, start: int) -> bool:
        """Whether SPSO passes a record that nobody finished, as far as is known."""
        if before is None and self.state is None:
            return False  # it may have been passed long ago
        is_finished = self.state is not None and self.state.finished
        return (before or 0) <= self._offset < start and not is_finished

    def _begun(self, found: ShareRecord, at: WallMs, is_whole: bool) -> None:
        """A snapshot: SPSO was set, or all is as it was."""
        was, self._epoch = self._epoch, found.state_epoch
        start, self.start = self.start, found.start
        if was == found.state_epoch:
            return
        untouched = None if self._offset < found.start else State.AVAILABLE
        if was is not None or self._was_reset(found, start):
            self._forget()
            self._add(at, What.RESET, untouched, start=found.start)
        elif is_whole or self._newest() is What.DELETED:
            what = What.RESET if found.state_epoch else What.STARTED
            self._add(at, what, untouched, start=found.start)
        elif not self._told:
            self._add(at, What.FOUND, untouched, start=found.start)

    def _was_reset(self, found: ShareRecord, start: int | None) -> bool:
        """Whether the first snapshot of a pruned journal parts from the updates before it."""
        if start is None or found.count:
            return False
        is_finished = self.state is not None and self.state.finished
        is_left = self.state is not None and (is_finished or self.deliveries > 0)
        return found.start != start or (self._offset >= found.start and is_left)

    def _newest(self) -> What | None:
        """What happened last, if it was not a delivery."""
        last = self._told[-1] if self._told else None
        return last.what if isinstance(last, Happening) else None

    def _take_batch(self, batch: StateBatch, at: WallMs, is_snapshot: bool) -> None:
        before, count = self.state, self.deliveries
        self.state, self.deliveries = batch.state, batch.deliveries
        hold, ended = batch.hold, None if batch.hold is None else batch.hold.ended
        is_same = (before, count) == (batch.state, batch.deliveries)
        if ended is None and is_snapshot and self._newest() is What.FOUND:
            first = self._told.pop()  # which this is more of
            assert isinstance(first, Happening)
            self._add(first.at, What.FOUND, batch.state, batch.deliveries, self.start, batch.reason)
        if ended is None and (is_snapshot or is_same):
            return
        if ended is Ended.NO_RECORD or (hold is None and batch.reason == NO_RECORD):
            self._add(at, What.NO_RECORD, batch.state, batch.deliveries)
        elif ended is Ended.NOT_COPIED:
            self._add(at, What.NO_DEAD_LETTER, batch.state, batch.deliveries, detail=batch.reason)
        elif ended is Ended.COPIED or (before is State.ARCHIVING and ended is None):
            where = None if hold is None else hold.detail
            self._add(at, What.DEAD_LETTER, batch.state, batch.deliveries, detail=where)
        else:
            self._told.append(self._ended(batch, hold or Hold(None), at))

    def _ended(self, batch: StateBatch, hold: Hold, at: WallMs) -> Delivery:
        number, since = batch.deliveries, hold.since
        leased = self._lease_of(number, hold)
        if leased is not None and leased.since is not None and number not in self._numbers:
            since = leased.since  # which survives the broker's process, unlike a lock
        self._numbers.add(number)
        session = self._sessions.get(hold.holder or "")
        if leased is not None:
            session = leased.session
        return Delivery(
            number,
            hold.holder,
            hold.client,
            since,
            at,
            _outcome(batch, hold),
            batch.state,
            batch.reason,
            session,
            None if leased is None else leased.seq,
        )

    def _add(
        self,
        at: WallMs,
        what: What,
        state: State | None,
        deliveries: int = 0,
        start: int | None = None,
        detail: str | None = None,
    ) -> None:
        self.state, self.deliveries = state, deliveries
        self._told.append(Happening(at, what, state, deliveries, start, detail))

    def _deleted(self, record: Record) -> None:
        told = next((value for name, value in record.headers if name == CAUSE_HEADER), None)
        cause = None if told is None else told.decode(errors="replace")
        self._add(WallMs(record.timestamp), What.DELETED, None, detail=cause)
        self._forget()
        self.start = self._epoch = None

    def _forget(self) -> None:
        """Deliveries count from one again, and nobody has anything."""
        self._leased.clear()
        self._numbers.clear()

    # ---- leases

    def _take_lease(self, record: Record, is_whole: bool) -> None:
        """What a lease holds, all of it in each record."""
        assert record.key is not None
        source = Reader(record.key, 2)
        group, session = source.nullable_string() or "", source.nullable_string() or ""
        # What the first record of a pruned journal says may be older than it.
        since = WallMs(record.timestamp) if is_whole or session in self._sessions.values() else None
        self._sessions[Lease((group, session)).holder] = session
        known = {place: one for place, one in self._leased.items() if place[0] != session}
        if record.value is not None:
            for seq, acquisition in restored((group, session), record.value).acquisitions:
                for held in filter(self._is_of_mine, acquisition.held):
                    made = self._leased.get((session, seq))
                    known[session, seq] = made or self._delivered(session, seq, held, since)
        self._leased = known

    def _is_of_mine(self, held: Held) -> bool:
        return held.key == self._key and held.span.first <= self._offset <= held.span.last

    def _delivered(self, session: str, seq: int, held: Held, since: WallMs | None) -> Delivery:
        return Delivery(
            held.deliveries,
            Lease((self._key.group, session)).holder,
            None,
            since,
            None,
            None,
            State.ACQUIRED,
            session=session,
            seq=seq,
        )

    def _lease_of(self, number: int, hold: Hold) -> Delivery | None:
        for one in self._leased.values():
            if one.number == number and hold.holder in (None, one.holder):
                return one
        return None

    def _lasting(self) -> Iterator[Delivery]:
        """What leases still have, as far as no lock that lapsed ended it."""
        if self.state is State.AVAILABLE or not self._told:
            yield from (one for one in self._leased.values() if one.number > self.deliveries)


def _outcome(batch: StateBatch, hold: Hold) -> Outcome:
    if hold.ended is Ended.LOCK_EXPIRED:
        return Outcome.LOCK_EXPIRED
    if hold.ended is Ended.MEMBER_LEFT:
        return Outcome.MEMBER_LEFT
    if batch.state is State.ACKNOWLEDGED:
        return Outcome.ACCEPTED
    given_up = Outcome.GIVEN_UP if hold.ended is None else Outcome.RELEASED
    if batch.state is State.AVAILABLE:
        return given_up
    reason = batch.reason or ""
    if reason == NO_RECORD:
        return Outcome.NO_RECORD
    return given_up if reason.startswith(LIMIT_REACHED) else Outcome.REJECTED
