"""What a handler is given and what it may answer with.

A handler module has one function for all its APIs (`apis.py`), a coroutine unless most of its
requests have nothing to wait for (`Answering`):

    async def handle(request: Request, services: Services) -> Answer: ...
"""

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.wire import codec
from headrace.wire.primitives import Buffer


class HangUp(Exception):
    """The connection must end; the message is the reason for the log, `blame` for the metrics."""

    def __init__(self, message: str, *, blame: str = "protocol") -> None:
        super().__init__(message)
        self.blame = blame


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

    def asked_by(self, member: str = "") -> str:
        """Who asks, for people: the member, or else the client, and its address."""
        return f"{member or self.client_id or '-'} /{self.host}"


@dataclass(frozen=True, slots=True)
class Raw:
    """A response body encoded by hand; large buffers reach the socket without a copy."""

    buffers: Sequence[Buffer]


# Fields for the codec, a body made by hand, or no response at all.
Answer = Mapping[str, Any] | Raw | None
# What a handler returns: a coroutine, or at once what it would return, which saves a task.
Answering = Answer | Coroutine[Any, Any, Answer]
