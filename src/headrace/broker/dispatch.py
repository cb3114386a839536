"""From a frame to the buffers of its response: find the handler, call it, encode.

Whatever is wrong with a frame ends its connection with a reason, except one thing: a version of
ApiVersions from the future is answered in version 0 with error 35, on which clients rely (KIP-511).
"""

import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from time import perf_counter
from types import CoroutineType
from typing import Any, NamedTuple, Protocol, cast

from headrace.broker import overtaking
from headrace.broker.apis import (
    ANSWERED_LATER,
    CARRIED_OUT,
    SERVED,
    SERVED_FOR_SHARE_GROUPS,
    Api,
)
from headrace.broker.budgets import DECODE_BYTES_MAX, encoded_and_freed, is_large
from headrace.broker.errors import Code
from headrace.broker.handlers import api_versions
from headrace.broker.loop_stalls import STALL_SECONDS
from headrace.broker.request import Answer, Answering, HangUp, Later, Raw, Request
from headrace.broker.runtime import StorageFault
from headrace.broker.services import Services
from headrace.wire import codec, frames
from headrace.wire.frames import RequestHead
from headrace.wire.primitives import (
    TOO_MANY_ELEMENTS,
    Buffer,
    Malformed,
    TooManyElementsError,
)

log = logging.getLogger("headrace.broker")
JOIN_BYTES_MAX = 16 * 1024  # larger buffers are sent as they are
# Produce, Fetch, OffsetCommit, ShareFetch, ShareAcknowledge: decoded by hand, in their handlers.
_WITHOUT_SCHEMA = frozenset({0, 1, 8, 78, 79})
# Times `headrace.max.request.elements`: a request with more is refused as a whole, or closed.
_REFUSED_ONE_BY_ONE = 4
_SIZE_BYTES = _NUMBER_BYTES = 4  # at the start of a response


