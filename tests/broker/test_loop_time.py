"""No request and no background step holds the event loop for long: processor time of its steps.

Requests have a quarter of the elements that are accepted, and half of the time. All of them are
sent with HEADRACE_LOOP_SCALE=1.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import pytest

from headrace.core.group_words import RestartSessions
from headrace.wire import batches
from headrace.wire.batches import Record

from .loop_rig import TRIES, Client, LoopRig, framed

SCALE = float(os.environ.get("HEADRACE_LOOP_SCALE", "0.25"))
SECONDS_MAX = 0.020 if SCALE >= 1 else 0.010
ELEMENTS, PARTITIONS = int(9900 * SCALE), 200
MEMBER = "m" * 22
UNKNOWN, WIDE = "x", "wide"
OFFSET_DELETE = 47
CHANGING = (8, 11, OFFSET_DELETE, 68, 76, 91)  # requests that do less when they are repeated

Fields = dict[str, Any]


def scaled(count: int) -> int:
    return int(count * SCALE)


def names(count: int = ELEMENTS) -> list[str]:
    return [f"{UNKNOWN}{number}" for number in range(count)]


def indexes(count: int = ELEMENTS) -> list[int]:
    return list(range(count))


def commit(count: int, topics: int = 1, **other: Any) -> Fields:
    partitions = [
        {"partition_index": n % PARTITIONS, "committed_offset": n, "committed_leader_epoch": -1,
         "committed_metadata": ""} for n in range(count)
    ]  # fmt: skip
    named = [WIDE] if topics == 1 else names(topics)
    return {
        "group_id": "committed", "generation_id_or_member_epoch": -1, "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": name, "partitions": partitions} for name in named],
    } | other  # fmt: skip


def produce(count: int, topics: int = 1) -> Fields:
    record = bytes(batches.build([Record(0, 1_700_000_000_000, None, b"v")]))
    parts = [{"index": n % PARTITIONS, "records": record} for n in range(count)]
    named = [WIDE] if topics == 1 else names(topics)
    return {"transactional_id": None, "acks": 1, "timeout": 1,
            "topic_data": [{"name": name, "partition_data": parts} for name in named]}  # fmt: skip


def fetch(count: int, **other: Any) -> Fields:
    parts = [
        {"partition": n, "current_leader_epoch": -1, "fetch_offset": 0, "log_start_offset": -1,
         "partition_max_bytes": 1} for n in range(count)
    ]  # fmt: skip
    return {
        "replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "rack_id": "",
        "isolation_level": 0, "session_id": 0, "session_epoch": -1, "forgotten_topics_data": [],
        "topics": [{"topic": WIDE, "partitions": parts}],
    } | other  # fmt: skip


def configs(count: int, version: int) -> Fields:
    change: Fields = {"name": "share.delivery.count.limit", "value": "3"}
    if version == 44:
        change["config_operation"] = 0
    resources = [
        {"resource_type": 32, "resource_name": f"g{n}", "configs": [change]} for n in range(count)
    ]
    return {"resources": resources, "validate_only": True}


def created(name: str, **other: Any) -> Fields:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [],
             "configs": []}  # fmt: skip
    return topic | other


def beat(**other: Any) -> Fields:
    return {
        "group_id": "consumers", "member_id": MEMBER, "member_epoch": 0, "instance_id": None,
        "rack_id": None, "rebalance_timeout": 60_000, "subscribed_topic_names": [WIDE],
        "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": [],
    } | other  # fmt: skip


def share_parts(count: int, acks: int) -> list[Fields]:
    one = [{"first_offset": n, "last_offset": n, "acknowledge_types": [1]} for n in range(acks)]
    return [{"partition_index": n, "acknowledgement_batches": one} for n in range(count)]


def share_fetch(topics: list[Fields]) -> Fields:
    return {
        "group_id": "sharers", "member_id": MEMBER, "share_session_epoch": 0, "max_wait": 0,
        "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 100, "batch_size": 100,
        "share_acquire_mode": 0, "is_renew_ack": False, "forgotten_topics_data": [],
        "topics": topics,
    }  # fmt: skip


# API, version, and the fields of the largest request, given the id of the topic.
LARGEST: dict[str, tuple[int, int, Callable[[Any], Fields]]] = {
    "Produce": (0, 8, lambda _: produce(ELEMENTS)),
    "Produce-topics": (0, 8, lambda _: produce(1, ELEMENTS)),
    "Fetch": (1, 11, lambda _: fetch(scaled(36_000))),
    "Fetch-session": (1, 11, lambda _: fetch(ELEMENTS, session_epoch=0)),
    "ListOffsets": (2, 8, lambda _: {"replica_id": -1, "isolation_level": 0, "topics": [
        {"name": WIDE, "partitions": [
            {"partition_index": n, "current_leader_epoch": -1, "timestamp": -1}
            for n in range(scaled(60_000))]}]}),
    "Metadata": (3, 13, lambda _: {"topics": [
        {"name": one, "topic_id": None} for one in names()],
        "allow_auto_topic_creation": False, "include_topic_authorized_operations": True}),
    "OffsetCommit": (8, 8, lambda _: commit(scaled(55_000))),
    "OffsetCommit-topics": (8, 8, lambda _: commit(1, scaled(38_000))),
    "OffsetFetch": (9, 8, lambda _: {"require_stable": False, "groups": [
        {"group_id": "committed", "topics": [
            {"name": WIDE, "partition_indexes": indexes(scaled(95_000))}]}]}),
    "OffsetFetch-groups": (9, 8, lambda _: {"require_stable": False, "groups": [
        {"group_id": one, "topics": None} for one in names(scaled(50_000))]}),
    "FindCoordinator": (10, 6, lambda _: {"key_type": 2, "coordinator_keys": names()}),
    "FindCoordinator-tx": (10, 6, lambda _: {"key_type": 1, "coordinator_keys": names()}),
    "JoinGroup": (11, 3, lambda _: {
        "group_id": "joined", "session_timeout": 30_000, "rebalance_timeout": 10, "member_id": "",
        "protocol_type": "consumer", "protocols": [
            {"name": one, "metadata": bytes(90)} for one in names()]}),
    "LeaveGroup": (13, 5, lambda _: {"group_id": "joined", "members": [
        {"member_id": one, "group_instance_id": None, "reason": "r"} for one in names()]}),
    "SyncGroup": (14, 3, lambda _: {
        "group_id": "joined", "generation_id": 1, "member_id": "m", "group_instance_id": None,
        "assignments": [{"member_id": one, "assignment": bytes(60)} for one in names()]}),
    "DescribeGroups": (15, 6, lambda _: {
        "groups": names(), "include_authorized_operations": True}),
    "CreateTopics": (19, 7, lambda _: {"timeout": 0, "validate_only": True, "topics": [
        created(one) for one in names(scaled(4000))]}),
    "DeleteTopics": (20, 6, lambda _: {"timeout": 0, "topics": [
        {"name": one, "topic_id": None} for one in names()]}),
    "DeleteRecords": (21, 2, lambda _: {"timeout": 0, "topics": [
        {"name": WIDE, "partitions": [
            {"partition_index": n % PARTITIONS, "offset": 0} for n in range(ELEMENTS)]}]}),
    "OffsetForLeaderEpoch": (23, 4, lambda _: {"replica_id": -1, "topics": [
        {"topic": WIDE, "partitions": [
            {"partition": n, "current_leader_epoch": -1, "leader_epoch": 0}
            for n in range(scaled(60_000))]}]}),
    "DescribeConfigs": (32, 4, lambda _: {
        "include_synonyms": True, "include_documentation": True, "resources": [
            {"resource_type": 32, "resource_name": one, "configuration_keys": None}
            for one in names(scaled(1200))]}),
    "AlterConfigs": (33, 2, lambda _: configs(ELEMENTS // 2, 33)),
    "IncrementalAlterConfigs": (44, 1, lambda _: configs(ELEMENTS // 2, 44)),
    "DescribeLogDirs": (35, 4, lambda _: {"topics": None}),
    "DescribeLogDirs-topics": (35, 4, lambda _: {"topics": [
        {"topic": WIDE, "partitions": indexes()}]}),
    "CreatePartitions": (37, 3, lambda _: {"timeout": 0, "validate_only": True, "topics": [
        {"name": one, "count": 2, "assignments": None} for one in names()]}),
    "DeleteGroups": (42, 2, lambda _: {"groups_names": names(ELEMENTS // 4)}),
    "ElectLeaders": (43, 2, lambda _: {"election_type": 0, "timeout": 0, "topic_partitions": [
        {"topic": WIDE, "partitions": indexes()}]}),
    "AlterPartitionReassignments": (45, 0, lambda _: {"timeout": 0, "topics": [
        {"name": WIDE, "partitions": [
            {"partition_index": n, "replicas": [1]} for n in range(ELEMENTS // 2)]}]}),
    "ListPartitionReassignments": (46, 0, lambda _: {"timeout": 0, "topics": [
        {"name": WIDE, "partition_indexes": indexes()}]}),
    "OffsetDelete": (47, 0, lambda _: {"group_id": "committed", "topics": [
        {"name": WIDE, "partitions": [{"partition_index": n} for n in range(ELEMENTS)]}]}),
    "DescribeClientQuotas": (48, 1, lambda _: {"strict": False, "components": [
        {"entity_type": one, "match_type": 0, "match": "m"} for one in names()]}),
    "DescribeUserScramCredentials": (50, 0, lambda _: {"users": [
        {"name": one} for one in names()]}),
    "DescribeProducers": (61, 0, lambda _: {"topics": [
        {"name": WIDE, "partition_indexes": indexes()}]}),
    "ConsumerGroupHeartbeat": (68, 1, lambda id_: beat(
        topic_partitions=[{"topic_id": id_, "partitions": indexes()}])),
    "ConsumerGroupHeartbeat-topics": (68, 1, lambda _: beat(subscribed_topic_names=names())),
    "ConsumerGroupDescribe": (69, 1, lambda _: {
        "group_ids": names(), "include_authorized_operations": False}),
    "ListConfigResources": (74, 1, lambda _: {"resource_types": []}),
    "DescribeTopicPartitions": (75, 0, lambda _: {"topics": [
        {"name": one} for one in names()], "response_partition_limit": 2000, "cursor": None}),
    "ShareGroupHeartbeat": (76, 1, lambda _: {
        "group_id": "others", "member_id": MEMBER, "member_epoch": 0, "rack_id": None,
        "subscribed_topic_names": [WIDE, *names()]}),
    "ShareGroupDescribe": (77, 1, lambda _: {
        "group_ids": names(ELEMENTS // 4), "include_authorized_operations": False}),
    "ShareFetch": (78, 2, lambda id_: share_fetch([
        {"topic_id": id_, "partitions": share_parts(1900, 0)}])),
    "ShareFetch-many": (78, 2, lambda id_: share_fetch([
        {"topic_id": id_, "partitions": share_parts(scaled(100_000), 0)}])),
    "ShareAcknowledge": (79, 2, lambda id_: acknowledgement(id_, 1, scaled(50_000))),
    "ShareAcknowledge-many": (79, 2, lambda id_: acknowledgement(id_, ELEMENTS, 1)),
    "DescribeShareGroupOffsets": (90, 0, lambda _: {"groups": [
        {"group_id": "sharers", "topics": [{"topic_name": WIDE, "partitions": indexes()}]}]}),
    "AlterShareGroupOffsets": (91, 0, lambda _: {"group_id": "altered", "topics": [
        {"topic_name": WIDE, "partitions": [
            {"partition_index": n % PARTITIONS, "start_offset": 0} for n in range(ELEMENTS)]}]}),
    "DeleteShareGroupOffsets": (92, 0, lambda _: {"group_id": "altered", "topics": [
        {"topic_name": one} for one in names()]}),
}  # fmt: skip


def acknowledgement(topic_id: Any, count: int, acks: int) -> Fields:
    return {"group_id": "sharers", "member_id": MEMBER, "share_session_epoch": 1,
            "is_renew_ack": False, "topics": [
                {"topic_id": topic_id, "partitions": share_parts(count, acks)}]}  # fmt: skip


@pytest.fixture(scope="module")
def rig() -> Iterator[LoopRig]:
    rig = LoopRig()
    try:
        rig.run(_create(rig, WIDE, PARTITIONS))
        yield rig
    finally:
        rig.close()


async def _create(rig: LoopRig, name: str, partitions: int) -> None:
    topics = [created(name, num_partitions=partitions)]
    answer = await Client(rig.server).call(19, 7, topics=topics, timeout=0, validate_only=False)
    assert answer.topics[0].error_code == 0


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_request_of_an_api_is_carried_out_in_short_steps(
    rig: LoopRig, name: str
) -> None:
    key, version, fields = LARGEST[name]
    topic_id = rig.services.catalog.topics[WIDE].id
    openings = {
        9: framed(8, 8, commit(PARTITIONS)),
        79: framed(78, 2, share_fetch([{"topic_id": topic_id, "partitions": share_parts(1, 0)}])),
    }
    requests: Iterator[tuple[bytes | None, bytes]]
    if key in CHANGING:  # each try does the same work, for a group of its own
        changes: list[Fields] = [{"group_id": f"{name}-{number}"} for number in range(TRIES)]
        requests = iter([
            (framed(8, 8, commit(PARTITIONS, **change)) if key == OFFSET_DELETE else None,
             framed(key, version, fields(topic_id) | change)) for change in changes
        ])  # fmt: skip
    else:
        requests = repeat((openings.get(key), framed(key, version, fields(topic_id))))

    async def ask() -> None:
        client = Client(rig.server)
        opening, request = next(requests)
        if opening is not None:
            await client.ask(opening)
        await asyncio.sleep(0)
        assert await client.ask(request)
        await asyncio.sleep(0)
        await client.hang_up()

    rig.require_short(ask, SECONDS_MAX)


def test_many_groups_and_offsets_are_shown_expired_and_restarted_in_short_steps(
    rig: LoopRig,
) -> None:
    count = scaled(8000)
    everything = [
        framed(16, 4, {"states_filter": []}),
        framed(15, 6, {"groups": [f"g{n}" for n in range(count)],
                       "include_authorized_operations": False}),
        framed(9, 8, {"require_stable": False, "groups": [
            {"group_id": f"g{n}", "topics": None} for n in range(count)]}),
    ]  # fmt: skip

    async def fill() -> None:
        client = Client(rig.server)
        requests = [framed(8, 8, commit(2, group_id=f"g{n}")) for n in range(count)]
        for request in requests:
            await client.ask(request)

    async def look() -> None:
        client = Client(rig.server)
        await asyncio.sleep(0)
        for request in everything:
            await client.ask(request)
        for shard in rig.services.groups.shards:
            await shard.ask(RestartSessions())

    rig.run(fill())
    steps = rig.require_short(look, SECONDS_MAX)
    assert len(steps.seconds) > 2 * count // 200, "a portion has at most 200 groups"


def test_background_tasks_work_in_short_steps(rig: LoopRig) -> None:
    async def pass_over() -> None:
        services = rig.services
        await asyncio.sleep(0)
        await services.housekeeping.expire_all()
        await services.housekeeping.clean_dirtiest()
        for work in services.background:
            work.end_pauses()
        await asyncio.sleep(0.05)

    rig.require_short(pass_over, SECONDS_MAX)


def test_topics_of_many_partitions_are_deleted_in_short_steps(rig: LoopRig) -> None:
    async def create_and_delete() -> None:
        await asyncio.sleep(0)
        await _create(rig, "large", scaled(4000))
        topics = [{"name": "large", "topic_id": None}]
        answer = await Client(rig.server).call(20, 6, topics=topics, timeout=0)
        assert answer.responses[0].error_code == 0

    rig.require_short(create_and_delete, SECONDS_MAX)
