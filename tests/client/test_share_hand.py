"""What a share consumer holds, without a broker and with a clock that is moved by hand."""

import asyncio
import math
from collections.abc import Sequence
from uuid import UUID

import pytest

from headrace.client.errors import BrokerError, ClientError, Unsupported
from headrace.client.share_consumer.hand import Hand
from headrace.client.share_consumer.parcels import Parcel, Saying
from headrace.client.share_consumer.records import ShareRecord
from headrace.client.share_consumer.words import AlreadyAcknowledged, LockLost, Place, Verdict

PLACE: Place = (UUID(int=1), 0)
OTHER: Place = (UUID(int=1), 1)
LOCK_S = 30.0


class Rig:
    """A hand, and what it told."""

    def __init__(self, *, renew_s_max: float = 3600.0) -> None:
        self.now = 1000.0
        self.wakes = 0
        self.told: list[tuple[int, int, str, str]] = []
        self.hand = Hand(self, clock=lambda: self.now, renew_s_max=renew_s_max)

    def said(self) -> None:
        self.wakes += 1

    def ended(self, sayings: Sequence[Saying], error: ClientError | None) -> None:
        how = type(error).__name__ if error is not None else "done"
        self.told += [(one.first, one.last, one.verdict.name, how) for one in sayings]

    def take(self, *offsets: int, place: Place = PLACE) -> list[ShareRecord]:
        found = [
            ShareRecord(
                self.hand, place, "jobs", (offset, 5, None, b"v", ()),
                timestamp_type=0, delivery_count=1,
            )
            for offset in offsets
        ]  # fmt: skip
        self.hand.take(found, asked_at=self.now, lock_s=LOCK_S)
        return found

    def parcel(self) -> Parcel:
        (found,) = self.hand.parcels().values()
        return found

    def renewal(self) -> Parcel:
        (found,) = self.hand.renewals().values()
        return found

    def renewed(self, parcel: Parcel, code: int = 0) -> bool:
        return self.hand.renewed(parcel, code, None, asked_at=self.now, lock_s=LOCK_S)


def spans(parcel: Parcel) -> list[tuple[int, int, int, str | None]]:
    return [
        (one["first_offset"], one["last_offset"], one["acknowledge_types"][0], one["reason"])
        for one in parcel.batches()
    ]


def test_neighbours_with_one_verdict_are_one_batch() -> None:
    rig = Rig()
    records = rig.take(0, 1, 2, 3, 5, 6, 7)
    for record in reversed(records):
        if record.offset == 2:
            record.reject("bad")
        elif record.offset == 3:
            record.reject("worse")
        else:
            record.accept()
    assert rig.wakes == 7
    assert spans(rig.parcel()) == [
        (0, 1, Verdict.ACCEPT, None),
        (2, 2, Verdict.REJECT, "bad"),
        (3, 3, Verdict.REJECT, "worse"),
        (5, 7, Verdict.ACCEPT, None),
    ]
    assert not rig.hand.has_said


def test_an_accepted_record_is_held_until_the_answer() -> None:
    rig = Rig()
    (record,) = rig.take(4)
    assert (record.is_held, len(rig.hand), rig.hand.open) == (True, 1, 1)
    answer = record.accept()
    assert (record.is_held, len(rig.hand), rig.hand.open) == (False, 1, 0)
    assert list(rig.hand.unheard) == [answer]
    with pytest.raises(AlreadyAcknowledged):
        record.release()
    assert not rig.hand.heard(rig.parcel(), 0)
    assert (answer.done, answer.error, len(rig.hand)) == (True, None, 0)
    assert list(rig.hand.unheard) == []
    assert rig.told == [(4, 4, "ACCEPT", "done")]


