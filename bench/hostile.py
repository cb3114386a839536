"""A polite client beside hostile ones: what one stranger's packets cost everybody else.

    python bench/hostile.py [--quick] [--nice N] [--only ATTACK ...]

Each attack gets a broker of its own, launched as users launch it, with default settings. A polite
client in a process of its own produces, fetches and commits one record every 10 ms. Its requests
of the first two seconds are the baseline. Then the attack begins, from another process and without
credentials; it is bounded in amount, and ends after 20 seconds at the latest. Measured are the
polite client's requests from then on until the attack is over and half a second longer (p50, p99
and longest, each of the three requests counted), and how far the broker's resident memory rose
above what it was before (from the kernel's own peak counter).

The machine has few cores, so an attacker could slow the polite client down by its own use of the
processor, which is no fault of the broker. Attackers therefore run in one process, which uses one
core at most, and at a priority that is lower by 10. What other processes do still counts: look at
the baseline and at the load, which are printed with each attack, before comparing figures; or give
all processes of the benchmark a higher priority with --nice -15, for which it must be root.

Attacks are named as in the list of findings that they come from, and have the size of the finding:
header bombs, also in a compacted topic while it is compacted, answers without a bound, unread
responses, partial frames, claimed sizes, batches that claim records, lockout by settings, share
sessions, regular expressions, joins, commit metadata, share groups, waiting fetches, slow sockets
on the metrics port, small segments, foreign epochs, invented producers, and too many files.
`pipelines` is all legal: 40 connections that each pipeline expensive requests and read the answers.
`wakes` has 2,000 fetches wait for the partition that the polite client produces to.
Three are about memory that fetches keep: `acquired` (share fetches that end at the same time),
`views` (small batches in front of large ones) and `hang_ups` (connections reset during a fetch).

Goals, for each attack:

- the polite client's p99 is at most 25 ms;
- the broker's memory rises by at most 256 MB;
- the polite client keeps its connection and gets every response;
- when the attack is over, 32 new connections get a response each.

The machine may be busy at the wrong moment, which no broker can help. An attack whose p99 is above
the goal is therefore repeated, up to two times, on a new broker, and the run with the lowest p99
counts. Memory does not depend on what else the machine does: the highest peak of the runs counts.
The other two goals are never given a second run.

The last line of standard output is one JSON object: `<attack>_p99_ms`, `<attack>_baseline_p99_ms`
and `<attack>_peak_mb`, the worst of each, and the load of the machine. An attack that ended without
figures has none. Each goal that was missed is one line on standard error, and the exit code is then
1. With --quick each attack is a fraction of itself and ends after a second; the whole takes less
than a minute on an idle machine.
"""

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import resource
import selectors
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from brokers import Headrace
from group_client import Connection, decoded, frame
from headrace.wire import batches
from headrace.wire.batches import Record

_POLITE_PAUSE_SECONDS = 0.010
P99_MS_MAX, PEAK_MB_MAX = 25.0, 256.0
RUNS_MAX = 3
_AFTER_SECONDS = 0.5
_NEW_CLIENTS, _NEW_CLIENT_SECONDS_MAX = 32, 10  # more than the broker reserves for loopback
_NICE = 10  # of attackers, added to that of the others
_IN_FLIGHT = 8  # requests of a connection that pipelines
_TIMEOUT_SECONDS = 60
_HEADERS_MAX = 1_000_000  # headrace.batch.headers.max
_MB = 1e6
PRODUCE, FETCH, OFFSETS, METADATA, COMMIT, JOIN, CREATE = 0, 1, 2, 3, 8, 11, 19
CONFIGS, ALTER, PRODUCERS, HEARTBEAT, SHARE_HEARTBEAT, SHARE_FETCH = 32, 44, 61, 68, 76, 78
WIDE = "w"  # a short name, so that a request can have it many times
LARGE = "large"  # a topic of large records
_INT_MAX = (1 << 31) - 1
_GROUP = 32  # the type of a resource

Figures = dict[str, float]


class Size(NamedTuple):
    """How much each attack does, and how long it may take."""

    partitions: int  # of the wide topic
    topics: int  # that a regular expression is applied to
    before_seconds: float
    attack_seconds_max: float
    is_quick: bool

    def scale(self, name: str) -> float:
        """The part of the finding that an attack carries out."""
        return _QUICK_SCALES.get(name, 0.1) if self.is_quick else 1.0


class AttackError(Exception):
    """The polite client failed during an attack."""


FULL = Size(1000, 2000, 2.0, 20.0, is_quick=False)
QUICK = Size(240, 200, 0.3, 1.0, is_quick=True)


