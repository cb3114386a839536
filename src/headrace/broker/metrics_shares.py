"""The metrics of share groups: who works, what becomes of records, what holds a group up.

Nothing here takes long between two samples, whatever the number of share-partitions and of runs in
them: what has to be summed up is told step by step, and the log is read for a record's time once
for each SPSO, a few times between two turns of the loop. Apache Kafka has no lag of share groups
among its metrics; what it counts (ShareGroupMetrics, SharePartitionMetrics, KIP-1103) is here too.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from headrace.broker.metrics_shapes import PIECE_SAMPLES, Families, Family, Sample, Samples, single
from headrace.broker.partitions import Partition
from headrace.broker.services import Services
from headrace.broker.share_meters import Meter, ShareTraffic
from headrace.broker.shares import EMPTY, STABLE
from headrace.core.runs import State
from headrace.core.share_partition import SharePartition
from headrace.core.types import WallMs, age_ms
from headrace.log.api import OffsetOutOfRange

_GROUP = ("group",)
_TOPIC = ("group", "topic")
_PARTITION = ("group", "topic", "partition")
_LABELS = {"none": _GROUP, "topic": _TOPIC, "partition": _PARTITION}
_READS_A_PIECE = 10  # of the log between two turns of the event loop
_UNDATED = -1  # a record without a time
_MS = 1000


class _Place(NamedTuple):
    """A share-partition whose topic is there."""

    labels: tuple[str, str, str]
    share: SharePartition
    partition: Partition
    traffic: ShareTraffic


def of_share_groups(services: Services, granularity: str) -> Families:
    """Every family of share groups; those of records as fine as asked for."""
    yield from _groups(services)
    yield from _counters(services, granularity)
    if granularity != "none":
        yield (
            Family("headrace_share_group_lag_sum", "gauge",
                   "Records not finished, of all partitions.", _TOPIC),
            _lags(services),
        )  # fmt: skip
    if granularity == "partition":
        yield from _partitions(services)


# ---- groups


def _groups(services: Services) -> Families:
    shares = services.shares
    sessions = Counter(group for group, _ in shares.sessions.sessions)
    yield (
        Family("headrace_share_groups", "gauge", "Share groups by state.", ("state",)),
        _states(services),
    )
    yield (
        Family("headrace_share_group_members", "gauge", "Members of a share group.", _GROUP),
        _members(services),
    )
    yield (
        Family("headrace_share_group_partitions", "gauge",
               "Share-partitions of a share group.", _GROUP),
        (Sample((name,), count) for name, count in _sizes(services)),
    )  # fmt: skip
    yield (
        Family("headrace_share_group_sessions", "gauge",
               "Share sessions open in a share group.", _GROUP),
        (Sample((name,), count) for name, count in sessions.items()),
    )  # fmt: skip
    yield single("headrace_share_sessions", "Share sessions open.", len(shares.sessions.sessions))
    yield (
        Family("headrace_share_group_fetches_waiting", "gauge",
               "ShareFetches, and acquisitions of leases, that wait for records.", _GROUP),
        (Sample((name,), shares.waiting(name)) for name, _ in _sizes(services)),
    )  # fmt: skip
    yield (
        Family("headrace_share_group_windows_full", "gauge",
               "Share-partitions of a group that take no new records.", _GROUP),
        _full_windows(services),
    )  # fmt: skip


def _members(services: Services) -> Samples:
    for shard in services.shares.shards:
        machine = services.shares.machine_of(shard)
        for name, group in list(machine.groups.items()):
            yield Sample((name,), len(group.members)) if services.shares.exists(name) else None


def _sizes(services: Services) -> Iterator[tuple[str, int]]:
    """Yield the groups with share-partitions, and how many each has."""
    for shard in services.shares.shards:
        machine = services.shares.machine_of(shard)
        for name in machine.with_partitions():
            yield name, len(machine.partitions_of(name))


def _states(services: Services) -> Samples:
    states: dict[str, str] = {}
    for name, state in services.shares.walk():
        states[name] = state
        yield None
    counts = Counter(states.values())
    for state in (EMPTY, STABLE):
        yield Sample((state,), counts[state])


def _full_windows(services: Services) -> Samples:
    counts: Counter[str] = Counter()
    for share in _shares(services):
        counts[share.key.group] += _is_full(services, share)
        yield None
    for group, count in counts.items():
        yield Sample((group,), count)


# ---- counters

_COUNTERS: tuple[tuple[str, str, Meter], ...] = (
    ("acquired", "Records given to a member or lease; each delivery counts.", Meter.ACQUIRED),
    ("accepted", "Records that were accepted.", Meter.ACCEPTED),
    ("released", "Records given back by their holder, or because its session ended.",
     Meter.RELEASED),
    ("rejected", "Records that were rejected.", Meter.REJECTED),
    ("renewed", "Records whose lock was renewed.", Meter.RENEWED),
    ("expired", "Records whose lock ended before they were acknowledged.", Meter.EXPIRED),
    ("without_dead_letter", "Records rejected or given up of which there is no dead letter.",
     Meter.WITHOUT_DEAD_LETTER),
    ("dead_lettered", "Records of which a dead letter was written.", Meter.DEAD_LETTERS),
)  # fmt: skip

_ARCHIVED = (
    ("rejected", Meter.ARCHIVED_REJECTED),
    ("limit", Meter.ARCHIVED_LIMIT),
    ("retention", Meter.ARCHIVED_RETENTION),
    ("gap", Meter.ARCHIVED_GAP),
)


def _counters(services: Services, granularity: str) -> Families:
    labels = _LABELS[granularity]
    for name, doc, meter in _COUNTERS:
        yield (
            Family(f"headrace_share_records_{name}", "counter", doc, labels),
            _counted(services, len(labels), [((), meter)]),
        )
    archived = [((reason,), meter) for reason, meter in _ARCHIVED]
    yield (
        Family("headrace_share_records_archived", "counter",
               "Records that no member gets any more without having been accepted.",
               (*labels, "reason")),
        _counted(services, len(labels), archived),
    )  # fmt: skip


def _counted(
    services: Services, depth: int, meters: Sequence[tuple[tuple[str, ...], Meter]]
) -> Samples:
    """Counters, summed up over all that has the same first labels."""
    sums: dict[tuple[str, ...], int] = {}
    for place in _places(services):
        for more, meter in meters:
            labels = (*place.labels[:depth], *more)
            value = place.traffic.counts[meter]
            if depth == len(place.labels):
                yield Sample(labels, value)
            else:
                sums[labels] = sums.get(labels, 0) + value
                yield None
    for labels, total in sums.items():
        yield Sample(labels, total)


# ---- gauges of share-partitions


def _partitions(services: Services) -> Families:
    now = services.clock.now().wall

    def each(value: Callable[[_Place], float | None]) -> Samples:
        for place in _places(services):
            found = value(place)
            yield None if found is None else Sample(place.labels, found)

    yield (
        Family("headrace_share_partition_start_offset", "gauge",
               "SPSO: the first offset that a share group has not finished.", _PARTITION),
        each(lambda one: one.share.start),
    )  # fmt: skip
    yield (
        Family("headrace_share_partition_start_deliveries", "gauge",
               "How often the record at SPSO was delivered.", _PARTITION),
        each(_start_deliveries),
    )  # fmt: skip
    yield (
        Family("headrace_share_partition_records", "gauge",
               "Records in flight, from SPSO to SPEO, by state.", (*_PARTITION, "state")),
        (
            Sample((*place.labels, state.name.lower()), place.share.runs.records[state])
            for place in _places(services)
            for state in State
        ),
    )  # fmt: skip
    yield (
        Family("headrace_share_partition_window_full", "gauge",
               "1 where no new records are acquired, because too many are not finished.",
               _PARTITION),
        each(lambda one: int(_is_full(services, one.share))),
    )  # fmt: skip
    yield (
        Family("headrace_share_partition_window_full_since_seconds", "gauge",
               "When it was first seen full, in Unix time; none where it is not.", _PARTITION),
        each(lambda one: None if one.traffic.full_since is None else one.traffic.full_since / _MS),
    )  # fmt: skip
    yield (
        Family("headrace_share_partition_lag", "gauge",
               "Records not finished, up to the end of the log.", _PARTITION),
        each(_lag),
    )  # fmt: skip
    yield (
        Family("headrace_share_partition_oldest_unfinished_age_seconds", "gauge",
               "Age of the record at SPSO, by its batch's timestamp; none where all are finished.",
               _PARTITION),
        _ages(services, now),
    )  # fmt: skip


def _start_deliveries(one: _Place) -> float:
    status = one.share.runs.at(one.share.start)
    return 0 if status is None else status.deliveries


def _lag(one: _Place) -> int | None:
    if not one.partition.is_open:  # it is damaged, or nobody has used it yet
        return None
    return max(0, one.partition.high_watermark - one.share.start - one.share.finished)


def _lags(services: Services) -> Samples:
    sums: dict[tuple[str, str], int] = {}
    for place in _places(services):
        lag = _lag(place)
        if lag is not None:
            sums[place.labels[:2]] = sums.get(place.labels[:2], 0) + lag
        yield None
    for labels, total in sums.items():
        yield Sample(labels, total)


def _ages(services: Services, now: WallMs) -> Samples:
    for place in _places(services):
        start = place.share.start
        if not place.partition.is_open or start >= place.partition.high_watermark:
            yield None
            continue
        if place.traffic.dated is None or place.traffic.dated[0] != start:
            place.traffic.dated = start, _time_of(place.partition, start)
            for _ in range(PIECE_SAMPLES // _READS_A_PIECE):
                yield None
        written = place.traffic.dated[1]
        age = max(0, age_ms(WallMs(written), now)) / _MS
        yield None if written == _UNDATED else Sample(place.labels, age)


def _time_of(partition: Partition, offset: int) -> int:
    """The timestamp of the batch that holds or follows an offset."""
    try:
        piece = partition.log.read(offset, 1)
    except (OffsetOutOfRange, OSError):  # it is being removed, or damaged, which is told elsewhere
        return _UNDATED
    return piece.headers[0].base_timestamp if piece.headers else _UNDATED


# ---- walks


def _is_full(services: Services, share: SharePartition) -> bool:
    return share.unfinished >= services.shares.window(share)


def _shares(services: Services) -> Iterator[SharePartition]:
    """Every share-partition; they may come and go between two steps."""
    for shard in services.shares.shards:
        machine = services.shares.machine_of(shard)
        for key in list(machine.partitions):
            share = machine.partitions.get(key)
            if share is not None:
                yield share


def _places(services: Services) -> Iterator[_Place]:
    """Those whose topic and partition are there, likewise."""
    topics, meters = services.catalog.topics_by_id, services.shares.meters
    for share in _shares(services):
        key = share.key
        topic = topics.get(key.topic_id)
        partition = services.partitions.get(key.topic_id, key.partition)
        if topic is not None and partition is not None:
            labels = (key.group, topic.name, str(key.partition))
            yield _Place(labels, share, partition, meters.of(key))
