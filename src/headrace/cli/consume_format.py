"""Records as Kafka's console consumers print them, or as JSON objects; bytes stay bytes.

Source: org.apache.kafka.tools.consumer.DefaultMessageFormatter (4.3).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headrace.cli.decoders import Decoder, as_json, decoder
from headrace.cli.ending import Trouble

if TYPE_CHECKING:
    from headrace.client.share_browse import BrowsedRecord
    from headrace.client.share_consumer.records import BaseRecord


class Shown(Protocol):
    """A record to be printed: confluent-kafka's Message, or one of a share group."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def leader_epoch(self) -> int | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def headers(self) -> Any: ...
    def key(self) -> str | bytes | None: ...
    def value(self) -> str | bytes | None: ...


@dataclass(frozen=True, slots=True)
class AsMessage:
    """A record of a share group, to be printed; `time` is the number of its kind, and ms."""

    record: "BaseRecord | BrowsedRecord"
    time: tuple[int, int]
    delivery_count: int | None = None

    def topic(self) -> str:
        return self.record.topic

    def partition(self) -> int:
        return self.record.partition

    def offset(self) -> int:
        return self.record.offset

    def leader_epoch(self) -> None:
        """None: share fetches do not tell it."""

    def timestamp(self) -> tuple[int, int]:
        return self.time

    def headers(self) -> Any:
        return self.record.headers

    def key(self) -> bytes | None:
        return self.record.key

    def value(self) -> bytes | None:
        return self.record.value


def shared(record: "BaseRecord") -> AsMessage:
    """What a share consumer got, to be printed."""
    time = (_KINDS[record.timestamp_type], record.timestamp)
    return AsMessage(record, time, record.delivery_count)


Format = Callable[[Shown], bytes]
_TIMES = {0: "NO_TIMESTAMP", 1: "CreateTime", 2: "LogAppendTime"}
_KINDS = {"NoTimestampType": 0, "CreateTime": 1, "LogAppendTime": 2}
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


def formatter(
    properties: Mapping[str, str], each: Callable[[bytes], bytes] = lambda part: part
) -> Format:
    """How records are printed by these properties of --formatter-property. Raises: Trouble.

    `each` makes of a part, such as the value, what is shown of it.
    """
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
        each=each,
    ).line


def json_line(message: Shown) -> bytes:
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
    count = deliveries(message)
    if count is not None:
        about["delivery_count"] = count
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
    each: Callable[[bytes], bytes]

    def line(self, message: Shown) -> bytes:
        parts: dict[str, Callable[[Shown], bytes]] = {
            "timestamp": self._timestamp,
            "partition": lambda one: f"Partition:{one.partition()}".encode(),
            "offset": lambda one: f"Offset:{one.offset()}".encode(),
            "delivery": self._delivery,
            "epoch": self._epoch,
            "headers": self._headers,
            "key": lambda one: self._field(_bytes(one.key()), self.key),
            "value": lambda one: self._field(_bytes(one.value()), self.value),
        }
        shown = [self.each(part(message)) for name, part in parts.items() if name in self.printed]
        return self.between.join(shown) + self.end

    def _field(self, data: bytes | None, decode: Decoder) -> bytes:
        return self.null if data is None else decode(data)

    @staticmethod
    def _timestamp(message: Shown) -> bytes:
        kind, timestamp = message.timestamp()
        return f"{_TIMES[kind]}:{timestamp}".encode() if kind else b"NO_TIMESTAMP"

    @staticmethod
    def _delivery(message: Shown) -> bytes:
        count = deliveries(message)
        return b"Delivery:NOT_PRESENT" if count is None else b"Delivery:%d" % count

    @staticmethod
    def _epoch(message: Shown) -> bytes:
        epoch = message.leader_epoch()
        return b"Epoch:NOT_PRESENT" if epoch is None else b"Epoch:%d" % epoch

    def _headers(self, message: Shown) -> bytes:
        shown = [
            name.encode() + b":" + self._field(_bytes(value), self.headers)
            for name, value in _headers(message)
        ]
        return self.headers_between.join(shown) if shown else b"NO_HEADERS"


def deliveries(message: Shown) -> int | None:
    """How often a record of a share group was delivered; None for any other."""
    return message.delivery_count if isinstance(message, AsMessage) else None


def _headers(message: Shown) -> list[tuple[str, str | bytes | None]]:
    found = message.headers() or []
    return list(found.items()) if isinstance(found, dict) else list(found)


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
