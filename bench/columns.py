"""Record batches to Arrow columns and back on one core: our kernel, numpy, and aiokafka.

    python bench/columns.py [--quick]

The same bytes for each: 8-byte keys, values like JSON, batches of 128 KB. Each method checks the
checksums and makes Arrow columns of key, value, offset, timestamp and headers of all batches of a
fetch; aiokafka reads records as objects, as its consumer does, and their lists become columns. Back
again, aiokafka's builder gets the same records as objects. Methods take turns, and the least CPU
time of this thread counts, as other work on the machine disturbs all of them.

The last line is one JSON object: million records a second, and ours / aiokafka's.
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

from headrace.wire import batches, columns, columns_numpy
from headrace.wire.batches import Record
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
    print(f"kernel: {columns.KERNEL}; million records a second")
    figures: dict[str, float] = {}
    for case in CASES:
        records = _records(case, size // case.size)
        data = _fetch(case, records)
        mine = {f"decode_{case.name}_{name}": one for name, one in _decoders(case, data).items()}
        if case.codec is Codec.NONE and not case.varies:
            encoders = _encoders(data, records)
            mine |= {f"encode_{case.name}_{name}": one for name, one in encoders.items()}
        found = {
            name: len(records) / seconds / 1e6 for name, seconds in _best(mine, rounds).items()
        }
        for name in [name for name in found if name.endswith("_headrace")]:
            theirs = found[name.removesuffix("headrace") + "aiokafka"]
            found[name.removesuffix("headrace") + "ratio"] = found[name] / theirs
        for name, one in found.items():
            print(f"{name:32}{one:8.2f}")
        figures |= {name: round(one, 3) for name, one in found.items()}
    print(json.dumps({"kernel": columns.KERNEL, **figures}))


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


def _decoders(case: Case, data: bytes) -> dict[str, Callable[[], object]]:
    headers = case.headers > 0
    pieces = {"headers": headers, "keys": True, "values": True}
    return {
        "headrace": lambda: columns.decode(data, first=0, last=LAST, **pieces),
        "numpy": lambda: columns_numpy.decode(data, first=0, last=LAST, **pieces),
        "aiokafka": lambda: _aiokafka_decode(data, headers=headers),
    }


def _aiokafka_decode(data: bytes, *, headers: bool) -> list[pa.Array]:
    kinds = [SCHEMA.field(name).type for name in ("key", "value", "offset")]
    kinds.append(pa.timestamp("ms", tz="UTC"))
    rows = []
    left = MemoryRecords(data)
    while batch := left.next_batch():
        assert batch.validate_crc()
        rows += [(one.key, one.value, one.offset, one.timestamp, one.headers) for one in batch]
    *plain, pairs = zip(*rows, strict=True)
    made = [pa.array(column, kind) for column, kind in zip(plain, kinds, strict=True)]
    if headers:
        made.append(pa.array(pairs, SCHEMA.field("headers").type))
    return made


def _encoders(data: bytes, records: list[Record]) -> dict[str, Callable[[], object]]:
    rows = columns.decode(data, first=0, last=LAST, headers=True)
    return {
        "headrace": lambda: sum(
            map(len, columns.encode(rows, timestamp_ms=0, batch_bytes_max=BATCH_BYTES))
        ),
        "aiokafka": lambda: _aiokafka_encode(records),
    }


def _aiokafka_encode(records: list[Record]) -> int:
    size = at = 0
    while at < len(records):
        builder = DefaultRecordBatchBuilder(2, Codec.NONE, 0, -1, -1, -1, BATCH_BYTES)
        first = at
        for one in records[first:]:
            headers = list(one.headers)
            if builder.append(at - first, one.timestamp, one.key, one.value, headers) is None:
                break
            at += 1
        size += len(builder.build())
    return size


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
