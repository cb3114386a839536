"""An idempotent producer of Arrow columns: once a write returns, its rows are in the log, once.

A write has one batch of a partition on its way at a time. One whose answer was lost is sent again
with the same sequence, byte for byte, and a broker that has it already says so; so retries neither
repeat nor reorder. Source: KIP-98, Sender and TransactionManager (Kafka 4.3).
"""

import logging
import math
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.connection import Address, Cluster
from headrace.client.errors import BrokerError, ClientError
from headrace.client.offsets import TopicPartition
from headrace.client.produce import messages
from headrace.client.produce.messages import Identity, Outcome
from headrace.client.produce.partitioning import Int32s, Partitioner
from headrace.wire.batches import read_header
from headrace.wire.columns import encode
from headrace.wire.compression import Codec
from headrace.wire.error_codes import ErrorCode

LOG = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 1024 * 1024
_METADATA_AGE_S_MAX = 300.0  # Kafka's metadata.max.age.ms
_SEQUENCE_MAX = (1 << 31) - 1
_WRITTEN = frozenset({ErrorCode.none, ErrorCode.duplicate_sequence_number})
_FORGOTTEN = frozenset(
    {
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
    }
)
_TOO_LARGE = frozenset({ErrorCode.message_too_large, ErrorCode.record_list_too_large})
_LOST = (
    "the broker lacks records that it said it had, or has others of this producer; write all "
    "of this again with a new producer"
)


class RecordTooLarge(ClientError):
    """A single record is larger than a request may be, or than its topic takes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much goes at once, in bytes.

    A request takes at most `request`; a batch takes at most `batch` before compression, but for a
    record that is larger alone.
    """

    request: int = REQUEST_BYTES_MAX
    batch: int = REQUEST_BYTES_MAX


