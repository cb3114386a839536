"""What a lease stages by part and releases with a delay, over the wire, beside a share member."""

import time
from typing import Any

import pytest

import headrace
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.leases import Lease
from headrace.core.leases import DELAY_MS_MAX, REASON_LENGTH_MAX
from headrace.wire.leases import Disposition, Verdict

from .share_look_rig import ACQUIRED, Member, joined, look, request
from .share_wire_rig import GROUP, TOPIC

BROKER_SETTINGS: dict[str, Any] = {}
RELEASE, REJECT = Verdict.RELEASE, Verdict.REJECT


@pytest.fixture
def member(connect: Any) -> Member:
    return joined(connect)


@pytest.fixture
def lease(broker: headrace.Broker, member: Member) -> Any:
    with Cluster(broker.bootstrap_servers) as cluster:
        made = Lease(cluster, GROUP, "nightly")
        made.open((TOPIC,), "earliest")
        assert sum(one.last - one.first + 1 for one in made.acquire(1, 20, 1000)) == 20
        yield made


def in_ms() -> int:
    """The broker's clock, which has whole milliseconds."""
    return time.monotonic_ns() // 1_000_000


def test_a_poll_is_woken_when_the_delay_is_over(lease: Lease, member: Member) -> None:
    lease.stage(1, (Disposition(TOPIC, 0, 3, 4, RELEASE, "not yet", 1_500),))
    begun_ms = in_ms()
    settled = lease.commit(1)
    assert (settled.accepted, settled.released) == (18, 2)
    assert member.hold(5, wait_ms=60_000) == [(3, 4, 2)]
    assert in_ms() - begun_ms >= 1_500


def test_who_browses_sees_until_when_they_wait(lease: Lease, wire: Any) -> None:
    lease.stage(1, (Disposition(TOPIC, 0, 3, 4, RELEASE, "not yet", 600_000),))
    lease.commit(1)
    answer = look(wire, request())
    run, *_ = answer.partitions[0].runs
    assert (run.first, run.last, run.state, run.delivery_count) == (3, 4, ACQUIRED, 1)
    assert 0 < run.lock_left_ms <= 600_000
    assert [holder.member for holder in answer.holders] == ["delayed"]


def test_tasks_stage_each_its_part(lease: Lease, wire: Any) -> None:
    lease.stage(1, (Disposition(TOPIC, 0, 0, 1, REJECT, "bad"),), part="task 0")
    lease.stage(1, (Disposition(TOPIC, 0, 1, 2, RELEASE),), part="task 1")
    lease.stage(1, (Disposition(TOPIC, 0, 7, 7, REJECT, "bad"),), part="task 2")
    lease.stage(1, (), part="task 2")
    settled = lease.commit(1)
    assert (settled.accepted, settled.released, settled.rejected) == (17, 1, 2)
    assert look(wire, request()).partitions[0].start == 2


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (Disposition(TOPIC, 0, 3, 3, REJECT, None, 5), "only released records come back"),
        (Disposition(TOPIC, 0, 3, 3, RELEASE, None, -1), "has a delay of -1 ms"),
        (Disposition(TOPIC, 0, 3, 3, RELEASE, None, DELAY_MS_MAX + 1), "give 0 to 31622400000"),
        (Disposition(TOPIC, 0, 4, 3, RELEASE), "is no range of records"),
        (Disposition("nosuch", 0, 3, 3, RELEASE), "a topic that does not exist"),
        (
            Disposition(TOPIC, 0, 3, 3, REJECT, "x" * (REASON_LENGTH_MAX + 1)),
            "has a reason of more",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(
    lease: Lease, said: Disposition, why: str
) -> None:
    with pytest.raises(BrokerError, match=why) as found:
        lease.stage(1, (said,))
    assert found.value.name == "INVALID_REQUEST"
    assert lease.commit(1).accepted == 20
