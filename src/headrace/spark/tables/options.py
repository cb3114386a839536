"""The options of a table; docs/spark.md has the list."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from headrace.spark.options import (
    CONNECT_SPELLINGS,
    ConnectOptions,
    OptionError,
    Spelling,
    flag,
    parsed,
    topics,
)

NAMES = ("groups", "members", "offsets", "share_partitions", "in_flight", "dead_letters")
_OPTION = "table"
_WITHOUT_TOPICS = ("groups", "members")
_FILTER = "a table has all groups and topics unless options 'group' and 'topic' name some"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions(ConnectOptions):
    """What `read.format("headrace")` was given with `table`."""

    table: str
    groups: frozenset[str] | None = None
    topics: frozenset[str] | None = None
    push_down: bool = False

    @property
    def who(self) -> str:
        return f"table-{self.table}"

    @staticmethod
    def wanted(given: Mapping[str, str]) -> bool:
        """Whether a table is asked for, and not records."""
        return any(name.lower() == _OPTION for name in given)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """The options in `given`, in any case. Raises: `OptionError`, one line with the remedy."""
        options = cls(**parsed(given, _SPELLINGS, _ELSEWHERE))
        if options.topics is not None and options.table in _WITHOUT_TOPICS:
            raise OptionError(
                f"option 'topic' is not for the table {options.table!r}, whose rows are of no one "
                "topic: leave it out, and filter the rows"
            )
        return options


def _table(text: str) -> str:
    name = text.lower().replace("-", "_")
    if name not in NAMES:
        raise ValueError(f"there are {', '.join(NAMES)}")
    return name


def _names(text: str) -> frozenset[str]:
    found = frozenset(topics(text))
    if not found:
        raise ValueError("give names, separated by commas, or leave it out for all")
    return found


_SPELLINGS = (
    *CONNECT_SPELLINGS,
    Spelling(_OPTION, "table", _table, NAMES[0]),
    Spelling("group", "groups", _names),
    Spelling("topic", "topics", _names),
    Spelling("pushDownPredicate", "push_down", flag),
)
_ELSEWHERE = {
    **dict.fromkeys(
        ("subscribe", "subscribepattern", "assign", "kafka.group.id", "share.group.id"), _FILTER
    ),
    "path": "load() takes no path; name the table with option 'table'",
}
