"""Producing against a real broker: every payload is confirmed, and a standstill is an error."""

from collections.abc import Iterator

import pytest

import headrace
from headrace.client.admin import log_ends
from headrace.client.connection import Cluster
from headrace.demo.flights import Kind, payloads
from headrace.demo.producing import ProducingFailed, create_topic, produce
from headrace.demo.server import FreePort


@pytest.fixture
def bootstrap() -> Iterator[str]:
    with headrace.Broker() as broker:
        yield broker.bootstrap_servers


def test_every_payload_is_confirmed(bootstrap: str) -> None:
    create_topic(bootstrap, "flights", 4)
    told: list[int] = []
    produced = produce(bootstrap, "flights", payloads(7, 12_000, broken=30), told.append)
    assert produced.confirmed == 12_030
    assert produced.kinds.total() == 12_030
    assert produced.kinds[Kind.BROKEN] == 30
    assert told == sorted(told)
    assert told[-1] == 12_030
    with Cluster(bootstrap) as cluster:
        assert log_ends(cluster, "flights") == dict(produced.by_partition)


def test_a_topic_that_exists_is_not_created_again(bootstrap: str) -> None:
    create_topic(bootstrap, "flights", 4)
    with pytest.raises(ProducingFailed, match="already exists"):
        create_topic(bootstrap, "flights", 4)


def test_a_broker_that_is_away_too_long_is_an_error() -> None:
    free = FreePort()
    nobody = f"127.0.0.1:{free.number}"
    with pytest.raises(ProducingFailed, match="no record was confirmed for 1 s"):
        produce(nobody, "flights", payloads(7, 10), lambda count: None, stalled_after_s=1)
