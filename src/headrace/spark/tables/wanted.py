"""Which rows of a table are wanted, as far as options or filters let brokers be asked for less.

Spark evaluates every filter all the same: this may ask for too much, never for too little.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, In, StringStartsWith


@dataclass(frozen=True, slots=True)
class Wanted:
    """The values of a column that are asked for, None for all of them."""

    group: frozenset[str] | None = None
    topic: frozenset[str] | None = None
    partition: frozenset[int] | None = None
    state: frozenset[str] | None = None
    prefixes: tuple[str, ...] = ()  # that the name of a group has to begin with, all of them

    def narrowed(self, filters: Iterable[Filter]) -> Self:
        """What is left when each of the filters has to be true."""
        found = self
        for one in filters:
            found = found._with(one)
        return found

    def names(self, known: Iterable[str]) -> list[str]:
        """Those of the known groups that are asked for, in their order."""
        return [
            name
            for name in known
            if (self.group is None or name in self.group)
            and all(map(name.startswith, self.prefixes))
        ]

    def has(self, topic: str, partition: int) -> bool:
        """Whether a partition is asked for."""
        return (self.topic is None or topic in self.topic) and (
            self.partition is None or partition in self.partition
        )

    def _with(self, one: Filter) -> Self:
        match one:
            case EqualTo(attribute=(column,), value=value):
                return self._one_of(column, [value])
            case EqualNullSafe(attribute=(column,), value=value) if value is not None:
                return self._one_of(column, [value])
            case In(attribute=(column,), value=values):
                return self._one_of(column, values)
            case StringStartsWith(attribute=("group",), value=prefix):
                return replace(self, prefixes=(*self.prefixes, prefix))
        return self

    def _one_of(self, column: str, values: Iterable[Any]) -> Self:
        if column not in _COLUMNS:
            return self
        allowed = frozenset(values) - {None}
        before = getattr(self, column)
        change: dict[str, Any] = {column: allowed if before is None else allowed & before}
        return replace(self, **change)


_COLUMNS = frozenset(one.name for one in fields(Wanted)) - {"prefixes"}