class Attack:
    """What an attack may use: the broker's ports, how much to do, and sockets that are closed."""

    def __init__(self, broker: Headrace, scale: float, metrics_port: int, partitions: int) -> None:
        self.port, self.scale, self.metrics_port = broker.port, scale, metrics_port
        self.partitions = partitions
        self.broker = broker
        self.until = time.monotonic() + max(0.6, 6 * scale)
        self._sockets: list[socket.socket] = []

    def count(self, whole: int) -> int:
        """So many of `whole` as the scale says, at least one."""
        return max(1, round(whole * self.scale))

    def open(self, port: int | None = None) -> socket.socket:
        opened = socket.create_connection(("127.0.0.1", port or self.port), _TIMEOUT_SECONDS)
        self._sockets.append(opened)
        return opened

    def open_some(self, count: int) -> list[socket.socket]:
        """As many of `count` connections as the broker accepts."""
        opened = []
        for _ in range(count):
            with contextlib.suppress(OSError):
                opened.append(self.open())
        return opened

    def send(self, where: socket.socket, data: bytes | bytearray) -> bool:
        """Send, as far as the broker takes it within a second; whether it took all."""
        where.settimeout(1)
        try:
            where.sendall(data)
        except OSError:
            return False
        return True

    def ask(self, *requests: bytes | bytearray) -> list[bytes]:
        """Send requests over one connection, and read the answers until the broker hangs up."""
        answers: list[bytes] = []
        with contextlib.suppress(OSError, SystemExit):
            client = Connection(self.broker)
            self._sockets.append(client.socket)
            for request in requests:
                answers.append(client.exchange(request))  # noqa: PERF401  # some, if it hangs up
        return answers

    def rest(self) -> None:
        """Hold the connections for a while."""
        time.sleep(max(0.0, self.until - time.monotonic()))

    def close(self) -> None:
        for one in self._sockets:
            one.close()


# ---- the attacks


def header_bomb(attack: Attack) -> None:
    """B1: one record with millions of empty headers, in a default and in a compacted topic.

    The batches of the finding, 4,311 and 6,844 bytes, exceed headrace.batch.headers.max and
    headrace.batch.decompressed.max.bytes. The largest that the broker accepts come next, and are
    then searched by time.
    """
    refused = [_bomb(attack.count(headers)) for headers in (23_400_000, 37_300_000)]
    stored = _bomb(_HEADERS_MAX)
    attack.ask(_create("compacted", {"cleanup.policy": "compact"}))
    for topic in ("polite-2", "compacted"):
        attack.ask(*[_produce(topic, batch) for batch in refused] * attack.count(6))
        attack.ask(*[_produce(topic, stored)] * attack.count(60))
        by_time = frame(OFFSETS, 7, replica_id=-1, isolation_level=0, topics=[
            {"name": topic, "partitions": [
                {"partition_index": 0, "current_leader_epoch": -1, "timestamp": 1}]}])  # fmt: skip
        attack.ask(*[by_time] * attack.count(60))


def compaction(attack: Attack) -> None:
    """B1: the largest header bombs that are stored, compacted by the cleaner."""
    settings = {
        "cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0",
    }  # fmt: skip
    attack.ask(_create("compacted", settings))
    attack.ask(*[_produce("compacted", _bomb(_HEADERS_MAX))] * attack.count(200))
    attack.until += 12 * attack.scale  # log.cleaner.backoff.ms is 15 s
    attack.rest()


def metadata(attack: Attack) -> None:
    """B2: one topic of 1,000 partitions named 4,000 and 300,000 times, and all, by many."""
    for count in (4000, 300_000):
        attack.ask(frame(METADATA, 1, topics=[{"name": WIDE}] * attack.count(count)))
    everything = frame(METADATA, 12, topics=None, allow_auto_topic_creation=False,
                       include_topic_authorized_operations=False)  # fmt: skip
    for one in attack.open_some(attack.count(300)):
        attack.send(one, everything * 20)
    attack.rest()


def producers(attack: Attack) -> None:
    """B2: DescribeProducers of 800 kB."""
    indexes = [n % attack.partitions for n in range(200_000)]
    asked = frame(PRODUCERS, 0, topics=[{"name": WIDE, "partition_indexes": indexes}])
    attack.ask(*[asked] * attack.count(4))
    asked = frame(PRODUCERS, 0, topics=[{"name": WIDE, "partition_indexes": indexes[:9000]}])
    attack.ask(*[asked] * attack.count(20))


def configs(attack: Attack) -> None:
    """B2: DescribeConfigs of the same topic, and of the broker, as often as fits."""
    for count in (100_000, 4000):
        one = {"resource_type": 2, "resource_name": WIDE, "configuration_keys": None}
        other = {"resource_type": 3, "resource_name": "g", "configuration_keys": None}
        many = [one] * count + [other | {"resource_name": str(n)} for n in range(min(count, 900))]
        asked = frame(CONFIGS, 4, resources=many, include_synonyms=True, include_documentation=True)
        attack.ask(*[asked] * attack.count(3))


def unread(attack: Attack) -> None:
    """B3: 80 fetches of 46 bytes whose answers nobody reads."""
    for one in attack.open_some(attack.count(80)):
        attack.send(one, _fetch("big", most=1 << 30))
    attack.rest()


