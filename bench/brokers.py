"""Headrace and its peer, Apache Kafka 4.3.1 as one KRaft node, launched as their users launch them.

Both listen on loopback with a data folder of their own. Kafka is fetched by Maven into a cache
folder the first time; it needs Java 17+ and mvn. A log folder that was formatted once, and kept
there too, is the first content of every broker's. KAFKA_JVM_PERFORMANCE_OPTS counts as for Kafka's
own scripts.
"""

import compileall
import contextlib
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import headrace
from headrace.demo.server import FreePort

KAFKA = "4.3.1"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "headrace-bench"
_POM = Path(__file__).with_name("pom.xml")
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_START_SECONDS_MAX = 120
_STOP_SECONDS_MAX = 60
# What kafka-server-start and kafka-run-class pass to Java.
_HEAP = ("-Xmx1G", "-Xms1G")
_PERFORMANCE = (
    "-server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 "
    "-XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true"
)


class Broker:
    """A broker that can be launched on the same folder more than once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._free = FreePort()
        self.port = self._free.number
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def command(self, settings: Mapping[str, str]) -> list[str]:
        """What launches it, with settings beside its own."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Whatever has to be done once before the first launch."""

    def launch(self, settings: Mapping[str, str] | None = None) -> float:
        """Launch it; returns the seconds until it answered ApiVersions."""
        began = time.perf_counter()
        with (self.folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(self.command(settings or {}), stdout=log, stderr=log)
        self._wait_for_answer()
        return time.perf_counter() - began

    def stop(self) -> None:
        """End it as its users do, with SIGTERM."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def resident_mb(self) -> float:
        """Resident memory in MB (10^6 bytes)."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 1e6

    def cpu_seconds(self) -> float:
        """User and system time used so far."""
        return cpu_seconds(self.pid)

    def _wait_for_answer(self) -> None:
        assert self._process is not None
        log = self.folder / "log.txt"
        until = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < until:
            if self._process.poll() is not None:
                sys.exit(f"the broker ended at its start:\n{log.read_text()[-2000:]}")
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                    connection.sendall(_API_VERSIONS)
                    if connection.recv(4):
                        return
            except OSError:
                time.sleep(0.005)
        sys.exit(f"no answer within {_START_SECONDS_MAX} s:\n{log.read_text()[-2000:]}")


class Headrace(Broker):
    def prepare(self) -> None:
        """Compile the modules, as their installation by pip does; some environments never would."""
        compileall.compile_dir(str(Path(headrace.__file__).parent), quiet=1)

    def command(self, settings: Mapping[str, str]) -> list[str]:
        serve = [sys.executable, "-m", "headrace", "serve", "--port", str(self.port)]
        extra = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        return [*serve, "--data-dir", str(self.folder / "data"), *extra]


class Kafka(Broker):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._controller = FreePort()

    def command(self, settings: Mapping[str, str]) -> list[str]:
        extra = [
            part for name, value in settings.items() for part in ("--override", f"{name}={value}")
        ]
        options = os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", _PERFORMANCE).split()
        return java("kafka.Kafka", str(self._config), *extra, options=(*_HEAP, *options))

    def prepare(self) -> None:
        self._config.write_text(self._properties(self.folder / "kafka"))
        kept = CACHE / f"kafka-{KAFKA}-formatted"
        if not kept.exists():
            self._format(kept)
        shutil.copytree(kept, self.folder / "kafka")

    def _format(self, kept: Path) -> None:
        """A log folder as Kafka's tool makes it, which knows of no port."""
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            config, logs = Path(scratch) / "server.properties", Path(scratch) / "logs"
            config.write_text(self._properties(logs))
            tool = ("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c")
            subprocess.run(java(*tool, str(config)), check=True, capture_output=True)
            with contextlib.suppress(OSError):  # another process has just made it
                logs.rename(kept)

    def _properties(self, logs: Path) -> str:
        controller = self._controller.number
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.servers},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.servers}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(logs),
            "offsets.topic.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",  # as in the server.properties it ships with
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.share.min.record.lock.duration.ms": "1000",
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    @property
    def _config(self) -> Path:
        return self.folder / "server.properties"


BROKERS: dict[str, type[Broker]] = {"headrace": Headrace, "kafka": Kafka}


@contextlib.contextmanager
def running(kind: Callable[[Path], Broker]) -> Iterator[Broker]:
    """A broker on a folder of its own, launched; stopped and removed at the end."""
    with prepared(kind) as broker:
        broker.launch()
        try:
            yield broker
        finally:
            broker.stop()


@contextlib.contextmanager
def prepared(kind: Callable[[Path], Broker]) -> Iterator[Broker]:
    """A broker on a folder of its own, ready to be launched; the folder is removed at the end."""
    with tempfile.TemporaryDirectory() as scratch:
        broker = kind(Path(scratch))
        broker.prepare()
        yield broker


def java(
    main_class: str, *arguments: str, options: tuple[str, ...] = (), folder: Path | None = None
) -> list[str]:
    """The command line of one of Kafka's programs, or of one whose classes are in `folder`."""
    path = class_path() if folder is None else f"{class_path()}:{folder}"
    return ["java", *options, "-cp", path, main_class, *arguments]


def class_path() -> str:
    """Where all of Kafka's classes are."""
    return f"{_libraries()}/*"


def cpu_seconds(pid: int) -> float:
    """User and system time that a process used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _libraries() -> Path:
    """Kafka's jars, fetched once. Exits when there is no Java or Maven to do so."""
    target = CACHE / f"kafka-{KAFKA}"
    if _is_whole(target):
        return target
    if shutil.which("java") is None or shutil.which("mvn") is None:
        sys.exit("Apache Kafka, the peer, needs java (17+) and mvn on the PATH")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "fetching").open("w") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)  # others may use what one of them has fetched
        if not _is_whole(target):
            _fetch(target)
    return target


def _fetch(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={scratch}/jars"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(_POM), *goal], check=True)
        shutil.rmtree(target, ignore_errors=True)
        (Path(scratch) / "jars").replace(target)


def _is_whole(target: Path) -> bool:
    return (target / f"kafka-tools-{KAFKA}.jar").exists()
