"""Settings: names, aliases, bounds, and messages that say what to do."""

import pytest

from headrace.broker.config import Config
from headrace.broker.group_settings import GroupSettings
from headrace.broker.settings import ConfigError, spelled
from headrace.broker.topic_settings import TopicSettings


def test_defaults_are_kafkas_and_ours() -> None:
    config = Config.parse({})
    assert config.share_record_locks == 2000
    assert config.lease_record_locks == 1_000_000
    assert config.durability == "os"
    assert config.auto_create_topics
    assert config.dead_letter_auto_create


@pytest.mark.parametrize(
    ("alias", "text", "field", "value"),
    [
        ("share.record.lock.duration.ms", "1000", "share_lock_ms", 1000),
        ("share.delivery.count.limit", "7", "share_delivery_count_limit", 7),
        ("share.delivery.attempt.limit", "7", "share_delivery_count_limit", 7),
        ("share.record.lock.partition.limit", "100", "share_record_locks", 100),
        ("share.record.lock.duration.max.ms", "90000", "share_lock_ms_max", 90_000),
        ("share.group.enable", "FALSE", "share_group_enable", False),
        ("group.share.partition.max.record.locks", "100000000", "share_record_locks", 100_000_000),
        ("headrace.durability", "fsync", "durability", "fsync"),
    ],
)
def test_names_and_aliases(alias: str, text: str, field: str, value: object) -> None:
    assert getattr(Config.parse({alias: text}), field) == value


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num.partition": "3"}, "no setting 'num.partition'; did you mean num.partitions?"),
        ({"qqq": "3"}, "no setting 'qqq'$"),
        ({"num.partitions": "0"}, "num.partitions: 0 is below the minimum of 1"),
        ({"num.partitions": "many"}, "num.partitions: 'many' is not a whole number"),
        (
            {"group.share.partition.max.record.locks": "100000001"},
            "100000001 is above the maximum of 100000000",
        ),
        ({"share.group.enable": "1"}, "'1' is neither true nor false"),
        ({"headrace.durability": "maybe"}, "'maybe' is none of os, fsync"),
        ({"log.cleanup.policy": "delete,burn"}, "'burn' is none of delete, compact"),
        ({"log.cleaner.min.cleanable.ratio": "nan"}, "nan is below the minimum of 0"),
        (
            {"share.delivery.count.limit": "5", "group.share.delivery.count.limit": "5"},
            "is set twice",
        ),
        (
            {"share.delivery.count.limit": "11"},
            "11 is above group.share.max.delivery.count.limit, which is 10",
        ),
        (
            {"share.record.lock.duration.ms": "70000"},
            "70000 is above group.share.max.record.lock.duration.ms, which is 60000",
        ),
        (
            {
                "group.share.heartbeat.interval.ms": "5000",
                "group.share.min.session.timeout.ms": "1",
                "group.share.session.timeout.ms": "5000",
            },
            "must be below group.share.session.timeout.ms",
        ),
    ],
)
def test_what_is_refused_and_how_it_is_told(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.parse(values)


def test_a_group_takes_its_own_values_then_the_brokers() -> None:
    config = Config.parse({"group.share.record.lock.duration.ms": "20000"})
    group = GroupSettings.resolve(
        config, {"share.auto.offset.reset": "earliest", "record.lock.duration.ms": "5000"}
    )
    assert (group.auto_offset_reset, group.share_lock_ms) == ("earliest", 5000)
    assert GroupSettings.resolve(config, {}).share_lock_ms == 20_000


def test_values_of_a_group_that_the_broker_no_longer_allows_are_clamped() -> None:
    config = Config.parse({"share.record.lock.duration.max.ms": "40000"})
    stored = {"share.record.lock.duration.ms": "60000", "share.delivery.count.limit": "99"}
    group = GroupSettings.resolve(config, stored)
    assert (group.share_lock_ms, group.share_delivery_count_limit) == (40_000, 10)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("share.record.lock.duration.ms", "999", "below the minimum of 1000"),
        ("share.record.lock.duration.ms", "60001", "60001 is outside 1000 to 60000"),
        ("share.delivery.count.limit", "11", "11 is outside 2 to 10"),
        ("share.auto.offset.reset", "middle", "none of latest, earliest, by_duration"),
        ("retention.ms", "1", "there is no setting 'retention.ms'"),
    ],
)
def test_values_that_a_group_may_not_set(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GroupSettings.check(Config(), {name: value})


def test_a_topic_takes_its_own_values_then_the_brokers() -> None:
    config = Config.parse({"message.max.bytes": "5000"})
    assert TopicSettings.resolve(config, {}).message_max_bytes == 5000
    assert TopicSettings.resolve(config, {"max.message.bytes": "7"}).message_max_bytes == 7


@pytest.mark.parametrize("table", [Config, GroupSettings, TopicSettings])
def test_every_default_can_be_spelled_and_read_back(table: type[Config]) -> None:
    names = [name for s in table.settings().values() for name in (s.name, *s.aliases)]
    assert len(names) == len(set(names))
    for setting in table.settings().values():
        if setting.default is not None:
            assert setting.parse(spelled(setting.default)) == setting.default
        assert setting.doc.endswith(".")


def test_a_topic_takes_its_own_values_then_the_brokers_as_kafka_ranks_them() -> None:
    config = Config.parse(
        {"log.retention.hours": "1", "log.retention.minutes": "30", "log.cleanup.policy": "compact"}
    )
    topic = TopicSettings.resolve(config, {"cleanup.policy": "compact, delete"})
    assert topic.retention_ms == 30 * 60_000
    assert topic.cleanup_policy == ("compact", "delete")
    assert TopicSettings.resolve(Config.parse({"log.retention.hours": "-1"}), {}).retention_ms == -1
