"""Partitions are those that Java's producer would choose."""

import random

import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2 as murmur2_of_another_client

from headrace.client.produce.partitioning import Partitioner, by_key, murmur2

# Source: UtilsTest.testMurmur2 (Kafka 4.3).
FROM_JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_hashes_are_java_s() -> None:
    found = murmur2(pa.array(list(FROM_JAVA), pa.binary()))
    assert found.astype("int32").tolist() == list(FROM_JAVA.values())


def test_hashes_of_any_bytes_are_those_of_another_client() -> None:
    dice = random.Random(7)
    keys = [dice.randbytes(dice.choice((0, 1, 2, 3, 4, 5, 9, 16, 37, 1000))) for _ in range(500)]
    found = murmur2(pa.array(keys, pa.binary()))
    assert found.tolist() == [murmur2_of_another_client(key) for key in keys]


def test_a_slice_hashes_as_what_is_in_it() -> None:
    whole = pa.array([b"one", b"twelve", b"a hundred", b""], pa.binary())
    assert murmur2(whole.slice(1, 2)).tolist() == murmur2(whole).tolist()[1:3]


def test_text_hashes_as_its_utf_8_and_no_keys_as_nothing() -> None:
    text = pa.array(["straße", "x"])
    assert by_key(text, 7).tolist() == by_key(text.cast(pa.binary()), 7).tolist()
    assert murmur2(pa.array([], pa.binary())).tolist() == []


def test_a_named_partition_wins_over_the_key_and_the_key_over_the_rest() -> None:
    keys = pa.array([b"a", b"a", None, None, b"b"], pa.binary())
    named = pa.array([3, None, 2, None, None], pa.int32())
    chosen = Partitioner(1).choose("t", keys, named, 5).tolist()
    of_keys = by_key(pa.array([b"a", b"b"], pa.binary()), 5).tolist()
    assert chosen == [3, of_keys[0], 2, 1, of_keys[1]]


def test_rows_without_a_key_stay_together_and_move_on_with_the_next_write() -> None:
    partitioner = Partitioner(4)
    keys = pa.nulls(3, pa.binary())
    assert [partitioner.choose("t", keys, None, 5).tolist() for _ in range(3)] == [
        [4, 4, 4],
        [0, 0, 0],
        [1, 1, 1],
    ]


def test_rows_that_name_their_partition_do_not_move_the_others_on() -> None:
    partitioner = Partitioner(0)
    partitioner.choose("t", None, pa.array([2], pa.int32()), 3)
    assert partitioner.choose("t", pa.nulls(1, pa.binary()), None, 3).tolist() == [0]


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_partition_that_is_not_there_is_named_with_the_remedy(wrong: int) -> None:
    named = pa.array([0, wrong], pa.int32())
    with pytest.raises(ValueError, match=rf"partition {wrong} .* 't', which has 3 .*; add part"):
        Partitioner(0).choose("t", None, named, 3)
