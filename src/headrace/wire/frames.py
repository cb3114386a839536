"""Length-delimited frames and the headers inside them.

A connection carries frames of a 4-byte size and that many bytes. A request begins with its header
(version 1, or 2 with tagged fields), a response with its correlation id (header 0, or 1 with
tagged fields). `Frames` cuts a stream of bytes into frames and does no I/O itself: a socket writes
into the buffer it hands out, so a large frame is received where its records are later patched.
Source: Kafka protocol guide, "Protocol Structure"; RequestHeader.json, ResponseHeader.json.
"""

import struct
from dataclasses import dataclass

from headrace.wire.primitives import Buffer, Malformed, Reader

_SIZE = struct.Struct(">i")
_RESPONSE = struct.Struct(">ii")
_HEADER_BYTES_MIN = 8
_STAGING_BYTES = 16 * 1024
_FIRST_ALLOCATION_BYTES_MAX = 128 * 1024


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The part of a request's header that all its versions share, and where the rest begins."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    end: int


def request_head(frame: Buffer) -> RequestHead:
    """The header at the start of a frame. Raises: Malformed when the frame is too short."""
    source = Reader(frame)
    key, version = source.int16(), source.int16()
    correlation_id, client_id = source.int32(), source.nullable_string()
    return RequestHead(key, version, correlation_id, client_id, source.position)


def body_of(frame: Buffer, head: RequestHead, *, flexible: bool) -> memoryview:
    """What follows the header. Raises: Malformed when its tagged fields are cut off."""
    source = Reader(frame, head.end)
    if flexible:
        source.tags()
    return source.take(source.remaining)


def response_head(correlation_id: int, body_bytes: int, *, flexible: bool) -> bytes:
    """The size and header before a response body of `body_bytes`."""
    if flexible:
        return _RESPONSE.pack(body_bytes + 5, correlation_id) + b"\0"
    return _RESPONSE.pack(body_bytes + 4, correlation_id)


class Frames:
    """Cuts received bytes into frames of at most `bytes_max` bytes.

    Bytes are received into `buffer()`; `received(count)` then returns the frames that are complete.
    Small frames are staged and copied out; a large one is received in place. Memory for it grows
    with what arrived, so a claimed size alone costs nothing.
    """

    __slots__ = ("_bytes_max", "_filled", "_frame", "_size", "_staging")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._staging = bytearray(_STAGING_BYTES)
        self._frame: bytearray | None = None
        self._size = 0
        self._filled = 0

    def buffer(self) -> memoryview:
        """Where the next bytes go; valid until the next call of `received`. Never empty."""
        if self._frame is None:
            return memoryview(self._staging)[self._filled :]
        if self._filled == len(self._frame):
            self._frame.extend(bytes(min(self._filled, self._size - self._filled)))
        return memoryview(self._frame)[self._filled :]

    def received(self, count: int) -> list[bytearray]:
        """The frames completed by `count` more bytes, without their sizes.

        Raises: Malformed when a frame is larger than allowed or too small for a header.
        """
        self._filled += count
        if self._frame is None:
            return self._unstaged()
        if self._filled < self._size:
            return []
        frame, self._frame, self._filled = self._frame, None, 0
        return [frame]

    def _unstaged(self) -> list[bytearray]:
        found: list[bytearray] = []
        start, end = 0, self._filled
        while end - start >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._staging, start)
            if not _HEADER_BYTES_MIN <= size <= self._bytes_max:
                raise Malformed(
                    f"a frame of {size} bytes; {_HEADER_BYTES_MIN} to {self._bytes_max} are allowed"
                )
            body = start + _SIZE.size
            if size > _STAGING_BYTES - _SIZE.size and end - body < size:
                self._receive_in_place(size, body)
                return found
            if end - body < size:
                break
            found.append(self._staging[body : body + size])
            start = body + size
        self._staging[: end - start] = self._staging[start:end]
        self._filled = end - start
        return found

    def _receive_in_place(self, size: int, body: int) -> None:
        part = self._staging[body : self._filled]
        # At least one byte more than what is there, so that the buffer has room.
        self._frame = bytearray(min(size, _FIRST_ALLOCATION_BYTES_MAX))
        self._frame[: len(part)] = part
        self._size, self._filled = size, len(part)
