"""Metadata, topics, configuration and the small APIs, by version and with what they refuse."""

from typing import Any
from uuid import UUID

import pytest

import headrace
from headrace.broker.apis import SERVED as APIS
from headrace.broker.apis import SERVED_FOR_SHARE_GROUPS

API = {api.name: api for api in (*APIS, *SERVED_FOR_SHARE_GROUPS)}


def metadata(wire: Any, version: int, *names: str, create_missing: bool = False) -> Any:
    topics = [{"topic_id": None, "name": name} for name in names]
    return wire.call(
        3, version, topics=topics, allow_auto_topic_creation=create_missing,
        include_cluster_authorized_operations=False, include_topic_authorized_operations=False,
    )  # fmt: skip


@pytest.mark.parametrize("version", API["ApiVersions"].versions)
def test_apiversions(wire: Any, version: int) -> None:
    answer = wire.call(18, version, client_software_name="test", client_software_version="1")
    shown = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert shown[0] == (0, 13), "librdkafka insists on Produce from 0"
    assert shown[1] == (4, 18)
    assert shown[3] == (0, 13)
    if version >= 3:
        levels = {one.name: one.max_version_level for one in answer.finalized_features}
        assert levels == {"group.version": 1, "share.version": 1, "metadata.version": 30}
        supported = {one.name: one.min_version for one in answer.supported_features}
        lowest = 1 if version == 3 else 0
        assert supported == dict.fromkeys(levels, lowest) | {"metadata.version": 7}, "KIP-584"


def test_apiversions_wants_to_know_who_asks(wire: Any) -> None:
    answer = wire.call(18, 3, client_software_name="", client_software_version="1")
    assert (answer.error_code, answer.api_keys) == (42, ())


@pytest.mark.parametrize("version", API["Metadata"].versions)
def test_metadata(broker: headrace.Broker, wire: Any, version: int) -> None:
    wire.create("orders", num_partitions=3)
    answer = (
        metadata(wire, version, "orders", "nothing")
        if version >= 4
        else metadata(wire, version, "orders")
    )
    (node,) = answer.brokers
    assert f"{node.host}:{node.port}" == broker.bootstrap_servers
    found = answer.topics[0]
    assert (found.error_code, found.name) == (0, "orders")
    assert [(part.partition_index, part.leader_id) for part in found.partitions] == [
        (0, 1),
        (1, 1),
        (2, 1),
    ]
    if version >= 4:
        assert (answer.topics[1].error_code, answer.topics[1].partitions) == (3, ())


def test_metadata_of_all_of_none_and_by_id(wire: Any) -> None:
    created = wire.create("orders")
    everything = {"orders": False, "__share_group_state": True, "__consumer_offsets": True}
    assert {topic.name for topic in wire.call(3, 0, topics=[]).topics} == set(everything)
    asked = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    found = wire.call(3, 12, topics=None, **asked).topics
    assert {topic.name: topic.is_internal for topic in found} == everything
    assert wire.call(3, 12, topics=[], **asked).topics == ()
    ids = [{"topic_id": created.topic_id, "name": None}, {"topic_id": UUID(int=4), "name": None}]
    by_id = wire.call(3, 12, topics=ids, **asked).topics
    assert [(topic.error_code, topic.name) for topic in by_id] == [(0, "orders"), (100, None)]


def test_metadata_creates_topics_when_allowed(wire: Any) -> None:
    answer = metadata(wire, 12, "new", "no good", create_missing=True)
    assert [(topic.error_code, len(topic.partitions)) for topic in answer.topics] == [
        (0, 1),
        (17, 0),
    ]


