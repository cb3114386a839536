"""Partitions as options name them: `topic`, all of them, or `topic:0,1,2`.

Source: GroupOffsetsResetter.parseTopicsWithPartitions of Kafka 4.3.
"""

from collections.abc import Iterable

from headrace.cli.ending import Trouble

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


def _number(text: str, argument: str) -> int:
    digits = text.removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdigit()) or abs(int(text)) > _PARTITION_MAX:
        raise Trouble(
            f"Invalid partition '{text}' specified in topic arg '{argument}'; write numbers with "
            "commas between, e.g. orders:0,1"
        )
    return int(text)
