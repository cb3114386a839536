"""DescribeShareRecords by raw requests: its bytes, its errors, and its pages."""

import struct
from collections.abc import Callable
from typing import Any

import pytest

import headrace
from headrace.broker.shares import Shares
from headrace.client.connection import Cluster
from headrace.client.leases import Lease
from headrace.core.errors import Refused, Why
from headrace.wire.leases import Disposition, Verdict
from headrace.wire.primitives import Reader, Writer
from headrace.wire.share_records import (
    KEY,
    RUNS_MAX,
    DescribeShareRecordsResponse,
    Holder,
    Run,
    TopicCursor,
)

from .share_look_rig import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    MEMBER,
    Member,
    cursor,
    joined,
    look,
    only,
    request,
)
from .share_wire_rig import ACCEPT, GROUP, REJECT, RELEASE, TOPIC, produce

BROKER_SETTINGS: dict[str, Any] = {}


@pytest.fixture
def member(connect: Callable[[], Any]) -> Member:
    return joined(connect)


# ---- what it tells


def test_states_counts_holders_and_locks(member: Member, wire: Any) -> None:
    assert member.hold(10) == [(0, 9, 1)]
    member.say(ACCEPT, 1, 1)
    member.say(REJECT, 2, 3)
    member.say(RELEASE, 4, 4)
    answer = look(wire, request())
    assert [(one.topic, one.partition) for one in answer.partitions] == [(TOPIC, 0), (TOPIC, 1)]
    first, second = answer.partitions
    assert (first.start, first.end, first.log_start, first.high_watermark) == (0, 10, 0, 20)
    assert (first.records, first.next_offset) == ((1, 6, 1, 0, 2), 10)
    assert [(run.first, run.last, run.state, run.delivery_count) for run in first.runs] == [
        (0, 0, ACQUIRED, 1), (1, 1, ACKNOWLEDGED, 1), (2, 3, ARCHIVED, 1), (4, 4, AVAILABLE, 1),
        (5, 9, ACQUIRED, 1),
    ]  # fmt: skip
    assert [(run.holder, run.reason) for run in first.runs] == [
        (0, -1), (-1, -1), (0, 0), (-1, -1), (0, -1)
    ]  # fmt: skip
    assert answer.holders == (Holder(MEMBER, "", "/127.0.0.1"),)
    assert answer.reasons == ("rejected by the consumer",)
    acquired = first.runs[0]
    assert 0 < acquired.lock_left_ms <= 30_000
    assert acquired.lock_until > 1_700_000_000_000
    assert 0 <= acquired.lock_until - acquired.lock_left_ms - acquired.acquired_at < 30_000
    for run in (first.runs[1], first.runs[2]):
        assert (run.lock_left_ms, run.lock_until, run.acquired_at) == (-1, -1, -1)
    assert (second.start, second.end, second.high_watermark, second.runs) == (0, 0, 0, ())


def test_a_lease_is_told_by_its_session(broker: headrace.Broker, member: Member, wire: Any) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        lease = Lease(cluster, GROUP, "nightly")
        lease.open((TOPIC,), "earliest")
        lease.acquire(1, 5, 1000)
        (holder,) = look(wire, request()).holders
    assert (holder.session, holder.client_id, holder.client_host) == ("nightly", None, None)
    assert member.hold(3) == [(5, 7, 1)]
    assert [one.session for one in look(wire, request()).holders] == ["nightly", None]