class Producer:
    """Writes rows to topics; not safe for use by several threads.

    A write that raised may have been written in part. The next one begins as another producer: a
    broker must not take its records for the repetition of those.

    Raises: as `Cluster` from every method that writes.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        codec: Codec = Codec.NONE,
        limits: Limits | None = None,
        request_timeout_ms: int = 30_000,
    ) -> None:
        self._cluster = cluster
        self._codec = codec
        self._limits = limits or Limits()
        self._timeout_ms = request_timeout_ms
        # Where keyless rows go first; it spreads writers, and decides nothing else.
        self._partitioner = Partitioner(random.randrange(1 << 16))  # noqa: S311 -- not a secret
        self._counts: dict[str, tuple[int, float]] = {}  # and when they were looked up
        self._lines: dict[TopicPartition, _Line] = {}
        self._identity: Identity | None = None

    def write(self, topic: str, rows: pa.RecordBatch) -> None:
        """Write all rows to the topic, in their order where they share a partition.

        Columns are key, value, headers and timestamp, as `columns.encode` takes them, and
        `partition` (int32, null: by the key); those that are not there are null, others are left.
        A row without a timestamp gets the time of now.

        Raises: ValueError for columns that no record can hold and partitions that the topic does
        not have; `RecordTooLarge`; `BrokerError`, 3 for a topic that does not exist.
        """
        if not rows.num_rows:
            return
        keys, named = _column(rows, "key"), _column(rows, "partition")
        if keys is None and named is None:
            keys = pa.nulls(rows.num_rows, pa.binary())
        chosen = self._partitioner.choose(topic, keys, named, self._count(topic, named))
        now_ms = time.time_ns() // 1_000_000
        parcels = [
            _Parcel(part, self._line((topic, partition)), now_ms, self._codec)
            for partition, part in _split(rows, chosen)
        ]
        try:
            while pending := [one for one in parcels if one.batch() is not None]:
                self._send(topic, pending)
        except BaseException:
            self._identity = None
            self._lines.clear()
            raise

    def _count(self, topic: str, named: pa.Array | None) -> int:
        """Count the partitions of a topic; again after a while, or if a row names a later one."""
        count, looked_up = self._counts.get(topic, (0, -math.inf))
        highest = None if named is None else pc.max(named).as_py()
        is_later = highest is not None and highest >= count
        if is_later or time.monotonic() - looked_up >= _METADATA_AGE_S_MAX:
            count = len(self._cluster.partitions(topic))
            self._counts[topic] = count, time.monotonic()
        return count

    def _line(self, place: TopicPartition) -> "_Line":
        if place not in self._lines:
            if self._identity is None:
                self._identity = messages.new_identity(self._cluster)
            room = messages.REQUEST_BYTES + messages.PARTITION_BYTES + len(place[0])
            batch_max = max(1, min(self._limits.batch, self._limits.request - room))
            self._lines[place] = _Line(place, self._identity, batch_max)
        return self._lines[place]

    def _send(self, topic: str, parcels: list["_Parcel"]) -> None:
        """Write the next batch of each parcel; patience is for these, and begins anew behind them.

        Raises: as `write`.
        """
        unsettled = {one.line.place: one for one in parcels}

        def attempt() -> None:
            postponed: BrokerError | None = None
            for leader, places in self._requests(unsettled):
                body = messages.request(
                    {place: _bytes(unsettled[place]) for place in places}, self._timeout_ms
                )
                source = self._cluster.exchange(
                    leader,
                    messages.PRODUCE,
                    messages.VERSION,
                    body,
                    flexible=False,
                    wait_s=self._timeout_ms / 1000,
                )
                for place, outcome in messages.answer(source, places).items():
                    error = self._settle(unsettled[place], outcome)
                    if error is None:
                        del unsettled[place]
                    postponed = error or postponed
            if postponed is not None:
                raise postponed

        self._cluster.retrying(f"writing to {topic}", attempt)

    def _requests(
        self, pending: dict[TopicPartition, "_Parcel"]
    ) -> Iterator[tuple[Address, list[TopicPartition]]]:
        """Whom to send what: the next batch of each partition, in requests within their limit."""
        of_leader: dict[Address, list[TopicPartition]] = {}
        for place in pending:
            of_leader.setdefault(self._cluster.leader(*place), []).append(place)
        for leader, places in of_leader.items():
            taken: list[TopicPartition] = []
            room = 0
            for place in places:
                size = self._size(pending[place])
                if taken and size > room:
                    yield leader, taken
                    taken = []
                if not taken:
                    room = self._limits.request - messages.REQUEST_BYTES
                taken.append(place)
                room -= size
            yield leader, taken

    def _size(self, parcel: "_Parcel") -> int:
        """Bytes of the next batch in a request. Raises: `RecordTooLarge`."""
        topic, partition = parcel.line.place
        batch = _bytes(parcel)
        if len(batch) + messages.REQUEST_BYTES > self._limits.request and parcel.records == 1:
            raise RecordTooLarge(
                f"a record for {topic}-{partition} takes {len(batch)} bytes, and a request at most "
                f"{self._limits.request}; raise kafka.max.request.size, and max.message.bytes of "
                "the topic if need be"
            )
        return len(batch) + messages.PARTITION_BYTES + len(topic)

    def _settle(self, parcel: "_Parcel", outcome: Outcome) -> BrokerError | None:
        """Take note of an answer; an error is returned when the batch is to be sent again later."""
        topic, partition = parcel.line.place
        what = f"writing to {topic}-{partition}"
        code = outcome.code
        if code in _WRITTEN:
            parcel.written()
        elif code in _FORGOTTEN and not parcel.begun_anew:
            LOG.warning(
                "%s: the broker does not know producer %d any more (%s); going on as another one. "
                "A batch whose answer was lost just before may be there twice",
                what,
                parcel.line.identity.producer_id,
                BrokerError(code, what).name,
            )
            parcel.begin_anew(messages.new_identity(self._cluster))
        elif code in _TOO_LARGE and parcel.records > 1:
            parcel.halve()
        elif code in _TOO_LARGE:
            raise RecordTooLarge(
                f"a record for {topic}-{partition} takes {len(_bytes(parcel))} bytes, more than "
                "the topic takes; raise its max.message.bytes"
            )
        elif code == ErrorCode.unknown_topic_or_partition:
            # Its leader was just looked up: the leader has not heard of it yet, or it is being
            # deleted, which the next look tells.
            return BrokerError(ErrorCode.leader_not_available, what, outcome.message)
        else:
            remedy = _LOST if code == ErrorCode.out_of_order_sequence_number else None
            error = BrokerError(code, what, outcome.message, remedy=remedy)
            if not error.retriable:
                raise error
            return error
        return None


@dataclass(slots=True)
class _Line:
    """A partition as this producer writes to it: as whom, and the sequence of what comes next."""

    place: TopicPartition
    identity: Identity
    batch_max: int
    sequence: int = 0


@dataclass(slots=True)
class _Parcel:
    """Rows on their way to one partition, a batch at a time."""

    rows: pa.RecordBatch
    line: _Line
    now_ms: int
    codec: Codec
    begun_anew: bool = False
    records: int = 0  # in the batch that is on its way
    _at: int = 0
    _made: Iterator[bytes] | None = None
    _batch: bytes | None = field(default=None, repr=False)

    def batch(self) -> bytes | None:
        """The batch to send, the same one until it is written; None when all are."""
        if self._batch is None and self._at < self.rows.num_rows:
            if self._made is None:
                self._made = self._encoded()
            self._batch = next(self._made)
            self.records = read_header(self._batch).record_count
        return self._batch

    def written(self) -> None:
        self._at += self.records
        self.line.sequence = (self.line.sequence + self.records) & _SEQUENCE_MAX
        self._batch = None
        self.begun_anew = False

    def halve(self) -> None:
        """Go on with smaller batches, here and in later writes: the topic takes none so large."""
        self.line.batch_max = max(1, self.line.batch_max // 2)
        self._again()

    def begin_anew(self, identity: Identity) -> None:
        self.line.identity, self.line.sequence = identity, 0
        self.begun_anew = True
        self._again()

    def _again(self) -> None:
        self._batch = self._made = None

    def _encoded(self) -> Iterator[bytes]:
        return encode(
            self.rows.slice(self._at),
            timestamp_ms=self.now_ms,
            batch_bytes_max=self.line.batch_max,
            codec=self.codec,
            producer_id=self.line.identity.producer_id,
            producer_epoch=self.line.identity.epoch,
            base_sequence=self.line.sequence,
        )


def _bytes(parcel: _Parcel) -> bytes:
    batch = parcel.batch()
    assert batch is not None
    return batch


def _column(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    index = rows.schema.get_field_index(name)
    return None if index < 0 else rows.column(index)


def _split(rows: pa.RecordBatch, chosen: Int32s) -> Iterable[tuple[int, pa.RecordBatch]]:
    """The rows of each partition, in their order."""
    wanted = [name for name in rows.schema.names if name != "partition"]
    rows = rows.select(wanted)
    if (chosen == chosen[0]).all():
        return [(int(chosen[0]), rows)]
    order = np.argsort(chosen, kind="stable")
    ordered, rows = chosen[order], rows.take(pa.array(order))
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    ends = np.append(starts[1:], len(ordered))
    return [
        (int(ordered[start]), rows.slice(start, end - start))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
