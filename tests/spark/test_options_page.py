"""docs/spark.md has every option of every use of the source, with its default, and no other.

An option of queues is not unknown to a log, nor the other way round: it has a remedy.
"""

import re
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.spark import OptionError
from headrace.spark.log.options import LogOptions
from headrace.spark.options import ConnectOptions
from headrace.spark.queue.options import QueueOptions
from headrace.spark.sink.options import SinkOptions
from headrace.spark.tables.options import TableOptions

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
TABLE = re.compile(r"^\| option \| default \| meaning \|\n\|[- |]+\n((?:\|.*\n)+)", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
VALUE = re.compile(r"`([^`]+)`|(\d+)")
BROKER = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


class Use(NamedTuple):
    """A use of the source: its options, where the page has them, and those it cannot be without."""

    options: type[QueueOptions | LogOptions | SinkOptions | TableOptions]
    tables: tuple[tuple[str, int], ...]
    required: dict[str, str]


EVERY, READING = ("Options", 0), ("Options", 1)
USES = {
    "queue": Use(
        QueueOptions,
        (EVERY, READING, ("As a queue", 0)),
        {**BROKER, "subscribe": "orders", "share.group.id": "billing"},
    ),
    "log": Use(LogOptions, (EVERY, READING, ("As a log", 0)), {**BROKER, "subscribe": "orders"}),
    "sink": Use(SinkOptions, (EVERY, ("Writing", 0)), BROKER),
    "table": Use(TableOptions, (EVERY, ("Tables", 0)), {**BROKER, "table": "groups"}),
}


def documented(use: Use) -> dict[str, str | None]:
    """The options of a use in the page, each with its default where that is a value."""
    text = PAGE.read_text(encoding="utf-8")
    found: dict[str, str | None] = {}
    for heading, number in use.tables:
        section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        for row in TABLE.findall(section)[number].splitlines():
            names, default = (cell.strip() for cell in row.split("|")[1:3])
            values = ["".join(groups) for one in default.split(", ") if (groups := _value(one))]
            spelt = CODE.findall(names)
            assert not found.keys() & spelt, f"{spelt} stand twice"
            shown = values if len(values) == len(spelt) else [None] * len(spelt)
            found |= dict(zip(spelt, shown, strict=True))
    return found


def _value(text: str) -> tuple[str, ...] | None:
    match = VALUE.fullmatch(text)
    return None if match is None else tuple(match.groups(""))


def spelt(use: Use) -> set[str]:
    """The options that the code knows, from what it says of one that it does not."""
    with pytest.raises(OptionError, match="there are ") as raised:
        use.options.parse({"0123456789": ""})
    return set(str(raised.value).partition("there are ")[2].split(", "))


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_every_option_stands_in_the_page_and_no_other(use: Use) -> None:
    assert set(documented(use)) == spelt(use)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_defaults_are_those_of_the_page(use: Use) -> None:
    plain = use.options.parse(use.required)
    shown = {name: text for name, text in documented(use).items() if text is not None}
    assert len(shown) > len(use.tables)
    for name, text in shown.items():
        given = use.options.parse({**use.required, name: text})
        changed = {field.name for field in fields(plain) if of(given, field) != of(plain, field)}
        # None says that the default depends on whether it is a stream or a batch.
        assert all(getattr(plain, field) is None for field in changed), f"{name} is not {text}"


@pytest.mark.parametrize(("use", "other"), [("queue", "log"), ("log", "queue")])
def test_what_only_the_other_mode_has_is_refused_with_a_remedy(use: str, other: str) -> None:
    # With the name of a share group it is a queue.
    elsewhere = spelt(USES[other]) - spelt(USES[use]) - {"share.group.id", "kafka.share.group.id"}
    assert elsewhere
    for name in elsewhere:
        given = {**USES[use].required, name.lower(): "1"}  # as Spark folds it
        with pytest.raises(OptionError) as raised:
            USES[use].options.parse(given)
        told = str(raised.value)
        assert told.startswith(f"option '{name.lower()}' is not for this use of format"), told
        assert "\n" not in told


def of(options: ConnectOptions, field: Field[Any]) -> object:
    return getattr(options, field.name)
