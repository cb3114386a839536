"""A million records in flight, every second one released: what DescribeShareRecords makes of it.

By default a quarter of them; all with HEADRACE_LOOP_SCALE=1.
"""

import struct
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

import headrace
from headrace.client.connection import Cluster
from headrace.client.share_browse import browse_share_group_runs
from headrace.client.share_records import RecordState, describe_share_partitions
from headrace.core.browsing import LOOK_RUNS
from headrace.wire.share_records import BYTES_MAX, KEY, RUNS_MAX

from .share_look_rig import ACQUIRED, AVAILABLE, Member, cursor, joined, look, only, request
from .share_wire_rig import GROUP, RELEASE, RENEW, produce
from .test_loop_time import SCALE

RECORDS = int(1_000_000 * SCALE)
_WAIT_S = 120
BROKER_SETTINGS = {
    "group.share.partition.max.record.locks": str(RECORDS),
    "group.share.max.record.lock.duration.ms": "3600000",
    "group.share.record.lock.duration.ms": "3600000",
    "log.retention.ms": "-1",  # its records are of 1970, and the test may take longer than 30 s
    "socket.request.max.bytes": str(1 << 21),
}


@pytest.fixture
def million(connect: Callable[[], Any]) -> Member:
    """A member who released every second one of a million records, and goes on with the others."""
    member = joined(connect)
    member.wire.socket.settimeout(_WAIT_S)
    produce(member.wire, *[10_000] * (RECORDS // 10_000))
    held = 0
    while held < RECORDS:
        taken = member.hold(RECORDS - held, 1000)
        assert taken, f"only {held} came"
        held += sum(last - first + 1 for first, last, _ in taken)
    verdicts = (RELEASE, RENEW) * (RECORDS // 2)
    assert member.code((0, RECORDS - 1, *verdicts), is_renew_ack=True) == 0
    return member


def none_is_archived(cluster: Cluster) -> None:
    """A state that no record is in is looked for in portions."""
    walk = browse_share_group_runs(GROUP, states=[RecordState.ARCHIVED])
    steps = 0
    while (rows := walk.step(cluster)) is not None:
        assert not rows
        steps += 1
    assert steps >= RECORDS // LOOK_RUNS
    one = describe_share_partitions(cluster, GROUP)["orders", 0]
    assert one is not None
    assert one.records[RecordState.WAITING] == 20


def test_pages_are_bounded_and_the_first_is_the_first(
    broker: headrace.Broker, million: Member, wire: Any
) -> None:
    wire.send_frame(
        struct.pack(">hhih", KEY, 0, 1, -1) + b"\0" + request(GROUP, cursor(), runs_max=RECORDS)
    )
    _, answer = wire.receive()
    assert len(answer) < BYTES_MAX
    for offset in (0, RECORDS // 3, RECORDS - 2):
        page = only(look(wire, request(GROUP, cursor(offset))))
        assert page.records == (RECORDS // 2, RECORDS // 2, 0, 0, 0)
        assert len(page.runs) == min(RUNS_MAX, RECORDS - offset)
        for at, run in enumerate(page.runs, offset):
            assert (run.first, run.last, run.state) == (at, at, (AVAILABLE, ACQUIRED)[at % 2])
    with Cluster(broker.bootstrap_servers) as cluster:
        asked: list[int] = []
        exchange = cluster.exchange

        def counting(address: Any, key: int, *rest: Any, **other: Any) -> Any:
            asked.append(key)
            return exchange(address, key, *rest, **other)

        cluster.exchange = counting  # type: ignore[method-assign]  # to see what is asked
        runs = browse_share_group_runs(GROUP, topics=[("orders", 0)]).over(cluster)
        assert [run.first for run in islice(runs, 10)] == list(range(10))
        assert asked.count(KEY) == 2, "how it is, and one page"
        none_is_archived(cluster)
    assert million.hold(5) == [(0, 0, 2), (2, 2, 2), (4, 4, 2), (6, 6, 2), (8, 8, 2)]
