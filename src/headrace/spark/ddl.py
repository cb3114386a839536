"""A schema written as text, read without a JVM: where data sources are made there is none.

It may be DDL (`id bigint, tags array<string>`), what `StructType.simpleString()` gives
(`struct<id:bigint>`), or what `StructType.json()` gives.
Source: Spark SQL reference, "Data Types".
"""

import json
import re
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\w+|[<>(),:])")
_DECIMAL_DIGITS, _DECIMAL_DIGITS_MAX = 10, 38
_NULLABLE = {"nullable", "containsNull", "valueContainsNull"}
_SIMPLE: dict[str, type[DataType]] = {
    "binary": BinaryType,
    "boolean": BooleanType,
    "tinyint": ByteType,
    "byte": ByteType,
    "date": DateType,
    "double": DoubleType,
    "float": FloatType,
    "real": FloatType,
    "int": IntegerType,
    "integer": IntegerType,
    "bigint": LongType,
    "long": LongType,
    "smallint": ShortType,
    "short": ShortType,
    "string": StringType,
    "timestamp": TimestampType,
    "timestamp_ltz": TimestampType,
    "timestamp_ntz": TimestampNTZType,
}


def schema_from(text: str) -> StructType:
    """Read a schema. Raises: ValueError, in one line, when the text is no schema."""
    if text.lstrip().startswith("{"):
        try:
            return StructType.fromJson(json.loads(text))
        except Exception as error:  # pyspark names no exceptions for what is no schema
            raise ValueError(f"no schema in JSON ({type(error).__name__}: {error})") from None
    reader = _Reader(text)
    whole = reader.is_at("struct") and reader.tokens[1:2] == ["<"]
    found = reader.type() if whole else StructType(reader.fields())
    if reader.tokens:
        raise reader.refusal("a comma or the end")
    assert isinstance(found, StructType)
    return found


def nullable(schema: StructType) -> StructType:
    """Make a copy of a schema in which anything may be null, as rows of refused values are."""
    return StructType.fromJson(_nullable(schema.jsonValue()))


def _nullable(found: Any) -> Any:
    if isinstance(found, list):
        return [_nullable(one) for one in found]
    if not isinstance(found, dict):
        return found
    return {
        name: True if name in _NULLABLE and one is False else _nullable(one)
        for name, one in found.items()
    }


class _Reader:
    """Takes tokens from the front."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        position = 0
        while text[position:].strip():
            token = _TOKEN.match(text, position)
            if not token:
                raise ValueError(f"{text[position:].strip()!r} cannot be read as DDL")
            self.tokens.append(token[1])
            position = token.end()

    def refusal(self, wanted: str) -> ValueError:
        at = f"{self.tokens[0]!r}" if self.tokens else "the end"
        return ValueError(f"{wanted} is missing before {at}; write e.g. 'id bigint, name string'")

    def is_at(self, word: str) -> bool:
        return bool(self.tokens) and self.tokens[0].lower() == word

    def took(self, word: str) -> bool:
        found = self.is_at(word)
        if found:
            del self.tokens[0]
        return found

    def need(self, word: str) -> None:
        if not self.took(word):
            raise self.refusal(repr(word))

    def fields(self) -> list[StructField]:
        found = [self.field()]
        while self.took(","):
            found.append(self.field())
        return found

    def field(self) -> StructField:
        name = self.word("the name of a field")
        self.took(":")
        kind = self.type()
        is_nullable = not self.took("not")
        if not is_nullable:
            self.need("null")
        comment = {"comment": self.word("a comment")[1:-1]} if self.took("comment") else None
        return StructField(name, kind, is_nullable, comment)

    def word(self, wanted: str) -> str:
        if not self.tokens or self.tokens[0] in "<>(),:":
            raise self.refusal(wanted)
        token = self.tokens.pop(0)
        return token[1:-1].replace("``", "`") if token.startswith("`") else token

    def type(self) -> DataType:
        name = self.word("a type")
        folded = name.lower()
        if folded == "array":
            return ArrayType(self._inside()[0])
        if folded == "map":
            key, value = self._inside(2)
            return MapType(key, value)
        if folded == "struct":
            self.need("<")
            fields = self.fields()
            self.need(">")
            return StructType(fields)
        if folded in {"decimal", "dec", "numeric"}:
            return self._decimal()
        if folded not in _SIMPLE:
            raise ValueError(f"{name!r} is no type that JSON is decoded to; there are {_kinds()}")
        return _SIMPLE[folded]()

    def _inside(self, count: int = 1) -> list[DataType]:
        self.need("<")
        found = [self.type()]
        while len(found) < count:
            self.need(",")
            found.append(self.type())
        self.need(">")
        return found

    def _decimal(self) -> DecimalType:
        precision, scale = _DECIMAL_DIGITS, 0
        if self.took("("):
            precision = self._digits()
            scale = self._digits() if self.took(",") else 0
            self.need(")")
        if not 0 <= scale <= precision <= _DECIMAL_DIGITS_MAX or not precision:
            raise ValueError(f"decimal({precision},{scale}): at most 38 digits, scale within them")
        return DecimalType(precision, scale)

    def _digits(self) -> int:
        word = self.word("a number")
        if not (word.isascii() and word.isdecimal()):
            raise ValueError(f"{word!r} is no number of digits")
        return int(word)


def _kinds() -> str:
    return ", ".join([*_SIMPLE, "decimal", "array<>", "map<>", "struct<>"])
