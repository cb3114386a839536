"""The settings of KIP-842, as users of librdkafka write settings: values in any case.

Source: docs/reset.md; librdkafka's CONFIGURATION.md for the values that it knows.
"""

from enum import StrEnum
from typing import TypeVar

from headrace.core.reset import OutOfRange, Strategy

STRATEGY = "auto.offset.reset"
OUT_OF_RANGE = "offset.reset.strategy.offset-out-of-range"
_STOCK = {
    "smallest": Strategy.EARLIEST,
    "beginning": Strategy.EARLIEST,
    "largest": Strategy.LATEST,
    "end": Strategy.LATEST,
    "error": Strategy.NONE,
}

E = TypeVar("E", bound=StrEnum)


def strategy_of(text: object) -> Strategy:
    """What `auto.offset.reset` says. Raises: ValueError with the values there are."""
    if (stock := _STOCK.get(str(text).lower())) is not None:
        return stock
    return _one_of(Strategy, STRATEGY, text)


def out_of_range_of(text: object) -> OutOfRange:
    """What the auxiliary setting says. Raises: ValueError with the values there are."""
    return _one_of(OutOfRange, OUT_OF_RANGE, text)


def is_on(value: object) -> bool:
    """As librdkafka reads a switch."""
    return str(value).lower() in {"true", "t", "1"}


def _one_of(values: type[E], name: str, text: object) -> E:
    try:
        return values(str(text).lower())
    except ValueError:
        known = ", ".join(values)
        raise ValueError(f"{name} is {text!r}; it is one of {known}") from None
