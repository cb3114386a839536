"""One broker process: everything it consists of, brought up and down in order.

`headrace serve` and the embedded `headrace.Broker` are both a thin skin over it.
"""

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from headrace.broker.addresses import WILDCARDS, address_text, is_loopback, parsed_listener
from headrace.broker.background import Background
from headrace.broker.config import Config, ConfigError
from headrace.broker.dispatch import Dispatcher
from headrace.broker.replay import JournalDamaged
from headrace.broker.runtime import StorageFault
from headrace.broker.server import Server
from headrace.broker.services import FolderLock, Services, StartError, open_services
from headrace.broker.storage_faults import is_full
from headrace.log.api import Clock, CorruptLog

if TYPE_CHECKING:
    from headrace.broker.metrics_http import MetricsServer

log = logging.getLogger("headrace.broker")


@dataclass(slots=True)
class Node:
    """A running broker; made by `start_node`."""

    services: Services
    server: Server
    lock: FolderLock
    host: str
    port: int
    metrics: "MetricsServer | None" = None
    metrics_port: int | None = None

    @property
    def connections(self) -> int:
        """How many clients are connected now."""
        return len(self.server.connections)

    @property
    def background(self) -> Sequence[Background]:
        """Everything that looks after something again and again, with pauses."""
        return (*self.services.background, self.server.work)

    async def stop(self) -> None:
        """Finish what is under way, sync, close, and let the folder go. Raises: OSError."""
        if self.metrics is not None:
            self.metrics.begin_stop()
        await self.server.stop()
        try:
            if self.metrics is not None:
                await self.metrics.stop()
            await self.services.close()
        finally:
            self.lock.release()


async def start_node(
    config: Config,
    folder: Path,
    host: str,
    port: int,
    *,
    clock: Clock | None = None,
    new_id: Callable[[], UUID] = uuid4,
    new_dispatcher: Callable[[Services], Dispatcher] = Dispatcher,
) -> Node:
    """Start a broker on the running event loop; port 0 lets the system choose.

    Raises: StartError, whose message is one line that says what to do.
    """
    _raise_open_files_limit()
    lock = FolderLock(folder)
    try:
        services = await _started_services(config, folder, clock, new_id)
        return await _listening(services, new_dispatcher(services), host, port, lock)
    except BaseException:
        lock.release()
        raise


async def _started_services(
    config: Config, folder: Path, clock: Clock | None, new_id: Callable[[], UUID]
) -> Services:
    """Raises: StartError."""
    try:
        services = open_services(config, folder, clock=clock, new_id=new_id)
    except (JournalDamaged, CorruptLog) as error:
        raise StartError(f"cannot open the data folder {folder}: {error}") from error
    except (OSError, ConfigError) as error:
        full = isinstance(error, OSError) and is_full(error)
        action, remedy = ("write to", "; free space") if full else ("read", "")
        raise StartError(f"cannot {action} the data folder {folder}: {error}{remedy}") from error
    try:
        await services.start()
    except StorageFault as fault:
        await services.close()
        raise StartError(f"cannot write to the data folder {folder}: {fault}") from fault
    except (OSError, JournalDamaged, CorruptLog) as error:
        await services.close()
        raise StartError(f"cannot open the data folder {folder}: {error}") from error
    return services


async def _listening(
    services: Services, dispatcher: Dispatcher, host: str, port: int, lock: FolderLock
) -> Node:
    """Raises: StartError."""
    config = services.config
    # Before the first connection can ask: host and port are what Metadata answers.
    services.host = config.advertised_host or (socket.gethostname() if host in WILDCARDS else host)
    services.port, services.bound_host = port, host
    if config.advertised_listeners:
        services.host, services.port = parsed_listener(config.advertised_listeners)
    server = Server(services, dispatcher)
    try:
        bound_port = await server.start(host, port)
    except OSError as error:
        await services.close()
        raise StartError(_cannot_listen(host, port, error)) from error
    services.bound_port = bound_port
    if not config.advertised_listeners:
        services.port = bound_port
    _warn_of_strangers(host, bound_port, services)
    node = Node(services, server, lock, host, bound_port)
    if config.metrics_port is not None:
        try:
            await _serve_metrics(node, config.metrics_port)
        except StartError:
            await server.stop()
            await services.close()
            raise
    return node


async def _serve_metrics(node: Node, port: int) -> None:
    """Raises: StartError."""
    try:
        # Late: it imports prometheus-client, which takes as long as half of the start.
        from headrace.broker.metrics_http import MetricsServer
    except ImportError as error:
        raise StartError(f"{error}; pip install prometheus-client, or serve no metrics") from error
    metrics = MetricsServer(node.server)
    host = node.services.config.metrics_host
    try:
        node.metrics_port = await metrics.start(host, port)
    except OSError as error:
        raise StartError(_cannot_listen(host, port, error, "--metrics-port")) from error
    node.metrics = metrics


def _warn_of_strangers(host: str, port: int, services: Services) -> None:
    """Log what it means to listen on an address that other machines reach."""
    if is_loopback(host):
        return
    log.warning(
        "listening on %s without authentication and encryption: everybody who reaches this port can"
        " read, write and delete everything; restrict it with a firewall, or listen on 127.0.0.1."
        " Clients are told to connect to %s (advertised.listeners)",
        address_text(host, port), address_text(services.host, services.port),
    )  # fmt: skip


def _raise_open_files_limit() -> None:
    """Every partition keeps files open, and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _cannot_listen(host: str, port: int, error: OSError, option: str = "--port") -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; choose another {option} or stop what uses it"
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights; choose a {option} above 1023"
    address = address_text(host, port)
    host_option = "--host" if option == "--port" else "headrace.metrics.host"
    return (
        f"cannot listen on {address}: {error.strerror or error}; check {host_option} and {option}"
    )


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's event loop where it is installed, asyncio's otherwise."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop = uvloop.new_event_loop()
    assert isinstance(loop, asyncio.AbstractEventLoop)
    return loop
