"""Chance is the same in every run, whoever else asks, and in whatever order."""

from headrace.client.connection import Cluster
from headrace.testing import BrokerUnderTest, Faults
from headrace.testing.faults import APIS, Fault
from headrace.wire.message_items import Named

from .conftest import produced

NOT_LEADER = 6
STREAMS = [("a", "Fetch"), ("b", "Fetch"), ("a", "Produce")]


def hit_of_fifty(seed: int) -> list[bool]:
    with BrokerUnderTest(seed=seed) as broker:
        topic = broker.create_topic()
        broker.faults.add(api="Fetch", error="UNKNOWN_SERVER_ERROR", client_id="nobody")
        fault = broker.faults.add(
            api="Produce", topic=topic, error="NOT_LEADER_OR_FOLLOWER", probability=0.5
        )
        with Cluster(broker.bootstrap_servers) as cluster:
            hit = [produced(cluster, topic)[topic] == NOT_LEADER for _ in range(50)]
        assert fault.hits == sum(hit)
        return hit


def test_chance_is_the_same_for_the_same_seed() -> None:
    once = hit_of_fifty(1)
    assert 0 < sum(once) < 50
    assert hit_of_fifty(1) == once
    assert hit_of_fifty(2) != once


def hits_of(fault: Fault, order: list[tuple[str, str]]) -> dict[tuple[str, str], list[bool]]:
    """For each client and API, which of its requests are hit when they come in this order."""
    found: dict[tuple[str, str], list[bool]] = {one: [] for one in STREAMS}
    for client, api in order:
        found[client, api].append(fault.strikes(APIS[api], Named(), client))
    return found


def test_chance_does_not_depend_on_the_order_in_which_clients_ask() -> None:
    faults = Faults(seed=3)
    in_turns = hits_of(faults.drop(probability=0.5), STREAMS * 50)
    faults.clear()
    after_each_other = [one for one in STREAMS for _ in range(50)]
    assert hits_of(faults.drop(probability=0.5), after_each_other) == in_turns
    assert len({tuple(hit) for hit in in_turns.values()}) == len(STREAMS)
    assert all(0 < sum(hit) < 50 for hit in in_turns.values())


def test_a_second_fault_has_dice_of_its_own() -> None:
    faults = Faults(seed=3)
    first, second = (hits_of(faults.drop(probability=0.5), STREAMS * 50) for _ in range(2))
    assert first != second
