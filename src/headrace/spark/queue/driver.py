"""The driver's side of one query: its session, and the thread that keeps its locks.

Spark calls from one thread; the keeper has its own connection and shares only the fields that a
lock guards. Records stay locked for the session when the query stops: the next start commits or
replays them, and without one the locks expire.
"""

import logging
import math
import threading
import time
from collections.abc import Iterable

from headrace.client.admin import log_end
from headrace.client.errors import STORAGE_ERRORS, BrokerError, ClientError
from headrace.client.leases import Lease, describe
from headrace.spark.log_lines import show
from headrace.spark.options import connect
from headrace.spark.progress import Standing
from headrace.spark.queue.checkpoints import EPOCH_PLANNED, READ_ON, check_new, shown
from headrace.spark.queue.handle import Handle
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.plan import Batch, records_of
from headrace.spark.queue.redriven import Subscription
from headrace.spark.queue.remaining import release_left_out, remaining, topic_ids
from headrace.spark.queue.standing import Tally
from headrace.wire.leases import Bound, CommitResponse, Range

LOG = logging.getLogger(__name__)

_AVAILABLE = 0
_RENEWALS_A_LOCK = 3
_REPLAYED = "batch that runs again"  # the part that voids what drivers before this one staged


class Driver:
    """An opened session. Raises: as `Lease`, from every method; at once when it was fenced."""

    def __init__(self, options: QueueOptions, batch: Batch) -> None:
        """Open the session of a checkpoint that stands at `batch`.

        Raises: `CheckpointRefused` for a new checkpoint on a group that another one has read.
        """
        show(options.log_level)
        self.session = batch.session
        self._options = options
        self._cluster = connect(options)
        self._lease = Lease(self._cluster, options.group, batch.session)
        self._tally = Tally(options)
        self._planned: tuple[int | None, int] = (None, 0)  # records that are held, and left out
        self._confirmed_at = -math.inf
        self._bounds: tuple[Bound, ...] = ()
        self._subscription = Subscription(self._cluster, options)
        try:
            if not batch.seq:
                check_new(self._cluster, options, batch.session)
            self._subscription.appeared()
            self._open()
        except BaseException:
            self._cluster.close()
            raise

    def _open(self) -> None:
        opened = self._subscription.open(self._lease)
        self._committed = opened.committed
        self._replayed = frozenset(opened.outstanding)
        self._held = max(opened.outstanding, default=opened.committed)
        self._keeper = _Keeper(self._options, self._lease)
        if opened.outstanding:
            self._keeper.hold()
        LOG.info(
            "group %s session %s: opened on %s with epoch %d, committed %d, outstanding %s, "
            "locks %d ms",
            self._options.group,
            self.session,
            ", ".join(self._subscription.topics),
            opened.epoch,
            opened.committed,
            list(opened.outstanding),
            opened.lock_ms,
        )

    def _open_again(self) -> None:
        """Open the session under its next epoch. Raises: as `Lease`, when a newer driver has it."""
        self._keeper.stop()  # it renews under the epoch that ends here
        self._lease.renew()  # refused when a newer driver has the session: it keeps it
        self._open()

    def handle(self, seq: int) -> str:
        """The lease as a short text for the `lease` column; `acknowledge` reads it back.

        It says whether the batch was another driver's: that one may have died of a record in it.
        """
        held, left_out = self._planned
        return Handle(
            self.session,
            self._lease.epoch,
            seq,
            replayed=seq in self._replayed,
            group=self._options.group,
            brokers=self._options.bootstrap_servers,
            held=held,
            left_out=left_out,
        ).text

    @property
    def sure_s(self) -> float:
        """A third of a lock: the session confirmed its locks at most a third of one ago."""
        return self._keeper.every_s

    def is_spent(self, seq: int) -> bool:
        """Whether an earlier driver acquired `seq` and all of it went with a reset since."""
        return seq in self._replayed

    def follows(self, seq: int) -> None:
        """Raises: ClientError when a checkpoint that ends at `seq` is older than the session."""
        if seq < self._committed:
            raise ClientError(
                f"the checkpoint ends at number {seq} of session {self.session}, but share group "
                f"{self._options.group!r} has settled number {self._committed}: it is an old copy; "
                f"{READ_ON}"
            )

    def knows(self, seq: int) -> None:
        """Raises: ClientError when a checkpoint that ends at `seq` is of another broker."""
        if seq > self._held:
            raise ClientError(
                f"the checkpoint ends at number {seq} of session {self.session}, but share group "
                f"{self._options.group!r} knows it only up to {self._held}: it is of another "
                f"broker or group, or the broker's data folder was replaced; {READ_ON}"
            )

    def commit(self, seq: int) -> None:
        """Settle everything up to `seq`, once."""
        self._keeper.check()
        if seq <= self._committed:
            return
        settled = self._lease.commit(seq)
        self._committed = seq
        self._tally.settled(settled)
        if self._held <= seq:
            self._keeper.rest()
        report(settled, self._options.group, self.session, seq)

    def acquire(self, seq: int, most: int) -> tuple[Range, ...]:
        """Up to `most` records under the number `seq`; the same ones when asked again."""
        if self._subscription.appeared():
            self._open_again()
        now = time.monotonic()
        ranges = self._lease.acquire(seq, most, self._options.acquire_wait_ms, self._bounds)
        if seq not in self._replayed:
            self._confirmed_at = now
        self._tally.acquired(ranges)
        if ranges:
            self._held = seq
            self._keeper.hold()
        self._keeper.follow(self._lease.lock_ms)
        return ranges

    def topic_ids(self, ranges: Iterable[Range]) -> dict[str, str]:
        """The ids of the topics of these ranges."""
        return topic_ids(self._cluster, {one.topic for one in ranges})

    def reading(self, batch: Batch) -> Batch:
        """Return what is to be read of a batch, which may be replayed from the checkpoint.

        That is all of it where the session has held it without a break, and where Spark repeats a
        batch that the group has settled. Otherwise the records whose locks ended meanwhile are left
        out: other members process them, or they are delivered again in a later batch.
        Verdicts that an earlier driver staged are void from here on: options or functions may have
        changed, and a task that rejects nothing stages nothing.
        The epoch of a session whose first batch is planned is `EPOCH_PLANNED` or more from here on.
        Raises: `DataLost` for records that retention removed before they were finished, unless
        `failOnDataLoss` is false.
        """
        self._keeper.check()
        self._planned = None, 0
        if batch.seq > self._committed:
            if not self._committed and self._lease.epoch < EPOCH_PLANNED:
                replayed = self._replayed
                self._open_again()
                self._replayed = replayed
            if batch.seq in self._replayed:
                self._lease.stage(batch.seq, (), _REPLAYED)
            batch = self._held_of(batch)
        redelivered = sum(1 for held in batch.ranges if held.delivery_count > 1)
        LOG.info(
            "group %s session %s: batch number %d, %d records in %d ranges, %d of them redelivered",
            self._options.group,
            self.session,
            batch.seq,
            batch.records,
            len(batch.ranges),
            redelivered,
        )
        LOG.debug("number %d holds %s", batch.seq, batch.ranges)
        return batch

    def _held_of(self, batch: Batch) -> Batch:
        age_s = time.monotonic() - self._confirmed_at
        whole = age_s < self.sure_s
        ended: tuple[Range, ...] = ()
        if not whole:
            self._confirmed_at = time.monotonic()
            whole = self._lease.renew().held == batch.records
            self._keeper.follow(self._lease.lock_ms)
        if not whole:
            batch, ended = remaining(self._cluster, self._options, batch)
            if ended and self._options.fail_on_lost_locks:
                release_left_out(self._lease, batch.seq, ended)
        if self._options.fail_on_lost_locks:
            self._planned = batch.records, sum(map(records_of, ended))
        return batch

    def has_reached(self, until: dict[tuple[str, int], int]) -> bool:
        """Whether nothing below `until` is left for this session, which acquires no more than that.

        Records that wait for the end of a delay are not waited for.
        """
        self._bounds = tuple(Bound(*place, end) for place, end in until.items())
        found = describe(self._cluster, self._options.group)
        state = {(one.topic, one.partition): one for one in found}
        for place, target in until.items():
            if place not in state or state[place].end < target:
                return False
            runs = state[place].in_flight
            if any(run.state == _AVAILABLE and run.first < target for run in runs):
                return False
        return True

    def standing(self) -> Standing:
        """The group's lag beside the batch that was acquired last, and what became of records."""
        return self._tally.standing(self._cluster)

    def close(self) -> None:
        """Stop the keeper and close connections; nothing is released."""
        self._keeper.stop()
        self._cluster.close()


