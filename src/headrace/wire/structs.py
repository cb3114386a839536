"""Messages as dataclasses whose annotations say how each field is written.

For the messages and records that are Headrace's own: every field names one of the types below, or a
tuple of structs or of such types; a struct ends with an (empty) section of tagged fields. A layout
is compiled once for its class.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Self, get_args, get_origin, get_type_hints

from headrace.wire.primitives import Reader, Writer


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is read and written."""

    read: Callable[[Reader], Any]
    write: Callable[[Writer, Any], None]


Int8 = Annotated[int, Kind(Reader.int8, Writer.int8)]
Int16 = Annotated[int, Kind(Reader.int16, Writer.int16)]
Int32 = Annotated[int, Kind(Reader.int32, Writer.int32)]
Int64 = Annotated[int, Kind(Reader.int64, Writer.int64)]
Text = Annotated[str, Kind(Reader.compact_string, Writer.compact_string)]
MaybeText = Annotated[
    str | None, Kind(Reader.compact_nullable_string, Writer.compact_nullable_string)
]


def maybe_array(item: "type[Struct]") -> Kind:
    """An array of structs, or null: `Annotated[tuple[Item, ...] | None, maybe_array(Item)]`."""

    def read(source: Reader) -> tuple[Struct, ...] | None:
        count = source.count(flexible=True)
        return None if count < 0 else tuple(item.read(source) for _ in range(count))

    def write(out: Writer, values: tuple[Struct, ...] | None) -> None:
        if values is None:
            out.count(-1, flexible=True)
        else:
            out.compact_array(values, lambda target, value: value.write(target))

    return Kind(read, write)


class Struct:
    """A dataclass that can write and read itself.

    Raises: `Malformed` from `read`, for bytes that are not of its layout.
    """

    __slots__ = ()

    def write(self, out: Writer) -> None:
        """Append the fields to `out`."""
        for name, kind in _layout(type(self)):
            kind.write(out, getattr(self, name))
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        """A struct from where `source` stands."""
        found = cls(*(kind.read(source) for _, kind in _layout(cls)))
        source.tags()
        return found


_layouts: dict[type[Any], list[tuple[str, Kind]]] = {}


def _layout(struct: type[Any]) -> list[tuple[str, Kind]]:
    known = _layouts.get(struct)
    if known is None:
        hints = get_type_hints(struct, include_extras=True)
        known = [(field.name, _kind(hints[field.name])) for field in fields(struct)]
        _layouts[struct] = known
    return known


def _kind(hint: Any) -> Kind:
    if get_origin(hint) is Annotated:
        kind = hint.__metadata__[0]
        assert isinstance(kind, Kind), hint
        return kind
    if get_origin(hint) is tuple:
        item = _kind(get_args(hint)[0])
        return Kind(
            lambda source: tuple(source.compact_array(item.read)),
            lambda out, values: out.compact_array(values, item.write),
        )
    assert issubclass(hint, Struct), hint
    return Kind(hint.read, lambda out, value: value.write(out))
