"""Leases: what is sent, what comes back, and that a lost answer is asked for again."""

from typing import Any

import pytest

from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.leases import Lease, describe
from headrace.wire.leases import (
    AcquireRequest,
    AcquireResponse,
    Bound,
    CommitRequest,
    CommitResponse,
    DescribeRequest,
    DescribeResponse,
    Disposition,
    LeaseApi,
    OpenRequest,
    OpenResponse,
    Range,
    RenewRequest,
    RenewResponse,
    SharePartition,
    StageRequest,
    StageResponse,
    Verdict,
)
from headrace.wire.primitives import Writer


def script(broker: Any, key: LeaseApi, request: Any, *responses: Any) -> list[Any]:
    """Answer `key` with `responses` in turn (None hangs up); returns the requests as they come."""
    seen: list[Any] = []
    left = list(responses)

    def answer(body: Any) -> bytes | None:
        seen.append(request.read(body))
        response = left.pop(0)
        if response is None:
            return None
        out = Writer()
        response.write(out)
        return bytes(out.data)

    broker.answers[key] = answer
    return seen


def test_the_epoch_of_open_goes_into_every_later_call(cluster: Cluster, broker: Any) -> None:
    held = Range("t", 0, 5, 9, 2)
    staged = Disposition("t", 0, 5, 5, Verdict.REJECT, "bad")
    opened = OpenResponse(0, None, epoch=3, committed=7, lock_ms=30_000, outstanding=(8,))
    script(broker, LeaseApi.OPEN, OpenRequest, opened)
    acquires = script(broker, LeaseApi.ACQUIRE, AcquireRequest, AcquireResponse(0, None, (held,)))
    renews = script(broker, LeaseApi.RENEW, RenewRequest, RenewResponse(0, None, 5, 0))
    stages = script(broker, LeaseApi.STAGE, StageRequest, StageResponse(0, None))
    commits = script(broker, LeaseApi.COMMIT, CommitRequest, CommitResponse(0, None, 4, 0, 1))

    lease = Lease(cluster, "g", "s")
    assert lease.open(("t",), "earliest") == opened
    assert lease.acquire(8, 100, 50, (Bound("t", 0, 10),)) == (held,)
    assert lease.renew().held == 5
    lease.stage(8, (staged,))
    settled = lease.commit(8)
    assert (settled.accepted, settled.rejected) == (4, 1)
    assert acquires == [AcquireRequest("g", "s", 3, 8, 100, 50, (Bound("t", 0, 10),))]
    assert renews == [RenewRequest("g", "s", 3)]
    assert stages == [StageRequest("g", "s", 3, 8, (staged,))]
    assert commits == [CommitRequest("g", "s", 3, 8)]


def test_how_long_locks_last_is_known_from_the_last_response_that_has_it(
    cluster: Cluster, broker: Any
) -> None:
    """The field is tagged: a release without it skips it, and sends what ends without a tag."""
    script(broker, LeaseApi.OPEN, OpenRequest, OpenResponse(0, None, 3, lock_ms=30_000))
    acquired = AcquireResponse(0, None, (), lock_ms=2_000)
    script(broker, LeaseApi.ACQUIRE, AcquireRequest, acquired)
    renewed = [RenewResponse(0, None, 5, 0), RenewResponse(0, None, 5, 0, lock_ms=1_000)]
    script(broker, LeaseApi.RENEW, RenewRequest, *renewed)

    lease = Lease(cluster, "g", "s")
    known = [lease.lock_ms]
    for call in (lambda: lease.open(("t",), "earliest"), lambda: lease.acquire(1, 1, 0)):
        call()
        known.append(lease.lock_ms)
    for _ in renewed:
        lease.renew()
        known.append(lease.lock_ms)
    assert known == [0, 30_000, 2_000, 2_000, 1_000]

    out = Writer()
    renewed[0].write(out)
    assert bytes(out.data) == bytes.fromhex("0000 00 0000000000000005 0000000000000000 00")


def test_a_lost_answer_is_asked_for_again(cluster: Cluster, broker: Any) -> None:
    commits = script(broker, LeaseApi.COMMIT, CommitRequest, None, CommitResponse(0, None, 4))
    assert Lease(cluster, "g", "s", 1).commit(2).accepted == 4
    assert commits == [CommitRequest("g", "s", 1, 2)] * 2


def test_a_fenced_driver_is_told_what_to_do(cluster: Cluster, broker: Any) -> None:
    script(broker, LeaseApi.RENEW, RenewRequest, RenewResponse(110, "epoch 1 is old, 2 is new"))
    with pytest.raises(BrokerError, match="epoch 1 is old, 2 is new; stop one of the two") as found:
        Lease(cluster, "g", "s", 1).renew()
    assert found.value.name == "FENCED_MEMBER_EPOCH"


def test_describe_needs_no_session(cluster: Cluster, broker: Any) -> None:
    state = SharePartition("t", 0, 1, 2, 3, ())
    seen = script(broker, LeaseApi.DESCRIBE, DescribeRequest, DescribeResponse(0, None, (state,)))
    assert describe(cluster, "g") == (state,)
    assert seen == [DescribeRequest("g", "", -1)]
