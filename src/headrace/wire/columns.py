"""Record batches to Arrow columns and back: the records of a whole fetch in one Arrow record batch.

The compiled kernel does it where it was built, else numpy: the same columns, the same bytes, the
same refusals. HEADRACE_KERNEL=numpy in the environment has numpy do it in any case.

The broker does not import this module, as numpy and pyarrow are large.
Source: Kafka's DefaultRecord for the layout; Spark's KafkaRecordToRowConverter for the columns.
"""

import os
from typing import Literal

import pyarrow as pa

from headrace.wire import columns_numpy
from headrace.wire.columns_numpy import SCHEMA as SCHEMA
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
_chosen = columns_compiled if KERNEL == "compiled" else columns_numpy


def decode(data: Buffer, *, first: int, last: int, headers: bool) -> pa.RecordBatch:
    """The records from offset `first` to `last` in `data`, as columns of `SCHEMA`.

    Control batches and a partial last batch are left out. Records have null in place of no headers,
    as in Spark's Kafka source; without `headers` all have, and theirs are not looked at. A
    timestamp in ms that does not fit 64 bits in us is null.

    Raises: `CorruptBatch` when a batch with wanted offsets is damaged; OverflowError when they are
    2 GiB or more decompressed, which Arrow's offsets cannot address.
    """
    return _chosen.decode(data, first=first, last=last, headers=headers)
