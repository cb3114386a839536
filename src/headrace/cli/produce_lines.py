r"""Lines of input as records, by the properties of kafka-console-producer's line reader.

With headers and key a line is `h1:v1,h2:v2\tkey\tvalue`. Bytes stay bytes: nothing is decoded but
the names of headers. A line ends with LF or CRLF.
Source: org.apache.kafka.tools.LineMessageReader (4.3).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import BinaryIO

from headrace.cli.ending import Trouble

LINE_BYTES_MAX = 256 << 20
Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Line:
    """One record to be sent."""

    number: int
    key: bytes | None
    value: bytes | None
    headers: Headers = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LineReader:
    """Splits lines. `parse` takes the properties of --reader-property."""

    parse_key: bool = False
    parse_headers: bool = False
    ignore_error: bool = False
    key_separator: bytes = b"\t"
    headers_delimiter: bytes = b"\t"
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    null_marker: bytes | None = None

    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> "LineReader":
        """Raises: Trouble for a name, a value or a combination that makes no sense."""
        values: dict[str, bytes | bool] = {}
        for name, text in properties.items():
            field_name = name.replace(".", "_")
            if field_name not in cls.__dataclass_fields__:
                known = ", ".join(one.replace("_", ".") for one in cls.__dataclass_fields__)
                raise Trouble(f"--reader-property {name} is not known; one of {known}")
            if field_name in {"parse_key", "parse_headers", "ignore_error"}:
                values[field_name] = text.strip().lower() == "true"
            elif text:
                values[field_name] = text.encode()
            else:
                raise Trouble(f"--reader-property {name} may not be empty")
        reader = cls(**values)  # type: ignore[arg-type]  # by field name, checked above
        reader._require_difference()
        return reader

    def lines(self, source: BinaryIO) -> Iterator[Line]:
        """The records in `source`. Raises: Trouble at the first line that cannot be split."""
        number = 0
        while raw := source.readline(LINE_BYTES_MAX):
            number += 1
            if len(raw) == LINE_BYTES_MAX:
                raise Trouble(f"line number {number} has more than {LINE_BYTES_MAX} bytes")
            yield self.line(raw.removesuffix(b"\n").removesuffix(b"\r"), number)

    def line(self, text: bytes, number: int) -> Line:
        """The record in one line. Raises: Trouble."""
        headers, rest = None, text
        key = None
        if self.parse_headers:
            headers, rest = self._cut(rest, self.headers_delimiter, "headers delimiter", number)
        if self.parse_key:
            key, rest = self._cut(rest, self.key_separator, "key separator", number)
        found = [] if headers is None else self._headers(headers, number)
        return Line(number, self._or_null(key), self._or_null(rest), found)

    def _cut(
        self, text: bytes, separator: bytes, what: str, number: int
    ) -> tuple[bytes | None, bytes]:
        before, found, after = text.partition(separator)
        if found:
            return before, after
        if self.ignore_error:
            return None, text
        shown = text.decode(errors="replace")
        raise Trouble(f"No {what} found on line number {number}: '{shown}'")

    def _headers(self, text: bytes, number: int) -> Headers:
        if text == self.null_marker:
            return []
        found: Headers = []
        for pair in text.split(self.headers_separator):
            name, separator, value = pair.partition(self.headers_key_separator)
            shown = pair.decode(errors="replace")
            if not separator and not self.ignore_error:
                raise Trouble(
                    f"No header key separator found in pair '{shown}' on line number {number}"
                )
            if separator and name == self.null_marker:
                raise Trouble(
                    f"Header keys should not be equal to the null marker '{shown}' as they can't "
                    f"be null, on line number {number}"
                )
            found.append(
                (name.decode(errors="replace"), self._or_null(value) if separator else None)
            )
        return found

    def _or_null(self, value: bytes | None) -> bytes | None:
        return None if value == self.null_marker else value

    def _require_difference(self) -> None:
        """Raises: Trouble when two separators are the same where both are looked for."""
        used = {"null.marker": self.null_marker} if self.null_marker is not None else {}
        if self.parse_key:
            used["key.separator"] = self.key_separator
        if self.parse_headers:
            used["headers.separator"] = self.headers_separator
            used["headers.key.separator"] = self.headers_key_separator
            used["headers.delimiter"] = self.headers_delimiter
        for (one, text), (other, same) in combinations(used.items(), 2):
            if text == same and {one, other} != {"key.separator", "headers.delimiter"}:
                raise Trouble(f"{one} and {other} may not be equal")
