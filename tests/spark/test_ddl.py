"""Schemas from text without a JVM, the same that Spark makes of them."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from headrace.spark.ddl import nullable, schema_from

WRITTEN = [
    "id bigint",
    "id LONG, name String, `odd ``name` int",
    "a: byte, b tinyint, c short, d smallint, e int, f integer, g float, h real, i double",
    "a boolean, b binary, c date, d timestamp, e timestamp_ntz, f timestamp_ltz",
    "a decimal, b decimal(12), c DECIMAL( 38 , 18 ), d dec(3,1), e numeric(5, 2)",
    "a array<array<int>>, b map<string, struct<x: int, y: array<string>>>, c struct<z int>",
    "a int COMMENT 'how, many', b string comment \"it's\"",
    "_key string, `größe` double",
]


@pytest.mark.spark
@pytest.mark.parametrize("text", WRITTEN)
def test_ddl_means_what_it_means_to_spark(spark: SparkSession, text: str) -> None:
    assert schema_from(text) == StructType.fromDDL(text)


def test_other_spellings_of_a_schema_are_read_too() -> None:
    for text in WRITTEN[:6]:
        schema = schema_from(text)
        assert schema_from(schema.json()) == schema
    plain = schema_from("id bigint, tags array<string>, at struct<x: int>")
    assert schema_from(plain.simpleString()) == plain


def test_not_null_is_read_and_can_be_taken_away_at_any_depth() -> None:
    required = schema_from("a int NOT NULL, b int")
    assert [one.nullable for one in required] == [False, True]
    assert nullable(required) == schema_from("a int, b int")
    nested = StructType([StructField("x", IntegerType(), nullable=False)])
    strict = StructType(
        [
            StructField("a", ArrayType(nested, containsNull=False), nullable=False),
            StructField("m", MapType(StringType(), nested, valueContainsNull=False)),
        ]
    )
    lenient = schema_from("a array<struct<x:int>>, m map<string,struct<x:int>>")
    assert schema_from(strict.json()) == strict
    assert nullable(strict) == lenient


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the name of a field is missing before the end"),
        ("id", "a type is missing before the end"),
        ("id bigint,", "the name of a field is missing before the end"),
        ("id bigint name string", "a comma or the end is missing before 'name'"),
        ("id bigin", "'bigin' is no type that JSON is decoded to; there are binary, boolean"),
        ("id array<int", "'>' is missing before the end"),
        ("id map<int>", "',' is missing before '>'"),
        ("id decimal(40,2)", "at most 38 digits"),
        ("id decimal(x)", "'x' is no number of digits"),
        ("id int NOT", "'null' is missing before the end"),
        ("id int; drop", "'; drop' cannot be read as DDL"),
        ("{not json}", "no schema in JSON"),
        ('{"type": "struct"}', "no schema in JSON"),
        ("struct<a: int> x", "a comma or the end is missing"),
    ],
)
def test_what_is_no_schema_is_told_in_one_line(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        schema_from(text)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
