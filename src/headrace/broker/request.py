"""What a handler is given and what it may answer with.

A handler module says which APIs it serves and has one function for all of them, a coroutine unless
most of its requests have nothing to wait for (`Answering`):

    APIS = (Api(3, "Metadata", range(14)),)

    async def handle(request: Request, services: Services) -> Answer: ...
"""

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.wire import codec
from headrace.wire.primitives import Buffer

_BODY_BYTES_MAX = 1024 * 1024


class HangUp(Exception):
    """The connection must end; the message is the reason for the log, `blame` for the metrics."""

    def __init__(self, message: str, *, blame: str = "protocol") -> None:
        super().__init__(message)
        self.blame = blame


@dataclass(frozen=True, slots=True)
class Api:
    """An API as it is served and advertised.

    `advertised_from` is lower than the versions served where a client insists on seeing it.
    `flexible` is needed for messages that the codec does not know. Only APIs that carry records
    need requests larger than `body_bytes_max`: they are read without making objects.
    """

    key: int
    name: str
    versions: range
    advertised_from: int | None = None
    flexible: bool | None = None
    body_bytes_max: int = _BODY_BYTES_MAX

    def is_flexible(self, version: int) -> bool:
        """Whether this version's headers have tagged fields."""
        return codec.is_flexible(self.key, version) if self.flexible is None else self.flexible


@dataclass(slots=True)  # not frozen, which would double the cost of making one
class Request:
    """One request; `body` is memory of its own that the handler may keep and write to."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    host: str
    connection_id: int
    body: memoryview

    def message(self) -> Any:
        """The body, decoded. Raises: Malformed."""
        return codec.decode_request(self.api_key, self.version, self.body)


@dataclass(frozen=True, slots=True)
class Raw:
    """A response body encoded by hand; large buffers reach the socket without a copy."""

    buffers: Sequence[Buffer]


# Fields for the codec, a body made by hand, or no response at all.
Answer = Mapping[str, Any] | Raw | None
# What a handler returns: a coroutine, or at once what it would return, which saves a task.
Answering = Answer | Coroutine[Any, Any, Answer]
