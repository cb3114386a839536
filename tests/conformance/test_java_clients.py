"""The Java clients of Apache Kafka 4.3.1: producer, consumers, share consumer, admin.

`JavaClients.java` makes every check in one JVM; each is a test here.
"""

import re
from pathlib import Path

import pytest

import headrace

from .conftest import RunJava

_PROGRAM = Path(__file__).with_name("JavaClients.java")
_CHECKS = re.findall(r"static void check(\w+)\(\)", _PROGRAM.read_text())


@pytest.fixture(scope="module")
def outcomes(run_java: RunJava) -> dict[str, str]:
    """Outcome of each check: `ok`, or what went wrong."""
    with headrace.Broker() as broker:
        done = run_java(str(_PROGRAM), broker.bootstrap_servers)
    told = re.findall(r"^(ok|failed) (\w+)(.*)$", done.stdout, re.MULTILINE)
    assert len(told) == len(_CHECKS), done.stdout + done.stderr[-4000:]
    return {name: outcome + rest for outcome, name, rest in told}


@pytest.mark.parametrize("check", _CHECKS)
def test_java(check: str, outcomes: dict[str, str]) -> None:
    assert outcomes[check] == "ok"
