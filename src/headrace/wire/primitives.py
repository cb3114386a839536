"""The primitive types of the Kafka protocol, read from and written to bytes.

Used where a message is encoded by hand: hot responses, the lease API and the records of the
journals. Every other message goes through kio (`wire/codec.py`).
Source: Kafka protocol guide, "Protocol Primitive Types"; KIP-482 for the compact forms.
"""

import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

T = TypeVar("T")

Buffer = bytes | bytearray | memoryview
_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_UVARINT_BYTES_MAX = 5
_VARLONG_BYTES_MAX = 10
_TAGS_MAX = 1000  # in one section; Kafka's messages have a handful
_NO_LIMIT = 1 << 62
TOO_MANY_ELEMENTS = "more array elements than headrace.max.request.elements allows"
_INT16_NEGATIVE = 1 << 15  # and above, as an unsigned number


class Malformed(Exception):
    """Bytes that are not what their schema says."""


class TooManyElementsError(Malformed):
    """A request has more array elements than are accepted."""


class NewerVersionError(Malformed):
    """A stored record has a type or version that only a newer release knows."""


@lru_cache(maxsize=4096)
def uuid_of(raw: bytes) -> UUID:
    """An id from its bytes; making one takes longer than all else about a small request."""
    return UUID(bytes=raw)


class Reader:
    """Reads primitives one after the other.

    Raises: `Malformed` when the bytes end early or a length is impossible, from every method.

    Args:
        elements: Array elements that may be read; more raise `TooManyElementsError`.
    """

    __slots__ = ("_data", "_elements", "position")

    def __init__(self, data: Buffer, position: int = 0, elements: int = _NO_LIMIT) -> None:
        self._data = memoryview(data)
        self._elements = elements
        self.position = position

    def spend(self, count: int) -> None:
        """Take `count` elements from those that may be read. Raises: TooManyElementsError."""
        self._elements -= count
        if self._elements < 0:
            raise TooManyElementsError(TOO_MANY_ELEMENTS)

    def part(self, data: Buffer) -> "Reader":
        """Return a reader of a part, which draws from the elements that are left here."""
        return Reader(data, 0, self._elements)

    def take(self, count: int) -> memoryview:
        """The next `count` bytes, without a copy."""
        start = self.position
        if count < 0 or start + count > len(self._data):
            raise Malformed(f"{count} bytes wanted at {start}, {len(self._data) - start} left")
        self.position = start + count
        return self._data[start : start + count]

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        """The fields of `form`; one call for neighbours is much faster than one for each."""
        start = self.position
        try:
            found = form.unpack_from(self._data, start)
        except struct.error as error:
            left = len(self._data) - start
            raise Malformed(f"{form.size} bytes wanted at {start}, {left} left") from error
        self.position = start + form.size
        return found

    @property
    def remaining(self) -> int:
        return len(self._data) - self.position

    def int8(self) -> int:
        return int(self.unpack(_INT8)[0])

    def boolean(self) -> bool:
        return self.int8() != 0

    def int16(self) -> int:
        return int(self.unpack(_INT16)[0])

    def int32(self) -> int:
        start = self.position
        try:
            value: int
            (value,) = _INT32.unpack_from(self._data, start)
        except struct.error:
            value = self.unpack(_INT32)[0]  # raises Malformed
        self.position = start + 4
        return value

    def int64(self) -> int:
        return int(self.unpack(_INT64)[0])

    def uuid(self) -> UUID:
        return uuid_of(bytes(self.take(16)))

    def _base128(self, bytes_max: int) -> int:
        data, start = self._data, self.position
        value = 0
        for index in range(min(bytes_max, len(data) - start)):
            byte = data[start + index]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                self.position = start + index + 1
                return value
        if len(data) - start < bytes_max:
            raise Malformed(f"1 bytes wanted at {len(data)}, 0 left")
        raise Malformed(f"a varint of more than {bytes_max} bytes at {start}")

    def uvarint(self) -> int:
        # Nearly all are lengths and counts of one byte.
        position = self.position
        if position < len(self._data) and (byte := self._data[position]) < 0x80:
            self.position = position + 1
            return byte
        return self._base128(_UVARINT_BYTES_MAX)

    def varlong(self) -> int:
        """A zigzag varint or varlong."""
        raw = self._base128(_VARLONG_BYTES_MAX)
        return (raw >> 1) ^ -(raw & 1)

    def count(self, *, flexible: bool) -> int:
        """The length of an array that must stand here, -1 for null: compact when `flexible`."""
        count = self.uvarint() - 1 if flexible else self.int32()
        if not -1 <= count <= len(self._data) - self.position:
            raise Malformed(f"an array of {count} in {self.remaining} bytes")
        if count > 0:
            self._elements -= count
            if self._elements < 0:
                self.spend(0)  # raises Malformed
        return count

    def string(self, *, flexible: bool) -> str | None:
        """A nullable string of either form."""
        return self.compact_nullable_string() if flexible else self.nullable_string()

    def text(self, count: int) -> str:
        """The next `count` bytes as a string."""
        try:
            return str(self.take(count), "utf-8")
        except UnicodeDecodeError as error:
            raise Malformed(f"not UTF-8 at {self.position - count}") from error

    def compact_nullable_string(self) -> str | None:
        # Nearly all are short; without further calls for the parts.
        data, start = self._data, self.position
        if start < len(data) and 0 < (count := data[start]) < 0x80 and start + count <= len(data):
            try:
                text = str(data[start + 1 : start + count], "utf-8")
            except UnicodeDecodeError as error:
                raise Malformed(f"not UTF-8 at {start + 1}") from error
            self.position = start + count
            return text
        count = self.uvarint()
        return None if count == 0 else self.text(count - 1)

    def compact_string(self) -> str:
        value = self.compact_nullable_string()
        if value is None:
            raise Malformed(f"null where a string must stand at {self.position}")
        return value

    def nullable_string(self) -> str | None:
        # Without further calls for the parts, as above.
        data, start = self._data, self.position + 2
        if start <= len(data):
            count = data[start - 2] << 8 | data[start - 1]
            if count >= _INT16_NEGATIVE:
                self.position = start
                return None
            if start + count <= len(data):
                try:
                    text = str(data[start : start + count], "utf-8")
                except UnicodeDecodeError as error:
                    raise Malformed(f"not UTF-8 at {start}") from error
                self.position = start + count
                return text
        return self.text(self.int16())  # raises Malformed

    def compact_array(self, item: "Callable[[Reader], T]") -> list[T]:
        count = self.uvarint() - 1
        if count > self.remaining:
            raise Malformed(f"an array of {count} in {self.remaining} bytes")
        self.spend(max(count, 0))
        return [item(self) for _ in range(count)]

    def tags(self) -> dict[int, memoryview]:
        """A tagged-field section: tag number to raw bytes."""
        found: dict[int, memoryview] = {}
        position = self.position
        if position < len(self._data) and self._data[position] == 0:  # nearly always
            self.position = position + 1
            return found
        count = self.uvarint()
        if count > _TAGS_MAX:
            raise Malformed(f"{count} tagged fields; {_TAGS_MAX} are allowed")
        for _ in range(count):
            tag = self.uvarint()
            found[tag] = self.take(self.uvarint())
        return found


