"""What Spark's tasks write, and what its driver is told of it.

A task writes with an idempotent producer of its own: what it repeats on its own account is in the
log once. A task that fails, or a batch that runs again, is written again from the beginning: at
least once, as Spark's Kafka sink. What a failed task wrote stays.

Spark runs a task that raised again, and each run writes its rows anew. So a task that meets a row
of a topic that does not exist does not raise: it stops, and its message to the driver names the
topic. The driver then refuses to commit, which fails the batch at once.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.produce.producer import Producer
from headrace.spark.log_lines import show
from headrace.spark.options import OptionError, connect
from headrace.spark.sink.columns import by_topic, check
from headrace.spark.sink.options import SinkOptions

LOG = logging.getLogger(__name__)

_TELL_EVERY_S = 10.0
_UNKNOWN_TOPIC = 3
_METADATA_LAG_S, _PAUSE_S = 3.0, 0.1  # a broker may not know a topic that was just created
_checked: set[tuple[str, str]] = set()  # brokers and topics, by this process


@dataclass
class Written(WriterCommitMessage):
    """How many records a task wrote to each topic, and the unknown topic at which it stopped."""

    counts: dict[str, int] = field(default_factory=dict)
    unknown_topic: str | None = None


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("headrace")`. Raises: `OptionError` for what it cannot write."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("a log is only appended to: write with mode('append')")
        check(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_task(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        show(self._options.log_level)
        _check_written(self._options, messages)
        LOG.info("wrote %s", _told(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        show(self._options.log_level)
        LOG.warning("a write failed: what its finished tasks wrote stays, %s", _told(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("headrace")`. Raises: `OptionError` for what it cannot write."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "output mode 'complete' replaces what was written, and a log is only appended to: "
                "use 'append', or write what each batch has in foreachBatch"
            )
        check(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_task(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        show(self._options.log_level)
        _check_written(self._options, messages)
        LOG.info("batch %d: wrote %s", batch_id, _told(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        show(self._options.log_level)
        LOG.warning(
            "batch %d failed and will be written again: what its finished tasks wrote stays, %s",
            batch_id,
            _told(messages),
        )


def check_topic(options: SinkOptions) -> None:
    """Check that the topic of all rows exists, before a task writes.

    Spark makes a writer for each batch, so a topic is looked up once in each process. A missing
    topic is looked up again for three seconds: brokers of Apache Kafka learn of a new topic late.
    Raises: `OptionError` for a topic that does not exist; otherwise as `Cluster`.
    """
    if options.topic is None or (options.bootstrap_servers, options.topic) in _checked:
        return
    with connect(options) as cluster:
        if _unknown([options.topic], partial(_exists, cluster)) is not None:
            raise _no_topic(options, options.topic)
    _checked.add((options.bootstrap_servers, options.topic))


def _check_written(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Raises: `OptionError` when a task stopped at a topic that does not exist."""
    for message in messages:
        if isinstance(message, Written) and message.unknown_topic is not None:
            raise _no_topic(options, message.unknown_topic)


def _no_topic(options: SinkOptions, topic: str) -> OptionError:
    given = "the column 'topic'" if options.topic is None else "option 'topic'"
    return OptionError(
        f"topic {topic!r} does not exist at {options.bootstrap_servers}: create it (headrace "
        f"topics --create --topic {topic}), or correct {given}"
    )


def _unknown(topics: Sequence[str], exists: Callable[[str], bool]) -> str | None:
    """Return the first topic that does not exist, after the time in which brokers learn of it."""
    for topic in topics:
        deadline = time.monotonic() + _METADATA_LAG_S
        while not exists(topic):
            if time.monotonic() >= deadline:
                return topic
            time.sleep(_PAUSE_S)
    return None


def _exists(cluster: Cluster, topic: str) -> bool:
    try:
        cluster.partitions(topic)
    except BrokerError as error:
        if error.code != _UNKNOWN_TOPIC:
            raise
        return False
    return True


def write_task(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    """Write all rows, up to the first that names an unknown topic.

    The topics of an Arrow batch are looked up before any of its rows is written. Returns once the
    rows are in the logs. Raises: as `Producer.write`.
    """
    show(options.log_level)
    written = Written()
    began = told = time.monotonic()
    with connect(options) as cluster:
        producer = Producer(
            cluster,
            codec=options.codec,
            limits=options.limits,
            request_timeout_ms=options.request_timeout_ms,
        )
        for batch in batches:
            parts = list(by_topic(batch, options))
            new = [topic for topic, _ in parts if topic not in written.counts]
            if (missing := _unknown(new, partial(_exists, cluster))) is not None:
                written.unknown_topic = missing
                break
            for topic, rows in parts:
                producer.write(topic, rows)
                written.counts[topic] = written.counts.get(topic, 0) + rows.num_rows
            if time.monotonic() >= told + _TELL_EVERY_S:
                told = time.monotonic()
                LOG.info("%s: %.0f s, %s so far", _task(), told - began, _told([written]))
    return written


def _task() -> str:
    task = TaskContext.get()
    return f"task {task.partitionId()}" if task else "task"


def _told(messages: Sequence[WriterCommitMessage | None]) -> str:
    counts: dict[str, int] = {}
    for message in messages:
        if isinstance(message, Written):
            for topic, count in message.counts.items():
                counts[topic] = counts.get(topic, 0) + count
    parts = [f"{count} records to {topic}" for topic, count in sorted(counts.items())]
    return ", ".join(parts) or "no record"
