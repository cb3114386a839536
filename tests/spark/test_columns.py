"""The columns of the source: those of Spark's Kafka source, chosen, and decoded from values."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, DayTimeIntervalType, StructField, StructType

from headrace.spark.columns import Columns, check_schema, schema_of
from headrace.spark.ddl import schema_from
from headrace.spark.options import OptionError, ReadOptions
from headrace.spark.queue.options import QueueOptions
from headrace.wire.columns import SCHEMA, Wanted
from headrace.wire.leases import Disposition, Range, Verdict

LOG = ReadOptions(bootstrap_servers="127.0.0.1:1")
JSON = replace(LOG, value_format="json", value_schema=schema_from("id bigint, name string"))
QUEUE = QueueOptions(
    bootstrap_servers="127.0.0.1:1",
    topics=("t",),
    group="g",
    value_format="json",
    value_schema=schema_from("id bigint"),
    columns=("value", "offset"),
)
INTERVALS = StructType([StructField("a", ArrayType(DayTimeIntervalType()))]).json()
DEEP = "q int, m map<string, struct<q int, a array<struct<p int, q int, p int>>>>"
EVERY = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def test_without_options_it_is_the_schema_of_spark_s_kafka_source() -> None:
    kafka = (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int"
    )
    assert schema_of(LOG, delivery=False).simpleString() == kafka + ">"
    full = schema_of(replace(LOG, include_headers=True), delivery=True).simpleString()
    assert full == (
        kafka + ",headers:array<struct<key:string,value:binary>>,delivery_count:int,lease:string>"
    )


def test_columns_are_those_named_in_that_order() -> None:
    chosen = replace(LOG, columns=("offset", "value"))
    assert schema_of(chosen, delivery=False).simpleString() == "struct<offset:bigint,value:binary>"


def test_decoded_fields_stand_in_the_place_of_the_value() -> None:
    assert schema_of(JSON, delivery=False).names == [
        *EVERY[:1], "id", "name", "value_error", *EVERY[2:]
    ]  # fmt: skip
    rejecting = replace(QUEUE, value_mode="REJECT")
    assert schema_of(rejecting, delivery=False).names == ["id", "offset"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (replace(LOG, columns=("valu",)), "names 'valu'; there are key, value, topic"),
        (replace(LOG, columns=("headers",)), "set 'includeHeaders' to true as well"),
        (replace(LOG, columns=("lease",)), "set 'includeDelivery' to true as well"),
        (replace(JSON, columns=("offset",)), "leaves out 'value', so nothing would be decoded"),
        (replace(JSON, value_schema=schema_from("Offset int")), "two columns would be named"),
        (replace(JSON, value_schema=None), "option 'value.schema' is required"),
        (replace(JSON, value_format=None), "need 'value.format'"),
        (replace(JSON, value_mode="REJECT"), "needs a share group"),
        (replace(JSON, value_schema=schema_from("m map<int,int>")), "has 'm' with map<int,int>"),
        (replace(JSON, value_schema=schema_from(INTERVALS)), "has 'a' with interval day to second"),
        (replace(JSON, value_schema=schema_from("_corrupt_record int")), "make it string or bin"),
        (replace(JSON, corrupt_record="_corupt"), "'value.schema' has no field of this name"),
        (replace(LOG, corrupt_record="bad"), "'value.schema' has no field of this name"),
        (replace(JSON, value_schema=schema_from("a int, A int")), "'value.schema' has 'A' twice"),
        (replace(JSON, value_schema=schema_from("s struct<p int, p int>")), "has 's.p' twice"),
        (replace(JSON, value_schema=schema_from(DEEP)), "has 'm.a.p' twice"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: ReadOptions, told: str) -> None:
    with pytest.raises(OptionError, match=r".") as refused:
        schema_of(options, delivery=False)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("value.format", "avro", "'json' is the format that there is"),
        ("value.schema", "id bigin", "'bigin' is no type that JSON is decoded to"),
        ("value.mode", "FAILFAST", "no mode drops records silently or fails the query"),
    ],
)
def test_values_of_options_that_cannot_be_used_are_refused(name: str, text: str, told: str) -> None:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "share.group.id": "g", name: text}
    with pytest.raises(OptionError, match=told):
        QueueOptions.parse(given)


def test_structs_of_a_schema_may_have_fields_that_differ_in_case() -> None:
    schema = schema_from("s struct<p int, P int>, p int")
    assert schema_of(replace(JSON, value_schema=schema), delivery=False)["s"] == schema["s"]


def test_a_schema_of_the_user_s_must_be_that_of_the_source() -> None:
    check_schema(JSON, schema_of(JSON, delivery=False), delivery=False)
    with pytest.raises(OptionError, match="choose columns with option 'columns'"):
        check_schema(LOG, schema_from("value binary, offset bigint"), delivery=False)


def fetched(*values: bytes | None) -> pa.RecordBatch:
    made = {"value": list(values), "offset": list(range(10, 10 + len(values)))}
    columns = [pa.array(made.get(field.name, [None] * len(values)), field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def made(options: ReadOptions, *values: bytes | None) -> tuple[list[Any], list[Disposition]]:
    columns = Columns(options, schema_of(options, delivery=False), "s/1/1")
    rows = columns.rows(fetched(*values), [Range("t", 3, 10, 99, 1)])
    return rows.to_pylist(), columns.rejected


def test_a_value_that_is_not_as_it_should_be_is_a_row_with_its_reason() -> None:
    options = replace(JSON, columns=("value", "partition", "offset"))
    assert made(options, b'{"id":1,"name":"a"}', b"x", None) == (
        [
            {"id": 1, "name": "a", "value_error": None, "partition": 3, "offset": 10},
            {
                "id": None,
                "name": None,
                "value_error": "the value is not JSON: Expecting value at character 0",
                "partition": 3,
                "offset": 11,
            },
            {"id": None, "name": None, "value_error": None, "partition": 3, "offset": 12},
        ],
        [],
    )


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (LOG, Wanted(headers=False, keys=True, values=True)),
        (replace(LOG, include_headers=True), Wanted(headers=True, keys=True, values=True)),
        (replace(LOG, columns=("offset",)), Wanted(headers=False, keys=False, values=False)),
        (replace(JSON, columns=("value",)), Wanted(headers=False, keys=False, values=True)),
        (
            replace(JSON, columns=("value",), value_schema=schema_from("key int, headers int")),
            Wanted(headers=False, keys=False, values=True),
        ),
    ],
)
def test_only_pieces_that_are_shown_are_looked_at(options: ReadOptions, wanted: Wanted) -> None:
    assert Columns(options, schema_of(options, delivery=False), "").wanted == wanted


def test_in_a_queue_it_may_be_rejected_instead() -> None:
    rejecting = replace(QUEUE, value_mode="REJECT")
    rows, rejected = made(rejecting, b'{"id":1}', b'{"id":"x"}', b"", b'{"id":2}')
    assert rows == [{"id": 1, "offset": 10}, {"id": 2, "offset": 13}]
    assert rejected == [
        Disposition("t", 3, 11, 11, Verdict.REJECT, 'value: id: "x" is no bigint'),
        Disposition("t", 3, 12, 12, Verdict.REJECT, "value: the value is empty"),
    ]


def test_then_a_field_may_have_the_name_of_the_reason() -> None:
    schema = schema_from("id bigint, value_error string")
    rejecting = replace(QUEUE, value_mode="REJECT", value_schema=schema, columns=("value",))
    rows, rejected = made(rejecting, b'{"id":1,"value_error":"E42"}', b"{")
    assert rows == [{"id": 1, "value_error": "E42"}]
    assert len(rejected) == 1


@pytest.mark.spark
def test_a_query_gets_typed_columns_of_good_and_bad_values(flow: Any) -> None:
    flow.produce(10, '{{"id":{0},"name":"n{0}","tags":["a",null]}}')
    flow.produce(2, "broken {}")
    found: list[Row] = []
    rows = flow.rows(
        **{"columns": "value,offset", "value.format": "json"},
        **{"value.schema": "id bigint, tags array<string>, name string, _corrupt_record string"},
    )
    flow.run(rows, lambda rows, _: found.extend(rows.collect()))
    assert rows.schema == StructType.fromDDL(
        "id bigint, tags array<string>, name string, _corrupt_record string, value_error string, "
        "offset bigint"
    )
    good = sorted((row for row in found if row.value_error is None), key=lambda row: row.id)
    assert [(row.id, row.name, row.tags) for row in good] == [
        (number, f"n{number}", ["a", None]) for number in range(10)
    ]
    bad = sorted(row._corrupt_record for row in found if row.value_error is not None)
    assert bad == ["broken 0", "broken 1"]
    assert flow.finished()


@pytest.mark.spark
def test_a_queue_sets_values_aside_that_do_not_decode_whatever_the_sink(flow: Any) -> None:
    flow.set_group(errors_deadletterqueue_topic_name="dlq.t")
    flow.produce(20, '{{"id":{}}}')
    flow.produce(10, '{{"id":"{}"}}')
    found: list[int] = []
    rows = flow.rows(
        **{"columns": "value", "value.format": "json", "value.schema": "id int"},
        **{"value.mode": "reject", "minPartitions": "3", "maxOffsetsPerTrigger": "12"},
    )
    flow.run(rows, lambda rows, _: found.extend(row.id for row in rows.collect()))
    assert rows.schema == StructType.fromDDL("id int")
    assert sorted(found) == list(range(20))
    flow.until(flow.finished)
    flow.until(lambda: len(flow.dead_letters()) == 10)
    told = {dict(letter.headers)["__dlq.errors.message"] for letter in flow.dead_letters()}
    assert told == {f'value: id: "{number}" is no int'.encode() for number in range(10)}


@pytest.mark.spark
def test_unfit_options_end_a_query_before_it_begins(flow: Any) -> None:
    with pytest.raises(PySparkException, match="'bigin' is no type"):
        flow.rows(**{"value.format": "json", "value.schema": "id bigin"})
    reader = flow.spark.readStream.format("headrace").options(**flow.options)
    with pytest.raises(PySparkException, match="choose columns with option 'columns'"):
        flow.run(reader.schema("value binary").load(), flow.note)
