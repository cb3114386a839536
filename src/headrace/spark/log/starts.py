"""Where partitions begin that a query has no position of, by a strategy of KIP-842.

At its first start a query with a group goes on where the group stopped, as a consumer would. From
then on the checkpoint has its positions, and when it started; what partitions are new to it is
decided by that. Source: docs/reset.md, "In Spark".
"""

import logging
from collections.abc import Mapping

from headrace.client.connection import Cluster
from headrace.client.group_offsets import list_group_offsets
from headrace.client.group_start import started
from headrace.client.offsets import TopicPartition
from headrace.client.resets import Strategy, starts
from headrace.spark.log.plan import Seen
from headrace.spark.log.position import Position

LOG = logging.getLogger(__name__)

_EVER = 0


class Starts:
    """Starts by `strategy`, for a query that commits to `group`. Raises: as `Cluster`."""

    def __init__(self, strategy: Strategy, cluster: Cluster, group: str | None) -> None:
        self._strategy = strategy
        self._cluster = cluster
        self._group = group

    def first(self, seen: Seen, now: int) -> tuple[dict[TopicPartition, int], int]:
        """Where the query starts that has no checkpoint, and when it started, or else its group.

        `now` (ms) was before `seen` was looked at, so that no partition was made in between.
        """
        since, committed = None, {}
        if self._group is not None:
            committed = list_group_offsets(self._cluster, self._group, require_stable=True)
            since = started(one.metadata for one in committed.values())
        found = {place: one.offset for place, one in committed.items() if place in seen.logs}
        missing = {place: log.ends for place, log in seen.logs.items() if place not in found}
        found |= starts(self._cluster, self._strategy, missing, since)
        return found, now if since is None else since

    def added(self, before: Position, seen: Seen, since: int | None) -> dict[TopicPartition, int]:
        """Where partitions begin that `before` does not know, of topics that are the same.

        One that starts does so at offset 0: what was removed of it since is lost. In a checkpoint
        that does not tell when its query started, all are newer.
        """
        new = {
            place: (0, log.end)
            for place, log in seen.logs.items()
            if place not in before.offsets and not seen.made_again(place[0], before.ids)
        }
        if not new:
            return {}
        found = starts(self._cluster, self._strategy, new, _EVER if since is None else since)
        self._tell(found, seen)
        return found

    def _tell(self, found: Mapping[TopicPartition, int], seen: Seen) -> None:
        for (topic, partition), offset in sorted(found.items()):
            start = seen.logs[topic, partition].start
            LOG.log(
                logging.WARNING if offset > start else logging.INFO,
                "%s-%d is new to the query, which starts it at offset %d, as startingOffsets is "
                "%s: %d earlier ones are not read",
                topic, partition, offset, self._strategy, max(0, offset - start),
            )  # fmt: skip
