"""The tables `share_partitions` and `in_flight`."""

import logging
from collections.abc import Iterator, Mapping

from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError, Unsupported
from headrace.client.offsets import TopicPartition
from headrace.client.share_archived import ArchivedRun
from headrace.client.share_browse import browse_share_group_runs
from headrace.client.share_groups import ShareOffset, list_readable_share_group_offsets
from headrace.client.share_records import (
    IN_FLIGHT,
    BrowsedRun,
    RecordState,
    SharePartitionDescription,
    describe_readable_share_partitions,
)
from headrace.spark.tables.names import Row, is_absent, moment, portions
from headrace.spark.tables.wanted import Wanted

LOG = logging.getLogger(__name__)

SHARE_PARTITIONS = (
    "group string, topic string, partition int, start_offset bigint, end_offset bigint, "
    "log_start bigint, log_end bigint, lag bigint, "
    + ", ".join(f"{state.lower()} bigint" for state in RecordState)
)
RUNS = (
    "group string, topic string, partition int, first bigint, last bigint, records bigint, "
    "state string, delivery_count int, holder string, session string, client_id string, "
    "host string, acquired_at timestamp, lock_until timestamp, reason string"
)
Described = Mapping[TopicPartition, SharePartitionDescription | None]
Errors = Mapping[TopicPartition, BrokerError]


def share_partitions(cluster: Cluster, wanted: Wanted) -> Iterator[list[Row]]:
    """A row a share-partition; where it ends and what is in flight only of Headrace.

    A partition that the broker cannot read has a row of nulls behind its number, and a warning.
    """
    warned = set[TopicPartition]()
    for name in _names(cluster, wanted):
        try:
            found, errors = list_readable_share_group_offsets(cluster, name)
        except BrokerError as error:
            if is_absent(error):
                continue
            raise
        _warn(errors, wanted, warned)
        more, _ = _described(cluster, name)
        yield [
            _partition(name, place, one, more.get(place))
            for place, one in found.items()
            if wanted.has(*place)
        ]


def in_flight(cluster: Cluster, wanted: Wanted) -> Iterator[list[Row]]:
    """A row a run of records that share their state. Raises: `Unsupported` on other brokers.

    A partition that the broker cannot read has no rows, and a warning.
    """
    warned = set[TopicPartition]()
    states = [one for one in IN_FLIGHT if wanted.state is None or one in wanted.state]
    for name in _names(cluster, wanted) if states else ():
        found, errors = _described(cluster, name, must=True)
        _warn(errors, wanted, warned)
        places = [place for place in found if wanted.has(*place)]
        if not places:
            continue
        walk = browse_share_group_runs(name, topics=places, states=states)
        while (runs := walk.step(cluster)) is not None:
            yield [_run(name, one) for one in runs]


def _names(cluster: Cluster, wanted: Wanted) -> Iterator[str]:
    for names in portions(cluster, wanted, share=True):
        yield from names


def _warn(errors: Errors, wanted: Wanted, warned: set[TopicPartition]) -> None:
    """Log partitions that the broker cannot read, once each: groups may share them."""
    for place, error in errors.items():
        if wanted.has(*place) and place not in warned:
            warned.add(place)
            LOG.warning("table without the state of %s-%d: %s", *place, error)


def _described(cluster: Cluster, name: str, *, must: bool = False) -> tuple[Described, Errors]:
    """The partitions of a group, none when there is no such group, or the broker cannot tell.

    Also returns why the broker cannot read others of them.

    Raises: `Unsupported` if they `must` be told.
    """
    try:
        return describe_readable_share_partitions(cluster, name)
    except Unsupported:
        if must:
            raise
    except BrokerError as error:
        if not is_absent(error):
            raise
    return {}, {}


def _partition(
    group: str,
    place: TopicPartition,
    one: ShareOffset | None,
    more: SharePartitionDescription | None,
) -> Row:
    row: Row = {
        "group": group,
        "topic": place[0],
        "partition": place[1],
        "start_offset": None if one is None else one.start,
        "lag": None if one is None else one.lag,
    }
    if more is not None:
        row |= {
            "end_offset": more.end,
            "log_start": more.log_start,
            "log_end": more.high_watermark,
        }
        row |= {state.lower(): count for state, count in more.records.items()}
    return row


def _run(group: str, one: BrowsedRun) -> Row:
    holder = one.holder
    return span(group, one) | {
        "state": str(one.state),
        "holder": None if holder is None else holder.member,
        "session": None if holder is None else holder.session,
        "client_id": None if holder is None else holder.client_id,
        "host": None if holder is None else holder.host,
        "acquired_at": moment(one.acquired_at),
        "lock_until": moment(one.lock_until),
        "reason": one.reason,
    }


def span(group: str, one: BrowsedRun | ArchivedRun) -> Row:
    """The columns that every run of records has."""
    return {
        "group": group,
        "topic": one.topic,
        "partition": one.partition,
        "first": one.first,
        "last": one.last,
        "records": one.records,
        "delivery_count": one.delivery_count,
    }
