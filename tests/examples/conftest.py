"""For tests of the examples: a topic of real flights, a Spark session, and pandas to check with."""

from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.client.admin import create_topic, set_group_configs
from headrace.client.connection import Cluster
from headrace.demo.flights import Kind, Payload, payloads
from headrace.demo.producing import produce
from headrace.spark import local_session

FLIGHTS, BROKEN, TWICE = 5_000, 12, 300
DEAD_LETTERS = "dlq.cookbook"
EXAMPLES = Path(__file__).parents[2] / "examples"


class Flights:
    """The topic `flights`: the first days of 2013, some of them twice, between some rubbish."""

    def __init__(self, broker: headrace.Broker) -> None:
        self.bootstrap = broker.bootstrap_servers
        self.given: list[Payload] = list(payloads(3, FLIGHTS, broken=BROKEN))
        flown = [one for one in self.given if one.kind is Kind.FLIGHT]
        self.given += flown[:TWICE]

    @property
    def departed(self) -> pd.DataFrame:
        """All flights that left, as pandas reads them."""
        lines = [one.value.decode() for one in self.given if one.kind is Kind.FLIGHT]
        return pd.read_json(StringIO("\n".join(lines)), lines=True, convert_dates=["time_hour"])

    @property
    def refused(self) -> int:
        """How many records are rubbish, or flights that never left."""
        return sum(one.kind is not Kind.FLIGHT for one in self.given)

    def prepare(self) -> None:
        with Cluster(self.bootstrap) as cluster:
            create_topic(cluster, "flights", 2)
            allowed = {"errors.deadletterqueue.group.enable": "true"}
            create_topic(cluster, DEAD_LETTERS, 1, configs=allowed)
        produce(self.bootstrap, "flights", self.given, lambda confirmed: None)

    def with_dead_letters(self, group: str) -> None:
        with Cluster(self.bootstrap) as cluster:
            set_group_configs(cluster, group, {"errors.deadletterqueue.topic.name": DEAD_LETTERS})


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    session = local_session("headrace tests")
    session.sparkContext.addPyFile(str(EXAMPLES / "cookbook" / "flights_source.py"))
    return session


@pytest.fixture(scope="module")
def flights() -> Iterator[Flights]:
    with headrace.Broker() as broker:
        found = Flights(broker)
        found.prepare()
        yield found
