"""Dead letters as rows: why they failed, and the way back to the group that failed them.

A redriven record goes to a topic of its group alone (`queue/redriven.py`), which the group's
queries read beside theirs. Its headers tell where it first stood and which dead letter it was, so
that nobody redrives the same one twice without wanting to.
Source: KIP-1191 for the headers of dead letters.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from headrace.client.connection import Cluster
from headrace.client.topics import create_topic
from headrace.spark.queue.redriven import redrive_topic

_WHY = "__dlq.errors."
_BACK = "headrace.redrive."
_KEPT_FOR_EVER = {"retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": "33554432"}
_REQUEST_BYTES_MAX = "33554432"
_PLACE = ("topic", "partition", "offset")
_ORIGINAL = tuple(f"original_{name}" for name in _PLACE)
_NEEDED = ("group", *_ORIGINAL, "redriven", "key", "value", "headers", "timestamp", "letter")
_HEADERS = "array<struct<key: string, value: binary>>"


@dataclass(frozen=True, slots=True)
class Redriven:
    """How many records went back to each group, and how many had gone before and were left."""

    written: dict[str, int]
    skipped: int


def dead_letters(records: DataFrame) -> DataFrame:
    """The rows of a dead-letter topic with what its headers say as columns.

    `records` are what `format("headrace")`, or Spark's Kafka source, reads of it with
    `includeHeaders`, as a batch or a stream. The columns are group, reason, delivery_count, member;
    original_topic, original_partition, original_offset (where the record stood first, also when it
    was redriven since); redriven (how often it was); key, value, headers and timestamp of the
    record itself; and letter, which names the dead letter. Somebody else's records in the topic
    have no group.

    Raises: ValueError when a column is not there.
    """
    _must_have(records, (*_PLACE, "key", "value", "headers", "timestamp"), "includeHeaders")
    name = f.concat_ws("-", "topic", "partition")
    letter = f.concat_ws("@", name, "offset", f.unix_millis("timestamp"))
    return records.select(
        _said(_WHY + "group").alias("group"),
        _said(_WHY + "message").alias("reason"),
        _said(_WHY + "delivery.count").try_cast("int").alias("delivery_count"),
        f.nullif(_said(_WHY + "member"), f.lit("")).alias("member"),
        _first("topic").alias("original_topic"),
        _first("partition").try_cast("int").alias("original_partition"),
        _first("offset").try_cast("bigint").alias("original_offset"),
        f.coalesce(_said(_BACK + "count").try_cast("int"), f.lit(0)).alias("redriven"),
        "key",
        "value",
        f.filter("headers", _is_own).alias("headers"),
        "timestamp",
        letter.alias("letter"),
    )


def redrive(letters: DataFrame, *, bootstrap_servers: str, again: bool = False) -> Redriven:
    """Send rows of `dead_letters`, repaired or as they are, back to the group that failed each.

    They go to the topic that `redrive_topic` names, which is made when it is not there, and no
    other group sees them. Dead letters that are there already are left, unless `again`; so a call
    that failed can be made once more. Two calls at the same time do not see each other.

    Raises: ValueError for missing columns, a stream, and rows without a group or with nothing of
    the record; as the sink.
    """
    _must_have(letters, _NEEDED, "dead_letters")
    if letters.isStreaming:
        raise ValueError("redrive takes the rows of a batch: call it in foreachBatch")
    kept = letters.persist()
    try:
        groups = _groups(kept)
        topics = {group: redrive_topic(group) for group in groups}
        _create(bootstrap_servers, topics.values())
        wanted = kept
        if topics and not again:
            there = _there(letters.sparkSession, bootstrap_servers, topics.values())
            wanted = kept.join(there, "letter", "left_anti")
        counts = {row["group"]: row["count"] for row in wanted.groupBy("group").count().collect()}
        if counts:
            _write(wanted, topics, bootstrap_servers)
        return Redriven(counts, kept.count() - sum(counts.values()))
    finally:
        kept.unpersist()


def _groups(letters: DataFrame) -> list[str]:
    """The groups that the letters are of. Raises: ValueError for letters that cannot go back."""
    is_empty = f.col("key").isNull() & f.col("value").isNull() & (f.size("headers") <= 0)
    found = letters.groupBy("group").agg(f.count_if(is_empty).alias("empty")).collect()
    empty = {row["group"]: row["empty"] for row in found}
    if None in empty:
        raise ValueError(
            "rows without a group are no dead letters of a share group: leave them out with "
            "where('`group` IS NOT NULL')"
        )
    if count := sum(empty.values()):
        raise ValueError(
            f"{count} dead letters have neither key, value nor headers: their group has them "
            "copied without payload (errors.deadletterqueue.copy.record.enable). Take these from "
            "where the record first stood (original_topic, original_partition, original_offset), "
            "or leave the rows out"
        )
    return list(empty)


def _create(bootstrap_servers: str, topics: Iterable[str]) -> None:
    with Cluster(bootstrap_servers, client_id="headrace-spark-redrive") as cluster:
        for topic in topics:
            create_topic(cluster, topic, configs=_KEPT_FOR_EVER, exist_ok=True)


def _there(spark: SparkSession, bootstrap_servers: str, topics: Iterable[str]) -> DataFrame:
    """The dead letters that were redriven before."""
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", bootstrap_servers)
    reader = reader.option("includeHeaders", "true").option("columns", "headers")
    found = reader.option("subscribe", ",".join(topics)).load()
    return found.select(_said(_BACK + "letter").alias("letter")).distinct()


def _write(rows: DataFrame, topics: dict[str, str], bootstrap_servers: str) -> None:
    topic_of = f.create_map(*(f.lit(part) for pair in topics.items() for part in pair))
    told = {name: f.col(column) for name, column in zip(_PLACE, _ORIGINAL, strict=True)}
    told |= {"letter": f.col("letter"), "count": f.col("redriven") + 1}
    added = f.array(*(_header(_BACK + name, value) for name, value in told.items()))
    records = rows.select(
        topic_of[f.col("group")].alias("topic"),
        f.col("key").cast("binary").alias("key"),
        f.col("value").cast("binary").alias("value"),
        f.concat(f.coalesce("headers", f.array().cast(_HEADERS)), added).alias("headers"),
        "timestamp",
    )
    writer = records.write.format("headrace").mode("append").option("includeTimestamp", "true")
    writer = writer.option("kafka.bootstrap.servers", bootstrap_servers)
    writer.option("kafka.max.request.size", _REQUEST_BYTES_MAX).save()


def _header(name: str, value: Column) -> Column:
    text = f.coalesce(value.cast("string"), f.lit(""))
    return f.struct(f.lit(name).alias("key"), text.cast("binary").alias("value"))


def _said(name: str) -> Column:
    """The text of the last header with this name."""
    found = f.filter("headers", lambda header: header["key"] == name)
    return f.try_element_at(found, f.lit(-1))["value"].cast("string")


def _first(name: str) -> Column:
    """Where a record stood before it was ever redriven: `topic`, `partition` or `offset`."""
    return f.coalesce(f.nullif(_said(_BACK + name), f.lit("")), _said(_WHY + name))


def _is_own(header: Column) -> Column:
    ours = header["key"].startswith(_WHY) | header["key"].startswith(_BACK)
    return ~ours


def _must_have(rows: DataFrame, names: Iterable[str], remedy: str) -> None:
    missing = [name for name in names if name not in rows.columns]
    if missing:
        raise ValueError(f"the columns {', '.join(missing)} are missing: they come of {remedy}")