def test_the_bytes_of_a_request_and_of_an_answer(member: Member, wire: Any) -> None:
    asked = bytes.fromhex(
        "0267" "02" "076f7264657273" "02" "00000000" "0000000000000007" "00" "00"
        "02" "01" "00000064" "00"
    )  # fmt: skip
    assert asked == request(GROUP, cursor(7), states=(1,), runs_max=100)
    assert request() == bytes.fromhex("02670001000007d000")
    member.hold(9)
    wire.send_frame(struct.pack(">hhih", KEY, 0, 77, -1) + b"\0" + asked)
    number, answer = wire.receive()
    run = DescribeShareRecordsResponse.read(Reader(answer, 1)).partitions[0].runs[0]
    assert number == 77
    assert 0 < run.lock_left_ms <= 30_000
    assert answer == bytes.fromhex(
        "00" "0000" "00" "02" "076d656d626572" "01" "0b2f3132372e302e302e31" "00" "00" "01"
        "02" "076f7264657273" "00000000" "0000" "00"
        "0000000000000000" "0000000000000009" "0000000000000000" "0000000000000014"
        "06" "0000000000000000" "0000000000000009" + "0000000000000000" * 3
        + "0000000000000009" "02" "0000000000000007" "0000000000000008" "01" "0001" "00000000"
    ) + struct.pack(">qqq", run.lock_left_ms, run.lock_until, run.acquired_at) + bytes.fromhex(
        "ffffffff" "00" "00" "00"
    )  # fmt: skip


# ---- pages


def test_pages_go_on_where_the_last_one_ended(member: Member, wire: Any) -> None:
    member.hold(10)
    for offset in (1, 4, 7):
        member.say(RELEASE, offset, offset)
    position, seen = 0, []
    while position < 10:
        page = only(look(wire, request(GROUP, cursor(position), runs_max=2)))
        assert 1 <= len(page.runs) <= 2
        assert page.next_offset == page.runs[-1].last + 1
        seen += [(run.first, run.last, run.state) for run in page.runs]
        position = page.next_offset
    assert seen == [
        (0, 0, ACQUIRED), (1, 1, AVAILABLE), (2, 3, ACQUIRED), (4, 4, AVAILABLE),
        (5, 6, ACQUIRED), (7, 7, AVAILABLE), (8, 9, ACQUIRED),
    ]  # fmt: skip


def test_a_page_of_all_partitions_has_room_for_all_of_them_together(
    member: Member, wire: Any
) -> None:
    member.hold(10)
    member.say(RELEASE, 3, 3)
    first, second = look(wire, request(runs_max=1)).partitions
    assert (len(first.runs), first.next_offset, second.next_offset) == (1, 3, 0)
    first, second = look(wire, request(runs_max=0)).partitions
    assert (first.runs, first.next_offset, first.records) == ((), 0, (1, 9, 0, 0, 0))


def test_only_the_states_that_are_asked_for(member: Member, wire: Any) -> None:
    member.hold(10)
    member.say(ACCEPT, 2, 4)
    member.say(RELEASE, 6, 6)
    found = only(look(wire, request(GROUP, cursor(3), states=(ACKNOWLEDGED, AVAILABLE))))
    assert [(run.first, run.last, run.state) for run in found.runs] == [
        (3, 4, ACKNOWLEDGED), (6, 6, AVAILABLE)
    ]  # fmt: skip
    assert found.next_offset == 10


def test_an_answer_is_bounded_whatever_is_asked(
    broker: headrace.Broker, member: Member, wire: Any
) -> None:
    count = 2 * RUNS_MAX + 10
    produce(member.wire, count)
    with Cluster(broker.bootstrap_servers) as cluster:
        lease = Lease(cluster, GROUP, "s")
        lease.open((TOPIC,), "earliest")
        lease.acquire(1, count, 1000)
        spans = range(0, count, 2)
        lease.stage(1, tuple(Disposition(TOPIC, 0, at, at, Verdict.RELEASE) for at in spans))
        lease.commit(1)
    found = only(look(wire, request(GROUP, cursor(), runs_max=2**31 - 1)))
    assert (len(found.runs), found.next_offset) == (RUNS_MAX, RUNS_MAX)


def test_long_reasons_are_cut_and_counted(
    broker: headrace.Broker, member: Member, wire: Any
) -> None:
    count = 2000
    produce(member.wire, count)
    with Cluster(broker.bootstrap_servers) as cluster:
        lease = Lease(cluster, GROUP, "s")
        lease.open((TOPIC,), "earliest")
        lease.acquire(1, count, 1000)
        words = tuple(
            Disposition(TOPIC, 0, at, at, Verdict.REJECT, f"{at:05}" + "x" * 2000)
            for at in range(1, count)
        )
        lease.stage(1, (Disposition(TOPIC, 0, 0, 0, Verdict.RELEASE), *words))
        lease.commit(1)
    answer = look(wire, request(GROUP, cursor()))
    assert {len(reason) for reason in answer.reasons} == {1000}
    assert 900 < len(only(answer).runs) < 1100, "a MiB is full of so many"


