"""What tools ask for beside topics and settings: folders, leaders, producers, quotas, pages."""

import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import headrace
from headrace.wire import batches

TOPIC_OPERATIONS, CLUSTER_OPERATIONS, NOT_ASKED = 3576, 8096, -(1 << 31)


def produce(wire: Any, topic: str, *timestamps: int, producer_id: int = -1) -> None:
    data = batches.build(
        [batches.Record(0, timestamp, None, b"v") for timestamp in timestamps],
        producer_id=producer_id,
        producer_epoch=min(producer_id, 0),
        base_sequence=min(producer_id, 0),
    )
    data_of = {"name": topic, "partition_data": ({"index": 0, "records": data},)}
    answer = wire.call(0, 9, transactional_id=None, acks=1, timeout=1000, topic_data=(data_of,))
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_metadata_says_what_may_be_done_when_asked(wire: Any) -> None:
    wire.create("orders")
    for version in range(8, 14):
        for asks in (True, False):
            answer = wire.call(
                3, version, topics=[{"topic_id": None, "name": "orders"}],
                allow_auto_topic_creation=False, include_cluster_authorized_operations=asks,
                include_topic_authorized_operations=asks,
            )  # fmt: skip
            allowed = answer.topics[0].topic_authorized_operations
            assert allowed == (TOPIC_OPERATIONS if asks else NOT_ASKED)
            if version <= 10:
                cluster = answer.cluster_authorized_operations
                assert cluster == (CLUSTER_OPERATIONS if asks else NOT_ASKED)
    for asks, expected in ((True, CLUSTER_OPERATIONS), (False, NOT_ASKED)):
        answer = wire.call(60, 0, include_cluster_authorized_operations=asks)
        assert answer.cluster_authorized_operations == expected


@pytest.mark.parametrize(("may_create", "codes"), [(True, [17, 0, 0]), (False, [17, 0, 3])])
def test_metadata_of_what_is_not_there(wire: Any, may_create: bool, codes: list[int]) -> None:
    names = ["no good", "__consumer_offsets", "new"]
    answer = wire.call(
        3, 12, topics=[{"topic_id": None, "name": name} for name in names],
        allow_auto_topic_creation=may_create, include_topic_authorized_operations=False,
    )  # fmt: skip
    assert [topic.error_code for topic in answer.topics] == codes


def test_topics_are_not_created_on_the_way_where_that_is_switched_off(connecting: Any) -> None:
    settings = {"auto.create.topics.enable": "false", "delete.topic.enable": "false"}
    with headrace.Broker(settings=settings) as broker, connecting(broker) as connect:
        wire = connect()
        assert wire.call(3, 1, topics=[{"name": "new"}]).topics[0].error_code == 3
        assert wire.create("new").error_code == 0
        for version, code in ((1, 42), (3, 73)):
            answer = wire.call(20, version, topic_names=["new"], timeout=0)
            assert answer.responses[0].error_code == code


def test_topics_that_the_broker_makes_itself(wire: Any) -> None:
    assert wire.create("__cluster_metadata").error_code == 17
    assert wire.create("__consumer_offsets").error_code == 36
    assert wire.create("__share_group_state").error_code == 36
    (answer,) = wire.call(20, 5, topic_names=["__share_group_state"], timeout=0).responses
    assert answer.error_code == 17


def test_deletion_of_what_is_named_by_nothing_or_twice(wire: Any) -> None:
    made = wire.create("orders")
    by_id = {"name": None, "topic_id": made.topic_id}
    answer = wire.call(20, 6, topics=[by_id, by_id, {"name": None, "topic_id": None}], timeout=0)
    assert [one.error_code for one in answer.responses] == [42, 42]
    assert wire.create("orders").error_code == 36


@pytest.mark.parametrize(
    ("count", "assigned", "code"),
    [(3, [[1]], 0), (4, [[1]], 39), (3, [[9]], 39), (3, [[1, 1]], 39), (2, [[1]], 37)],
)
def test_partitions_are_added_where_they_are_wanted(
    wire: Any, count: int, assigned: list[list[int]], code: int
) -> None:
    wire.create("orders", num_partitions=2)
    assignments = [{"broker_ids": ids} for ids in assigned]
    topic = {"name": "orders", "count": count, "assignments": assignments}
    (answer,) = wire.call(37, 3, topics=[topic], timeout=0, validate_only=True).results
    assert (answer.error_code, bool(answer.error_message)) == (code, bool(code))


def pages(wire: Any, names: list[str], limit: int) -> list[list[tuple[str, int, list[int]]]]:
    """Name, code and partitions of the topics on each page, to the last one."""
    found: list[list[tuple[str, int, list[int]]]] = []
    cursor = None
    while len(found) < 20:
        topics = [{"name": name} for name in names]
        answer = wire.call(75, 0, topics=topics, response_partition_limit=limit, cursor=cursor)
        found.append(
            [
                (one.name, one.error_code, [part.partition_index for part in one.partitions])
                for one in answer.topics
            ]
        )
        if answer.next_cursor is None:
            return found
        at = answer.next_cursor
        cursor = {"topic_name": at.topic_name, "partition_index": at.partition_index}
    raise AssertionError(f"no end after {len(found)} pages")


