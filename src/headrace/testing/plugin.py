"""The pytest plugin `headrace`: a broker of its own for each test that asks for one.

pytest finds it by its entry point. It imports no broker before the first test that wants one.
Names that pytest has only since version 7 stand in quotes: every run loads this, older ones too.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.testing.broker import BrokerUnderTest
    from headrace.testing.clock import BrokerClock
    from headrace.testing.faults import Faults

_MARKER = "headrace"


class _AsTheyAre:
    """Finds Headrace's modules before pytest does.

    pytest rewrites the assertions of whatever a plugin is installed with, so of the broker too,
    which would take seconds and make it slower. `sys.meta_path` is asked in its order.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path, target) if name.startswith("headrace.") else None


sys.meta_path.insert(0, _AsTheyAre)


def pytest_addoption(parser: "pytest.Parser") -> None:
    """The plugin's options, on the command line and in the configuration file."""
    group = parser.getgroup("headrace")
    group.addoption(
        "--headrace-set", action="append", default=[], metavar="KEY=VALUE",
        help="a setting of the brokers that tests get, by Kafka's name; may be given again",
    )  # fmt: skip
    group.addoption(
        "--headrace-seed", type=int, default=0, metavar="N",
        help="decides which requests faults with a probability hit (default 0)",
    )  # fmt: skip
    parser.addini(
        "headrace_settings", "settings of the brokers that tests get, one KEY=VALUE a line",
        type="linelist", default=[],
    )  # fmt: skip


def pytest_configure(config: "pytest.Config") -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers", f"{_MARKER}(settings): settings of the test's broker, by Kafka's names"
    )


@pytest.fixture
def headrace_broker(request: "pytest.FixtureRequest") -> "Iterator[BrokerUnderTest]":
    """A broker of the test's own: `.bootstrap_servers` for any client, `.clock`, `.faults`."""
    from headrace.broker.config import ConfigError
    from headrace.testing.broker import BrokerUnderTest

    try:
        seed = request.config.getoption("headrace_seed")
        broker = BrokerUnderTest(_settings(request), seed=seed)
    except ConfigError as error:
        pytest.fail(f"settings of headrace_broker: {error}", pytrace=False)
    with broker:
        yield broker


@pytest.fixture
def headrace_topic(headrace_broker: "BrokerUnderTest") -> Callable[..., str]:
    """Creates topics: `headrace_topic("orders", partitions=3, configs={...})`; its name.

    Without a name the topic gets one of its own.
    """
    return headrace_broker.create_topic


@pytest.fixture
def headrace_clock(headrace_broker: "BrokerUnderTest") -> "BrokerClock":
    """The broker's clock: `headrace_clock.advance(days=8)`."""
    _skip_without(headrace_broker, "clock")
    return headrace_broker.clock


@pytest.fixture
def headrace_faults(headrace_broker: "BrokerUnderTest") -> "Iterator[Faults]":
    """The broker's faults; all are removed at the end of the test."""
    _skip_without(headrace_broker, "faults")
    yield headrace_broker.faults
    headrace_broker.faults.clear()


def _skip_without(broker: object, what: str) -> None:
    if not hasattr(broker, what):
        pytest.skip(f"headrace_broker is a broker without {what}, as the project has it")


def _settings(request: "pytest.FixtureRequest") -> dict[str, object]:
    """The nearest to the test counts: the file, the command line, then markers from outside in."""
    lines = [*request.config.getini("headrace_settings"), *request.config.getoption("headrace_set")]
    settings: dict[str, object] = {}
    for line in lines:
        key, separator, value = line.partition("=")
        if not separator:
            pytest.fail(f"headrace settings: {line!r} is no KEY=VALUE", pytrace=False)
        settings[key.strip()] = value.strip()
    for marker in reversed(list(request.node.iter_markers(_MARKER))):
        given = marker.kwargs.get("settings")
        if marker.args or set(marker.kwargs) != {"settings"} or not isinstance(given, dict):
            pytest.fail(
                'write @pytest.mark.headrace(settings={"num.partitions": 4})', pytrace=False
            )
        settings |= given
    return settings
