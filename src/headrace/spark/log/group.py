"""The group that a query commits its offsets to, so that tools which look at groups see it.

The checkpoint is the truth. A commit is that of a consumer without a group protocol, as Kafka's
`kafka-consumer-groups --reset-offsets` makes it; one that fails is told and costs nothing.
"""

import logging
from collections.abc import Mapping

from headrace.client.connection import Cluster
from headrace.client.errors import ClientError
from headrace.client.group_offsets import CommittedOffset, alter_group_offsets, list_group_offsets
from headrace.client.group_start import marked, unmarked
from headrace.client.offsets import TopicPartition
from headrace.client.spark_queries import COMMITTED_BY
from headrace.spark.batch import APART, SINK_BY_ID

LOG = logging.getLogger(__name__)

_PATIENCE_S = 5.0
_END = "\0"  # librdkafka reads metadata on to where a C string ends, whoever wrote it


class Commits:
    """Commits to `group`; to none when it is None."""

    def __init__(self, cluster: Cluster, group: str | None) -> None:
        self._cluster = cluster
        self._group = group
        self._last: dict[TopicPartition, int] = {}

    def warn_of_history(self) -> None:
        """Warn when a Spark query has committed to the group before, and there is no checkpoint.

        Spark numbers the batches of a new checkpoint from 0 again. Offset 0 is no history, as a
        query commits where it starts. A group that cannot be looked at is left to `commit`.
        """
        if self._group is None:
            return
        try:
            with self._cluster.within(_PATIENCE_S):
                committed = list_group_offsets(self._cluster, self._group)
        except ClientError as error:
            LOG.debug("group %s: its offsets are not known: %s", self._group, error)
            return
        by_spark = [one for one in committed.values() if unmarked(one.metadata) == COMMITTED_BY]
        if any(one.offset for one in by_spark):
            LOG.warning(
                "group %s: a Spark query has committed offsets to it, and this query starts "
                "without a checkpoint: if that query has another one, %s: use that checkpoint, "
                "or %s",
                self._group, SINK_BY_ID, APART,
            )  # fmt: skip

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