def test_topics_are_described_page_by_page(wire: Any) -> None:
    for name, count in (("b", 3), ("a", 2), ("c", 1)):
        wire.create(name, num_partitions=count)
    internal = [("__consumer_offsets", 0, [0]), ("__share_group_state", 0, [0])]
    everything = [*internal, ("a", 0, [0, 1]), ("b", 0, [0, 1, 2]), ("c", 0, [0])]
    assert pages(wire, [], 100) == [everything]
    assert pages(wire, ["c", "b", "gone", "no good"], 2) == [
        [("b", 0, [0, 1])],
        [("b", 0, [2]), ("c", 0, [0])],
        [("gone", 3, []), ("no good", 17, [])],
    ]
    assert pages(wire, ["a"], 0) == [[("a", 0, [0])], [("a", 0, [1])]]
    answer = wire.call(75, 0, topics=[{"name": "a"}], cursor=None)
    (topic,) = answer.topics
    assert topic.topic_authorized_operations == TOPIC_OPERATIONS
    assert (topic.partitions[0].leader_id, topic.partitions[0].isr_nodes) == (1, (1,))


@pytest.mark.parametrize("version", range(1, 6))
def test_describe_log_dirs(broker: headrace.Broker, wire: Any, version: int) -> None:
    wire.create("orders", num_partitions=2)
    produce(wire, "orders", 5, 6)

    def held(topics: Any) -> tuple[Any, dict[tuple[str, int], int]]:
        (folder,) = wire.call(35, version, topics=topics).results
        return folder, {
            (topic.name, part.partition_index): part.partition_size
            for topic in folder.topics
            for part in topic.partitions
            if not topic.name.startswith("__")
        }

    size = (broker.data_dir / "orders-0" / f"{0:020d}.log").stat().st_size
    folder, sizes = held(None)
    assert sizes == {("orders", 0): size, ("orders", 1): 0}
    assert (folder.error_code, Path(folder.log_dir)) == (0, broker.data_dir)
    if version >= 4:
        assert folder.total_bytes == shutil.disk_usage(broker.data_dir).total
        assert 0 < folder.usable_bytes < folder.total_bytes
    wanted = [{"topic": "orders", "partitions": [1, 7]}, {"topic": "gone", "partitions": [0]}]
    assert held(wanted)[1] == {("orders", 1): 0}
    assert held([])[1] == {}


def test_sizes_of_logs_that_nobody_has_used_since_the_start(
    tmp_path: Path, connecting: Any
) -> None:
    with headrace.Broker(tmp_path) as broker, connecting(broker) as connect:
        connect().create("orders")
        produce(connect(), "orders", 5, 6)
    written = (tmp_path / "orders-0" / f"{0:020d}.log").stat().st_size
    with headrace.Broker(tmp_path) as broker, connecting(broker) as connect:
        asked = [{"topic": "orders", "partitions": [0]}]
        (topic,) = connect().call(35, 5, topics=asked).results[0].topics
        assert [part.partition_size for part in topic.partitions] == [written]


