"""A broker in the foreground: from the options of `headrace serve` to the last signal.

This module and what it imports decide how fast the server is up: `plain` reads the usual command
lines without the parser, whose import alone takes a fifth of the start, and the garbage collector
rests until the modules are loaded, since nothing of them is garbage.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace import __version__

if TYPE_CHECKING:
    from headrace.broker.config import Config

log = logging.getLogger("headrace.broker")
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
_PORT_MAX = 65535


class Options(NamedTuple):
    """The options of `headrace serve`; `settings` are NAME=VALUE, None leaves the default."""

    host: str = "127.0.0.1"
    port: int = 9092
    data_dir: Path = Path("headrace-data")
    settings: Sequence[str] = ()
    log_level: str = "info"
    log_format: str | None = None
    metrics_port: int | None = None


class _Wrong(Exception):
    """What is wrong with an option, in one line."""


def _port(text: str) -> int:
    if not 0 <= int(text) <= _PORT_MAX:
        raise ValueError(text)
    return int(text)


_READ: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--host": ("host", str),
    "--port": ("port", _port),
    "--data-dir": ("data_dir", Path),
    "--log-level": ("log_level", str),
    "--log-format": ("log_format", str),
    "--metrics-port": ("metrics_port", _port),
}


def plain(arguments: Sequence[str]) -> Options | None:
    """Options from a command line that only has known ones with good values.

    None for every other one, --help included: the parser reads it, or tells what is wrong.
    """
    given: dict[str, Any] = {}
    settings: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            text = next(words, "-")
            if text.startswith("-"):
                return None
        if name == "--set":
            settings.append(text)
            continue
        if name not in _READ:
            return None
        field, read = _READ[name]
        try:
            given[field] = read(text)
        except ValueError:
            return None
    return Options(settings=settings, **given)


def serve(options: Options) -> int:
    """Run a broker until a signal; returns the exit code, having told why when it is not 0."""
    began = time.perf_counter()
    gc.disable()
    # Late, with the collector at rest.
    from headrace.broker.config import ConfigError
    from headrace.broker.node import new_event_loop
    from headrace.broker.services import StartError

    try:
        _set_up_logs(options)
        config = _config(options)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(config, options, began))
    except (_Wrong, StartError) as error:
        return _failed(str(error))
    except ConfigError as error:
        return _failed(f"--set: {error}")
    return 0


async def _serve(config: "Config", options: Options, began: float) -> None:
    from headrace.broker.addresses import address_text
    from headrace.broker.node import start_node
    from headrace.broker.tuning import tune_process

    stop: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _on_signal, number, stop)
    node = await start_node(config, options.data_dir, options.host, options.port)
    tune_process()
    gc.enable()
    count = sum(not topic.internal for topic in node.services.catalog.topics.values())
    topics = "1 topic" if count == 1 else f"{count} topics"
    metrics = "" if node.metrics_port is None else f", metrics on port {node.metrics_port}"
    print(
        f"headrace {__version__} listening on {address_text(options.host, node.port)}, data in"
        f" {options.data_dir}, {topics}, durability {config.durability}{metrics}",
        flush=True,
    )
    log.info(
        "started in %d ms: %s on %s, process %d, %s in %s",
        (time.perf_counter() - began) * 1000, __version__, address_text(options.host, node.port),
        os.getpid(), topics, options.data_dir.absolute(), extra={"port": node.port},
    )  # fmt: skip
    stopped_by = signal.Signals(await stop).name
    log.info("stopping on %s with %d connections", stopped_by, node.connections)
    began = time.perf_counter()
    await node.stop()
    log.info("stopped in %d ms", (time.perf_counter() - began) * 1000)


def _on_signal(number: int, stop: "asyncio.Future[int]") -> None:
    if stop.done():
        os._exit(128 + number)
    stop.set_result(number)


def _set_up_logs(options: Options) -> None:
    from headrace.cli.logs import set_up

    level = options.log_level.lower()
    from_environment = os.environ.get("HEADRACE_LOG_FORMAT")
    chosen = (options.log_format or from_environment or "text").lower()
    if level not in LEVELS:
        raise _Wrong(f"--log-level: {options.log_level!r} is none of {', '.join(LEVELS)}")
    if chosen not in FORMATS:
        origin = "--log-format" if options.log_format else "the variable HEADRACE_LOG_FORMAT"
        raise _Wrong(f"{origin}: {chosen!r} is none of {', '.join(FORMATS)}")
    set_up(level, chosen)


def _config(options: Options) -> "Config":
    """Raises: ConfigError; _Wrong."""
    from headrace.broker.config import Config

    found: dict[str, str] = {}
    for text in options.settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise _Wrong(f"--set {text}: write it as NAME=VALUE")
        found[name.strip()] = value
    if options.metrics_port is not None:
        found["headrace.metrics.port"] = str(options.metrics_port)
    return Config.parse(found)


def _failed(message: str) -> int:
    print(f"headrace: {message}", file=sys.stderr)
    return 1
