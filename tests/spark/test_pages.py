"""The programs of docs/spark.md and the one of README.md run as they stand there."""

import contextlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from headrace.client.admin import create_topic, set_group_configs
from headrace.client.errors import BrokerError
from headrace.client.group_offsets import alter_group_offsets, list_group_offsets
from headrace.client.leases import Lease, describe
from headrace.client.records import read_records
from headrace.spark import Redriven
from headrace.wire.batches import Record
from headrace.wire.leases import Disposition, Verdict

from .conftest import Flow

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GROUP, DLQ = "billing", "dlq.orders"


def programs(page: str) -> dict[str, str]:
    """The programs of a page by the heading they stand under."""
    sections = re.split(r"^##+ (.*)\n", page, flags=re.MULTILINE)
    found = zip(sections[1::2], map(PROGRAM.findall, sections[2::2]), strict=True)
    return {heading: "\n".join(texts) for heading, texts in found if texts}


PROGRAMS = programs(PAGE)
A_STREAM = programs(README)["A stream"]


class Scene:
    """A broker with the topic `orders`, which the group `billing` reads from its start."""

    def __init__(self, flow: Flow, folder: Path) -> None:
        self.flow, self.folder = flow, folder
        create_topic(flow.cluster, "orders", 2)
        set_group_configs(flow.cluster, GROUP, {"errors.deadletterqueue.topic.name": DLQ})
        self.lease = Lease(flow.cluster, GROUP, "a checkpoint of its own")
        self.lease.open(("orders",), "earliest")

    def names(self, program: str) -> dict[str, Any]:
        """What a program makes, given `spark`, this broker and this folder."""
        program = program.replace("127.0.0.1:9092", self.flow.servers)
        for name in ("checkpoints/", 'checkpoint"', "tables/", "orders/"):
            program = program.replace(f'"{name}', f'"{self.folder}/{name}')
        made: dict[str, Any] = {"__name__": "example", "spark": self.flow.spark}
        exec(compile(program, "a page", "exec"), made)
        return made

    def produce(self, *values: object, topic: str = "orders", **more: Any) -> None:
        """Values as they are, or as JSON."""
        producer = Producer({"bootstrap.servers": self.flow.servers})
        for value in values:
            producer.produce(
                topic, value if isinstance(value, bytes) else json.dumps(value), **more
            )
        assert producer.flush(30) == 0

    def taken(self, rows: DataFrame) -> list[Any]:
        """All rows of a stream, read until nothing is left."""
        found: list[Any] = []
        self.flow.run(rows, lambda batch, _: found.extend(batch.collect()))
        return found

    def records(self, topic: str) -> list[Record]:
        cluster = self.flow.cluster
        found = (read_records(cluster, topic, one) for one in cluster.partitions(topic))
        return [record for records in found for record in records]

    def finish(self, query: StreamingQuery) -> None:
        """Let a query go on until its group is done with all records, and stop it."""
        self.flow.until(lambda: self.done() or query.exception(), 120)
        query.stop()
        assert query.exception() is None

    def done(self) -> bool:
        state = describe(self.flow.cluster, GROUP)
        return all(one.start == one.log_end and not one.in_flight for one in state)

    def reasons(self) -> set[str]:
        """Why the group set records aside, as its dead letters tell; none before the first."""
        try:
            headers = [dict(letter.headers) for letter in self.records(DLQ)]
        except BrokerError:
            return set()  # the topic comes with its first record
        return {(one["__dlq.errors.message"] or b"").decode() for one in headers}

    def written(self, folder: str) -> DataFrame:
        """Return the rows of a folder that has one for each checkpoint and batch."""
        found = self.flow.spark.read.parquet(str(self.folder / folder))
        assert {"session", "batch"} <= set(found.columns)
        return found


@pytest.fixture
def scene(flow: Flow, tmp_path: Path) -> Scene:
    return Scene(flow, tmp_path)


