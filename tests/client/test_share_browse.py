"""Browsing from Python: walks along real queues, also while records, topics and states go."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from tests.client.damaged_batch import produce_damaged

import headrace
from headrace import RecordState
from headrace.client import share_browse
from headrace.client.connection import Cluster
from headrace.client.fetch import fetch
from headrace.client.leases import Lease
from headrace.client.share_browse import Walk, browse_share_group, browse_share_group_runs
from headrace.client.share_groups import alter_share_group_offsets
from headrace.client.topics import create_topic, delete_records, delete_topic
from headrace.wire.leases import Disposition, Verdict
from headrace.wire.primitives import Reader, Writer
from headrace.wire.share_records import (
    KEY,
    DescribeShareRecordsRequest,
    DescribeShareRecordsResponse,
    Partition,
    Run,
)

RECORD_MS = 1_700_000_000_000
COUNT = 30
Step = Callable[[Verdict, int, int], Disposition]


def produce(cluster: Cluster, topic: str, count: int, **other: Any) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(count):
        producer.produce(
            topic, b"%d" % number, b"key", partition=0, timestamp=RECORD_MS + number, **other
        )
    assert producer.flush(10) == 0


@pytest.fixture
def real() -> Iterator[Cluster]:
    """A broker with 30 records in `t`, of which group "g" begins at 0."""
    with headrace.Broker() as broker, Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "t", 2, configs={"retention.ms": "-1"})
        produce(cluster, "t", COUNT, headers={"trace": b"7"})
        alter_share_group_offsets(cluster, "g", {("t", 0): 0, ("t", 1): 0}).check()
        yield cluster


@pytest.fixture
def settled(real: Cluster) -> Cluster:
    """0 and 1 are with a lease, 2 to 4 rejected, 5 to 9 released, 10 to 19 accepted."""
    lease = Lease(real, "g", "nightly")
    lease.open(("t",), "earliest")
    lease.acquire(1, 20, 1000)
    lease.stage(
        1,
        (
            Disposition("t", 0, 0, 1, Verdict.RELEASE),
            Disposition("t", 0, 2, 4, Verdict.REJECT, "no such order"),
            Disposition("t", 0, 5, 9, Verdict.RELEASE),
        ),
    )
    lease.commit(1)
    held = lease.acquire(2, 4, 1000)  # as many of each partition
    assert [(one.first, one.last) for one in held] == [(0, 1)]
    return real


def states(rows: Any) -> list[tuple[int, str, int]]:
    return [(row.offset, row.state, row.delivery_count) for row in rows]


def test_every_record_comes_with_its_state(settled: Cluster) -> None:
    rows = list(browse_share_group("g").over(settled))
    assert states(rows) == [
        *[(offset, "Acquired", 2) for offset in (0, 1)],
        *[(offset, "Archived", 1) for offset in (2, 3, 4)],
        *[(offset, "Available", 1) for offset in range(5, 10)],
        *[(offset, "Acknowledged", 1) for offset in range(10, 20)],
        *[(offset, "Waiting", 0) for offset in range(20, COUNT)],
    ]
    first, third, last = rows[0], rows[2], rows[-1]
    assert (first.topic, first.partition, first.timestamp) == ("t", 0, RECORD_MS)
    assert (first.key, first.value, first.headers) == (b"key", b"0", (("trace", b"7"),))
    assert first.holder is not None
    assert first.holder.session == "nightly"
    assert first.lock_left_ms is not None
    assert 0 < first.lock_left_ms <= 30_000
    assert first.acquired_at is not None
    assert first.lock_until is not None
    assert 0 <= first.lock_until - first.lock_left_ms - first.acquired_at < 30_000
    assert third.holder is not None
    assert third.holder.session == "nightly", "who had it last"
    assert (third.reason, third.acquired_at, third.lock_left_ms) == ("no such order", None, None)
    assert (last.value, last.lock_until, last.reason) == (b"29", None, None)


def test_runs_read_no_record(settled: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(share_browse, "fetch")
    runs = list(browse_share_group_runs("g").over(settled))
    assert [(run.first, run.last, run.records, run.state) for run in runs] == [
        (0, 1, 2, RecordState.ACQUIRED),
        (2, 4, 3, RecordState.ARCHIVED),
        (5, 9, 5, RecordState.AVAILABLE),
        (10, 19, 10, RecordState.ACKNOWLEDGED),
        (20, 29, 10, RecordState.WAITING),
    ]


@pytest.mark.parametrize(
    ("wanted", "from_offset", "offsets"),
    [
        ([RecordState.WAITING], 0, range(20, 30)),
        ([RecordState.WAITING, RecordState.ARCHIVED], 4, [4, *range(20, 30)]),
        ([RecordState.ACKNOWLEDGED], 15, range(15, 20)),
        ([RecordState.ARCHIVING], 0, []),
        (["Acquired"], 1, [1]),
        (None, 25, range(25, 30)),
        (None, 30, []),
        (None, 99, []),
    ],
)
def test_what_is_asked_for(
    settled: Cluster, wanted: Any, from_offset: int, offsets: list[int]
) -> None:
    asked = {"states": wanted, "from_offset": from_offset}
    records = browse_share_group("g", **asked).over(settled)
    assert [record.offset for record in records] == [*offsets]
    runs = browse_share_group_runs("g", **asked).over(settled)
    assert [offset for run in runs for offset in range(run.first, run.last + 1)] == [*offsets]


def test_topics_and_groups_are_told_apart(settled: Cluster) -> None:
    create_topic(settled, "u", 1)
    produce(settled, "u", 3)
    Lease(settled, "g", "of u").open(("u",), "earliest")
    alter_share_group_offsets(settled, "other", {("t", 0): 28}).check()
    cases: tuple[tuple[Any, dict[str, int]], ...] = (
        (None, {"t": 30, "u": 3}),
        (["u"], {"u": 3}),
        ([("t", 0)], {"t": 30}),
        ([("t", 1)], {}),
        (["u", ("t", 0), "u"], {"t": 30, "u": 3}),
    )
    for topics, expected in cases:
        counted: dict[str, int] = {}
        for row in browse_share_group("g", topics=topics).over(settled):
            counted[row.topic] = counted.get(row.topic, 0) + 1
        assert counted == expected, topics
    assert states(browse_share_group("other").over(settled)) == [
        (28, "Waiting", 0), (29, "Waiting", 0)
    ]  # fmt: skip


def test_both_faces_walk(settled: Cluster) -> None:
    async def main() -> None:
        async with headrace.Admin(settled.bootstrap_servers) as admin:
            found = [row async for row in admin.browse_share_group("g", topics=["t"])]
            assert states(found) == states(browse_share_group("g").over(settled))
            runs = [run async for run in admin.browse_share_group_runs("g", from_offset=21)]
            assert [(run.first, run.last) for run in runs] == [(21, 29)]
            described = await admin.describe_share_partitions("g", ["t"])
            one = described["t", 0]
            assert one is not None
            assert (one.start, one.end, one.log_start, one.high_watermark) == (0, 20, 0, 30)
            assert {state.value: count for state, count in one.records.items()} == {
                "Available": 5, "Acquired": 2, "Acknowledged": 10, "Archiving": 0, "Archived": 3,
                "Waiting": 10,
            }  # fmt: skip

    asyncio.run(main())
    with headrace.SyncAdmin(settled.bootstrap_servers) as admin:
        assert sum(1 for _ in admin.browse_share_group("g")) == COUNT
        assert len(list(admin.browse_share_group_runs("g"))) == 5
        create_topic(settled, "unread", 1)
        assert admin.describe_share_partitions("g", ["unread"]) == {("unread", 0): None}
    for face in (headrace.SyncAdmin, headrace.Admin):
        shown = [*inspect.signature(face.browse_share_group).parameters]
        assert shown == ["self", "group", "topics", "states", "from_offset"]


def test_a_walk_ends_where_the_log_ended_at_first(settled: Cluster) -> None:
    walk = browse_share_group("g")
    rows = walk.over(settled)
    next(rows)
    produce(settled, "t", 5)
    Lease(settled, "g", "late").open(("t",), "earliest")
    assert [row.offset for row in rows] == list(range(1, COUNT))


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a few runs and of one batch."""
    monkeypatch.setattr(share_browse, "_RUNS_MAX", 2)
    monkeypatch.setattr(share_browse, "_RUNS_READ_MAX", 2)
    monkeypatch.setattr(share_browse, "_BYTES_MAX", 1)


