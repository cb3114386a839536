"""Record batches to Arrow columns on one core: the compiled kernel, numpy, and aiokafka's reader.

    python bench/columns.py [--quick]

The same bytes for each, built by aiokafka: 8-byte keys, values like JSON, batches of 128 KB. Each
method checks the checksums and makes one Arrow record batch with key, value, offset, timestamp and
headers of all batches of a fetch. aiokafka reads records as objects, as its consumer does, and
their lists become Arrow columns. Methods take turns, and the best CPU time of this thread counts,
as other work on the machine disturbs all of them. The last line is one JSON object: million records
a second, and ours / aiokafka.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from headrace.wire import columns, columns_numpy
from headrace.wire.columns import SCHEMA
from headrace.wire.compression import Codec

BATCH_BYTES = 128 << 10
LAST = (1 << 63) - 1


class Case(NamedTuple):
    """One kind of records; `size` is key and value in bytes."""

    name: str
    size: int
    headers: int
    codec: Codec
    varies: bool = False


CASES = [
    Case("100B", 100, 0, Codec.NONE),
    Case("100B_varying", 100, 0, Codec.NONE, varies=True),
    Case("100B_2headers", 100, 2, Codec.NONE),
    Case("100B_snappy", 100, 0, Codec.SNAPPY),
    Case("100B_lz4", 100, 0, Codec.LZ4),
    Case("100B_zstd", 100, 0, Codec.ZSTD),
    Case("100B_gzip", 100, 0, Codec.GZIP),
    Case("1KB", 1000, 0, Codec.NONE),
    Case("1KB_lz4", 1000, 0, Codec.LZ4),
    Case("1KB_zstd", 1000, 0, Codec.ZSTD),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="4 MB instead of 16, fewer rounds")
    quick = parser.parse_args().quick
    size, rounds = (4 << 20, 5) if quick else (16 << 20, 15)
    print(f"kernel: {columns.KERNEL}")
    figures: dict[str, float] = {}
    for case in CASES:
        data, count = _fetch(case, size)
        for name, seconds in _best(data, count, rounds).items():
            figures[f"{case.name}_{name}_M_s"] = round(count / seconds / 1e6, 3)
        ours, theirs = (figures[f"{case.name}_{name}_M_s"] for name in ("headrace", "aiokafka"))
        figures[f"{case.name}_ratio"] = round(ours / theirs, 1)
        print(f"{case.name}: {_told(figures, case.name)}")
    print(json.dumps({"kernel": columns.KERNEL} | figures))


def _told(figures: dict[str, float], case: str) -> str:
    start = f"{case}_"
    mine = {name.removeprefix(start): one for name, one in figures.items() if name.startswith(start)}
    return ", ".join(f"{name} {one}" for name, one in mine.items())


def _records(case: Case, count: int) -> list[Record]:
    rng = random.Random(case.size)
    found = []
    for number in range(count):
        odd = rng.randrange(1 << 30)
        value = b'{"id": %d, "flight": "UA%d", "delay": %d, "note": "' % (odd, odd % 9000, odd % 97)
        left = case.size - 10 - len(value)
        note = rng.randrange(2 * left) if case.varies else left
        value += rng.randbytes(note // 2 + 1).hex().encode()[:note] + b'"}'
        headers = (("trace", b"%08d" % (odd % 10**8)), ("kind", b"flight"))[: case.headers]
        found.append(Record(number, 1_700_000_000_000 + number, b"%08d" % number, value, headers))
    return found


def _fetch(case: Case, records: list[Record]) -> bytes:
    in_batch = BATCH_BYTES // case.size
    return b"".join(
        batches.build(records[at : at + in_batch], base_offset=at, compression=case.codec)
        for at in range(0, len(records), in_batch)
    )


def _aiokafka(data: bytes, headers: bool) -> pa.RecordBatch:
    keys, values, offsets, times, pairs = [], [], [], [], []
    batches_left = MemoryRecords(data)
    while batches_left.has_next():
        batch = batches_left.next_batch()
        if not batch.validate_crc():
            raise AssertionError("checksum")
        for one in batch:
            keys.append(one.key)
            values.append(one.value)
            offsets.append(one.offset)
            times.append(one.timestamp)
            if headers:
                pairs.append(one.headers)
    columns = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(offsets, pa.int64()),
        pa.array(times, pa.timestamp("ms", tz="UTC")),
    ]
    if headers:
        columns.append(pa.array(pairs, pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))))
    return columns


def _best(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The least CPU seconds of each call; they take turns."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.thread_time()
            call()
            best[name] = min(best[name], time.thread_time() - began)
    return best


if __name__ == "__main__":
    main()