def test_a_refused_parcel_is_cut_until_the_lost_record_is_alone() -> None:
    rig = Rig()
    answers = {record.offset: record.accept() for record in rig.take(*range(8))}
    requests = 0
    while rig.hand.has_said:
        parcel = rig.parcel()
        requests += 1
        refused = any(one.first == 5 for one in parcel.sayings)
        rig.hand.heard(parcel, 121 if refused else 0)
    assert requests == 7  # 8, then 4 + 4, 2 + 2, 1 + 1
    failed = {offset for offset, answer in answers.items() if answer.error is not None}
    assert failed == {5}
    assert isinstance(answers[5].error, LockLost)
    assert len(rig.hand) == 0


def test_a_coordinator_that_is_away_is_asked_again() -> None:
    rig = Rig()
    answer = rig.take(0)[0].accept()
    assert rig.hand.heard(rig.parcel(), 15)
    assert not answer.done
    rig.hand.heard(rig.parcel(), 0)
    assert answer.error is None


@pytest.mark.parametrize(("code", "kind"), [(6, LockLost), (121, LockLost), (29, BrokerError)])
def test_a_refusal_that_is_final(code: int, kind: type[ClientError]) -> None:
    rig = Rig()
    answer = rig.take(0)[0].accept()
    rig.hand.heard(rig.parcel(), code)
    assert isinstance(answer.error, kind)
    assert "jobs-0 offset 0" in str(answer.error)


def test_a_new_leader_knows_no_lock_of_the_partition() -> None:
    rig = Rig()
    first, second = rig.take(0, 1)
    (elsewhere,) = rig.take(0, place=OTHER)
    first.accept()
    rig.hand.heard(rig.parcel(), 6)
    assert (second.is_held, elsewhere.is_held) == (False, True)


def test_what_was_released_and_is_lost_was_released() -> None:
    rig = Rig()
    answer = rig.take(0)[0].release()
    rig.hand.heard(rig.parcel(), 121)
    assert (answer.done, answer.error) == (True, None)
    assert rig.told == [(0, 0, "RELEASE", "done")]


def test_a_lost_connection_loses_everything() -> None:
    rig = Rig()
    on_its_way, waiting, unsaid = rig.take(0, 1, 2)
    sent = on_its_way.accept()
    parcel = rig.parcel()
    said = waiting.accept()
    wished = unsaid.renew()
    rig.hand.lose("the connection was lost", [parcel])
    assert len(rig.hand) == 0
    assert not unsaid.is_held
    for answer in (sent, said, wished):
        assert isinstance(answer.error, LockLost)
    assert rig.hand.parcels() == rig.hand.renewals() == {}
    late = unsaid.accept()
    assert isinstance(late.error, LockLost)


def test_a_record_that_came_again_is_not_settled_by_its_older_delivery() -> None:
    rig = Rig()
    (old,) = rig.take(0)
    (new,) = rig.take(0)
    assert isinstance(old.accept().error, LockLost)
    assert new.is_held


def test_locks_are_renewed_when_a_third_of_their_time_has_passed() -> None:
    rig = Rig()
    early, settled = rig.take(0, 1)
    rig.now += 5
    (late,) = rig.take(2)
    assert rig.hand.next_renewal() == 1010
    rig.now = 1010
    settled.accept()
    parcel = rig.renewal()
    assert spans(parcel) == [(0, 0, Verdict.RENEW, None)]
    assert rig.hand.next_renewal() == 1015
    assert not rig.renewed(parcel)
    assert early.lock_end == 1040
    rig.now = 1020
    assert spans(rig.renewal()) == [(0, 0, Verdict.RENEW, None), (2, 2, Verdict.RENEW, None)]
    assert late.is_held


def test_a_lock_is_not_renewed_for_ever() -> None:
    rig = Rig(renew_s_max=60.0)
    rig.take(0)
    renewals = 0
    while rig.hand.next_renewal() < math.inf:
        rig.now = rig.hand.next_renewal()
        for parcel in rig.hand.renewals().values():
            renewals += 1
            rig.renewed(parcel)
    assert renewals == 5  # at 10, 20, ... 50 s


def test_locks_are_renewed_when_asked_only() -> None:
    rig = Rig(renew_s_max=0)
    (record,) = rig.take(0)
    rig.now += 15
    assert rig.hand.renewals() == {}
    assert rig.hand.next_renewal() == math.inf
    record.renew()
    rig.renewed(rig.renewal())
    assert record.lock_end == rig.now + LOCK_S


