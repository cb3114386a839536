"""From launch to the first answer, and memory when idle: Headrace beside Apache Kafka 4.3.1.

    python bench/start.py [--quick]

Each broker is launched as its users launch it, on loopback, with an empty data folder; the clock
runs until it answers ApiVersions. Resident memory is read after it idled for some seconds. Kafka is
fetched by Maven into a cache folder the first time; it needs Java 17+ and mvn. Its log folder is
formatted before the clock starts.

The last line is one JSON object; ratios are Headrace / Kafka.
"""

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

KAFKA = "4.3.1"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "headrace-bench"
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>kafka</artifactId><version>1</version><dependencies><dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA}</version>
</dependency></dependencies></project>"""


@contextlib.contextmanager
def headrace(folder: Path) -> Iterator[tuple[int, int]]:
    """A broker of ours; yields its port and process id once it answers."""
    port = free_port()
    command = [sys.executable, "-m", "headrace", "serve", "--port", str(port)]
    with _process([*command, "--data-dir", str(folder / "data")], folder, port) as pid:
        yield port, pid


@contextlib.contextmanager
def apache_kafka(folder: Path) -> Iterator[tuple[int, int]]:
    """One KRaft node, as `headrace`."""
    port, config = _formatted(folder)
    with _process(_java("kafka.Kafka", str(config)), folder, port) as pid:
        yield port, pid


BROKERS = {"headrace": headrace, "kafka": apache_kafka}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one launch of each, under a minute")
    rounds = 1 if parser.parse_args().quick else 5
    figures: dict[str, float] = {}
    launches: dict[str, list[float]] = {name: [] for name in BROKERS}
    memory: dict[str, list[float]] = {name: [] for name in BROKERS}
    for _ in range(rounds):
        for name, broker in BROKERS.items():
            with tempfile.TemporaryDirectory() as scratch:
                if name == "kafka":
                    _formatted(Path(scratch))
                began = time.perf_counter()
                with broker(Path(scratch)) as (_, pid):
                    launches[name].append(time.perf_counter() - began)
                    time.sleep(3)
                    memory[name].append(resident_mb(pid))
            print(f"{name}: {launches[name][-1]:.3f} s, {memory[name][-1]:.0f} MB")
    for name in BROKERS:
        figures[f"{name}_launch_s"] = round(statistics.median(launches[name]), 3)
        figures[f"{name}_idle_mb"] = round(statistics.median(memory[name]), 1)
    for figure in ("launch_s", "idle_mb"):
        ratio = figures[f"headrace_{figure}"] / figures[f"kafka_{figure}"]
        figures[f"{figure}_ratio"] = round(ratio, 4)
    print(json.dumps(figures))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def resident_mb(pid: int) -> float:
    """Resident memory of a process in MB (10^6 bytes)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


@contextlib.contextmanager
def _process(command: list[str], folder: Path, port: int) -> Iterator[int]:
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait_for_answer(process, port, folder / "log.txt")
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_answer(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if process.poll() is not None:
            sys.exit(f"the broker ended at its start:\n{log.read_text()[-2000:]}")
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.sendall(_API_VERSIONS)
                if connection.recv(4):
                    return
        except OSError:
            time.sleep(0.005)
    sys.exit(f"no answer within 60 s:\n{log.read_text()[-2000:]}")


def _formatted(folder: Path) -> tuple[int, Path]:
    """Port and configuration of a Kafka node whose log folder is formatted."""
    config = folder / "server.properties"
    if config.exists():
        text = config.read_text()
        return int(text.split("listeners=PLAINTEXT://127.0.0.1:")[1].split(",")[0]), config
    port, controller = free_port(), free_port()
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / "kafka"),
        "offsets.topic.replication.factor": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.share.min.record.lock.duration.ms": "1000",
    }
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    cluster = "AAAAAAAAAAAAAAAAAAAAAQ"
    command = _java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config))
    subprocess.run(command, check=True, capture_output=True)
    return port, config


def _java(main_class: str, *arguments: str) -> list[str]:
    return ["java", "-Xmx1g", "-Xms1g", "-cp", f"{_libraries()}/*", main_class, *arguments]


def _libraries() -> Path:
    """Kafka's jars, fetched once. Exits when there is no Java or Maven to do so."""
    target = CACHE / f"kafka-{KAFKA}"
    if target.exists():
        return target
    if shutil.which("java") is None or shutil.which("mvn") is None:
        sys.exit("Apache Kafka, the peer, needs java (17+) and mvn on the PATH")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        (Path(scratch) / "pom.xml").write_text(_POM)
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={scratch}/jars"]
        subprocess.run(["mvn", "-q", "-B", *goal], cwd=scratch, check=True)
        (Path(scratch) / "jars").replace(target)
    return target


if __name__ == "__main__":
    main()
