"""The table `offsets`: what groups of consumers have committed, their lag, and when it expires."""

import logging
from collections.abc import Iterator

from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError, Unsupported
from headrace.client.group_offsets import CommittedOffset, list_group_offsets
from headrace.client.log_ends import Ends, readable_ends_of
from headrace.client.offset_expiry import OffsetExpiry, offset_expiry
from headrace.client.offsets import TopicPartition
from headrace.spark.tables.names import Row, is_absent, moment, portions
from headrace.spark.tables.wanted import Wanted

LOG = logging.getLogger(__name__)

OFFSETS = (
    "group string, topic string, partition int, committed_offset bigint, leader_epoch int, "
    "metadata string, log_start bigint, log_end bigint, lag bigint, committed_at timestamp, "
    "expires_at timestamp, expiry string"
)

Committed = dict[TopicPartition, CommittedOffset]


def offsets(cluster: Cluster, wanted: Wanted) -> Iterator[list[Row]]:
    """Yield a row for each committed offset, by portions of groups.

    A partition that the broker cannot read has nulls for the ends of its log and the lag, and a
    warning.
    """
    forecast = _Forecast(cluster)
    warned = set[TopicPartition]()
    for names in portions(cluster, wanted, share=False):
        found = {name: _committed(cluster, name, wanted) for name in names}
        places = {place for offsets in found.values() for place in offsets}
        ends, errors = readable_ends_of(cluster, places)
        for place, error in errors.items():
            if place not in warned:
                warned.add(place)
                LOG.warning("table without the ends and the lag of %s-%d: %s", *place, error)
        for name, committed in found.items():
            expiry = forecast.of(name) if committed else {}
            yield [
                _row(name, place, one, ends[place], expiry.get(place))
                for place, one in committed.items()
            ]


def _committed(cluster: Cluster, name: str, wanted: Wanted) -> Committed:
    try:
        found = list_group_offsets(cluster, name)
    except BrokerError as error:
        if is_absent(error):
            return {}  # Kafka says so of a share group
        raise
    return {place: one for place, one in found.items() if wanted.has(*place)}


class _Forecast:
    """Asks when offsets expire, until a broker says that it does not tell."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._is_told = True

    def of(self, group: str) -> dict[TopicPartition, OffsetExpiry]:
        if not self._is_told:
            return {}
        try:
            return offset_expiry(self._cluster, group)
        except Unsupported:
            self._is_told = False
            return {}


def _row(
    group: str,
    place: TopicPartition,
    one: CommittedOffset,
    ends: Ends,
    expiry: OffsetExpiry | None,
) -> Row:
    return {
        "group": group,
        "topic": place[0],
        "partition": place[1],
        "committed_offset": one.offset,
        "leader_epoch": one.leader_epoch,
        "metadata": one.metadata,
        "log_start": ends.earliest,
        "log_end": ends.latest,
        "lag": ends.lag(one.offset),
        "committed_at": None if expiry is None else moment(expiry.committed_at),
        "expires_at": None if expiry is None else moment(expiry.expires_at),
        "expiry": None if expiry is None else expiry.reason,
    }
