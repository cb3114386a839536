"""The auditor notices each promise that is broken, and allows for what it cannot know."""

from collections.abc import Callable

import pytest

from headrace.sim.auditor import Auditor
from headrace.sim.facts import Asked, Place
from headrace.sim.lease_auditor import LeaseAuditor

PLACE: Place = ("orders", 0)
QUEUE = ("blue", PLACE)


class Book:
    """An auditor with hands: what members ask and are told, a second after each other."""

    def __init__(self) -> None:
        self.time_us = 0
        self.step_us = 1_000_000
        self.auditor = Auditor(lambda: self.time_us, limit=3, lock_ms=10_000)
        self.lease = LeaseAuditor(self.auditor, lambda: self.time_us, "blue", "checkpoint")

    def asks(self, holder: str = "ann", *, acquires: bool = False) -> Asked:
        self.time_us += self.step_us
        return self.auditor.asked("blue", holder, acquires=acquires)

    def waits_until(self, time_us: int) -> None:
        self.time_us = time_us

    def gets(self, first: int, last: int, count: int = 1, holder: str = "ann") -> None:
        asked = self.asks(holder, acquires=True)
        self.auditor.answered(asked)
        self.auditor.delivered(asked, PLACE, [(first, last, count)])

    def says(self, verdict: str, offset: int, holder: str = "ann", told: bool = True) -> None:
        asked, said = self.asks(holder), [(offset, offset, verdict)]
        self.auditor.acknowledging("blue", PLACE, holder, said)
        if told:
            self.auditor.acknowledged(asked, PLACE, holder, said)

    def produces(self, *values: bytes, first: int = 0) -> None:
        self.auditor.produced(self.asks(), PLACE, first, values)

    def loses(self, since_us: int = 0, end: int = 1 << 20) -> None:
        """The power is cut, and takes what was answered since, and perhaps the end of the log."""
        self.auditor.power_was_cut(since_us, are_copies_lost=False)
        self.auditor.opened(PLACE, end)

    def leases(self, *, fresh: bool = True) -> None:
        """The lease acquires two records as number 1, or is told of them again."""
        asked = self.asks("lease/checkpoint")
        self.lease.acquired(asked, 1, [(PLACE, 0, 1, 1)], fresh=fresh, whole=True)

    def sees(self, start: int, *runs: tuple[int, int, str]) -> None:
        self.auditor.described(self.asks(), QUEUE, start, runs)

    def counts(self, *runs: tuple[int, int, int]) -> None:
        self.auditor.counted(self.asks(), QUEUE, runs)

    def ends(
        self,
        start: int,
        end: int,
        copies: list[int] | None = None,
        listed: list[int] | None = None,
    ) -> None:
        self.auditor.ended(QUEUE, start, 0, end, copies, listed)


def joined_and_produced(book: Book) -> None:
    book.auditor.assigned("blue", [PLACE])
    book.produces(b"0", b"1")


def a_lost_fetch(book: Book) -> None:
    book.asks(acquires=True)


def staged(book: Book, verdicts: dict[tuple[Place, int], str]) -> None:
    book.lease.staging(1, verdicts)
    book.lease.staged(1, verdicts)


