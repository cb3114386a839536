"""A broker for real clients, and Apache Kafka's Java programs to run against it.

Java 17+ and Maven (which fetches Kafka's jars once) are looked for; CI installs them and sets
HEADRACE_EXPECT_JAVA, which turns the skip of a machine without them into a failure.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.java_archives import QUICK, quick_java

import headrace
from brokers import class_path, java

from .side_by_side import Sides, side_by_side

_SECONDS_MAX = 300

RunJava = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def broker() -> Iterator[headrace.Broker]:
    """A broker of its own for one test, with a temporary folder."""
    with headrace.Broker() as running:
        yield running


@pytest.fixture(scope="session")
def has_java() -> None:
    """Skips where there is no Java."""
    missing = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    if missing and not os.environ.get("HEADRACE_EXPECT_JAVA"):
        pytest.skip(f"needs {' and '.join(missing)} (Debian: apt install default-jdk maven)")
    assert not missing, f"{missing} should have been installed"


@pytest.fixture(scope="module")
def sides(classes: Path) -> Iterator[Sides]:
    """Apache Kafka and Headrace, with nothing in them yet, for the tests of a module."""
    with side_by_side(classes) as both:
        yield both


@pytest.fixture(scope="session")
def classes(has_java: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the Java programs of this folder are, compiled."""
    folder = tmp_path_factory.mktemp("classes")
    sources = [str(one) for one in Path(__file__).parent.glob("*.java")]
    quick = [f"-J{one}" for one in QUICK.split()]
    subprocess.run(["javac", *quick, "-cp", class_path(), "-d", str(folder), *sources], check=True)
    return folder


@pytest.fixture(scope="session")
def run_java(classes: Path) -> RunJava:
    """Runs a class of Kafka's or of this folder: `run_java(class, *arguments, stdin="")`."""

    def run(name: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            java(name, *arguments, options=quick_java(), folder=classes),
            input=stdin, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False,
        )  # fmt: skip

    return run
