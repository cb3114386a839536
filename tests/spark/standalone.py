"""A real standalone cluster on loopback: a master and its workers, as PySpark ships them."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
from tests.java_archives import spark_options

from headrace.demo.server import FreePort
from headrace.spark import ensure_java

_HOME = Path(pyspark.__file__).parent
_WAIT_S = 120


@dataclass(frozen=True, slots=True)
class Standalone:
    """The cluster's address, and where its workers keep what executors work with."""

    master: str
    work: Path

    def executors(self) -> list[Path]:
        """The folders of all executors so far, also of dead ones, in the order of their ids."""
        found = [one for one in self.work.glob("worker-*/app-*/*") if one.name.isdigit()]
        return sorted(found, key=lambda one: int(one.name))


@contextmanager
def standalone(folder: Path, workers: int) -> Iterator[Standalone]:
    """A master and `workers` workers of one core each; they inherit no Python path."""
    ensure_java()
    free = FreePort()
    address = f"spark://127.0.0.1:{free.number}"
    common = ["--host", "127.0.0.1", "--webui-port", "0"]
    with ExitStack() as running:
        running.enter_context(
            _daemon(folder / "master.log", "master.Master", *common, "--port", str(free.number))
        )
        logs = []
        for number in range(workers):
            logs.append(folder / f"worker-{number}.log")
            size = ["--cores", "1", "--memory", "1g"]
            work = ["--work-dir", str(folder / "work" / f"worker-{number}")]
            running.enter_context(
                _daemon(logs[-1], "worker.Worker", *common, *size, *work, address)
            )
        _until_registered(logs)
        yield Standalone(address, folder / "work")


@contextmanager
def _daemon(log: Path, name: str, *arguments: str) -> Iterator[None]:
    """One JVM with its children in a process group of their own, which is killed at the end."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    settings = {
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": spark_options(),
    }
    command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with (
        log.open("ab") as out,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment | settings,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _until_registered(logs: list[Path]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while left := [log for log in logs if "Successfully registered" not in log.read_text()]:
        assert time.monotonic() < deadline, left[0].read_text()[-4_000:]
        time.sleep(0.1)