def test_a_refused_renewal_is_given_up_alone_and_leaves_the_verdict() -> None:
    rig = Rig()
    records = rig.take(0, 1, 2)
    rig.now += 10
    while parcels := rig.hand.renewals():
        for parcel in parcels.values():
            refused = any(one.first == 1 for one in parcel.sayings)
            rig.renewed(parcel, 121 if refused else 0)
    assert [record.lock_end for record in records] == [1040, 1030, 1040]
    rig.now += 10
    assert spans(rig.renewal()) == [(0, 0, Verdict.RENEW, None), (2, 2, Verdict.RENEW, None)]
    records[1].accept()
    rig.hand.heard(rig.parcel(), 0)
    assert rig.told[-1] == (1, 1, "ACCEPT", "done")


def test_renewals_that_nobody_heard_are_sent_again() -> None:
    rig = Rig()
    rig.take(0)
    rig.now += 10
    parcel = rig.renewal()
    rig.hand.unrenewed([parcel])
    assert rig.hand.next_renewal() == -math.inf
    assert spans(rig.renewal()) == [(0, 0, Verdict.RENEW, None)]


def test_a_wish_is_renewed_at_once_and_named_once() -> None:
    rig = Rig()
    (record,) = rig.take(0)
    answers = [record.renew(), record.renew()]
    assert rig.hand.next_renewal() == -math.inf
    for answer in answers:
        parcel = rig.renewal()
        assert spans(parcel) == [(0, 0, Verdict.RENEW, None)]
        rig.renewed(parcel)
        assert answer.done
    assert rig.hand.renewals() == {}


def test_a_group_without_renewal() -> None:
    rig = Rig()
    (record,) = rig.take(0)
    wished = record.renew()
    rig.hand.cannot_renew()
    assert isinstance(wished.error, Unsupported)
    assert isinstance(record.renew().error, Unsupported)
    rig.now += 20
    assert rig.hand.renewals() == {}
    assert record.is_held


def test_gaps_go_with_verdicts() -> None:
    rig = Rig()
    rig.hand.unseen(PLACE, [(1, 4)], Verdict.GAP)
    rig.take(0)[0].accept()
    assert spans(rig.parcel()) == [(0, 0, Verdict.ACCEPT, None), (1, 4, Verdict.GAP, None)]


def test_the_rest_is_released() -> None:
    rig = Rig()
    done, left = rig.take(0, 1)
    done.accept()
    rig.hand.release_rest()
    assert isinstance(left.accept().error, LockLost)
    parcel = rig.parcel()
    assert [one[2] for one in spans(parcel)] == [Verdict.ACCEPT, Verdict.RELEASE]
    rig.hand.heard(parcel, 0)
    assert rig.told[1:] == [(0, 0, "ACCEPT", "done"), (1, 1, "RELEASE", "done")]


def test_an_answer_is_awaited_before_and_after_it_came() -> None:
    rig = Rig()
    good, bad = rig.take(0, 1)

    async def story() -> None:
        fine, failing = good.accept(), bad.accept()
        waiting = asyncio.create_task(asyncio.wait_for(fine, 10))
        cancelled = asyncio.create_task(asyncio.wait_for(fine, 10))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.sleep(0)
        whole = rig.parcel()
        accepted, refused = whole.halves()
        rig.hand.heard(accepted, 0)
        await waiting
        await fine
        rig.hand.heard(refused, 121)
        for _ in range(2):
            with pytest.raises(LockLost):
                await failing

    asyncio.run(story())


def test_a_renewal_of_a_record_that_was_lost_fails() -> None:
    rig = Rig()
    (record,) = rig.take(0)
    renewal = record.renew()
    rig.hand.lose_place(PLACE, "its partition has another leader")
    assert rig.hand.renewals() == {}
    assert isinstance(renewal.error, LockLost)
    assert rig.told == [(0, 0, "RENEW", "LockLost")]
