"""The Java clients of Apache Kafka 4.3.1: producer, consumers, share consumers, admin, groups.

Each program makes all its checks in one JVM; each check is a test here.
"""

import re
from pathlib import Path

import pytest

import headrace

from .conftest import RunJava

_NAMES = ("JavaClients", "JavaGroups", "JavaShareConsumer", "JavaShareGroups")
_PROGRAMS = [Path(__file__).with_name(f"{name}.java") for name in _NAMES]
_SETTINGS = {
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.min.session.timeout.ms": "1000",
    "log.cleaner.backoff.ms": "100",
}
_CHECKS = {
    name: program
    for program in _PROGRAMS
    for name in re.findall(r"static void check(\w+)\(\)", program.read_text())
}


@pytest.fixture(scope="module")
def outcomes(run_java: RunJava) -> dict[str, str]:
    """Outcome of each check: `ok`, or what went wrong."""
    outcomes: dict[str, str] = {}
    for program in _PROGRAMS:
        with headrace.Broker(settings=_SETTINGS) as broker:
            done = run_java(program.stem, broker.bootstrap_servers)
        told = re.findall(r"^(ok|failed) (\w+)(.*)$", done.stdout, re.MULTILINE)
        assert len(told) == list(_CHECKS.values()).count(program), done.stdout + done.stderr[-4000:]
        outcomes |= {name: outcome + rest for outcome, name, rest in told}
    return outcomes


@pytest.mark.parametrize("check", _CHECKS)
def test_java(check: str, outcomes: dict[str, str]) -> None:
    assert outcomes[check] == "ok"