class Handler(Protocol):
    """A module of `handlers/`.

    One whose messages have no schema may have a function `decode(request)` besides: a large request
    is decoded by it in a thread, and `handle` finds the result in `request.decoded`.
    """

    def handle(self, request: Request, services: Services) -> Answering: ...


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a connection."""

    connection_id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def fields(self) -> dict[str, object]:
        """What a log line about this peer carries beside its text."""
        return {"peer": str(self), "connection": self.connection_id}


class _Route(NamedTuple):
    """What a version of an API needs, found once instead of with every request."""

    api: Api
    handler: Handler
    flexible: bool
    answers_flexible: bool
    decode: Callable[[Request], Any] | None  # of a large request, in a thread


class Pending(NamedTuple):
    """A request whose answer leaves later; `Dispatcher.finish` makes the response of it.

    Those with the numbers `before` get the same.
    """

    route: _Route
    head: RequestHead
    later: Later
    began: float
    size: int
    before: Sequence[bytes]


Buffers = list[Buffer]


class Dispatcher:
    """Answers frames with the handlers of the APIs that are served."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._metrics = services.metrics
        enabled = services.config.share_group_enable
        share = SERVED_FOR_SHARE_GROUPS if enabled else map(_switched_off, SERVED_FOR_SHARE_GROUPS)
        self._apis = {api.key: api for api in (*SERVED, *share)}
        told = {api.key for api in (SERVED if not enabled else self._apis.values())}
        services.apis = tuple(api for key, api in sorted(self._apis.items()) if key in told)
        self._routes: dict[tuple[int, int], _Route] = {}

    def take(self, queue: deque[bytearray]) -> list[bytearray]:
        """Take the next frame to respond to; before it those that it answers for too."""
        frame = queue[0]
        if len(queue) > 1 and int.from_bytes(frame[:2]) == overtaking.KEY:
            route = self._routes.get((overtaking.KEY, int.from_bytes(frame[2:4])))
            if route is not None:
                return overtaking.take(queue, flexible=route.flexible)
        return [queue.popleft()]

    def respond(
        self, frame: bytearray, peer: Peer, before: Sequence[bytearray] = ()
    ) -> Buffers | Pending | Coroutine[Any, Any, Buffers]:
        """The response as buffers to send in order; none when the request wants no answer.

        `before` are the frames that it answers for too, as `take` gave them.

        A coroutine that returns them when something has to be waited for; Pending when only the
        journal has. Raises, here or there: HangUp; whatever a bug in a handler raises.
        """
        try:
            head = frames.request_head(frame)
        except Malformed as error:
            raise HangUp(f"request header: {error}") from error
        route = self._routes.get((head.api_key, head.version)) or self._route(head)
        if route is None:
            told = api_versions.unsupported(self._apis[head.api_key])
            return _framed(head.correlation_id, [told], flexible=False)
        if len(frame) > route.api.body_bytes_max:
            raise HangUp(
                f"{route.api.name} of {len(frame)} bytes; {route.api.body_bytes_max} are allowed"
            )
        began = perf_counter()
        try:
            body = frames.body_of(frame, head, flexible=route.flexible)
            request = Request(
                head.api_key, head.version, head.correlation_id, head.client_id,
                peer.host, peer.connection_id, body, len(before),
                None, self._services.topics.config.elements_max * route.api.elements_factor,
            )  # fmt: skip
            is_large = len(frame) > DECODE_BYTES_MAX or len(frame) > request.elements_max
            if is_large and route.decode is not None:
                answer: Any = self._decoded_first(route, route.decode, request)
            else:
                answer = route.handler.handle(request, self._services)
        except (Malformed, StorageFault, OSError) as error:
            raise _hang_up(route.api, head.version, error) from error
        numbers: Sequence[bytes] = (
            [overtaking.correlation_id(one) for one in before] if before else ()
        )
        if isinstance(answer, Raw):  # first: to look for a coroutine takes longer
            return self._encoded(route, head, answer, began, len(frame), numbers, at_once=True)
        if isinstance(answer, Later):
            self._metrics.in_flight += 1
            self._look_at_time(route, perf_counter() - began)
            return Pending(route, head, answer, began, len(frame), numbers)
        # Handlers are `async def`. To look for any other Coroutine takes longer with every request.
        if isinstance(answer, CoroutineType):
            return self._awaited(route, head, answer, began, len(frame))
        return self._encoded(route, head, answer, began, len(frame), numbers, at_once=True)

    async def _decoded_first(
        self, route: _Route, decode: Callable[[Request], Any], request: Request
    ) -> Answer:
        """Answer a large request, which is decoded in a thread. Raises: as `respond`."""
        budgets = self._services.budgets
        async with budgets.one_large():
            try:
                request.decoded = await budgets.in_thread(partial(decode, request))
            except TooManyElementsError:
                return await self._too_many_elements(route, request)
        answer = route.handler.handle(request, self._services)
        if isinstance(answer, Later):
            return await answer.wait()
        return await answer if isinstance(answer, Coroutine) else answer

    async def _too_many_elements(self, route: _Route, request: Request) -> Answer:
        """Refuse a request with too many elements, each part of it or the whole.

        Raises: TooManyElementsError where its answer has no room for an error.
        """
        refuse = partial(_refusal, request)
        answer = await self._services.budgets.in_thread(refuse)
        if answer is None:
            raise TooManyElementsError(TOO_MANY_ELEMENTS)
        self._metrics.failed(request.api_key, Code.INVALID_REQUEST)
        log.warning(
            "refusing %s of %s:%d: %s", route.api.name, request.host, request.connection_id,
            TOO_MANY_ELEMENTS,
        )  # fmt: skip
        return Raw([answer])

    def _look_at_time(self, route: _Route, seconds: float) -> None:
        if seconds >= STALL_SECONDS:
            self._metrics.stalls.add(route.api.name, seconds)

    def name_of(self, frame: bytearray) -> str:
        """Return the name of the API of a request that was responded to."""
        api: Api = self._apis[int.from_bytes(frame[:2])]
        return api.name

    def check_size(self, key: int, version: int, size: int) -> None:
        """Check a request before memory is allocated for it. Raises: Malformed."""
        api = self._apis.get(key)
        if api is None:
            raise Malformed(f"API key {key} is not served")
        if version not in api.versions and key != api_versions.KEY:
            raise Malformed(f"{api.name} version {version} is not served")
        if size > api.body_bytes_max:
            raise Malformed(f"{api.name} of {size} bytes; {api.body_bytes_max} are allowed")

    def answers_later(self, frame: bytearray) -> bool:
        """Whether a request may be taken up while such answers before it have not left."""
        return int.from_bytes(frame[:2]) in ANSWERED_LATER

    def is_carried_out(self, frame: bytearray) -> bool:
        """Whether a request is worth its work when nobody hears the answer any more."""
        return int.from_bytes(frame[:2]) in CARRIED_OUT

    def finish(self, pending: Pending) -> Buffers:
        """The response, once it is ready. Raises: as `respond`."""
        self._metrics.in_flight -= 1
        route, head, later, began, size, before = pending
        return self._encoded(route, head, later.answer(), began, size, before)

    async def _awaited(
        self, route: _Route, head: RequestHead, answer: Coroutine[Any, Any, Answer],
        began: float, size: int,
    ) -> Buffers:  # fmt: skip
        self._metrics.in_flight += 1
        try:
            found = await answer
            if isinstance(found, dict) and is_large(found):
                found = await self._encoded_in_thread(route, head, found)
            return self._encoded(route, head, found, began, size)
        except (Malformed, StorageFault, OSError) as error:
            raise _hang_up(route.api, head.version, error) from error
        finally:
            self._metrics.in_flight -= 1

    async def _encoded_in_thread(
        self, route: _Route, head: RequestHead, answer: dict[str, Any]
    ) -> Raw:
        key, budgets = route.api.key, self._services.budgets
        self._metrics.failed(key, answer.get("error_code", Code.NONE))
        async with budgets.one_large():
            encode = partial(encoded_and_freed, key, head.version, answer)
            return Raw([await budgets.in_thread(encode)])

    def _encoded(
        self, route: _Route, head: RequestHead, answer: Answer, began: float, size: int,
        before: Sequence[bytes] = (), *, at_once: bool = False,
    ) -> Buffers:  # fmt: skip
        key = route.api.key
        if answer is None:
            self._metrics.request(key, perf_counter() - began, size, 0)
            return []
        if isinstance(answer, Raw):
            buffers: Sequence[Buffer] = answer.buffers
        else:
            self._metrics.failed(key, answer.get("error_code", Code.NONE))
            buffers = [codec.encode_response(key, head.version, answer)]
        response = _framed(head.correlation_id, buffers, flexible=route.answers_flexible)
        sent = len(response[0]) if len(response) == 1 else sum(map(len, response))
        seconds = perf_counter() - began
        self._metrics.request(key, seconds, size, sent)
        for _ in before:
            self._metrics.request(key, seconds, size, sent)
        if at_once and seconds >= STALL_SECONDS:
            self._metrics.stalls.add(route.api.name, seconds)
        return _also_for(before, response) if before else response

    def _route(self, head: RequestHead) -> _Route | None:
        """How a version is answered, found at its first request: what it needs is slow to load.

        None for a version of ApiVersions that is not served. Raises: HangUp for any other.
        """
        api = self._apis.get(head.api_key)
        if api is None:
            raise HangUp(f"API key {head.api_key} is not served")
        if head.version not in api.versions:
            if api.key == api_versions.KEY:
                return None
            raise HangUp(f"{api.name} version {head.version} is not served")
        handler = cast(Handler, import_module(f"headrace.broker.handlers.{api.handler}"))
        flexible = api.is_flexible(head.version)
        # KIP-511: a client that knows no flexible headers must be able to read ApiVersions.
        answers_flexible = flexible and api.key != api_versions.KEY
        decode: Callable[[Request], Any] | None = getattr(handler, "decode", None)
        if api.key not in _WITHOUT_SCHEMA and codec.knows(api.key, head.version):
            decode = Request.message
        route = _Route(api, handler, flexible, answers_flexible, decode)
        self._routes[head.api_key, head.version] = route
        return route


