"""The plugin does no harm to test runs that want nothing of it."""

import subprocess
import sys

LIKE_PYTEST_6 = """
import sys, types
import pytest
old = types.ModuleType("pytest")
old.fixture, old.fail = pytest.fixture, pytest.fail
sys.modules["pytest"] = old
before = set(sys.modules)
import headrace.testing.plugin
new = {name for name in sys.modules.keys() - before if name.startswith("headrace")}
assert new == {"headrace", "headrace.testing", "headrace.testing.plugin"}, new
"""


def test_every_pytest_can_load_it_and_it_loads_no_broker() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LIKE_PYTEST_6],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
