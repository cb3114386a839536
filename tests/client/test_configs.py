"""Settings of brokers in a cluster of several."""

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.client.configs import ResourceType, alter_configs, describe_configs
from headrace.client.connection import Cluster
from headrace.wire.codec import encode_response

from .conftest import METADATA, ScriptedBroker

DESCRIBE, ALTER = 32, 44


@pytest.fixture
def other(broker: ScriptedBroker) -> Iterator[ScriptedBroker]:
    """Broker 2 of a cluster, whose broker 1 is the bootstrap server."""
    scripted = ScriptedBroker()
    scripted.start()
    nodes = [
        {"node_id": number, "host": "127.0.0.1", "port": one.port}
        for number, one in enumerate((broker, scripted), 1)
    ]

    def metadata(_: Any) -> bytes:
        return bytes(encode_response(METADATA, 9, {"brokers": nodes, "topics": []}))

    def described(_: Any) -> bytes:
        result: dict[str, Any] = {
            "error_code": 0,
            "error_message": None,
            "resource_type": 4,
            "resource_name": "",
            "configs": [],
        }
        return bytes(encode_response(DESCRIBE, 4, {"results": [result]}))

    def altered(_: Any) -> bytes:
        response = {"error_code": 0, "error_message": None, "resource_type": 4, "resource_name": ""}
        return bytes(encode_response(ALTER, 1, {"responses": [response]}))

    for one in (broker, scripted):
        one.answers |= {METADATA: metadata, DESCRIBE: described, ALTER: altered}
    yield scripted
    scripted.close()


@pytest.mark.parametrize(("name", "number"), [("1", 1), ("2", 2), ("", 1), ("3", 1)])
def test_settings_of_a_broker_are_requested_from_it(
    cluster: Cluster, broker: ScriptedBroker, other: ScriptedBroker, name: str, number: int
) -> None:
    describe_configs(cluster, ResourceType.BROKER, name)
    alter_configs(cluster, ResourceType.BROKER, name, values={"log.retention.ms": "1"})
    requested = {
        place: [key for key in one.asked if key in (DESCRIBE, ALTER)]
        for place, one in ((1, broker), (2, other))
    }
    assert requested == {number: [DESCRIBE, ALTER], 3 - number: []}
