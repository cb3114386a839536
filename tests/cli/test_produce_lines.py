"""Lines become the records that Kafka's line reader makes of them."""

import io

import pytest

from headrace.cli.ending import Trouble
from headrace.cli.produce_lines import Line, LineReader

KEYED = {"parse.key": "true"}
FULL = KEYED | {"parse.headers": "true"}


def read(text: bytes, properties: dict[str, str]) -> list[Line]:
    return list(LineReader.parse(properties).lines(io.BytesIO(text)))


def test_lines_are_values() -> None:
    assert read(b"a\r\n\n\xff\x00\rb\nlast", {}) == [
        Line(1, None, b"a"),
        Line(2, None, b""),
        Line(3, None, b"\xff\x00\rb"),
        Line(4, None, b"last"),
    ]


def test_keys_and_headers() -> None:
    assert read(b"h1:v1,h2:v:2\tk\tv\tw\n", FULL) == [
        Line(1, b"k", b"v\tw", [("h1", b"v1"), ("h2", b"v:2")])
    ]
    assert read(b"k::v", KEYED | {"key.separator": "::"}) == [Line(1, b"k", b"v")]


def test_the_null_marker() -> None:
    marked = FULL | {"null.marker": "NULL"}
    assert read(b"NULL\tNULL\tNULL\nh:NULL\t\tv\n", marked) == [
        Line(1, None, None),
        Line(2, b"", b"v", [("h", None)]),
    ]
    with pytest.raises(Trouble, match="can't be null"):
        read(b"NULL:v\tk\tv", marked)


@pytest.mark.parametrize(
    ("text", "properties", "told"),
    [
        (b"k\tv\nnone\n", KEYED, "No key separator found on line number 2: 'none'"),
        (b"none", FULL, "No headers delimiter found on line number 1: 'none'"),
        (b"h:v\tv", FULL, "No key separator found on line number 1"),
        (b"h\tk\tv", FULL, "No header key separator found in pair 'h' on line number 1"),
    ],
)
def test_a_line_that_cannot_be_split(text: bytes, properties: dict[str, str], told: str) -> None:
    with pytest.raises(Trouble, match=told):
        read(text, properties)


def test_errors_may_be_ignored() -> None:
    assert read(b"none\nh\tk\tv", FULL | {"ignore.error": "true"}) == [
        Line(1, None, b"none"),
        Line(2, b"k", b"v", [("h", None)]),
    ]


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({"parse.keys": "true"}, "parse.keys is not known; one of parse.key,"),
        (KEYED | {"key.separator": ""}, "key.separator may not be empty"),
        (KEYED | {"null.marker": "\t"}, "null.marker and key.separator may not be equal"),
        (FULL | {"headers.separator": ":"}, "may not be equal"),
    ],
)
def test_properties_that_make_no_sense(properties: dict[str, str], told: str) -> None:
    with pytest.raises(Trouble, match=told):
        LineReader.parse(properties)
