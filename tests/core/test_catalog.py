"""The catalogue's rules, its journal's bytes, and that replay equals live."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.catalog import (
    AddPartitions,
    AllocateProducerIds,
    Catalog,
    Command,
    ConfigSet,
    CreateTopic,
    DeleteTopic,
    Event,
    PartitionsAdded,
    ProducerIdsAllocated,
    Resource,
    SetConfigs,
    TopicCreated,
    TopicDeleted,
)
from headrace.core.errors import Refused, Why
from headrace.core.machine import Entry
from headrace.core.types import MonoMs, Now, WallMs
from headrace.log.metadata_records import MetadataRecords
from headrace.wire.primitives import Malformed

NOW = Now(MonoMs(0), WallMs(0))
ID = UUID(int=0x11223344556677889900AABBCCDDEEFF)


def run(catalog: Catalog, command: Command) -> Any:
    """Decide and apply; the refusal's reason, or the reply and the events."""
    decided = catalog.decide(command, NOW)
    if isinstance(decided, Refused):
        return decided.why
    for event in decided.events:
        catalog.apply(event)
    return decided.reply


def created(name: str = "orders", partitions: int = 2, **configs: str) -> Catalog:
    catalog = Catalog()
    run(catalog, CreateTopic(name, ID, partitions, configs))
    return catalog


def test_a_topic_is_found_by_name_and_by_id_with_its_configuration() -> None:
    catalog = created("orders", 3, retention="7")
    topic = catalog.topics["orders"]
    assert (topic.name, topic.id, topic.partitions, topic.internal) == ("orders", ID, 3, False)
    assert catalog.topics_by_id[ID] is topic
    assert catalog.configs_of(Resource.TOPIC, "orders") == {"retention": "7"}


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 250, "é", "a\n"])
def test_names_that_are_refused(name: str) -> None:
    assert run(Catalog(), CreateTopic(name, ID, 1, {})) is Why.INVALID_TOPIC


def test_names_that_differ_in_dots_and_underscores_alone_collide() -> None:
    assert run(created("a.b"), CreateTopic("a_b", UUID(int=2), 1, {})) is Why.INVALID_TOPIC


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (CreateTopic("orders", UUID(int=2), 1, {}), Why.TOPIC_EXISTS),
        (CreateTopic("new", UUID(int=2), 0, {}), Why.INVALID_PARTITIONS),
        (CreateTopic("new", UUID(int=2), 10_001, {}), Why.INVALID_PARTITIONS),
        (DeleteTopic(UUID(int=9)), Why.UNKNOWN_TOPIC),
        (AddPartitions("orders", 2), Why.INVALID_PARTITIONS),
        (AddPartitions("orders", 10_001), Why.INVALID_PARTITIONS),
        (AddPartitions("none", 2), Why.UNKNOWN_TOPIC),
        (SetConfigs(Resource.TOPIC, "none", {"a": "b"}), Why.UNKNOWN_TOPIC),
    ],
)
def test_refusals(command: Command, why: Why) -> None:
    assert run(created(), command) is why


@pytest.mark.parametrize("command", [DeleteTopic(ID), AddPartitions("__share_group_state", 9)])
def test_internal_topics_stay_as_they_are(command: Command) -> None:
    assert run(created("__share_group_state"), command) is Why.INVALID_TOPIC


@pytest.mark.parametrize(
    "command",
    [
        CreateTopic("new", UUID(int=2), 1, {"a": "b"}, validate_only=True),
        AddPartitions("orders", 5, validate_only=True),
    ],
)
def test_validation_alone_changes_nothing(command: Command) -> None:
    catalog = created()
    assert not isinstance(run(catalog, command), Why)
    assert snapshot(catalog) == snapshot(created())


def test_deleting_a_topic_forgets_its_configuration_and_frees_its_name() -> None:
    catalog = created("orders", 3, retention="7")
    run(catalog, DeleteTopic(ID))
    assert snapshot(catalog) == snapshot(Catalog())
    run(catalog, CreateTopic("orders", UUID(int=2), 1, {}))
    assert catalog.topics["orders"].partitions == 1


