"""A driver whose queries stand still at named points of a batch, so that it can be killed there.

Run as a program it starts one query for each case: from the topic and share group of the case's
name to a folder of that name. One batch of it comes to the point of the case, says so in a file and
goes no further; a case without a point goes on for ever. One driver has all cases, as what takes
time is its start. What halts is a subclass of the source's reader and a wrapped sink: the
product knows nothing of it.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
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
from headrace.spark.log.options import LogOptions
from headrace.spark.log.position import Position
from headrace.spark.log.stream import LogStream, Part
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.reader import ShareReader, Task

PARTITIONS, RECORDS_A_BATCH = 2, 100
HALTING = "halting"
LOOKS_EVERY = "300 milliseconds"  # else a query without records looks a hundred times a second
Sink = Callable[[DataFrame, int], None]
_LOOK_EVERY_S = 0.02
_TOO_SLOW = "Python worker failed to connect back"


@dataclass(frozen=True, slots=True)
class Case:
    """One query: its share group and topic are called `name`.

    It reads a queue or, in the mode "log", a log. `point` is where its batch number `batch` stands
    still, empty for nowhere; `life` names checkpoint and output, so that a query can be another one
    of the same group.
    """

    name: str
    point: str
    batch: int = 1
    life: str = "first"
    mode: str = "queue"

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

        One does so, though tasks of a batch come here at once: each holds a core. `reached` tells
        which process it was, and where it had Headrace from.
        """
        if (point, batch) != (self.point, self.batch):
            return
        written = self.reached().with_suffix(f".{os.getpid()}")
        written.write_text(f"{os.getpid()} {headrace.__file__}")
        try:
            self.reached().hardlink_to(written)
        except FileExistsError:
            return
        finally:
            written.unlink()
        while not self.go_on().exists() and Path(f"/proc/{self.driver}").exists():
            time.sleep(_LOOK_EVERY_S)


def up(folder: Path, driver: int) -> Path:
    """The file that tells that the Python process of a query runs."""
    return folder / f"up-{driver}"


class Halting(DataSourceStreamReader):
    """Mixed into a reader of the product. A number is the batch id of what ends at an offset."""

    halt: Halt

    def number(self, offset: dict[str, Any]) -> int:
        raise NotImplementedError

    def number_of_task(self, partition: InputPartition) -> int:
        raise NotImplementedError

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        above: Any = super()
        before = self.number(start)
        self.halt.at("logged", before)
        end: dict[str, Any] = above.latestOffset(start, limit)
        self.halt.at("acquired", self.number(end))
        self.halt.at("settled", before)
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        above: Any = super()
        tasks: list[InputPartition] = above.partitions(start, end)
        self.halt.at("planned", self.number(end))
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        above: Any = super()
        for rows in above.read(partition):
            half = rows.num_rows // 2
            yield rows.slice(0, half)
            self.halt.at("task", self.number_of_task(partition))
            yield rows.slice(half)


class HaltingQueue(Halting, ShareReader):
    """Its own numbers are one ahead of Spark's."""

    def number(self, offset: dict[str, Any]) -> int:
        return int(offset["seq"]) - 1

    def number_of_task(self, partition: InputPartition) -> int:
        assert isinstance(partition, Task)
        return int(partition.lease.split("/")[2]) - 1


class HaltingLog(Halting, LogStream):
    """A log has no numbers, but every batch before the last is of one size."""

    def number(self, offset: dict[str, Any]) -> int:
        return -(-sum(Position.from_json(offset).offsets.values()) // RECORDS_A_BATCH) - 1

    def number_of_task(self, partition: InputPartition) -> int:
        assert isinstance(partition, Part)
        (offsets,) = partition.offsets
        return offsets.first * PARTITIONS // RECORDS_A_BATCH


class HaltingDataSource(HeadraceDataSource):
    """The source, with one option more: the fields of a `Halt`."""

    def __init__(self, options: dict[str, str]) -> None:
        given = {name: value for name, value in options.items() if name != HALTING}
        self._halt = Halt(*json.loads(options[HALTING])) if HALTING in options else None
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return HALTING

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        assert self._halt is not None
        up(Path(self._halt.folder), self._halt.driver).touch()
        reader: HaltingQueue | HaltingLog
        if QueueOptions.wanted(self._given):
            reader = HaltingQueue(QueueOptions.parse(self._given), schema)
        else:
            reader = HaltingLog(LogOptions.parse(self._given).for_stream(), schema)
        reader.halt = self._halt
        return reader


def judge(record: IncomingRecord) -> dict[str, Any]:
    number = json.loads(record.value or b"")["number"]
    if number % 10 == 1 and record.delivery_count == 1:
        raise Release("not yet")
    if number % 10 == 2:
        raise Reject("never")
    return {"number": number}


def halting_sink(halt: Halt, output: Path, judged: Callable[[Sink], Sink]) -> Sink:
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
    reader = (
        spark.readStream.format(HALTING)
        .option(HALTING, json.dumps([halt.folder, halt.driver, halt.point, halt.batch]))
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", case.name)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", RECORDS_A_BATCH)
        .option("minPartitions", 2)
    )
    if case.mode == "log":
        rows = reader.option("kafka.group.id", case.name).load().select("partition", "offset")
        sink = halting_sink(halt, case.output(folder), lambda write: write)
    else:
        reader = reader.option("share.group.id", case.name).option("includeDelivery", "true")
        if case.life != "first":
            reader = reader.option("newCheckpoint", "continue")
        rows = reader.load()
        rows = each_record(rows, judge, "number int")
        told = partial(
            acknowledge, bootstrap_servers=bootstrap, group=case.name, keep_bookkeeping=True
        )
        sink = halting_sink(halt, case.output(folder), told)
    return (
        rows.writeStream.queryName(f"{case.name} {case.life}")
        .option("checkpointLocation", str(case.checkpoint(folder)))
        .trigger(processingTime=LOOKS_EVERY)
        .foreachBatch(sink)
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
    for case in cases:
        remove_half_written(case.checkpoint(folder) / "offsets")
    writers = [writer(spark, program.bootstrap, folder, case) for case in cases]
    signs = [up(folder / case.name, os.getpid()) for case in cases]
    supervise(list(zip(writers, signs, strict=True)))


def remove_half_written(offsets: Path) -> None:
    """Remove what a driver left that was killed while it wrote its first batch into this log.

    Spark refuses a checkpoint whose log has files and no batch
    (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY), and asks operators for this.
    """
    if offsets.is_dir() and not any(one.name.isdigit() for one in offsets.iterdir()):
        shutil.rmtree(offsets)


def supervise(doings: list[tuple[DataStreamWriter, Path]]) -> None:
    """Start all queries, and keep them running until one fails.

    One whose Python process had no time to start is started again: Spark gives those ten seconds,
    which a busy machine may not have.
    """
    queries = [begun(*one) for one in doings]
    while True:
        for number, query in enumerate(queries):
            failed = query.exception()
            if failed is not None and _TOO_SLOW not in str(failed):
                raise failed
            if not query.isActive:
                queries[number] = begun(*doings[number])
        time.sleep(_LOOK_EVERY_S)


def begun(writer: DataStreamWriter, sign: Path) -> StreamingQuery:
    """The query, started: one at a time, as each has a Python process to start."""
    sign.unlink(missing_ok=True)
    query = writer.start()
    while query.isActive and not sign.exists():
        time.sleep(_LOOK_EVERY_S)
    return query


if __name__ == "__main__":
    main(Program(**json.loads(sys.argv[1])))
