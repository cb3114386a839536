"""The whole demo, small: the broker dies while producing and while the query runs."""

import json
from collections import Counter
from io import StringIO
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from headrace.demo.flights import Kind, payloads
from headrace.demo.pipeline import OUTAGE_PERCENT
from headrace.demo.plan import Kill, Plan, Stage
from headrace.demo.run import run

pytestmark = pytest.mark.spark
FLIGHTS, SEED = 8_000, 5


def test_the_account_closes_though_the_broker_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    plan = Plan(
        tmp_path / "demo",
        flights=FLIGHTS,
        seed=SEED,
        records_per_batch=4_000,
        kills=(Kill(Stage.PRODUCE, 0.5), Kill(Stage.QUERY, 0.1, 0.5)),
    )
    outcome = run(plan, Console(file=StringIO()), spark)
    assert outcome.account.complaints == ()
    assert outcome.kills == 2

    given = list(payloads(SEED, FLIGHTS))
    kinds = Counter(payload.kind for payload in given)
    assert outcome.account.produced == len(given)
    assert outcome.account.accepted == kinds[Kind.FLIGHT] == outcome.figures.flights
    told = Counter(letter.reason for letter in outcome.dead)
    assert told["cancelled: no departure time"] == kinds[Kind.CANCELLED]

    flown = [json.loads(one.value) for one in given if one.kind is Kind.FLIGHT]
    hours = Counter(f"{flight['hour']:02d}" for flight in flown)
    assert {one.label: one.flights for one in outcome.figures.hours} == hours
    delays = sum(flight["dep_delay"] for flight in flown)
    carriers = outcome.figures.carriers
    assert sum(one.flights * one.mean_departure for one in carriers) == pytest.approx(delays)

    assert outcome.figures.redelivered / len(flown) == pytest.approx(OUTAGE_PERCENT / 100, rel=0.3)
    assert plan.chart.stat().st_size > 10_000
    folders = {one.parent for one in plan.parquet.rglob("*.parquet")}
    assert {one.parent.name.partition("=")[0] for one in folders} == {"session"}
