"""The topic of what was redriven to a group: its name, and when a query reads it."""

import re
from typing import Any

import pytest
from confluent_kafka import Producer

import headrace
from headrace.client.admin import create_topic
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.spark.queue import redriven
from headrace.spark.queue.driver import Driver
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.plan import Batch
from headrace.spark.queue.redriven import redrive_topic

OWN = "redrive.g"
FENCED = 110


def test_the_topic_is_named_after_the_group() -> None:
    assert redrive_topic("billing") == "redrive.billing"


def test_a_group_that_no_topic_can_be_named_after_gets_a_name_of_its_own() -> None:
    awkward = ["a/b", "a b", "größe", "x" * 300, "x" * 301, "a_b"]
    names = [redrive_topic(group) for group in awkward]
    assert len(set(names)) == len(awkward)
    for name in names:
        assert re.fullmatch(r"redrive\.[A-Za-z0-9._-]{1,241}", name)


def put(flow: Any, value: str) -> None:
    """A record in the group's own topic, which is made when it is not there."""
    create_topic(flow.cluster, OWN, 1, exist_ok=True)
    producer = Producer({"bootstrap.servers": flow.servers})
    producer.produce(OWN, value, partition=0)
    assert producer.flush(60) == 0


def topics_of(flow: Any) -> set[str]:
    return {one.topic for one in flow.state()}


@pytest.mark.spark
def test_what_is_there_before_the_query_is_read_wherever_its_topics_start(flow: Any) -> None:
    flow.produce(4)
    put(flow, "repaired")
    flow.run(flow.rows(startingOffsets="latest"), flow.note)
    assert flow.noted == [(0, 0)]
    assert topics_of(flow) == {"t", OWN}
    assert flow.finished()


@pytest.mark.spark
def test_a_query_that_runs_finds_what_is_redriven_meanwhile(flow: Any, all_of: Any) -> None:
    flow.produce(10)
    query = flow.start(flow.rows(), flow.note)
    flow.until(flow.finished, 60)
    put(flow, "repaired")
    flow.until(lambda: topics_of(flow) == {"t", OWN} and flow.finished(), 60)
    assert flow.noted == sorted([*all_of(10), (0, 0)])
    flow.produce(10)
    flow.until(lambda: len(flow.noted) == 21, 60)
    assert query.isActive


@pytest.mark.spark
def test_a_query_goes_on_from_its_checkpoint_with_what_was_redriven(flow: Any) -> None:
    flow.produce(10)
    flow.run(flow.rows(), flow.note)
    put(flow, "repaired")
    flow.run(flow.rows(), flow.note)
    assert [len(batch) for batch in flow.seen.values()] == [10, 1]
    assert flow.finished()


@pytest.mark.spark
def test_a_query_may_leave_it_alone(flow: Any, all_of: Any) -> None:
    flow.produce(10)
    put(flow, "repaired")
    flow.run(flow.rows(includeRedriven="false"), flow.note)
    assert flow.noted == all_of(10)
    assert topics_of(flow) == {"t"}


def test_a_driver_that_was_replaced_does_not_come_back_for_what_was_redriven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redriven, "LOOK_EVERY_S", 0.0)
    with headrace.Broker() as broker, Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "t", 1)
        options = QueueOptions(
            bootstrap_servers=broker.bootstrap_servers, topics=("t",), group="g", acquire_wait_ms=1
        )
        old = Driver(options, Batch("session", 0))
        new = Driver(options, Batch("session", 0))
        create_topic(cluster, OWN, 1)
        with pytest.raises(BrokerError) as refused:
            old.acquire(1, 10)
        assert refused.value.code == FENCED
        assert new.acquire(1, 10) == ()
        old.close()
        new.close()
