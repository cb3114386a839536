"""The data source `headrace`: which of its uses the options ask for."""

from collections.abc import Mapping

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headrace.spark.columns import check_schema, schema_of
from headrace.spark.log.batch import LogBatch
from headrace.spark.log.options import LogOptions
from headrace.spark.log.stream import LogStream
from headrace.spark.options import OptionError
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.reader import ShareReader
from headrace.spark.sink.options import OF_SPARK, SinkOptions
from headrace.spark.sink.writer import BatchWriter, StreamWriter, check_topic
from headrace.spark.tables import reader as tables
from headrace.spark.tables.options import TableOptions


class HeadraceDataSource(DataSource):
    """`format("headrace")`: with `table` a table, with `share.group.id` a queue, otherwise a log.

    `slots` is how many tasks run at once, where `register` knows it.

    Raises: `OptionError` for options that are unknown, missing or wrong.
    """

    slots: int | None = None

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType | str:
        self._refuse_catalog()
        if TableOptions.wanted(self._given):
            return tables.schema_of(TableOptions.parse(self._given))
        if QueueOptions.wanted(self._given):
            options = QueueOptions.parse(self._given)
            return schema_of(options, delivery=options.include_delivery)
        return schema_of(LogOptions.parse(self._given), delivery=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        self._refuse_catalog()
        if TableOptions.wanted(self._given):
            return tables.reader_of(TableOptions.parse(self._given), schema)
        if QueueOptions.wanted(self._given):
            raise OptionError(
                "a share group is a stream: use spark.readStream, or leave out 'share.group.id' to "
                "read the log"
            )
        log = LogOptions.parse(self._given).for_batch()
        check_schema(log, schema, delivery=False)
        return LogBatch(log, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        self._refuse_catalog(is_read=False)
        options = SinkOptions.parse(self._given)
        made = BatchWriter(options, schema, overwrite=overwrite)
        check_topic(options)
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        self._refuse_catalog(is_read=False)
        options = SinkOptions.parse(self._given)
        made = StreamWriter(options, schema, overwrite=overwrite)
        check_topic(options)
        return made

    def _refuse_catalog(self, *, is_read: bool = True) -> None:
        """Refuse a table of Spark's catalog, which keeps the options of CREATE TABLE to itself."""
        given = {*map(str.lower, self._given)} - OF_SPARK
        if given and "provider" not in given:
            return
        least, instead = "'kafka.bootstrap.servers'", "DataFrame.write.format('headrace')"
        if is_read:
            least += " and 'subscribe'"
            instead = (
                "CREATE TEMPORARY VIEW ... USING headrace OPTIONS (...), or "
                "spark.read.format('headrace')"
            )
        raise OptionError(
            f"no options: give at least {least}. CREATE TABLE ... USING headrace is not supported, "
            f"as Spark does not pass on the options of a table: use {instead}"
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._refuse_catalog()
        if TableOptions.wanted(self._given):
            raise OptionError("a table is no stream: use spark.read")
        if QueueOptions.wanted(self._given):
            queue = QueueOptions.parse(self._given)
            check_schema(queue, schema, delivery=queue.include_delivery)
            return ShareReader(queue, schema)
        log = LogOptions.parse(self._given).for_stream()
        check_schema(log, schema, delivery=False)
        return LogStream(log, schema, self.slots)


def register(spark: SparkSession) -> None:
    """Make `format("headrace")` known to a session; batches of a log fit a local master's cores."""
    # A session of Spark Connect has no context.
    context: SparkContext | None = getattr(spark, "sparkContext", None)
    at_once: int | None = None
    if context is not None and (context.master or "").partition("[")[0] == "local":
        at_once = context.defaultParallelism

    class ForThisSession(HeadraceDataSource):
        slots = at_once

    spark.dataSource.register(ForThisSession)
