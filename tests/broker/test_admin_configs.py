"""Settings over the wire: where a value comes from, who may change what, and that it is kept."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.broker import dynamic_config
from headrace.wire import batches

TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
LONG = 5  # type of a value
OF_TOPIC, OF_BROKER, OF_EVERY_BROKER, OF_START, OF_DEFAULT, OF_GROUP = 1, 2, 3, 4, 5, 8
LAGS = [("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "5")]
Connecting = Callable[[headrace.Broker], AbstractContextManager[Callable[[], Any]]]


def alter(wire: Any, kind: int, name: str, *changes: tuple[str, int, str | None]) -> int:
    """Code of an IncrementalAlterConfigs with one resource; refusals say why."""
    configs = [
        {"name": key, "config_operation": operation, "value": value}
        for key, operation, value in changes
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    (answer,) = wire.call(44, 1, resources=[resource], validate_only=False).responses
    assert bool(answer.error_message) == bool(answer.error_code)
    return int(answer.error_code)


def described(wire: Any, kind: int, name: str, *keys: str, **asked: bool) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    (result,) = wire.call(32, 4, resources=[resource], **asked).results
    assert result.error_code == 0, result.error_message
    return {one.name: one for one in result.configs}


def shown(wire: Any, kind: int, name: str, key: str) -> tuple[str, int, list[tuple[Any, ...]]]:
    """Value, source, and (source, name, value) of each synonym."""
    found = described(wire, kind, name, key, include_synonyms=True)[key]
    synonyms = [(one.source, one.name, one.value) for one in found.synonyms]
    return found.value, found.config_source, synonyms


def test_a_topic_shows_all_that_stands_behind_its_value(wire: Any) -> None:
    wire.create("orders")
    default = (OF_DEFAULT, "message.max.bytes", "1048588")
    for_all = (OF_EVERY_BROKER, "message.max.bytes", "2000")
    for_one = (OF_BROKER, "message.max.bytes", "3000")
    own = (OF_TOPIC, "max.message.bytes", "4000")
    key = (TOPIC, "orders", "max.message.bytes")
    assert shown(wire, *key) == ("1048588", OF_DEFAULT, [default])
    assert alter(wire, BROKER, "", ("message.max.bytes", SET, "2000")) == 0
    assert shown(wire, *key) == ("2000", OF_EVERY_BROKER, [for_all, default])
    assert alter(wire, BROKER, "1", ("message.max.bytes", SET, "3000")) == 0
    assert shown(wire, *key) == ("3000", OF_BROKER, [for_one, for_all, default])
    assert alter(wire, *key[:2], ("max.message.bytes", SET, "4000")) == 0
    assert shown(wire, *key) == ("4000", OF_TOPIC, [own, for_one, for_all, default])
    assert alter(wire, BROKER, "1", ("message.max.bytes", DELETE, None)) == 0
    assert alter(wire, *key[:2], ("max.message.bytes", DELETE, None)) == 0
    assert shown(wire, *key) == ("2000", OF_EVERY_BROKER, [for_all, default])


def test_a_topic_shows_how_long_deleted_files_stay(wire: Any) -> None:
    wire.create("orders")
    key = (TOPIC, "orders", "file.delete.delay.ms")
    default = (OF_DEFAULT, "log.segment.delete.delay.ms", "60000")
    assert shown(wire, *key) == ("60000", OF_DEFAULT, [default])
    assert described(wire, *key)["file.delete.delay.ms"].config_type == LONG
    assert alter(wire, *key[:2], ("file.delete.delay.ms", SET, "5")) == 0
    assert shown(wire, *key) == ("5", OF_TOPIC, [(OF_TOPIC, key[2], "5"), default])


def test_the_internal_size_of_segments_is_another_name(wire: Any) -> None:
    """Kafka shows `internal.segment.bytes`, which is for its tests, where a topic sets it alone."""
    wire.create("orders")
    topic, internal = (TOPIC, "orders"), "internal.segment.bytes"
    assert internal not in described(wire, *topic)
    assert described(wire, *topic, internal) == {}
    assert alter(wire, *topic, (internal, SET, "2048")) == 0
    assert shown(wire, *topic, "segment.bytes")[:2] == ("2048", OF_TOPIC)
    assert internal not in described(wire, *topic)
    assert alter(wire, *topic, (internal, DELETE, None)) == 0
    assert shown(wire, *topic, "segment.bytes")[:2] == ("1073741824", OF_DEFAULT)


def test_settings_in_other_units_are_synonyms_as_kafka_shows_them(connecting: Connecting) -> None:
    with (
        headrace.Broker(settings={"log.retention.hours": 1}) as broker,
        connecting(broker) as open_,
    ):
        wire = open_()
        wire.create("orders")
        hours = (OF_START, "log.retention.hours", "1")
        default = (OF_DEFAULT, "log.retention.hours", "168")
        assert shown(wire, BROKER, "1", "log.retention.hours") == ("1", OF_START, [hours, default])
        assert shown(wire, TOPIC, "orders", "retention.ms") == ("3600000", OF_DEFAULT, [])
        assert alter(wire, BROKER, "1", ("log.retention.ms", SET, "5000")) == 0
        ms = (OF_BROKER, "log.retention.ms", "5000")
        expected = ("5000", OF_BROKER, [ms, hours, default])
        assert shown(wire, TOPIC, "orders", "retention.ms") == expected


def test_a_group_shows_the_setting_of_the_broker_behind_its_own(wire: Any) -> None:
    key = "share.record.lock.duration.ms"
    default = (OF_DEFAULT, "group.share.record.lock.duration.ms", "30000")
    assert shown(wire, GROUP, "team", key) == ("30000", OF_DEFAULT, [default])
    assert alter(wire, GROUP, "team", (key, SET, "2000")) == 0
    assert shown(wire, GROUP, "team", key) == ("2000", OF_GROUP, [(OF_GROUP, key, "2000"), default])


def test_a_group_may_keep_its_offsets_for_a_time_of_its_own(wire: Any) -> None:
    key = "offsets.retention.minutes"
    default = (OF_DEFAULT, key, "10080")
    assert shown(wire, GROUP, "team", key) == ("10080", OF_DEFAULT, [default])
    assert alter(wire, GROUP, "team", (key, SET, "0")) == 40
    assert alter(wire, GROUP, "team", (key, SET, "525600")) == 0
    own = (OF_GROUP, key, "525600")
    assert shown(wire, GROUP, "team", key) == ("525600", OF_GROUP, [own, default])
    assert alter(wire, GROUP, "team", (key, DELETE, None)) == 0
    assert shown(wire, GROUP, "team", key)[:2] == ("10080", OF_DEFAULT)


def test_numbers_of_a_group_are_of_the_size_that_kafka_has(wire: Any) -> None:
    types = {one.config_type for one in described(wire, GROUP, "team").values()}
    assert types == {1, 2, 3}, "booleans, strings and 32-bit numbers"


def test_what_was_not_asked_for_is_left_out_and_keys_narrow_the_answer(wire: Any) -> None:
    wire.create("orders")
    everything = described(wire, TOPIC, "orders")
    assert {"cleanup.policy", "segment.jitter.ms", "remote.storage.enable"} <= set(everything)
    assert all(one.synonyms == () and one.documentation is None for one in everything.values())
    full = described(wire, TOPIC, "orders", include_synonyms=True, include_documentation=True)
    assert all(one.documentation for one in full.values())
    assert set(described(wire, TOPIC, "orders", "segment.ms", "no.such")) == {"segment.ms"}
    types = {name: everything[name].config_type for name in ("cleanup.policy", "preallocate")}
    assert types == {"cleanup.policy": 7, "preallocate": 1}


def test_resources_beside_topics_and_groups(wire: Any) -> None:
    broker = described(wire, BROKER, "1")
    assert broker["num.partitions"].read_only
    assert not broker["log.segment.bytes"].read_only
    assert described(wire, BROKER, "") == {}, "only what was set for every broker"
    assert described(wire, LOGGER, "1") == {}
    for kind, name in ((BROKER, "7"), (LOGGER, "7"), (GROUP, ""), (16, "x")):
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        (result,) = wire.call(32, 4, resources=[resource]).results
        assert result.error_code == 42


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (BROKER, "1", [("num.partitions", SET, "3")], 42),
        (BROKER, "1", [("message.max.bytes", SET, "-3")], 42),
        (BROKER, "9", [("message.max.bytes", SET, "3")], 42),
        (BROKER, "", [("compression.type", SET, "brotli")], 42),
        (LOGGER, "1", [("root", SET, "DEBUG")], 42),
        (TOPIC, "orders", [("segment.ms", SET, "1"), ("segment.ms", SET, "2")], 42),
        (TOPIC, "orders", [("segment.ms", SET, None)], 42),
        (TOPIC, "orders", [("segment.ms", 7, "1")], 42),
        (TOPIC, "orders", [("segment.ms", APPEND, "1")], 40),
        (TOPIC, "orders", [("no.such.setting", SET, "1")], 40),
        (BROKER, "", [("", SET, "1")], 42),
        (TOPIC, "orders", [("min.insync.replicas", SET, "0")], 40),
        (TOPIC, "orders", [("compression.type", SET, "brotli")], 40),
        (TOPIC, "orders", [("remote.storage.enable", SET, "true")], 40),
        (TOPIC, "orders", [("preallocate", SET, "perhaps")], 40),
        (TOPIC, "orders", [("cleanup.policy", APPEND, "burn")], 40),
        (TOPIC, "orders", LAGS, 40),
        (TOPIC, "nothing", [("segment.ms", SET, "1")], 3),
        (GROUP, "", [("share.auto.offset.reset", SET, "latest")], 42),
    ],
)  # fmt: skip
def test_changes_that_are_refused(
    wire: Any, kind: int, name: str, changes: list[tuple[str, int, str | None]], code: int
) -> None:
    wire.create("orders")
    before = described(wire, TOPIC, "orders"), described(wire, BROKER, "1")
    assert alter(wire, kind, name, *changes) == code
    assert (described(wire, TOPIC, "orders"), described(wire, BROKER, "1")) == before


def test_what_kafkas_users_pass_routinely_is_accepted_where_it_is_true(wire: Any) -> None:
    given = {
        "segment.jitter.ms": "1000",
        "segment.index.bytes": "1048576",
        "preallocate": "true",
        "unclean.leader.election.enable": "true",
        "min.insync.replicas": "2",
        "remote.storage.enable": "false",
        "local.retention.ms": "-2",
        "compression.type": "zstd",
        "compression.zstd.level": "5",
        "leader.replication.throttled.replicas": "0:1",
        "message.timestamp.type": "LogAppendTime",
    }
    made = wire.create("orders", configs=[{"name": n, "value": v} for n, v in given.items()])
    assert made.error_code == 0, made.error_message
    assert {one.name: one.value for one in made.configs if one.name in given} == given


def test_every_name_can_be_deleted_whether_it_is_set_or_not(wire: Any) -> None:
    """As in Kafka: scripts delete what an earlier run may have set."""
    wire.create("orders")
    for kind, name in ((TOPIC, "orders"), (BROKER, "1"), (BROKER, ""), (GROUP, "readers")):
        assert alter(wire, kind, name, ("no.such.setting", DELETE, None)) == 0
    assert alter(wire, TOPIC, "orders", ("segment.ms", DELETE, None)) == 0
    assert alter(wire, GROUP, "readers", ("consumer.session.timeout.ms", DELETE, None)) == 0


def test_a_broker_keeps_settings_that_it_does_not_know(wire: Any) -> None:
    """As in Kafka, where they are for plugins: shown without their value, which may be a secret."""
    assert alter(wire, BROKER, "", ("my.plugin.url", SET, "x")) == 0
    assert alter(wire, BROKER, "1", ("my.plugin.key", SET, "y")) == 0
    for name, key, source in (
        ("", "my.plugin.url", OF_EVERY_BROKER),
        ("1", "my.plugin.url", OF_EVERY_BROKER),
        ("1", "my.plugin.key", OF_BROKER),
    ):
        found = described(wire, BROKER, name)[key]
        assert (found.value, found.is_sensitive, found.config_source) == (None, True, source)
    wire.create("orders")
    assert described(wire, TOPIC, "orders")["max.message.bytes"].value == "1048588"
    assert alter(wire, BROKER, "1", ("my.plugin.key", DELETE, None)) == 0
    assert "my.plugin.key" not in described(wire, BROKER, "1")


def test_a_group_has_an_assignment_interval_of_its_own(wire: Any) -> None:
    key = "consumer.assignment.interval.ms"
    assert shown(wire, GROUP, "readers", key)[:2] == ("0", OF_DEFAULT)
    assert alter(wire, GROUP, "readers", (key, SET, "700")) == 0
    assert shown(wire, GROUP, "readers", key)[:2] == ("700", OF_GROUP)
    assert alter(wire, GROUP, "readers", (key, SET, "15001")) == 40


def test_a_broker_shows_where_it_listens_and_writes(wire: Any) -> None:
    shown_ = described(wire, BROKER, "1", "listeners", "advertised.listeners", "log.dirs")
    assert shown_["listeners"].value.startswith("PLAINTEXT://127.0.0.1:")
    assert shown_["advertised.listeners"].value == shown_["listeners"].value
    assert Path(shown_["log.dirs"].value).is_dir()
    assert all(one.read_only for one in shown_.values())


def test_lists_are_changed_item_by_item(wire: Any) -> None:
    wire.create("orders")
    policy = "cleanup.policy"
    for operation, items, left in [
        (APPEND, "compact", "delete,compact"),
        (APPEND, "delete", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SET, "delete, compact", "delete,compact"),
    ]:
        assert alter(wire, TOPIC, "orders", (policy, operation, items)) == 0
        assert described(wire, TOPIC, "orders", policy)[policy].value == left


@pytest.mark.parametrize("version", range(3))
def test_the_older_request_replaces_all_that_was_set(wire: Any, version: int) -> None:
    wire.create("orders", configs=[{"name": "segment.ms", "value": "5000"}])

    def replace(kind: int, name: str, *configs: tuple[str, str | None], dry: bool = False) -> int:
        values = [{"name": key, "value": value} for key, value in configs]
        resource = {"resource_type": kind, "resource_name": name, "configs": values}
        (answer,) = wire.call(33, version, resources=[resource], validate_only=dry).responses
        return int(answer.error_code)

    def own(kind: int, name: str, source: int) -> dict[str, str]:
        found = described(wire, kind, name).values()
        return {one.name: one.value for one in found if one.config_source == source}

    assert replace(TOPIC, "orders", ("retention.ms", "7"), dry=True) == 0
    assert own(TOPIC, "orders", OF_TOPIC) == {"segment.ms": "5000"}
    assert replace(TOPIC, "orders", ("retention.ms", "7")) == 0
    assert own(TOPIC, "orders", OF_TOPIC) == {"retention.ms": "7"}
    assert replace(TOPIC, "orders", ("retention.ms", "7"), ("retention.ms", "8")) == 42
    assert replace(TOPIC, "orders", ("retention.ms", None)) == 42
    assert replace(TOPIC, "orders", ("retention.ms", "-7")) == 40
    assert replace(TOPIC, "nothing", ("retention.ms", "7")) == 3
    assert replace(BROKER, "1", ("log.roll.ms", "9")) == 0
    assert replace(BROKER, "1", ("log.segment.bytes", "2048")) == 0
    assert own(BROKER, "1", OF_BROKER) == {"log.segment.bytes": "2048"}
    assert replace(TOPIC, "orders") == 0
    assert own(TOPIC, "orders", OF_TOPIC) == {}


def test_a_resource_that_is_named_twice(wire: Any) -> None:
    wire.create("orders")
    resource = {"resource_type": TOPIC, "resource_name": "orders", "configs": []}
    answer = wire.call(44, 1, resources=[resource, resource], validate_only=False)
    assert [one.error_code for one in answer.responses] == [42, 42]


def test_a_brokers_settings_count_at_once_and_outlive_a_restart(
    tmp_path: Path, connecting: Connecting
) -> None:
    with headrace.Broker(tmp_path) as broker, connecting(broker) as open_:
        wire = open_()
        wire.create("orders")
        assert alter(wire, BROKER, "", ("message.max.bytes", SET, "100")) == 0
        assert produce(wire, b"x" * 200) == 10
        assert alter(wire, BROKER, "1", ("message.max.bytes", SET, "500")) == 0
        assert produce(wire, b"x" * 200) == 0
        assert alter(wire, BROKER, "1", ("max.connections", SET, "1")) == 42  # would lock out
        assert alter(wire, BROKER, "1", ("max.connections", SET, "100")) == 0
        assert alter(wire, BROKER, "1", ("my.plugin.key", SET, "y")) == 0
    with headrace.Broker(tmp_path) as broker, connecting(broker) as open_:
        wire = open_()
        assert described(wire, BROKER, "1")["my.plugin.key"].config_source == OF_BROKER
        assert produce(wire, b"x" * 200) == 0
        assert produce(wire, b"x" * 600) == 10
        assert alter(wire, BROKER, "1", ("message.max.bytes", DELETE, None)) == 0
        assert produce(wire, b"x" * 200) == 10


def test_a_limit_of_connections_that_locks_out_is_ignored_at_a_start(
    tmp_path: Path, connecting: Connecting, caplog: pytest.LogCaptureFixture
) -> None:
    """Releases before the lowest value was checked stored any."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_config, "FLOORS", {})
        with headrace.Broker(tmp_path) as broker, connecting(broker) as open_:
            assert alter(open_(), BROKER, "1", ("max.connections", SET, "1")) == 0
    reserved = {"headrace.max.connections.reserved": 0}
    with headrace.Broker(tmp_path, settings=reserved) as broker, connecting(broker) as open_:
        assert [open_().call(18, 0).error_code for _ in range(3)] == [0] * 3
    assert "max.connections=1" in caplog.text


