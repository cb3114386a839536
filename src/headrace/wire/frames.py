"""Length-delimited frames and the headers inside them.

A connection carries frames of a 4-byte size and that many bytes. A request begins with its header
(version 1, or 2 with tagged fields), a response with its correlation id (header 0, or 1 with
tagged fields). `Frames` cuts a stream of bytes into frames and does no I/O itself: a socket writes
into the buffer it hands out, so a large frame is received where its records are later patched.
Source: Kafka protocol guide, "Protocol Structure"; RequestHeader.json, ResponseHeader.json.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

from headrace.wire import kernel
from headrace.wire.primitives import Buffer, Malformed, Reader, Writer

_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">hhih")
_RESPONSE = struct.Struct(">ii")
_RESPONSE_FLEXIBLE = struct.Struct(">iib")
_HEADER_BYTES_MIN = 8
_TLS_HANDSHAKE, _TLS_MAJOR = 0x16, 3
_HTTP_METHODS = frozenset({b"GET ", b"POST", b"HEAD", b"PUT "})
STAGING_BYTES = 64 * 1024
_FIRST_ALLOCATION_BYTES_MIN = 4 * 1024
_LARGEST_BYTES_MAX = 1024 * 1024  # what a producer's request is by default at most
# From so many bytes on, memory for a frame grows to four times what arrived, below to twice.
_LARGE_BYTES = 32 * 1024
_LARGE_FACTOR, _SMALL_FACTOR = 4, 2
_KEY_AND_VERSION = struct.Struct(">hh")


class RequestHead(NamedTuple):
    """The part of a request's header that all its versions share, and where the rest begins."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    end: int


def request_head(frame: Buffer) -> RequestHead:
    """The header at the start of a frame. Raises: Malformed when the frame is too short."""
    if len(frame) >= _HEAD.size:  # by hand: it is a good part of what a small request costs
        key, version, correlation_id, size = _HEAD.unpack_from(frame)
        end = _HEAD.size + max(size, 0)
        if end <= len(frame):
            try:
                client_id = None if size < 0 else str(frame[_HEAD.size : end], "utf-8")
            except UnicodeDecodeError as error:
                raise Malformed(f"not UTF-8 at {_HEAD.size}") from error
            return RequestHead(key, version, correlation_id, client_id, end)
        raise Malformed(f"{size} bytes wanted at {_HEAD.size}, {len(frame) - _HEAD.size} left")
    raise Malformed(f"{_HEAD.size} bytes wanted at 0, {len(frame)} left")


def body_of(frame: Buffer, head: RequestHead, *, flexible: bool) -> memoryview:
    """What follows the header. Raises: Malformed when its tagged fields are cut off."""
    start = head.end
    if flexible:
        if start < len(frame) and frame[start] == 0:  # nearly always
            start += 1
        else:
            source = Reader(frame, start)
            source.tags()
            start = source.position
    return memoryview(frame)[start:]


def response_head(correlation_id: int, body_bytes: int, *, flexible: bool) -> bytes:
    """The size and header before a response body of `body_bytes`."""
    if flexible:
        return _RESPONSE_FLEXIBLE.pack(body_bytes + 5, correlation_id, 0)
    return _RESPONSE.pack(body_bytes + 4, correlation_id)


def _extend(frame: bytearray, size: int) -> None:
    """Make a frame longer. Raises: BufferError while a view of it exists."""
    frame.extend(bytes(size - len(frame)))


_kernel = kernel.load()
_lengthen = _extend if _kernel is None else _kernel.lengthen


def _wrong_size(size: int, bytes_max: int) -> str:
    """Return why a frame of that size is refused; other protocols are named."""
    begin = _SIZE.pack(size)
    if begin[0] == _TLS_HANDSHAKE and begin[1] == _TLS_MAJOR:
        return "a TLS handshake on a plaintext port; set security.protocol=PLAINTEXT in the client"
    if begin in _HTTP_METHODS:
        return "an HTTP request on the port of the Kafka protocol; metrics have a port of their own"
    return f"a frame of {size} bytes; {_HEADER_BYTES_MIN} to {bytes_max} are allowed"