def in_batches(cluster: Cluster, count: int) -> None:
    """A topic "b" with a batch for each record, of which "g" begins at 0."""
    create_topic(cluster, "b", 1)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(count):
        producer.produce("b", b"%d" % number)
        assert producer.flush(10) == 0
    Lease(cluster, "g", "of b").open(("b",), "earliest")


@pytest.mark.usefixtures("small_steps")
def test_small_steps_come_to_the_same(settled: Cluster) -> None:
    in_batches(settled, 7)
    assert len(list(browse_share_group("g").over(settled))) == COUNT + 7
    assert len(list(browse_share_group_runs("g").over(settled))) == 6


@pytest.mark.usefixtures("small_steps")
def test_records_that_are_removed_meanwhile_are_no_error(real: Cluster) -> None:
    in_batches(real, 10)
    rows = browse_share_group("g", topics=["b"]).over(real)
    assert next(rows).offset == 0
    found = delete_records(real, {("b", 0): 6})
    assert found == {("b", 0): 6}
    assert [row.offset for row in rows] == [6, 7, 8, 9]


@pytest.mark.usefixtures("small_steps")
def test_removal_between_a_look_and_its_fetch(
    real: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_batches(real, 10)

    def late(cluster: Cluster, *place: Any, **other: Any) -> Any:
        monkeypatch.setattr(share_browse, "fetch", fetch)
        delete_records(cluster, {("b", 0): 6})
        return fetch(cluster, *place, **other)

    monkeypatch.setattr(share_browse, "fetch", late)
    rows = browse_share_group("g", topics=["b"]).over(real)
    assert [row.offset for row in rows] == [6, 7, 8, 9]


@pytest.mark.usefixtures("small_steps")
def test_a_topic_that_is_deleted_meanwhile_ends(real: Cluster) -> None:
    in_batches(real, 10)
    rows = browse_share_group("g").over(real)
    assert next(rows).topic == "b"
    delete_topic(real, "b")
    assert {row.topic for row in rows} == {"t"}


def test_a_step_that_failed_is_taken_again(
    settled: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise headrace.Unreachable("no answer")

    walk = browse_share_group("g")
    with monkeypatch.context() as patch:
        patch.setattr(share_browse, "fetch", broken)
        with pytest.raises(headrace.Unreachable):
            walk.step(settled)
    assert len(list(walk.over(settled))) == COUNT


@pytest.mark.parametrize("rows_max", [1_000, 2])
def test_a_batch_that_nobody_can_decode_hides_nothing(
    real: Cluster, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    monkeypatch.setattr(share_browse, "_DAMAGED_MAX", rows_max)
    produce_damaged(real, "t", 5)
    produce(real, "t", 2)
    rows = list(browse_share_group("g", topics=["t"], from_offset=COUNT - 1).over(real))
    assert [row.offset for row in rows] == list(range(COUNT - 1, COUNT + 7))
    assert [row.damage is not None for row in rows] == [False, *[True] * 5, False, False]
    unread = rows[1]
    assert (unread.state, unread.key, unread.value, unread.timestamp) == ("Waiting", *[None] * 3)


def test_what_makes_no_sense_is_told_at_once(real: Cluster) -> None:
    nonsense: Any = ["Gone"]
    letters: Any = "Acquired"
    with headrace.SyncAdmin(real.bootstrap_servers) as admin:
        with pytest.raises(ValueError, match="offsets begin at 0"):
            admin.browse_share_group("g", from_offset=-1)
        with pytest.raises(ValueError, match="'Gone' is not a valid RecordState"):
            admin.browse_share_group("g", states=nonsense)
        with pytest.raises(TypeError, match="states is one name, 'Acquired'"):
            admin.browse_share_group("g", states=letters)
        with pytest.raises(TypeError, match="topics is one name, 't'"):
            next(admin.browse_share_group("g", topics="t"))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: browse_share_group("nobody"), "Group nobody not found"),
        (lambda: browse_share_group("g", topics=["nosuch"]), "nosuch-0: UNKNOWN_TOPIC"),
        (lambda: browse_share_group_runs("g", topics=[("t", 7)]), "t-7: UNKNOWN_TOPIC"),
    ],
)
def test_what_is_not_there(real: Cluster, make: Callable[[], Walk[Any]], told: str) -> None:
    with pytest.raises(headrace.BrokerError, match=told):
        make().step(real)


