"""Find what a session still holds of a batch whose locks may have ended.

A batch is logged in the checkpoint with its ranges, and may run again long after. Meanwhile locks
end, and four things happen to records: the session takes them back, others process them, a reset of
the group discards them, or retention removes them. The batch reads the first kind alone. The last
kind is data loss, which the group lists as archived records.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from headrace.client.connection import Cluster
from headrace.client.errors import ClientError, DataLost
from headrace.client.leases import Lease, describe
from headrace.client.log_ends import ends_of
from headrace.client.offsets import TopicPartition
from headrace.client.share_archived import list_archived_share_records
from headrace.client.topics import describe_topics
from headrace.spark.queue.handle import Handle
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.plan import Batch, records_of
from headrace.wire.leases import Disposition, InFlight, Range, SharePartition, Verdict

LOG = logging.getLogger(__name__)


class LocksLost(ClientError):
    """Acquisition locks of a running batch ended, so other members may process its records too."""


_ACQUIRED = 1
_REMOVED = "removed from the log"  # how the broker's reason begins, or what is added to another
_SHOWN_MAX = 5
_LEFT_OUT = "records that the batch leaves out"
Bounds = tuple[int, int]


def remaining(
    cluster: Cluster, options: QueueOptions, batch: Batch
) -> tuple[Batch, tuple[Range, ...]]:
    """Return a batch with the records that its session holds, and those whose locks ended.

    With `failOnLostLocks` false, records whose locks ended stay in the batch.
    Raises: `DataLost` for records that left the log, unless `failOnDataLoss` is false; otherwise
    as `Cluster`.
    """
    held, lost, ended = _divided(cluster, options.group, batch)
    if lost:
        text = (
            f"share group {options.group!r}: {sum(map(records_of, lost))} records of batch number "
            f"{batch.seq} left the log before they were finished, by retention or deletion: "
            f"{_shown(lost)}"
        )
        if options.fail_on_data_loss:
            raise DataLost(
                f"{text}; the group lists them (headrace share archived {options.group}); set "
                "option failOnDataLoss to false to go on without them"
            )
        LOG.warning("%s; the batch goes on without them, as failOnDataLoss is false", text)
    if ended:
        LOG.warning(
            "share group %s session %s: the locks of %d records of batch number %d ended while no "
            "driver renewed them: %s; the batch %s",
            options.group, batch.session, sum(map(records_of, ended)), batch.seq, _shown(ended),
            "runs without them: others have them, or they are delivered again"
            if options.fail_on_lost_locks
            else "writes them all the same, as failOnLostLocks is false; others may do so too",
        )  # fmt: skip
    if not options.fail_on_lost_locks:
        held = sorted([*held, *ended], key=lambda one: (one.topic, one.partition, one.first))
    return replace(batch, ranges=tuple(held)), tuple(ended)


def release_left_out(lease: Lease, seq: int, left_out: Sequence[Range]) -> None:
    """Have the commit of a batch release the records that the batch does not read.

    Their locks ended. The session takes them back all the same when the member that has them is
    forgotten, as in a restart of the broker; without this, the commit would then accept records
    that no sink has. A reset of the group discards what the session acquired, by partition.
    Raises: as `Lease.stage`.
    """
    acquired = {(one.topic, one.partition) for one in lease.acquire(seq, 1, 0)}
    dispositions = tuple(
        Disposition(one.topic, one.partition, one.first, one.last, Verdict.RELEASE)
        for one in left_out
        if (one.topic, one.partition) in acquired
    )
    if dispositions:
        lease.stage(seq, dispositions, _LEFT_OUT)


def check_locks(
    cluster: Cluster, group: str, lease: str, ranges: tuple[Range, ...] | None = None
) -> None:
    """Check that a session still holds what it held when the batch of a `lease` was planned.

    With `ranges`, which a task reads, these are checked alone. Records that left the log meanwhile
    are no reason to fail: they were read before.
    Raises: `LocksLost`; ValueError for text that is not a handle; as `Lease`.
    """
    handle = Handle.parse(lease)
    if handle.held is None or handle.address:
        return
    session = Lease(cluster, group, handle.session, handle.epoch)
    # A session may take back what its batch left out: then the sum says nothing of the others.
    if session.renew().held >= handle.held and not handle.left_out:
        return
    acquired = session.acquire(handle.seq, 1, 0) if ranges is None else ranges
    batch = Batch(handle.session, handle.seq, acquired)
    _, lost, ended = _divided(cluster, group, batch)
    count = sum(map(records_of, ended))
    if ranges is None:
        lost_before = batch.records - handle.held - handle.left_out
        lost_since = sum(map(records_of, lost)) - lost_before
        # Records lost since may be those left out or not: in doubt the batch fails, and runs again.
        count -= max(handle.left_out - lost_since, 0)
    if count <= 0:
        return
    raise LocksLost(
        f"share group {group!r}: the locks of {count} records of batch number {handle.seq} of "
        f"session {handle.session} ended while the batch ran, and other members may process these "
        "records; the batch fails: start the query again, and the batch runs with the records that "
        "the session still holds (with option failOnLostLocks=false it writes all of them, some "
        "perhaps twice)"
    )


def _divided(
    cluster: Cluster, group: str, batch: Batch
) -> tuple[list[Range], list[Range], list[Range]]:
    """Divide a batch into what its session holds, what left the log, and what it lost otherwise."""
    known = {(one.topic, one.partition): one for one in describe(cluster, group)}
    held: list[Range] = []
    missing: list[Range] = []
    for one in batch.ranges:
        mine = _held(known.get((one.topic, one.partition)), one, batch.session)
        held += [replace(one, first=first, last=last) for first, last in mine]
        missing += [replace(one, first=first, last=last) for first, last in _without(one, mine)]
    if not missing:
        return held, [], []
    return held, *_lost(cluster, group, known, missing, _recreated(cluster, batch))


def _held(partition: SharePartition | None, wanted: Range, session: str) -> list[Bounds]:
    """Find the parts of a range that the session has on the same delivery."""
    runs: Sequence[InFlight] = () if partition is None else partition.in_flight
    return [
        (max(run.first, wanted.first), min(run.last, wanted.last))
        for run in runs
        if run.state == _ACQUIRED
        and run.delivery_count == wanted.delivery_count
        and run.holder.rpartition("/")[2].lstrip() == session
        and run.first <= wanted.last
        and run.last >= wanted.first
    ]


def topic_ids(cluster: Cluster, topics: Iterable[str]) -> dict[str, str]:
    """The ids of those topics that exist. Raises: as `Cluster`."""
    described = describe_topics(cluster, topics)
    return {name: str(topic.id) for name, topic in described.items() if topic.id is not None}


def _recreated(cluster: Cluster, batch: Batch) -> set[str]:
    """Find the topics of a batch that were deleted and created again since it was acquired."""
    ids = topic_ids(cluster, batch.ids)
    return {name for name, known in batch.ids.items() if ids.get(name, known) != known}


def _removed(
    cluster: Cluster, group: str, topics: set[str]
) -> defaultdict[TopicPartition, list[Bounds]]:
    """List the records of a group that left the log unfinished.

    Where the list had no room for the older ones, these are all records below the log's start: some
    of them may have been finished, and none that was not is passed over.
    """
    removed: defaultdict[TopicPartition, list[Bounds]] = defaultdict(list)
    if not topics:
        return removed
    archived = list_archived_share_records(cluster, group, topics)
    for run in archived.runs:
        if _REMOVED in run.reason:
            removed[run.topic, run.partition].append((run.first, run.last))
    for place, ends in ends_of(cluster, archived.dropped).items():
        if ends.earliest:
            removed[place].append((0, ends.earliest - 1))
    return removed


def _lost(
    cluster: Cluster,
    group: str,
    known: dict[TopicPartition, SharePartition],
    missing: list[Range],
    recreated: set[str],
) -> tuple[list[Range], list[Range]]:
    """Divide records into those that left the log unfinished, and the others."""
    topics = {one.topic for one in missing} & {topic for topic, _ in known}
    removed = _removed(cluster, group, topics)
    lost: list[Range] = []
    ended: list[Range] = []
    for one in missing:
        place = (one.topic, one.partition)
        gone = removed[place]
        if place not in known or one.topic in recreated:
            gone = [(one.first, one.last)]
        elif 0 <= known[place].log_end <= one.last:  # the topic was created again, or cut
            gone = [*gone, (max(one.first, known[place].log_end), one.last)]
        mine = [
            (max(first, one.first), min(last, one.last))
            for first, last in sorted(gone)
            if first <= one.last and last >= one.first
        ]
        rest = list(_without(one, mine))
        ended += [replace(one, first=first, last=last) for first, last in rest]
        lost += [replace(one, first=first, last=last) for first, last in _without(one, rest)]
    return lost, ended


def _without(whole: Range, parts: Sequence[Bounds]) -> Iterator[Bounds]:
    """Yield what `parts`, in order, leave of a range."""
    first = whole.first
    for begin, end in parts:
        if first < begin:
            yield first, begin - 1
        first = max(first, end + 1)
    if first <= whole.last:
        yield first, whole.last


def _shown(ranges: Sequence[Range]) -> str:
    shown = [
        f"{one.topic}-{one.partition} offsets {one.first} to {one.last}"
        for one in ranges[:_SHOWN_MAX]
    ]
    more = len(ranges) - len(shown)
    return ", ".join(shown) + (f" and {more} more ranges" if more else "")
