"""What holds for all tests."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from headrace.core.shard_words import Outside
from headrace.core.share_group import Timing, TopicView
from headrace.core.share_words import Policy

# How fast a machine is decides no test: neither a deadline an example, nor a slow data generation.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


class _Nowhere:
    """What a shard may know of the outside: defaults, and not one topic."""

    def policy(self, group: str) -> Policy:
        return Policy()

    def timing(self, group: str) -> Timing:
        return Timing()

    def starts_earliest(self, group: str) -> bool:
        return True

    def topic(self, name: str) -> TopicView | None:
        return None


@pytest.fixture(scope="session")
def nowhere() -> Outside:
    """The outside of a shard that only replays."""
    return _Nowhere()


@pytest.fixture(scope="session", autouse=True)
def _quick_java() -> None:
    """Nothing here runs for so long that thorough compilation of Java's code pays."""
    for name in ("SPARK_SUBMIT_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS"):
        os.environ.setdefault(name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session", autouse=True)
def _spark_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Spark as installed, but for `python/lib`: its workers load the PySpark of the tests.

    The zip file that they would load holds nothing compiled, which costs each new process most of
    a second of the processor.
    """
    found = find_spec("pyspark")
    if found is None or found.origin is None or "SPARK_HOME" in os.environ:
        return
    home = tmp_path_factory.mktemp("spark")
    for part in Path(found.origin).parent.iterdir():
        if part.name != "python":
            (home / part.name).symlink_to(part)
    os.environ["SPARK_HOME"] = str(home)