class Frames:
    """Cuts received bytes into frames of at most `bytes_max` bytes.

    Bytes are received into `buffer()`; `received(count)` then returns the frames that are complete.
    What arrives first is staged and copied out, so that one system call receives many small frames;
    the rest of a large frame is received in place. Memory for it grows with what arrived, so a
    claimed size alone costs nothing; from the second on it is at once as large as the largest frame
    that the connection completed, up to 1 MiB, so that one system call receives a producer's
    request. Nothing of a connection stays in `staging` between the two calls: all connections of
    one event loop may share it.

    Args:
        bytes_max: Size of the largest frame accepted.
        staging: Memory shared with other connections, at least `STAGING_BYTES` long.
        check: Called with API key, version and size of each frame that did not arrive at once,
            before memory is allocated for it; raises Malformed to refuse the frame.
    """

    __slots__ = (
        "_bytes_max", "_check", "_filled", "_frame", "_largest", "_rest", "_size", "_staging",
    )  # fmt: skip

    def __init__(
        self,
        bytes_max: int,
        staging: bytearray,
        check: Callable[[int, int, int], None] | None = None,
    ) -> None:
        self._bytes_max = bytes_max
        self._staging = staging
        self._check = check
        self._rest = b""  # of a size that is not whole
        self._frame: bytearray | None = None
        self._size = 0
        self._filled = 0
        self._largest = _FIRST_ALLOCATION_BYTES_MIN  # of the frames that were received in place

    @property
    def allocated_bytes(self) -> int:
        """Memory of the frame that is incomplete, in bytes; 0 without one."""
        return 0 if self._frame is None else len(self._frame)

    @property
    def growth_bytes(self) -> int:
        """Bytes that the next `buffer()` allocates; 0 while there is room."""
        if self._frame is None or self._filled < len(self._frame):
            return 0
        filled = self._filled
        factor = _SMALL_FACTOR if filled < _LARGE_BYTES else _LARGE_FACTOR
        return min(max(factor * filled, self._largest), self._size) - filled

    def discard(self) -> None:
        """Drop the incomplete frame; the connection has ended."""
        self._frame = None

    def buffer(self) -> memoryview:
        """Where the next bytes go; valid until the next call of `received`. Never empty."""
        frame = self._frame
        if frame is None:
            count = len(self._rest)
            self._staging[:count] = self._rest
            return memoryview(self._staging)[count:]
        growth = self.growth_bytes
        if growth:
            try:
                _lengthen(frame, len(frame) + growth)
            except BufferError:  # the caller still has an earlier view, which fixes the size
                frame = self._frame = frame + bytes(growth)
        return memoryview(frame)[self._filled :]

    def received(self, count: int) -> list[bytearray]:
        """The frames completed by `count` more bytes, without their sizes.

        Raises: Malformed when a frame is larger than allowed or too small for a header, or `check`
        refuses it.
        """
        if self._frame is None:
            return self._unstaged(len(self._rest) + count)
        self._filled += count
        if self._filled < self._size:
            return []
        frame, self._frame = self._frame, None
        if self._size > self._largest:
            self._largest = min(self._size, _LARGEST_BYTES_MAX)
        return [frame]

    def _unstaged(self, end: int) -> list[bytearray]:
        found: list[bytearray] = []
        staging, start = self._staging, 0
        while end - start >= _SIZE.size:
            (size,) = _SIZE.unpack_from(staging, start)
            if not _HEADER_BYTES_MIN <= size <= self._bytes_max:
                raise Malformed(_wrong_size(size, self._bytes_max))
            if end - start < _SIZE.size + size:
                if end - start >= _SIZE.size + _KEY_AND_VERSION.size:
                    self._receive_in_place(size, start + _SIZE.size, end)
                    start = end
                break
            start += _SIZE.size
            found.append(staging[start : start + size])
            start += size
        self._rest = bytes(staging[start:end])
        return found

    def _receive_in_place(self, size: int, start: int, end: int) -> None:
        if self._check is not None:
            key, version = _KEY_AND_VERSION.unpack_from(self._staging, start)
            self._check(key, version, size)
        # Made at its size: one that is lengthened may have to be copied.
        count = end - start
        is_small = count < _LARGE_BYTES and size > self._largest
        factor = _SMALL_FACTOR if is_small else _LARGE_FACTOR
        frame = bytearray()
        _lengthen(frame, min(size, max(_FIRST_ALLOCATION_BYTES_MIN, factor * count)))
        memoryview(frame)[:count] = memoryview(self._staging)[start:end]
        self._frame, self._size, self._filled = frame, size, count


def request_frame(
    api_key: int,
    version: int,
    correlation_id: int,
    client_id: str | None,
    body: Buffer,
    *,
    flexible: bool,
) -> bytes:
    """A whole request, its size and header included; for clients."""
    head = Writer()
    head.int16(api_key)
    head.int16(version)
    head.int32(correlation_id)
    head.nullable_string(client_id)
    if flexible:
        head.tags()
    return b"".join((_SIZE.pack(len(head.data) + len(body)), head.data, body))
