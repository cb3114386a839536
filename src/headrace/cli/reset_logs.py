"""What --reset-offsets must know of logs: which partitions, their ends, points in time."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from headrace.cli.ending import Trouble, tell
from headrace.cli.topic_partitions import named_partitions, spelled
from headrace.client.connection import Cluster
from headrace.client.log_ends import Ends, ends_of
from headrace.client.offsets import TopicPartition, list_offsets
from headrace.client.topics import describe_topics

_TIME_MS_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Logs:
    """What is known of partitions; `since` is empty unless a time was asked for."""

    ends: Mapping[TopicPartition, Ends]
    since: Mapping[TopicPartition, int]

    def require(self, places: Iterable[TopicPartition]) -> None:
        """Raises: Trouble when one of the partitions has no log."""
        absent = [spelled(place) for place in places if self.ends[place] == Ends()]
        if absent:
            raise Trouble(
                f'The partitions "{",".join(absent)}" do not exist, or have no leader; name those '
                "that do with --topic"
            )

    def earliest(self, place: TopicPartition) -> int:
        """The first offset that is kept in a log that there is."""
        return _known(self.ends[place].earliest)

    def latest(self, place: TopicPartition) -> int:
        """The offset after the last one in a log that there is."""
        return _known(self.ends[place].latest)


def named_logs(cluster: Cluster, arguments: Collection[str]) -> list[TopicPartition]:
    """The partitions that --topic names. Raises: Trouble for a topic that does not exist."""
    named = named_partitions(arguments)
    found = describe_topics(cluster, named)
    for topic in named.keys() - found.keys():
        raise Trouble(f"there is no topic {topic!r}; see headrace topics --list")
    return [
        (topic, number)
        for topic, numbers in named.items()
        for number in (
            numbers if numbers is not None else [one.partition for one in found[topic].partitions]
        )
    ]


def logs_of(
    cluster: Cluster, places: Iterable[TopicPartition], since_ms: int | None, *, command: str
) -> Logs:
    """The ends of all logs, and where the first record of a time or later is in each.

    The end stands for a log without such a record, which is told.
    """
    ends = ends_of(cluster, places)
    since: dict[TopicPartition, int] = {}
    if since_ms is None:
        return Logs(ends, since)
    there = [place for place, one in ends.items() if one != Ends()]
    for (topic, partition), found in list_offsets(
        cluster, dict.fromkeys(there, min(max(since_ms, 0), _TIME_MS_MAX))
    ).items():
        offset = found.offset
        if offset is None:
            tell(
                command,
                f"Warn: Partition {partition} from topic {topic} has no record of that time or "
                "later. Falling back to latest known offset.",
            )
            offset = _known(ends[topic, partition].latest)
        since[topic, partition] = offset
    return Logs(ends, since)


def _known(end: int | None) -> int:
    assert end is not None, "partitions without ends were refused before"
    return end
