"""What leases have outstanding is discarded with share-partitions that are reset or forgotten.

Where that is much, what is left is worked out in a thread before anything is decided.
"""

from typing import Any

import pytest

from headrace.core import leases
from headrace.core.errors import Refused, Why
from headrace.core.leases import Held, Staged
from headrace.core.machine import Decided, Unfinished
from headrace.core.shard_words import (
    AcquireLease,
    AlterShareOffsets,
    Command,
    DeleteShareGroup,
    DeleteShareOffsets,
    LogEndLost,
    StageLease,
)
from headrace.core.share_group import Heartbeat
from headrace.core.share_words import Verdict
from headrace.core.types import MemberId, Span

from .lease_rig import LEASE, LOCK_MS, P0, P1, LeaseRig

GROUP = LEASE[0]
SAID = (
    Staged(P0, Span(1, 1), Verdict.RELEASE),
    Staged(P0, Span(4, 4), Verdict.REJECT),
    Staged(P1, Span(2, 2), Verdict.REJECT),
)
RESET = AlterShareOffsets(GROUP, (("flights", 0, 0),), ranges_max=0)
FORGET = DeleteShareOffsets(GROUP, ("flights",), ranges_max=0)


@pytest.fixture
def broker() -> LeaseRig:
    """A lease with two acquisitions of both share-partitions, the first one staged."""
    rig = LeaseRig()
    epoch = rig.open()
    for number in (1, 2):
        assert len(rig.ask(AcquireLease(LEASE, epoch, number, 20))) == 2
    rig.ask(StageLease(LEASE, epoch, 1, SAID, "part"))
    rig.elapse(LOCK_MS)  # its driver is silent
    return rig


def outstanding(broker: LeaseRig) -> list[tuple[Any, ...]]:
    """What the lease has, which is what its journal has."""
    found = [
        (number, one.held, dict(one.parts))
        for number, one in broker.shard.leases[LEASE].acquisitions.items()
    ]
    broker.restart()
    assert found == [
        (number, one.held, dict(one.parts))
        for number, one in broker.shard.leases[LEASE].acquisitions.items()
    ]
    return found


def following(broker: LeaseRig, command: Command) -> Any:
    """The command that is decided once what is left was worked out, in a thread."""
    answer = broker.ask_once(command)
    assert isinstance(answer, Unfinished)
    assert answer.prepare is not None
    return answer.following()


def decided(broker: LeaseRig, command: Command) -> Decided[Any]:
    answer = broker.shard.decide(command, broker.now)
    assert not isinstance(answer, Refused)
    return answer


@pytest.mark.parametrize("ranges_max", [0, 6, 7, 2_000])
def test_what_is_left_does_not_depend_on_how_it_is_worked_out(
    broker: LeaseRig, ranges_max: int
) -> None:
    reset = AlterShareOffsets(GROUP, (("flights", 0, 0),), ranges_max=ranges_max)
    assert broker.ask(reset) == (None,)
    assert outstanding(broker) == [
        (1, (Held(P1, Span(0, 9), 1),), {"part": SAID[2:]}),
        (2, (Held(P1, Span(10, 19), 1),), {}),
    ]


def test_the_numbers_stay_where_nothing_is_left(broker: LeaseRig) -> None:
    assert broker.ask(FORGET) == (None,)
    assert outstanding(broker) == [(1, (), {"part": ()}), (2, (), {})]


def test_nothing_is_decided_before_what_is_left_is_known(broker: LeaseRig) -> None:
    before, records = broker.state(), len(broker.records)
    following(broker, RESET)
    assert (broker.state(), len(broker.records)) == (before, records)


def test_a_lease_that_changes_meanwhile_is_seen(broker: LeaseRig) -> None:
    command = following(broker, RESET)
    broker.ask(LogEndLost(P1, 5))
    assert isinstance(broker.ask_once(command), Unfinished), "of two other acquisitions"
    assert broker.ask(command) == (None,)
    assert outstanding(broker) == [(1, (), {"part": ()}), (2, (), {})]


def test_what_was_worked_out_for_other_share_partitions_is_not_taken(broker: LeaseRig) -> None:
    known = following(broker, FORGET).known
    command = AlterShareOffsets(GROUP, (("flights", 0, 0),), ranges_max=0, known=known)
    assert broker.ask(command) == (None,)
    assert [len(held) for _, held, _ in outstanding(broker)] == [1, 1]


def test_a_member_that_comes_meanwhile_is_seen(broker: LeaseRig) -> None:
    command = following(broker, RESET)
    broker.ask(Heartbeat(GROUP, MemberId("ann"), 0, frozenset({"flights"})))
    assert broker.ask(command).why is Why.NON_EMPTY_GROUP
    assert [len(held) for _, held, _ in outstanding(broker)] == [2, 2]


@pytest.mark.parametrize("command", [RESET, FORGET, DeleteShareGroup(GROUP)])
def test_much_that_is_discarded_is_freed_apart(
    broker: LeaseRig, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [one.columns() for one in broker.shard.leases[LEASE].acquisitions.values()]
    rest = command if isinstance(command, DeleteShareGroup) else following(broker, command)
    assert not decided(broker, rest).unused
    monkeypatch.setattr(leases, "FREED_MAX", 6)
    assert decided(broker, rest).unused == [column for columns in before for column in columns]


def test_what_is_not_discarded_is_not_freed(
    broker: LeaseRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "FREED_MAX", 0)
    broker.ask(AlterShareOffsets(GROUP, (("flights", 1, 0),)))
    broker.ask(LogEndLost(P1, 0))
    assert not decided(broker, AlterShareOffsets(GROUP, (("flights", 1, 0),))).unused


@pytest.mark.parametrize(("part", "count"), [("part", 3), ("b", 0)])
def test_a_part_that_is_replaced_is_freed_apart(
    broker: LeaseRig, part: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "FREED_MAX", 2)
    answer = decided(broker, StageLease(LEASE, 1, 1, SAID[:1], part))
    assert sum(map(len, answer.unused)) == count


def test_parts_of_a_driver_before_are_freed_apart(
    broker: LeaseRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "FREED_MAX", 2)
    epoch = broker.open()
    answer = decided(broker, StageLease(LEASE, epoch, 1, SAID[:1], "b"))
    assert list(answer.unused) == [(), SAID]
