"""The programs of docs/spark.md on tables and progress run as they stand there."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def program(heading: str, servers: str) -> dict[str, Any]:
    """The names that the one program under a heading makes."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    (text,) = PROGRAM.findall(section.partition("\n## ")[0])
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(text.replace("127.0.0.1:9092", servers), str(PAGE), "exec"), names)
    return names


def test_tables(spark: SparkSession, world: Any) -> None:
    rows = program("Tables", world.servers)["overview"](spark).collect()
    lags = [row["lag"] for row in rows]
    assert lags == sorted(lags, reverse=True)
    by_group = {row["group"]: row for row in rows}
    assert (by_group["idle-a"]["lag"], by_group["idle-a"]["state"]) == (6, "Empty")
    assert by_group["idle-a"]["expires"] is not None


def test_progress(
    spark: SparkSession, world: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {
        "kafka.bootstrap.servers": world.servers,
        "subscribe": "orders",
        "startingOffsets": "earliest",
    }
    rows = spark.readStream.format("headrace").options(**options).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    program("Progress", world.servers)["watch"](spark, query)
    assert capsys.readouterr().out == ("0 0 0 0.0 {('orders', 0): 0, ('orders', 1): 0}\n0 0 0\n")
