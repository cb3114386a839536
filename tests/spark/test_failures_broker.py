"""A broker killed with SIGKILL while queries stand at each point of a batch, and started again.

The queries go on while it is away. That costs time only: no batch runs twice, and the accounts
close.
"""

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from headrace.client.connection import Cluster
from headrace.demo.server import Server

from .crash_points import RECORDS, Aftermath, Point, seen
from .driver_process import complaints, driver, not_reached, prepare, unfinished, until_none
from .halting_driver import PARTITIONS

pytestmark = pytest.mark.spark
AWAY_S, LOCK_MS = 2.0, 60_000
POINTS = [
    Point("planned", 0, 0),
    Point("task", 0, 0),
    Point("before write", 0, 0),
    Point("after write", 0, 0),
    Point("logged", 0, 0),
    Point("task", 0, 0, mode="log"),
    Point("logged", 0, 0, mode="log"),
]
QUEUES = [point for point in POINTS if point.mode == "queue"]
LOGS = [point for point in POINTS if point.mode == "log"]


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    folder = tmp_path_factory.mktemp("failures")
    names = [point.name for point in POINTS]
    queues = [point.name for point in QUEUES]
    logs = {point.name: point.doomed.output(folder) for point in LOGS}

    def to_write() -> list[str]:
        return [name for name, output in logs.items() if len(seen(output).writes) < 2]

    with Server(folder) as server:
        with Cluster(server.bootstrap) as cluster:
            prepare(cluster, server.bootstrap, dict.fromkeys(names, LOCK_MS), RECORDS)
        with driver(server.bootstrap, folder, [point.doomed for point in POINTS]) as check:
            until_none(lambda: not_reached(folder, names), check)
            server.kill()
            for name in names:
                (folder / name / "go-on").touch()
            threading.Event().wait(AWAY_S)
            server.start()
            with Cluster(server.bootstrap) as cluster:
                until_none(lambda: unfinished(cluster, queues, RECORDS) + to_write(), check)
        yield Aftermath(folder, server.bootstrap, {})


@pytest.mark.parametrize("point", QUEUES, ids=lambda point: point.name)
def test_the_account_of_a_queue_closes_and_no_batch_ran_twice(
    point: Point, aftermath: Aftermath
) -> None:
    output = point.doomed.output(aftermath.folder)
    found = seen(output)
    assert found.writes == list(range(max(found.writes) + 1))
    assert complaints(aftermath.bootstrap, point.name, output, RECORDS) == ()


@pytest.mark.parametrize("point", LOGS, ids=lambda point: point.name)
def test_a_log_has_every_record_once_and_no_batch_ran_twice(
    point: Point, aftermath: Aftermath
) -> None:
    found = seen(point.doomed.output(aftermath.folder))
    assert found.writes == [0, 1]
    records = Counter(one for batch in found.batches.values() for one in batch)
    assert records == Counter((one % PARTITIONS, one // PARTITIONS) for one in range(RECORDS))
