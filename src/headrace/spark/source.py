"""The data source `headrace`: which of its uses the options ask for."""

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headrace.spark.options import OptionError
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.reader import ShareReader
from headrace.spark.read import schema_of
from headrace.spark.sink.options import SinkOptions
from headrace.spark.sink.writer import BatchWriter, StreamWriter


class HeadraceDataSource(DataSource):
    """`spark.readStream.format("headrace")`.

    Raises: `OptionError` for options that are unknown, missing or wrong.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        options = QueueOptions.parse(self._given)
        return schema_of(options, delivery=options.include_delivery)

    def reader(self, schema: StructType) -> DataSourceReader:
        raise OptionError("format 'headrace' is a stream: use spark.readStream")

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(SinkOptions.parse(self._given), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(SinkOptions.parse(self._given), schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ShareReader(QueueOptions.parse(self._given), schema)


def register(spark: SparkSession) -> None:
    """Make `format("headrace")` known to a session."""
    spark.dataSource.register(HeadraceDataSource)
