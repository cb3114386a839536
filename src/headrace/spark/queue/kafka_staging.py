"""Verdicts that wait for the commit of their batch, where the broker has no place for them.

Apache Kafka knows verdicts that hold at once only. So the driver-side process keeps those of a
batch itself, and takes them over the lease API's own Stage message: a client needs another address
and nothing else. Whoever does not know the session, 128 random bits, is refused.
"""

import logging
import socket
import socketserver
import struct
import threading
from collections.abc import Iterable

from headrace.client.connection import FRAME_BYTES_MAX, Address
from headrace.wire.frames import body_of, request_head, response_head
from headrace.wire.leases import Disposition, LeaseApi, StageRequest, StageResponse
from headrace.wire.primitives import Malformed, Reader, Writer

LOG = logging.getLogger(__name__)

_API_VERSIONS, _STAGE_VERSION = 18, 0
_UNKNOWN_MEMBER, _INVALID_REQUEST, _FENCED = 25, 42, 110
_SIZE = struct.Struct(">i")
Place = tuple[str, int, int]


class Staging:
    """The verdicts of one session's batches, staged from anywhere while a batch runs."""

    def __init__(self, session: str, epoch: int, near: Address) -> None:
        """`near` is a broker: the address is one that whoever reaches the broker may reach."""
        self._session = session
        self._epoch = epoch
        self._lock = threading.Lock()
        self._staged: dict[int, dict[str, tuple[Disposition, ...]]] = {}
        self._open: set[int] = set()
        self._server = _Server((_host_near(near), 0), self)
        host, port = self._server.server_address[:2]
        self.address = f"{host!s}:{port}"
        threading.Thread(
            target=self._server.serve_forever, name="headrace-staging", daemon=True
        ).start()

    def open(self, seq: int) -> None:
        """Verdicts on batch `seq` may come from now on."""
        with self._lock:
            self._open.add(seq)

    def taken(self, seq: int) -> dict[Place, Disposition]:
        """What was staged under `seq`, by record, the strictest verdict; no more may come."""
        with self._lock:
            self._open.discard(seq)
            staged = self._staged.pop(seq, {})
        return strictest(one for part in staged.values() for one in part)

    def close(self) -> None:
        """Take no more."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, asked: StageRequest) -> StageResponse:
        """Replace what a part staged under a number, or say why not."""
        with self._lock:
            if asked.session != self._session:
                return StageResponse(
                    _UNKNOWN_MEMBER, "another query listens here by now: its batch runs again"
                )
            if asked.epoch != self._epoch:
                return StageResponse(
                    _FENCED, "the query was restarted since this batch began: it runs again"
                )
            if asked.seq not in self._open:
                return StageResponse(
                    _INVALID_REQUEST, f"number {asked.seq} was committed, or was not handed out"
                )
            self._staged.setdefault(asked.seq, {})[asked.part] = asked.dispositions
        LOG.debug("number %d: %d verdicts staged", asked.seq, len(asked.dispositions))
        return StageResponse(0, None)


def strictest(staged: Iterable[Disposition]) -> dict[Place, Disposition]:
    """The verdict on each record, of several the strictest, of delays the longest."""
    return {
        (one.topic, one.partition, offset): one
        for one in sorted(staged, key=lambda one: (one.verdict, one.delay_ms))
        for offset in range(one.first, one.last + 1)
    }


def _host_near(broker: Address) -> str:
    """The address of this machine on the way to a broker; nothing is sent."""
    family, kind, proto, _, there = socket.getaddrinfo(
        broker.host, broker.port, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind, proto) as probe:
        probe.connect(there)
        return str(probe.getsockname()[0])


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], staging: Staging) -> None:
        self.staging = staging
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)


class _Handler(socketserver.StreamRequestHandler):
    """One connection, request after request, as a broker would answer them."""

    server: _Server

    def handle(self) -> None:
        try:
            while len(size := self.rfile.read(_SIZE.size)) == _SIZE.size:
                (count,) = _SIZE.unpack(size)
                if not 0 < count <= FRAME_BYTES_MAX:
                    raise Malformed(f"a frame of {count} bytes")
                self.wfile.write(self._answered(self.rfile.read(count)))
        except (OSError, Malformed) as error:
            LOG.info("staging: hung up on %s (%s)", self.client_address, error)

    def _answered(self, frame: bytes) -> bytes:
        head = request_head(frame)
        flexible = head.api_key != _API_VERSIONS
        source = Reader(body_of(frame, head, flexible=flexible))
        out = Writer()
        if not flexible:
            out.int16(0)
            out.int32(2)
            for key, version in ((_API_VERSIONS, 0), (LeaseApi.STAGE, _STAGE_VERSION)):
                out.int16(key)
                out.int16(version)
                out.int16(version)
        elif head.api_key == LeaseApi.STAGE:
            self.server.staging.answer(StageRequest.read(source)).write(out)
        else:
            raise Malformed(f"API {head.api_key} is not offered")
        return response_head(head.correlation_id, len(out.data), flexible=flexible) + out.data
