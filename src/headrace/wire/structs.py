"""Messages as dataclasses whose annotations say how each field is written.

For the messages and records that are Headrace's own: every field names one of the types below, or a
tuple of structs or of such types; a struct ends with a section of tagged fields. Fields of
responses that a later release adds are tagged, so that the version stays: an older reader skips
them, and what an older writer left out has the default of the dataclass. A layout is compiled once
for its class.
Source: KIP-482.
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


@dataclass(frozen=True, slots=True)
class Tagged:
    """A field of the tagged section, which is written unless it has its default."""

    tag: int
    kind: Kind


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
        layout = _layout(type(self))
        for name, kind in layout.fields:
            kind.write(out, getattr(self, name))
        out.tags(self._written_tags(layout.tagged) if layout.tagged else None)

    @classmethod
    def read(cls, source: Reader) -> Self:
        """A struct from where `source` stands."""
        layout = _layout(cls)
        values = [kind.read(source) for _, kind in layout.fields]
        tags = source.tags()
        if not layout.tagged or not tags:
            return cls(*values)
        tagged = {
            name: kind.read(Reader(tags[tag]))
            for tag, (name, kind, _) in layout.tagged.items()
            if tag in tags
        }
        return cls(*values, **tagged)

    def _written_tags(self, tagged: "_TaggedFields") -> dict[int, bytes]:
        """Return the tagged fields that do not have their default, encoded."""
        encoded: dict[int, bytes] = {}
        for tag, (name, kind, default) in tagged.items():
            value = getattr(self, name)
            if value != default:
                out = Writer()
                kind.write(out, value)
                encoded[tag] = bytes(out.data)
        return encoded


_TaggedFields = dict[int, tuple[str, Kind, Any]]  # by tag: name and default beside


@dataclass(frozen=True, slots=True)
class _Layout:
    fields: list[tuple[str, Kind]]
    tagged: _TaggedFields


_layouts: dict[type[Any], _Layout] = {}


def _layout(struct: type[Any]) -> _Layout:
    known = _layouts.get(struct)
    if known is None:
        known = _Layout([], {})
        hints = get_type_hints(struct, include_extras=True)
        for field in fields(struct):
            hint = hints[field.name]
            mark = hint.__metadata__[0] if get_origin(hint) is Annotated else None
            if isinstance(mark, Tagged):
                known.tagged[mark.tag] = (field.name, mark.kind, field.default)
            else:
                known.fields.append((field.name, _kind(hint)))
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
