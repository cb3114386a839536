"""The five programs of the cookbook, on the first week of flights, against pandas."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import dedupe
import join
import multi_sink
import stateful
import window
from flights_source import KEY
from headrace.client.connection import Cluster
from headrace.client.leases import describe
from headrace.demo.evidence import dead_letters
from headrace.demo.flights import airlines_csv, planes_csv

from .conftest import DEAD_LETTERS

pytestmark = pytest.mark.spark


@pytest.fixture
def run(spark: SparkSession, flights: Any, tmp_path: Path) -> Any:
    """Run a program in the session of the tests; its classes travel to the workers by value, as
    those of a main program do.
    """

    def run(program: ModuleType) -> Path:
        cloudpickle.register_pickle_by_value(program)
        try:
            program.run(spark, flights.bootstrap, str(tmp_path))
        finally:
            cloudpickle.unregister_pickle_by_value(program)
        with Cluster(flights.bootstrap) as cluster:
            state = describe(cluster, program.GROUP)
        assert [one.start for one in state] == [one.log_end for one in state]
        assert sum(one.log_end for one in state) == len(flights.given)
        return tmp_path

    return run


def rejected(flights: Any, group: str) -> int:
    with Cluster(flights.bootstrap) as cluster:
        return sum(one.group == group for one in dead_letters(cluster, DEAD_LETTERS))


def read(table: Path) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(one) for one in sorted(table.rglob("*.parquet"))])


def test_dedupe(run: Any, flights: Any) -> None:
    flights.with_dead_letters(dedupe.GROUP)
    found = read(run(dedupe) / "flights")
    wanted = flights.departed.drop_duplicates(KEY)
    assert len(wanted) < len(flights.departed)
    assert Counter(keys(found)) == Counter(keys(wanted))
    assert rejected(flights, dedupe.GROUP) == flights.refused


def keys(rows: pd.DataFrame) -> list[tuple[Any, ...]]:
    times = pd.to_datetime(rows.time_hour, utc=True)
    return list(zip(rows.carrier, rows.flight, rows.origin, times, strict=True))


def test_dedupe_leaves_nothing_twice_when_a_batch_runs_again(
    run: Any, flights: Any, spark: SparkSession
) -> None:
    """Its last batch is not in Spark's commit log: Spark runs it again."""
    out = run(dedupe)
    before = keys(read(out / "flights"))
    commits = out / "checkpoint" / "commits"
    last = max(int(one.name) for one in commits.glob("[0-9]*"))
    assert last > 0
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()
    assert Counter(keys(read(run(dedupe) / "flights"))) == Counter(before)
    assert (commits / f"{last}").exists()


def test_join(run: Any, flights: Any) -> None:
    flights.with_dead_letters(join.GROUP)
    found = read(run(join) / "flights")
    airlines = pd.read_csv(airlines_csv(), keep_default_na=False)
    planes = pd.read_csv(planes_csv())[["tailnum", "model"]]
    named = flights.departed.merge(airlines, on="carrier").merge(planes, on="tailnum", how="left")
    assert len(named) == len(flights.departed)
    assert Counter(found.airline) == Counter(named.name)
    assert Counter(found.model.dropna()) == Counter(named.model.dropna())
    assert found.model.isna().sum() == named.model.isna().sum() > 0
    assert rejected(flights, join.GROUP) == flights.refused


def test_window(run: Any, flights: Any) -> None:
    """The days that the watermark has passed, and no others, complete."""
    found = read(run(window) / "days")
    flown = flights.departed
    flown["start"] = flown.time_hour.dt.floor("D")
    over = flown.time_hour.max() - pd.Timedelta(window.LATE)
    ended = flown[flown.start + pd.Timedelta("1 day") <= over]
    wanted = ended.groupby(["start", "origin"]).dep_delay.agg(["count", "mean"])
    assert wanted.index.get_level_values("start").nunique() >= 3
    start = pd.to_datetime(found.start, utc=True)
    by_day = found.assign(start=start).set_index(["start", "origin"]).sort_index()
    assert by_day.departures.to_dict() == wanted["count"].to_dict()
    assert by_day.late.to_dict() == pytest.approx(wanted["mean"].to_dict())


def test_stateful(run: Any, flights: Any) -> None:
    found = read(run(stateful) / "inspections")
    minutes = flights.departed.groupby("tailnum").air_time.sum()
    due = (minutes // stateful.MINUTES).astype(int)
    assert due.max() >= 2
    wanted = [(tail, one + 1) for tail, times in due.items() for one in range(times)]
    assert sorted(zip(found.tailnum, found.inspection, strict=True)) == sorted(wanted)


def test_multi_sink(run: Any, flights: Any) -> None:
    flights.with_dead_letters(multi_sink.GROUP)
    out = run(multi_sink)
    flown = flights.departed
    late = flown[flown.dep_delay >= multi_sink.LATE_MINUTES]
    assert len(read(out / "flights")) == len(flown)
    lines: Counter[str] = Counter()
    for file in (out / "late").rglob("*.json"):
        lines[file.parent.name] += len(file.read_text().splitlines())
    assert lines == Counter(f"origin={origin}" for origin in late.origin)
    assert rejected(flights, multi_sink.GROUP) == flights.refused


def test_a_program_runs_by_itself(flights: Any, tmp_path: Path) -> None:
    """From the command line, as the page says, with a session of its own."""
    assert multi_sink.__file__
    command = [sys.executable, multi_sink.__file__, "--bootstrap", flights.bootstrap]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert (tmp_path / "checkpoint" / "commits").exists()
