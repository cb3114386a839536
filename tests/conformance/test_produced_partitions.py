"""Keys go to the partitions that Java's own code names."""

import random

import pyarrow as pa
import pytest

from headrace.client.produce.partitioning import by_key

from .conftest import RunJava

SIZES = (*range(40), 1000)


@pytest.mark.parametrize("count", [1, 7, 12, 1000])
def test_partitions_are_those_of_java_s_producer(run_java: RunJava, count: int) -> None:
    dice = random.Random(count)
    keys = [dice.randbytes(dice.choice(SIZES)) for _ in range(10_000)]
    done = run_java("JavaPartitions", str(count), stdin="".join(f"{key.hex()}\n" for key in keys))
    assert done.returncode == 0, done.stderr
    assert by_key(pa.array(keys, pa.binary()), count).tolist() == [*map(int, done.stdout.split())]
