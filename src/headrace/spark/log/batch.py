"""A log as a batch query: what stands between two bounds, looked up when the query is planned."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.spark.log.driver import Driver
from headrace.spark.log.options import LogOptions
from headrace.spark.log.stream import Part
from headrace.spark.read import read_task


class LogBatch(DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, options: LogOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        driver = Driver(self._options)
        try:
            return [Part(one) for one in driver.batch()]
        finally:
            driver.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A query with nothing to read has one task all the same, with a partition of Spark's."""
        if not isinstance(partition, Part):
            return iter(())
        return read_task(self._options, self._schema, partition.offsets, "")
