"""Spark queries as the groups that they read through show them.

A query over a queue is a session of the lease API, named in its checkpoint. One over a log commits
its offsets to a group, with `COMMITTED_BY` as their metadata; below it may stand when the group
started (`group_start`). When that was last is told by Headrace only.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError, Unsupported
from headrace.client.group_offsets import list_group_offsets
from headrace.client.group_start import unmarked
from headrace.client.groups import list_consumer_groups
from headrace.client.lease_sessions import LeaseSession, list_lease_sessions
from headrace.client.log_ends import readable_ends_of
from headrace.client.offset_expiry import offset_expiry
from headrace.client.offsets import TopicPartition
from headrace.client.share_groups import ShareOffset, list_readable_share_group_offsets
from headrace.wire.error_codes import ErrorCode

COMMITTED_BY = "headrace-spark"
_QUIET_MS = 120_000
_NS_PER_MS = 1_000_000

State = Literal["running", "quiet", "unknown"]
Offsets = Mapping[TopicPartition, ShareOffset | None]
Errors = Mapping[TopicPartition, BrokerError]


@dataclass(frozen=True, slots=True)
class SparkQuery:
    """A query; what is None is not known, or is of the other mode.

    It is "running" when it was heard of lately: for as long as locks last (a queue), or when it
    committed within two minutes (a log, which commits nothing when there is nothing new). `seen_ms`
    is how long ago that was. `lag` is of its whole group, in the topics of the query; it is None
    where the broker cannot read a partition of these, and `errors` say why it cannot. Of a queue
    `batch` is the last number acquired. Of the records of batches that are not settled `held` are
    locked; `lapsed` are those whose locks have ended: other members may take them.
    """

    group: str
    mode: Literal["queue", "log"]
    state: State
    topics: tuple[str, ...]
    lag: int | None
    seen_ms: int | None
    session: str | None = None
    epoch: int | None = None
    batch: int | None = None
    committed: int | None = None
    held: int | None = None
    lapsed: int | None = None
    errors: tuple[BrokerError, ...] = ()


def list_spark_queries(cluster: Cluster, groups: Sequence[str] = ()) -> list[SparkQuery]:
    """The queries of these groups, or of all, by group. Raises: as `Cluster`."""
    groups = tuple(dict.fromkeys(groups))
    found = [*_queues(cluster, groups), *_logs(cluster, groups)]
    return sorted(found, key=lambda one: (one.group, one.mode, one.session or ""))


def _queues(cluster: Cluster, groups: Sequence[str]) -> Iterator[SparkQuery]:
    try:
        asked: Sequence[str | None] = groups or [None]
        sessions = [one for group in asked for one in list_lease_sessions(cluster, group)]
    except Unsupported:
        return  # another broker, which has no leases
    offsets: dict[str, tuple[Offsets, Errors]] = {}
    for one in sessions:
        if one.group not in offsets:
            offsets[one.group] = list_readable_share_group_offsets(cluster, one.group)
        yield _queue(one, *offsets[one.group])


def _queue(one: LeaseSession, offsets: Offsets, unreadable: Errors) -> SparkQuery:
    lags = [
        offset.lag
        for (topic, _), offset in offsets.items()
        if topic in one.topics and offset is not None and offset.lag is not None
    ]
    errors = tuple(error for (topic, _), error in unreadable.items() if topic in one.topics)
    return SparkQuery(
        one.group,
        "queue",
        "running" if one.active else "quiet",
        one.topics,
        sum(lags) if lags and not errors else None,
        one.seen_ms,
        one.session,
        one.epoch,
        max(one.outstanding, default=one.committed),
        one.committed,
        one.held,
        one.lapsed,
        errors,
    )


def _logs(cluster: Cluster, groups: Sequence[str]) -> Iterator[SparkQuery]:
    names = groups or [one.group for one in list_consumer_groups(cluster)]
    for name in names:
        committed = _committed(cluster, name)
        if not committed:
            continue
        ends, unreadable = readable_ends_of(cluster, committed)
        known = (ends[place].lag(offset) for place, offset in committed.items())
        lags = [lag for lag in known if lag is not None]
        seen_ms = _since_commit(cluster, name)
        state: State = "unknown"
        if seen_ms is not None:
            state = "running" if seen_ms <= _QUIET_MS else "quiet"
        topics = tuple(dict.fromkeys(topic for topic, _ in committed))
        lag = sum(lags) if lags and not unreadable else None
        errors = tuple(unreadable.values())
        yield SparkQuery(name, "log", state, topics, lag, seen_ms, errors=errors)


def _committed(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    """What a query committed; none of a share group, which Kafka says is not there."""
    try:
        found = list_group_offsets(cluster, group)
    except BrokerError as error:
        if error.code != ErrorCode.group_id_not_found:
            raise
        return {}
    return {
        place: one.offset for place, one in found.items() if unmarked(one.metadata) == COMMITTED_BY
    }


def _since_commit(cluster: Cluster, group: str) -> int | None:
    try:
        times = [one.committed_at for one in offset_expiry(cluster, group).values()]
    except Unsupported:
        return None
    return max(0, time.time_ns() // _NS_PER_MS - max(times)) if times else None
