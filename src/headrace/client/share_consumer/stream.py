"""Connections to brokers for asyncio: one request at a time each. `client/connection.py` blocks."""

import asyncio
import socket
import struct
from typing import Any, Self

from headrace.client.connection import FRAME_BYTES_MAX, Address
from headrace.client.errors import SHARE_GROUPS_NEED, NotKafkaError, Unsupported, check, sendable
from headrace.wire.codec import decode_response, encode_request, is_flexible
from headrace.wire.frames import request_frame
from headrace.wire.primitives import Reader

_API_VERSIONS = 18
_SIZE = struct.Struct(">i")


class Stream:
    """One connection to one broker; safe for use by several tasks, which take turns.

    Raises: OSError (TimeoutError among them) and Malformed from every method that asks, when the
    peer is away, slow or no broker; the stream is closed then, as it is by a cancellation.
    """

    def __init__(
        self,
        address: Address,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        client_id: str,
        timeout_s: float,
    ) -> None:
        self.address = address
        self.versions: dict[int, range] = {}
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._correlation = 0
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, address: Address, *, client_id: str, timeout_s: float) -> Self:
        """Connect and ask for versions. Raises: OSError; Malformed; BrokerError."""
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(address.host, address.port)
        opened = writer.get_extra_info("socket")
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = cls(address, reader, writer, client_id=client_id, timeout_s=timeout_s)
        try:
            answer = await stream.ask(_API_VERSIONS, 0, {})
            check(answer.error_code, f"asking {address} for its APIs")
        except BaseException:
            stream.close()
            raise
        stream.versions = {
            int(one.api_key): range(one.min_version, one.max_version + 1) for one in answer.api_keys
        }
        return stream

    @property
    def is_closed(self) -> bool:
        return self._writer.is_closing()

    def newest(self, key: int, versions: range) -> int:
        """The newest of `versions` that the broker speaks. Raises: `Unsupported`."""
        offered = self.versions.get(key, range(0))
        for version in reversed(versions):
            if version in offered:
                return version
        raise Unsupported(
            f"{self.address} does not offer API {key} in versions {versions[0]} to {versions[-1]}; "
            f"{SHARE_GROUPS_NEED}"
        )

    async def ask(
        self, key: int, version: int, values: dict[str, Any], *, wait_s: float = 0
    ) -> Any:
        """kio's response to a request; `wait_s` is how long the broker was asked to wait.

        Raises: `Unsendable` for fields that cannot hold their values.
        """
        with sendable():
            body = encode_request(key, version, values)
        async with self._turn:
            self._correlation = (self._correlation + 1) & 0x7FFFFFFF
            flexible = is_flexible(key, version)
            frame = request_frame(
                key, version, self._correlation, self._client_id, body, flexible=flexible
            )
            try:
                async with asyncio.timeout(self._timeout_s + wait_s):
                    self._writer.write(frame)
                    await self._writer.drain()
                    answer = await self._frame()
            except BaseException:
                self.close()  # an answer that is still to come would be taken for the next one's
                raise
        source = Reader(answer)
        if (got := source.int32()) != self._correlation:
            self.close()
            raise ConnectionError(f"answer {got} to request {self._correlation}")
        if flexible:
            source.tags()
        return decode_response(key, version, source.take(source.remaining))

    def close(self) -> None:
        """Hang up at once; an exchange that is under way fails."""
        self._writer.close()

    async def closed(self) -> None:
        """Hang up, and wait until the socket is gone."""
        self.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # it was gone before

    async def _frame(self) -> bytes:
        try:
            (size,) = _SIZE.unpack(await self._reader.readexactly(_SIZE.size))
            if not 4 <= size <= FRAME_BYTES_MAX:
                raise NotKafkaError(self.address, size)
            return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError(f"{self.address} closed the connection") from error
