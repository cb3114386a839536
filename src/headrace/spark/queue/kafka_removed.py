"""Records that left a log of Apache Kafka before a share group had finished them.

Apache Kafka moves the position of a group over such records without a message, and keeps no list
of them. The position and the lag that DescribeShareGroupOffsets returns are those of the last
acknowledgement, so they show the loss until the next one: more offsets from the position to the
start of the log than the group has finished behind its position. Finished records are counted and
not named, so the loss is a least number of records in a range of offsets. A query looks in each
trigger, behind the acquisition and before it settles the batch.
Source: KIP-932; KIP-1226, delivery complete count.
"""

import logging
from collections.abc import Mapping

from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError, ClientError
from headrace.client.log_ends import Ends, readable_ends_of
from headrace.client.offsets import TopicPartition
from headrace.client.share_groups import ShareOffset
from headrace.spark.queue.checkpoints import shown

LOG = logging.getLogger(__name__)

_PATIENCE_S = 5.0


class RemovedRecords:
    """The removed records of a group, logged once for each start of a log."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._logged: dict[TopicPartition, int] = {}  # the starts of logs
        self._unreadable = frozenset[TopicPartition]()

    def warn(self, cluster: Cluster, positions: Mapping[TopicPartition, ShareOffset]) -> None:
        """Log the records that left the logs behind the positions of the group, unfinished.

        A query does not fail because the broker does not return the ends of the logs.

        Args:
            cluster: where the logs are. Their ends are requested after the positions, so that a
                log that grows in between hides a loss and never makes one up.
            positions: where the group is. Those without a lag, as of Kafka before 4.2, show
                nothing, and cost no request.

        """
        positions = {place: one for place, one in positions.items() if one.lag is not None}
        try:
            with cluster.within(_PATIENCE_S):
                ends, errors = readable_ends_of(cluster, positions)
        except ClientError as error:
            LOG.debug("share group %s: the ends of the logs are unknown: %s", self._group, error)
            return
        self._warn_of_unreadable(errors)
        removed: list[str] = []
        for place, position in sorted(positions.items()):
            count = _removed(position, ends[place])
            start = ends[place].earliest
            if count > 0 and start is not None and self._logged.get(place) != start:
                self._logged[place] = start
                topic, partition = place
                span = f"offsets {position.start} to {start - 1}"
                removed.append(f"at least {count} of {topic}-{partition} {span}")
        if removed:
            LOG.warning(
                "share group %s: records left the log before the group had finished them, by "
                "retention or deletion: %s; Apache Kafka archives them and keeps no list",
                self._group, shown(removed),
            )  # fmt: skip

    def _warn_of_unreadable(self, errors: Mapping[TopicPartition, BrokerError]) -> None:
        """Log partitions of which a loss cannot be seen, once until their ends are known again."""
        new = sorted(errors.keys() - self._unreadable)
        if new:
            LOG.warning(
                "share group %s: records that leave the logs of %s unfinished are not seen for "
                "now: %s",
                self._group, shown([f"{topic}-{partition}" for topic, partition in new]),
                errors[new[0]],
            )  # fmt: skip
        self._unreadable = frozenset(errors)


def _removed(position: ShareOffset, ends: Ends) -> int:
    """Return the least number of unfinished records from the position to the start of the log."""
    if position.lag is None or ends.earliest is None or ends.latest is None:
        return 0
    finished = ends.latest - position.start - position.lag
    return ends.earliest - position.start - finished