def test_another_broker_cannot_be_browsed(script: Any) -> None:
    with (
        headrace.SyncAdmin(script.address) as admin,
        pytest.raises(headrace.Unsupported, match=r"lacks DescribeShareRecords.*browsing needs"),
    ):
        next(admin.browse_share_group("g"))


@pytest.fixture
def compacted(script: Any) -> Any:
    """A broker with records at 0, 1, 5 and 6 of a log that ends at 10; 0 to 7 are available."""
    for base, values in ((0, (b"a", b"b")), (5, (b"c", b"d"))):
        script.log_end = base
        script.append(*values)
    script.log_end = 10

    def describe(source: Reader) -> bytes:
        asked = DescribeShareRecordsRequest.read(source)
        first = 0 if asked.topics is None else (asked.topics[0].partitions or ())[0].offset
        runs = (Run(first, 7, 0, 1),) if first < 8 and asked.runs_max else ()
        counts = (8, 0, 0, 0, 0)
        one = Partition("t", 0, 0, None, 0, 8, 0, 10, counts, max(first, 8), runs)
        out = Writer()
        DescribeShareRecordsResponse(0, None, (), (), (one,)).write(out)
        return bytes(out.data)

    script.answers[KEY] = describe
    return script


@pytest.mark.usefixtures("small_steps")
def test_offsets_without_a_record_are_passed_over(compacted: Any, cluster: Cluster) -> None:
    rows = list(browse_share_group("g").over(cluster))
    assert states(rows) == [(offset, "Available", 1) for offset in (0, 1, 5, 6)]
    assert compacted.asked.count(1) == 3, "nothing is behind 6, which the third fetch tells"
    runs = list(browse_share_group_runs("g").over(cluster))
    assert [(run.first, run.last) for run in runs] == [(0, 7), (8, 9)]