class Writer:
    """Writes primitives one after the other into one growing buffer."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = bytearray()

    def raw(self, data: Buffer) -> None:
        self.data += data

    def int8(self, value: int) -> None:
        self.data.append(value & 0xFF)

    def boolean(self, value: bool) -> None:
        self.data.append(1 if value else 0)

    def int16(self, value: int) -> None:
        self.data += _INT16.pack(value)

    def int32(self, value: int) -> None:
        self.data += _INT32.pack(value)

    def int64(self, value: int) -> None:
        self.data += _INT64.pack(value)

    def uuid(self, value: UUID) -> None:
        self.data += value.bytes

    def uvarint(self, value: int) -> None:
        if 0 <= value < 0x80:
            self.data.append(value)
            return
        while value > 0x7F:
            self.data.append((value & 0x7F) | 0x80)
            value >>= 7
        self.data.append(value)

    def varlong(self, value: int) -> None:
        self.uvarint((value << 1) ^ (value >> 63))

    def compact_nullable_string(self, value: str | None) -> None:
        if value is None:
            self.uvarint(0)
            return
        encoded = value.encode()
        size = len(encoded) + 1
        if size < 0x80:
            self.data.append(size)
        else:
            self.uvarint(size)
        self.data += encoded

    def compact_string(self, value: str) -> None:
        self.compact_nullable_string(value)

    def nullable_string(self, value: str | None) -> None:
        if value is None:
            self.int16(-1)
            return
        encoded = value.encode()
        self.int16(len(encoded))
        self.data += encoded

    def count(self, value: int, *, flexible: bool) -> None:
        """The length of an array or of bytes, -1 for null: compact when `flexible`."""
        if flexible:
            self.uvarint(value + 1)
        else:
            self.int32(value)

    def string(self, value: str | None, *, flexible: bool) -> None:
        """A nullable string of either form."""
        if flexible:
            self.compact_nullable_string(value)
        else:
            self.nullable_string(value)

    def compact_array(self, items: Iterable[T], item: "Callable[[Writer, T], None]") -> None:
        values = list(items)
        self.uvarint(len(values) + 1)
        for value in values:
            item(self, value)

    def tags(self, fields: dict[int, bytes] | None = None) -> None:
        """A tagged-field section, tags in ascending order as KIP-482 demands."""
        if not fields:
            self.data.append(0)
            return
        self.uvarint(len(fields))
        for tag in sorted(fields):
            self.uvarint(tag)
            self.uvarint(len(fields[tag]))
            self.data += fields[tag]
