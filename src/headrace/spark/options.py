"""The options of the data source, parsed once into plain data.

Names are those of Spark's Kafka source where it has one. Spark folds the names of options to lower
case before a Python data source sees them, so they are compared without regard to case, and a name
that is not known is refused: a misspelt limit must not silently take its default.
Each mode of the data source has its options beside it; what they share is here.
Source: Spark "Structured Streaming + Kafka Integration Guide".
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from headrace.client.connection import Cluster, Patience, addresses
from headrace.spark.ddl import schema_from
from headrace.spark.values_json import unsupported

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
_SECURITY = ("kafka.ssl.", "kafka.sasl.", "kafka.security.")
_CORRUPT_RECORD = "_corrupt_record"
_SCHEMA_EXAMPLE = "id bigint, total double"


class OptionError(ValueError):
    """An option that is unknown, missing or has a value that cannot be used."""


class Spelling(NamedTuple):
    """A name that users write, the field it fills, and how its text is read (ValueError: how not).

    `example` is given for a field that must not be missing.
    """

    name: str
    field: str
    read: Callable[[str], Any]
    example: str | None = None


def parsed(
    given: Mapping[str, str], spellings: tuple[Spelling, ...], elsewhere: Mapping[str, str]
) -> dict[str, Any]:
    """The fields that `given` fills, its names in any case.

    `elsewhere` has remedies for names that people know, in lower case, and that mean nothing here.
    Raises: `OptionError`, one line with the remedy.
    """
    known = {one.name.lower(): one for one in spellings}
    values: dict[str, Any] = {}
    for name, text in given.items():
        found = known.get(name.lower())
        if found is None:
            raise OptionError(_unknown(name, spellings, elsewhere))
        try:
            value = found.read(text.strip())
        except ValueError as error:
            raise OptionError(f"option {found.name!r} is {text!r}: {error}") from None
        if values.setdefault(found.field, value) != value:
            raise OptionError(f"option {found.name!r} is given twice, with different values")
    for one in spellings:
        if one.example and not values.get(one.field):
            raise OptionError(f"option {one.name!r} is required, e.g. {one.example!r}")
    return values


def _unknown(name: str, spellings: tuple[Spelling, ...], elsewhere: Mapping[str, str]) -> str:
    if (remedy := elsewhere.get(name.lower())) is not None:
        return f"option {name!r} is not for this use of format 'headrace': {remedy}"
    if name.lower().startswith(_SECURITY):
        return (
            f"option {name!r} is not supported yet: format 'headrace' connects in plain text, "
            "without TLS and without authentication; give it a listener of that kind"
        )
    names = {one.name.lower(): one.name for one in spellings}
    near = difflib.get_close_matches(name.lower(), names, n=1)
    if near:
        return f"unknown option {name!r}; did you mean {names[near[0]]!r}?"
    if name.lower().startswith("kafka."):
        told = "its client is not librdkafka's; leave it out"
        return f"option {name!r} is not for format 'headrace': {told}"
    return f"unknown option {name!r}; there are {', '.join(names.values())}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """How brokers are reached: every use of the data source has these."""

    bootstrap_servers: str
    retry_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    log_level: str = "WARNING"

    @property
    def who(self) -> str:
        """What brokers are told: the end of the client id, which each use has of its own."""
        return "source"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(ConnectOptions):
    """What records are read, and what their columns are: queue and log have these."""

    include_headers: bool = False
    fail_on_data_loss: bool = True
    read_committed: bool = False
    columns: tuple[str, ...] = ()
    value_format: str | None = None
    value_schema: StructType | None = None
    value_mode: str = "PERMISSIVE"
    corrupt_record: str = _CORRUPT_RECORD

    CAN_REJECT: ClassVar[bool] = False

    @property
    def log_prefix(self) -> str:
        """The share group, in front of a message on records; nothing for a log."""
        return ""

    @property
    def passes_removed(self) -> bool:
        """Whether a task goes on when records were removed that it was to read."""
        return not self.fail_on_data_loss

    @property
    def loss_remedy(self) -> str:
        """The option, with its value, that lets a query go on behind removed records."""
        return "failOnDataLoss to false"

    @property
    def rejects(self) -> bool:
        """Whether values that cannot be decoded are rejected, and are no rows."""
        return self.value_mode == "REJECT"

    def check_values(self) -> None:
        """Raises: `OptionError` when the options on values contradict each other."""
        if self.value_format and self.value_schema is None:
            raise OptionError(
                f"option 'value.schema' is required with 'value.format', e.g. {_SCHEMA_EXAMPLE!r}"
            )
        if not self.value_format and (self.value_schema is not None or self.rejects):
            raise OptionError(
                "options 'value.schema' and 'value.mode' need 'value.format', e.g. 'json'"
            )
        if self.rejects and not self.CAN_REJECT:
            raise OptionError(
                "option 'value.mode' is 'REJECT', which needs a share group to keep what is "
                "rejected: give 'share.group.id', or take 'PERMISSIVE'"
            )
        if self.corrupt_record != _CORRUPT_RECORD and (
            self.value_schema is None or self.corrupt_record not in self.value_schema.names
        ):
            raise OptionError(
                f"option 'columnNameOfCorruptRecord' is {self.corrupt_record!r}, and "
                "'value.schema' has no field of this name: add it as string or binary, or correct "
                "the name"
            )
        if self.value_schema is not None:
            self._check_schema(self.value_schema)

    def _check_schema(self, schema: StructType) -> None:
        if (name := twin(schema, str.lower)) is not None:
            raise OptionError(
                f"option 'value.schema' has {name!r} twice: leave one of them out (Spark finds "
                "columns by their names in any case)"
            )
        for field in schema.fields:
            self._check_field(field)

    def _check_field(self, field: StructField) -> None:
        if (odd := unsupported(field.dataType)) is not None:
            raise OptionError(
                f"option 'value.schema' has {field.name!r} with {odd}, which JSON is not decoded "
                "to: take 'string' and cast the column"
            )
        kind = field.dataType.simpleString()
        if field.name == self.corrupt_record and kind not in {"string", "binary"}:
            raise OptionError(
                f"option 'value.schema' has {field.name!r} as {kind}, but it keeps values that "
                "are refused: make it string or binary, or see 'columnNameOfCorruptRecord'"
            )


def connect(options: ConnectOptions) -> Cluster:
    """A cluster with the timeouts of the options; one for each thread."""
    return Cluster(
        options.bootstrap_servers,
        client_id=f"headrace-spark-{options.who}",
        patience=Patience(total_s=options.retry_timeout_ms / 1000),
        request_timeout_s=options.request_timeout_ms / 1000,
    )


def servers(text: str) -> str:
    addresses(text)
    return text


def topics(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))


def count(text: str) -> int:
    """A number of records; requests have 64 bits for it."""
    return _count(text, INT64_MAX)


def count32(text: str) -> int:
    """A time that is waited (ms), a size or another number that requests have 32 bits for."""
    return _count(text, INT32_MAX)


def at_most(number: int, most: int) -> int:
    """The number. Raises: ValueError when it is more than `most`."""
    if number > most:
        raise ValueError(f"give at most {most}")
    return number


def _count(text: str, most: int) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("give a whole number of at least 1")
    return at_most(int(text), most)


def flag(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("give 'true' or 'false'")
    return text.lower() == "true"


def level(text: str) -> str:
    if text.upper() not in {"DEBUG", "INFO", "WARNING", "ERROR"}:
        raise ValueError("give 'DEBUG', 'INFO', 'WARNING' or 'ERROR'")
    return text.upper()


def twin(kind: DataType, folded: Callable[[str], str] = str) -> str | None:
    """The first field in `kind`, with where it stands, of which its struct has another one.

    Columns are compared as `folded`, which is how Spark finds them; it takes structs with fields
    that differ in case, and fails in Java on those with the very same name.
    """
    if isinstance(kind, ArrayType):
        return twin(kind.elementType)
    if isinstance(kind, MapType):
        return twin(kind.valueType)
    if not isinstance(kind, StructType):
        return None
    seen: set[str] = set()
    for one in kind.fields:
        if folded(one.name) in seen:
            return one.name
        seen.add(folded(one.name))
        if (inner := twin(one.dataType)) is not None:
            return f"{one.name}.{inner}"
    return None


def _format(text: str) -> str:
    if text.lower() != "json":
        raise ValueError("'json' is the format that there is; leave it out for bytes")
    return "json"


def _mode(text: str) -> str:
    if text.upper() not in {"PERMISSIVE", "REJECT"}:
        raise ValueError(
            "give 'PERMISSIVE' for rows with the reason in 'value_error', or, in a share group, "
            "'REJECT'; no mode drops records silently or fails the query for one of them"
        )
    return text.upper()


CONNECT_SPELLINGS = (
    Spelling("kafka.bootstrap.servers", "bootstrap_servers", servers, "127.0.0.1:9092"),
    Spelling("retryTimeoutMs", "retry_timeout_ms", count),
    Spelling("requestTimeoutMs", "request_timeout_ms", count32),
    Spelling("logLevel", "log_level", level),
)
READ_SPELLINGS = (
    *CONNECT_SPELLINGS,
    Spelling("includeHeaders", "include_headers", flag),
    Spelling("columns", "columns", topics),
    Spelling("value.format", "value_format", _format),
    Spelling("value.schema", "value_schema", schema_from),
    Spelling("value.mode", "value_mode", _mode),
    Spelling("columnNameOfCorruptRecord", "corrupt_record", str),
)
