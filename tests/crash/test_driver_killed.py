"""SIGKILL of a query's driver, Python and JVM, at random moments; once the broker dies with it.

Started again on the same checkpoint the driver goes on until nothing is left, and then the account
must close: every record once in the sink or once among the dead letters, no verdict undone in the
journal, SPSO = SPEO = log end.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.spark.driver_process import (
    complaints,
    driver,
    prepare,
    produce,
    unfinished,
    until_none,
)
from tests.spark.halting_driver import Case

from headrace.client.connection import Cluster
from headrace.client.leases import describe
from headrace.demo.server import Server

from . import kills
from .conftest import CountKills
from .kills import KILLS_FACTOR

pytestmark = pytest.mark.spark
ENDLESS = Case("killed", point="")
RECORDS_A_LIFE = 300
KILLS = (
    1 if KILLS_FACTOR == 1 else 3
)  # each is a start of Spark; fixed moments are test_failures.py
LOCK_MS = 8_000  # as long as the next driver takes to start


@pytest.mark.parametrize("seed", [1] if KILLS_FACTOR == 1 else [1, 2])
def test_driver_killed_at_random_moments(
    seed: int, tmp_path: Path, count_kills: CountKills
) -> None:
    rng = random.Random(seed)
    broker_dies_in = rng.randrange(KILLS)
    name, records = ENDLESS.name, KILLS * RECORDS_A_LIFE
    with Server(tmp_path) as server, Cluster(server.bootstrap) as cluster:
        prepare(cluster, server.bootstrap, {name: LOCK_MS}, 0)
        for life in range(KILLS):
            first = life * RECORDS_A_LIFE
            produce(server.bootstrap, name, range(first, first + RECORDS_A_LIFE))
            with driver(server.bootstrap, tmp_path, [ENDLESS]) as check:
                wait_for_a_sign_of_life(cluster, check)
                time.sleep(rng.uniform(0, 2))
                if life == broker_dies_in:
                    server.kill()
            if life == broker_dies_in:
                time.sleep(rng.uniform(0, 1))
                server.start()

        with driver(server.bootstrap, tmp_path, [ENDLESS]) as check:
            until_none(lambda: unfinished(cluster, [name], records), check)
        assert complaints(server.bootstrap, name, ENDLESS.output(tmp_path), records) == ()
    count_kills(kills.DRIVERS, KILLS)
    count_kills(kills.WITH_DRIVER, 1)


def wait_for_a_sign_of_life(cluster: Cluster, check: Callable[[], None]) -> None:
    """Until the driver changed something: what follows are the steps of its first triggers."""
    group = ENDLESS.name
    before = describe(cluster, group)
    until_none(lambda: [group] if describe(cluster, group) == before else [], check)