def report(settled: CommitResponse, group: str, session: str, seq: int) -> None:
    """Log what a commit came to, as a warning when locks had ended."""
    LOG.log(
        logging.WARNING if settled.refused else logging.INFO,
        "group %s session %s: committed number %d: %d accepted, %d released, %d rejected, "
        "%d refused%s",
        group,
        session,
        seq,
        settled.accepted,
        settled.released,
        settled.rejected,
        settled.refused,
        " (their locks had ended, so others may have read them too, or they left the log)"
        if settled.refused
        else "",
    )


def ends_now(options: QueueOptions) -> dict[tuple[str, int], int]:
    """Return the ends of all logs that are read, without those that the broker cannot read.

    Raises: as `Cluster`.
    """
    ends: dict[tuple[str, int], int] = {}
    unreadable: list[str] = []
    with connect(options) as cluster:
        subscription = Subscription(cluster, options)
        subscription.appeared()
        for topic in subscription.topics:
            for partition in cluster.partitions(topic):
                try:
                    end = log_end(cluster, topic, partition, final=STORAGE_ERRORS)
                except BrokerError as error:
                    if error.code not in STORAGE_ERRORS:
                        raise
                    unreadable.append(f"{topic}-{partition}")
                else:
                    ends[topic, partition] = end
    if unreadable:
        LOG.warning(
            "group %s: the query ends without the records of %s, which the broker cannot read "
            "(KAFKA_STORAGE_ERROR); the log of the broker names the file and the remedy",
            options.group,
            shown(unreadable),
        )
    return ends


