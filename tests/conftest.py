"""What holds for all tests."""

import contextlib
import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests import java_archives, longest_files

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


@pytest.fixture(autouse=True)
def own_log_level() -> Iterator[None]:
    """Leave no level of the logger `headrace` to the next test: what runs in Spark sets one."""
    ours = logging.getLogger("headrace")
    ours.setLevel(logging.NOTSET)
    yield
    ours.setLevel(logging.NOTSET)


@pytest.fixture
def unclosed_sockets_allowed() -> Iterator[None]:
    """Collect the sockets that kafka-python leaves unclosed, while their warning is ignored.

    It leaves the socket of a connection that it gave up to the garbage collector.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


_OPEN = Path("/proc/self/fd")
_scratch = pytest.StashKey[Path]()
_archives = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    """What Java's processes inherit; workers of xdist have it from the process that starts them."""
    if hasattr(config, "workerinput"):
        return
    folder = config.stash[_scratch] = Path(tempfile.mkdtemp(prefix="headrace-tests-"))
    for name, value in java_archives.options(folder).items():
        os.environ.setdefault(name, value)
    home = java_archives.spark_home(folder)
    if home is not None:
        os.environ.setdefault("SPARK_HOME", str(home))
    if config.getoption("numprocesses", None):  # else Java hardly starts often enough
        config.stash[_archives] = java_archives.making(folder)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files for workers of xdist: the longest ones, then those with the most tests."""
    if not hasattr(config, "workerinput"):
        return
    ranks = longest_files.ranks()
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (ranks.get(item.path, len(ranks)), -tests[item.path]))


def pytest_collection_finish() -> None:
    """Spare the collector some 100,000 objects of the tests themselves, and let it run less often.

    It took a twentieth of the processor time of the tests that run inside a worker.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 50)


def pytest_unconfigure(config: pytest.Config) -> None:
    making = config.stash.get(_archives, None)
    if making is not None:
        if making.poll() is None:
            # Asked to end, Java would write its archive first.
            os.killpg(making.pid, signal.SIGKILL)
        making.wait()
    if _scratch in config.stash:
        shutil.rmtree(config.stash[_scratch], ignore_errors=True)  # Java may just be dying in it


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """No test leaves a file of its folder open: a thousand of them end what uses `select`.

    No file of tests leaves a socket open: without this, what the collector finds would be an error
    of whatever test runs at the time.
    """
    yield
    if nextitem is None or nextitem.path != item.path:
        unclosed = _found_unclosed()
        assert not unclosed, f"tests of {item.path.name} left: {unclosed[:5]}"
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    is_kept = item.get_closest_marker("keeps_files")
    if folder is not None and is_kept is None and _OPEN.exists():
        left = [path for path in _open_files() if path.startswith(f"{folder}/")]
        assert not left, f"files are still open: {left[:5]}"


def _found_unclosed() -> list[str]:
    """Collect, and return what was collected without having been closed."""
    found: list[str] = []
    hook = sys.unraisablehook
    sys.unraisablehook = lambda one: found.append(f"{one.object!r}: {one.exc_value}")
    try:
        gc.collect()
    finally:
        sys.unraisablehook = hook
    return found


def _open_files() -> Iterator[str]:
    for link in _OPEN.iterdir():
        with contextlib.suppress(OSError):  # that of the listing is closed by now
            yield str(link.readlink())
