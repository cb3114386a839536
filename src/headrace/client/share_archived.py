"""What a share group archived without a dead letter: listed, and cleared when it was seen.

Source: ListArchivedRecords (20907) and ClearArchivedRecords (20908) of Headrace, see
`wire/share_archived.py`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from headrace.client.connection import Cluster
from headrace.client.names import several
from headrace.client.nodes import Node, at_coordinator
from headrace.client.offsets import TopicPartition
from headrace.client.own_apis import ask_own
from headrace.wire.share_archived import (
    VERSION,
    ClearArchivedRequest,
    ClearArchivedResponse,
    ListArchivedRequest,
    ListArchivedResponse,
    Partition,
    Place,
)

Answer = TypeVar("Answer", ListArchivedResponse, ClearArchivedResponse)


_PLACES_MAX = 5_000  # in a request; by default, a broker accepts 10,000 elements


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """Records `first` to `last`, both included, that were archived without a dead letter.

    `member` had them last, None where nobody had; `archived_at` is ms since 1970. `readable` is how
    many of them are in the log still, the last ones; None where the broker cannot tell.
    """

    topic: str
    partition: int
    first: int
    last: int
    delivery_count: int
    reason: str
    member: str | None
    archived_at: int
    readable: int | None

    @property
    def records(self) -> int:
        """How many offsets it spans."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class ArchivedRecords:
    """The list of a share group, or a part of it: runs by topic, partition and age.

    `dropped` counts the older records of partitions that the list had no room for. `through` has
    how far the list was read, for `clear_archived_share_records`.
    """

    runs: tuple[ArchivedRun, ...]
    dropped: Mapping[TopicPartition, int]
    through: Mapping[TopicPartition, int]


def list_archived_share_records(
    cluster: Cluster, group: str, topics: Iterable[str] | None = None
) -> ArchivedRecords:
    """What a share group archived without a dead letter, in all topics unless some are named.

    That is what was rejected, what ran out of deliveries, and what left the log before it was
    finished; not what there is a dead letter of.
    Raises: `BrokerError` 69 when there is no such share group, 24; `Unsupported` on any other
    broker than Headrace; otherwise as `Cluster`.
    """
    what = f"listing archived records of share group {group!r}"
    wanted = () if topics is None else tuple(dict.fromkeys(several(topics, "topics")))
    runs: list[ArchivedRun] = []
    dropped: dict[TopicPartition, int] = {}
    through: dict[TopicPartition, int] = {}
    after, more = Place("", -1), topics is None or bool(wanted)
    while more:
        request = ListArchivedRequest(group, wanted, after)
        answer = _asked(cluster, group, request, ListArchivedResponse, what)
        for one in answer.partitions:
            place = (one.topic, int(one.partition))
            runs += _runs(one)
            if one.dropped:
                dropped[place] = one.dropped
            number = one.runs[-1].number if one.runs else through.get(place, 0)
            through[place] = number
            after = Place(one.topic, one.partition, number)
        more = bool(answer.more)
    return ArchivedRecords(tuple(runs), dropped, through)


def clear_archived_share_records(cluster: Cluster, group: str, seen: ArchivedRecords) -> None:
    """Clear a list as far as it was seen; what was archived since stays in it.

    Raises: as `list_archived_share_records`.
    """
    places = tuple(Place(*place, number) for place, number in seen.through.items())
    what = f"clearing archived records of share group {group!r}"
    for begin in range(0, max(len(places), 1), _PLACES_MAX):
        request = ClearArchivedRequest(group, places[begin : begin + _PLACES_MAX])
        _asked(cluster, group, request, ClearArchivedResponse, what)


def _runs(one: Partition) -> list[ArchivedRun]:
    known, start = one.log_start >= 0, one.log_start
    return [
        ArchivedRun(
            one.topic,
            int(one.partition),
            run.first,
            run.last,
            run.delivery_count,
            run.reason,
            run.member or None,
            run.archived_at,
            max(run.last - max(run.first, start) + 1, 0) if known else None,
        )
        for run in one.runs
    ]


def _asked(
    cluster: Cluster,
    group: str,
    request: ListArchivedRequest | ClearArchivedRequest,
    answer: type[Answer],
    what: str,
) -> Answer:
    """The answer of the group's coordinator. Raises: `BrokerError`; as `Cluster`."""

    def asking(node: Node) -> Answer:
        return ask_own(cluster, node.address, (request.KEY, VERSION), request, answer, what)

    return at_coordinator(cluster, group, what, asking)