SOUND: dict[str, list[Callable[[Book], object]]] = {
    "accepted once": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("accept", 0),
        lambda b: b.says("accept", 1), lambda b: b.sees(2), lambda b: b.ends(2, 2),
    ],
    "released and given again": [
        lambda b: b.gets(0, 0), lambda b: b.says("release", 0), lambda b: b.gets(0, 0, 2, "bob"),
    ],
    "a lost answer may have been a delivery": [a_lost_fetch, lambda b: b.gets(0, 0, 2)],
    "after a crash the lock is another's": [
        lambda b: b.gets(0, 0), lambda b: b.auditor.locks_lost(),
        lambda b: b.gets(0, 0, 1, "bob"),
    ],
    "who hung up holds nothing": [
        lambda b: b.gets(0, 0), lambda b: b.auditor.let_go("blue", "ann"),
        lambda b: b.gets(0, 0, 2, "bob"),
    ],
    "a shorter setting counts from the renewal on": [
        lambda b: b.gets(0, 0), lambda b: b.auditor.lock_changes("blue", 1000),
        lambda b: b.auditor.lock_lasts("blue", 1000), lambda b: b.auditor.renewing(b.asks()),
        lambda b: b.gets(0, 0, 2, "bob"),
    ],
    "a shorter setting counts for a record from the renewal of that record on": [
        lambda b: b.gets(0, 0), lambda b: b.auditor.lock_changes("blue", 1000),
        lambda b: b.auditor.lock_lasts("blue", 1000), lambda b: b.says("renew", 0),
        lambda b: b.gets(0, 0, 2, "bob"),
    ],
    "a lock ends when its time without a stall is over": [
        joined_and_produced, lambda b: b.gets(0, 0), lambda b: b.auditor.stalled(10_000_000),
        lambda b: b.waits_until(22_000_000), lambda b: b.gets(0, 0, 2, "bob"),
    ],
    "a reset makes the records new": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("accept", 0),
        lambda b: b.says("reject", 1), lambda b: b.sees(2), lambda b: b.auditor.reset(QUEUE, 1),
        lambda b: b.sees(1), lambda b: b.gets(1, 1, 1, "bob"),
        lambda b: b.says("accept", 1, "bob"), lambda b: b.ends(2, 2),
    ],
    "a lock began with the millisecond in which it was asked for": [
        joined_and_produced, lambda b: b.waits_until(900), lambda b: b.gets(0, 0),
        lambda b: b.waits_until(10_000_100), lambda b: b.gets(0, 0, 2, "bob"),
    ],
    "exhausted": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("accept", 1),
        lambda b: b.says("release", 0), lambda b: b.gets(0, 0, 2), lambda b: b.says("release", 0),
        lambda b: b.gets(0, 0, 3), lambda b: b.says("release", 0), lambda b: b.ends(2, 2, [0]),
    ],
    "what was staged before a commit that was fenced is staged anew": [
        joined_and_produced,
        lambda b: b.lease.acquired(
            b.asks("lease/checkpoint"), 1, [(PLACE, 0, 1, 1)], fresh=True, whole=True
        ),
        lambda b: staged(b, {(PLACE, 0): "reject"}), lambda b: b.lease.committing(1),
        lambda b: staged(b, {}), lambda b: b.lease.committing(2),
        lambda b: b.lease.committed(b.asks("lease/checkpoint"), 2, 0),
        lambda b: b.ends(2, 2, None, []),
    ],
    "a delay began with a commit whose answer was lost": [
        joined_and_produced,
        lambda b: b.lease.acquired(
            b.asks("lease/checkpoint"), 1, [(PLACE, 0, 0, 1)], fresh=True, whole=True
        ),
        lambda b: staged(b, {(PLACE, 0): "later"}), lambda b: b.lease.committing(1),
        lambda b: b.lease.committing(2),
        lambda b: b.lease.committed(b.asks("lease/checkpoint"), 2, 0), lambda b: b.gets(0, 0, 2),
    ],
    "deleted": [
        joined_and_produced, lambda b: b.auditor.deleting(PLACE, 2), lambda b: b.ends(2, 2),
    ],
    "below the begin of the queue all is finished": [
        lambda b: b.gets(5, 5), lambda b: b.says("accept", 4, "bob"),
    ],
    "a repair gave up what nobody acknowledged": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("accept", 0),
        lambda b: b.says("accept", 1), lambda b: b.auditor.given_up(PLACE, [(2, 2)]),
        lambda b: b.ends(3, 3, None, []),
    ],
    "an offset that a repair gave up is acquired without a record": [
        joined_and_produced, lambda b: b.auditor.given_up(PLACE, [(2, 3)]),
        lambda b: b.produces(b"4", first=4),
        lambda b: b.auditor.delivered(
            b.asks(acquires=True), PLACE, [(0, 4, 1)], {0: b"0", 1: b"1", 4: b"4"}
        ),
    ],
    "an answer that was lost may have accepted": [
        lambda b: b.gets(0, 0), lambda b: b.says("accept", 0, told=False), lambda b: b.sees(0),
        lambda b: b.sees(1),
    ],
    "a power cut takes what was not synced": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("release", 1),
        lambda b: b.gets(1, 1, 2), lambda b: b.says("accept", 0), lambda b: b.says("accept", 1),
        lambda b: b.sees(2), lambda b: b.loses(), lambda b: b.sees(0), lambda b: b.gets(0, 1),
        lambda b: b.says("reject", 0), lambda b: b.says("accept", 1), lambda b: b.sees(2),
        lambda b: b.ends(2, 2, [0]),
    ],
    "a power cut may leave what was not synced": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("accept", 0),
        lambda b: b.says("reject", 1, told=False), lambda b: b.loses(), lambda b: b.sees(2),
        lambda b: b.ends(2, 2, [1]),
    ],
    "a dead letter of before a power cut stays": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("reject", 0),
        lambda b: b.says("accept", 1), lambda b: b.loses(), lambda b: b.gets(0, 0),
        lambda b: b.says("accept", 0), lambda b: b.ends(2, 2, [0]),
    ],
    "other records have the offsets of lost ones": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("accept", 0),
        lambda b: b.says("accept", 1), lambda b: b.sees(2), lambda b: b.loses(1 << 40, end=1),
        lambda b: b.sees(1), lambda b: b.produces(b"2", first=1), lambda b: b.gets(1, 1),
        lambda b: b.says("accept", 1), lambda b: b.ends(2, 2, None, []),
    ],
    "a log that a full disk keeps from being opened may have lost its end": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("accept", 0),
        lambda b: b.says("accept", 1), lambda b: b.sees(2),
        lambda b: b.auditor.power_was_cut(1 << 40, are_copies_lost=False), lambda b: b.sees(2),
        lambda b: b.sees(1), lambda b: b.produces(b"2", first=1), lambda b: b.sees(1),
        lambda b: b.gets(1, 1), lambda b: b.says("accept", 1), lambda b: b.ends(2, 2),
    ],
    "a repair of what was not synced may give up what was acknowledged": [
        joined_and_produced, lambda b: b.auditor.power_was_cut(0, are_copies_lost=False),
        lambda b: b.auditor.given_up(PLACE, [(0, 0)], is_unsynced=True),
        lambda b: b.auditor.opened(PLACE, 2), lambda b: b.gets(1, 1),
        lambda b: b.says("accept", 1), lambda b: b.ends(2, 2),
    ],
    "a power cut takes an epoch, a commit and a number": [
        joined_and_produced, lambda b: b.lease.opened(b.asks(), 1, 0, ()), lambda b: b.leases(),
        lambda b: b.lease.committing(1), lambda b: b.lease.committed(b.asks(), 1, 0),
        lambda b: b.loses(), lambda b: b.lease.opened(b.asks(), 1, 0, ()), lambda b: b.leases(),
    ],
    "after a repair a lease has a delivery that the share-partition has no more": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("release", 0),
        lambda b: b.lease.acquired(b.asks(), 1, [(PLACE, 0, 0, 2)], fresh=True, whole=True),
        lambda b: b.auditor.locks_lost(), lambda b: b.loses(),
        lambda b: b.auditor.journal_was_repaired(),
        lambda b: b.lease.acquired(b.asks(), 1, [(PLACE, 0, 0, 2)], fresh=False, whole=True),
        lambda b: b.gets(0, 0, 1, "bob"),
    ],
    "a repaired journal delivers a record anew that a lease still has": [
        lambda b: b.gets(0, 0), lambda b: b.says("release", 0),
        lambda b: b.lease.acquired(b.asks(), 1, [(PLACE, 0, 0, 2)], fresh=True, whole=True),
        lambda b: b.auditor.locks_lost(), lambda b: b.loses(),
        lambda b: b.auditor.journal_was_repaired(),
        lambda b: b.lease.acquired(b.asks(), 2, [(PLACE, 0, 0, 1)], fresh=True, whole=True),
        lambda b: b.lease.acquired(b.asks(), 1, [(PLACE, 0, 0, 2)], fresh=False, whole=True),
    ],
    "a power cut takes what was staged, and another driver has the epoch": [
        joined_and_produced, lambda b: b.leases(),
        lambda b: b.lease.staging(1, {(PLACE, 0): "reject"}, "task 1", 1),
        lambda b: b.lease.staged(1, {(PLACE, 0): "reject"}, "task 1", 1),
        lambda b: b.auditor.locks_lost(), lambda b: b.loses(), lambda b: b.leases(),
        lambda b: b.lease.staging(1, {(PLACE, 0): "release"}, "task 0", 1),
        lambda b: b.lease.staged(1, {(PLACE, 0): "release"}, "task 0", 1),
        lambda b: b.lease.committing(1),
        lambda b: b.lease.committed(b.asks("lease/checkpoint"), 1, 0), lambda b: b.gets(0, 0, 2),
    ],
    "a lease keeps nothing of a log that lost its end": [
        joined_and_produced, lambda b: b.leases(), lambda b: b.loses(1 << 40, end=1),
        lambda b: b.lease.acquired(b.asks(), 1, [], fresh=False, whole=True),
    ],
    "a lease accepts nothing of a log that lost its end, also where topics may be gone": [
        joined_and_produced, lambda b: b.leases(), lambda b: b.auditor.locks_lost(),
        lambda b: b.loses(1 << 40, end=2),
        lambda b: b.lease.acquired(b.asks(), 1, [], fresh=False, whole=False),
        lambda b: b.lease.committing(1),
        lambda b: b.lease.committed(b.asks("lease/checkpoint"), 1, 0), lambda b: b.gets(0, 1, 2),
    ],
    "a lease accepts nothing of a log that lost its end, though a commit was under way": [
        joined_and_produced, lambda b: b.leases(), lambda b: b.lease.committing(1),
        lambda b: b.auditor.locks_lost(),
        lambda b: b.loses(1 << 40, end=2),
        lambda b: b.lease.acquired(b.asks(), 1, [], fresh=False, whole=False),
        lambda b: b.lease.committing(2),
        lambda b: b.lease.committed(b.asks("lease/checkpoint"), 2, 0), lambda b: b.gets(0, 1, 2),
    ],
}  # fmt: skip

