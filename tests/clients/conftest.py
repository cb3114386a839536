"""A broker for the tests of real clients."""

from collections.abc import Iterator

import pytest

import headrace


@pytest.fixture
def broker() -> Iterator[headrace.Broker]:
    """A broker of its own for one test, with a temporary folder."""
    with headrace.Broker() as running:
        yield running