def test_sizes_while_a_thread_that_opens_a_log_removes_files(
    tmp_path: Path, connecting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a log gives what a compaction left its place, and removes what it replaces."""
    with headrace.Broker(tmp_path) as broker, connecting(broker) as connect:
        connect().create("orders")
        produce(connect(), "orders", 5, 6)
    folder, listing = tmp_path / "orders-0", Path.glob
    written = (folder / f"{0:020d}.log").stat().st_size

    def with_removed(found: Path, pattern: str) -> list[Path]:
        return [folder / "removed.log", *listing(found, pattern)]

    with headrace.Broker(tmp_path) as broker, connecting(broker) as connect:
        monkeypatch.setattr(Path, "glob", with_removed)
        asked = [{"topic": "orders", "partitions": [0]}]
        (topic,) = connect().call(35, 5, topics=asked).results[0].topics
        assert [part.partition_size for part in topic.partitions] == [written]


def test_end_of_a_leader_epoch(wire: Any) -> None:
    wire.create("orders")
    produce(wire, "orders", 5, 6)

    def end(topic: str, epoch: int, current: int = -1) -> tuple[int, int, int]:
        asked = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
        topics = [{"topic": topic, "partitions": [asked]}]
        (found,) = wire.call(23, 4, replica_id=-1, topics=topics).topics[0].partitions
        return found.error_code, found.leader_epoch, found.end_offset

    assert end("orders", 0) == end("orders", 0, current=0) == (0, 0, 2)
    assert end("orders", 4) == (0, -1, -1)
    assert end("orders", 0, current=4) == (75, -1, -1)
    assert end("gone", 0) == (3, -1, -1)


def test_producers_of_a_partition(wire: Any) -> None:
    wire.create("orders")
    produce(wire, "orders", 5, 6, producer_id=41)
    produce(wire, "orders", 7)
    asked = [{"name": "orders", "partition_indexes": [0, 3]}]
    known, unknown = wire.call(61, 0, topics=asked).topics[0].partitions
    (producer,) = known.active_producers
    assert (producer.producer_id, producer.producer_epoch) == (41, 0)
    assert (producer.last_sequence, producer.last_timestamp) == (1, 6)
    assert (unknown.error_code, unknown.active_producers) == (3, ())


def test_what_has_a_configuration(wire: Any) -> None:
    wire.create("orders")
    change = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": 32, "resource_name": "team", "configs": [change]}
    wire.call(44, 1, resources=[resource], validate_only=False)

    def listed(*types: int) -> set[tuple[int, str]]:
        found = wire.call(74, 1, resource_types=types).config_resources
        return {(one.resource_type, one.resource_name) for one in found}

    topics = {(2, "orders"), (2, "__share_group_state"), (2, "__consumer_offsets")}
    assert listed() == topics | {(4, "1"), (8, "1"), (32, "team")}
    assert listed(32) == {(32, "team")}
    assert wire.call(74, 1, resource_types=[99]).error_code == 35
    assert wire.call(74, 0).config_resources == ()


def test_replicas_stay_where_they_are(wire: Any) -> None:
    wire.create("orders")
    asked = [{"topic": "orders", "partitions": [0, 9]}]
    answer = wire.call(43, 2, election_type=0, topic_partitions=asked, timeout=0)
    (result,) = answer.replica_election_results
    assert [one.error_code for one in result.partition_result] == [84, 3]
    every = wire.call(43, 2, election_type=0, topic_partitions=None, timeout=0)
    shown = [(one.topic, one.partition_result) for one in every.replica_election_results]
    names = ["__consumer_offsets", "__share_group_state", "orders"]
    assert (every.error_code, sorted(shown)) == (0, [(name, ()) for name in names])
    assert wire.call(46, 0, timeout=0, topics=None).topics == ()
    for index, replicas, code in [(0, [1], 0), (0, [2], 39), (0, None, 85), (9, [1], 3)]:
        partitions = [{"partition_index": index, "replicas": replicas}]
        topics = [{"name": "orders", "partitions": partitions}]
        answer = wire.call(45, 0, timeout=0, topics=topics)
        assert [one.error_code for one in answer.responses[0].partitions] == [code]


def test_there_are_no_quotas_and_no_users(wire: Any) -> None:
    component = {"entity_type": "user", "match_type": 2, "match": None}
    answer = wire.call(48, 1, components=[component], strict=False)
    assert (answer.error_code, answer.entries) == (0, ())
    assert wire.call(50, 0, users=None).results == ()
    (user,) = wire.call(50, 0, users=[{"name": "ada"}]).results
    assert (user.user, user.error_code) == ("ada", 91)


@pytest.mark.parametrize("version", range(1, 12))
def test_offsets_of_special_times_by_version(wire: Any, version: int) -> None:
    wire.create("orders")
    produce(wire, "orders", 50, 70, 60)
    since = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
    found = {-1: (3, -1), -2: (0, -1), -3: (1, 70), -4: (0, -1), -5: (-1, -1), -6: (-1, -1)}
    for time, lowest in since.items():
        expected = (0, *found[time]) if version >= lowest else (35, -1, -1)
        assert looked_up(wire, version, "orders", time) == expected
    assert looked_up(wire, version, "orders", -7) == (35, -1, -1)
    assert looked_up(wire, version, "orders", 60) == (0, 1, 70)
    assert looked_up(wire, version, "orders", 71) == (0, -1, -1)
    assert looked_up(wire, version, "gone", -1) == (3, -1, -1)
    if version >= 4:
        assert looked_up(wire, version, "orders", -1, epoch=5) == (75, -1, -1)
        assert looked_up(wire, version, "orders", -1, epoch=0) == (0, 3, -1)


def test_offset_of_the_latest_time_in_an_empty_log_and_of_a_partition_asked_twice(
    wire: Any,
) -> None:
    wire.create("orders")
    assert looked_up(wire, 11, "orders", -3) == (0, -1, -1)
    asked = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}] * 2
    answer = list_offsets(wire, 11, "orders", asked)
    assert [one.error_code for one in answer.topics[0].partitions] == [42, 42]


def looked_up(wire: Any, version: int, topic: str, time: int, epoch: int = -1) -> Any:
    """Code, offset and timestamp."""
    asked = {"partition_index": 0, "current_leader_epoch": epoch, "timestamp": time}
    (found,) = list_offsets(wire, version, topic, [asked]).topics[0].partitions
    if version >= 4:
        assert found.leader_epoch == (0 if found.offset >= 0 else -1)
    return found.error_code, found.offset, found.timestamp


def list_offsets(wire: Any, version: int, topic: str, asked: list[dict[str, int]]) -> Any:
    topics = [{"name": topic, "partitions": asked}]
    return wire.call(2, version, replica_id=-1, isolation_level=0, topics=topics, timeout=0)


def test_unknown_ids_are_told_apart_from_unknown_names(wire: Any) -> None:
    asked = [{"name": None, "topic_id": UUID(int=5)}, {"name": "gone", "topic_id": None}]
    answer = wire.call(20, 6, topics=asked, timeout=0)
    assert [one.error_code for one in answer.responses] == [100, 3]