def frames(attack: Attack) -> None:
    """B3: 40 connections that each send 60 MiB of a frame, of an unserved and of a served API."""
    for key in (999, PRODUCE):
        part = struct.pack(">ihhih", 100 << 20, key, 9, 1, -1) + bytes((1 << 20) - 14)
        opened = attack.open_some(attack.count(40))
        for _ in range(attack.count(60)):
            opened = [one for one in opened if attack.send(one, part)]
            part = bytes(1 << 20)
    attack.rest()


def claims(attack: Attack) -> None:
    """B3: ten bytes that claim a frame of 100 MiB, over many connections."""
    for one in attack.open_some(attack.count(4000)):
        attack.send(one, struct.pack(">ihhh", 100 << 20, PRODUCE, 9, 0))
    attack.rest()


def record_claims(attack: Attack) -> None:
    """B4: 72 bytes that claim 2^31-1 or a million records, and garbage marked zstd."""
    record = b"\x0c\0\0\0\x01\0\0"
    for _ in range(attack.count(200)):
        attack.ask(
            *(
                _produce("polite-2", _batch(record, records=claim, last_delta=claim - 1))
                for claim in (2**31 - 1, 1_000_000)
            ),
            _produce("polite-2", _batch(b"garbage" * 100, records=1, codec_id=4)),
        )


def lockout(attack: Attack) -> None:
    """B5: max.connections=1, then connections."""
    change = {"name": "max.connections", "config_operation": 0, "value": "1"}
    resource_ = {"resource_type": 4, "resource_name": "1", "configs": [change]}
    attack.ask(frame(ALTER, 1, resources=[resource_], validate_only=False))
    attack.open_some(attack.count(200))
    attack.rest()


def share_sessions(attack: Attack) -> None:
    """B6: one connection opens 2,000 share sessions, 30 open 3,000, then honest members come."""
    numbers = range(attack.count(2000))
    answers = attack.ask(*(_share_session(str(number).zfill(36)) for number in numbers))
    invented = sum(not _share_error(one) for one in answers)
    for connection in range(attack.count(30)):
        members = (f"{connection}-{number}".zfill(36) for number in range(100))
        attack.ask(*(_share_session(member) for member in members))
    honest = 0
    for number in range(20):
        member = f"h{number}".zfill(36)
        joining = frame(SHARE_HEARTBEAT, 1, group_id="g", member_id=member, member_epoch=0,
                        rack_id=None, subscribed_topic_names=["polite"])  # fmt: skip
        answers = attack.ask(joining, _share_session(member))
        honest += len(answers) == 2 and not any(_share_error(one) for one in answers)
    print(
        f"share_sessions: {invented} sessions opened by one connection; {honest} of 20 honest"
        " members got a session"
    )


def regex(attack: Attack) -> None:
    """B7: patterns of 8 kB over 2,000 topics, and short ones that compile to much."""
    patterns = ["(.*a.*)*" * 1000, "(.{1,30}){1,30}z", "(.*a.*)*" * 90, "(.{1,20}){1,25}"]
    for number in range(attack.count(12)):
        beat = {
            "group_id": f"g{number}", "member_id": str(number).zfill(22), "member_epoch": 0,
            "instance_id": None, "rack_id": None, "rebalance_timeout": 60_000,
            "subscribed_topic_names": [], "server_assignor": None, "topic_partitions": [],
            "subscribed_topic_regex": patterns[number % 4] + "x" * number,
        }  # fmt: skip
        attack.ask(frame(HEARTBEAT, 1, **beat))


def joins(attack: Attack) -> None:
    """B8: members with 1 MB of metadata, and many small ones."""

    def joining(group: str, size: int) -> bytearray:
        return frame(JOIN, 3, group_id=group, session_timeout=1_800_000, rebalance_timeout=10,
            member_id="", protocol_type="consumer",
            protocols=[{"name": "range", "metadata": bytes(size)}])  # fmt: skip

    for number in range(attack.count(500)):
        attack.ask(joining(f"large-{number}", 1_000_000))
    attack.ask(*[joining(f"small-{number}", 1000) for number in range(attack.count(5000))])


def commits(attack: Attack) -> None:
    """B8: 4 kB of metadata for each of 240 partitions of 500 groups."""
    for number in range(attack.count(500)):
        partitions = [
            {"partition_index": n, "committed_offset": 1, "committed_leader_epoch": -1,
             "committed_metadata": "m" * 4000} for n in range(240)
        ]  # fmt: skip
        attack.ask(frame(COMMIT, 8, group_id=f"c{number}", member_id="",
            generation_id_or_member_epoch=-1, group_instance_id=None,
            topics=[{"name": WIDE, "partitions": partitions}]))  # fmt: skip


def share_groups(attack: Attack) -> None:
    """B8: share groups with long lists of topics."""
    names = [f"{n:04}".ljust(249, "t") for n in range(3900)]
    for number in range(attack.count(500)):
        attack.ask(frame(SHARE_HEARTBEAT, 1, group_id=f"s{number}", member_id="m".ljust(22, "m"),
            member_epoch=0, rack_id=None, subscribed_topic_names=[WIDE, *names]))  # fmt: skip


