"""Records as kafka-console-consumer prints them, or as JSON objects; bytes stay bytes.

Source: org.apache.kafka.tools.consumer.DefaultMessageFormatter (4.3).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.decoders import Decoder, as_json, decoder
from headrace.cli.ending import Trouble

if TYPE_CHECKING:
    from confluent_kafka import Message

Format = Callable[["Message"], bytes]
_TIMES = {0: "NO_TIMESTAMP", 1: "CreateTime", 2: "LogAppendTime"}
_SWITCHES = {
    "print.timestamp": False,
    "print.key": False,
    "print.offset": False,
    "print.delivery": False,
    "print.epoch": False,
    "print.partition": False,
    "print.headers": False,
    "print.value": True,
}
_TEXTS = {
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
}
_DECODERS = ("key.deserializer", "value.deserializer", "headers.deserializer")


def formatter(properties: Mapping[str, str]) -> Format:
    """How records are printed by these properties of --formatter-property. Raises: Trouble."""
    for name in properties:
        if name not in _SWITCHES and name not in _TEXTS and name not in _DECODERS:
            known = ", ".join((*_SWITCHES, *_TEXTS, *_DECODERS))
            raise Trouble(f"--formatter-property {name} is not known; one of {known}")
    switches = {
        name: properties.get(name, str(default)).strip().lower() == "true"
        for name, default in _SWITCHES.items()
    }
    texts = {name: properties.get(name, default).encode() for name, default in _TEXTS.items()}
    key, value, headers = (
        decoder(f"--formatter-property {name}", properties.get(name)) for name in _DECODERS
    )
    return _Text(
        printed=tuple(name.partition(".")[2] for name, on in switches.items() if on),
        between=texts["key.separator"],
        end=texts["line.separator"],
        headers_between=texts["headers.separator"],
        null=texts["null.literal"],
        key=key,
        value=value,
        headers=headers,
    ).line


def json_line(message: "Message") -> bytes:
    """A record as one JSON object; bytes as `decoders.as_json` says."""
    kind, timestamp = message.timestamp()
    about = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp if kind else None,
        "timestamp_type": _TIMES[kind] if kind else None,
        "headers": [[name, as_json(_bytes(value))] for name, value in _headers(message)],
        "key": as_json(_bytes(message.key())),
        "value": as_json(_bytes(message.value())),
    }
    return json.dumps(about, ensure_ascii=False).encode(errors="replace") + b"\n"


@dataclass(frozen=True, slots=True)
class _Text:
    """Kafka's text: what is `printed`, in its order, with separators between."""

    printed: tuple[str, ...]
    between: bytes
    end: bytes
    headers_between: bytes
    null: bytes
    key: Decoder
    value: Decoder
    headers: Decoder

    def line(self, message: "Message") -> bytes:
        parts: dict[str, Callable[[Message], bytes]] = {
            "timestamp": self._timestamp,
            "partition": lambda one: f"Partition:{one.partition()}".encode(),
            "offset": lambda one: f"Offset:{one.offset()}".encode(),
            "delivery": lambda _: b"Delivery:NOT_PRESENT",
            "epoch": self._epoch,
            "headers": self._headers,
            "key": lambda one: self._field(_bytes(one.key()), self.key),
            "value": lambda one: self._field(_bytes(one.value()), self.value),
        }
        shown = [part(message) for name, part in parts.items() if name in self.printed]
        return self.between.join(shown) + self.end

    def _field(self, data: bytes | None, decode: Decoder) -> bytes:
        return self.null if data is None else decode(data)

    @staticmethod
    def _timestamp(message: "Message") -> bytes:
        kind, timestamp = message.timestamp()
        return f"{_TIMES[kind]}:{timestamp}".encode() if kind else b"NO_TIMESTAMP"

    @staticmethod
    def _epoch(message: "Message") -> bytes:
        epoch = message.leader_epoch()
        return b"Epoch:NOT_PRESENT" if epoch is None else b"Epoch:%d" % epoch

    def _headers(self, message: "Message") -> bytes:
        shown = [
            name.encode() + b":" + self._field(_bytes(value), self.headers)
            for name, value in _headers(message)
        ]
        return self.headers_between.join(shown) if shown else b"NO_HEADERS"


def _headers(message: "Message") -> list[tuple[str, str | bytes | None]]:
    found = message.headers() or []
    return list(found.items()) if isinstance(found, dict) else list(found)


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
