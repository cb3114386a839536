"""The five programs of the cookbook, on the first week of flights, against pandas."""

import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import dedupe
import headrace
import join
import multi_sink
import stateful
import window
from flights_source import KEY, into
from headrace.client.connection import Cluster
from headrace.client.leases import describe
from headrace.demo.evidence import dead_letters
from headrace.demo.flights import airlines_csv, planes_csv

from .conftest import DEAD_LETTERS, TWICE, Flights

pytestmark = pytest.mark.spark


@pytest.fixture
def run(spark: SparkSession, flights: Any, tmp_path: Path) -> Any:
    """Run a program in the session of the tests; its classes travel to the workers by value, as
    those of a main program do.
    """

    def run(program: ModuleType) -> Path:
        pickle: Any = cloudpickle
        pickle.register_pickle_by_value(program)
        try:
            program.run(spark, flights.bootstrap, str(tmp_path))
        finally:
            pickle.unregister_pickle_by_value(program)
        return tmp_path

    return run


def all_is_finished(flights: Any, group: str) -> bool:
    """Whether the share group has nothing left; a copy to the dead letters may take a moment."""
    with Cluster(flights.bootstrap) as cluster:
        state = describe(cluster, group)
        deadline = time.monotonic() + 60
        while any(one.in_flight for one in state) and time.monotonic() < deadline:
            time.sleep(0.1)
            state = describe(cluster, group)
    ends = sum(one.log_end for one in state)
    return sum(one.start for one in state) == ends == len(flights.given)


def rejected(flights: Any, group: str) -> int:
    """How many dead letters a group has, when it is through."""
    assert all_is_finished(flights, group)
    with Cluster(flights.bootstrap) as cluster:
        return sum(one.group == group for one in dead_letters(cluster, DEAD_LETTERS))


def read(table: Path) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(one) for one in files(table, "*.parquet")])


def files(table: Path, pattern: str) -> list[Path]:
    """Return the files of a table, each in a folder of its checkpoint and batch."""
    found = sorted(table.rglob(pattern))
    for file in found:
        folders = file.relative_to(table).as_posix()
        assert re.match(r"session=[-0-9a-f]{36}/batch=\d+/", folders), folders
    return found


def test_dedupe(run: Any, flights: Any) -> None:
    flights.with_dead_letters(dedupe.GROUP)
    out = run(dedupe)
    found = read(out / "flights")
    wanted = flights.departed.drop_duplicates(KEY)
    assert len(wanted) < len(flights.departed)
    assert Counter(keys(found)) == Counter(keys(wanted))
    assert rejected(flights, dedupe.GROUP) == flights.refused

    # A batch that is run again, as its entry in Spark's commit log is missing, adds nothing.
    commits = out / "checkpoint" / "commits"
    last = max(int(one.name) for one in commits.glob("[0-9]*"))
    assert last > 0
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()
    assert Counter(keys(read(run(dedupe) / "flights"))) == Counter(keys(found))
    assert (commits / f"{last}").exists()


def keys(rows: pd.DataFrame) -> list[tuple[Any, ...]]:
    times = pd.to_datetime(rows.time_hour, utc=True)
    return list(zip(rows.carrier, rows.flight, rows.origin, times, strict=True))


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
    """The days that the watermark has passed, and no others, complete; what came once more at the
    end was late.
    """
    found = read(run(window) / "days")
    flown = flights.departed.iloc[:-TWICE]
    flown = flown.assign(start=flown.time_hour.dt.floor("D"))
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
    assert all_is_finished(flights, stateful.GROUP)
    wanted = [(tail, one + 1) for tail, times in due.items() for one in range(times)]
    assert sorted(zip(found.tailnum, found.inspection, strict=True)) == sorted(wanted)


def test_multi_sink(run: Any, flights: Any) -> None:
    flights.with_dead_letters(multi_sink.GROUP)
    out = run(multi_sink)
    flown = flights.departed
    late = flown[flown.dep_delay >= multi_sink.LATE_MINUTES]
    assert len(read(out / "flights")) == len(flown)
    lines: Counter[str] = Counter()
    for file in files(out / "late", "*.json"):
        lines[file.parent.name] += len(file.read_text().splitlines())
    assert lines == Counter(f"origin={origin}" for origin in late.origin)
    assert rejected(flights, multi_sink.GROUP) == flights.refused


def test_a_new_checkpoint_drops_and_replaces_no_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Spark numbers its batches from 0 again."""
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    for text in ("first", "second"):
        (incoming / text).write_text(text)
        into(spark.readStream.text(str(incoming)), "texts", str(tmp_path))
        shutil.rmtree(tmp_path / "checkpoint")
        (incoming / text).unlink()
    assert Counter(read(tmp_path / "texts").value) == Counter(["first", "second"])


def test_a_program_runs_by_itself(tmp_path: Path) -> None:
    """From the command line, as the page says, with a session of its own.

    The broker is its own as well: a new checkpoint may not read a group that another one has read.
    """
    assert multi_sink.__file__
    with headrace.Broker() as broker:
        flights = Flights(broker)
        flights.prepare()
        command = [sys.executable, multi_sink.__file__, "--bootstrap", flights.bootstrap]
        done = subprocess.run(
            [*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert (tmp_path / "checkpoint" / "commits").exists()
