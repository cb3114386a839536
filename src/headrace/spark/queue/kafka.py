"""The driver's side of one query by the stock share protocol (KIP-932), for Apache Kafka.

The driver-side process is a member of the group. It acquires records, whose payload comes along and
is dropped, and holds their locks on its connection until their batch is committed; executors read
the ranges by ordinary Fetch. The member's id is the checkpoint's session, so a restarted query
takes its former place at once. Locks do not outlive the connection: what is delivered again though
it was done is settled by `Owed`.
"""

import logging
import math
import secrets
import time
from collections.abc import Iterable

from headrace.client.configs import ResourceType, describe_configs
from headrace.client.connection import addresses
from headrace.client.errors import BrokerError, Unsupported
from headrace.client.offsets import OffsetSpec, list_offsets
from headrace.client.share_consumer.sync import SyncShareConsumer, SyncShareRecord
from headrace.client.share_groups import list_share_group_offsets
from headrace.spark.log_lines import show
from headrace.spark.options import connect
from headrace.spark.progress import Standing
from headrace.spark.queue.checkpoints import check_new_on_kafka
from headrace.spark.queue.driver import report
from headrace.spark.queue.handle import Handle
from headrace.spark.queue.kafka_owed import Owed
from headrace.spark.queue.kafka_removed import RemovedRecords
from headrace.spark.queue.kafka_settling import Settling, place_of
from headrace.spark.queue.kafka_staging import Place, Staging
from headrace.spark.queue.kafka_start import begin
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.plan import Batch
from headrace.spark.queue.standing import Tally
from headrace.wire.leases import Disposition, Range

LOG = logging.getLogger(__name__)

_OFF = 35
_MORE_S = 0.02  # how long a batch that has records waits for more of them
_RENEW_S_MAX = 365 * 86_400.0
_PROGRESS_S = 5.0
_IN_HAND_MAX = 2**31 - 1  # the broker has its own limit
_LOCK_MS, _SESSION_MS = "share.record.lock.duration.ms", "share.session.timeout.ms"
_LOCKS = "share.partition.max.record.locks"
_DEFAULTS = {_LOCK_MS: "30000", _SESSION_MS: "45000", _LOCKS: "2000"}  # Kafka's
Ends = dict[tuple[str, int], int]


