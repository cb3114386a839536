"""Which columns a sink takes: refused before anything runs, in the words of Spark's Kafka sink."""

import re

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from headrace.spark.options import OptionError
from headrace.spark.sink.columns import by_topic, check
from headrace.spark.sink.options import SinkOptions

pytestmark = pytest.mark.spark  # a session reads the types' names

TO_T = SinkOptions(bootstrap_servers="127.0.0.1:9092", topic="t")
BY_ROW = SinkOptions(bootstrap_servers="127.0.0.1:9092")
DATED = SinkOptions(bootstrap_servers="127.0.0.1:9092", topic="t", include_timestamp=True)
NO_HEADERS = SinkOptions(bootstrap_servers="127.0.0.1:9092", topic="t", include_headers=False)
HEADERS = "headers array<struct<key: string, value: binary>>"


def schema(ddl: str) -> StructType:
    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


@pytest.mark.parametrize(
    ("ddl", "options"),
    [
        ("value string", TO_T),
        ("value binary, key string, partition int, topic string", BY_ROW),
        (f"key binary, value binary, {HEADERS}, other double", TO_T),
        ("value string, timestamp timestamp", DATED),
        ("value string, topic int", TO_T),  # the option wins, the column is not looked at
        ("value string, headers string", NO_HEADERS),
        ("value string, timestamp int, timestamp int, topic int, topic int", TO_T),
    ],
)
def test_what_a_record_can_hold_is_taken(
    spark: SparkSession, ddl: str, options: SinkOptions
) -> None:
    check(schema(ddl), options)


@pytest.mark.parametrize(
    ("ddl", "options", "told"),
    [
        (
            "value string",
            BY_ROW,
            "topic option required when no 'topic' attribute is present. Use the topic option for "
            "setting a topic.",
        ),
        ("value string, topic int", BY_ROW, "topic attribute unsupported type int. topic must be"),
        ("key string, id int", TO_T, "Required attribute 'value' not found. The rows have key, id"),
        ("value int", TO_T, "value attribute unsupported type int. value must be STRING or BINARY"),
        ("value string, key bigint", TO_T, "key attribute unsupported type bigint. key must be"),
        ("value string, partition bigint", TO_T, "partition must be an INT"),
        ("value string, headers map<string, binary>", TO_T, "headers must be array<struct<key:"),
        (
            "value string, headers array<struct<key: string, value: string>>",
            TO_T,
            "headers must be array<struct<key: string, value: binary>>; cast values to binary",
        ),
        ("value string", DATED, "there is no column 'timestamp'"),
        ("value string, timestamp bigint", DATED, "timestamp must be a TIMESTAMP"),
        ("value string, key string, key binary", TO_T, "the rows have several columns 'key'"),
    ],
)
def test_the_rest_is_refused(
    spark: SparkSession, ddl: str, options: SinkOptions, told: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(told)) as refused:
        check(schema(ddl), options)
    assert "\n" not in str(refused.value)


def test_rows_go_to_the_topics_they_name_in_their_order() -> None:
    rows = pa.RecordBatch.from_pydict(
        {"topic": ["a", "b", "a"], "value": ["1", "2", "3"], "other": [1, 2, 3]}
    )
    found = [(topic, part.to_pydict()) for topic, part in by_topic(rows, BY_ROW)]
    assert found == [("a", {"value": ["1", "3"]}), ("b", {"value": ["2"]})]


def test_the_option_wins_over_the_column() -> None:
    rows = pa.RecordBatch.from_pydict({"topic": ["a", None], "value": ["1", "2"]})
    found = [(topic, part.to_pydict()) for topic, part in by_topic(rows, TO_T)]
    assert found == [("t", {"value": ["1", "2"]})]


def test_a_row_without_a_topic_is_an_error_that_names_the_remedy() -> None:
    rows = pa.RecordBatch.from_pydict({"topic": ["a", None], "value": ["1", "2"]})
    with pytest.raises(ValueError, match=r"null topic present in the data. Use the topic option"):
        list(by_topic(rows, BY_ROW))
