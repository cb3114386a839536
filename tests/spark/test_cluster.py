"""A query on a standalone cluster: Headrace shipped to executors, and an executor that is lost.

The executors' Python knows nothing of this checkout: what they run is the archive that the driver
ships, as docs/spark-cluster.md has it.
"""

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.java_archives import spark_options

import headrace
from headrace.client.connection import Cluster
from headrace.demo.server import Server

from .driver_process import complaints, driver, not_reached, prepare, unfinished, until_none
from .halting_driver import Case
from .standalone import Standalone, standalone

pytestmark = pytest.mark.spark
NAME, RECORDS, WORKERS = "on-a-cluster", 600, 2


@dataclass(frozen=True, slots=True)
class Run:
    """A run that is over: its broker, its output, the cluster, the executor that was lost, and
    where that one had Headrace from.
    """

    bootstrap: str
    output: Path
    cluster: Standalone
    lost: Path
    package: Path


def shipped(folder: Path) -> Path:
    """The package as an archive with its compiled kernel, as `pip install --target` lays it out."""
    package = Path(headrace.__file__).parent
    archive = folder / "packages.zip"
    with ZipFile(archive, "w") as out:
        for file in package.rglob("*"):
            if file.suffix in {".py", ".so", ".properties"}:
                out.write(file, file.relative_to(package.parent))
    return archive


def parent(pid: int) -> int:
    """The parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill_executor(worker: int) -> Path:
    """SIGKILL of a Python worker, of the daemon that forked it and of their JVM: all that an
    executor is. Returns the folder it worked in.
    """
    daemon = parent(worker)
    jvm = parent(daemon)
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{jvm}/cmdline").read_bytes()
    folder = Path(f"/proc/{jvm}/cwd").readlink()
    for pid in (jvm, daemon, worker):
        os.kill(pid, signal.SIGKILL)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("cluster")
    case = Case(NAME, "task")
    config = {
        "spark.archives": f"{shipped(folder)}#packages",
        "spark.executorEnv.PYTHONPATH": "packages",
        "spark.pyspark.python": sys.executable,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": spark_options(),
    }
    with (
        Server(folder) as server,
        Cluster(server.bootstrap) as cluster,
        standalone(folder, WORKERS) as spark,
    ):
        prepare(cluster, server.bootstrap, {NAME: 60_000}, RECORDS)
        with driver(server.bootstrap, folder, [case], master=spark.master, config=config) as check:
            until_none(lambda: not_reached(folder, [NAME]), check)
            worker, package = (folder / NAME / "reached").read_text().split()
            lost = kill_executor(int(worker))
            until_none(lambda: unfinished(cluster, [NAME], RECORDS), check)
        yield Run(server.bootstrap, case.output(folder), spark, lost, Path(package))


def test_the_account_closes_though_an_executor_was_killed(run: Run) -> None:
    assert complaints(run.bootstrap, NAME, run.output, RECORDS) == ()


def test_a_lost_executor_costs_no_batch_a_second_run(run: Run) -> None:
    writes = [int(line) for line in (run.output / "writes").read_text().split()]
    assert writes == list(range(max(writes) + 1))


def test_another_executor_took_over(run: Run) -> None:
    executors = run.cluster.executors()
    assert run.lost in executors
    assert len(executors) > WORKERS


def test_executors_ran_what_was_shipped(run: Run) -> None:
    assert run.package == run.lost / "packages" / "headrace" / "__init__.py"