def waiting(attack: Attack) -> None:
    """B8: 400 fetches that wait for 2,000 partitions each."""
    topics = [
        {"topic": name, "partitions": [
            {"partition": n, "current_leader_epoch": -1, "fetch_offset": 0, "log_start_offset": -1,
             "partition_max_bytes": 1} for n in range(attack.partitions)]}
        for name in (WIDE, WIDE + "r")
    ]  # fmt: skip
    asked = frame(FETCH, 11, replica_id=-1, max_wait=60_000, min_bytes=1 << 30, max_bytes=1 << 30,
        isolation_level=0, session_id=0, session_epoch=-1, topics=topics, forgotten_topics_data=[],
        rack_id="")  # fmt: skip
    for one in attack.open_some(attack.count(400)):
        attack.send(one, asked)
    attack.rest()


def slow_sockets(attack: Attack) -> None:
    """B9: sockets on the metrics port that send nothing, while a probe looks at the health."""
    for _ in range(64):
        with contextlib.suppress(OSError):
            attack.open(attack.metrics_port)
    failed, probes = 0, attack.count(40)
    for _ in range(probes):
        try:
            with socket.create_connection(("127.0.0.1", attack.metrics_port), timeout=2) as probe:
                probe.sendall(b"GET /-/healthy HTTP/1.1\r\n\r\n")
                failed += b" 200 " not in probe.recv(100)
        except OSError:
            failed += 1
    print(f"slow_sockets: {failed} of {probes} health probes failed")


def segments(attack: Attack) -> None:
    """B9: a topic with segment.bytes=1024, so that each batch begins a segment."""
    create = _create("tiny", {"segment.bytes": "1024"})
    data = batches.build([Record(0, 1000, None, bytes(900))])
    attack.ask(create, *[_produce("tiny", data)] * attack.count(1000))


def epochs(attack: Attack) -> None:
    """B9: batches with the ids of other producers, and epochs of their own."""
    for number in range(attack.count(500)):
        ids = {"producer_id": number, "producer_epoch": 30_000, "base_sequence": 0}
        data = batches.build([Record(0, 1000, None, b"v")], **ids)
        attack.ask(_produce("polite-2", data))


def producer_ids(attack: Attack) -> None:
    """B8: batches of 440,000 producers, each with an id of its own."""
    record = b"\x0c\0\0\0\x01\0\0"
    for number in range(attack.count(2200)):
        parts = [
            {"index": index, "records": _batch(record, records=1, producer=200 * number + index)}
            for index in range(200)
        ]
        attack.ask(frame(PRODUCE, 8, transactional_id=None, acks=1, timeout=1000,
                         topic_data=[{"name": WIDE, "partition_data": parts}]))  # fmt: skip


def files(attack: Attack) -> None:
    """C4: 400 connections to a broker that may open 256 files."""
    opened = attack.open_some(400)
    attack.rest()
    for one in opened:
        one.close()
    attack.ask(frame(METADATA, 1, topics=[]))


def pipelines(attack: Attack) -> None:
    """Legal requests that are expensive, pipelined over 40 connections; the answers are read."""
    partitions = [
        {"partition_index": n, "current_leader_epoch": -1, "timestamp": -1}
        for n in range(attack.partitions)
    ]
    one = {"resource_type": 2, "resource_name": WIDE, "configuration_keys": None}
    beat = {
        "group_id": "p", "member_id": "m" * 22, "member_epoch": 0, "rack_id": None,
        "subscribed_topic_names": [WIDE],
    }  # fmt: skip
    record = batches.build([Record(0, 1000, None, bytes(900_000))])
    requests = [
        frame(METADATA, 1, topics=[{"name": WIDE}]),
        _fetch("big", most=1 << 30),
        frame(OFFSETS, 7, replica_id=-1, isolation_level=0,
              topics=[{"name": WIDE, "partitions": partitions}]),
        frame(CONFIGS, 4, resources=[one], include_synonyms=True, include_documentation=True),
        frame(SHARE_HEARTBEAT, 1, **beat),
        _produce("polite-2", record),
    ]  # fmt: skip
    opened = attack.open_some(attack.count(40))
    with selectors.DefaultSelector() as selector:
        for number, connection in enumerate(opened):
            connection.setblocking(False)
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            selector.register(connection, both, _Pipeline(requests[number % len(requests)]))
        while time.monotonic() < attack.until and selector.get_map():
            for key, _ in selector.select(0.1):
                assert isinstance(key.fileobj, socket.socket)
                if not key.data.go_on(key.fileobj):
                    selector.unregister(key.fileobj)


