"""The declarative pipeline, run by Spark's own command as anybody would."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyspark
import pytest

from headrace.client.connection import Cluster
from headrace.client.leases import describe
from headrace.spark import ensure_java

from .conftest import EXAMPLES

pytestmark = pytest.mark.spark
COMMAND = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"


def project(flights: Any, folder: Path) -> Path:
    """A copy of the example, for another broker and another folder."""
    copy = folder / "flights"
    shutil.copytree(EXAMPLES / "pipelines" / "flights", copy)
    spec = copy / "spark-pipeline.yml"
    text = spec.read_text()
    for before, after in (
        ("127.0.0.1:9092", flights.bootstrap),
        ("file:///tmp/headrace-pipelines/flights", (folder / "storage").as_uri()),
    ):
        assert before in text
        text = text.replace(before, after)
    spec.write_text(text)
    return copy


def run(folder: Path) -> None:
    """`spark-pipelines run`; its tables are in the folder `spark-warehouse`."""
    ensure_java()
    settings = {
        "SPARK_HOME": str(COMMAND.parents[1]),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [COMMAND, "run", "--conf", "spark.ui.enabled=false"],
        cwd=folder,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert "Run is COMPLETED" in done.stderr + done.stdout


def test_the_pipeline_sorts_what_came(flights: Any, tmp_path: Path) -> None:
    folder = project(flights, tmp_path)
    run(folder)
    tables = folder / "spark-warehouse"
    flown = flights.departed
    assert len(pd.read_parquet(tables / "incoming")) == len(flights.given)
    assert Counter(pd.read_parquet(tables / "flights").carrier) == Counter(flown.carrier)
    refused = pd.read_parquet(tables / "quarantine")
    assert len(refused) == flights.refused
    assert set(refused.reason) == {"no flight", "never left"}
    for value, reason in zip(refused.value, refused.reason, strict=True):
        if reason == "never left":
            assert json.loads(value)["dep_time"] is None
    delays = pd.read_parquet(tables / "delays").set_index("carrier")
    wanted = flown.groupby("carrier").dep_delay.agg(["count", "mean"])
    assert delays.flights.to_dict() == wanted["count"].to_dict()
    assert delays.late.to_dict() == pytest.approx(wanted["mean"].to_dict())
    with Cluster(flights.bootstrap) as cluster:
        state = describe(cluster, "flights-pipeline")
    assert [one.start for one in state] == [one.log_end for one in state]
    assert sum(one.start for one in state) == len(flights.given)
