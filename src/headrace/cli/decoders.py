"""Bytes of keys and values as text, by the names of Kafka's deserializers and decoders.

`org.apache.kafka.common.serialization.LongDeserializer`, `LongDeserializer` and `Long` are the
same. Source: the package org.apache.kafka.common.serialization.
"""

import base64
import struct
from collections.abc import Callable
from uuid import UUID

from headrace.cli.ending import Trouble

Decoder = Callable[[bytes], bytes]


class Undecodable(Exception):
    """Bytes that are not what the decoder expects."""


def _packed(layout: str) -> Decoder:
    packer = struct.Struct(layout)

    def decode(data: bytes) -> bytes:
        if len(data) != packer.size:
            raise Undecodable(f"{len(data)} bytes, not {packer.size}")
        return str(packer.unpack(data)[0]).encode()

    return decode


def _boolean(data: bytes) -> bytes:
    if data not in {b"\0", b"\1"}:
        raise Undecodable(f"{data!r} is no boolean")
    return b"true" if data == b"\1" else b"false"


def _uuid(data: bytes) -> bytes:
    try:
        return str(UUID(data.decode())).encode()
    except ValueError:
        raise Undecodable(f"{data!r} is no UUID") from None


_DECODERS: dict[str, Decoder] = {
    "string": bytes,
    "bytearray": bytes,
    "boolean": _boolean,
    "short": _packed(">h"),
    "integer": _packed(">i"),
    "long": _packed(">q"),
    "float": _packed(">f"),
    "double": _packed(">d"),
    "uuid": _uuid,
}
NAMES = "String, ByteArray, Boolean, Short, Integer, Long, Float, Double, UUID"


def decoder(option: str, name: str | None) -> Decoder:
    """The decoder of that name, bytes as they are without one. Raises: Trouble on other names."""
    if name is None:
        return bytes
    short = name.rpartition(".")[2].removesuffix("Deserializer").removesuffix("Decoder")
    found = _DECODERS.get(short.lower())
    if found is None:
        raise Trouble(f"{option} {name} is not known; one of {NAMES}")
    return found


def as_json(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes in JSON: a string where they are UTF-8, otherwise {"base64": "..."}."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
