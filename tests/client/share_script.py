"""Scripted brokers of a share group, a partition each; they answer what a test wants."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import headrace
from headrace.wire.batches import Record, build
from headrace.wire.codec import decode_request, encode_response
from headrace.wire.primitives import Reader

from .conftest import ScriptedBroker

METADATA, FIND_COORDINATOR, DESCRIBE_CONFIGS = 3, 10, 32
HEARTBEAT, FETCH, ACKNOWLEDGE = 76, 78, 79
TOPIC_ID = UUID(int=7)
LOCK_MS = 30_000
SECONDS_MAX = 30.0


class ShareScript:
    """The share APIs of a `ScriptedBroker`, which gives one record a fetch while it has some.

    `codes` are top-level codes for the next requests of an API, `ack_codes` those for the next
    parcels; `said` is what arrived: (first, last, type, reason), in requests that were carried out.
    """

    def __init__(self, broker: ScriptedBroker, *, version: int = 2) -> None:
        self.broker = broker
        self.version = version
        self.leaders: list[ShareScript] = [self]  # of the partitions, in the order of their numbers
        self.codes: dict[int, deque[int]] = {
            key: deque() for key in (HEARTBEAT, FETCH, ACKNOWLEDGE)
        }
        self.number = 0  # the partition that its answers are about
        self.ack_codes: deque[int] = deque()
        self.fetch_codes: deque[int] = deque()
        self.records: deque[int] = deque()
        self.said: list[tuple[int, int, int, str | None]] = []
        self.epochs: list[tuple[int, int]] = []  # of sessions: API, epoch
        self.member_epochs: list[int] = []
        self.renewal = "true"
        self.fetches: list[tuple[int, int, bool]] = []  # wait, limit, whether it said something
        broker.answers |= {
            METADATA: self._metadata,
            FIND_COORDINATOR: self._coordinator,
            DESCRIBE_CONFIGS: self._configs,
            HEARTBEAT: self._heartbeat,
            FETCH: self._fetch,
            ACKNOWLEDGE: self._acknowledge,
        }
        broker.versions |= dict.fromkeys((FETCH, ACKNOWLEDGE), (1, version))
        broker.versions[HEARTBEAT] = (1, 1)

    def _heartbeat(self, source: Reader) -> bytes:
        asked = decode_request(HEARTBEAT, 1, source.take(source.remaining))
        self.member_epochs.append(asked.member_epoch)
        code = self.codes[HEARTBEAT].popleft() if self.codes[HEARTBEAT] else 0
        parts = [{"topic_id": TOPIC_ID, "partitions": list(range(len(self.leaders)))}]
        return _response(
            HEARTBEAT, 1, error_code=code, error_message="scripted", member_id=asked.member_id,
            member_epoch=max(asked.member_epoch, 1), heartbeat_interval=20,
            assignment={"topic_partitions": parts} if asked.member_epoch == 0 else None,
        )  # fmt: skip

    def _fetch(self, source: Reader) -> bytes:
        asked, code = self._asked(FETCH, source)
        has_acks = any(
            part.acknowledgement_batches for one in asked.topics for part in one.partitions
        )
        self.fetches.append((asked.max_wait, asked.max_records, has_acks))
        part: dict[str, Any] = {
            "partition_index": self.number, "error_code": 0, "error_message": None,
            "acknowledge_error_code": 0, "acknowledge_error_message": None,
            "current_leader": {"leader_id": 0, "leader_epoch": 0},
            "records": b"", "acquired_records": [],
        }  # fmt: skip
        if not code:
            part["acknowledge_error_code"] = self._hear(asked)
            if asked.max_records and self.fetch_codes:
                part["error_code"] = self.fetch_codes.popleft()
            elif asked.max_records and self.records:
                at = self.records.popleft()
                part["records"] = build([Record(0, 5, None, b"%d" % at)], base_offset=at)
                given = {"first_offset": at, "last_offset": at, "delivery_count": 1}
                part["acquired_records"] = [given]
        return _response(
            FETCH, self.version, error_code=code, error_message="scripted",
            acquisition_lock_timeout=LOCK_MS, node_endpoints=[],
            responses=[] if code else [{"topic_id": TOPIC_ID, "partitions": [part]}],
        )  # fmt: skip

    def _acknowledge(self, source: Reader) -> bytes:
        asked, code = self._asked(ACKNOWLEDGE, source)
        part = {
            "partition_index": self.number, "error_code": 0 if code else self._hear(asked),
            "error_message": None, "current_leader": {"leader_id": 0, "leader_epoch": 0},
        }  # fmt: skip
        is_silent = code or not asked.topics
        return _response(
            ACKNOWLEDGE, self.version, error_code=code, error_message="scripted",
            acquisition_lock_timeout=LOCK_MS, node_endpoints=[],
            responses=[] if is_silent else [{"topic_id": TOPIC_ID, "partitions": [part]}],
        )  # fmt: skip

    def _asked(self, key: int, source: Reader) -> tuple[Any, int]:
        asked = decode_request(key, self.version, source.take(source.remaining))
        self.epochs.append((key, asked.share_session_epoch))
        return asked, self.codes[key].popleft() if self.codes[key] else 0

    def _hear(self, asked: Any) -> int:
        batches = list(
            itertools.chain.from_iterable(
                part.acknowledgement_batches for topic in asked.topics for part in topic.partitions
            )
        )
        if not batches:
            return 0
        code = self.ack_codes.popleft() if self.ack_codes else 0
        if not code:
            self.said += [
                (one.first_offset, one.last_offset, one.acknowledge_types[0], one.reason)
                for one in batches
            ]
        return code

    def _metadata(self, source: Reader) -> bytes:
        asked = decode_request(METADATA, 12, source.take(source.remaining))
        partitions = [
            {"error_code": 0, "partition_index": number, "leader_id": leader.broker.port}
            for number, leader in enumerate(self.leaders)
        ]
        topics = [
            {"error_code": 0, "name": one.name, "topic_id": TOPIC_ID, "partitions": partitions}
            for one in asked.topics
        ]
        ports = {leader.broker.port for leader in self.leaders}
        nodes = [{"node_id": port, "host": "127.0.0.1", "port": port} for port in ports]
        return _response(METADATA, 12, brokers=nodes, topics=topics)

    def _coordinator(self, source: Reader) -> bytes:
        asked = decode_request(FIND_COORDINATOR, 4, source.take(source.remaining))
        found = [
            {"key": key, "node_id": 1, "host": "127.0.0.1", "port": self.broker.port,
             "error_code": 0, "error_message": ""}
            for key in asked.coordinator_keys
        ]  # fmt: skip
        return _response(FIND_COORDINATOR, 4, coordinators=found)

    def _configs(self, source: Reader) -> bytes:
        decode_request(DESCRIBE_CONFIGS, 4, source.take(source.remaining))
        config = {
            "name": "share.renew.acknowledge.enable", "value": self.renewal, "read_only": False,
            "is_sensitive": False, "synonyms": [], "documentation": None,
        }  # fmt: skip
        result = {
            "error_code": 0, "error_message": None, "resource_type": 32, "resource_name": "g",
            "configs": [config],
        }  # fmt: skip
        return _response(DESCRIBE_CONFIGS, 4, results=[result])


def _response(key: int, version: int, **fields: Any) -> bytes:
    return bytes(encode_response(key, version, fields))


@asynccontextmanager
async def consumer(script: ShareScript, **settings: Any) -> AsyncIterator[headrace.ShareConsumer]:
    """A consumer of the scripted group."""
    given = {"group": "g", "topics": ["t"], "fetch_max_wait_ms": 10, **settings}
    async with (
        asyncio.timeout(SECONDS_MAX),
        headrace.ShareConsumer(script.broker.address, **given) as opened,
    ):
        yield opened


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that the broker, or another task, brings about."""
    while not condition():  # noqa: ASYNC110 -- the broker runs on threads that know no events
        await asyncio.sleep(0.005)
