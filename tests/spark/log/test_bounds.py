"""How users say where reading starts and ends."""

from collections.abc import Callable

import pytest

from headrace.client.offsets import OffsetSpec
from headrace.client.resets import Strategy
from headrace.spark.log import bounds
from headrace.spark.log.bounds import Bound, Committed, Offsets, Time, Times


@pytest.mark.parametrize(
    ("read", "text", "meant"),
    [
        (bounds.starting_offsets, "earliest", OffsetSpec.EARLIEST),
        (bounds.starting_offsets, "LATEST", OffsetSpec.LATEST),
        (bounds.starting_offsets, "earliest_on_start", Strategy.EARLIEST_ON_START),
        (bounds.starting_offsets, "Latest_On_Start", Strategy.LATEST_ON_START),
        (bounds.starting_offsets, "safe_latest", Strategy.SAFE_LATEST),
        (bounds.starting_offsets, "committed", Committed(OffsetSpec.EARLIEST)),
        (bounds.starting_offsets, "group", Committed(OffsetSpec.EARLIEST)),
        (bounds.starting_offsets, "committed, latest", Committed(OffsetSpec.LATEST)),
        (bounds.starting_offsets, "Committed,Earliest", Committed(OffsetSpec.EARLIEST)),
        (
            bounds.starting_offsets,
            '{"Orders":{"0":23,"1":-2},"b":{"0":-1}}',
            Offsets({("Orders", 0): 23, ("Orders", 1): -2, ("b", 0): -1}),
        ),
        (bounds.ending_offsets, "latest", OffsetSpec.LATEST),
        (bounds.ending_offsets, '{"t":{"0":5}}', Offsets({("t", 0): 5})),
        (bounds.timestamp, "1790000000000", Time(1_790_000_000_000)),
        (bounds.timestamps, '{"t":{"0":7,"1":0}}', Times({("t", 0): 7, ("t", 1): 0})),
    ],
)
def test_what_is_said_is_meant(read: Callable[[str], Bound], text: str, meant: Bound) -> None:
    assert read(text) == meant


def test_partitions_are_assigned_once_and_sorted() -> None:
    assert bounds.assignment('{"b":[1,0,1],"a":[2]}') == (("a", 2), ("b", 0), ("b", 1))


@pytest.mark.parametrize(
    ("read", "text", "told"),
    [
        (bounds.starting_offsets, "first", "give 'earliest', 'latest', 'earliest_on_start', "),
        (bounds.starting_offsets, "committed,first", "'safe_latest', 'committed' .or 'committed,"),
        (bounds.starting_offsets, "safe-latest", "'latest_on_start', 'safe_latest', "),
        (bounds.starting_offsets, "none", "give 'earliest', 'latest', "),
        (bounds.starting_offsets, "nearest", "a value of 'offset.reset.strategy.offset-out-of-ra"),
        (bounds.ending_offsets, "safe_latest", "give 'earliest', 'latest' or offsets"),
        (bounds.ending_offsets, "committed", "give 'earliest', 'latest' or offsets"),
        (bounds.starting_offsets, "{", "give a number for each partition"),
        (bounds.starting_offsets, "{}", "give a number for each partition"),
        (bounds.starting_offsets, '{"t":[0]}', "give a number for each partition"),
        (bounds.starting_offsets, '{"t":{"x":0}}', "give a number for each partition"),
        (bounds.starting_offsets, '{"t":{"0":-3}}', "give a number for each partition"),
        (bounds.starting_offsets, '{"t":{"0":true}}', "give a number for each partition"),
        (bounds.starting_offsets, '{"t":{"0":1.5}}', "give a number for each partition"),
        (bounds.timestamp, "yesterday", "give milliseconds since 1970"),
        (bounds.timestamps, '{"t":{"0":-1}}', "give a number for each partition"),
        (bounds.assignment, "t", "give partitions by topic"),
        (bounds.assignment, "[]", "give partitions by topic"),
        (bounds.assignment, '{"t":[]}', "give partitions by topic"),
        (bounds.assignment, '{"t":["0"]}', "give partitions by topic"),
        (bounds.assignment, '{"t":[-1]}', "give partitions by topic"),
        (bounds.timestamp, f"{2**63}", f"give at most {2**63 - 1}"),
        (bounds.timestamps, f'{{"t":{{"0":{2**63}}}}}', f"give at most {2**63 - 1}"),
        (bounds.starting_offsets, f'{{"t":{{"0":{2**63}}}}}', f"give at most {2**63 - 1}"),
        (bounds.ending_offsets, f'{{"t":{{"{2**31}":0}}}}', f"give at most {2**31 - 1}"),
        (bounds.assignment, f'{{"t":[{2**31}]}}', f"give at most {2**31 - 1}"),
    ],
)
def test_what_cannot_be_meant_is_told(read: Callable[[str], object], text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read(text)
