"""The command line in this process, and as a process of its own where pipes and signals count."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headrace
from headrace.cli.main import app

GOLDEN = Path(__file__).parent / "golden"
_ID = re.compile(r"TopicId: \S+")
_SYNONYMS = re.compile(r"synonyms=\{.*\}")


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that ended."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()


Command = Callable[..., Ended]
Start = Callable[..., subprocess.Popen[bytes]]


def _same(text: str) -> str:
    return _SYNONYMS.sub("synonyms={}", _ID.sub("TopicId: (id)", text))


@pytest.fixture
def golden() -> Callable[[str], str]:
    """What Apache Kafka's tool printed, by the name of the file."""
    return lambda name: _same((GOLDEN / f"{name}.txt").read_bytes().decode(errors="replace"))


@pytest.fixture
def same() -> Callable[[str], str]:
    """What a tool printed without what is different in every run."""
    return _same


@pytest.fixture
def broker() -> Iterator[headrace.Broker]:
    with headrace.Broker() as running:
        yield running


@pytest.fixture
def offline() -> Command:
    """Runs `headrace ...` in this process."""

    def run(*arguments: str, stdin: bytes = b"") -> Ended:
        result = CliRunner().invoke(app, list(arguments), input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ended(result.exit_code, result.stdout_bytes, result.stderr)

    return run


@pytest.fixture
def cli(broker: headrace.Broker, offline: Command) -> Command:
    """Runs `headrace COMMAND --bootstrap-server (the broker) ...` in this process."""

    def run(command: str, *arguments: str, stdin: bytes = b"") -> Ended:
        servers = ("--bootstrap-server", broker.bootstrap_servers)
        return offline(command, *servers, *arguments, stdin=stdin)

    return run


@pytest.fixture
def start(broker: headrace.Broker) -> Iterator[Start]:
    """Starts `headrace COMMAND --bootstrap-server (the broker) ...` as a process with pipes."""
    started: list[subprocess.Popen[bytes]] = []

    def run(command: str, *arguments: str) -> subprocess.Popen[bytes]:
        servers = ("--bootstrap-server", broker.bootstrap_servers)
        line = (sys.executable, "-m", "headrace", command, *servers, *arguments)
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None and not pipe.closed:
                pipe.close()
