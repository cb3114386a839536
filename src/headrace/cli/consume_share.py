"""`headrace consume --share-group`: records of a share group on standard output.

Each gets its verdict once it was written and flushed; what was acquired and not written is
released. Source: org.apache.kafka.tools.consumer.ConsoleShareConsumer (4.3).
"""

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_END

from headrace.cli.consume_format import Format, shared
from headrace.cli.decoders import Undecodable
from headrace.cli.ending import Trouble, stopping, tell
from headrace.cli.readable import require_readable
from headrace.client.connection import Cluster, Patience
from headrace.client.errors import BrokerError, ClientError
from headrace.client.share_consumer.sync import SyncShareConsumer, SyncShareRecord
from headrace.client.share_consumer.words import ShareStats
from headrace.client.share_groups import list_readable_share_group_offsets
from headrace.client.topics import describe_topics
from headrace.wire.error_codes import ErrorCode

_BATCH_MAX = 500
_POLL_S = 0.2
_JOIN_S_MAX = 30.0
_LOOK_S = 5.0
_NUMBERS = {
    "fetch.max.bytes": "fetch_max_bytes",
    "fetch.max.wait.ms": "fetch_max_wait_ms",
    "fetch.min.bytes": "fetch_min_bytes",
    "fetch.wait.max.ms": "fetch_max_wait_ms",  # librdkafka's name
    "max.poll.records": "max_poll_records",
}
_TEXTS = {"client.id": "client_id", "client.rack": "client_rack"}
# Settings that say what this command does anyway, in files made for kafka-console-share-consumer.
_IDLE = frozenset({"bootstrap.servers", "group.id", "security.protocol"})
_EXPLICIT = "share.acknowledgement.mode"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read, and the verdict on it: accept, release or reject.

    `messages_max` and `idle_ms_max` end the reading. `rejects_errors`: what cannot be printed is
    rejected.
    """

    group: str
    topic: str
    verdict: str
    messages_max: int | None
    idle_ms_max: int | None
    rejects_errors: bool


def settings_of(given: Mapping[str, str]) -> dict[str, Any]:
    """The consumer's settings by the names of Kafka's. Raises: Trouble on others."""
    found: dict[str, Any] = {"client_id": "console-share-consumer", "max_poll_records": _BATCH_MAX}
    for name, value in given.items():
        if name in _NUMBERS:
            if not value.isdecimal():
                raise Trouble(f"{name}={value} is no number")
            found[_NUMBERS[name]] = int(value)
        elif name in _TEXTS:
            found[_TEXTS[name]] = value
        elif name not in _IDLE and (name, value) != (_EXPLICIT, "explicit"):
            known = ", ".join(sorted((*_NUMBERS, *_TEXTS)))
            raise Trouble(f"the setting {name}={value} has no place here; one of {known}")
    return found


class SharedReading:
    """One run of the consumer; `count` records were written, `stopped` is the signal that came."""

    def __init__(
        self, consumer: SyncShareConsumer, wanted: Wanted, write: Format, *, at_once_max: int
    ) -> None:
        self.count = 0
        self.stopped: int | None = None
        self.stats = ShareStats()
        self._consumer = consumer
        self._wanted = wanted
        self._write = write
        self._at_once_max = at_once_max

    def run(self, cluster: Cluster) -> None:
        """Read until something ends it. Raises: Trouble, BrokerError, BrokenPipeError."""
        is_there = self._wanted.topic in describe_topics(cluster, [self._wanted.topic])
        with stopping(self._stop):
            try:
                self._consumer.start()
                self._loop(cluster, is_there=is_there)
                self._consumer.commit()
            finally:
                self._close()

    def _loop(self, cluster: Cluster, *, is_there: bool) -> None:
        wanted = self._wanted
        began = idle_since = time.monotonic()
        has_joined = not is_there
        while self.stopped is None:
            count = self._at_once_max
            if wanted.messages_max is not None:
                count = min(count, wanted.messages_max - self.count)
            if count <= 0:
                return
            records = self._consumer.poll(count, timeout_s=_POLL_S)
            now = time.monotonic()
            if not has_joined:
                has_joined = bool(self._consumer.assignment) or now - began >= _JOIN_S_MAX
                idle_since = now
            if records:
                self._show(records)
                idle_since = time.monotonic()
            elif wanted.idle_ms_max is not None and now - idle_since >= wanted.idle_ms_max / 1000:
                self._require_connection()
                with Cluster(
                    cluster.bootstrap_servers,
                    patience=Patience(total_s=0),
                    request_timeout_s=_LOOK_S,
                ) as once:
                    require_readable(once, self._unread(once))
                return

    def _require_connection(self) -> None:
        """Raises: Trouble where that nothing came does not say that nothing is there."""
        if not self._consumer.is_connected:
            raise Trouble(
                f"the brokers of {self._wanted.topic} do not answer: there may be more records; "
                "try again when they do"
            )

    def _unread(self, cluster: Cluster) -> Iterator[tuple[str, int, int]]:
        """Yield topic, partition and position of what the group may not have finished."""
        places = sorted(self._consumer.assignment)
        try:
            group = self._wanted.group
            offsets, _ = list_readable_share_group_offsets(cluster, group, places)
        except ClientError:  # then it is not known what is left
            return
        for place in places:
            known = offsets.get(place)
            # The group has not begun a partition without an offset, or the broker cannot read it.
            yield *place, OFFSET_END if known is None else known.start

    def _show(self, records: list[SyncShareRecord]) -> None:
        """Write these, and only then say what becomes of them."""
        written: list[SyncShareRecord] = []
        try:
            for record in records:
                if self.stopped is not None:
                    break
                if self._write_one(record):
                    written.append(record)
        finally:
            sys.stdout.buffer.flush()
            for record in written:
                getattr(record, self._wanted.verdict)()

    def _write_one(self, record: SyncShareRecord) -> bool:
        try:
            line = self._write(shared(record))
        except Undecodable as error:
            place = f"{record.topic}-{record.partition} offset {record.offset}"
            if not self._wanted.rejects_errors:
                raise Trouble(f"{place}: {error}; --reject-message-on-error goes on") from error
            tell("consume", f"{place}: {error}; rejected")
            record.reject(f"cannot be printed: {error}")
            return False
        sys.stdout.buffer.write(line)
        self.count += 1
        return True

    def _close(self) -> None:
        """Release what was not shown."""
        self._consumer.close()
        if self._consumer.is_started:
            self.stats = self._consumer.stats

    @property
    def unseen(self) -> int:
        """How many records were released without being shown."""
        shown = self.count if self._wanted.verdict == "release" else 0
        return max(0, self.stats.released - shown)

    def _stop(self, number: int) -> None:
        self.stopped = number
        self._consumer.stop()


def read(
    cluster: Cluster, settings: Mapping[str, Any], wanted: Wanted, write: Format
) -> int | None:
    """Read, and say on stderr what became of the records; the signal that ended it, if one did.

    Raises: as `SharedReading.run`.
    """
    try:
        consumer = SyncShareConsumer(
            cluster.bootstrap_servers, group=wanted.group, topics=[wanted.topic], **settings
        )
    except ValueError as error:
        raise Trouble(str(error)) from error
    reading = SharedReading(consumer, wanted, write, at_once_max=settings["max_poll_records"])
    try:
        reading.run(cluster)
    except BrokerError as error:
        if error.code != ErrorCode.group_id_not_found:
            raise
        told = error.message.rstrip(".")
        raise Trouble(f"{told}; a consumer group is read with --group") from None
    finally:
        _sum_up(reading)
    return reading.stopped


def _sum_up(reading: SharedReading) -> None:
    stats = reading.stats
    print(f"Processed a total of {reading.count} messages", file=sys.stderr)
    shown = stats.released - reading.unseen
    told = f"{stats.accepted} accepted, {shown} released, {stats.rejected} rejected"
    if reading.unseen:
        told += f"; {reading.unseen} more were not shown, and released"
    if stats.lost:
        told += f"; the locks of {stats.lost} were lost: they are delivered again"
    print(told, file=sys.stderr)
