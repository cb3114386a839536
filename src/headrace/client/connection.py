"""Blocking connections to a Kafka cluster, and asking again while a broker is away.

`Connection` is one socket with one request in flight. `Cluster` knows the brokers, finds leaders
and repeats a request across reconnects until its patience ends: a broker that is killed and comes
back in the middle of a query costs time, not the query. Only requests that may be repeated are
sent through `Cluster.retrying`. One whose response was lost may have been carried out: a topic or
group that is created, extended or deleted is then refused the second time (36, 37, 3, 69), and
the caller gets that error, as from Kafka's Java Admin.

A cluster is not safe for use by several threads: each thread makes its own, it is cheap. The one
thing another thread may do is to `abort` it.
Source: Kafka protocol guide, "Requests" and "Network".
"""

import logging
import math
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from headrace.client.errors import (
    BrokerError,
    Closed,
    NotKafkaError,
    check,
    lacking,
    sendable,
    unreachable,
)
from headrace.wire.codec import decode_response, encode_request, is_flexible
from headrace.wire.error_codes import ErrorCode
from headrace.wire.frames import request_frame
from headrace.wire.primitives import Malformed, Reader

LOG = logging.getLogger(__name__)
T = TypeVar("T")

_API_VERSIONS = 18
_METADATA, _METADATA_VERSION = 3, 9
_SIZE = struct.Struct(">i")
_LEFT_S_MIN = 0.001
FRAME_BYTES_MAX = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def addresses(bootstrap_servers: str) -> tuple[Address, ...]:
    """The addresses in `host:port,host:port`.

    Raises: ValueError when there is none, or one without a port.
    """
    found = []
    for part in filter(None, (part.strip() for part in bootstrap_servers.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"{part!r} is not host:port, e.g. 127.0.0.1:9092")
        found.append(Address(host.strip("[]"), int(port)))
    if not found:
        raise ValueError("no bootstrap server given, e.g. 127.0.0.1:9092")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to ask again (`total_s`), with pauses that double from `first_s` to `most_s`.

    `contact_s` holds instead of `total_s` until a broker has answered for the first time: somebody
    who mistyped an address is to be told before they look elsewhere. None: no difference.
    """

    total_s: float = 120.0
    contact_s: float | None = None
    first_s: float = 0.05
    most_s: float = 1.0
    warn_every_s: float = 5.0


class Connection:
    """One socket to one broker.

    Raises: OSError (TimeoutError among them) from every method when the peer is away or slow;
    the connection is of no use afterwards and must be closed.
    """

    def __init__(
        self, address: Address, *, client_id: str, timeout_s: float, contact_s: float | None = None
    ) -> None:
        """Connect and ask for versions, within `contact_s` each; otherwise `timeout_s` holds."""
        self.address = address
        self._client_id = client_id
        self._timeout_s = timeout_s if contact_s is None else contact_s
        self._correlation = 0
        self._socket = socket.create_connection((address.host, address.port), self._timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.versions = self._api_versions()
        except BaseException:
            self.close()
            raise
        self._timeout_s = timeout_s

    def exchange(
        self,
        key: int,
        version: int,
        body: bytes | bytearray,
        *,
        flexible: bool,
        wait_s: float = 0,
        most_s: float = math.inf,
    ) -> Reader:
        """Send one request, return a reader at the start of the response body.

        `wait_s` is how long the broker was asked to wait, on top of the connection's timeout;
        `most_s` is a limit for both.
        """
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        frame = request_frame(
            key, version, self._correlation, self._client_id, body, flexible=flexible
        )
        self._socket.settimeout(min(self._timeout_s + wait_s, most_s))
        self._socket.sendall(frame)
        answer = Reader(self._frame())
        if (got := answer.int32()) != self._correlation:
            raise ConnectionError(f"answer {got} to request {self._correlation}")
        if flexible:
            answer.tags()
        return answer

    def close(self) -> None:
        self._socket.close()

    def interrupt(self) -> None:
        """Have an exchange on another thread fail at once."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _frame(self) -> memoryview:
        size = _SIZE.unpack(self._receive(_SIZE.size))[0]
        if not 4 <= size <= FRAME_BYTES_MAX:
            raise NotKafkaError(self.address, size)
        return self._receive(size)

    def _receive(self, size: int) -> memoryview:
        view = memoryview(bytearray(size))
        done = 0
        while done < size:
            count = self._socket.recv_into(view[done:])
            if not count:
                raise ConnectionError(f"{self.address} closed the connection")
            done += count
        return view

    def _api_versions(self) -> dict[int, range]:
        """Version 0: every broker knows it, and it carries all that is needed."""
        answer = self.exchange(_API_VERSIONS, 0, b"", flexible=False)
        check(answer.int16(), f"asking {self.address} for its APIs")
        return {
            answer.int16(): range(answer.int16(), answer.int16() + 1) for _ in range(answer.int32())
        }


class Cluster:
    """The brokers behind `bootstrap_servers`.

    Raises: `Unreachable` when no broker answered within `patience`, `BrokerError` for a refusal,
    `Unsupported` when the broker does not speak what is needed, from every method that asks.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "headrace",
        patience: Patience | None = None,
        request_timeout_s: float = 30.0,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._bootstrap = addresses(bootstrap_servers)
        self._client_id = client_id
        self._patience = patience or Patience()
        self._request_timeout_s = request_timeout_s
        self._aborted = threading.Event()
        self._sleep = sleep or self._aborted.wait
        self._until = math.inf
        self._connections: dict[Address, Connection] = {}
        self._leaders: dict[tuple[str, int], Address] = {}
        self._in_contact = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; the next request opens new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._leaders.clear()

    def abort(self) -> None:
        """Have what another thread asks fail soon with `Closed`; nothing can be asked afterwards.

        Soon is at once, but for a connection that is being made: it has its timeout.
        """
        self._aborted.set()
        for connection in tuple(self._connections.values()):
            connection.interrupt()

    @property
    def aborted(self) -> bool:
        return self._aborted.is_set()

    @contextmanager
    def within(self, timeout_s: float) -> Iterator[None]:
        """What is asked inside ends by `timeout_s`, however many requests it takes."""
        self._until = time.monotonic() + timeout_s
        try:
            yield
        finally:
            self._until = math.inf

    def retrying(self, what: str, attempt: Callable[[], T], *, final: Collection[int] = ()) -> T:
        """What `attempt` returns; it is repeated while the broker is away or asks for patience.

        Args:
            final: retriable error codes at which to give up at once all the same.
        """
        patience = self._patience
        began = time.monotonic()
        warn_at, pause = began + 1.0, patience.first_s
        while True:
            try:
                return attempt()
            except (OSError, Malformed, BrokerError) as error:
                if isinstance(error, BrokerError) and (error.code in final or not error.retriable):
                    raise
                self.close()
                self._must_go_on()
                now = time.monotonic()
                contact_s = None if self._in_contact else patience.contact_s
                most_s = patience.total_s if contact_s is None else contact_s
                most_s = min(most_s, self._until - began)
                left = began + most_s - now
                if left <= 0:
                    raise unreachable(
                        what, round(most_s, 1), self.bootstrap_servers, error
                    ) from None
                if now >= warn_at and contact_s is None:
                    warn_at = now + patience.warn_every_s
                    LOG.warning(
                        "%s: %s from %s for %.0f s (%s); trying for %.0f s more",
                        what,
                        "only errors" if isinstance(error, BrokerError) else "no answer",
                        self.bootstrap_servers,
                        now - began,
                        error,
                        left,
                    )
            # Jitter spreads the readers of one broker; it decides nothing.
            self._sleep(min(pause * random.uniform(0.5, 1.0), left))  # noqa: S311 -- not a secret
            pause = min(2 * pause, patience.most_s)

    def exchange(
        self,
        address: Address | None,
        key: int,
        version: int,
        body: bytes | bytearray,
        *,
        flexible: bool,
        wait_s: float = 0,
    ) -> Reader:
        """One request to one broker, any broker when `address` is None; not repeated."""
        connection = self._any() if address is None else self._to(address)
        _must_offer(connection, key, version)
        self._must_go_on()
        return connection.exchange(
            key, version, body, flexible=flexible, wait_s=wait_s, most_s=self._left_s()
        )

    def ask(
        self, key: int, version: int, values: Mapping[str, Any], *, address: Address | None = None
    ) -> Any:
        """kio's response to a request with these fields; not repeated. Raises: `Unsendable`."""
        flexible = is_flexible(key, version)
        with sendable():
            body = encode_request(key, version, values)
        reader = self.exchange(address, key, version, body, flexible=flexible)
        return decode_response(key, version, reader.take(reader.remaining))

    def offers(self, key: int, version: int) -> bool:
        """Whether a broker speaks this version of an API; not repeated."""
        return version in self._any().versions.get(key, range(0))

    def newest(self, key: int, versions: range, *, address: Address | None = None) -> int:
        """The newest of `versions` that a broker speaks; not repeated. Raises: `Unsupported`."""
        connection = self._any() if address is None else self._to(address)
        offered = connection.versions.get(key, range(0))
        for version in reversed(versions):
            if version in offered:
                return version
        _must_offer(connection, key, versions[-1])
        raise AssertionError("it would have been found")

    def partitions(self, topic: str) -> tuple[int, ...]:
        """The partitions of a topic, ascending."""
        return self.retrying(f"looking up {topic}", lambda: self._look_up(topic))

    def leader(self, topic: str, partition: int) -> Address:
        """The leader of a partition; not repeated, for use inside `retrying`."""
        if (topic, partition) not in self._leaders and partition not in self._look_up(topic):
            raise BrokerError(
                ErrorCode.unknown_topic_or_partition, f"finding the leader of {topic}-{partition}"
            )
        found = self._leaders.get((topic, partition))
        if found is None:
            raise BrokerError(
                ErrorCode.leader_not_available, f"finding the leader of {topic}-{partition}"
            )
        return found

    def _look_up(self, topic: str) -> tuple[int, ...]:
        answer = self.ask(
            _METADATA,
            _METADATA_VERSION,
            {
                "topics": [{"name": topic}],
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )
        brokers = {one.node_id: Address(one.host, one.port) for one in answer.brokers}
        found = answer.topics[0]
        check(found.error_code, f"looking up topic {topic!r}")
        for one in found.partitions:
            self._leaders.pop((topic, one.partition_index), None)
            if one.leader_id in brokers:
                self._leaders[topic, one.partition_index] = brokers[one.leader_id]
        return tuple(sorted(int(one.partition_index) for one in found.partitions))

    def _to(self, address: Address) -> Connection:
        if address not in self._connections:
            contact_s = None if self._in_contact else self._patience.contact_s
            if contact_s is None:
                contact_s = self._request_timeout_s
            self._must_go_on()
            self._connections[address] = Connection(
                address,
                client_id=self._client_id,
                timeout_s=self._request_timeout_s,
                contact_s=min(contact_s, self._left_s()),
            )
            self._in_contact = True
        return self._connections[address]

    def _left_s(self) -> float:
        """What is left of `within`; some time in any case, as a socket knows none as "at once"."""
        return max(_LEFT_S_MIN, self._until - time.monotonic())

    def _must_go_on(self) -> None:
        if self._aborted.is_set():
            raise Closed("the client was closed, or the call cancelled")

    def _any(self) -> Connection:
        for address in self._bootstrap:
            if address in self._connections:
                return self._connections[address]
        for address in self._bootstrap[:-1]:
            try:
                return self._to(address)
            except OSError as error:
                LOG.debug("%s: %s; trying the next bootstrap server", address, error)
        return self._to(self._bootstrap[-1])


def _must_offer(connection: Connection, key: int, version: int) -> None:
    offered = connection.versions.get(key, range(0))
    if version not in offered:
        raise lacking(connection.address, key, version, offered)
