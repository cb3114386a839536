"""A driver whose queries stand still at named points of a batch, so that it can be killed there.

Run as a program it starts one query for each case: from the topic and share group of the case's
name to a folder of that name. One batch of it comes to the point of the case, says so in a file and
goes no further; a case without a point goes on for ever. One driver has all cases, as what takes
time is its start. What halts is a subclass of the source's reader and a wrapped sink: the
product knows nothing of it.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

import headrace
from headrace.demo.pipeline import into_folders
from headrace.spark import (
    HeadraceDataSource,
    IncomingRecord,
    Reject,
    Release,
    acknowledge,
    each_record,
    local_session,
)
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.reader import ShareReader, Task

RECORDS_A_BATCH = 100
HALTING = "halting"
_LOOK_EVERY_S = 0.02
_TOO_SLOW = "Python worker failed to connect back"


@dataclass(frozen=True, slots=True)
class Case:
    """One query: its share group and topic are called `name`.

    `point` is where its batch number `batch` stands still, empty for nowhere; `life` names
    checkpoint and output, so that a query can be another one of the same group.
    """

    name: str
    point: str
    batch: int = 1
    life: str = "first"

    def checkpoint(self, folder: Path) -> Path:
        return folder / self.name / f"checkpoint-{self.life}"

    def output(self, folder: Path) -> Path:
        return folder / self.name / "parquet" / self.life


@dataclass(frozen=True, slots=True)
class Halt:
    """Where one query stands still, and the files that tell of it."""

    folder: str
    driver: int
    point: str
    batch: int

    def reached(self) -> Path:
        return Path(self.folder) / "reached"

    def go_on(self) -> Path:
        return Path(self.folder) / "go-on"

    def at(self, point: str, batch: int) -> None:
        """Stand still if this is the place, until told to go on or the driver is dead.

        `reached` tells which process it was, and where it had Headrace from.
        """
        if (point, batch) != (self.point, self.batch) or self.reached().exists():
            return
        written = self.reached().with_suffix(f".{os.getpid()}")
        written.write_text(f"{os.getpid()} {headrace.__file__}")
        written.replace(self.reached())
        while not self.go_on().exists() and Path(f"/proc/{self.driver}").exists():
            time.sleep(_LOOK_EVERY_S)


def up(folder: Path, driver: int) -> Path:
    """The file that tells that the Python process of a query runs."""
    return folder / f"up-{driver}"


class HaltingReader(ShareReader):
    """The reader of the product; its numbers are one ahead of Spark's batch ids."""

    def __init__(self, options: QueueOptions, schema: StructType, halt: Halt) -> None:
        super().__init__(options, schema)
        self._halt = halt

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._halt.at("logged", start["seq"] - 1)
        end = super().latestOffset(start, limit)
        self._halt.at("acquired", end["seq"] - 1)
        self._halt.at("settled", start["seq"] - 1)
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        tasks = super().partitions(start, end)
        self._halt.at("planned", end["seq"] - 1)
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        batch = int(partition.lease.rpartition("/")[2]) - 1
        for rows in super().read(partition):
            half = rows.num_rows // 2
            yield rows.slice(0, half)
            self._halt.at("task", batch)
            yield rows.slice(half)


class HaltingDataSource(HeadraceDataSource):
    """The source, with the four options of a `Halt`."""

    def __init__(self, options: dict[str, str]) -> None:
        given = {name: value for name, value in options.items() if name != HALTING}
        self._halt = Halt(*json.loads(options[HALTING])) if HALTING in options else None
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return HALTING

    def streamReader(self, schema: StructType) -> ShareReader:
        options = QueueOptions.parse(self._given)
        assert self._halt is not None
        up(Path(self._halt.folder), self._halt.driver).touch()
        return HaltingReader(options, schema, self._halt)


def judge(record: IncomingRecord) -> dict[str, Any]:
    number = json.loads(record.value or b"")["number"]
    if number % 10 == 1 and record.delivery_count == 1:
        raise Release("not yet")
    if number % 10 == 2:
        raise Reject("never")
    return {"number": number}


def halting_sink(
    halt: Halt, output: Path, judged: Callable[..., Callable[[DataFrame, int], None]]
) -> Callable[[DataFrame, int], None]:
    """A sink of one folder a batch that stands still around its write; `judged` goes around it.

    Each write that came to its end is a line in `writes`, whatever became of its batch later.
    """
    into = into_folders(output)

    def write(rows: DataFrame, batch_id: int) -> None:
        halt.at("before write", batch_id)
        into(rows, batch_id)
        with (output / "writes").open("a") as log:
            log.write(f"{batch_id}\n")
        halt.at("after write", batch_id)

    sink = judged(write)

    def on_batch(rows: DataFrame, batch_id: int) -> None:
        sink(rows, batch_id)
        halt.at("staged", batch_id)

    return on_batch


def writer(spark: SparkSession, bootstrap: str, folder: Path, case: Case) -> DataStreamWriter:
    """The query of one case, to be started."""
    home = folder / case.name
    home.mkdir(parents=True, exist_ok=True)
    halt = Halt(str(home), os.getpid(), case.point, case.batch)
    records = (
        spark.readStream.format(HALTING)
        .option(HALTING, json.dumps([halt.folder, halt.driver, halt.point, halt.batch]))
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", case.name)
        .option("share.group.id", case.name)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", RECORDS_A_BATCH)
        .option("minPartitions", 2)
        .option("includeDelivery", "true")
        .load()
    )

    def judged(write: Any) -> Callable[[DataFrame, int], None]:
        return acknowledge(
            write, bootstrap_servers=bootstrap, group=case.name, keep_bookkeeping=True
        )

    return (
        each_record(records, judge, "number int")
        .writeStream.queryName(f"{case.name} {case.life}")
        .option("checkpointLocation", str(case.checkpoint(folder)))
        .foreachBatch(halting_sink(halt, case.output(folder), judged))
    )


@dataclass(frozen=True, slots=True)
class Program:
    """What the program is given, as JSON: `cases` are the fields of each `Case`."""

    bootstrap: str
    folder: str
    cases: list[list[Any]]
    master: str
    config: dict[str, str]


def main(program: Program) -> None:
    """Start all queries, and keep them running."""
    # A busy machine lets Spark's processes wait for each other longer than it allows by default.
    patience = {"spark.python.authenticate.socketTimeout": "300s"}
    spark = local_session("to be killed", program.master, patience | program.config)
    spark.dataSource.register(HaltingDataSource)
    cases = [Case(*one) for one in program.cases]
    folder = Path(program.folder)
    writers = [writer(spark, program.bootstrap, folder, case) for case in cases]
    queries = []
    for case, one in zip(cases, writers, strict=True):
        queries.append(one.start())
        # One at a time: each has a Python process to start.
        while queries[-1].isActive and not up(folder / case.name, os.getpid()).exists():
            time.sleep(_LOOK_EVERY_S)
    supervise(writers, queries)


def supervise(writers: list[DataStreamWriter], queries: list[StreamingQuery]) -> None:
    """Until a query fails. One whose Python process had no time to start is started again, as
    Spark gives those ten seconds, which a busy machine may not have.
    """
    while True:
        for number, query in enumerate(queries):
            failed = query.exception()
            if failed is not None and _TOO_SLOW not in str(failed):
                raise failed
            if not query.isActive:
                queries[number] = writers[number].start()
        time.sleep(_LOOK_EVERY_S)


if __name__ == "__main__":
    main(Program(**json.loads(sys.argv[1])))
