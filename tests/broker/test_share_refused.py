"""A partition that is refused leaves the others of its topic to share groups and leases."""

from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer, ShareConsumer

import headrace
from headrace.broker.share_starts import start_for_heartbeat
from headrace.client.configs import set_group_configs
from headrace.client.connection import Cluster, Patience
from headrace.client.errors import BrokerError, ClientError
from headrace.client.leases import Lease
from headrace.client.share_groups import alter_share_group_offsets, list_share_group_offsets
from headrace.core.catalog import CreateTopic
from headrace.core.share_group import Heartbeat
from headrace.core.types import MemberId
from headrace.log.memory_disk import MemoryDisk

from .inside_rig import Inside, play

GROUP, TOPIC = "workers", "orders"


def _damaged(folder: Path, *partitions: int) -> None:
    """Let a broker refuse partitions of a topic of two, with a record in each."""
    with headrace.Broker(folder, settings={"num.partitions": "2"}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for partition in range(2):
            producer.produce(TOPIC, f"{partition}", partition=partition)
        assert producer.flush(20) == 0
        with headrace.SyncAdmin(running.bootstrap_servers) as admin:
            earliest = {"share.auto.offset.reset": "earliest"}
            group = headrace.ResourceType.GROUP
            admin.incremental_alter_configs(group, GROUP, values=earliest)
    for partition in partitions:
        (folder / f"{TOPIC}-{partition}/recovery-point").unlink()


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_lease_gets_the_others(tmp_path: Path, damaged: int) -> None:
    _damaged(tmp_path, damaged)
    with headrace.Broker(tmp_path) as running, Cluster(running.bootstrap_servers) as cluster:
        lease = Lease(cluster, GROUP, "nightly")
        lease.open((TOPIC,), "earliest")
        (held,) = lease.acquire(1, 100, 0)
        assert (held.partition, held.first, held.last) == (1 - damaged, 0, 0)
        assert lease.acquire(2, 100, 200) == ()


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_new_share_group_gets_the_others(tmp_path: Path, damaged: int) -> None:
    _damaged(tmp_path, damaged)
    with headrace.Broker(tmp_path) as running:
        servers = {"bootstrap.servers": running.bootstrap_servers}
        consumer = ShareConsumer({**servers, "group.id": GROUP})
        try:
            consumer.subscribe([TOPIC])
            records: list[bytes | None] = []
            while not records:
                records += [one.value() for one in consumer.poll(1) if one.error() is None]
            assert records == [f"{1 - damaged}".encode()]
        finally:
            consumer.close()


def test_a_topic_of_which_nothing_can_be_opened_is_not_called_unknown(tmp_path: Path) -> None:
    """The remedy of an unknown topic is to create it."""
    _damaged(tmp_path, 0, 1)
    with (
        headrace.Broker(tmp_path) as running,
        Cluster(running.bootstrap_servers, patience=Patience(total_s=0)) as cluster,
    ):
        refused = f"{TOPIC}-0 is refused: {TOPIC}-0/recovery-point: the file is missing"
        with pytest.raises(ClientError, match=refused):
            Lease(cluster, GROUP, "nightly").open((TOPIC,), "earliest")
        results = alter_share_group_offsets(cluster, GROUP, {(TOPIC, 0): 0, (TOPIC, 1): 0})
        assert [one and one.code for one in results.errors.values()] == [56, 56]
        with pytest.raises(BrokerError, match=refused):
            results.check()


@pytest.mark.parametrize("damaged", [0, 1])
@pytest.mark.parametrize("reset", ["earliest", "by_duration:PT1H"])
def test_the_offsets_of_the_others_are_altered(tmp_path: Path, damaged: int, reset: str) -> None:
    _damaged(tmp_path, damaged)
    with (
        headrace.Broker(tmp_path) as running,
        Cluster(running.bootstrap_servers, patience=Patience(total_s=0)) as cluster,
    ):
        set_group_configs(cluster, GROUP, {"share.auto.offset.reset": reset})
        for start in (1, -1):
            new = {(TOPIC, damaged): start, (TOPIC, 1 - damaged): start}
            errors = dict(alter_share_group_offsets(cluster, GROUP, new).errors)
            error = errors.pop((TOPIC, damaged))
            assert errors == {(TOPIC, 1 - damaged): None}
            assert error is not None
            assert error.code == 56
            assert f"{TOPIC}-{damaged}/recovery-point: the file is missing" in str(error)
            known = list_share_group_offsets(cluster, GROUP, errors)
            assert {place: one and one.start for place, one in known.items()} == {
                (TOPIC, 1 - damaged): max(start, 0)
            }


def test_heartbeats_take_no_memory_for_partitions_that_are_refused() -> None:
    """Else members of a group are refused, and lost, while groups take all the memory there is."""
    disk, topic_id = MemoryDisk(), uuid4()

    async def create(inside: Inside) -> None:
        await inside.services.topics.create(CreateTopic(TOPIC, topic_id, 4, {}))

    async def beat(inside: Inside) -> None:
        shares, memory = inside.services.shares, inside.services.group_memory
        for epoch in range(3):
            command = Heartbeat(GROUP, MemberId("m"), min(epoch, 1), frozenset({TOPIC}))
            before = memory.bytes
            assert await start_for_heartbeat(inside.services, command) is None
            await shares.ask(GROUP, command)
            assert (memory.bytes > before) == (epoch == 0)
        assert [one.partition for one in shares.machine(GROUP).partitions] == [0]

    play(lambda: Inside(disk), create)
    for partition in range(1, 4):
        disk.remove(f"{TOPIC}-{partition}/recovery-point")
    play(lambda: Inside(disk), beat)
