"""The groups that a table is about, in portions of a bounded size."""

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError, Unsupported
from headrace.client.groups import GroupListing, list_groups
from headrace.spark.tables.wanted import Wanted
from headrace.wire.error_codes import ErrorCode

Row = dict[str, Any]
SHARE = "share"
_PORTION = 100  # groups: what they have is in memory at the same time
_MS_MAX = 253_402_300_799_999  # the end of the year 9999, the last that Spark prints

_ABSENT = {ErrorCode.group_id_not_found, ErrorCode.invalid_group_id}


def listed(cluster: Cluster, wanted: Wanted, *, with_state: bool = False) -> list[GroupListing]:
    """The groups of the cluster that are wanted, by name; `with_state` of the wanted states only.

    Raises: as `Cluster`.
    """
    try:
        found = list_groups(cluster, states=sorted(wanted.state or ()) if with_state else ())
    except Unsupported:
        found = list_groups(cluster)  # Kafka before 2.6: Spark's filter does it
    names = set(wanted.names(one.group for one in found))
    return [one for one in found if one.group in names]


def portions(cluster: Cluster, wanted: Wanted, *, share: bool) -> Iterator[Sequence[str]]:
    """The names of share groups, or of all others; without asking when they are given.

    A name that is given may be that of no group, or of one of the other kind.
    Raises: as `Cluster`.
    """
    if wanted.group is not None:
        names = wanted.names(sorted(wanted.group))
    else:
        every = listed(cluster, wanted)
        names = [one.group for one in every if is_share(one) == share]
    yield from parts(names)


def parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """The names in portions."""
    for start in range(0, len(names), _PORTION):
        yield names[start : start + _PORTION]


def is_share(one: GroupListing) -> bool:
    """Whether a group of the list is a share group; a broker that tells no types has none."""
    return (one.type or "").lower() == SHARE


def is_absent(error: BrokerError) -> bool:
    """Whether an error means no more than that there is no such group, or one of another kind."""
    return error.code in _ABSENT


def sorted_places(places: Any) -> list[Row]:
    """An assignment as a column."""
    return [{"topic": topic, "partition": partition} for topic, partition in sorted(places)]


def moment(ms: int | None) -> int | None:
    """A time in ms as Arrow's timestamps have it, in microseconds; one too far off is the last."""
    return None if ms is None else min(ms, _MS_MAX) * 1000
