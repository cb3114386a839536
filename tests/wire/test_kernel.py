"""Which kernel runs, and that both judge alike what nobody should send."""

import os
import random
import subprocess
import sys
from types import ModuleType

import pyarrow as pa
import pytest

from headrace.wire import batches, columns, columns_compiled
from headrace.wire.batches import CorruptBatch, Record
from headrace.wire.compression import Codec

MUTATIONS = int(os.environ.get("HEADRACE_MUTATIONS", "2000"))
EVERYTHING = {"first": 0, "last": (1 << 63) - 1}


def test_the_kernel_that_is_expected_runs() -> None:
    """CI sets the variable: a kernel that does not compile there is a failure, not a fallback."""
    expected = os.environ.get("HEADRACE_EXPECT_KERNEL")
    assert expected is None or expected == columns.KERNEL, (
        "no compiled kernel: the output of `pip install -v -e .` says why"
    )


def test_the_compiled_one_is_chosen_where_it_is() -> None:
    forced = os.environ.get("HEADRACE_KERNEL") == "numpy"
    compiled = columns_compiled.COMPILED and not forced
    assert ("compiled" if compiled else "numpy") == columns.KERNEL


@pytest.mark.parametrize(
    ("before", "environment"),
    [
        ("", {"HEADRACE_KERNEL": "numpy"}),
        # As where nothing was compiled and no Cython can run the source.
        ("import sys; sys.modules['headrace.wire._codec'] = None;", {}),
        ("import sys; sys.modules['headrace.wire.columns_compiled'] = None;", {}),
    ],
)
def test_numpy_runs_when_told_to_or_alone(before: str, environment: dict[str, str]) -> None:
    program = f"""{before}
from headrace.wire import batches, columns
data = batches.build([batches.Record(0, 1, b"k", b"v")])
rows = columns.decode(data, first=0, last=9, headers=True)
(again,) = columns.encode(rows, timestamp_ms=0, batch_bytes_max=1000)
assert again == data
print(columns.KERNEL)"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("numpy\n", "")


def test_the_delete_horizon_is_the_base_of_timestamps(kernel: ModuleType) -> None:
    """Attribute bit 6, KIP-534: the base timestamp is the horizon, deltas are to be added to it."""
    data = batches.build(
        [Record(0, 5000, b"k", None), Record(0, 7000, b"l", None)], attributes=0x40
    )
    found = kernel.decode(data, headers=True, **EVERYTHING)
    assert found.column("timestamp").cast("int64").to_pylist() == [5_000_000, 7_000_000]


def test_a_batch_that_compaction_emptied_has_no_rows(kernel: ModuleType) -> None:
    emptied = batches.build_encoded(
        b"", record_count=0, base_timestamp=-1, max_timestamp=9, base_offset=4
    )
    more = batches.build([Record(0, 1, None, b"v")], base_offset=9)
    assert kernel.decode(emptied, headers=True, **EVERYTHING).num_rows == 0
    found = kernel.decode(emptied + more, headers=True, **EVERYTHING)
    assert found.column("offset").to_pylist() == [9]


def test_a_count_that_no_batch_can_hold_takes_no_memory(kernel: ModuleType) -> None:
    data = batches.build_encoded(
        b"\x0c\x00\x00\x00\x01\x01\x00",
        record_count=(1 << 31) - 1,
        base_timestamp=0,
        max_timestamp=0,
        compression=Codec.ZSTD,
    )
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptBatch):
        kernel.decode(data, headers=True, **EVERYTHING)
    assert pa.total_allocated_bytes() - before < 1 << 20


def _mutated(rng: random.Random) -> bytes:
    """A few batches; in some of them bytes were changed before they were sealed."""
    data = b""
    for _ in range(rng.randrange(1, 4)):
        made = [
            Record(0, rng.choice([0, 1 << 45]), *_contents(rng)) for _ in range(rng.randrange(1, 7))
        ]
        whole = batches.build(made)
        header = batches.read_header(whole)
        body = bytearray(whole[batches.HEADER_BYTES :])
        for _ in range(rng.choice([0, 1, 2])):
            # The first bytes of a record decide the most.
            place = rng.randrange(len(body) if rng.random() < 0.5 else min(12, len(body)))
            body[place] = rng.choice([rng.randrange(256), rng.randrange(7), 0x80, 0xFF])
        data += batches.build_encoded(
            body[: rng.choice([len(body)] * 9 + [rng.randrange(len(body))])],
            record_count=max(0, header.record_count + rng.choice([0] * 20 + [-1, 1, 5000])),
            base_timestamp=rng.choice([0, 0, 0, -(1 << 63), (1 << 63) - 1]),
            max_timestamp=header.max_timestamp,
            base_offset=rng.choice([0, 7]),
            compression=rng.choice([Codec.NONE, Codec.NONE, Codec.ZSTD]),
            attributes=rng.choice([0, 0, batches.LOG_APPEND_TIME, batches.CONTROL, 0x40]),
        )
    return data


def _contents(
    rng: random.Random,
) -> tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
    pieces = [None, b"", b"y" * rng.randrange(200)]
    headers = tuple(("né", rng.choice(pieces)) for _ in range(rng.randrange(3)))
    return rng.choice(pieces), rng.choice(pieces), headers


def _judged(kernel: ModuleType, data: bytes, *, headers: bool) -> pa.RecordBatch | None:
    try:
        found = kernel.decode(data, headers=headers, **EVERYTHING)
    except CorruptBatch:
        return None
    found.validate(full=True)
    return found


def test_mutated_batches_are_judged_as_numpy_judges(
    kernel: ModuleType, numpy_kernel: ModuleType
) -> None:
    rng = random.Random(932)
    outcomes = set()
    for _ in range(MUTATIONS):
        data, headers = _mutated(rng), rng.random() < 0.7
        wanted = _judged(numpy_kernel, data, headers=headers)
        found = _judged(kernel, data, headers=headers)
        assert found == wanted, data.hex()
        outcomes.add(found is None)
    assert outcomes == {True, False}