def a_query(scene: Scene) -> None:
    scene.produce(b"one", b"two")
    scene.finish(scene.names(PROGRAMS["A query"])["query"])
    assert {row.text for row in scene.written("tables/orders").collect()} == {"one", "two"}


def as_a_log(scene: Scene) -> None:
    made, cluster = scene.names(PROGRAMS["As a log"]), scene.flow.cluster
    scene.produce(b"0", b"1", b"2", partition=1)
    alter_group_offsets(cluster, "reports", {("orders", 1): 1}).check()
    rows = scene.taken(made["orders"](scene.flow.spark))
    assert [row.value for row in rows] == [b"1", b"2"]
    committed = list_group_offsets(cluster, "reports")
    assert committed["orders", 1].offset == 3
    create_topic(cluster, "orders-old", 1, configs={"retention.ms": "-1"})
    first, end = 1790000000000, 1790086400000
    for at in (first - 1, first, end - 1, end):
        scene.produce(b"%d" % at, topic="orders-old", timestamp=at)
    found = made["yesterday"](scene.flow.spark).collect()
    assert [int(row.value) for row in found] == [first, end - 1]


def typed_values(scene: Scene) -> None:
    scene.produce({"id": 7, "customer": "c", "total": 1.5, "tags": ["new"]}, {"id": "x"})
    rows = scene.names(PROGRAMS["Typed values"])["orders"]
    told = re.findall(r"^\)  # (.*)$", PROGRAMS["Typed values"], re.MULTILINE)
    assert [", ".join(rows.columns)] == told
    good, bad = sorted(scene.taken(rows), key=lambda row: row.value_error is not None)
    assert (good.id, good.customer, float(good.total), good.tags) == (7, "c", 1.5, ["new"])
    assert (bad.id, bad.value_error) == (None, 'id: "x" is no bigint')


def record_by_record(scene: Scene) -> None:
    scene.produce({"id": 1, "customer": "c", "total": 2}, {"total": -1}, b"no JSON")
    scene.produce({"id": 2, "customer": None, "total": 2})
    scene.finish(scene.names(PROGRAMS["Record by record"])["start"](scene.flow.spark))
    written = scene.written("tables/orders").collect()
    assert [(row.id, row.total) for row in written] == [(1, 2.0)]
    reasons = scene.reasons()
    assert len(reasons) == 3  # that of the released record, in the end, is the delivery limit
    assert "negative total" in reasons
    assert any(one.startswith("JSONDecodeError: Expecting value") for one in reasons)


def functions_of_batches(scene: Scene) -> None:
    made = scene.names(PROGRAMS["Functions of batches, and of columns"])
    scene.produce(b"12", b"x" * 1024)
    rows = scene.flow.rows(
        **{"subscribe": "orders", "share.group.id": GROUP, "includeDelivery": "true"}
    )
    found: list[Any] = []

    def both(batch: DataFrame, _number: int) -> None:
        sizes, numbers = made["by_batch"](batch), made["by_column"](batch)
        found.extend([*sizes.collect(), *numbers.collect()])

    scene.flow.run(rows, both)
    sizes = [row.kilobytes for row in found if "kilobytes" in row]
    assert sorted(sizes) == [2 / 1024, 1]
    numbers = [(row.value, row.disposition) for row in found if "value" in row]
    assert sorted(numbers, key=str) == [(12, None), (None, "reject")]


def any_sink(scene: Scene) -> None:
    create_topic(scene.flow.cluster, "totals", 1)
    scene.produce({"id": 1, "total": 2}, {"id": 3}, b"no JSON")
    query = scene.names(PROGRAMS["Any sink"])["totals"](scene.flow.spark)
    scene.flow.until(lambda: scene.reasons() or query.exception(), 120)
    query.stop()
    assert query.exception() is None
    assert [json.loads(one.value or b"") for one in scene.records("totals")] == [
        {"id": 1, "total": 2.0}
    ]
    assert scene.reasons() == {"no order"}


