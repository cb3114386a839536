"""A topic of a real broker, and what is in it."""

from collections.abc import Callable

import pytest

from headrace.client.admin import create_topic
from headrace.client.connection import Cluster
from headrace.client.records import read_records
from headrace.wire.batches import Record

ReadBack = Callable[[str], dict[int, list[Record]]]


@pytest.fixture
def topic(real: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of three partitions, named after the test."""
    name = "".join(one if one.isalnum() else "-" for one in request.node.name)[:200]
    create_topic(real, name, 3)
    return name


@pytest.fixture
def read_back(real: Cluster) -> ReadBack:
    """The records of each partition of a topic that has some."""

    def read(name: str) -> dict[int, list[Record]]:
        found = {at: list(read_records(real, name, at)) for at in real.partitions(name)}
        return {at: records for at, records in found.items() if records}

    return read