def produce(wire: Any, value: bytes) -> int:
    data = batches.build([batches.Record(0, 5, None, value)])
    topic = {"name": "orders", "partition_data": ({"index": 0, "records": data},)}
    answer = wire.call(0, 9, transactional_id=None, acks=1, timeout=1000, topic_data=(topic,))
    return int(answer.responses[0].partition_responses[0].error_code)


def test_the_settings_of_a_resource_are_bounded(wire: Any) -> None:
    large = "x" * 30_000
    for number in range(2):
        assert alter(wire, BROKER, "1", (f"plugin.{number}", SET, large)) == 0
    assert alter(wire, BROKER, "1", ("plugin.2", SET, large)) == 42
    assert "plugin.2" not in described(wire, BROKER, "1")
    assert alter(wire, BROKER, "1", ("plugin.0", DELETE, None)) == 0
    assert alter(wire, BROKER, "1", ("plugin.2", SET, large)) == 0
    replicas = ",".join(f"{number}:1" for number in range(12_000))
    throttled = "follower.replication.throttled.replicas"
    refused = wire.create("orders", configs=[{"name": throttled, "value": replicas}])
    assert refused.error_code == 40
    assert "65536 are allowed" in refused.error_message
    wire.create("orders")
    assert alter(wire, TOPIC, "orders", (throttled, SET, replicas)) == 40


@pytest.mark.parametrize("name", ["log.dirs", "listeners", "port"])
def test_what_is_an_option_of_the_start_cannot_be_altered(wire: Any, name: str) -> None:
    before = described(wire, BROKER, "1", name)
    assert alter(wire, BROKER, "1", (name, SET, "/elsewhere")) == 42
    assert alter(wire, BROKER, "", (name, SET, "/elsewhere")) == 42
    assert alter(wire, BROKER, "1", (name, DELETE, None)) == 0
    assert described(wire, BROKER, "1", name) == before