@pytest.mark.parametrize("version", API["CreateTopics"].versions)
def test_create_topics(wire: Any, version: int) -> None:
    config = [{"name": "segment.bytes", "value": "4096"}]
    made = wire.create(
        "orders", version=version, num_partitions=2, replication_factor=1, configs=config
    )
    assert (made.name, made.error_code) == ("orders", 0)
    if version >= 5:
        shown = {one.name: (one.value, one.config_source) for one in made.configs}
        assert shown["segment.bytes"] == ("4096", 1)
        assert shown["cleanup.policy"] == ("delete", 5)
    assert len(metadata(wire, 4, "orders").topics[0].partitions) == 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": "orders"}, 36),
        ({"name": "a b"}, 17),
        ({"num_partitions": 0}, 37),
        ({"num_partitions": 1_000_000}, 37),
        ({"replication_factor": 3}, 38),
        ({"configs": [{"name": "segment.bytes", "value": "x"}]}, 40),
        ({"configs": [{"name": "segment.byte", "value": "4096"}]}, 40),
        ({"assignments": [{"partition_index": 0, "broker_ids": [9]}]}, 39),
        ({"assignments": [{"partition_index": 1, "broker_ids": [1]}]}, 39),
        ({"assignments": [{"partition_index": 0, "broker_ids": [1]}], "num_partitions": 1}, 42),
        ({"assignments": [{"partition_index": 0, "broker_ids": [1]}]}, 0),
        ({}, 0),
    ],
)
def test_what_create_topics_refuses(wire: Any, fields: dict[str, Any], code: int) -> None:
    wire.create("orders")
    name = fields.pop("name", "new")
    answer = wire.create(name, validate_only=True, **fields)
    assert answer.error_code == code
    assert bool(answer.error_message) == bool(code)
    assert metadata(wire, 4, "new").topics[0].error_code == 3


def test_a_topic_named_twice_in_a_request(wire: Any) -> None:
    topic = {"name": "a", "num_partitions": 1, "replication_factor": 1}
    topics = [topic | {"assignments": [], "configs": []}] * 2
    answer = wire.call(19, 7, topics=topics, timeout=0, validate_only=False)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("a", 42)]


@pytest.mark.parametrize("version", API["DeleteTopics"].versions)
def test_delete_topics(wire: Any, version: int) -> None:
    made = wire.create("orders")
    if version >= 6:
        asked: dict[str, Any] = {
            "topics": [
                {"name": None, "topic_id": made.topic_id},
                {"name": None, "topic_id": UUID(int=3)},
                {"name": "orders", "topic_id": made.topic_id},
            ]
        }
        codes = [0, 100, 42]
    else:
        asked, codes = {"topic_names": ["twice", "orders", "twice", "nothing"]}, [42, 0, 3]
    answer = wire.call(20, version, timeout=0, **asked)
    assert [one.error_code for one in answer.responses] == codes
    assert metadata(wire, 4, "orders").topics[0].error_code == 3


@pytest.mark.parametrize("version", API["CreatePartitions"].versions)
def test_create_partitions(wire: Any, version: int) -> None:
    wire.create("orders", num_partitions=2)

    def add(name: str, count: int, *, validate_only: bool = False, assignments: Any = None) -> int:
        topics = [{"name": name, "count": count, "assignments": assignments}]
        answer = wire.call(37, version, topics=topics, timeout=0, validate_only=validate_only)
        return int(answer.results[0].error_code)

    assert add("orders", 2) == 37
    assert add("nothing", 2) == 3
    assert add("orders", 3, assignments=[{"broker_ids": [7]}]) == 39
    assert add("orders", 9, validate_only=True) == 0
    assert add("orders", 4) == 0
    assert len(metadata(wire, 4, "orders").topics[0].partitions) == 4


@pytest.mark.parametrize("version", API["DescribeConfigs"].versions)
def test_describe_configs(wire: Any, version: int) -> None:
    def describe(kind: int, name: str, keys: Any = None) -> tuple[int, dict[str, str]]:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        (result,) = wire.call(32, version, resources=[resource]).results
        return result.error_code, {one.name: one.value for one in result.configs}

    wire.create("orders")
    code, broker = describe(4, "1")
    assert (code, broker["socket.request.max.bytes"]) == (0, "1048576")
    assert describe(4, "2") == (42, {})
    assert describe(2, "nothing") == (3, {})
    assert describe(32, "") == (42, {})
    assert describe(8, "x") == (42, {})
    keys = ["cleanup.policy", "no.such.key"]
    assert describe(2, "orders", keys) == (0, {"cleanup.policy": "delete"})
    code, group = describe(32, "absent")
    assert (code, group["share.delivery.count.limit"]) == (0, "5")


