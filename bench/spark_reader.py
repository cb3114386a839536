"""A Spark session that runs streaming queries for bench/spark.py, by the Python of its own.

One query a line of JSON: `format`, `options`, perhaps `select` (SQL). It reads all that is there
into the sink `noop`. A line of JSON comes back: `rows`, `seconds` and `trigger_ms` of the batches
but the first, which starts Python; `cpu_s`, processor time of the query in this process, the JVM
and all Python workers; `python_mb`, memory of the Python processes of Spark when each batch ended.
"""

import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

_PAGE = os.sysconf("SC_PAGESIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class _Batches(StreamingQueryListener):
    """Notes each batch as it ends."""

    def __init__(self) -> None:
        self.found: list[dict[str, float]] = []
        self.ended = threading.Event()

    def onQueryStarted(self, _: Any) -> None:  # noqa: N802 - a name of Spark's
        self.found = []
        self.ended.clear()

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - a name of Spark's
        progress = json.loads(event.progress.json)
        if progress["numInputRows"]:
            self.found.append(
                {
                    "rows": progress["numInputRows"],
                    "ms": progress["durationMs"]["triggerExecution"],
                    "python_mb": _python_mb(),
                }
            )

    def onQueryIdle(self, _: Any) -> None:  # noqa: N802 - a name of Spark's
        pass

    def onQueryTerminated(self, _: Any) -> None:  # noqa: N802 - a name of Spark's
        self.ended.set()


def main(jars: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    from headrace.spark import register

    register(spark)
    batches = _Batches()
    spark.streams.addListener(batches)
    print("begun", flush=True)
    for line in sys.stdin:
        print(json.dumps(_run(spark, batches, json.loads(line))), flush=True)


def _run(spark: SparkSession, batches: _Batches, asked: dict[str, Any]) -> dict[str, Any]:
    rows = spark.readStream.format(asked["format"]).options(**asked["options"]).load()
    for expression in asked.get("select", []):
        rows = rows.selectExpr(expression)
    used = _cpu_seconds()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            rows.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        batches.ended.wait(60)
    steady = batches.found[1:]
    return {
        "rows": sum(one["rows"] for one in steady),
        "all_rows": sum(one["rows"] for one in batches.found),
        "seconds": sum(one["ms"] for one in steady) / 1000,
        "trigger_ms": [one["ms"] for one in steady],
        "python_mb": [one["python_mb"] for one in steady],
        "cpu_s": _cpu_seconds() - used,
    }


def _tree() -> dict[int, list[str]]:
    """Fields of /proc/PID/stat after the name, of this process and all below it."""
    stats: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stats[int(path.parent.name)] = path.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it ended meanwhile
            continue
    found, waiting = {}, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        found[pid] = stats[pid]
        waiting += [child for child, fields in stats.items() if int(fields[1]) == pid]
    return found


def _cpu_seconds() -> float:
    """User and system time of the tree, with that of children which have ended."""
    return sum(sum(map(int, fields[11:15])) for fields in _tree().values()) / _TICKS


def _python_mb() -> float:
    """Resident memory (10^6 bytes) of the Python processes below this one."""
    total = 0
    for pid in _tree():
        try:
            if pid != os.getpid() and "python" in Path(f"/proc/{pid}/comm").read_text():
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:  # it ended meanwhile
            continue
    return total * _PAGE / 1e6


if __name__ == "__main__":
    main(sys.argv[1])