BROKEN: dict[str, list[Callable[[Book], object]]] = {
    "after it was finished": [
        lambda b: b.gets(0, 0), lambda b: b.says("accept", 0), lambda b: b.gets(0, 0, 2, "bob"),
    ],
    "although delivery 1 had failed": [
        lambda b: b.gets(0, 0), lambda b: b.says("release", 0), lambda b: b.gets(0, 0, 1, "bob"),
    ],
    "after delivery 2": [
        lambda b: b.gets(0, 0), lambda b: b.auditor.locks_lost(), lambda b: b.gets(0, 0, 2),
        lambda b: b.auditor.locks_lost(), lambda b: b.gets(0, 0, 1),
    ],
    "and delivery 1 is over": [
        lambda b: b.gets(0, 0), lambda b: b.auditor.let_go("blue", "ann"),
        lambda b: b.gets(0, 0, 1, "bob"),
    ],
    "3 are allowed": [
        a_lost_fetch, a_lost_fetch, a_lost_fetch, lambda b: b.gets(0, 0, 4),
    ],
    "(delivery 2) after 0 deliveries": [lambda b: b.gets(0, 0, 2)],
    "given to ann (delivery 2) after 0 deliveries": [
        lambda b: b.gets(0, 0), lambda b: b.auditor.reset(QUEUE, 0), lambda b: b.gets(0, 0, 2),
    ],
    "while ann held it": [lambda b: b.gets(0, 0), lambda b: b.gets(0, 0, 2, "bob")],
    "(delivery 2) while ann held it": [
        lambda b: b.gets(0, 0), lambda b: b.auditor.stalled(10_000_000),
        lambda b: b.waits_until(19_000_000), lambda b: b.gets(0, 0, 2, "bob"),
    ],
    "given to bob (delivery 2) while ann held it": [
        lambda b: b.gets(0, 1), lambda b: b.auditor.lock_changes("blue", 1000),
        lambda b: b.auditor.lock_lasts("blue", 1000), lambda b: b.says("renew", 1),
        lambda b: b.gets(0, 0, 2, "bob"),
    ],
    "who never had it": [lambda b: b.gets(0, 0), lambda b: b.says("accept", 0, "bob")],
    "was given 4-5": [
        lambda b: b.auditor.delivered(b.asks(acquires=True), PLACE, [(6, 7, 1), (4, 5, 1)]),
    ],
    "acquired and not sent": [
        lambda b: b.auditor.delivered(b.asks(acquires=True), PLACE, [(0, 1, 1)], {0: b"0"}),
    ],
    "record orders-0@1 was acquired and not sent": [
        joined_and_produced, lambda b: b.auditor.given_up(PLACE, [(1, 2)]),
        lambda b: b.auditor.delivered(b.asks(acquires=True), PLACE, [(0, 2, 1)], {0: b"0"}),
    ],
    "was b'0' and is b'x'": [
        lambda b: b.produces(b"0"), lambda b: b.auditor.read(PLACE, {0: b"x"}),
    ],
    "SPSO of blue ('orders', 0) was 2 and is 1": [
        lambda b: b.gets(0, 1), lambda b: b.says("accept", 0), lambda b: b.says("accept", 1),
        lambda b: b.sees(0), lambda b: b.sees(2), lambda b: b.sees(1),
    ],
    "nobody finished record orders-0@1": [
        lambda b: b.gets(0, 1), lambda b: b.says("accept", 0), lambda b: b.sees(0),
        lambda b: b.sees(2),
    ],
    "was finished and is available": [
        lambda b: b.gets(0, 0), lambda b: b.says("accept", 0),
        lambda b: b.sees(0, (0, 0, "available")),
    ],
    "was skipped": [
        joined_and_produced, lambda b: b.gets(1, 1), lambda b: b.says("accept", 1),
        lambda b: b.ends(2, 2),
    ],
    "record orders-0@0 was skipped: blue neither had nor finished it": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("accept", 0),
        lambda b: b.says("accept", 1), lambda b: b.auditor.reset(QUEUE, 0), lambda b: b.ends(2, 2),
    ],
    "record orders-0@1 was skipped: blue neither": [
        joined_and_produced, lambda b: b.gets(0, 0), lambda b: b.says("accept", 0),
        lambda b: b.auditor.given_up(PLACE, [(1, 1)]), lambda b: b.ends(2, 2),
    ],
    "the log ends at 1": [joined_and_produced, lambda b: b.ends(1, 1)],
    "does not get beyond": [joined_and_produced, lambda b: b.ends(1, 2)],
    "has no dead letter": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("reject", 0),
        lambda b: b.says("accept", 1), lambda b: b.ends(2, 2, []),
    ],
    "has 2 dead letters": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("reject", 0),
        lambda b: b.says("accept", 1), lambda b: b.ends(2, 2, [0, 0]),
    ],
    "has 0 deliveries, and 1 had failed": [
        lambda b: b.gets(0, 0), lambda b: b.says("release", 0), lambda b: b.counts((0, 0, 1)),
        lambda b: b.counts((0, 0, 0)),
    ],
    "was not accepted and is not listed": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("reject", 0),
        lambda b: b.says("accept", 1), lambda b: b.ends(2, 2, None, [0]),
        lambda b: b.ends(2, 2, None, []),
    ],
    "is listed 2 times": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("reject", 0),
        lambda b: b.says("accept", 1), lambda b: b.ends(2, 2, None, [0, 0]),
    ],
    "is listed, and nobody rejected it": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("accept", 0),
        lambda b: b.says("accept", 1), lambda b: b.ends(2, 2, None, [1]),
    ],
    "nobody rejected it": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("accept", 0),
        lambda b: b.says("accept", 1), lambda b: b.ends(2, 2, [0]),
    ],
    "epoch 1 was served after 2": [
        lambda b: b.lease.opened(b.asks(), 2, 0, ()), lambda b: b.lease.fenced(b.asks(), 1),
    ],
    "opened at 2, after 2": [
        lambda b: b.lease.opened(b.asks(), 2, 0, ()), lambda b: b.lease.opened(b.asks(), 2, 0, ()),
    ],
    "acquisition 1 is not outstanding": [
        lambda b: b.lease.acquired(b.asks(), 1, [(PLACE, 0, 3, 1)], fresh=True, whole=True),
        lambda b: b.lease.opened(b.asks(), 2, 0, ()),
    ],
    "1 was ((('orders', 0), 0, 3, 1),) and is": [
        lambda b: b.lease.acquired(b.asks(), 1, [(PLACE, 0, 3, 1)], fresh=True, whole=True),
        lambda b: b.lease.acquired(b.asks(), 1, [(PLACE, 0, 2, 1)], fresh=False, whole=True),
    ],
    "1 was committed, and is 0 now": [
        lambda b: b.lease.committing(1), lambda b: b.lease.committed(b.asks(), 1, 0),
        lambda b: b.lease.opened(b.asks(), 2, 0, ()),
    ],
    "after it was finished: accept by lease/checkpoint": [
        lambda b: b.lease.acquired(
            b.asks("lease/checkpoint"), 1, [(PLACE, 0, 0, 1)], fresh=True, whole=True
        ),
        lambda b: b.lease.committing(1),
        lambda b: b.lease.committed(b.asks("lease/checkpoint"), 1, 0), lambda b: b.gets(0, 0, 2),
    ],
    "after it was finished: reject by lease/checkpoint": [
        lambda b: b.lease.acquired(
            b.asks("lease/checkpoint"), 1, [(PLACE, 0, 0, 1)], fresh=True, whole=True
        ),
        lambda b: b.lease.staging(1, {(PLACE, 0): "release"}, "a task of a driver that is gone", 1),
        lambda b: b.lease.staging(1, {(PLACE, 0): "reject"}, "task", 2),
        lambda b: b.lease.staged(1, {(PLACE, 0): "reject"}, "task", 2),
        lambda b: b.lease.committing(1),
        lambda b: b.lease.committed(b.asks("lease/checkpoint"), 1, 0), lambda b: b.gets(0, 0, 2),
    ],
    "finished: reject by lease/checkpoint": [  # what was durable outlasts a power cut
        joined_and_produced, lambda b: b.leases(), lambda b: staged(b, {(PLACE, 0): "reject"}),
        lambda b: b.loses(b.time_us + 1), lambda b: b.leases(fresh=False),
        lambda b: b.lease.committing(1),
        lambda b: b.lease.committed(b.asks("lease/checkpoint"), 1, 0), lambda b: b.gets(0, 0, 2),
    ],
    "after it was finished: accept by ann": [
        joined_and_produced, lambda b: b.gets(0, 0), lambda b: b.says("accept", 0),
        lambda b: b.loses(b.time_us + 1), lambda b: b.gets(0, 0),
    ],
    "SPSO of blue ('orders', 0) was 1 and is 0": [
        joined_and_produced, lambda b: b.gets(0, 0), lambda b: b.says("accept", 0),
        lambda b: b.sees(1), lambda b: b.loses(b.time_us + 1), lambda b: b.sees(0),
    ],
    "SPSO of blue is 1, and nobody finished record orders-0@0": [
        joined_and_produced, lambda b: b.gets(0, 0), lambda b: b.says("accept", 0),
        lambda b: b.loses(), lambda b: b.gets(0, 0), lambda b: b.sees(0), lambda b: b.sees(1),
    ],
    "(delivery 3) after 1 deliveries": [
        joined_and_produced, lambda b: b.gets(0, 0), lambda b: b.loses(), lambda b: b.gets(0, 0, 3),
    ],
    "SPSO of blue is 2, and nobody finished record orders-0@1": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("accept", 0),
        lambda b: b.says("accept", 1), lambda b: b.sees(2), lambda b: b.loses(1 << 40, end=1),
        lambda b: b.produces(b"2", first=1), lambda b: b.sees(2),
    ],
    "given to bob (delivery 2) after 0 deliveries": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("release", 1),
        lambda b: b.loses(1 << 40, end=1), lambda b: b.produces(b"2", first=1),
        lambda b: b.gets(1, 1, 2, "bob"),
    ],
    "record orders-0@1 has a dead letter, and nobody rejected it": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("reject", 1),
        lambda b: b.says("accept", 0), lambda b: b.loses(1 << 40, end=1),
        lambda b: b.produces(b"2", first=1), lambda b: b.gets(1, 1), lambda b: b.says("accept", 1),
        lambda b: b.ends(2, 2, [1, 1]),
    ],
    "given to bob (delivery 1) after delivery 2": [
        joined_and_produced, lambda b: b.gets(0, 1), lambda b: b.says("release", 0),
        lambda b: b.lease.acquired(b.asks(), 1, [(PLACE, 0, 0, 2)], fresh=True, whole=True),
        lambda b: b.auditor.locks_lost(), lambda b: b.loses(),
        lambda b: b.lease.acquired(b.asks(), 1, [(PLACE, 0, 0, 2)], fresh=False, whole=True),
        lambda b: b.gets(0, 0, 1, "bob"),
    ],
    "1 was () and is [(('orders', 0), 0, 1, 1)]": [
        joined_and_produced, lambda b: b.leases(), lambda b: b.loses(1 << 40, end=1),
        lambda b: b.leases(fresh=False),
    ],
    "record orders-0@1 is in delivery 1 of lease/checkpoint, after 0": [
        joined_and_produced, lambda b: b.leases(), lambda b: b.loses(end=1),
        lambda b: b.leases(fresh=False),
    ],
    "lease/checkpoint: epoch 1 was served after 2": [
        lambda b: b.lease.opened(b.asks(), 2, 0, ()), lambda b: b.loses(b.time_us + 1),
        lambda b: b.lease.fenced(b.asks(), 1),
    ],
    "before its delay was over": [
        lambda b: b.lease.acquired(
            b.asks("lease/checkpoint"), 1, [(PLACE, 0, 0, 1)], fresh=True, whole=True
        ),
        lambda b: staged(b, {(PLACE, 0): "later"}), lambda b: b.lease.committing(1),
        lambda b: b.lease.committed(b.asks("lease/checkpoint"), 1, 0), lambda b: b.gets(0, 0, 2),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_what_may_happen_is_no_failure(name: str) -> None:
    book = Book()
    for step in SOUND[name]:
        step(book)
    assert book.auditor.failures == []


@pytest.mark.parametrize("promise", BROKEN)
def test_a_broken_promise_is_told(promise: str) -> None:
    book = Book()
    *before, last = BROKEN[promise]
    for step in before:
        step(book)
    assert book.auditor.failures == []
    last(book)
    assert any(promise in told for told in book.auditor.failures), book.auditor.failures


Step = Callable[[Book], object]
Contradicts = Callable[[Book, Asked], object]


def leased(book: Book) -> None:
    book.lease.acquired(
        book.asks("lease/checkpoint"), 1, [(PLACE, 0, 3, 1)], fresh=True, whole=True
    )


def is_given(book: Book, asked: Asked, count: int) -> None:
    book.auditor.delivered(asked, PLACE, [(0, 0, count)])


def is_given_with_a_lock(book: Book, asked: Asked) -> None:
    is_given(book, asked, 1)
    book.waits_until(book.time_us + 15_000_000)
    is_given(book, book.asks("ann"), 2)


def is_produced(book: Book, asked: Asked) -> None:
    book.auditor.produced(asked, PLACE, 0, [b"0"])
    book.ends(1, 1)


# By promise: what comes before, a response, and what contradicts it if it left before a request.
TIED: dict[str, tuple[list[Step], Step, Contradicts]] = {
    "was finished and is acquired": (  # the simulator found it with seed 9750518
        [lambda b: b.gets(0, 0)], lambda b: b.says("accept", 0),
        lambda b, asked: b.auditor.described(asked, QUEUE, 0, [(0, 0, "acquired")]),
    ),
    "after it was finished": (
        [lambda b: b.gets(0, 0)], lambda b: b.says("accept", 0),
        lambda b, asked: is_given(b, asked, 2),
    ),
    "SPSO of blue ('orders', 0) was 1 and is 0": (
        [lambda b: b.gets(0, 0), lambda b: b.says("accept", 0), lambda b: b.sees(0)],
        lambda b: b.sees(1), lambda b, asked: b.auditor.described(asked, QUEUE, 0, []),
    ),
    "has 0 deliveries, and 1 had failed": (
        [lambda b: b.gets(0, 0)], lambda b: b.says("release", 0),
        lambda b, asked: b.auditor.counted(asked, QUEUE, [(0, 0, 0)]),
    ),
    "although delivery 1 had failed": (
        [lambda b: b.gets(0, 0), lambda b: b.auditor.locks_lost()],
        lambda b: b.says("release", 0), lambda b, asked: is_given(b, asked, 1),
    ),
    "after delivery 2": (
        [lambda b: b.gets(0, 0), lambda b: b.auditor.locks_lost()],
        lambda b: b.gets(0, 0, 2, "bob"), lambda b, asked: is_given(b, asked, 1),
    ),
    "while ann held it": (
        [], lambda b: b.gets(0, 0), lambda b, asked: is_given(b, asked, 2),
    ),
    "while bob held it": (
        [lambda b: b.auditor.lock_changes("blue", 20_000)],
        lambda b: b.auditor.lock_lasts("blue", 20_000), is_given_with_a_lock,
    ),
    "before its delay was over": (
        [leased, lambda b: staged(b, {(PLACE, 0): "later"}), lambda b: b.lease.committing(1)],
        lambda b: b.lease.committed(b.asks("lease/checkpoint"), 1, 0),
        lambda b, asked: is_given(b, asked, 2),
    ),
    "record orders-0@0 was skipped": (
        [], lambda b: b.auditor.assigned("blue", [PLACE]), is_produced,
    ),
    "epoch 1 was served after 2": (
        [], lambda b: b.lease.opened(b.asks(), 2, 0, ()),
        lambda b, asked: b.lease.fenced(asked, 1),
    ),
    "opened at 2, after 2": (
        [], lambda b: b.lease.opened(b.asks(), 2, 0, ()),
        lambda b, asked: b.lease.opened(asked, 2, 0, ()),
    ),
    "acquisition 1 is not outstanding": (
        [], leased, lambda b, asked: b.lease.opened(asked, 2, 0, ()),
    ),
    "1 was ((('orders', 0), 0, 3, 1),) and is": (
        [], leased,
        lambda b, asked: b.lease.acquired(
            asked, 1, [(PLACE, 0, 2, 1)], fresh=False, whole=True
        ),
    ),
    "1 was committed, and is 0 now": (
        [lambda b: b.lease.committing(1)], lambda b: b.lease.committed(b.asks(), 1, 0),
        lambda b, asked: b.lease.opened(asked, 2, 0, ()),
    ),
}  # fmt: skip


@pytest.mark.parametrize("is_earlier", [False, True])
@pytest.mark.parametrize("promise", TIED)
def test_a_response_counts_for_later_requests_of_its_microsecond(
    promise: str, is_earlier: bool
) -> None:
    """After a suspension many requests and responses have the same microsecond."""
    book = Book()
    before, response, contradicts = TIED[promise]
    for step in before:
        step(book)
    book.waits_until(book.time_us + 1_000_000)
    book.step_us = 0
    earlier = book.asks("bob")
    response(book)
    later = book.asks("bob")
    assert earlier.at_us == later.at_us
    assert book.auditor.failures == []
    contradicts(book, earlier if is_earlier else later)
    assert any(promise in failure for failure in book.auditor.failures) != is_earlier
    assert bool(book.auditor.failures) != is_earlier


@pytest.mark.parametrize("is_added", [False, True])
def test_a_group_reads_an_added_partition_from_its_begin(is_added: bool) -> None:
    """The request may have the microsecond in which the group is assigned the topic."""
    book, other = Book(), ("orders", 1)
    book.step_us = 0
    if is_added:
        book.auditor.assigned("blue", [other])
        book.auditor.creating(PLACE)
    else:
        book.auditor.creating(PLACE)
        book.auditor.assigned("blue", [other])
    book.produces(b"0")
    book.auditor.assigned("blue", [PLACE])
    book.ends(1, 1)
    assert bool(book.auditor.failures) == is_added