class _Keeper:
    """Renews the locks of a session at a third of their duration while something is held.

    The group's setting may change while the query runs. Locks last as long as the setting said when
    they began, so a duration that differs from the last one has all of them renewed at once.
    """

    def __init__(self, options: QueueOptions, lease: Lease) -> None:
        self._options = options
        self._lease = lease
        self._lock_ms = lease.lock_ms
        self._due = threading.Event()  # before the time is up
        self._holding = threading.Event()
        self._stopped = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-renew", daemon=True)
        self._thread.start()

    @property
    def every_s(self) -> float:
        """A third of a lock."""
        return max(self._lock_ms, 1) / 1000 / _RENEWALS_A_LOCK

    def follow(self, lock_ms: int) -> None:
        """Renew at a third of `lock_ms`, and at once when that is new."""
        if lock_ms != self._lock_ms:
            LOG.info(
                "group %s session %s: locks last %d ms, and %d ms before",
                self._lease.group, self._lease.session, lock_ms, self._lock_ms,
            )  # fmt: skip
            self._lock_ms = lock_ms
            self._due.set()

    def hold(self) -> None:
        self._holding.set()

    def rest(self) -> None:
        self._holding.clear()

    def check(self) -> None:
        """Raise what ended the renewals, e.g. that a newer driver opened the session."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """A renewal that waits for a broker is not waited for: the thread is a daemon."""
        self._stopped.set()
        self._due.set()
        self._thread.join(timeout=1)

    def _run(self) -> None:
        with connect(self._options) as cluster:
            lease = Lease(cluster, self._lease.group, self._lease.session, self._lease.epoch)
            lease.lock_ms = self._lease.lock_ms
            while True:
                self._due.wait(self.every_s)
                self._due.clear()
                if self._stopped.is_set():
                    return
                if not self._holding.is_set():
                    continue
                try:
                    renewed = lease.renew()
                except BrokerError as error:
                    LOG.error("%s", error)
                    self._error = error
                    return
                except ClientError as error:
                    LOG.warning("locks were not renewed: %s", error)
                    continue
                except Exception as error:
                    self._error = error  # a bug: the query must not go on without renewals
                    raise
                self.follow(lease.lock_ms)
                if renewed.lost:
                    LOG.warning(
                        "group %s session %s: the locks of %d records ended, %d are held",
                        lease.group,
                        lease.session,
                        renewed.lost,
                        renewed.held,
                    )
