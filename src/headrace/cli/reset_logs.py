"""What --reset-offsets must know of logs: which partitions, their ends, points in time."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.cli.ending import Trouble, tell
from headrace.cli.topic_partitions import named_partitions, spelled
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.log_ends import Ends, readable_ends_of
from headrace.client.offsets import TopicPartition, list_readable_offsets
from headrace.client.topics import describe_topics

_TIME_MS_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Logs:
    """What is known of partitions; `since` is None unless a time was asked for.

    `errors` has those that the broker cannot read.
    """

    ends: Mapping[TopicPartition, Ends]
    since: Mapping[TopicPartition, int] | None
    errors: Mapping[TopicPartition, BrokerError]

    def require(self, places: Sequence[TopicPartition], group: str) -> None:
        """Check that the offsets of a group can be reset in each of the partitions.

        Raises: Trouble when one of the partitions has no log, or one that the broker cannot read.
        """
        unreadable = [spelled(place) for place in places if place in self.errors]
        if unreadable:
            raise Trouble(
                f"no offset of group '{group}' was set: the broker cannot read "
                f"{', '.join(unreadable)} (KAFKA_STORAGE_ERROR); see its log, and if it is "
                "Headrace, run `headrace check DATA_DIR` on its machine; or name only the other "
                "partitions"
            )
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
    ends, errors = readable_ends_of(cluster, places)
    if since_ms is None:
        return Logs(ends, None, errors)
    since: dict[TopicPartition, int] = {}
    there = [place for place, one in ends.items() if one != Ends() and place not in errors]
    listed, more = list_readable_offsets(
        cluster, dict.fromkeys(there, min(max(since_ms, 0), _TIME_MS_MAX))
    )
    for (topic, partition), found in listed.items():
        offset = found.offset
        if offset is None:
            tell(
                command,
                f"Warn: Partition {partition} from topic {topic} has no record of that time or "
                "later. Falling back to latest known offset.",
            )
            offset = _known(ends[topic, partition].latest)
        since[topic, partition] = offset
    return Logs(ends, since, errors | more)


def _known(end: int | None) -> int:
    assert end is not None, "partitions without ends were refused before"
    return end
