"""`headrace spark status` shows real queries of both modes as the groups that they read through."""

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from typer.testing import CliRunner

from headrace.cli.main import app


def shown(flow: Any, *arguments: str) -> list[dict[str, Any]]:
    """What the command prints, an object a query."""
    line = ["spark", "status", "--json", "--bootstrap-server", flow.servers, *arguments]
    ended = CliRunner().invoke(app, line)
    assert ended.exit_code == 0, ended.output
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_queries_are_shown_while_they_run_and_after(flow: Any, tmp_path: Path) -> None:
    flow.produce(10)
    during: list[list[dict[str, Any]]] = []

    def look(rows: DataFrame, batch_id: int) -> None:
        rows.count()
        during.append(shown(flow))

    flow.run(flow.rows(maxOffsetsPerTrigger="6"), look)
    first = during[0][0]
    assert [len(one) for one in during] == [1, 1]
    assert (first["group"], first["mode"], first["state"], first["topics"]) == (
        "g", "queue", "running", ["t"],
    )  # fmt: skip
    assert (first["batch"], first["committed"], first["held"], first["lag"]) == (1, 0, 6, 10)
    second = during[1][0]
    assert second["session"] == first["session"]
    assert (second["batch"], second["committed"], second["held"], second["lag"]) == (2, 1, 4, 4)

    after = shown(flow, "--all", "--group", "g", "--group", "g", "--group", "nobody")
    assert [(one["session"], one["lag"]) for one in after] == [(first["session"], 0)]
    assert shown(flow, "--group", "nobody") == []

    options = {
        "kafka.bootstrap.servers": flow.servers,
        "subscribe": "t",
        "kafka.group.id": "reports",
        "startingOffsets": "earliest",
    }
    rows = flow.spark.readStream.format("headrace").options(**options).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "log"))
    writer.trigger(availableNow=True).start().awaitTermination()
    (log,) = shown(flow, "--group", "reports")
    assert (log["mode"], log["state"], log["topics"], log["lag"]) == ("log", "running", ["t"], 0)
    flow.produce(3)
    assert [one["lag"] for one in shown(flow, "--group", "reports")] == [3]
