"""The brokers that offer the stock share protocol."""

import os
import shutil
from collections.abc import Iterator

import pytest

from brokers import BROKERS, Broker, running


@pytest.fixture(scope="module", params=["headrace", "kafka"])
def served(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Headrace and Apache Kafka, one after the other; a process that serves the tests of a module.

    Apache Kafka is skipped where its programs cannot be had, unless they are expected.
    """
    if request.param == "kafka" and not os.environ.get("HEADRACE_EXPECT_JAVA"):
        missing = [name for name in ("java", "mvn") if shutil.which(name) is None]
        if missing:
            pytest.skip(f"needs {' and '.join(missing)} (Debian: apt install default-jdk maven)")
    with running(BROKERS[request.param]) as broker:
        yield broker