class KafkaDriver:
    """A member of the group. Raises: as `SyncShareConsumer` and `Cluster`, from every method.

    `close` releases what is held: locks end with the connection anyhow.
    """

    def __init__(self, options: QueueOptions, batch: Batch) -> None:
        """Join the group; `batch` is where the checkpoint stands.

        Raises: `CheckpointRefused` for a new checkpoint on a group that has finished records.
        """
        show(options.log_level)
        self.session = batch.session
        self._options = options
        self._start = batch
        self._epoch = secrets.randbelow(2**31)  # of this process
        self._committed = 0
        self._ahead: list[SyncShareRecord] = []  # acquired before a batch asked for them
        self._held: dict[int, list[SyncShareRecord]] = {}
        self._replayed: dict[int, Batch] = {}
        self._owed = Owed()
        self._settling = Settling(options.group, self._owed)
        self._tally = Tally(options)
        self._removed = RemovedRecords(options.group)
        self._below_at: float | None = None
        self._cluster = connect(options)
        try:
            if not batch.seq:
                check_new_on_kafka(self._cluster, options, batch.session)
            begin(self._cluster, options)
            self._settings = self._group_settings()
            self._consumer = self._joined()
        except BaseException:
            self._cluster.close()
            raise
        near = addresses(options.bootstrap_servers)[0]
        self._staging = Staging(self.session, self._epoch, near)
        LOG.info(
            "group %s session %s: by the stock share protocol at %s; a partition has at most %s "
            "records in flight (%s), locks last %s ms",
            options.group, self.session, options.bootstrap_servers, self._settings[_LOCKS], _LOCKS,
            self._settings[_LOCK_MS],
        )  # fmt: skip

    def _group_settings(self) -> dict[str, str]:
        entries = describe_configs(self._cluster, ResourceType.GROUP, self._options.group)
        told = {one.name: one.value for one in entries if one.value is not None}
        return {name: told.get(name, default) for name, default in _DEFAULTS.items()}

    def _joined(self) -> SyncShareConsumer:
        options = self._options
        consumer = SyncShareConsumer(
            options.bootstrap_servers,
            group=options.group,
            topics=options.topics,
            client_id=f"headrace-spark-{options.group}",
            max_in_hand=_IN_HAND_MAX,
            fetch_max_wait_ms=options.acquire_wait_ms,
            renew_s_max=_RENEW_S_MAX,
            timeout_s=options.request_timeout_ms / 1000,
            on_acknowledged=self._settling.results.append,
            member_id=self.session,
        )
        try:
            return consumer.start()
        except BrokerError as error:
            if error.code != _OFF:
                raise
            raise Unsupported(
                f"share groups are off at {options.bootstrap_servers}: switch them on with "
                "kafka-features.sh upgrade --feature share.version=1 (Apache Kafka 4.2 or newer)"
            ) from None

    def handle(self, seq: int) -> str:
        """The text of the `lease` column: it leads `acknowledge` to this process."""
        return Handle(
            self.session,
            self._epoch,
            seq,
            self._staging.address,
            replayed=seq in self._replayed,
            group=self._options.group,
            brokers=self._options.bootstrap_servers,
        ).text

    def follows(self, seq: int) -> None:
        """Kafka keeps no numbers of sessions, so an old copy of a checkpoint is not noticed."""

    def knows(self, seq: int) -> None:
        """Nor is one of another broker."""

    def acquire(self, seq: int, most: int) -> tuple[Range, ...]:
        """Up to `most` records under the number `seq`; the same ones when asked again.

        Raises: `Unreachable` when there are none because no broker answers.
        """
        if seq not in self._held:
            found, self._ahead = self._ahead[:most], self._ahead[most:]
            while len(found) < most and (more := self._look(most - len(found), bool(found))):
                found += more
            if not found:
                self._tally.acquired(())
                self._cluster.partitions(self._options.topics[0])
                return ()
            self._held[seq] = sorted(found, key=place_of)
            self._tally.acquired(_ranges(self._held[seq]))
        return _ranges(self._held[seq])

    def topic_ids(self, ranges: Iterable[Range]) -> dict[str, str]:
        """None: here, records that left the log are passed."""
        return {}

    def _look(self, most: int, has_some: bool) -> list[SyncShareRecord]:
        """What is there for this query within the wait that the options allow."""
        self._settling.release_due()
        while True:
            wait_s = _MORE_S if has_some else self._options.acquire_wait_ms / 1000
            found = self._consumer.poll(most, wait_s)
            for record in found:  # executors fetch the payload again, many at a time
                record.key = record.value = None
                record.headers = ()
            if not found or (rest := self._owed.settled(found)):
                return rest if found else []

    @property
    def sure_s(self) -> float:
        """Without end: here, locks are not checked while a batch runs."""
        return math.inf

    def is_spent(self, seq: int) -> bool:
        """Kafka keeps no numbers."""
        return False

    def reading(self, batch: Batch) -> Batch:
        """Note that a batch is about to be read; one that is not held is read all the same."""
        self._staging.open(batch.seq)
        LOG.info(
            "group %s session %s: batch number %d, %d records in %d ranges",
            self._options.group, self.session, batch.seq, batch.records, len(batch.ranges),
        )  # fmt: skip
        if batch.seq not in self._held:
            self._replayed[batch.seq] = batch
            LOG.warning(
                "group %s session %s: batch number %d runs again; its locks ended with the process "
                "that acquired it, so others may read its %d records too",
                self._options.group, self.session, batch.seq, batch.records,
            )  # fmt: skip
        return batch

    def commit(self, seq: int) -> None:
        """Settle everything up to `seq`, once."""
        if seq <= self._committed:
            return
        if seq == self._start.seq and seq not in self._held and seq not in self._replayed:
            self._owe_start()
        for number in sorted(one for one in self._replayed if one <= seq):
            self._owe(self._replayed.pop(number), self._staging.taken(number))
        for number in sorted(one for one in self._held if one <= seq):
            said = self._staging.taken(number)
            settled = self._settling.settle(self._consumer, self._held.pop(number), said)
            self._tally.settled(settled)
            report(settled, self._options.group, self.session, number)
        self._committed = seq

    def _owe(self, batch: Batch, said: dict[Place, Disposition]) -> None:
        for held in batch.ranges:
            for offset in range(held.first, held.last + 1):
                place = (held.topic, held.partition, offset)
                self._owed.add(place, said.get(place), held.delivery_count)

    def _owe_start(self) -> None:
        """Spark committed this batch before the process started; was it all accepted?"""
        if not (self._options.include_delivery or self._options.rejects):
            self._owe(self._start, {})
        elif self._start.seq:
            LOG.warning(
                "group %s session %s: if the query ended between batch number %d and its "
                "acknowledgement, the verdicts are gone, and its %d records come again",
                self._options.group, self.session, self._start.seq, self._start.records,
            )  # fmt: skip

    def has_reached(self, until: Ends) -> bool:
        """Whether nothing below `until` is left; waits for what others hold, until their locks end.

        Records that wait for the end of a delay are not waited for. Kafka tells how many records
        are not finished, but not who holds them.
        """
        locks_s = (int(self._settings[_LOCK_MS]) + int(self._settings[_SESSION_MS])) / 1000
        tell_at = time.monotonic() + _PROGRESS_S
        while True:
            left = self._left(until)
            now = time.monotonic()
            self._below_at = self._below_at or now
            if not left:
                return True
            self._ahead += self._look(self._options.max_offsets_per_trigger, has_some=False)
            if any(one.offset < until.get(place_of(one)[:2], 0) for one in self._ahead):
                self._below_at = now
            if self._ahead:
                return False
            if now > self._below_at + locks_s:
                LOG.warning(
                    "group %s: ends although other members hold records that were there at the "
                    "start, in %s; what they do not finish is left to the next run",
                    self._options.group, left,
                )  # fmt: skip
                return True
            if now > tell_at:
                tell_at = now + _PROGRESS_S
                LOG.info("group %s: waits for what others hold in %s", self._options.group, left)

    def _left(self, until: Ends) -> list[tuple[str, int]]:
        """Where records below `until` may be unfinished."""
        found = list_share_group_offsets(self._cluster, self._options.group, list(until))
        ends = list_offsets(self._cluster, dict.fromkeys(until, OffsetSpec.LATEST))
        left = []
        for place, target in until.items():
            known = found.get(place)
            start = 0 if known is None else known.start
            unfinished = None if known is None else known.lag
            above = (ends[place].offset or 0) - target + self._settling.waiting(place, target)
            if start < target and (unfinished is None or unfinished > above):
                left.append(place)
        return left

    def standing(self) -> Standing:
        """The group's lag beside the batch that was acquired last, and what became of records.

        Records that left a log before the group had finished them are a warning.
        """
        standing = self._tally.standing(self._cluster)
        self._removed.warn(self._cluster, self._tally.positions)
        return standing

    def close(self) -> None:
        """Leave the group, and release what is held."""
        self._consumer.close()
        self._staging.close()
        self._cluster.close()


def _ranges(records: Iterable[SyncShareRecord]) -> tuple[Range, ...]:
    """Neighbours with the same delivery count together; the records ascend."""
    found: list[Range] = []
    for one in records:
        last = found[-1] if found else None
        first = one.offset
        if last is not None and last == Range(
            one.topic, one.partition, last.first, one.offset - 1, one.delivery_count
        ):
            first = found.pop().first
        found.append(Range(one.topic, one.partition, first, one.offset, one.delivery_count))
    return tuple(found)
