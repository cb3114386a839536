"""A broker inside another Python process: `with headrace.Broker() as broker: ...`."""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.broker.addresses import address_text
from headrace.broker.config import Config
from headrace.broker.node import Node, new_event_loop, start_node
from headrace.temporary_folders import TemporaryFolder


class Broker:
    """A broker on a thread of its own, for tests, notebooks and small programs.

    Args:
        data_dir: folder for the records; a temporary one, removed at the end, when not given. One
            that SIGKILL left is removed by the next process that makes one.
        port: port to listen on; 0 lets the system choose.
        host: address to listen on.
        settings: broker settings by Kafka's names, as for `headrace serve --set`.

    Raises: `headrace.broker.config.ConfigError` for settings that make no sense, and
    `headrace.broker.services.StartError` from `start` when the broker cannot run.

        with headrace.Broker(settings={"num.partitions": "4"}) as broker:
            producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    """

    def __init__(
        self,
        data_dir: str | Path | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self._config = Config.parse({name: str(value) for name, value in (settings or {}).items()})
        self._given = None if data_dir is None else Path(data_dir)
        self._host = host
        self._port = port
        self._metrics_port: int | None = None
        self._data_dir: Path | None = self._given
        self._temporary: TemporaryFolder | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()

    @property
    def bootstrap_servers(self) -> str:
        """Host and port for clients, as their setting `bootstrap.servers` wants them."""
        assert self._thread is not None, "the broker is not running"
        return address_text(self._host, self._port)

    @property
    def metrics_port(self) -> int | None:
        """Where /metrics is served, when the setting `headrace.metrics.port` asks for it."""
        return self._metrics_port

    @property
    def data_dir(self) -> Path:
        """The folder that holds the records."""
        assert self._data_dir is not None, "the broker was not started"
        return self._data_dir

    def start(self) -> Self:
        """Start and return once clients can connect. Raises: StartError."""
        assert self._thread is None, "the broker is already running"
        if self._given is None:
            self._temporary = TemporaryFolder()
            self._data_dir = self._temporary.path / "data"
        started: Future[Node] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="headrace-broker", daemon=True
        )
        self._thread.start()
        try:
            node = started.result()
            self._port, self._metrics_port = node.port, node.metrics_port
        except BaseException:
            self._end()
            raise
        return self

    def stop(self) -> None:
        """Stop and return once everything is closed; nothing when it is not running."""
        if self._thread is None:
            return
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _end(self) -> None:
        assert self._thread is not None
        self._thread.join()
        self._thread = self._loop = None
        if self._temporary is not None:
            self._temporary.remove()
            self._temporary = None

    def _run(self, started: Future[Node]) -> None:
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            runner.run(self._serve(started))

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        return new_event_loop()

    async def _start_node(self, config: Config, host: str, port: int) -> Node:
        return await start_node(config, self.data_dir, host, port)

    async def _serve(self, started: Future[Node]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            node = await self._start_node(self._config, self._host, self._port)
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(node)
        await self._stop.wait()
        await node.stop()
