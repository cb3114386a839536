"""Answers that refuse: a Kafka error code, in the place where an API's answer has one.

The place is the whole answer, or each topic, group, member, coordinator or resource that is to
fail; inside of these it is the outermost structure with an error code.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

from headrace.wire.codec import schemas, unwrapped
from headrace.wire.message_items import ERROR, Item, Kind, identity_fields, items_of, kind_of

_MESSAGE = "error_message"
_UNKNOWN = ("offset", "watermark", "time")  # is -1
_ZEROS = {
    "string": "", "bytes": b"", "records": b"", "uuid": None, "bool": False, "float64": 0.0,
    "error_code": 0, "uint16": 0,
}  # fmt: skip


class Whole(Enum):
    """The place for an error of the whole answer."""

    WHOLE = "whole"


Place = Kind | Whole


def places_of(response: Any) -> list[Place]:
    """Where an answer, given its schema, has room for an error; outermost first."""
    whole: list[Place] = [Whole.WHOLE] if _has_error(response) else []
    return whole + _places_below(response)


def refusal(
    response: Any, items: Sequence[Item], place: Place, code: int, text: str, *,
    armed: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return the fields of an answer that refuses `items`, and answers nothing else.

    Args:
        response: Schema of the answer.
        items: What the request names, as a tree.
        place: Where the error stands.
        code: Kafka's error code.
        text: Error message, where the structure has a field for it.
        armed: Whether a structure around this one is the place.
    """
    values = _blank(response)
    armed = armed or place is Whole.WHOLE
    if armed and _has_error(response):
        values[ERROR] = code
        if any(one.name == _MESSAGE for one in fields(response)):
            values[_MESSAGE] = text
        return values
    for one in fields(response):
        inner, is_array, _ = unwrapped(one.type)
        kind = kind_of(inner) if is_array and is_dataclass(inner) else None  # type: ignore[arg-type]  # classes are hashable
        if kind is None:
            continue
        values[one.name] = [
            refusal(inner, item.items, place, code, text, armed=armed or kind is place)
            | _named(inner, item)
            for item in items
            if item.kind is kind
        ]
    return values


def refused_request(
    key: int, version: int, message: Any, code: int, text: str
) -> dict[str, Any] | None:
    """Return the fields of an answer that refuses a whole request; None where none has an error.

    Args:
        message: The decoded request; None where it was not decoded. Then only an answer with an
            error code of its own can refuse it.
    """
    response = schemas(key, version)[1]
    for place in places_of(response):
        if place is Whole.WHOLE:
            return refusal(response, [], place, code, text)
        if message is not None:
            return refusal(response, items_of(message), place, code, text)
    return None


def merged(served: dict[str, Any], refused: dict[str, Any]) -> dict[str, Any]:
    """One answer of what was served and what was refused; a group may have parts of both."""
    for name, added in refused.items():
        if not added or not isinstance(added, list):
            continue
        there = served[name] = list(served.get(name) or ())
        for one in added:
            group = one.get("group_id")
            same = next((two for two in there if group and two.get("group_id") == group), None)
            if same is None:
                there.append(one)
            else:
                same |= {ERROR: one.get(ERROR, 0)}
                merged(same, one)
    return served


def of_kind(items: Sequence[Item], place: Place, chosen: Callable[[Item], bool]) -> list[Item]:
    """The tree cut down to what is chosen of the kind `place`, and what leads there."""
    found: list[Item] = []
    for one in items:
        if one.kind is place:
            if chosen(one):
                found.append(one)
        elif below := of_kind(one.items, place, chosen):
            found.append(Item(one.kind, one.names, below))
    return found


def _places_below(schema: Any) -> list[Place]:
    found: list[Place] = []
    for one in fields(schema):
        inner, is_array, _ = unwrapped(one.type)
        if is_array and is_dataclass(inner):
            below = _places_below(inner)
            kind = kind_of(inner)  # type: ignore[arg-type]  # classes are hashable
            if kind is not None and (_has_error(inner) or below):  # type: ignore[arg-type]  # classes are hashable
                found.append(kind)
            found += below
    return found


@cache
def _has_error(schema: Any) -> bool:
    return any(one.name == ERROR for one in fields(schema))


def _named(schema: Any, item: Item) -> dict[str, Any]:
    names = identity_fields(schema, item.kind)
    if item.kind is Kind.TOPIC:
        return {
            one: item.names["topic_id" if one == "topic_id" else "name"]
            for one in names
        }  # fmt: skip
    if item.kind is Kind.PARTITION:
        return {names[0]: item.names["partition"]}
    return {one: item.names.get(one) for one in names}


def _blank(schema: Any) -> dict[str, Any]:
    return _blank_of(schema).copy()


@cache
def _blank_of(schema: Any) -> dict[str, Any]:
    """The fields that the codec wants to be given, empty; arrays are replaced, never filled."""
    return {
        one.name: _empty(one)
        for one in fields(schema)
        if one.default is MISSING or (one.default is None and _is_number(one))
    }


def _is_number(one: Any) -> bool:
    """kio takes moments for optional; on the wire they are numbers."""
    return str(one.metadata.get("kafka_type", "")).startswith(("int", "datetime", "timedelta"))


def _empty(one: Any) -> Any:
    inner, is_array, nullable = unwrapped(one.type)
    if is_array:
        return []
    if _is_number(one):
        return -1 if any(word in one.name for word in _UNKNOWN) else 0
    if nullable:
        return None
    if is_dataclass(inner):
        return _blank(inner)
    return _ZEROS[one.metadata["kafka_type"]]