def test_what_is_named_often_is_told_once(member: Member, wire: Any) -> None:
    member.hold(10)
    often = (TopicCursor(TOPIC),) * 4_000
    answer = look(wire, request(GROUP, *often, cursor(5), states=(ACQUIRED,) * 4_000))
    assert [(one.topic, one.partition) for one in answer.partitions] == [(TOPIC, 0), (TOPIC, 1)]
    assert [(run.first, run.last) for run in answer.partitions[0].runs] == [(0, 9)]


# ---- errors


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        (request(""), 24, "The group id is empty."),
        (request("nobody"), 69, "Group nobody not found."),
        (request(GROUP, runs_max=-1), 42, "runs_max begins at 0, states are 0 to 4"),
        (request(GROUP, states=(1, 5)), 42, "runs_max begins at 0, states are 0 to 4"),
    ],
)
def test_requests_that_are_refused(
    member: Member, wire: Any, body: bytes, code: int, told: str
) -> None:
    member.hold(1)
    answer = look(wire, body)
    assert (answer.error_code, answer.error_message) == (code, told)
    assert (answer.holders, answer.partitions) == ((), ())


def test_a_group_of_consumers_is_no_share_group(broker: headrace.Broker, wire: Any) -> None:
    with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
        admin.create_topic(TOPIC, 1)
        admin.alter_consumer_group_offsets("billing", {(TOPIC, 0): 0}).check()
    answer = look(wire, request("billing"))
    assert (answer.error_code, answer.error_message) == (
        69,
        "Group billing is not a share group.",
    )


def test_partitions_that_are_not_there(member: Member, wire: Any) -> None:
    member.wire.create("other", num_partitions=1)
    asked = (
        cursor(topic="nosuch"),
        cursor(partition=9),
        cursor(partition=-1),
        cursor(topic="other"),
    )
    answer = look(wire, request(GROUP, *asked, cursor(topic="other"), TopicCursor("absent")))
    assert answer.error_code == 0
    assert [(one.topic, one.partition, one.error_code, one.start) for one in answer.partitions] == [
        ("nosuch", 0, 3, -1), (TOPIC, 9, 3, -1), (TOPIC, -1, 3, -1), ("other", 0, 0, -1),
        ("absent", 0, 3, -1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "1 bytes wanted"),
        (request()[:-1], "1 bytes wanted"),
        (b"\x00" + request()[2:], "null where a string must stand"),
        (b"\x02g" + b"\xff\xff\xff\xff\x0f", "an array of"),
        (b"\x02g" + b"\x02\x02t\x09", "an array of 8"),
    ],
)
def test_a_malformed_request_ends_its_connection(
    wire: Any, caplog: pytest.LogCaptureFixture, body: bytes, reason: str
) -> None:
    wire.send_frame(struct.pack(">hhih", KEY, 0, 1, -1) + b"\0" + body)
    assert wire.closed()
    (told,) = [record.getMessage() for record in caplog.records]
    assert "DescribeShareRecords version 0" in told
    assert reason in told


def test_nothing_is_told_that_the_journal_may_not_have(
    member: Member, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def faulty(self: Shares, group: str, *_: Any) -> Refused:
        return Refused(Why.COORDINATOR_GONE, f"{group}: the disk is full")

    member.hold(3)
    monkeypatch.setattr(Shares, "durable_of", faulty)
    answer = look(wire, request())
    assert (answer.error_code, answer.error_message) == (15, "g: the disk is full")
    assert answer.partitions == ()


def test_runs_take_the_bytes_that_they_are_counted_as() -> None:
    out = Writer()
    Run(1, 2, 3, 4).write(out)
    assert len(out.data) == Run.BYTES
