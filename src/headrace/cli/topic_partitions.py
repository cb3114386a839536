"""Partitions as options name them, `topic` for all or `topic:0,1,2`, and as tables show them.

Source: GroupOffsetsResetter.parseTopicsWithPartitions of Kafka 4.3.
"""

from collections.abc import Iterable

from headrace.cli.ending import Trouble
from headrace.cli.table import MISSING
from headrace.client.offsets import TopicPartition

_PARTITION_MAX = 2**31 - 1


def named_partitions(arguments: Iterable[str]) -> dict[str, list[int] | None]:
    """The partitions of each topic in the order given, once each; None for all of a topic.

    Raises: Trouble.
    """
    found: dict[str, list[int] | None] = {}
    for argument in arguments:
        topic, colon, listed = argument.partition(":")
        if not colon:
            found[topic] = None
            continue
        if not listed or ":" in listed:
            raise Trouble(
                f"Invalid topic arg '{argument}', expected topic name and partitions, e.g. "
                "orders:0,1"
            )
        partitions = [_number(one, argument) for one in listed.split(",")]
        known = found.get(topic, [])
        if known is not None:
            found[topic] = list(dict.fromkeys([*known, *partitions]))
    return found


def spelled(place: TopicPartition) -> str:
    """A partition as Kafka's tools write it."""
    return f"{place[0]}-{place[1]}"


def assigned(assignment: Iterable[TopicPartition] | None) -> str:
    """An assignment as Kafka's tools write it: `orders:0,1;payments:0`."""
    parts = [f"{topic}:{','.join(map(str, its))}" for topic, its in of_topics(assignment).items()]
    return ";".join(parts) or MISSING


def of_topics(assignment: Iterable[TopicPartition] | None) -> dict[str, list[int]]:
    """The partitions by topic, both in order."""
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(assignment or ()):
        found.setdefault(topic, []).append(partition)
    return found


def _number(text: str, argument: str) -> int:
    digits = text.removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdigit()) or abs(int(text)) > _PARTITION_MAX:
        raise Trouble(
            f"Invalid partition '{text}' specified in topic arg '{argument}'; write numbers with "
            "commas between, e.g. orders:0,1"
        )
    return int(text)
