"""Reads a table in one task: groups in portions, each a batch of rows, asked for as it is read."""

import logging
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.client.connection import Cluster
from headrace.spark.log_lines import show
from headrace.spark.options import connect
from headrace.spark.tables import dead_letters, groups, offsets, share
from headrace.spark.tables.names import Row
from headrace.spark.tables.options import TableOptions
from headrace.spark.tables.wanted import Wanted

LOG = logging.getLogger(__name__)

Reading = Callable[[Cluster, Wanted], Iterator[list[Row]]]
_TABLES: dict[str, tuple[str, Reading]] = {
    "groups": (groups.GROUPS, groups.groups),
    "members": (groups.MEMBERS, groups.members),
    "offsets": (offsets.OFFSETS, offsets.offsets),
    "share_partitions": (share.SHARE_PARTITIONS, share.share_partitions),
    "in_flight": (share.RUNS, share.in_flight),
    "dead_letters": (dead_letters.DEAD_LETTERS, dead_letters.dead_letters),
}


def schema_of(options: TableOptions) -> str:
    """The columns of a table."""
    return _TABLES[options.table][0]


class TableReader(DataSourceReader):
    """Raises, while reading: `Unsupported` when the broker does not tell what the table is made of;
    otherwise as `Cluster`.
    """

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = Wanted(options.groups, options.topics)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        show(self._options.log_level)
        target = to_arrow_schema(self._schema, timezone="UTC")
        count = 0
        with connect(self._options) as cluster:
            for rows in _TABLES[self._options.table][1](cluster, self._wanted):
                if rows:
                    count += len(rows)
                    LOG.info("table %s: %d rows so far", self._options.table, count)
                    yield pa.RecordBatch.from_pylist(rows, schema=target)


class _FilteredReader(TableReader):
    """Asks brokers for what filters leave, as far as they can be asked; Spark evaluates them all.

    Only on request: in Spark 4.3 a pushed filter holds for every query of the same `load()`, also
    for those that have none, until another one is pushed (PythonDataSourceV2 keeps one plan).
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._wanted = self._wanted.narrowed(filters)
        return filters


def reader_of(options: TableOptions, schema: StructType) -> TableReader:
    """The reader of a table, with filters pushed when that is asked for."""
    return (_FilteredReader if options.push_down else TableReader)(options, schema)
