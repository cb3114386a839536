"""SIGKILL of the broker at random moments of the demo: nothing lost, nothing un-finished.

Each run is the demo itself, on fewer flights, and has three of the moments: 12 in CI, 21 in
`make soak`. Its account compares the log, every verdict in the journal, the Parquet rows and the
dead letters: an accepted record that was settled again, a record in two places or in none, keeps it
from closing.
"""

import random
from io import StringIO
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from headrace.demo.plan import Kill, Plan, Stage
from headrace.demo.run import run

from . import kills
from .conftest import CountKills
from .kills import KILLS_FACTOR

pytestmark = pytest.mark.spark
FLIGHTS = 1_500
RUNS = 1 if KILLS_FACTOR == 1 else 7


@pytest.mark.parametrize("seed", range(RUNS))
def test_broker_killed_at_random_moments(
    seed: int, spark: SparkSession, tmp_path: Path, count_kills: CountKills
) -> None:
    rng = random.Random(seed)
    moments = tuple(random_kill(rng) for _ in range(3))
    plan = Plan(tmp_path / "demo", flights=FLIGHTS, seed=seed, records_per_batch=400, kills=moments)
    outcome = run(plan, Console(file=StringIO()), spark)
    assert outcome.kills == len(moments)
    count_kills(kills.DEMO, outcome.kills)
    assert outcome.account.complaints == ()


def random_kill(rng: random.Random) -> Kill:
    stage = rng.choices([Stage.PRODUCE, Stage.QUERY], weights=[1, 4])[0]
    return Kill(stage, rng.uniform(0, 0.9), rng.uniform(0, 1.0 if stage is Stage.QUERY else 0.02))
