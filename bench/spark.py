"""The Spark source beside Spark's own Kafka source, over the same log in one run.

    python bench/spark.py [--quick]

One Headrace broker serves both. One Spark session, local[2], of PySpark 4.2.0, as no build of
Spark's Kafka source is for a later one, runs queries of both sources by turns into the sink `noop`.
Java and Python talk by Unix sockets, as in `headrace.spark.local_session`.
Its Python is an environment of its own, and the jars come by Maven, both into a cache folder.
Four partitions; values of 100 bytes, and JSON objects of about that size.

- rows_noop: rows/s with all columns of Spark's Kafka source. rows_value: with the value alone.
- rows_json: rows/s of five typed columns: `value.format` beside `from_json`.
- queue_vs_log: rows/s through a share group / as a log, all columns.
- trigger, trigger_queue: milliseconds of a batch of 1,000 records, the source's / Kafka source's.

Rates are those of a query's batches but the first, which starts Python. `_cpu` is processor time a
row of Spark's processes, which neighbours on the machine change less than rates. Without --quick
`memory_growth_mb` is what the Python processes grew by from one fifth of ten million records to the
last of them, in one query. The last line is one JSON object; but for that figure, ours / theirs.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from brokers import CACHE, Broker, Headrace, java, running

_PYSPARK = "4.2.0"
_ROOT = Path(__file__).parent.parent
_RECORD_BYTES = 100
_PARTITIONS = 4
_SUSTAINED = 10_000_000
_SMALL = 1_000  # records of a batch whose overhead is measured
_SCHEMA = "id bigint, customer string, total double, paid boolean, at timestamp"
_groups = count(1)

Told = dict[str, Any]
Options = dict[str, str]


@dataclass(frozen=True)
class Work:
    """How much is done."""

    rounds: int
    records: int
    batches: int
    triggers: int


QUICK = Work(rounds=1, records=300_000, batches=2, triggers=6)
FULL = Work(rounds=5, records=2_000_000, batches=4, triggers=40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small round, under a minute")
    quick = parser.parse_args().quick
    work = QUICK if quick else FULL
    with running(Headrace) as broker, ThreadPoolExecutor() as pool:
        filled = [
            pool.submit(_fill, broker, "rows", work.records),
            pool.submit(_fill, broker, "json", work.records, _objects()),
            pool.submit(_fill, broker, "few", _SMALL * (work.triggers + 1)),
        ]
        with Reader(broker) as reader:
            for one in filled:
                one.result()
            told = _compared(reader, work)
            if not quick:
                _fill(broker, "sustained", _SUSTAINED)
                told["memory_growth_mb"] = _growth(reader)
    print(json.dumps({key: round(value, 4) for key, value in told.items()}))


def _fill(broker: Broker, topic: str, records: int, values: Iterable[str] = ()) -> None:
    """A topic of so many records: of random bytes, or of `values`, picked at random."""
    admin = AdminClient({"bootstrap.servers": broker.servers})
    admin.create_topics([NewTopic(topic, _PARTITIONS)])[topic].result()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as payload:
        payload.writelines(f"{value}\n" for value in values)
        payload.flush()
        what = ["--payload-file", payload.name] if values else ["--record-size", str(_RECORD_BYTES)]
        command = java(
            "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, *what,
            "--num-records", str(records), "--throughput", "-1",
            "--bootstrap-server", broker.servers,
        )  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)


def _objects() -> list[str]:
    return [
        json.dumps(
            {
                "id": 1_000_000 + number,
                "customer": f"customer-{number * 7919 % 5000}",
                "total": number * 37 % 100_000 / 100,
                "paid": number % 3 == 0,
                "at": f"2026-01-{number % 28 + 1:02}T{number % 24:02}:{number % 60:02}:07.123Z",
            }
        )
        for number in range(10_000)
    ]


class Reader:
    """The process with the Spark session (`spark_reader.py`)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        python = _python()
        environment = os.environ | {
            "PYSPARK_PYTHON": str(python),
            "PYTHONPATH": str(_ROOT / "src"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        environment.pop("SPARK_HOME", None)
        self._log = broker.folder / "spark.txt"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [python, Path(__file__).with_name("spark_reader.py"), _jars()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=environment,
            )  # fmt: skip
        assert self._line() == "begun", "what comes first"

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def run(self, source: str, topic: str, batch: int, *select: str, **options: str) -> Told:
        """A query of all of a topic by `jvm`, `log` or `queue`; options with `_` for `.`."""
        given = {
            "kafka.bootstrap.servers": self._broker.servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(batch),
            **{name.replace("_", "."): value for name, value in options.items()},
        }
        if source == "queue":
            given["share.group.id"] = f"group-{next(_groups)}"
            given["maxRecordsPerPartition"] = str(batch)
        kind = "kafka" if source == "jvm" else "headrace"
        asked = {"format": kind, "options": given, "select": select}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        told: Told = json.loads(self._line())
        told["rate"] = told["rows"] / told["seconds"]
        told["cpu"] = 1e6 * told["cpu_s"] / told["all_rows"]
        told["trigger"] = statistics.median(told["trigger_ms"])
        return told

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            sys.exit(f"Spark ended:\n{self._log.read_text()[-3000:]}")
        return line


def _compared(reader: Reader, work: Work) -> dict[str, float]:
    batch = work.records // (work.batches + 1)
    parsed = f"from_json(CAST(value AS STRING), '{_SCHEMA}') AS row"
    decoded = {"columns": "value", "value_format": "json", "value_schema": _SCHEMA}
    kinds: dict[str, tuple[str, str, int, tuple[str, ...], Options]] = {
        "noop/jvm": ("jvm", "rows", batch, (), {}),
        "noop/log": ("log", "rows", batch, (), {}),
        "noop/queue": ("queue", "rows", batch, (), {}),
        "value/jvm": ("jvm", "rows", batch, ("value",), {}),
        "value/log": ("log", "rows", batch, (), {"columns": "value"}),
        "json/jvm": ("jvm", "json", batch, (parsed, "row.*"), {}),
        "json/log": ("log", "json", batch, (), decoded),
        "trigger/jvm": ("jvm", "few", _SMALL, (), {}),
        "trigger/log": ("log", "few", _SMALL, (), {}),
        "trigger/queue": ("queue", "few", _SMALL, (), {}),
    }
    found: dict[str, list[Told]] = {name: [] for name in kinds}
    for number in range(work.rounds):
        for name in sorted(kinds, reverse=bool(number % 2)):
            source, topic, size, select, options = kinds[name]
            told = reader.run(source, topic, size, *select, **options)
            found[name].append(told)
            print(
                f"{name}: {told['rate']:,.0f} rows/s, {told['cpu']:.2f} s of the processor a "
                f"million rows, {told['trigger']:.0f} ms a batch",
                flush=True,
            )

    def ratio(figure: str, ours: str, theirs: str) -> float:
        middle = [statistics.median(one[figure] for one in found[name]) for name in (ours, theirs)]
        return float(middle[0] / middle[1])

    return {
        "rows_noop": ratio("rate", "noop/log", "noop/jvm"),
        "rows_noop_cpu": ratio("cpu", "noop/log", "noop/jvm"),
        "rows_value": ratio("rate", "value/log", "value/jvm"),
        "rows_value_cpu": ratio("cpu", "value/log", "value/jvm"),
        "rows_json": ratio("rate", "json/log", "json/jvm"),
        "rows_json_cpu": ratio("cpu", "json/log", "json/jvm"),
        "queue_vs_log": ratio("rate", "noop/queue", "noop/log"),
        "trigger": ratio("trigger", "trigger/log", "trigger/jvm"),
        "trigger_queue": ratio("trigger", "trigger/queue", "trigger/jvm"),
    }


def _growth(reader: Reader) -> float:
    """MB that Spark's Python processes grew by, from a fifth of the records to the last."""
    told = reader.run("log", "sustained", _SUSTAINED // 20)
    memory = told["python_mb"]
    print(f"sustained: {told['rate']:,.0f} rows/s, MB of Python: {[round(one) for one in memory]}")
    return float(memory[-1] - memory[len(memory) // 5])


def _python() -> Path:
    """The Python of an environment with this PySpark and what Headrace needs, made once."""
    folder = CACHE / f"spark-{_PYSPARK}"
    done = folder / "made"
    if not done.exists():
        project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
        needed = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q"]
        subprocess.run([*install, *needed, f"pyspark=={_PYSPARK}"], check=True)
        done.touch()
    return folder / "bin" / "python"


def _jars() -> str:
    """The jars of Spark's Kafka source, fetched once, as Spark's option names them."""
    target = CACHE / f"spark-kafka-{_PYSPARK}"
    if not target.exists():
        if shutil.which("mvn") is None:
            sys.exit("Spark's Kafka source, the peer, needs java (17+) and mvn on the PATH")
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            pom = Path(__file__).with_name("spark-pom.xml")
            goal = ["dependency:copy-dependencies", f"-DoutputDirectory={scratch}/jars"]
            subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *goal], check=True)
            (Path(scratch) / "jars").replace(target)
    return ",".join(str(path) for path in sorted(target.glob("*.jar")))


if __name__ == "__main__":
    main()
