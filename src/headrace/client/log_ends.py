"""Both ends of the logs of many partitions, some of which may not be there any more.

Committed offsets outlive topics, and a partition may have no leader: of those nothing is known.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.offsets import (
    ListedOffsets,
    OffsetSpec,
    Spec,
    TopicPartition,
    list_offsets,
    list_readable_offsets,
)
from headrace.client.topics import describe_topics
from headrace.wire.error_codes import ErrorCode

_TRIES = 3


@dataclass(frozen=True, slots=True)
class Ends:
    """The first kept offset of a log, and the one after the last; None where it is not known."""

    earliest: int | None = None
    latest: int | None = None

    def lag(self, offset: int) -> int | None:
        """How many offsets a reader at `offset` has left: what is gone cannot be read any more."""
        if self.latest is None:
            return None
        return max(0, self.latest - max(offset, self.earliest or 0))


def ends_of(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, with_earliest: bool = True
) -> dict[TopicPartition, Ends]:
    """The ends of each of `partitions`; both None where there is no such partition, or no leader.

    Raises: as `Cluster`.
    """
    return _ends(cluster, partitions, _all_offsets, with_earliest=with_earliest)[0]


def readable_ends_of(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, with_earliest: bool = True
) -> tuple[dict[TopicPartition, Ends], dict[TopicPartition, BrokerError]]:
    """Return ends as `ends_of`, also where the broker cannot read some of the partitions.

    Returns: ends, None where the broker cannot read them, and why it cannot.

    Raises: as `Cluster`.
    """
    return _ends(cluster, partitions, list_readable_offsets, with_earliest=with_earliest)


def _all_offsets(cluster: Cluster, requested: Mapping[TopicPartition, Spec]) -> ListedOffsets:
    return list_offsets(cluster, requested), {}


def _ends(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    list_ends: Callable[[Cluster, Mapping[TopicPartition, Spec]], ListedOffsets],
    *,
    with_earliest: bool,
) -> tuple[dict[TopicPartition, Ends], dict[TopicPartition, BrokerError]]:
    wanted = sorted(set(partitions))
    for left in reversed(range(_TRIES)):
        there = _with_leader(cluster, wanted)
        try:
            latest, errors = list_ends(cluster, dict.fromkeys(there, OffsetSpec.LATEST))
            first = latest if with_earliest else ()
            earliest, more = list_ends(cluster, dict.fromkeys(first, OffsetSpec.EARLIEST))
        except BrokerError as error:
            if error.code != ErrorCode.unknown_topic_or_partition or not left:
                raise
            continue  # deleted since it was looked up
        ends = {
            place: Ends(
                earliest[place].offset if place in earliest else None,
                latest[place].offset if place in latest else None,
            )
            for place in wanted
        }
        return ends, errors | more
    raise AssertionError("the last try returns or raises")


def _with_leader(cluster: Cluster, wanted: list[TopicPartition]) -> list[TopicPartition]:
    topics = describe_topics(cluster, {topic for topic, _ in wanted})
    led = {
        (name, part.partition)
        for name, topic in topics.items()
        for part in topic.partitions
        if part.leader is not None
    }
    return [place for place in wanted if place in led]