def test_configuration_of_a_group_needs_no_group_and_can_be_taken_back() -> None:
    catalog = Catalog()
    run(catalog, SetConfigs(Resource.GROUP, "g", {"a": "1", "b": "2"}))
    run(catalog, SetConfigs(Resource.GROUP, "g", {"a": None}))
    assert catalog.configs_of(Resource.GROUP, "g") == {"b": "2"}
    run(catalog, SetConfigs(Resource.GROUP, "g", {"b": None}))
    assert snapshot(catalog) == snapshot(Catalog())


def test_producer_ids_are_given_out_once() -> None:
    catalog = Catalog()
    assert run(catalog, AllocateProducerIds(1000)) == range(1000)
    assert run(catalog, AllocateProducerIds(5)) == range(1000, 1005)


GOLDEN = [
    (
        TopicCreated("foo", ID),
        "01 02 00 04 666f6f 11223344556677889900aabbccddeeff 00",
    ),
    (
        PartitionsAdded(ID, 1, 1),
        "01 03 00 00000001 11223344556677889900aabbccddeeff 02 00000007 02 00000007 01 01"
        " 00000007 00000000 00000000 00",
    ),
    (
        ConfigSet(Resource.TOPIC, "foo", "a.b", "c"),
        "01 04 00 02 04 666f6f 04 612e62 02 63 00",
    ),
    (ConfigSet(Resource.GROUP, "g", "a", None), "01 04 00 20 02 67 02 61 00 00"),
    (TopicDeleted(ID), "01 09 00 11223344556677889900aabbccddeeff 00"),
    (ProducerIdsAllocated(1000), "01 0f 00 00000007 ffffffffffffffff 00000000000003e8 00"),
]


@pytest.mark.parametrize(("event", "value"), GOLDEN)
def test_bytes_of_the_journal(event: Event, value: str) -> None:
    journal = MetadataRecords(node_id=7)
    assert journal.records([event], WallMs(0)) == [Entry(None, bytes.fromhex(value))]
    assert journal.events(None, bytes.fromhex(value)) == [event]


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\x02\x02\x00",
        b"\x01\x02\x01",
        b"\x01\x7f\x00",
        bytes.fromhex("01 04 00 05 02 67 02 61 00 00"),
    ],
)
def test_records_from_the_future_stop_the_load(value: bytes | None) -> None:
    with pytest.raises(Malformed):
        MetadataRecords(node_id=7).events(None, value)


def snapshot(catalog: Catalog) -> Any:
    topics = {(t.name, t.id, t.partitions) for t in catalog.topics.values()}
    assert topics == {(t.name, t.id, t.partitions) for t in catalog.topics_by_id.values()}
    return topics, catalog.configs, catalog.next_producer_id


names = st.sampled_from(["a", "b", "a.b", "a_b", "__share_group_state", "c d"])
ids = st.integers(1, 4).map(lambda number: UUID(int=number))
values = st.dictionaries(st.sampled_from(["x", "y"]), st.none() | st.sampled_from(["1", "2"]))
commands = st.one_of(
    st.builds(
        CreateTopic, names, st.uuids(), st.integers(0, 3), st.just({"x": "0"}), st.booleans()
    ),
    st.builds(DeleteTopic, ids),
    st.builds(AddPartitions, names, st.integers(0, 6), st.booleans()),
    st.builds(SetConfigs, st.sampled_from(Resource), names, values),
    st.builds(AllocateProducerIds, st.integers(1, 1000)),
)


@given(st.lists(commands, max_size=30), st.data())
def test_replay_equals_live(asked: list[Command], data: st.DataObject) -> None:
    live, again, journal = Catalog(), Catalog(), MetadataRecords(node_id=1)
    for command in asked:
        if isinstance(command, DeleteTopic) and live.topics:
            command = DeleteTopic(data.draw(st.sampled_from(sorted(live.topics_by_id))))
        decided = live.decide(command, NOW)
        if isinstance(decided, Refused):
            continue
        for event in decided.events:
            live.apply(event)
        for key, value, _ in journal.records(decided.events, WallMs(0)):
            for event in journal.events(key, value):
                again.apply(event)
    assert snapshot(again) == snapshot(live)
    from_events = Catalog()
    for event in live.events():
        from_events.apply(event)
    assert snapshot(from_events) == snapshot(live)
    assert len(journal.records(live.events(), WallMs(0))) in {live.size, live.size - 1}
