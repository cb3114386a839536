"""The values of records as typed columns: quickly where values are usual, else one at a time."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructType

from headrace.spark.options import ReadOptions
from headrace.spark.values_json import Misfit, converter
from headrace.wire import json_columns

Columns = dict[str, pa.Array]
Reasons = dict[int, str]


class Values:
    """Decodes values by `value.schema`. It never raises for what a value holds."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.value_schema is not None
        fields = options.value_schema.fields
        wanted = StructType([one for one in fields if one.name != options.corrupt_record])
        self._corrupt = next((one for one in fields if one.name == options.corrupt_record), None)
        self._schema = to_arrow_schema(wanted, timezone="UTC")
        self._convert = converter(wanted)
        self._nothing = (None,) * len(wanted.fields)
        self._is_flat = json_columns.can_decode(self._schema)

    def decoded(self, values: pa.Array) -> tuple[Columns, Reasons]:
        """The columns, and by their rows the reasons of values that are not as they should be.

        Those rows have null in every column but that of corrupt records, as have null values, which
        have no reason.
        """
        if self._is_flat:
            arrays, unusual = json_columns.decode(values, self._schema)
            rows = np.flatnonzero(unusual)
        else:
            arrays, rows = [], np.arange(len(values))
        reasons: Reasons = {}
        if len(rows) or not self._is_flat:
            single = self._one_by_one(values, rows, reasons)
            arrays = (
                [_replaced(one, unusual, by) for one, by in zip(arrays, single, strict=True)]
                if self._is_flat
                else single
            )
        columns = dict(zip(self._schema.names, arrays, strict=True))
        if self._corrupt is not None:
            columns[self._corrupt.name] = self._kept(values, reasons)
        return columns, reasons

    def _one_by_one(self, values: pa.Array, rows: np.ndarray, reasons: Reasons) -> list[pa.Array]:
        found = []
        for row, raw in zip(rows.tolist(), values.take(pa.array(rows)).to_pylist(), strict=True):
            try:
                found.append(self._nothing if raw is None else self._convert(raw))
            except Misfit as error:
                reasons[row] = str(error)
                found.append(self._nothing)
        columns = zip(*found, strict=True) if found else [()] * len(self._nothing)
        return [
            pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]

    def _kept(self, values: pa.Array, reasons: Reasons) -> pa.Array:
        assert self._corrupt is not None
        is_binary = isinstance(self._corrupt.dataType, BinaryType)
        kind = pa.binary() if is_binary else pa.string()
        if not reasons:
            return pa.nulls(len(values), kind)
        kept: list[bytes | str | None] = [None] * len(values)
        for row in reasons:
            raw = values[row].as_py()
            kept[row] = raw if is_binary else raw.decode(errors="replace")
        return pa.array(kept, kind)


def _replaced(column: pa.Array, rows: np.ndarray, by: pa.Array) -> pa.Array:
    return pc.replace_with_mask(column, pa.array(rows), by)
