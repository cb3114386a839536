"""What a request costs the broker: Headrace beside Apache Kafka 4.3.1, or another release.

    python bench/requests.py [--quick] [--peer PYTHON]

One connection sends one request at a time, to both brokers by turns. Counted is the processor time
of the broker's process, all threads, the kernel's part included; of the rounds the least, so that
other work on the machine counts little. With --peer, the interpreter of an environment that has
another release of Headrace installed, that release is the peer. The last line is one JSON object:
microseconds of ours, and ratios ours / peer.
"""

import argparse
import contextlib
import json
import random
import re
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from brokers import BROKERS, Broker, Headrace, running
from group_client import Connection, decoded, frame
from headrace.wire import batches
from headrace.wire.batches import Record
from headrace.wire.compression import Codec

_PRODUCE, _FETCH, _LIST, _METADATA, _COMMIT, _OFFSETS = 0, 1, 2, 3, 8, 9
_CREATE, _HEARTBEAT, _SHARE_HEARTBEAT = 19, 68, 76
_TOPIC, _READ, _GROUP = "written", "read", "group"
_NOW = 1_790_000_000_000
_ROUNDS, _REQUESTS = 40, 100
_QUICK_ROUNDS, _QUICK_REQUESTS = 8, 40
_LARGE = 1 << 17  # requests of so many bytes are sent less often
_WARM = 5  # rounds that do not count: modules are imported, Java compiles
_RECORDS = {"1KB": 1, "16KB": 16, "128KB": 1_280, "1MB": 10_240}
_FETCH_BYTES = {"1KB": 1 << 10, "16KB": 1 << 14, "1MB": 1 << 20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under a minute")
    parser.add_argument("--peer", type=Path, help="interpreter of another release of Headrace")
    options = parser.parse_args()
    rounds, requests = (_QUICK_ROUNDS, _QUICK_REQUESTS) if options.quick else (_ROUNDS, _REQUESTS)
    peer: Callable[[Path], Broker] = BROKERS["kafka"]
    if options.peer is not None:
        peer = partial(_Release, options.peer)
    with running(Headrace) as ours, running(peer) as other:
        figures = _compare([ours, other], rounds, requests)
    print(json.dumps(figures))


class _Release(Headrace):
    """Another release of Headrace, in an environment of its own."""

    def __init__(self, interpreter: Path, folder: Path) -> None:
        super().__init__(folder)
        self._interpreter = interpreter

    def prepare(self) -> None:
        """Leave its modules as its installation compiled them."""

    def command(self, settings: Mapping[str, str]) -> list[str]:
        return [str(self._interpreter), *super().command(settings)[1:]]


def _compare(brokers: list[Broker], rounds: int, requests: int) -> dict[str, float]:
    """Return microseconds a request of the first broker and ratios to the second."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(_connected(broker)) for broker in brokers]
        sent = [_requests(connection) for connection in connections]
        figures: dict[str, float] = {}
        for name in sent[0]:
            least = [float("inf")] * len(brokers)
            count = requests if len(sent[0][name]) < _LARGE and "1MB" not in name else requests // 5
            for number in range(-_WARM, rounds):
                for at in (0, 1) if number % 2 else (1, 0):
                    cost = _cost(brokers[at], connections[at], sent[at][name], count)
                    least[at] = min(least[at], cost) if number >= 0 else least[at]
            for at, connection in enumerate(connections):
                _require_success(name, sent[at][name], connection)
            figures[f"{name}_us"] = round(least[0], 1)
            figures[f"{name}_ratio"] = round(least[0] / least[1], 3)
            print(f"{name:16} {least[0]:8.1f} us {least[1]:8.1f} us {least[0] / least[1]:6.3f}")
    return figures


def _require_success(name: str, request: bytes, connection: Connection) -> None:
    """Exit where the request is answered with an error: what was measured is another path."""
    key, version = struct.unpack_from(">hh", request, 4)
    answer = repr(decoded(key, version, connection.exchange(request)))
    if code := re.search(r"error_code=(-?[1-9]\d*)", answer):
        sys.exit(f"{name} is answered with error {code[1]}")


@contextlib.contextmanager
def _connected(broker: Broker) -> Iterator[Connection]:
    connection = Connection(broker)
    try:
        yield connection
    finally:
        connection.close()


def _cost(broker: Broker, connection: Connection, request: bytes, count: int) -> float:
    """Return the processor time of the broker for a request, in microseconds."""
    before = _cpu_ns(broker.pid)
    for _ in range(count):
        connection.exchange(request)
    return (_cpu_ns(broker.pid) - before) / count / 1000


def _cpu_ns(pid: int) -> int:
    """Return the processor time of all threads of a process, as the kernel counts it."""
    used = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            used += int((thread / "schedstat").read_text().split()[0])
    return used


def _requests(connection: Connection) -> dict[str, bytes]:
    """Return the requests by name; topics, records and members that they need are made before."""
    _prepare(connection)
    frames = {f"produce_{size}": _produce(_TOPIC, _batch(size)) for size in _RECORDS}
    frames["produce_16KB_lz4"] = _produce(_TOPIC, _batch("16KB", Codec.LZ4))
    frames |= {f"fetch_{size}": _fetch(most) for size, most in _FETCH_BYTES.items()}
    return frames | _others(connection)


def _prepare(connection: Connection) -> None:
    topic = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    kept = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    topic["configs"] = [{"name": "retention.bytes", "value": str(64 << 20)}]
    created = connection.ask(
        _CREATE, 5, topics=[{"name": _TOPIC, **topic}, {"name": _READ, **kept}],
        timeout=60_000, validate_only=False,
    )  # fmt: skip
    assert not any(one.error_code for one in created.topics), created
    connection.find_coordinator(_GROUP, _READ)
    for size in ("1KB", "16KB"):
        connection.exchange(_produce(_READ, _batch(size)))
    for _ in range(80):
        connection.exchange(_produce(_READ, _batch("16KB")))


def _others(connection: Connection) -> dict[str, bytes]:
    one = {"name": _READ, "topic_id": None}
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    group = {"group_id": _GROUP, "member_id": None, "member_epoch": -1}
    offset = {
        "partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1,
        "committed_metadata": "",
    }  # fmt: skip
    commit = frame(
        _COMMIT, 8, group_id=_GROUP, generation_id_or_member_epoch=-1, member_id="",
        group_instance_id=None, topics=[{**one, "partitions": [offset]}],
    )  # fmt: skip
    groups = [{**group, "topics": [{**one, "partition_indexes": [0]}]}]
    frames = {
        "commit": commit,
        "offset_fetch": frame(_OFFSETS, 8, groups=groups, require_stable=False),
        "list_offsets": frame(
            _LIST, 7, replica_id=-1, isolation_level=0,
            topics=[{"name": _READ, "partitions": [partition]}],
        ),
        "metadata": frame(
            _METADATA, 9, topics=[one], allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        ),
        "share_heartbeat": _share_member(connection),
        "group_heartbeat": _group_member(connection),
    }  # fmt: skip
    return {name: bytes(data) for name, data in frames.items()}


def _share_member(connection: Connection) -> bytearray:
    member = "AAAAAAAAAAAAAAAAAAAAAQ"
    fields = {"group_id": "shared", "member_id": member, "rack_id": None}
    joined = connection.ask(
        _SHARE_HEARTBEAT, 1, **fields, member_epoch=0, subscribed_topic_names=[_READ]
    )
    assert not joined.error_code, joined
    return frame(
        _SHARE_HEARTBEAT, 1, **fields, member_epoch=joined.member_epoch,
        subscribed_topic_names=None,
    )  # fmt: skip


def _group_member(connection: Connection) -> bytearray:
    fields = {
        "group_id": "consumers", "member_id": "AAAAAAAAAAAAAAAAAAAAAg", "instance_id": None,
        "rack_id": None, "server_assignor": None, "subscribed_topic_regex": None,
    }  # fmt: skip
    joined = connection.ask(
        _HEARTBEAT, 1, **fields, member_epoch=0, rebalance_timeout=300_000,
        subscribed_topic_names=[_READ], topic_partitions=[],
    )  # fmt: skip
    assert not joined.error_code, joined
    return frame(
        _HEARTBEAT, 1, **fields, member_epoch=joined.member_epoch, rebalance_timeout=-1,
        subscribed_topic_names=None, topic_partitions=None,
    )  # fmt: skip


def _produce(topic: str, batch: bytes) -> bytes:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
    return bytes(
        frame(_PRODUCE, 8, transactional_id=None, acks=-1, timeout=30_000, topic_data=data)
    )


def _fetch(most: int) -> bytes:
    partition = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1,
        "log_start_offset": -1, "partition_max_bytes": most,
    }  # fmt: skip
    return bytes(
        frame(
            _FETCH, 11, replica_id=-1, max_wait=0, min_bytes=0, max_bytes=most,
            isolation_level=0, session_id=0, session_epoch=-1,
            topics=[{"topic": _READ, "topic_id": None, "partitions": [partition]}],
            forgotten_topics_data=[], rack_id="",
        )
    )  # fmt: skip


def _batch(size: str, compression: Codec = Codec.NONE) -> bytes:
    """A batch of about the size: one or sixteen records of a kilobyte, or many of 100 bytes."""
    count = _RECORDS[size]
    value = 1_000 if count <= 16 else 90
    dice = random.Random(1)
    records = [
        Record(number, _NOW, None, dice.randbytes(value // 2) + bytes(value // 2))
        for number in range(count)
    ]
    return bytes(batches.build(records, compression=compression))


if __name__ == "__main__":
    main()
