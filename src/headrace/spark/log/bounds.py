"""Where reading starts and ends, as users say it: ends of logs, offsets, times, a group's commits.

Each text is read into plain data; what it means in numbers is found out by `log/topics.py`.
Source: Spark "Structured Streaming + Kafka Integration Guide", options `startingOffsets` and so on.
"""

import json
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.client.offsets import OffsetSpec, TopicPartition
from headrace.client.reset_settings import OUT_OF_RANGE
from headrace.client.resets import Strategy
from headrace.spark.options import INT32_MAX, INT64_MAX, at_most

_LATEST, _EARLIEST = int(OffsetSpec.LATEST), int(OffsetSpec.EARLIEST)
_ENDS = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}
_STRATEGIES = {
    one.value: one
    for one in (Strategy.EARLIEST_ON_START, Strategy.LATEST_ON_START, Strategy.SAFE_LATEST)
}


@dataclass(frozen=True, slots=True)
class Offsets:
    """An offset for every partition; -2 is the start of its log, -1 the end."""

    of: dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Times:
    """A point in time (ms since 1970) for every partition."""

    of: dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Time:
    """One point in time (ms since 1970) for all partitions."""

    ms: int


@dataclass(frozen=True, slots=True)
class Committed:
    """What the group has committed; `otherwise` where it has nothing."""

    otherwise: OffsetSpec = OffsetSpec.EARLIEST


Bound: TypeAlias = OffsetSpec | Offsets | Times | Time | Committed | Strategy


def starting_offsets(text: str) -> Bound:
    """The value of `startingOffsets`. Raises: ValueError that says what may be given."""
    first, _, otherwise = (part.strip() for part in text.lower().partition(","))
    if first in {"committed", "group"} and (otherwise in _ENDS or not otherwise):
        return Committed(_ENDS[otherwise or "earliest"])
    if (strategy := _STRATEGIES.get(text.lower())) is not None:
        return strategy
    if text.lower() == "nearest":
        raise ValueError(f"it is a value of {OUT_OF_RANGE!r}; say here where to start")
    named = ", ".join(f"'{one}'" for one in _STRATEGIES)
    return _offsets(text, f"{named}, 'committed' (or 'committed,latest')")


def ending_offsets(text: str) -> Bound:
    """The value of `endingOffsets`. Raises: as `starting_offsets`."""
    return _offsets(text, "")


def timestamp(text: str) -> Time:
    """The value of `startingTimestamp` and `endingTimestamp`. Raises: ValueError."""
    if not text.isdecimal():
        raise ValueError("give milliseconds since 1970, e.g. 1790000000000")
    return Time(at_most(int(text), INT64_MAX))


def timestamps(text: str) -> Times:
    """The value of `startingOffsetsByTimestamp` and its like. Raises: ValueError."""
    return Times(_by_partition(text, lowest=0, example='{"orders":{"0":1790000000000}}'))


def assignment(text: str) -> tuple[TopicPartition, ...]:
    """The value of `assign`, sorted. Raises: ValueError."""
    example = 'give partitions by topic, e.g. {"orders":[0,1]}'
    found = []
    for topic, partitions in _object(text, example).items():
        if not isinstance(partitions, list) or not all(_whole(one, 0) for one in partitions):
            raise ValueError(example)
        found += [(topic, at_most(one, INT32_MAX)) for one in partitions]
    if not found:
        raise ValueError(example)
    return tuple(sorted(set(found)))


def _offsets(text: str, more: str) -> Bound:
    if text.lower() in _ENDS:
        return _ENDS[text.lower()]
    if not text.startswith("{"):
        known = ", ".join(filter(None, ("'earliest'", "'latest'", more)))
        raise ValueError(f'give {known} or offsets by partition, e.g. {{"orders":{{"0":23}}}}')
    return Offsets(_by_partition(text, lowest=_EARLIEST, example='{"orders":{"0":23,"1":-2}}'))


def _by_partition(text: str, *, lowest: int, example: str) -> dict[TopicPartition, int]:
    told = f"give a number for each partition, e.g. {example}"
    found = {}
    for topic, partitions in _object(text, told).items():
        if not isinstance(partitions, dict):
            raise ValueError(told)
        for partition, number in partitions.items():
            if not partition.isdecimal() or not _whole(number, lowest):
                raise ValueError(told)
            found[topic, at_most(int(partition), INT32_MAX)] = at_most(number, INT64_MAX)
    if not found:
        raise ValueError(told)
    return found


def _object(text: str, told: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise ValueError(told) from None
    if not isinstance(found, dict):
        raise ValueError(told)
    return found


def _whole(number: object, lowest: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= lowest