def _refusal(request: Request) -> bytearray | None:
    """Encode the refusal of a request with too many elements; None if it cannot be answered.

    Not too many to be named again are refused one by one. Requests of Headrace's own APIs, whose
    clients never name so many, are not answered.
    """
    if not codec.knows(request.api_key, request.version):
        return None
    from headrace.wire import refusals  # late: it is rarely needed

    key, version = request.api_key, request.version
    limit = request.elements_max * _REFUSED_ONE_BY_ONE
    try:
        message = codec.decode_request(key, version, request.body, limit)
    except TooManyElementsError:
        message = None
    code, text = Code.INVALID_REQUEST, TOO_MANY_ELEMENTS
    fields = refusals.refused_request(key, version, message, code, text)
    return None if fields is None else codec.encode_response(key, version, fields)


def _switched_off(api: Api) -> Api:
    return replace(api, handler="share_groups_off")


def _hang_up(api: Api, version: int, error: Exception) -> HangUp:
    if isinstance(error, Malformed):
        return HangUp(f"{api.name} version {version}: {error}")
    return HangUp(f"{api.name} version {version} failed: {error}", blame="fault")


def _also_for(before: Sequence[bytes], response: Buffers) -> Buffers:
    """The same response for requests of other numbers, and behind those the response."""
    whole = b"".join(response)
    size, rest = whole[:_SIZE_BYTES], whole[_SIZE_BYTES + _NUMBER_BYTES :]
    return [b"".join(size + number + rest for number in before) + whole]


def _framed(correlation_id: int, body: Sequence[Buffer], *, flexible: bool) -> Buffers:
    """The response with its head; small buffers joined, since each one costs a system call."""
    if len(body) == 1 and len(body[0]) <= JOIN_BYTES_MAX:
        head = frames.response_head(correlation_id, len(body[0]), flexible=flexible)
        return [head + body[0]]
    size = sum(map(len, body))
    joined = bytearray(frames.response_head(correlation_id, size, flexible=flexible))
    found: Buffers = []
    for buffer in body:
        if len(buffer) <= JOIN_BYTES_MAX:
            joined += buffer
            continue
        if joined:
            found.append(joined)
            joined = bytearray()
        found.append(buffer)
    if joined:
        found.append(joined)
    return found
