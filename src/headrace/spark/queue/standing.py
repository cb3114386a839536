"""What a queue tells of itself in each trigger: its group's lag, and what became of its records."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from headrace.client.connection import Cluster
from headrace.client.errors import ClientError
from headrace.client.offsets import TopicPartition
from headrace.client.share_groups import ShareOffset, list_readable_share_group_offsets
from headrace.spark.progress import Counts, Standing
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.plan import records_of
from headrace.spark.queue.redriven import redrive_topic
from headrace.wire.leases import CommitResponse, Range

LOG = logging.getLogger(__name__)

_PATIENCE_S = 5.0


class Tally:
    """Counts records as they are acquired and settled, and tells the standing on request.

    `positions` are those of the group in what the query reads, as of the last standing; none where
    the broker did not return them.
    """

    def __init__(self, options: QueueOptions) -> None:
        self._options = options
        self._counts = Counts()
        self._held: tuple[Range, ...] = ()
        self.positions: dict[TopicPartition, ShareOffset] = {}
        self._warned = set[TopicPartition]()  # that the broker cannot read

    def acquired(self, ranges: tuple[Range, ...]) -> None:
        """The next batch, which may be none; everything before it is settled."""
        self._held = ranges
        self._counts += Counts(acquired=sum(map(records_of, ranges)))

    def settled(self, done: CommitResponse) -> None:
        """What a commit came to."""
        self._held = ()
        self._counts += Counts(0, done.accepted, done.released, done.rejected, done.refused)

    def standing(self, cluster: Cluster) -> Standing:
        """The counts, and the lag beside the batch; without a lag when the broker does not tell.

        A query does not fail for want of its progress.
        """
        try:
            with cluster.within(_PATIENCE_S):
                self.positions = self._positions(cluster)
        except ClientError as error:
            LOG.warning(
                "group %s: the lag is not told, the query goes on: %s", self._options.group, error
            )
            self.positions = {}
        return Standing(_left(self.positions, self._held), self._counts)

    def _positions(self, cluster: Cluster) -> dict[TopicPartition, ShareOffset]:
        """Return where the group is in the topics that are read. Raises: as `Cluster`."""
        group = self._options.group
        read = {*self._options.topics, redrive_topic(group)}
        offsets, errors = list_readable_share_group_offsets(cluster, group)
        for place, error in errors.items():
            if place[0] in read and place not in self._warned:
                self._warned.add(place)
                LOG.warning("group %s: the lag does not include %s-%d: %s", group, *place, error)
        return {
            place: one for place, one in offsets.items() if one is not None and place[0] in read
        }


def _left(
    positions: Mapping[TopicPartition, ShareOffset], held: Iterable[Range]
) -> dict[TopicPartition, int]:
    """Records of each partition that the group has not finished, but for those in `held`."""
    mine: Counter[TopicPartition] = Counter()
    for one in held:
        mine[one.topic, one.partition] += records_of(one)
    return {
        place: max(0, one.lag - mine[place])
        for place, one in positions.items()
        if one.lag is not None
    }
