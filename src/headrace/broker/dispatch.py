"""From a frame to the buffers of its response: find the handler, call it, encode.

Whatever is wrong with a frame ends its connection with a reason, except one thing: a version of
ApiVersions from the future is answered in version 0 with error 35, on which clients rely (KIP-511).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.broker.handlers import (
    api_versions,
    configs,
    create_partitions,
    delete_groups,
    describe_cluster,
    describe_groups,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leases,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    produce,
    share_acknowledge,
    share_fetch,
    share_group_heartbeat,
    sync_group,
    topics,
)
from headrace.broker.request import Answer, Api, HangUp, Raw, Request
from headrace.broker.runtime import StorageFault
from headrace.broker.services import Services
from headrace.wire import codec, frames
from headrace.wire.primitives import Buffer, Malformed

_JOIN_BYTES_MAX = 16 * 1024


class Handler(Protocol):
    """A module that serves APIs."""

    @property
    def APIS(self) -> tuple[Api, ...]: ...  # noqa: N802  # a constant of the module

    async def handle(self, request: Request, services: Services) -> Answer: ...


SHARE_HANDLERS: tuple[Handler, ...] = (
    share_group_heartbeat,
    share_fetch,
    share_acknowledge,
    leases,
)

# Everything that is served; ApiVersions answers from this list.
HANDLERS: tuple[Handler, ...] = (
    produce,
    fetch,
    list_offsets,
    metadata,
    find_coordinator,
    api_versions,
    topics,
    create_partitions,
    init_producer_id,
    configs,
    describe_cluster,
    join_group,
    sync_group,
    heartbeat,
    leave_group,
    offset_commit,
    offset_fetch,
    describe_groups,
    list_groups,
    delete_groups,
    *SHARE_HANDLERS,
)


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a connection."""

    connection_id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Dispatcher:
    """Answers frames with the handlers given."""

    def __init__(self, services: Services, handlers: Sequence[Handler] = HANDLERS) -> None:
        self._services = services
        if not services.config.share_group_enable:
            handlers = [handler for handler in handlers if handler not in SHARE_HANDLERS]
        self._handlers = {api.key: (api, handler) for handler in handlers for api in handler.APIS}
        services.apis = tuple(api for _, (api, _) in sorted(self._handlers.items()))

    async def respond(self, frame: bytearray, peer: Peer) -> list[Buffer]:
        """The response as buffers to send in order; none when the request wants no answer.

        Raises: HangUp; whatever a bug in a handler raises.
        """
        try:
            head = frames.request_head(frame)
        except Malformed as error:
            raise HangUp(f"request header: {error}") from error
        known = self._handlers.get(head.api_key)
        if known is None:
            raise HangUp(f"API key {head.api_key} is not served")
        api, handler = known
        if head.version not in api.versions:
            if api.key == api_versions.KEY:
                return _framed(head.correlation_id, [api_versions.unsupported(api)], flexible=False)
            raise HangUp(f"{api.name} version {head.version} is not served")
        if len(frame) > api.body_bytes_max:
            raise HangUp(f"{api.name} of {len(frame)} bytes; {api.body_bytes_max} are allowed")
        flexible = api.is_flexible(head.version)
        try:
            body = frames.body_of(frame, head, flexible=flexible)
            request = Request(
                head.api_key, head.version, head.correlation_id, head.client_id,
                peer.host, peer.connection_id, body,
            )  # fmt: skip
            answer = await handler.handle(request, self._services)
        except Malformed as error:
            raise HangUp(f"{api.name} version {head.version}: {error}") from error
        except (StorageFault, OSError) as error:
            raise HangUp(f"{api.name} version {head.version} failed: {error}") from error
        if answer is None:
            return []
        if isinstance(answer, Raw):
            buffers: Sequence[Buffer] = answer.buffers
        else:
            buffers = [codec.encode_response(api.key, head.version, answer)]
        # KIP-511: a client that knows no flexible headers must be able to read this response.
        plain = api.key == api_versions.KEY
        return _framed(head.correlation_id, buffers, flexible=flexible and not plain)


def _framed(correlation_id: int, body: Sequence[Buffer], *, flexible: bool) -> list[Buffer]:
    """The response with its head; small buffers joined, since each one costs a system call."""
    size = sum(map(len, body))
    joined = bytearray(frames.response_head(correlation_id, size, flexible=flexible))
    found: list[Buffer] = []
    for buffer in body:
        if len(buffer) <= _JOIN_BYTES_MAX:
            joined += buffer
            continue
        if joined:
            found.append(joined)
            joined = bytearray()
        found.append(buffer)
    if joined:
        found.append(joined)
    return found
