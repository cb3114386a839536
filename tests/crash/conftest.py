"""One Spark session for all crashes: it is the broker that dies, again and again.

The summary of a run has the numbers of SIGKILLs.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.spark import local_session


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    return local_session("headrace tests")


CountKills = Callable[[str, int], None]
_SIGKILLS = "SIGKILLs "


@pytest.fixture
def count_kills(request: pytest.FixtureRequest) -> CountKills:
    """Add a number of SIGKILLs of one kind to the summary."""

    def count(kind: str, number: int) -> None:
        request.node.user_properties.append((_SIGKILLS + kind, number))

    return count


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, number in report.user_properties:
            if name.startswith(_SIGKILLS):
                counts[name.removeprefix(_SIGKILLS)] += number
    if counts:
        terminalreporter.section("SIGKILLs")
        for kind, number in counts.items():
            terminalreporter.line(f"{number:5} {kind}")
        terminalreporter.line(f"{counts.total():5} in all")
