"""Verdicts staged at the driver-side process, by the client of the lease API itself."""

import socket
from collections.abc import Iterator

import pytest

from headrace.client.connection import Address, Cluster, Patience
from headrace.client.errors import BrokerError, Unreachable
from headrace.client.leases import Lease
from headrace.spark.queue.kafka_staging import Staging, strictest
from headrace.wire.leases import Disposition, Verdict

REJECTED = Disposition("t", 0, 3, 4, Verdict.REJECT, "bad")
RELEASED = Disposition("t", 0, 4, 5, Verdict.RELEASE, None)


@pytest.fixture
def staging() -> Iterator[Staging]:
    found = Staging("session", 7, Address("127.0.0.1", 9))
    found.open(1)
    yield found
    found.close()


@pytest.fixture
def cluster(staging: Staging) -> Iterator[Cluster]:
    with Cluster(staging.address, patience=Patience(total_s=5)) as found:
        yield found


def test_it_listens_where_the_broker_is_and_nowhere_else(staging: Staging) -> None:
    assert staging.address.startswith("127.0.0.1:")


def test_what_is_staged_is_taken_once(staging: Staging, cluster: Cluster) -> None:
    Lease(cluster, "g", "session", 7).stage(1, (REJECTED,))
    assert staging.taken(1) == {("t", 0, 3): REJECTED, ("t", 0, 4): REJECTED}
    assert staging.taken(1) == {}


def test_of_delays_the_longest_holds() -> None:
    later = Disposition("t", 0, 4, 4, Verdict.RELEASE, None, 60_000)
    assert strictest([later, RELEASED])["t", 0, 4] == later


def test_a_part_replaces_itself_and_of_several_the_strictest_holds(
    staging: Staging, cluster: Cluster
) -> None:
    lease = Lease(cluster, "g", "session", 7)
    lease.stage(1, (Disposition("t", 0, 0, 9, Verdict.REJECT, "first attempt"),), part="a")
    lease.stage(1, (RELEASED,), part="a")
    lease.stage(1, (REJECTED,), part="b")
    assert staging.taken(1) == {
        ("t", 0, 3): REJECTED,
        ("t", 0, 4): REJECTED,
        ("t", 0, 5): RELEASED,
    }


@pytest.mark.parametrize(
    ("session", "epoch", "seq", "code", "told"),
    [
        ("other", 7, 1, 25, "another query listens here"),
        ("session", 6, 1, 110, "the query was restarted since"),
        ("session", 7, 2, 42, "number 2 was committed, or was not handed out"),
    ],
)
def test_verdicts_of_another_batch_are_refused(
    cluster: Cluster, session: str, epoch: int, seq: int, code: int, told: str
) -> None:
    with pytest.raises(BrokerError, match=told) as refused:
        Lease(cluster, "g", session, epoch).stage(seq, (REJECTED,))
    assert refused.value.code == code


def test_a_batch_that_was_taken_is_closed(staging: Staging, cluster: Cluster) -> None:
    staging.taken(1)
    with pytest.raises(BrokerError, match="number 1 was committed"):
        Lease(cluster, "g", "session", 7).stage(1, (REJECTED,))


def test_a_driver_that_is_gone_is_told_in_seconds(staging: Staging) -> None:
    staging.close()
    with (
        Cluster(staging.address, patience=Patience(total_s=1)) as cluster,
        pytest.raises(Unreachable, match="staging for number 1"),
    ):
        Lease(cluster, "g", "session", 7).stage(1, (REJECTED,))


def test_strangers_are_hung_up_on_and_the_next_one_is_served(
    staging: Staging, cluster: Cluster
) -> None:
    host, _, port = staging.address.rpartition(":")
    for bad in (b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x0c" + b"\x7f" * 12, b"\x00\x00\x00\x00"):
        with socket.create_connection((host, int(port)), timeout=30) as stranger:
            stranger.sendall(bad)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""
    Lease(cluster, "g", "session", 7).stage(1, (REJECTED,))
    assert len(staging.taken(1)) == 2


def test_accepts_give_way_to_stricter_verdicts() -> None:
    accepted = Disposition("t", 0, 0, 9, Verdict.ACCEPT, None)
    found = strictest([REJECTED, accepted])
    assert found["t", 0, 3] == REJECTED
    assert found["t", 0, 5] == accepted
