"""`headrace serve`: run a broker until a signal stops it."""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from headrace import __version__

if TYPE_CHECKING:
    from headrace.broker.config import Config

_LEVELS = ("debug", "info", "warning", "error")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(serve)


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = 9092,
    data_dir: Annotated[Path, typer.Option(help="Folder for the records.")] = Path("headrace-data"),
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A broker setting by Kafka's name; repeatable."
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help=f"One of {', '.join(_LEVELS)}.")] = "warning",
) -> None:
    """Run a broker until SIGINT or SIGTERM stops it; a second signal ends it at once.

    headrace serve --data-dir /var/lib/headrace --set num.partitions=4
    """
    # Late: the command line is answered without them when there is nothing to serve.
    from headrace.broker.config import Config, ConfigError
    from headrace.broker.node import new_event_loop
    from headrace.broker.services import StartError

    if log_level.lower() not in _LEVELS:
        _fail(f"--log-level: {log_level!r} is none of {', '.join(_LEVELS)}")
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        config = Config.parse(_pairs(settings or []))
    except ConfigError as error:
        _fail(f"--set: {error}")
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(config, data_dir, host, port))
    except StartError as error:
        _fail(str(error))


async def _serve(config: "Config", data_dir: Path, host: str, port: int) -> None:
    from headrace.broker.node import start_node
    from headrace.broker.tuning import tune_process

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _on_signal, number, stop)
    node = await start_node(config, data_dir, host, port)
    tune_process()
    count = sum(not topic.internal for topic in node.services.catalog.topics.values())
    topics = "1 topic" if count == 1 else f"{count} topics"
    print(
        f"headrace {__version__} listening on {host}:{node.port}, data in {data_dir},"
        f" {topics}, durability {config.durability}",
        flush=True,
    )
    await stop.wait()
    await node.stop()


def _on_signal(number: int, stop: asyncio.Event) -> None:
    if stop.is_set():
        os._exit(128 + number)
    stop.set()


def _pairs(settings: list[str]) -> dict[str, str]:
    """The settings as a mapping; prints what is wrong with one and exits."""
    found: dict[str, str] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            _fail(f"--set {text}: write it as NAME=VALUE")
        found[name.strip()] = value
    return found


def _fail(message: str) -> NoReturn:
    print(f"headrace: {message}", file=sys.stderr)
    raise typer.Exit(1)