@pytest.mark.parametrize(
    ("kind", "name", "change", "code"),
    [
        (2, "orders", {"name": "segment.bytes", "config_operation": 0, "value": "4096"}, 0),
        (2, "orders", {"name": "segment.bytes", "config_operation": 0, "value": "1"}, 40),
        (2, "orders", {"name": "segment.bytes", "config_operation": 2, "value": "4096"}, 40),
        (2, "orders", {"name": "segment.bytes", "config_operation": 0, "value": None}, 42),
        (2, "nothing", {"name": "segment.bytes", "config_operation": 1, "value": None}, 3),
        (32, "g", {"name": "record.lock.duration.ms", "config_operation": 0, "value": "1000"}, 0),
        (32, "g", {"name": "record.lock.duration.ms", "config_operation": 0, "value": "999"}, 40),
        (32, "", {"name": "share.isolation.level", "config_operation": 1, "value": None}, 42),
        (4, "1", {"name": "num.partitions", "config_operation": 0, "value": "3"}, 42),
        (16, "x", {"name": "a", "config_operation": 0, "value": "b"}, 42),
    ],
)
@pytest.mark.parametrize("version", API["IncrementalAlterConfigs"].versions)
def test_alter_configs(
    wire: Any, version: int, kind: int, name: str, change: dict[str, Any], code: int
) -> None:
    wire.create("orders")
    resource = {"resource_type": kind, "resource_name": name, "configs": [change]}
    (answer,) = wire.call(44, version, resources=[resource], validate_only=False).responses
    assert (answer.error_code, bool(answer.error_message)) == (code, bool(code))


@pytest.mark.parametrize("version", API["FindCoordinator"].versions)
def test_find_coordinator(broker: headrace.Broker, wire: Any, version: int) -> None:
    def find(key: str, kind: int) -> tuple[int, str]:
        answer = wire.call(10, version, key=key, key_type=kind, coordinator_keys=[key])
        found = answer.coordinators[0] if version >= 4 else answer
        return found.error_code, f"{found.host}:{found.port}"

    assert find("group", 0) == (0, broker.bootstrap_servers)
    if version >= 1:
        assert find("txn", 1) == (53, ":-1"), "transactions are not supported"
        assert find("x", 9) == (42, ":-1")
        share = "with:colons:AAAAAAAAAAAAAAAAAAAAAQ:0"
        assert find(share, 2)[0] == (0 if version >= 6 else 42)
        assert find("no key", 2)[0] == 42


@pytest.mark.parametrize("version", API["InitProducerId"].versions)
def test_producer_ids_never_repeat(wire: Any, version: int) -> None:
    def init(transactional_id: str | None) -> tuple[int, int]:
        answer = wire.call(
            22, version, transactional_id=transactional_id, transaction_timeout=1000,
            producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
        return answer.error_code, answer.producer_id

    given = [init(None) for _ in range(1001)]
    assert given == [(0, number) for number in range(1001)]
    assert init("") == (42, -1)
    assert init("transaction") == (53, -1)


@pytest.mark.parametrize("version", API["DescribeCluster"].versions)
def test_describe_cluster(broker: headrace.Broker, wire: Any, version: int) -> None:
    asked = {"include_cluster_authorized_operations": False, "include_fenced_brokers": False}
    answer = wire.call(60, version, **asked)
    (node,) = answer.brokers
    assert (answer.error_code, f"{node.host}:{node.port}") == (0, broker.bootstrap_servers)
    assert len(answer.cluster_id) == 22
    if version >= 1:
        assert wire.call(60, version, endpoint_type=2, **asked).error_code == 114