def writing(scene: Scene) -> None:
    made, flow = scene.names(PROGRAMS["Writing"]), scene.flow
    made["write"](flow.spark)
    first = scene.records("orders")
    assert {one.value for one in first} == {b'{"id":%d}' % number for number in range(1000)}
    flow.produce(10)
    reader = flow.spark.readStream.format("headrace").option("subscribe", "t")
    reader = reader.option("kafka.bootstrap.servers", flow.servers)
    query = made["start_writing"](reader.option("startingOffsets", "earliest").load())
    flow.until(lambda: len(scene.records("orders")) == 1010 or query.exception(), 120)
    query.stop()
    assert query.exception() is None
    batches = [dict(one.headers).get("batch") for one in scene.records("orders")]
    assert batches.count(None) == 1000
    (path,) = set(batches) - {None}
    assert re.fullmatch(rb"session=[-0-9a-f]{36}/batch=0", path or b"")


def dead_letters(scene: Scene) -> None:
    scene.produce(b"{'id': 1}", partition=0)
    scene.lease.acquire(1, 1, 0)
    reason = "JSONDecodeError: Expecting property name"
    scene.lease.stage(1, (Disposition("orders", 0, 0, 0, Verdict.REJECT, reason),))
    scene.lease.commit(1)
    scene.flow.until(scene.reasons)
    repair = scene.names(PROGRAMS["Dead letters"])["repair"]
    assert repair(scene.flow.spark) == Redriven({GROUP: 1}, 0)
    assert repair(scene.flow.spark) == Redriven({}, 1)
    assert [one.value for one in scene.records(f"redrive.{GROUP}")] == [b'{"id": 1}']


def tables(scene: Scene) -> None:
    scene.produce(b"0", b"1", b"2", partition=0)
    alter_group_offsets(scene.flow.cluster, "audit", {("orders", 0): 1}).check()
    alter_group_offsets(scene.flow.cluster, "late", {("orders", 0): 0}).check()
    rows = scene.names(PROGRAMS["Tables"])["overview"](scene.flow.spark).collect()
    assert [(row.group, row.state, row.lag) for row in rows] == [
        ("late", "Empty", 3),
        ("audit", "Empty", 2),
    ]
    assert all(row.expires is not None for row in rows)


def progress(scene: Scene) -> None:
    flow = scene.flow
    flow.produce(10)
    query = flow.start(flow.rows(), flow.note, availableNow=True)
    query.awaitTermination()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        scene.names(PROGRAMS["Progress"])["watch"](flow.spark, query)
    batch, counts = printed.getvalue().splitlines()
    assert batch == "0 0 0 0.0 {('t', 0): 0, ('t', 1): 0}"
    assert counts.split()[0] == "10"


def test_the_stream_of_the_readme(scene: Scene) -> None:
    scene.produce({"id": 1, "item": "lamp", "price": 2.5}, {"id": 2, "item": "desk", "price": None})
    scene.produce(b"no JSON")
    scene.finish(scene.names(A_STREAM.replace("query.awaitTermination()", ""))["query"])
    rows = scene.written("orders").select("id", "item", "price").orderBy("id").collect()
    assert rows == [(1, "lamp", 2.5), (2, "desk", None)]
    (reason,) = scene.reasons()
    assert reason.startswith("JSONDecodeError")


CHECKS: dict[str, Callable[[Scene], None]] = {
    "A query": a_query,
    "As a log": as_a_log,
    "Typed values": typed_values,
    "Record by record": record_by_record,
    "Functions of batches, and of columns": functions_of_batches,
    "Any sink": any_sink,
    "Writing": writing,
    "Dead letters": dead_letters,
    "Tables": tables,
    "Progress": progress,
}


@pytest.mark.parametrize("heading", PROGRAMS)
def test_a_program_does_what_the_page_says(heading: str, scene: Scene) -> None:
    CHECKS[heading](scene)
