"""The values of records as typed columns: quickly where values are usual, else one at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructType

from headrace.spark.ddl import nullable
from headrace.spark.options import ReadOptions
from headrace.spark.values_json import Misfit, converter, field_converter
from headrace.wire import json_columns

Columns = dict[str, pa.Array]
Convert = Callable[[str], Any]
Reasons = dict[int, str]


class Values:
    """Decodes values by `value.schema`. It never raises for what a value holds."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.value_schema is not None
        fields = options.value_schema.fields
        wanted = StructType([one for one in fields if one.name != options.corrupt_record])
        self._corrupt = next((one for one in fields if one.name == options.corrupt_record), None)
        self._schema = to_arrow_schema(nullable(wanted), timezone="UTC")
        self._required = [n for n, one in enumerate(wanted.fields) if not one.nullable]
        self._convert = converter(wanted)
        self._nothing = (None,) * len(wanted.fields)
        self._by_kernel = json_columns.IS_COMPILED
        # Where the kernel finds the JSON of a field and no more.
        self._inner = {
            number: field_converter(one.dataType)
            for number, one in enumerate(wanted.fields)
            if self._by_kernel and not json_columns.knows(self._schema.field(number).type)
        }

    def decoded(self, values: pa.Array) -> tuple[Columns, Reasons]:
        """The columns, and by their rows the reasons of values that are not as they should be.

        Those rows have null in every column but that of corrupt records, as have null values, which
        have a reason only where a field is NOT NULL.
        """
        reasons: Reasons = {}
        if self._by_kernel:
            arrays = self._quickly(values, reasons)
        else:
            single = self._one_by_one(values, np.arange(len(values)), reasons)
            arrays = [
                pa.array(column, field.type)
                for column, field in zip(single, self._schema, strict=True)
            ]
        columns = dict(zip(self._schema.names, arrays, strict=True))
        if self._corrupt is not None:
            columns[self._corrupt.name] = self._kept(values, reasons)
        return columns, reasons

    def _quickly(self, values: pa.Array, reasons: Reasons) -> list[pa.Array]:
        arrays, unusual = json_columns.decode(values, self._schema)
        inner = {
            number: _converted(arrays[number], convert, unusual)
            for number, convert in self._inner.items()
        }
        for number in self._required:
            if arrays[number].null_count:
                unusual |= arrays[number].is_null().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(unusual)
        if len(rows):
            single = self._one_by_one(values, rows, reasons)
            for number, column in enumerate(single):
                if number in inner:
                    for row, value in zip(rows.tolist(), column, strict=True):
                        inner[number][row] = value
                else:
                    by = pa.array(column, self._schema.field(number).type)
                    arrays[number] = pc.replace_with_mask(arrays[number], pa.array(unusual), by)
        for number, found in inner.items():
            arrays[number] = pa.array(found, self._schema.field(number).type)
        return arrays

    def _one_by_one(
        self, values: pa.Array, rows: np.ndarray, reasons: Reasons
    ) -> list[Sequence[Any]]:
        """The columns of some rows, as `pyarrow.array` takes them."""
        found = []
        for row, raw in zip(rows.tolist(), values.take(pa.array(rows)).to_pylist(), strict=True):
            try:
                is_absent = raw is None and not self._required
                found.append(self._nothing if is_absent else self._convert(raw))
            except Misfit as error:
                reasons[row] = str(error)
                found.append(self._nothing)
        return list(zip(*found, strict=True)) if found else [()] * len(self._nothing)

    def _kept(self, values: pa.Array, reasons: Reasons) -> pa.Array:
        assert self._corrupt is not None
        is_binary = isinstance(self._corrupt.dataType, BinaryType)
        kind = pa.binary() if is_binary else pa.string()
        if not reasons:
            return pa.nulls(len(values), kind)
        kept: list[bytes | str | None] = [None] * len(values)
        for row in reasons:
            raw = values[row].as_py()
            if raw is not None:
                kept[row] = raw if is_binary else raw.decode(errors="replace")
        return pa.array(kept, kind)


def _converted(texts: pa.Array, convert: Convert, unusual: np.ndarray) -> list[Any]:
    """Values of JSON texts. One that is not of its type makes its row unusual."""
    found: list[Any] = []
    for row, text in enumerate(texts.to_pylist()):
        try:
            found.append(None if text is None else convert(text))
        except Misfit:
            unusual[row] = True
            found.append(None)
    return found