class _Pipeline:
    """One request again and again over one connection, some ahead of the answers."""

    def __init__(self, request: bytearray) -> None:
        self._request = bytes(request)
        self._unsent = b""
        self._in_flight = 0
        self._head = b""
        self._left = 0  # bytes of the answer that is being read

    def go_on(self, connection: socket.socket) -> bool:
        """Send and receive what is possible; False when the broker hung up."""
        try:
            if not self._unsent and self._in_flight < _IN_FLIGHT:
                self._unsent = self._request
                self._in_flight += 1
            if self._unsent:
                self._unsent = self._unsent[connection.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            return False
        try:
            data = connection.recv(1 << 20)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._count(data)
        return bool(data)

    def _count(self, data: bytes) -> None:
        data = self._head + data
        self._head = b""
        while data:
            if not self._left:
                if len(data) < 4:
                    self._head = data
                    return
                self._left = 4 + int.from_bytes(data[:4])
            taken = min(self._left, len(data))
            self._left -= taken
            data = data[taken:]
            self._in_flight -= not self._left


def wakes(attack: Attack) -> None:
    """2,000 fetches that wait for more of the polite client's partition than there will be."""
    asked = _fetch("polite", most=1 << 30, wait_ms=60_000, bytes_min=1 << 30)
    for one in attack.open_some(attack.count(2000)):
        attack.send(one, asked)
    attack.rest()


def acquired(attack: Attack) -> None:
    """60 share fetches of 15 MB each that end at the same time.

    Each has a group of its own. The first 60 end when their time is up, the next when a record is
    appended.
    """
    wait_ms, received_bytes = attack.count(1000), 0
    record = batches.build([Record(0, 1000, None, bytes(1_000_000))])
    topic_id, partitions = _topic_id(attack, LARGE), range(_LARGE["acquired"] + 1)
    for ending, bytes_min in (("time", _INT_MAX), ("append", 15_500_000)):
        groups = [f"{ending}-{number}" for number in range(attack.count(60))]
        attack.ask(*_subscribe(groups))
        opened = attack.open_some(len(groups))
        for connection, group in zip(opened, groups, strict=False):
            request = _share_fetch(group, topic_id, partitions, wait_ms, bytes_min)
            attack.send(connection, request)
        if ending == "append":
            time.sleep(wait_ms / 2000)
            attack.ask(_produce(LARGE, record, _LARGE["acquired"]))
        received_bytes += _received(opened, time.monotonic() + 4 * wait_ms / 1000)
    print(f"acquired: {received_bytes / _MB:.0f} MB of responses")


def views(attack: Attack) -> None:
    """Batches of 100 bytes, each read together with most of the batch of 1 MiB behind it.

    12 fetches of 100 partitions and 4 share fetches of 400 wait for more than there is.
    """
    fetch = _fetch(LARGE, most=1 << 30, wait_ms=60_000, bytes_min=1 << 30,
                   partitions=range(attack.count(100)), partition_bytes=1_000_000)  # fmt: skip
    for connection in attack.open_some(12):
        attack.send(connection, fetch)
    groups = [f"v{number}" for number in range(4)]
    attack.ask(*_subscribe(groups))
    topic_id, wait_ms = _topic_id(attack, LARGE), attack.count(2000)
    partitions = range(attack.count(_LARGE["views"]))
    opened = attack.open_some(len(groups))
    for connection, group in zip(opened, groups, strict=False):
        attack.send(connection, _share_fetch(group, topic_id, partitions, wait_ms, _INT_MAX))
    received_bytes = _received(opened, time.monotonic() + 3 * wait_ms / 1000)
    print(f"views: {received_bytes / 1000:.0f} kB of responses to share fetches")
    attack.rest()


def hang_ups(attack: Attack) -> None:
    """300 fetches of 20 MB whose connections are reset after 1 to 4 milliseconds."""
    fields: dict[str, Any] = {
        "most": 1 << 30, "partitions": range(_LARGE["hang_ups"]), "partition_bytes": 1 << 20,
    }  # fmt: skip
    ready = _fetch(LARGE, **fields)
    incomplete = _fetch(LARGE, wait_ms=60_000, bytes_min=1 << 30, **fields)
    for number in range(attack.count(300)):
        connection = attack.open()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        attack.send(connection, incomplete if number % 2 else ready)
        time.sleep(0.001 * (1 + number // 2 % 4))  # so that different steps are interrupted
        connection.close()


ATTACKS: dict[str, Callable[[Attack], None]] = {
    one.__name__: one
    for one in (
        header_bomb, compaction, metadata, producers, configs, unread, frames, claims,
        record_claims, lockout, share_sessions, regex, joins, commits, share_groups, waiting,
        slow_sockets, segments, epochs, producer_ids, files, pipelines, wakes, acquired, views,
        hang_ups,
    )
}  # fmt: skip
_QUICK_SCALES = {
    "waiting": 0.25, "unread": 1.0, "slow_sockets": 0.25, "pipelines": 0.5, "acquired": 0.5,
    "views": 0.25, "hang_ups": 1.0,
}  # fmt: skip
_NEED_WIDE = {
    "metadata", "producers", "configs", "commits", "share_groups", "waiting", "pipelines",
    "producer_ids",
}  # fmt: skip
_LARGE = {"acquired": 15, "views": 400, "hang_ups": 20}  # partitions with large records


# ---- requests


def _varint(value: int) -> bytes:
    raw, out = (value << 1) ^ (value >> 63), bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def _batch(
    payload: bytes,
    *,
    records: int,
    codec_id: int = 0,
    last_delta: int = 0,
    max_time_ms: int = 1000,
    producer: int = -1,
) -> bytes:
    """A batch whose checksum is right, whatever its fields claim; a producer's first one."""
    from headrace.wire.checksums import crc32c

    epoch = -1 if producer < 0 else 0
    tail = struct.pack(
        ">hiqqqhii", codec_id, last_delta, 1000, max_time_ms, producer, epoch, epoch, records
    ) + payload  # fmt: skip
    return struct.pack(">qiibI", 0, len(tail) + 9, 0, 2, crc32c(tail)) + tail


def _bomb(headers: int) -> bytes:
    """A batch of some kB, dated into the future, with one record that has millions of headers."""
    import cramjam

    body = b"\0\0\0" + b"\x02k\x01"  # attributes, time and offset deltas, a key, no value
    body += _varint(headers) + b"\0\x01" * headers
    packed = bytes(cramjam.zstd.compress(_varint(len(body)) + body))
    return _batch(packed, records=1, codec_id=4, max_time_ms=(int(time.time()) + 600) * 1000)


def _create(topic: str, settings: dict[str, str]) -> bytearray:
    configs = [{"name": name, "value": value} for name, value in settings.items()]
    one = {"name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": [],
           "configs": configs}  # fmt: skip
    return frame(CREATE, 5, topics=[one], timeout=0, validate_only=False)


def _share_session(member: str) -> bytearray:
    return frame(SHARE_FETCH, 1, group_id="g", member_id=member, share_session_epoch=0, max_wait=0,
        min_bytes=0, max_bytes=1 << 20, max_records=10, batch_size=10, topics=[],
        forgotten_topics_data=[])  # fmt: skip


def _share_error(answer: bytes) -> int:
    """The error code of a ShareFetch or a ShareGroupHeartbeat."""
    return int(struct.unpack_from(">h", answer, 9)[0])


def _subscribe(groups: list[str]) -> list[bytearray]:
    """Have share groups of one member each begin with the first large record."""
    change = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resources = [
        {"resource_type": _GROUP, "resource_name": group, "configs": [change]} for group in groups
    ]
    beat = {
        "member_id": "m" * 22, "member_epoch": 0, "rack_id": None,
        "subscribed_topic_names": [LARGE],
    }  # fmt: skip
    joins = [frame(SHARE_HEARTBEAT, 1, group_id=group, **beat) for group in groups]
    return [frame(ALTER, 1, resources=resources, validate_only=False), *joins]


def _share_fetch(
    group: str, topic_id: UUID, partitions: range, wait_ms: int, bytes_min: int
) -> bytearray:
    """The first fetch of a share session, without limits of its own."""
    parts = [{"partition_index": n, "acknowledgement_batches": []} for n in partitions]
    return frame(SHARE_FETCH, 1, group_id=group, member_id="m" * 22, share_session_epoch=0,
        max_wait=wait_ms, min_bytes=bytes_min, max_bytes=_INT_MAX, max_records=_INT_MAX,
        batch_size=_INT_MAX, topics=[{"topic_id": topic_id, "partitions": parts}],
        forgotten_topics_data=[])  # fmt: skip


def _topic_id(attack: Attack, topic: str) -> UUID:
    request = frame(METADATA, 12, topics=[{"topic_id": None, "name": topic}],
                    allow_auto_topic_creation=False,
                    include_topic_authorized_operations=False)  # fmt: skip
    (response,) = attack.ask(request)
    topic_id: UUID = decoded(METADATA, 12, response).topics[0].topic_id
    return topic_id


def _received(connections: list[socket.socket], until: float) -> int:
    """Read a response of each connection, all at the same time; returns their bytes."""
    count = 0
    left = dict.fromkeys(connections, 0)  # bytes of a response; its size comes first
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        while left and time.monotonic() < until:
            for key, _ in selector.select(0.1):
                assert isinstance(key.fileobj, socket.socket)
                connection, data = key.fileobj, b""
                with contextlib.suppress(OSError):
                    data = connection.recv(min(left[connection], 1 << 20) or 4)
                count += len(data)
                if left[connection]:
                    left[connection] -= len(data)
                else:
                    left[connection] = int.from_bytes(data)
                if not data or not left[connection]:
                    selector.unregister(connection)
                    del left[connection]
    return count


def _produce(topic: str, data: bytes, partition: int = 0) -> bytearray:
    partitions = [{"index": partition, "records": data}]
    return frame(PRODUCE, 8, transactional_id=None, acks=1, timeout=1000,
                 topic_data=[{"name": topic, "partition_data": partitions}])  # fmt: skip


def _fetch(
    topic: str,
    offset: int = 0,
    most: int = 1 << 20,
    wait_ms: int = 0,
    bytes_min: int = 1,
    partitions: range = range(1),
    partition_bytes: int | None = None,
) -> bytearray:
    parts = [
        {"partition": n, "current_leader_epoch": -1, "fetch_offset": offset, "log_start_offset": -1,
         "partition_max_bytes": partition_bytes or most} for n in partitions
    ]  # fmt: skip
    return frame(FETCH, 11, replica_id=-1, max_wait=wait_ms, min_bytes=bytes_min, max_bytes=most,
        isolation_level=0, session_id=0, session_epoch=-1, forgotten_topics_data=[], rack_id="",
        topics=[{"topic": topic, "partitions": parts}])  # fmt: skip


def _commit(offset: int) -> bytearray:
    one = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1,
           "committed_metadata": ""}  # fmt: skip
    return frame(COMMIT, 8, group_id="polite", member_id="", generation_id_or_member_epoch=-1,
        group_instance_id=None, topics=[{"name": "polite", "partitions": [one]}])  # fmt: skip


# ---- the polite client


def _polite(broker: Headrace, pipe: Pipe) -> None:
    """Produce, fetch and commit at a steady rate; can send the seconds of each request."""
    client = Connection(broker)
    record = batches.build([Record(0, 1000, None, bytes(100))])
    seconds: list[float] = []
    offset = 0
    try:
        while True:
            for request in (_produce("polite", record), _fetch("polite", offset), _commit(offset)):
                began = time.perf_counter()
                client.exchange(request)
                seconds.append(time.perf_counter() - began)
            offset += 1
            if pipe.poll(_POLITE_PAUSE_SECONDS):
                is_end = pipe.recv() == "stop"
                pipe.send(seconds)
                if is_end:
                    return
                seconds.clear()
    except (OSError, SystemExit) as error:
        pipe.send(f"the polite client failed: {error}")


def _spawned(work: Callable[..., None], *arguments: Any) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments, daemon=True)
    process.start()
    return process


def _attacking(name: str, attack: Attack) -> None:
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    attack.until = time.monotonic() + max(0.6, 6 * attack.scale)
    try:
        ATTACKS[name](attack)
    finally:
        attack.close()


# ---- measuring


def _memory(pid: int, field: str) -> float:
    """A figure of /proc/PID/status in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / _MB
    sys.exit(f"no {field} of process {pid}")


@contextlib.contextmanager
def _broker(name: str, metrics_port: int) -> Iterator[Headrace]:
    with tempfile.TemporaryDirectory() as folder:
        broker = Headrace(Path(folder))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        if name == "files":
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
            broker.command = _with_few_files(broker.command)  # type: ignore[method-assign]  # of this one alone
        try:
            broker.launch({"headrace.metrics.port": str(metrics_port)})
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        try:
            yield broker
        finally:
            broker.kill()  # an orderly end of thousands of partitions takes seconds


def _with_few_files(command: Callable[..., list[str]]) -> Callable[..., list[str]]:
    return lambda settings: ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", *command(settings)]


def _prepare(broker: Headrace, name: str, size: Size) -> None:
    client = Connection(broker)
    wide = {WIDE: size.partitions} if name in _NEED_WIDE else {}
    wide |= {WIDE + "r": size.partitions} if name == "waiting" else {}
    wide |= {f"t{n}-" + "a" * 200: 1 for n in range(size.topics)} if name == "regex" else {}
    large = _LARGE.get(name, 0)
    large = round(large * size.scale(name)) if name == "views" else large
    wide |= {LARGE: large + 1} if large else {}  # the last one remains empty
    fields = {"replication_factor": 1, "assignments": [], "configs": []}
    for topic, count in {"polite": 1, "polite-2": 1, "big": 1, **wide}.items():
        asked = [{"name": topic, "num_partitions": count} | fields]
        answer = client.ask(CREATE, 5, topics=asked, timeout=60_000, validate_only=False)
        assert answer.topics[0].error_code == 0, answer
    if name in {"unread", "pipelines"}:
        data = batches.build([Record(0, 1000, None, bytes(900_000))])
        for _ in range(70):
            client.exchange(_produce("big", data))
    for partition in range(large):
        for value_bytes in (40, 1_048_480) if name == "views" else (1_000_000,):
            data = batches.build([Record(0, 1000, None, bytes(value_bytes))])
            client.exchange(_produce(LARGE, data, partition))
    client.close()


def measured(name: str, size: Size) -> Figures:
    """Carry out one attack on a broker of its own.

    Raises:
        AttackError: the polite client failed, or clients that came after the attack.
    """
    load = os.getloadavg()[0]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        metrics_port = probe.getsockname()[1]
    with _broker(name, metrics_port) as broker:
        _prepare(broker, name, size)
        pipe, other = multiprocessing.Pipe()
        polite = _spawned(_polite, broker, other)
        time.sleep(size.before_seconds)
        Path(f"/proc/{broker.pid}/clear_refs").write_text("5")  # the peak begins here
        idle = _memory(broker.pid, "VmRSS")
        baseline = _asked(pipe, "begin")
        began = time.perf_counter()
        attack = Attack(broker, size.scale(name), metrics_port, size.partitions)
        attacker = _spawned(_attacking, name, attack)
        attacker.join(size.attack_seconds_max)
        ended = "" if attacker.exitcode is not None else ", cut off"
        attacker.kill()
        attacker.join()
        took = time.perf_counter() - began
        time.sleep(_AFTER_SECONDS)
        seconds = _asked(pipe, "stop")
        polite.join()
        peak = _memory(broker.pid, "VmHWM") - idle
        if attacker.exitcode and not ended:
            sys.exit(f"{name}: the attack failed")
        if (refused := refused_clients(broker)) > 0:
            raise AttackError(
                f"{refused} of {_NEW_CLIENTS} new connections got no response after the attack"
            )
    p99, before_p99 = _percentile(seconds, 99), _percentile(baseline, 99)
    print(
        f"{name}: polite p50 {_percentile(seconds, 50):.2f} ms, p99 {p99:.1f} ms (before"
        f" {before_p99:.1f}), longest {1000 * max(seconds):.1f} ms of {len(seconds)}; peak"
        f" {peak:.0f} MB over {idle:.0f} MB; {took:.1f} s{ended}; load {load:.1f}",
        flush=True,
    )
    return {"p99_ms": p99, "baseline_p99_ms": before_p99, "peak_mb": peak}


def best_run(run: Callable[[], Figures]) -> Figures:
    """Repeat an attack while its p99 is above the goal, up to `RUNS_MAX` runs.

    Returns:
        The latencies of the run with the lowest p99, and the highest peak of all runs.
    """
    runs = [run()]
    while runs[-1]["p99_ms"] > P99_MS_MAX and len(runs) < RUNS_MAX:
        runs.append(run())
    best = min(runs, key=lambda figures: figures["p99_ms"])
    return best | {"peak_mb": max(figures["peak_mb"] for figures in runs)}


def missed_goals(name: str, figures: Figures) -> list[str]:
    """One line per goal that an attack misses."""
    p99, before, peak = (figures[key] for key in ("p99_ms", "baseline_p99_ms", "peak_mb"))
    missed = []
    if p99 > P99_MS_MAX:
        missed.append(f"p99 {p99:.1f} ms (before the attack {before:.1f}), goal {P99_MS_MAX:.0f}")
    if peak > PEAK_MB_MAX:
        missed.append(f"peak memory {peak:.1f} MB, goal {PEAK_MB_MAX:.0f}")
    return [f"{name}: {line}" for line in missed]


def refused_clients(broker: Headrace) -> int:
    """How many of some new connections, all open at a time, get no response."""
    request = frame(METADATA, 1, topics=[{"name": "polite"}])
    answered = 0
    with contextlib.ExitStack() as stack:
        for _ in range(_NEW_CLIENTS):
            with contextlib.suppress(OSError):
                address = ("127.0.0.1", broker.port)
                client = socket.create_connection(address, _NEW_CLIENT_SECONDS_MAX)
                stack.enter_context(client)
                client.sendall(request)
                answered += bool(client.recv(4))
    return _NEW_CLIENTS - answered


def _asked(pipe: Pipe, message: str) -> list[float]:
    """The seconds of the polite client's requests since the last message."""
    pipe.send(message)
    if not pipe.poll(_TIMEOUT_SECONDS):
        raise AttackError(f"the polite client got no response within {_TIMEOUT_SECONDS} s")
    seconds = pipe.recv()
    if isinstance(seconds, str) or not seconds:
        raise AttackError(seconds or "the polite client got no response")
    return list(seconds)


def _percentile(seconds: list[float], percent: int) -> float:
    """In milliseconds."""
    if len(seconds) < 2:
        return 1000 * max(seconds)
    return 1000 * statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of each, some seconds")
    parser.add_argument("--nice", type=int, default=0, help="add to the niceness of everything")
    parser.add_argument("--only", choices=ATTACKS, nargs="+", help="some attacks")
    arguments = parser.parse_args()
    os.nice(arguments.nice)
    size = QUICK if arguments.quick else FULL
    runs: dict[str, Figures] = {}
    missed: list[str] = []
    for name in arguments.only or ATTACKS:
        try:
            runs[name] = best_run(functools.partial(measured, name, size))
        except AttackError as error:
            missed.append(f"{name}: {error}")
        else:
            missed += missed_goals(name, runs[name])
    summary = {
        f"{name}_{key}": value for name, figures in runs.items() for key, value in figures.items()
    }
    for key in ("baseline_p99_ms", "peak_mb", "p99_ms"):
        summary[f"worst_{key}"] = max((figures[key] for figures in runs.values()), default=0)
    summary["load"] = os.getloadavg()[0]
    for line in missed:
        print(f"goal missed: {line}", file=sys.stderr)
    print(json.dumps({key: round(value, 2) for key, value in summary.items()}))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
