"""Readers that retention overtakes, and readers of what compaction left: over the wire."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.client.arrow import read_range
from headrace.client.connection import Cluster
from headrace.client.leases import Lease, describe
from headrace.wire import batches
from headrace.wire.batches import Record

PRODUCE, FETCH, LIST_OFFSETS, CREATE_TOPICS, ALTER_CONFIGS = 0, 1, 2, 19, 44
HEARTBEAT, SHARE_FETCH, ACKNOWLEDGE = 76, 78, 79
GROUP, TOPIC, MEMBER = "group", "topic", "member"
ACCEPT, RELEASE = 1, 2
OFFSET_OUT_OF_RANGE = 1
SECONDS_MAX = 20.0
NOW_MS = time.time_ns() // 1_000_000
DAY_MS = "86400000"  # a run of all tests takes less
SETTINGS = {
    "log.retention.check.interval.ms": 20,
    "log.cleaner.backoff.ms": 20,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.segment.bytes": 2000,
}


def until(found: Callable[[], Any]) -> Any:
    """What `found` returns, once it is true."""
    deadline = time.monotonic() + SECONDS_MAX
    while not (value := found()):
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(0.01)
    return value


class Client:
    """A member of a share group, and whatever else a test asks of the broker."""

    def __init__(self, wire: Any) -> None:
        self.wire = wire
        self.topic_id: Any = None
        self.epoch = 0

    def create(self, **configs: str) -> None:
        topic = {
            "name": TOPIC,
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": (),
            "configs": [
                {"name": name.replace("_", "."), "value": value} for name, value in configs.items()
            ],
        }
        answer = self.wire.call(
            CREATE_TOPICS, 7, topics=(topic,), timeout=1000, validate_only=False
        )
        assert answer.topics[0].error_code == 0, answer.topics[0].error_message
        self.topic_id = answer.topics[0].topic_id

    def configure(self, name: str, value: str) -> None:
        change = {"name": name, "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": TOPIC, "configs": (change,)}
        answer = self.wire.call(ALTER_CONFIGS, 1, resources=(resource,), validate_only=False)
        assert answer.responses[0].error_code == 0, answer.responses[0].error_message

    def produce(self, *keys: bytes, at: int = NOW_MS, size: int = 50) -> None:
        data = batches.build([Record(0, at, key, b"v" * size) for key in keys])
        partition = {"index": 0, "records": data}
        topic = {"name": TOPIC, "partition_data": (partition,)}
        answer = self.wire.call(
            PRODUCE, 9, transactional_id=None, acks=1, timeout=1000, topic_data=(topic,)
        )
        assert answer.responses[0].partition_responses[0].error_code == 0

    def start(self) -> int:
        part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}
        topic = {"name": TOPIC, "partitions": (part,)}
        answer = self.wire.call(LIST_OFFSETS, 4, replica_id=-1, isolation_level=0, topics=(topic,))
        return int(answer.topics[0].partitions[0].offset)

    def fetch(self, offset: int) -> tuple[int, bytes]:
        part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        answer = self.wire.call(
            FETCH, 4, replica_id=-1, max_wait=0, min_bytes=0, max_bytes=1 << 20, isolation_level=0,
            topics=({"topic": TOPIC, "partitions": (part,)},),
        )  # fmt: skip
        found = answer.responses[0].partitions[0]
        return int(found.error_code), bytes(found.records or b"")

    def offsets(self) -> list[int]:
        """Of all records, by as many fetches as it takes."""
        found: list[int] = []
        offset = 0
        while data := self.fetch(offset)[1]:
            found += [one.offset for one in batches.records(data)]
            offset = batches.headers(data)[-1].last_offset + 1
        return found

    def join(self) -> None:
        answer = self.wire.call(
            HEARTBEAT, 1, group_id=GROUP, member_id=MEMBER, member_epoch=0, rack_id=None,
            subscribed_topic_names=(TOPIC,),
        )  # fmt: skip
        assert answer.error_code == 0

    def take(self, *, max_bytes: int = 1 << 20) -> tuple[list[tuple[int, int, int]], list[int]]:
        """One ShareFetch: ranges with their delivery count, and the offsets of what came."""
        answer = self.wire.call(
            SHARE_FETCH, 2, group_id=GROUP, member_id=MEMBER, share_session_epoch=self.epoch,
            max_wait=0, min_bytes=1, max_bytes=max_bytes, max_records=1000, batch_size=1000,
            share_acquire_mode=0, is_renew_ack=False, forgotten_topics_data=(),
            topics=self._topics() if self.epoch == 0 else (),
        )  # fmt: skip
        assert answer.error_code == 0, answer.error_message
        self.epoch += 1
        found = [part for topic in answer.responses for part in topic.partitions]
        assert not any(part.error_code for part in found)
        return (
            [
                (one.first_offset, one.last_offset, one.delivery_count)
                for part in found
                for one in part.acquired_records
            ],
            [one.offset for part in found for one in batches.records(part.records or b"")],
        )

    def acknowledge(self, first: int, last: int, verdict: int = ACCEPT) -> int:
        said = {"first_offset": first, "last_offset": last, "acknowledge_types": (verdict,)}
        answer = self.wire.call(
            ACKNOWLEDGE, 2, group_id=GROUP, member_id=MEMBER, share_session_epoch=self.epoch,
            is_renew_ack=False, topics=self._topics(said),
        )  # fmt: skip
        assert answer.error_code == 0, answer.error_message
        self.epoch += 1
        return int(answer.responses[0].partitions[0].error_code)

    def _topics(self, *acks: Any) -> Any:
        partition = {"partition_index": 0, "acknowledgement_batches": acks}
        return ({"topic_id": self.topic_id, "partitions": (partition,)},)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[headrace.Broker]:
    """A broker that looks after its logs all the time; it may be restarted."""
    running = headrace.Broker(tmp_path / "data", settings=SETTINGS)
    with running:
        yield running


@pytest.fixture
def client(broker: headrace.Broker, connect: Any) -> Client:
    return Client(connect())


def position(broker: headrace.Broker) -> tuple[int, int, list[tuple[int, int]]]:
    """SPSO, SPEO and the runs in flight of the only share-partition."""
    with Cluster(broker.bootstrap_servers) as cluster:
        (found,) = describe(cluster, GROUP)
    return found.start, found.end, [(run.first, run.last) for run in found.in_flight]


def test_records_in_flight_that_retention_removes_are_gone(
    broker: headrace.Broker, client: Client
) -> None:
    client.create(retention_ms="-1")
    client.join()
    client.produce(*[b"old"] * 20, at=5, size=60)
    client.produce(*[b"new"] * 20)
    assert client.take()[0] + client.take()[0] == [(0, 19, 1), (20, 39, 1)]
    client.configure("retention.ms", DAY_MS)
    assert until(client.start) == 20
    assert position(broker) == (20, 40, [(20, 39)]), "at once, not with the next fetch"
    assert client.fetch(0)[0] == client.fetch(19)[0] == OFFSET_OUT_OF_RANGE
    assert client.fetch(20)[0] == 0

    assert client.acknowledge(0, 9) == 0, "late, and harmless"
    assert client.acknowledge(10, 24) == 0, "what is left of it counts"
    assert position(broker) == (25, 40, [(25, 39)])
    assert client.acknowledge(25, 39, RELEASE) == 0
    assert client.take()[0] == [(25, 39, 2)]


def test_the_move_is_in_the_journal(broker: headrace.Broker, connecting: Any) -> None:
    with connecting(broker) as connect:
        client = Client(connect())
        client.create(retention_ms="-1")
        client.join()
        client.produce(*[b"old"] * 20, at=5, size=60)
        client.take()
        client.configure("retention.ms", DAY_MS)
        assert until(client.start) == 20
        assert position(broker) == (20, 20, [])
    broker.stop()
    broker.start()
    assert position(broker) == (20, 20, [])
    with connecting(broker) as connect:
        again = Client(connect())
        again.topic_id = client.topic_id
        again.produce(b"new")
        again.join()
        assert again.take() == ([(20, 20, 1)], [20])


def compacted(client: Client) -> int:
    """A topic of 200 records, of which few are left; its end."""
    client.create(cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    client.join()
    for number in range(20):
        client.produce(*(b"k%d" % (number * n % 7) for n in range(10)))
    for _ in range(4):
        client.produce(*[b"last"] * 10)
    until(lambda: len(client.offsets()) < 60)
    return 240


def test_a_share_consumer_of_a_compacted_topic_comes_to_its_end(
    broker: headrace.Broker, client: Client
) -> None:
    end = compacted(client)
    seen: list[int] = []
    while position(broker)[0] < end:
        ranges, offsets = client.take(max_bytes=1)
        assert ranges, "it stands still"
        seen += offsets
        for first, last, _ in ranges:
            assert client.acknowledge(first, last) == 0
    left = client.offsets()
    assert [offset for offset in seen if offset in left] == left
    assert client.take() == ([], [])


def test_released_records_that_compaction_removed_hold_nobody_up(
    broker: headrace.Broker, client: Client
) -> None:
    client.create(cleanup_policy="delete")
    client.join()
    for _ in range(10):
        client.produce(*[b"same"] * 10)
    taken = 0
    while taken < 100:
        taken = client.take()[0][-1][1] + 1
    client.acknowledge(0, 99, RELEASE)
    client.configure("min.cleanable.dirty.ratio", "0.01")
    client.configure("cleanup.policy", "compact")
    until(lambda: len(client.offsets()) < 60)
    while position(broker)[0] < 100:
        ranges, _ = client.take(max_bytes=1)
        assert ranges, "it stands still"
        for first, last, _ in ranges:
            assert client.acknowledge(first, last) == 0


def test_leases_and_arrow_pass_over_what_is_not_there(
    broker: headrace.Broker, client: Client
) -> None:
    end = compacted(client)
    left = client.offsets()
    with Cluster(broker.bootstrap_servers) as cluster:
        lease = Lease(cluster, "spark", "session")
        lease.open((TOPIC,), "earliest")
        held = [one for seq in (1, 2) for one in lease.acquire(seq, 130, 0)]
        assert [(one.first, one.last) for one in held] == [(0, 129), (130, end - 1)]
        offsets = [
            offset
            for one in held
            for batch in read_range(cluster, TOPIC, 0, one.first, one.last)
            for offset in batch.column("offset").to_pylist()
        ]
        assert offsets == sorted(set(offsets))
        assert set(client.offsets()) <= set(offsets) <= set(left), "the cleaner goes on meanwhile"
        assert lease.commit(2).accepted == end
        assert describe(cluster, "spark")[0].start == end
