"""The metrics of consumer groups: members, states, committed offsets, lag, and KIP-496's meters.

Nothing here takes long between two samples, whatever the number of groups and offsets: what has to
be summed up is told step by step. Names that begin with `kafka_` are kafka_exporter's.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.broker.metrics_shapes import Families, Family, Sample, Samples, single
from headrace.broker.services import Services
from headrace.core.consumer_group import ConsumerGroup, Group
from headrace.core.consumer_words import ConsumerState
from headrace.core.group_words import Phase
from headrace.core.offsets import Offsets

_GROUP = ("consumergroup",)
_TOPIC = ("consumergroup", "topic")
_PARTITION = ("consumergroup", "topic", "partition")
_STATES = (
    *(("classic", phase.value) for phase in Phase),
    *(("consumer", state.value) for state in ConsumerState),
)


def of_groups(services: Services, granularity: str) -> Families:
    """Every family of consumer groups; those of offsets as fine as asked for."""
    groups = services.groups
    yield (
        Family("kafka_consumergroup_members", "gauge", "Members of a consumer group.", _GROUP),
        (Sample((group.name,), len(group.members)) for group, _ in groups.walk()),
    )
    yield (
        Family("headrace_consumer_groups", "gauge",
               "Consumer groups by type (protocol) and state.", ("type", "state")),
        _states(services),
    )  # fmt: skip
    yield single(
        "headrace_committed_offsets", "Offsets that consumer groups have committed.",
        sum(groups.machine_of(shard).offset_count for shard in groups.shards),
    )  # fmt: skip
    yield from _meters(services)
    if granularity != "none":
        yield from _offsets(services, granularity)


def _states(services: Services) -> Iterator[Sample | None]:
    counts = Counter(dict.fromkeys(_STATES, 0))
    for group, _ in services.groups.walk():
        counts[_state(group)] += 1
        yield None
    for labels, count in counts.items():
        yield Sample(labels, count)


def _state(group: Group) -> tuple[str, str]:
    if isinstance(group, ConsumerGroup):
        return "consumer", group.state.value
    return "classic", group.phase.value


def _meters(services: Services) -> Families:
    meters = services.groups.meters
    for name, doc, value in (
        ("offset_commits", "Offsets committed (offset-commits).", meters.offset_commits),
        ("offset_seeds", "Offsets committed by reset policies of groups.", meters.offset_seeds),
        ("offset_expirations", "Committed offsets that expired (offset-expirations).",
         meters.offset_expirations),
        ("offset_deletions", "Committed offsets deleted by an administrator (offset-deletions).",
         meters.offset_deletions),
        ("group_completed_rebalances",
         "Generations of classic groups that were assigned (group-completed-rebalances).",
         meters.completed_rebalances),
    ):  # fmt: skip
        yield single(f"headrace_{name}", doc, value, "counter")


# ---- offsets and lag


class _Place(NamedTuple):
    """Where a group is in a partition; `lag` in offsets."""

    topic: str
    partition: int
    offset: int
    lag: int


_VALUES: tuple[tuple[str, str, Callable[[_Place], int]], ...] = (
    ("current_offset", "Offset that the group has committed", lambda one: one.offset),
    (
        "lag",
        "Offsets from the committed one, or the first that is kept, to the end",
        lambda one: one.lag,
    ),
)


def _offsets(services: Services, granularity: str) -> Families:
    for name, doc, value in _VALUES:
        if granularity == "partition":
            yield (
                Family(f"kafka_consumergroup_{name}", "gauge", f"{doc}.", _PARTITION),
                _each(services, value),
            )
        yield (
            Family(f"kafka_consumergroup_{name}_sum", "gauge",
                   f"{doc}, of all partitions.", _TOPIC),
            _sums(services, value),
        )  # fmt: skip


def _each(services: Services, value: Callable[[_Place], int]) -> Samples:
    for group, offsets in services.groups.walk():
        for one in _places(services, offsets):
            yield one and Sample((group.name, one.topic, str(one.partition)), value(one))


def _sums(services: Services, value: Callable[[_Place], int]) -> Samples:
    for group, offsets in services.groups.walk():
        sums: dict[str, int] = {}
        for one in _places(services, offsets):
            if one is not None:
                sums[one.topic] = sums.get(one.topic, 0) + value(one)
            yield None
        for topic, total in sums.items():
            yield Sample((group.name, topic), total)


def _places(services: Services, offsets: Offsets) -> Iterator[_Place | None]:
    """Every commit of a group; None for one to a partition that is no more or damaged."""
    topics, partitions = services.catalog.topics, services.partitions
    for name, index, committed in offsets.walk():
        topic = topics.get(name)
        partition = None
        if topic is not None and committed.topic_id in (None, topic.id):
            partition = partitions.get(topic.id, index)
        if partition is None:
            yield None
            continue
        try:
            # What was deleted unread is behind nobody any more.
            reached = max(committed.offset, partition.start_offset)
            lag = max(0, partition.high_watermark - reached)
        except OSError:  # the log is damaged; the partition has logged it
            yield None
            continue
        yield _Place(name, index, committed.offset, lag)
