"""Record batches to Arrow columns and back: the records of a whole fetch in one Arrow record batch.

The compiled kernel does it where it was built, else numpy: the same columns, the same bytes, the
same refusals. HEADRACE_KERNEL=numpy in the environment has numpy do it in any case.

The broker does not import this module, as numpy and pyarrow are large.
Source: Kafka's DefaultRecord for the layout; Spark's KafkaRecordToRowConverter for the columns.
"""

import os
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import pyarrow as pa

from headrace.wire import batches, columns_numpy, columns_numpy_encode
from headrace.wire.batches import HEADER_BYTES
from headrace.wire.columns_numpy import SCHEMA as SCHEMA
from headrace.wire.columns_outgoing import Outgoing, Span, outgoing, spans
from headrace.wire.compression import Codec
from headrace.wire.primitives import Buffer

try:
    from headrace.wire import columns_compiled
except ImportError:  # no kernel, and no Cython either that would run its source
    _COMPILED = False
else:
    _COMPILED = columns_compiled.COMPILED

KERNEL: Literal["compiled", "numpy"] = (
    "compiled" if _COMPILED and os.environ.get("HEADRACE_KERNEL") != "numpy" else "numpy"
)
_decoder = columns_compiled if KERNEL == "compiled" else columns_numpy
_encoder = columns_compiled if KERNEL == "compiled" else columns_numpy_encode
_SEQUENCE_MAX = (1 << 31) - 1


class Wanted(NamedTuple):
    """Which of the pieces of records are looked at; the others are null in every row."""

    headers: bool = False
    keys: bool = True
    values: bool = True


def decode(
    data: Buffer, *, first: int, last: int, headers: bool, keys: bool = True, values: bool = True
) -> pa.RecordBatch:
    """The records from offset `first` to `last` in `data`, as columns of `SCHEMA`.

    Control batches and a partial last batch are left out. Records have null in place of no headers,
    as in Spark's Kafka source. Without `headers`, `keys` or `values` these are null everywhere. A
    timestamp in ms that does not fit 64 bits in us is null.

    Raises: `CorruptBatch` when a batch with wanted offsets is damaged; OverflowError when they are
    more than 512 MiB decompressed (2 GiB not compressed): decode fewer batches at once.
    """
    return _decoder.decode(data, first=first, last=last, headers=headers, keys=keys, values=values)


def encode(
    rows: pa.RecordBatch,
    *,
    timestamp_ms: int,
    batch_bytes_max: int,
    codec: int = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> Iterator[bytes]:
    """Record batches of all `rows` in their order, each as a Produce request sends it: base offset
    0, and one in a request for each partition.

    Columns are found by their names in `SCHEMA`: key, value, timestamp and headers, cast to its
    types. One that is not there is all null, others are not looked at. `timestamp_ms` is that of
    rows with none. No batch takes more than `batch_bytes_max` before compression, as Kafka's
    `batch.size`, but one record that is larger is a batch of its own. With a producer's id and
    epoch, sequences go on from `base_sequence` as an idempotent producer's do, and after 2^31 - 1
    from 0.

    Raises: ValueError, before the first batch, for a header without a name and for a column that
    its type in `SCHEMA` cannot hold.
    """
    records = outgoing(rows, timestamp_ms)
    found = _encoder.bodies(records, spans(records, batch_bytes_max - HEADER_BYTES))
    return _sealed(records, found, codec, (producer_id, producer_epoch, base_sequence))


def _sealed(
    records: Outgoing,
    found: Iterable[tuple[Span, memoryview]],
    codec: int,
    producer: tuple[int, int, int],
) -> Iterator[bytes]:
    producer_id, producer_epoch, sequence = producer
    for (start, stop), body in found:
        times = records.timestamps[start:stop]
        yield batches.build_encoded(
            body,
            record_count=stop - start,
            base_timestamp=int(times[0]),
            max_timestamp=int(times.max()),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            compression=codec,
        )
        if sequence >= 0:
            sequence = (sequence + stop - start) & _SEQUENCE_MAX
