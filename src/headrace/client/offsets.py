"""Offsets of a log by what is asked: its ends, a point in time, its newest record.

Source: ListOffsets (KIP-79; the newest record by KIP-734).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any

from headrace.client.connection import Address, Cluster
from headrace.client.errors import STORAGE_ERRORS, BrokerError, check_log, left_out

TopicPartition = tuple[str, int]

_LIST_OFFSETS = 2
_VERSIONS, _VERSIONS_OF_MAX_TIMESTAMP = range(2, 8), range(7, 8)
_NOT_A_REPLICA = -1
_NONE = -1
_EPOCH, _MS = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


class OffsetSpec(IntEnum):
    """What else than a point in time can be asked for, in the numbers of ListOffsets."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3


Spec = OffsetSpec | int | datetime


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """An offset that was asked for; None where no record is that young.

    `timestamp` (ms since 1970) is that of the record, None for an end of the log.
    """

    offset: int | None
    timestamp: int | None
    leader_epoch: int | None


ListedOffsets = tuple[dict[TopicPartition, ListedOffset], dict[TopicPartition, BrokerError]]
"""Offsets, and the errors of the partitions that the broker cannot read."""


def list_offsets(
    cluster: Cluster, asked: Mapping[TopicPartition, Spec], *, read_committed: bool = False
) -> dict[TopicPartition, ListedOffset]:
    """The offset of each partition that is asked for, in the order of `asked`.

    Args: a value of `asked` is an `OffsetSpec`, or a point in time (a datetime that knows its
    zone, or ms since 1970), whose first record at or after it is meant. With `read_committed` the
    end of the log is that of finished transactions.

    Raises: `TypeError` for what is no mapping; `ValueError` for a datetime without a zone or a
    negative time, `BrokerError` 3 for a partition that does not exist, -1 for one that the
    response leaves out, `Unsupported` for MAX_TIMESTAMP on Kafka before 3.0; otherwise as
    `Cluster`.
    """
    return _list(cluster, asked, read_committed=read_committed, skips_unreadable=False)[0]


def list_readable_offsets(
    cluster: Cluster, requested: Mapping[TopicPartition, Spec]
) -> ListedOffsets:
    """List offsets as `list_offsets`, also where the broker cannot read some of the partitions.

    Returns: offsets, without those of partitions that the broker cannot read, and why it cannot.

    Raises: as `list_offsets`.
    """
    return _list(cluster, requested, read_committed=False, skips_unreadable=True)


def _list(
    cluster: Cluster,
    asked: Mapping[TopicPartition, Spec],
    *,
    read_committed: bool,
    skips_unreadable: bool,
) -> ListedOffsets:
    _must_be_mapping(asked)
    timestamps = {partition: _timestamp(spec) for partition, spec in asked.items()}

    def attempt() -> ListedOffsets:
        of_leader: dict[Address, list[TopicPartition]] = defaultdict(list)
        for topic, partition in timestamps:
            of_leader[cluster.leader(topic, partition)].append((topic, partition))
        found: dict[TopicPartition, ListedOffset] = {}
        errors: dict[TopicPartition, BrokerError] = {}
        for leader, partitions in of_leader.items():
            wanted = {partition: timestamps[partition] for partition in partitions}
            listed, unreadable = _listed(cluster, leader, wanted, read_committed=read_committed)
            if unreadable and not skips_unreadable:
                raise next(iter(unreadable.values()))
            found |= listed
            errors |= unreadable
        listed = {partition: found[partition] for partition in timestamps if partition in found}
        return listed, errors

    return cluster.retrying("listing offsets", attempt) if timestamps else ({}, {})


def offsets_at(
    cluster: Cluster, to: Mapping[TopicPartition, Spec]
) -> dict[TopicPartition, ListedOffset]:
    """As `list_offsets`, but the end of the log for a partition without a record that young.

    Raises: as `list_offsets`.
    """
    listed = list_offsets(cluster, to)
    young = {one: OffsetSpec.LATEST for one, found in listed.items() if found.offset is None}
    return listed | list_offsets(cluster, young)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partitions of each topic, both in the order given."""
    found: dict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        found[topic].append(partition)
    return dict(found)


def _must_be_mapping(asked: object) -> None:
    if not isinstance(asked, Mapping):
        raise TypeError(
            f"offsets are asked for with {asked!r}; give a mapping of (topic, partition) to an "
            "OffsetSpec, a datetime or ms since 1970, as {('jobs', 0): OffsetSpec.EARLIEST}"
        )


def _timestamp(spec: Spec) -> int:
    if isinstance(spec, OffsetSpec):
        return int(spec)
    if isinstance(spec, datetime):
        if spec.tzinfo is None:
            raise ValueError(f"{spec.isoformat()} has no time zone; add one, e.g. tzinfo=UTC")
        spec = (spec - _EPOCH) // _MS
    if spec < 0:
        raise ValueError(f"{spec} is no time in ms since 1970; use an OffsetSpec")
    return spec


def _listed(
    cluster: Cluster, leader: Address, wanted: Mapping[TopicPartition, int], *, read_committed: bool
) -> ListedOffsets:
    newest = OffsetSpec.MAX_TIMESTAMP in wanted.values()
    versions = _VERSIONS_OF_MAX_TIMESTAMP if newest else _VERSIONS
    topics = [
        {
            "name": topic,
            "partitions": [
                {"partition_index": one, "timestamp": wanted[topic, one]} for one in partitions
            ],
        }
        for topic, partitions in by_topic(wanted).items()
    ]
    answer = cluster.ask(
        _LIST_OFFSETS,
        cluster.newest(_LIST_OFFSETS, versions, address=leader),
        {"replica_id": _NOT_A_REPLICA, "isolation_level": int(read_committed), "topics": topics},
        address=leader,
    )
    found: dict[TopicPartition, ListedOffset] = {}
    errors: dict[TopicPartition, BrokerError] = {}
    for topic in answer.topics:
        for one in topic.partitions:
            place = topic.name, int(one.partition_index)
            try:
                check_log(one.error_code, f"listing offsets of {topic.name}-{one.partition_index}")
            except BrokerError as error:
                if error.code not in STORAGE_ERRORS:
                    raise
                errors[place] = error
            else:
                found[place] = _offset(one)
    for name, number in wanted:
        if (name, number) not in found and (name, number) not in errors:
            raise left_out(f"{name}-{number}", "listing offsets")
    return found, errors


def _offset(one: Any) -> ListedOffset:
    return ListedOffset(
        None if one.offset == _NONE else int(one.offset),
        None if one.timestamp == _NONE else int(one.timestamp),
        None if getattr(one, "leader_epoch", _NONE) == _NONE else int(one.leader_epoch),
    )
