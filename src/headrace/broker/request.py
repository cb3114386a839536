"""What a handler is given and what it may answer with.

A handler module has one function for all its APIs (`apis.py`), a coroutine unless most of its
requests have nothing to wait for (`Answering`):

    async def handle(request: Request, services: Services) -> Answer: ...
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.wire import codec
from headrace.wire.primitives import Buffer

_NAME_TOLD_MAX = 255  # characters; the ids that clients make have some 50


class HangUp(Exception):
    """The connection must end; the message is the reason for the log, `blame` for the metrics."""

    def __init__(self, message: str, *, blame: str = "protocol") -> None:
        super().__init__(message)
        self.blame = blame


@dataclass(slots=True)  # not frozen, which would double the cost of making one
class Request:
    """One request; `body` is memory of its own that the handler may keep and write to.

    `overtakes`: how many requests before it are decided with it (`overtaking.py`).
    `decoded`: the message, where it was decoded before the handler was called.
    `elements_max`: array elements that the message may have.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    host: str
    connection_id: int
    body: memoryview
    overtakes: int = 0
    decoded: Any = None
    elements_max: int = 1 << 62

    def message(self) -> Any:
        """The body, decoded. Raises: Malformed."""
        if self.decoded is not None:
            return self.decoded
        return codec.decode_request(self.api_key, self.version, self.body, self.elements_max)

    def asked_by(self, member: str = "") -> str:
        """Who asks, for people: the member, or else the client, and its address.

        Cut short, because it is written with every offset that a request moves.
        """
        return f"{(member or self.client_id or '-')[:_NAME_TOLD_MAX]} /{self.host}"


@dataclass(slots=True)  # not frozen, as above
class Raw:
    """A response body encoded by hand; large buffers reach the socket without a copy."""

    buffers: Sequence[Buffer]


# Fields for the codec, a body made by hand, or no response at all.
Answer = Mapping[str, Any] | Raw | None


class Later:
    """An answer to a request that is decided, and leaves once the journal has what it rests on.

    What the same connection asks next is taken up meanwhile: it finds the decision made, and its
    answer leaves behind this one. So many small decisions share one write.
    """

    __slots__ = ("_answer", "_when_ready", "ready")

    def __init__(self) -> None:
        self.ready = False
        self._answer: Callable[[], Answer] | None = None
        self._when_ready: Callable[[], None] | None = None

    def set(self, answer: Callable[[], Answer]) -> None:
        """The answer may leave; `answer` makes it when it does."""
        self._answer, self.ready = answer, True
        if self._when_ready is not None:
            self._when_ready()

    def answer(self) -> Answer:
        """Make the answer, once; what it was made of is kept no longer."""
        answer, self._answer = self._answer, None
        assert answer is not None, "it is set, and made once"
        return answer()

    async def wait(self) -> Answer:
        """Return the answer once it is ready."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_ready(partial(_set, ready))
        try:
            await ready
        except asyncio.CancelledError:
            self.when_ready(self._dropped)
            raise
        return self.answer()

    def _dropped(self) -> None:
        """Make the answer all the same: what it keeps is counted until then."""
        self.answer()

    def when_ready(self, call: Callable[[], None]) -> None:
        """Who is told; at once when it is ready already."""
        self._when_ready = call
        if self.ready:
            call()


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


# What a handler returns: a coroutine, or at once what it would return, which saves a task.
Answering = Answer | Later | Coroutine[Any, Any, Answer]
