"""Settings of share groups: every row of the seed's tables and of Kafka's, at its bounds."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

import headrace
from headrace.broker.apis import SERVED_FOR_SHARE_GROUPS
from headrace.broker.config import Config
from headrace.broker.group_settings import GroupSettings
from headrace.broker.settings import INT_MAX, ConfigError
from headrace.core.catalog import Resource, SetConfigs
from headrace.log.memory_disk import MemoryDisk
from headrace.wire.leases import DescribeRequest, DescribeResponse
from headrace.wire.primitives import Reader, Writer

from .inside_rig import Inside, play
from .test_runtime import rebuilt

Connecting = Callable[[headrace.Broker], AbstractContextManager[Callable[[], Any]]]
GROUP, BROKER, SET, DELETE = 32, 4, 0, 1
OURS = [api.key for api in SERVED_FOR_SHARE_GROUPS if api.key >= 20900]

# Name, default, least, most; None where one more is not an integer of Kafka's.
BROKER_ROWS: list[tuple[str, int, int, int | None]] = [
    ("group.share.delivery.count.limit", 5, 2, 10),
    ("group.share.min.delivery.count.limit", 2, 2, 5),
    ("group.share.max.delivery.count.limit", 10, 5, 25),
    ("group.share.record.lock.duration.ms", 30_000, 1000, 60_000),
    ("group.share.min.record.lock.duration.ms", 1000, 1000, 30_000),
    ("group.share.max.record.lock.duration.ms", 60_000, 30_000, 3_600_000),
    ("group.share.partition.max.record.locks", 2000, 100, 100_000_000),
    ("group.share.min.partition.max.record.locks", 100, 100, 2000),
    ("group.share.max.partition.max.record.locks", 100_000_000, 2000, 100_000_000),
    ("group.share.max.share.sessions", 2000, 200, None),
    ("group.share.max.size", 200, 1, 1000),
    ("group.share.session.timeout.ms", 45_000, 45_000, 60_000),
    ("group.share.min.session.timeout.ms", 45_000, 1, 45_000),
    ("group.share.max.session.timeout.ms", 60_000, 45_000, None),
    ("group.share.heartbeat.interval.ms", 5000, 5000, 15_000),
    ("group.share.min.heartbeat.interval.ms", 5000, 1, 5000),
    ("group.share.max.heartbeat.interval.ms", 15_000, 5000, None),
    ("group.share.assignment.interval.ms", 0, 0, 15_000),
    ("group.share.min.assignment.interval.ms", 0, 0, 0),
    ("group.share.max.assignment.interval.ms", 15_000, 0, None),
    ("group.share.initialize.retry.interval.ms", 30_000, 1, None),
    ("share.fetch.purgatory.purge.interval.requests", 1000, -(2**31), None),
    ("share.coordinator.state.topic.num.partitions", 1, 1, 1000),
    ("share.coordinator.state.topic.replication.factor", 1, 1, 1),
    ("share.coordinator.state.topic.min.isr", 1, 1, 1),
    ("share.coordinator.state.topic.compression.codec", 0, 0, 0),
    ("share.coordinator.state.topic.segment.bytes", 104_857_600, 1 << 20, None),
    ("share.coordinator.threads", 1, 1, None),
    ("share.coordinator.snapshot.update.records.per.snapshot", 500, 0, 500),
    ("share.coordinator.write.timeout.ms", 5000, 1, None),
    ("share.coordinator.load.buffer.size", 5_242_880, 1, None),
    ("share.coordinator.append.linger.ms", -1, -1, None),
    ("share.coordinator.cached.buffer.max.bytes", 1_048_588, 512 * 1024, None),
    # the seed's
    ("share.delivery.count.limit", 5, 2, 10),
    ("share.delivery.attempt.limit", 5, 2, 10),
    ("share.record.lock.duration.ms", 30_000, 1000, 60_000),
    ("share.record.lock.partition.limit", 2000, 100, 100_000_000),
]
GROUP_ROWS: list[tuple[str, int, int, int]] = [
    ("share.session.timeout.ms", 45_000, 45_000, 60_000),
    ("share.heartbeat.interval.ms", 5000, 5000, 15_000),
    ("share.record.lock.duration.ms", 30_000, 1000, 60_000),
    ("record.lock.duration.ms", 30_000, 1000, 60_000),
    ("share.delivery.count.limit", 5, 2, 10),
    ("share.delivery.attempt.limit", 5, 2, 10),
    ("share.partition.max.record.locks", 2000, 100, 100_000_000),
    ("share.record.lock.partition.limit", 2000, 100, 100_000_000),
    ("share.assignment.interval.ms", 0, 0, 15_000),
]


def value_of(values: dict[str, str], name: str) -> Any:
    field, _ = Config.find(name)
    return getattr(Config.parse(values), field)


@pytest.mark.parametrize(("name", "default", "least", "most"), BROKER_ROWS)
def test_bounds_of_the_broker(name: str, default: int, least: int, most: int | None) -> None:
    assert value_of({}, name) == default
    for value in (least, INT_MAX if most is None else most):
        assert value_of({name: str(value)}, name) == value
    shown = Config.find(name)[1].name
    for outside in (least - 1, (INT_MAX if most is None else most) + 1):
        with pytest.raises(ConfigError) as refusal:
            Config.parse({name: str(outside)})
        told = str(refusal.value)
        assert told.startswith(("group.share.", "share.")), told
        # What is not the setting's own bound is another setting's, which is named.
        assert shown in told
        assert str(outside) in told


def test_the_longest_lock_may_be_as_short_as_the_seed_has_it() -> None:
    short = {"share.record.lock.duration.max.ms": "1000", "share.record.lock.duration.ms": "1000"}
    assert value_of(short, "group.share.max.record.lock.duration.ms") == 1000
    with pytest.raises(ConfigError, match="999 is below the minimum of 1000"):
        Config.parse({"share.record.lock.duration.max.ms": "999"})


def test_words_of_the_broker() -> None:
    assert Config().share_group_enable
    assert not Config.parse({"share.group.enable": "false"}).share_group_enable
    assert Config.parse({"group.share.assignors": "simple"}).share_assignors == ("simple",)
    persister = "org.apache.kafka.server.share.persister.DefaultStatePersister"
    assert value_of({}, "group.share.persister.class.name") == persister
    for values, message in [
        ({"group.share.assignors": "mine"}, "'mine' is not simple"),
        ({"group.share.assignors": ""}, "there must be one"),
        ({"group.share.persister.class.name": "Mine"}, "nowhere else"),
    ]:
        with pytest.raises(ConfigError, match=message):
            Config.parse(values)


def alter(wire: Any, group: str, name: str, value: str | None, kind: int = GROUP) -> Any:
    operation = DELETE if value is None else SET
    configs = [{"name": name, "config_operation": operation, "value": value}]
    resource = {"resource_type": kind, "resource_name": group, "configs": configs}
    (answer,) = wire.call(44, 1, resources=[resource], validate_only=False).responses
    return answer


def shown(wire: Any, group: str, name: str) -> str:
    resource = {"resource_type": GROUP, "resource_name": group, "configuration_keys": (name,)}
    (result,) = wire.call(32, 4, resources=[resource]).results
    (found,) = result.configs
    return str(found.value)


@pytest.mark.parametrize(("name", "default", "least", "most"), GROUP_ROWS)
def test_bounds_of_a_group(wire: Any, name: str, default: int, least: int, most: int) -> None:
    canonical = GroupSettings.find(name)[1].name
    assert shown(wire, "team", canonical) == str(default)
    for value in (least, most):
        assert alter(wire, "team", name, str(value)).error_code == 0
        assert shown(wire, "team", canonical) == str(value)
    for outside, bound in ((least - 1, least), (most + 1, most)):
        answer = alter(wire, "team", name, str(outside))
        assert answer.error_code == 40
        assert canonical in answer.error_message
        assert str(bound) in answer.error_message
    assert alter(wire, "team", name, None).error_code == 0
    assert shown(wire, "team", canonical) == str(default)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("share.auto.offset.reset", ["latest", "earliest"], ["none", "Latest", ""]),
        (
            "share.auto.offset.reset",
            ["by_duration:PT0S", "by_duration:P7D", "by_duration:P1DT2H3M4.567S"],
            [
                "by_duration", "by_duration:", "by_duration:1h", "by_duration:-PT1S",
                "by_duration:P", "by_duration:PT-1S", "by_durationPT1S", "by_duration:PT",
                "BY_DURATION:PT1S",
            ],
        ),
        ("share.isolation.level", ["read_committed", "read_uncommitted"], ["dirty"]),
        ("share.renew.acknowledge.enable", ["true", "false"], ["yes"]),
        ("group.type", ["share", "consumer"], ["classic"]),
        ("errors.deadletterqueue.copy.record.enable", ["true", "false"], ["1"]),
        (
            "errors.deadletterqueue.topic.name",
            ["dlq.orders", ""],
            ["no/name", "..", "__consumer_offsets"],
        ),
        ("no.such.setting", [], ["1"]),
    ],
)  # fmt: skip
def test_words_of_a_group(wire: Any, name: str, good: list[str], bad: list[str]) -> None:
    for value in good:
        assert alter(wire, "team", name, value).error_code == 0
        assert shown(wire, "team", name) == value
    for value in bad:
        assert alter(wire, "team", name, value).error_code == 40, value


def test_a_heartbeat_interval_is_shorter_than_the_session_timeout() -> None:
    config = Config.parse({"group.share.min.session.timeout.ms": "5000"})
    longer = {"share.heartbeat.interval.ms": "6000"}
    GroupSettings.check(config, longer)
    with pytest.raises(
        ConfigError, match=r"6000 is not below share.session.timeout.ms, which is 6"
    ):
        GroupSettings.check(config, {"share.session.timeout.ms": "6000"}, longer)


def test_a_session_timeout_is_not_deleted_below_the_heartbeat_interval(
    connecting: Connecting,
) -> None:
    settings = {
        "group.share.max.heartbeat.interval.ms": "100000",
        "group.share.session.timeout.ms": "50000",
    }
    timeout, interval = "share.session.timeout.ms", "share.heartbeat.interval.ms"
    with headrace.Broker(settings=settings) as broker, connecting(broker) as open_:
        wire = open_()
        assert alter(wire, "team", timeout, None).error_code == 0  # it was not set
        assert alter(wire, "team", timeout, "60000").error_code == 0
        assert alter(wire, "team", interval, "55000").error_code == 0
        refused = alter(wire, "team", timeout, None)
        assert (refused.error_code, "which is 50000" in refused.error_message) == (40, True)
        assert shown(wire, "team", timeout) == "60000"
        assert alter(wire, "team", "no.such.setting", None).error_code == 0
        assert alter(wire, "team", "no.such.setting", "1").error_code == 40
        assert alter(wire, "team", interval, None).error_code == 0
        assert alter(wire, "team", timeout, None).error_code == 0


def test_the_type_of_a_group_that_is_there_cannot_change(wire: Any) -> None:
    wire.create("orders")
    beat(wire, "shared")
    answer = alter(wire, "shared", "group.type", "consumer")
    assert (answer.error_code, "delete it" in answer.error_message) == (40, True)
    assert alter(wire, "shared", "group.type", "share").error_code == 0
    assert alter(wire, "other", "group.type", "consumer").error_code == 0
    assert beat(wire, "other") == 69


def beat(wire: Any, group: str) -> int:
    answer = wire.call(
        76, 1, group_id=group, member_id="member", member_epoch=0, rack_id=None,
        subscribed_topic_names=("orders",),
    )  # fmt: skip
    return int(answer.error_code)


def test_the_assignment_interval_of_the_broker_may_change_while_it_runs(wire: Any) -> None:
    name = "group.share.assignment.interval.ms"
    assert alter(wire, "1", name, "700", BROKER).error_code == 0
    assert shown(wire, "team", "share.assignment.interval.ms") == "700"
    assert alter(wire, "1", name, "15001", BROKER).error_code == 42
    assert alter(wire, "1", "share.coordinator.threads", "2", BROKER).error_code == 42


def test_no_share_api_is_served_where_they_are_switched_off(connecting: Connecting) -> None:
    settings = {"share.group.enable": False}
    with headrace.Broker(settings=settings) as broker, connecting(broker) as open_:
        wire = open_()
        told = {one.api_key for one in wire.call(18, 2).api_keys}
        assert {0, 1, 68} <= told
        assert not told & {76, 77, 78, 79, 90, 91, 92, *OURS}
        assert beat(wire, "g") == 35
        fields: dict[str, Any] = {"group_ids": ("g",), "include_authorized_operations": False}
        assert [one.error_code for one in wire.call(77, 1, **fields).groups] == [35]
        whole = {"group_id": "g", "topics": ()}
        session = whole | {"member_id": "m", "share_session_epoch": 0, "is_renew_ack": False}
        fetch = session | {
            "max_wait": 0, "min_bytes": 1, "max_bytes": 1, "max_records": 1, "batch_size": 1,
            "share_acquire_mode": 0, "forgotten_topics_data": (),
        }  # fmt: skip
        assert wire.call(78, 2, **fetch).error_code == 35
        assert wire.call(79, 2, **session).error_code == 35
        assert [one.error_code for one in wire.call(90, 1, groups=(whole,)).groups] == [35]
        assert wire.call(91, 0, **whole).error_code == 35
        assert wire.call(92, 0, **whole).error_code == 35
        for key in OURS:
            wire.send(key, 0, b"\0")  # the tags of its header; more is not looked at
            _, answer = wire.receive()
            assert Reader(answer[1:]).int16() == 35, key
        out = Writer()
        DescribeRequest("g", "", -1).write(out)
        wire.send(20905, 0, b"\0" + bytes(out.data))
        _, answer = wire.receive()
        assert DescribeResponse.read(Reader(answer[1:])).partitions == ()


def test_a_setting_that_a_failed_write_took_back_is_not_in_force() -> None:
    """Decisions may have read it before the journal of the catalogue failed."""
    disk, name = MemoryDisk(), "share.record.lock.duration.ms"

    async def scene(inside: Inside) -> None:
        topics, shares = inside.services.topics, inside.services.shares
        await topics.set_configs(SetConfigs(Resource.GROUP, "g", {name: "20000"}))
        disk.fail_after(0)
        topics.journal.decide(SetConfigs(Resource.GROUP, "g", {name: "50000"}))
        assert shares.policy("g").lock_ms == 50_000
        while topics.journal.fault is None:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0)
        disk.fail_after(None)
        inside.clock.advance(10_000)
        await rebuilt(topics.journal)
        assert topics.catalog.configs_of(Resource.GROUP, "g") == {name: "20000"}
        assert shares.policy("g").lock_ms == 20_000

    play(lambda: Inside(disk), scene)
