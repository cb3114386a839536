"""Where a reader that keeps its own positions begins, and goes on: KIP-842 by plain requests.

The tables are those of `core/reset.py`; what they ask of the log is asked of a `Cluster`.
`headrace.Consumer` asks the same of librdkafka (`client/positions.py`).
"""

from collections.abc import Collection, Mapping

from headrace.client.connection import Cluster
from headrace.client.offsets import TopicPartition, list_offsets
from headrace.core.reset import Missing, OutOfRange, Outside, Reset, Strategy, decide, was_added
from headrace.core.types import WallMs

__all__ = ["OutOfRange", "Strategy", "goes_on", "starts"]

_EVER = 0  # ms since 1970: the first record with a timestamp is the first at or after it


def starts(
    cluster: Cluster,
    strategy: Strategy,
    logs: Mapping[TopicPartition, tuple[int, int]],
    since: int | None,
) -> dict[TopicPartition, int]:
    """Where partitions begin that have no position; those that the strategy refuses left out.

    Args: `logs` has the ends of each partition, the first offset and the one after the last;
    `since` is when their reader started, in ms since 1970 (None: it starts now).

    Raises: as `list_offsets`, if it has to be asked when the first records were written.
    """
    asks = strategy is Strategy.SAFE_LATEST and since is not None
    firsts = _first_records(cluster, logs) if asks else dict.fromkeys(logs)
    began = None if since is None else WallMs(since)
    found = {
        place: _place(decide(Missing(was_added(firsts[place], began)), strategy), log)
        for place, log in logs.items()
    }
    return {place: offset for place, offset in found.items() if offset is not None}


def goes_on(position: int, log: tuple[int, int], out_of_range: OutOfRange) -> int | None:
    """Where a reader at `position` reads on that was told once where to start, and no more.

    As `..._on_start` of both tables: what was said of the start says nothing of a position that is
    outside the log. None when that is refused.
    """
    reset = decide(Outside(position, *log), Strategy.NONE, out_of_range)
    return position if reset is Reset.KEEP else _place(reset, log)


def _place(reset: Reset, log: tuple[int, int]) -> int | None:
    start, end = log
    return {Reset.TO_EARLIEST: start, Reset.TO_LATEST: end}.get(reset)


def _first_records(
    cluster: Cluster, places: Collection[TopicPartition]
) -> dict[TopicPartition, WallMs | None]:
    """When the first record of each was written; None of one that has none with a timestamp."""
    listed = list_offsets(cluster, dict.fromkeys(places, _EVER))
    return {
        place: None if found.timestamp is None else WallMs(found.timestamp)
        for place, found in listed.items()
    }
