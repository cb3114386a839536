"""The endpoint for Prometheus and for probes: /metrics, /-/healthy and /-/ready.

A very small HTTP/1.1 server on the broker's event loop: GET and HEAD, one request a connection,
everything bounded. prometheus-client, which knows the formats, is imported here alone, so that
only brokers that serve metrics load it. A page is rendered in pieces of some hundred samples, and
the loop does other work between two of them.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from http import HTTPStatus
from itertools import starmap
from typing import Any

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from headrace.broker.loop_stalls import STALL_SECONDS
from headrace.broker.metrics_families import pieces
from headrace.broker.metrics_shapes import Family, Sample
from headrace.broker.server import Server, stop_accepting

log = logging.getLogger("headrace.broker")
HEAD_BYTES_MAX = 8 * 1024
HEAD_SECONDS_MAX = 5.0  # for a request
WAIT_SECONDS_MAX = 10.0  # for each part of the answer to be taken
CONNECTIONS_MAX = 32
LAG_SAMPLE_SECONDS = 0.5
_PLAIN = "text/plain; charset=utf-8"
_END = b"# EOF\n"


class _Bad(Exception):
    """A request that cannot be answered otherwise than with `status`."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class MetricsServer:
    """Answers on a port of its own for as long as the broker runs."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._granularity = server.services.config.metrics_granularity
        # Of this broker alone: prometheus-client's own registry is of the whole process.
        self._standard = CollectorRegistry()
        ProcessCollector(registry=self._standard)
        PlatformCollector(registry=self._standard)
        GCCollector(registry=self._standard)
        self._listening: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._requesting: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # oldest first
        self._stalls = 0  # counted by the last sample
        self.lag_timer: asyncio.TimerHandle | None = None
        self._stopping = self._is_over = False
        self._rendering = asyncio.Lock()  # or each of many would take its part of every turn

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chooses for 0. Raises: OSError."""
        self._listening = await asyncio.start_server(
            self._connected, host, port, limit=HEAD_BYTES_MAX
        )
        self._sample_lag(None)
        return int(self._listening.sockets[0].getsockname()[1])

    def begin_stop(self) -> None:
        """From now on the broker is not ready."""
        self._stopping = True

    async def stop(self) -> None:
        """Answer no more."""
        if self.lag_timer is not None:
            self.lag_timer.cancel()
        self._is_over = True
        if self._listening is not None:
            await stop_accepting(self._listening)
        for writer in self._connections.values():
            writer.transport.abort()
        if self._connections:
            await asyncio.wait(self._connections)

    def _sample_lag(self, due: float | None) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if due is not None:
            metrics = self._server.services.metrics
            metrics.loop_lag.observe(max(0.0, now - due))
            # A stall that no API or background task accounts for.
            if now - due >= STALL_SECONDS and metrics.stalls.count == self._stalls:
                metrics.stalls.add("other", now - due)
            self._stalls = metrics.stalls.count
        again = now + LAG_SAMPLE_SECONDS
        self.lag_timer = loop.call_at(again, self._sample_lag, again)

    # ---- HTTP

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._is_over:
            writer.transport.abort()
            return
        try:
            if len(self._connections) >= CONNECTIONS_MAX and self._requesting:
                # A slow or silent peer makes room for a probe.
                oldest = next(iter(self._requesting))
                self._requesting.pop(oldest).transport.abort()
                self._connections.pop(oldest, None)
            if len(self._connections) >= CONNECTIONS_MAX:
                await _send(writer, HTTPStatus.SERVICE_UNAVAILABLE, [b"too many connections\n"])
                return
            self._connections[task] = writer
            await self._answer(reader, writer)
        except (TimeoutError, ConnectionError):
            writer.transport.abort()
        finally:
            self._connections.pop(task, None)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            method, path, headers = await self._requested(reader, writer)
            status, kind, body = await self._page(path, headers)
        except _Bad as bad:
            await _send(writer, bad.status, [f"{bad}\n".encode()])
            return
        await _send(writer, status, body, kind=kind, with_body=method == "GET")

    async def _requested(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[str, str, dict[str, str]]:
        """As `_request`, and it may be cut off for others. Raises: _Bad; TimeoutError."""
        task = asyncio.current_task()
        assert task is not None
        self._requesting[task] = writer
        try:
            async with asyncio.timeout(HEAD_SECONDS_MAX):
                return await _request(reader)
        finally:
            self._requesting.pop(task, None)

    async def _page(
        self, path: str, headers: dict[str, str]
    ) -> tuple[HTTPStatus, str, list[bytes]]:
        match path:
            case "/metrics":
                encode, kind = choose_encoder(headers.get("accept", ""))
                async with self._rendering:
                    return HTTPStatus.OK, kind, await self._rendered(encode)
            case "/-/healthy":
                return HTTPStatus.OK, _PLAIN, [b"ok\n"]
            case "/-/ready":
                trouble = "stopping" if self._stopping else self._server.services.trouble()
                if trouble is None:
                    return HTTPStatus.OK, _PLAIN, [b"ready\n"]
                return HTTPStatus.SERVICE_UNAVAILABLE, _PLAIN, [f"{trouble}\n".encode()]
            case _:
                raise _Bad(HTTPStatus.NOT_FOUND, "there are /metrics, /-/healthy and /-/ready")

    async def _rendered(self, encode: Callable[[Any], bytes]) -> list[bytes]:
        if self._granularity != "none":
            await self._server.services.partitions.open_rest()
        standard = encode(self._standard)
        end = _END if standard.endswith(_END) else b""  # OpenMetrics alone has one
        parts = [standard.removesuffix(_END)]
        for family, samples, first in pieces(self._server, self._granularity):
            if first:
                parts.append(encode(_Head(family)).removesuffix(_END))
            parts.append(_lines(family, samples))
            await asyncio.sleep(0)
        return [*parts, end]


class _Head(Collector):
    """A family without samples: its encoding is what stands above them, in either format."""

    def __init__(self, family: Family) -> None:
        self._metric = Metric(family.name, family.doc, family.kind)

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


_SUFFIX = {"counter": "_total", "info": "_info"}
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def _lines(family: Family, samples: Iterable[Sample]) -> bytes:
    """The samples of a family, which both formats write alike.

    By hand: prometheus-client takes ten times as long, and a broker has thousands of partitions.
    """
    lines = []
    name = family.name + _SUFFIX.get(family.kind, "")
    for values, value, suffix, bound in samples:
        labels = [
            f'{label}="{text.translate(_ESCAPES)}"'
            for label, text in zip(family.labels, values, strict=True)
        ]
        if bound:
            labels.append(f'le="{bound}"')
        braced = f"{{{','.join(labels)}}}" if labels else ""
        lines.append(f"{name}{suffix}{braced} {value}\n")
    return "".join(lines).encode()


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
    """Method, path and headers, their names in small letters. Raises: _Bad."""
    try:
        first_byte = await reader.readexactly(1)
        if not first_byte.isalpha():  # a Kafka client, which would wait for an answer in vain
            raise _Bad(HTTPStatus.BAD_REQUEST, "this is a port for HTTP/1.1")
        head = first_byte + await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _Bad(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too long") from None
    except asyncio.IncompleteReadError:
        raise _Bad(HTTPStatus.BAD_REQUEST, "the request is not whole") from None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        raise _Bad(HTTPStatus.BAD_REQUEST, "this is a port for HTTP/1.1")
    headers: dict[str, str] = {}
    for name, colon, value in (line.partition(":") for line in lines):
        if not colon or not name.strip():
            raise _Bad(HTTPStatus.BAD_REQUEST, "a header without a name")
        headers[name.strip().lower()] = value.strip()
    if words[0] not in {"GET", "HEAD"}:
        raise _Bad(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD are answered")
    return words[0], words[1].partition("?")[0], headers


async def _send(
    writer: asyncio.StreamWriter,
    status: HTTPStatus,
    body: list[bytes],
    *,
    kind: str = _PLAIN,
    with_body: bool = True,
) -> None:
    """Send an answer, as far as the peer is there to take it."""
    head = {
        "Content-Type": kind,
        "Content-Length": str(sum(map(len, body))),
        "Connection": "close",
    }
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        head["Allow"] = "GET, HEAD"
    fields = "".join(starmap("{}: {}\r\n".format, head.items()))
    if not with_body:
        body.clear()
    body.insert(0, f"HTTP/1.1 {status.value} {status.phrase}\r\n{fields}\r\n".encode("latin-1"))
    # Part by part, each freed when it is gone: a page may have a hundred MB.
    body.reverse()
    while body and not writer.is_closing():
        writer.write(body.pop())
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            await writer.drain()
        await asyncio.sleep(0)  # who takes everything at once never makes `drain` wait
