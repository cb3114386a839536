"""Where a share group of Apache Kafka begins in topics that are new to it.

Left alone, Kafka decides when a leader first loads a partition, and decides again after an idle
consumer came back: what was produced in between would be passed over. So the position is set before
the first member joins.
"""

import logging
import time

from headrace.client.configs import set_group_configs
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError, Unreachable
from headrace.client.offsets import OffsetSpec, TopicPartition, list_offsets
from headrace.client.share_groups import alter_share_group_offsets, list_share_group_offsets
from headrace.spark.queue.options import QueueOptions

LOG = logging.getLogger(__name__)

_NON_EMPTY_GROUP = 68
_PAUSE_S = 0.2  # Kafka creates the topic of share states with the first request
_SPECS = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}
_RESET = "share.auto.offset.reset"


def begin(cluster: Cluster, options: QueueOptions) -> None:
    """Set the group's position in every partition that is new to it.

    Raises: `BrokerError` 3 for a topic that does not exist; `Unreachable`; otherwise as `Cluster`.
    """
    places = [(topic, one) for topic in options.topics for one in cluster.partitions(topic)]
    until = time.monotonic() + options.retry_timeout_ms / 1000
    while new := _new_of(cluster, options.group, places):
        found = list_offsets(cluster, dict.fromkeys(new, _SPECS[options.start]))
        starts = {place: one.offset or 0 for place, one in found.items()}
        refused = alter_share_group_offsets(cluster, options.group, starts).all()
        if refused is None:
            LOG.info("group %s begins at %s: %s", options.group, options.start, starts)
            return
        if refused.code == _NON_EMPTY_GROUP:
            _leave_to_kafka(cluster, options, new)
            return
        _must_go_on(refused, until)


def _new_of(cluster: Cluster, group: str, places: list[TopicPartition]) -> list[TopicPartition]:
    known = list_share_group_offsets(cluster, group, places)
    return [place for place in places if known.get(place) is None]


def _leave_to_kafka(cluster: Cluster, options: QueueOptions, new: list[TopicPartition]) -> None:
    """A group that has members keeps its positions: Kafka finds those of new partitions."""
    topics = sorted({topic for topic, _ in new})
    if options.start == "earliest":
        set_group_configs(cluster, options.group, {_RESET: options.start})
        LOG.info("group %s: set %s=%s for %s", options.group, _RESET, options.start, topics)
    else:
        LOG.warning(
            "group %s has members, so Kafka decides where it begins in %s (%s), at the first fetch",
            options.group, topics, _RESET,
        )  # fmt: skip


def _must_go_on(refused: BrokerError, until: float) -> None:
    if not refused.retriable:
        raise refused
    if time.monotonic() > until:
        raise Unreachable(f"{refused}; gave up") from None
    time.sleep(_PAUSE_S)
