"""The group that a query commits its offsets to, so that tools which look at groups see it.

The checkpoint is the truth. A commit is that of a consumer without a group protocol, as Kafka's
`kafka-consumer-groups --reset-offsets` makes it; one that fails is told and costs nothing.
"""

import logging
from collections.abc import Mapping

from headrace.client.connection import Cluster
from headrace.client.errors import ClientError
from headrace.client.group_offsets import CommittedOffset, alter_group_offsets
from headrace.client.group_start import marked
from headrace.client.offsets import TopicPartition
from headrace.client.spark_queries import COMMITTED_BY

LOG = logging.getLogger(__name__)

_PATIENCE_S = 5.0
_END = "\0"  # librdkafka reads metadata on to where a C string ends, whoever wrote it


class Commits:
    """Commits to `group`; to none when it is None."""

    def __init__(self, cluster: Cluster, group: str | None) -> None:
        self._cluster = cluster
        self._group = group
        self._last: dict[TopicPartition, int] = {}

    def commit(self, offsets: Mapping[TopicPartition, int], started: int | None = None) -> None:
        """Commit what changed since the last commit; a failure is a warning.

        With it goes when the group `started` (ms), for members and queries that have to know.
        """
        if self._group is None:
            return
        told = (COMMITTED_BY if started is None else marked(COMMITTED_BY, started)) + _END
        changed = {at: offset for at, offset in offsets.items() if self._last.get(at) != offset}
        if not changed:
            return
        try:
            with self._cluster.within(_PATIENCE_S):
                results = alter_group_offsets(
                    self._cluster,
                    self._group,
                    {
                        place: CommittedOffset(offset, metadata=told)
                        for place, offset in changed.items()
                    },
                )
            results.check()
        except ClientError as error:
            LOG.warning(
                "offsets were not committed to group %s, so tools do not see this batch; the query "
                "goes on from its checkpoint: %s",
                self._group,
                error,
            )
            return
        self._last |= changed
        LOG.info("committed %d offsets to group %s", len(changed), self._group)
