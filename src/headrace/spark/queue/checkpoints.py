"""Refuse a new checkpoint on a share group that another checkpoint has read.

Spark numbers the batches of a new checkpoint from 0 again, while the group goes on behind the
records that were finished. A sink that knows batches by their number alone takes the new ones for
old ones: Spark's file sinks drop them without a message, a folder named for the number is
overwritten. So the user chooses, also where the other checkpoint has settled no batch and planned
one: the sink may have that batch. Spark logs a batch before it plans it, so a planned batch belongs
to a checkpoint that outlives its driver. The epoch of the session tells: a driver opens the session
once more when it plans the first batch. A session that only acquired is a warning: a query that
died before it logged its first batch leaves one behind, and comes back with another session.
A checkpoint whose session the broker knows is not new: a query with several sources logs batches
before each of them has records.

Apache Kafka knows no checkpoints, only positions of the group. Records that are finished prove that
the group was read. A position above offset 0 does not: the group may have begun there, and a query
without a batch starts again with a new session. That is a warning only.
"""

import logging

from headrace.client.connection import Cluster
from headrace.client.errors import ClientError
from headrace.client.lease_sessions import LeaseSession, list_lease_sessions
from headrace.client.log_ends import Ends, ends_of
from headrace.client.share_groups import ShareOffset, list_share_group_offsets
from headrace.spark.batch import APART, SINK_BY_ID
from headrace.spark.queue.options import QueueOptions

LOG = logging.getLogger(__name__)

EPOCH_PLANNED = 2  # the least epoch of a session whose first batch was planned
_SHOWN_MAX = 5
READ_ON = (
    "start with a new checkpoint, option newCheckpoint=continue and "
    f"{APART} to read on from the group's position"
)


class CheckpointRefused(ClientError):
    """A checkpoint is new, and its share group was read by another one."""


def check_new(cluster: Cluster, options: QueueOptions, session: str) -> None:
    """Check that a group may be read by a checkpoint that has no batch yet.

    Raises: `CheckpointRefused` with the choice that the user has; otherwise as `Cluster`.
    """
    found = list_lease_sessions(cluster, options.group)
    if any(one.session == session for one in found):
        return
    known = [one for one in found if one.committed or _is_planned(one)]
    group = options.group
    if not known:
        for one in found:
            if one.active:
                LOG.warning(
                    "share group %s: lease session %s reads it as well, or its driver died "
                    "within the duration of a lock; if both write to one place, %s: use %s",
                    group, one.session, SINK_BY_ID, APART,
                )  # fmt: skip
            elif one.outstanding:
                LOG.warning(
                    "share group %s: lease session %s acquired a batch and did not settle it; if "
                    "its query wrote the batch, %s: use %s",
                    group, one.session, SINK_BY_ID, APART,
                )  # fmt: skip
        return
    last = min(known, key=_age)
    if options.new_checkpoint == "fail":
        did = (
            f"settled {last.committed} batches"
            if last.committed
            else "planned a batch and did not settle it"
        )
        raise CheckpointRefused(
            f"share group {group!r} was read by {_checkpoints(len(known))} before (lease "
            f"session {last.session} {did}), and this checkpoint is "
            f"new: its batch ids begin at 0 again, and {SINK_BY_ID}; use the earlier checkpoint, "
            f"or set option newCheckpoint=continue and write to {APART}"
        )
    _warn_of_reading_on(group, f"lease session {session}")


def _is_planned(session: LeaseSession) -> bool:
    """Whether Spark has logged a batch that the session has not settled."""
    return bool(session.outstanding) and session.epoch >= EPOCH_PLANNED


def check_new_on_kafka(cluster: Cluster, options: QueueOptions, session: str) -> None:
    """Check that a group of Apache Kafka may be read by a checkpoint that has no batch yet.

    Raises: `CheckpointRefused` where records of the group are finished; otherwise as `Cluster`.
    """
    group = options.group
    partitions = [
        (topic, partition) for topic in options.topics for partition in cluster.partitions(topic)
    ]
    # Ends first: a log that grows in between must not look as if records were finished.
    ends = ends_of(cluster, partitions)
    offsets = list_share_group_offsets(cluster, group, partitions)
    known = {place: offset for place in partitions if (offset := offsets.get(place)) is not None}
    finished = [
        f"{topic}-{partition}"
        for (topic, partition), offset in known.items()
        if _has_finished(offset, ends[topic, partition], options.start)
    ]
    if finished and options.new_checkpoint == "fail":
        raise CheckpointRefused(
            f"share group {group!r} has finished records of {shown(finished)}, and this "
            f"checkpoint is new: its batch ids begin at 0 again, and {SINK_BY_ID}; use the "
            "earlier checkpoint, or set option newCheckpoint=continue and "
            f"write to {APART}"
        )
    if finished:
        _warn_of_reading_on(group, f"member {session}")
    elif above := [
        f"{topic}-{partition}" for (topic, partition), offset in known.items() if offset.start
    ]:
        LOG.warning(
            "share group %s: has positions in %s, and this checkpoint is new: if an earlier "
            "checkpoint read the group, %s: use the earlier checkpoint, or %s",
            group, shown(above), SINK_BY_ID, APART,
        )  # fmt: skip


def _has_finished(offset: ShareOffset, ends: Ends, start: str) -> bool:
    """Whether the group has finished records that the log still has.

    A group that begins at "latest" is above the first record without having finished any.
    """
    if ends.earliest is None or ends.latest is None:
        return False
    first = max(offset.start, ends.earliest)
    if offset.lag is not None and offset.lag < ends.latest - first:
        return True
    return start == "earliest" and offset.start > ends.earliest


def _warn_of_reading_on(group: str, reader: str) -> None:
    LOG.warning(
        "share group %s: %s reads on with a new checkpoint, whose batch ids begin at 0 again: %s; "
        "write to %s",
        group, reader, SINK_BY_ID, APART,
    )  # fmt: skip


def shown(partitions: list[str]) -> str:
    """Name the first few partitions, and count the others."""
    more = len(partitions) - _SHOWN_MAX
    return ", ".join(partitions[:_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def _age(session: LeaseSession) -> tuple[bool, int]:
    return session.seen_ms is None, session.seen_ms or 0


def _checkpoints(count: int) -> str:
    return "another checkpoint" if count == 1 else f"{count} other checkpoints"
