"""What the sink does decides what is staged: nothing more, nothing less, and nothing hangs."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from headrace.spark import (
    Counts,
    IncomingRecord,
    Reject,
    Release,
    acknowledge,
    each_record,
    isolate,
    progress,
)
from headrace.spark.dispositions import SetAside, coalesced
from headrace.spark.queue.handle import Handle
from headrace.wire.leases import Disposition, Verdict

pytestmark = pytest.mark.spark
Staged = list[tuple[str, int, int, tuple[Disposition, ...]]]


def judged(
    offset: int, disposition: str, reason: str | None = None, delay_ms: int | None = None
) -> SetAside:
    return SetAside("t", 0, offset, "s/1/7", disposition, reason, delay_ms)


def test_neighbours_with_one_verdict_and_reason_are_one_disposition() -> None:
    rows = [judged(offset, "reject", "bad") for offset in (3, 1, 2, 2, 7)]
    rows += [judged(4, "reject", "worse"), judged(5, "release"), judged(7, "release")]
    assert coalesced(rows) == [
        Disposition("t", 0, 1, 3, Verdict.REJECT, "bad"),
        Disposition("t", 0, 4, 4, Verdict.REJECT, "worse"),
        Disposition("t", 0, 5, 5, Verdict.RELEASE, None),
        Disposition("t", 0, 7, 7, Verdict.REJECT, "bad"),
    ]


def test_the_longest_delay_of_a_released_record_counts() -> None:
    rows = [judged(1, "release", None, 5_000), judged(1, "release", None, 60_000)]
    rows += [judged(2, "release", None, 60_000), judged(3, "release"), judged(4, "reject", "no", 7)]
    assert coalesced(rows) == [
        Disposition("t", 0, 1, 2, Verdict.RELEASE, None, 60_000),
        Disposition("t", 0, 3, 3, Verdict.RELEASE, None),
        Disposition("t", 0, 4, 4, Verdict.REJECT, "no"),
    ]
    with pytest.raises(ValueError, match="delay_ms -1 of t-0 offset 5 is negative"):
        coalesced([judged(5, "release", None, -1)])


def test_a_disposition_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="disposition 'drop' of t-0 offset 1 is not 'accept'"):
        coalesced([judged(1, "drop")])


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Staged:
    """What would be staged, without a broker."""
    found: Staged = []

    class Recorder:
        def __init__(self, cluster: object, group: str, session: str, epoch: int) -> None:
            self.session, self.epoch = session, epoch

        def stage(self, seq: int, dispositions: tuple[Disposition, ...], part: str) -> None:
            assert part == ""
            found.append((self.session, self.epoch, seq, dispositions))

    monkeypatch.setattr("headrace.spark.queue.handle.Lease", Recorder)
    return found


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """A hundred records in four tasks; every tenth is rejected, offsets 55 and 56 are released."""
    return spark.range(0, 100, 1, 4).selectExpr(
        "id * 2 as doubled",
        "'t' as topic",
        "0 as partition",
        "id as offset",
        "1 as delivery_count",
        "'s/1/7' as lease",
        "case when id % 10 = 0 then 'reject' when id in (55, 56) then 'release' end as disposition",
        "case when id % 10 = 0 then 'tenth' end as reason",
    )


WANTED = (
    *(Disposition("t", 0, at, at, Verdict.REJECT, "tenth") for at in range(0, 60, 10)),
    Disposition("t", 0, 55, 56, Verdict.RELEASE, None),
    *(Disposition("t", 0, at, at, Verdict.REJECT, "tenth") for at in range(60, 100, 10)),
)


def look_then_write(rows: DataFrame) -> None:
    if not rows.isEmpty():
        assert len(rows.head(3)) == 3
        rows.write.format("noop").mode("overwrite").save()


def nothing(rows: DataFrame) -> None:
    assert rows.columns == ["doubled"]


def exhaust(rows: Iterator[Row]) -> None:
    assert all(row.doubled % 2 == 0 for row in rows)


SINKS: list[Callable[[DataFrame], object]] = [
    lambda rows: rows.collect(),
    lambda rows: rows.count(),
    lambda rows: rows.orderBy("doubled").write.format("noop").mode("overwrite").save(),
    lambda rows: rows.repartition(2).cache().count(),
    lambda rows: rows.foreachPartition(exhaust),
    lambda rows: rows.limit(1).collect(),
    lambda rows: rows.isEmpty(),
    lambda rows: next(iter(rows.toLocalIterator())),
    look_then_write,
    nothing,
]


@pytest.mark.parametrize(
    ("number", "persist"),
    [(number, False) for number in range(len(SINKS))] + [(0, True), (4, True), (9, True)],
)
def test_whatever_the_sink_does_all_verdicts_are_staged(
    rows: DataFrame, staged: Staged, number: int, persist: bool
) -> None:
    sink = acknowledge(
        lambda good, _: SINKS[number](good),
        bootstrap_servers="127.0.0.1:1",
        group="g",
        persist=persist,
    )
    sink(rows, 0)
    assert [(session, epoch, seq) for session, epoch, seq, _ in staged] == [("s", 1, 7)]
    assert sorted(staged[0][3], key=lambda one: one.first) == sorted(
        WANTED, key=lambda one: one.first
    )


def test_no_listener_stays_behind(rows: DataFrame, staged: Staged) -> None:
    sink = acknowledge(lambda good, _: good.count(), bootstrap_servers="127.0.0.1:1", group="g")
    sink(rows, 0)
    assert staged
    assert len(rows.sparkSession._jsparkSession.listenerManager().listListeners()) == 0


def test_a_sink_that_raises_stages_nothing(rows: DataFrame, staged: Staged) -> None:
    def full(good: DataFrame, batch_id: int) -> None:
        good.count()
        raise OSError("disk full")

    for persist in (False, True):
        sink = acknowledge(full, bootstrap_servers="127.0.0.1:1", group="g", persist=persist)
        with pytest.raises(OSError, match="disk full"):
            sink(rows, 0)
    assert staged == []


def test_a_batch_without_faults_replaces_what_an_earlier_attempt_staged(
    rows: DataFrame, staged: Staged
) -> None:
    sink = acknowledge(lambda good, _: good.count(), bootstrap_servers="127.0.0.1:1", group="g")
    sink(rows.filter("disposition is null"), 0)
    assert staged == [("s", 1, 7, ())]


def test_rows_without_bookkeeping_are_refused(rows: DataFrame) -> None:
    sink = acknowledge(lambda good, _: None, bootstrap_servers="127.0.0.1:1", group="g")
    with pytest.raises(ValueError, match="needs the columns lease: set option includeDelivery"):
        sink(rows.drop("lease"), 0)


@pytest.mark.parametrize("persist", [False, True])
def test_rows_that_lost_their_lease_fail_the_batch(
    rows: DataFrame, staged: Staged, persist: bool
) -> None:
    broken = rows.withColumn("lease", f.when(f.col("offset") < 50, f.col("lease")))
    sink = acknowledge(
        lambda good, _: good.count(),
        bootstrap_servers="127.0.0.1:1",
        group="g",
        persist=persist,
    )
    with pytest.raises(ValueError, match="rows set aside have no lease"):
        sink(broken, 0)
    assert staged == []


def test_verdicts_for_another_group_than_that_of_the_rows_are_refused(rows: DataFrame) -> None:
    lease = Handle("s", 1, 1, group="orders/billing", brokers="127.0.0.1:1").text
    sink = acknowledge(lambda good, _: good.count(), bootstrap_servers="127.0.0.1:1", group="typo")
    with pytest.raises(ValueError, match=r"of share group 'orders/billing'.* to 'typo': give"):
        sink(rows.withColumn("lease", f.lit(lease)), 0)


def test_an_address_that_is_none_is_told_at_once() -> None:
    with pytest.raises(ValueError, match="'localhost' is not host:port"):
        acknowledge(lambda good, _: None, bootstrap_servers="localhost", group="g")


def judge(record: IncomingRecord) -> dict[str, Any]:
    return _judged(record.value, record.delivery_count)


def _judged(value: bytes | None, deliveries: int) -> dict[str, Any]:
    number = json.loads(value or b"")
    if number % 10 == 1 and deliveries == 1:
        raise Release("not yet")
    if number % 10 == 2:
        raise Reject("never")
    return {"number": number, "deliveries": deliveries}


def test_through_a_query_each_record_ends_as_judged(flow: Any) -> None:
    flow.set_group(errors_deadletterqueue_topic_name="dlq.t")
    flow.produce(200, value="{}")
    flow.produce(4, value="{{{}")
    found: list[Row] = []
    failures = iter([True])

    def write(rows: DataFrame, batch_id: int) -> None:
        batch = rows.collect()
        if next(failures, False):
            raise RuntimeError("the first attempt fails")
        found.extend(batch)

    rows = each_record(flow.rows(includeDelivery="true"), judge, "number int, deliveries int")
    sink = acknowledge(write, bootstrap_servers=flow.servers, group="g")
    with pytest.raises(StreamingQueryException, match="the first attempt fails"):
        flow.run(rows, sink)
    flow.run(rows, sink)
    numbers = Counter(row.number for row in found)
    assert numbers == Counter(number for number in range(200) if number % 10 != 2)
    assert {row.deliveries for row in found if row.number % 10 == 1} == {2}
    assert {row.deliveries for row in found if row.number % 10 != 1} == {1}
    assert flow.finished()
    flow.until(lambda: len(flow.dead_letters()) == 24)
    reasons = Counter(dict(one.headers)["__dlq.errors.message"] for one in flow.dead_letters())
    assert reasons[b"never"] == 20
    assert sum(reasons.values()) == 24


def by_record(rows: DataFrame) -> DataFrame:
    return each_record(rows, judge, "number int, deliveries int")


def by_batch(rows: DataFrame) -> DataFrame:
    def judged(batch: pa.RecordBatch) -> pa.RecordBatch:
        counts = batch.column("delivery_count").to_pylist()
        values = batch.column("value").to_pylist()
        made = [_judged(*one) for one in zip(values, counts, strict=True)]
        return pa.RecordBatch.from_pylist(made)

    return isolate(rows, judged, "number int, deliveries int")


@pytest.mark.parametrize("way", [by_record, by_batch])
def test_what_a_join_or_a_filter_drops_is_not_accepted_when_it_was_set_aside(
    flow: Any, way: Callable[[DataFrame], DataFrame]
) -> None:
    flow.set_group(errors_deadletterqueue_topic_name="dlq.t")
    flow.produce(200, value="{}")
    found: list[Row] = []
    evens = flow.spark.range(0, 200, 2).selectExpr("cast(id as int) as number")
    rows = way(flow.rows(includeDelivery="true")).join(evens, "number").where("number >= 100")
    sink = acknowledge(
        lambda good, _: found.extend(good.collect()), bootstrap_servers=flow.servers, group="g"
    )
    flow.run(rows, sink)
    assert sorted(row.number for row in found) == [
        one for one in range(100, 200, 2) if one % 10 != 2
    ]
    flow.until(lambda: len(flow.dead_letters()) == 20 and flow.finished())
    reasons = {dict(one.headers)["__dlq.errors.message"] for one in flow.dead_letters()}
    assert reasons == {b"never"}


def test_a_batch_that_runs_again_forgets_what_its_first_run_set_aside(
    flow: Any, tmp_path: Path
) -> None:
    """Also where the second run sets nothing aside, and a filter leaves no row to tell of it."""
    flow.produce(20, value="{}")

    def bad_once(record: IncomingRecord) -> dict[str, Any]:
        if not (tmp_path / "mended").exists():
            raise Reject("a bug")
        return {"number": 1}

    def write(rows: DataFrame, batch_id: int) -> None:
        rows.collect()
        if not (tmp_path / "mended").exists():
            (tmp_path / "mended").touch()
            raise RuntimeError("the first attempt fails")

    judged = each_record(flow.rows(includeDelivery="true"), bad_once, "number int")
    sink = acknowledge(write, bootstrap_servers=flow.servers, group="g")
    with pytest.raises(StreamingQueryException, match="the first attempt fails"):
        flow.run(judged.where("number > 1"), sink)
    query = flow.start(judged.where("number > 1"), sink)

    def settled() -> Counts:
        found = progress(query)
        return Counts() if found is None else found.counts

    flow.until(lambda: settled().accepted + settled().rejected == 20, 60)
    assert settled().accepted == 20
