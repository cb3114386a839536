"""`headrace produce`: lines of standard input or a file as records, as kafka-console-producer.

The engine is librdkafka, set so that what Java's producer does by default holds: idempotent where
all replicas acknowledge, and keys hashed to the same partitions (murmur2).
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from headrace.cli.connect import (
    BOOTSTRAP_SERVER,
    BootstrapServer,
    CommandConfig,
    Version,
    client_settings,
    connect,
    require_plaintext,
)
from headrace.cli.ending import INTERRUPTED, Trouble, ending, tell
from headrace.cli.produce_lines import Headers, LineReader
from headrace.cli.properties import load, pairs

if TYPE_CHECKING:
    from confluent_kafka import Producer

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_TOLD_MAX = 10
_DELIVERY_MS = 120_000
_POLL_S = 0.1

_Reader = Annotated[
    list[str] | None,
    typer.Option(
        "--reader-property",
        metavar="NAME=VALUE",
        help="How lines are split, e.g. parse.key=true; repeatable.",
    ),
]
_ReaderConfig = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Properties file of --reader-property."),
]
_CommandProperty = Annotated[
    list[str] | None,
    typer.Option(
        "--command-property",
        metavar="NAME=VALUE",
        help="A setting of the producer by librdkafka's name; repeatable.",
    ),
]
_File = Annotated[
    Path | None, typer.Option("--file", help="Read this file instead of standard input.")
]
_ACKS = ("-1", "all", "1", "0")
_Acks = Annotated[str, typer.Option(help="Replicas that acknowledge: -1 or all, 1, 0.")]
_Codec = Annotated[str, typer.Option(metavar="CODEC", help=f"One of {', '.join(_CODECS)}.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(produce)


def produce(
    topic: Annotated[str, typer.Option(help="The topic to produce to.")],
    bootstrap_server: BootstrapServer = BOOTSTRAP_SERVER,
    file: _File = None,
    reader_property: _Reader = None,
    reader_config: _ReaderConfig = None,
    sync: Annotated[
        bool, typer.Option("--sync", help="Wait for each record before the next is sent.")
    ] = False,
    compression_codec: _Codec = "none",
    request_required_acks: _Acks = "-1",
    batch_size: Annotated[int, typer.Option(min=1, help="Bytes of a batch.")] = 16_384,
    timeout: Annotated[
        int, typer.Option(min=0, help="Milliseconds that a record waits for others.")
    ] = 1000,
    request_timeout_ms: Annotated[
        int, typer.Option(min=1, help="Milliseconds that the broker has to answer.")
    ] = 1500,
    message_send_max_retries: Annotated[
        int, typer.Option(min=0, help="How often a batch is sent again.")
    ] = 3,
    retry_backoff_ms: Annotated[
        int, typer.Option(min=1, help="Milliseconds between two tries.")
    ] = 100,
    max_memory_bytes: Annotated[
        int, typer.Option(min=1024, help="Bytes of records that wait to be sent.")
    ] = 33_554_432,
    command_property: _CommandProperty = None,
    command_config: CommandConfig = None,
    _version: Version = False,
) -> None:
    r"""Send lines as records; options and properties are kafka-console-producer's.

    printf 'k1\tv1\n' | headrace produce --topic orders --reader-property parse.key=true
    """
    with ending("produce"):
        reader = LineReader.parse(
            ({} if reader_config is None else load(reader_config))
            | pairs("--reader-property", reader_property)
        )
        if compression_codec not in _CODECS:
            raise Trouble(f"--compression-codec: one of {', '.join(_CODECS)}")
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap_server,
            "compression.type": compression_codec,
            "batch.size": batch_size,
            "linger.ms": 0 if sync else timeout,
            "request.timeout.ms": request_timeout_ms,
            "retry.backoff.ms": retry_backoff_ms,
            "retry.backoff.max.ms": max(retry_backoff_ms, 1000),
            "queue.buffering.max.kbytes": max_memory_bytes // 1024,
            **_guarantees(request_required_acks, message_send_max_retries),
        }
        settings |= client_settings(command_config)
        settings |= pairs("--command-property", command_property)
        require_plaintext(settings)
        with connect(bootstrap_server) as cluster:
            cluster.retrying("connecting", lambda: cluster.offers(0, 3))
        _Sending(settings, topic, sync=sync).run(reader, file)


def _guarantees(acks: str, retries: int) -> dict[str, Any]:
    """What Java's producer does by itself, and librdkafka when it is asked to.

    Raises: Trouble for acknowledgements that no broker accepts.
    """
    if acks not in _ACKS:
        raise Trouble(f"--request-required-acks {acks!r}: expected one of {', '.join(_ACKS)}")
    return {
        "client.id": "console-producer",
        "acks": acks,
        "retries": retries,
        "enable.idempotence": acks in {"-1", "all"} and retries > 0,
        "partitioner": "murmur2_random",
        "delivery.timeout.ms": _DELIVERY_MS,
    }


class _Sending:
    """One run of the producer; counts what was not delivered."""

    def __init__(self, settings: dict[str, Any], topic: str, *, sync: bool) -> None:
        self._producer = _new_producer(settings)
        self._topic = topic
        self._sync = sync
        self._sent = 0
        self._failed = 0

    def run(self, reader: LineReader, file: Path | None) -> None:
        """Send all lines; what was read is sent also when reading ends with an error or Ctrl-C.

        Raises: Trouble.
        """
        interrupted = False
        try:
            with _input(file) as source:
                for line in reader.lines(source):
                    self._send(line.key, line.value, line.headers)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self._producer.flush()
        if self._failed:
            raise Trouble(f"{self._failed} of {self._sent} records were not delivered")
        if interrupted:
            raise typer.Exit(INTERRUPTED)

    def _send(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        from confluent_kafka import KafkaException

        self._sent += 1
        while True:
            try:
                self._producer.produce(
                    self._topic, value, key, headers=list(headers), on_delivery=self._delivered
                )
                break
            except BufferError:  # as much waits as may: until some of it is acknowledged
                self._producer.poll(_POLL_S)
            except KafkaException as error:
                self._delivered(error.args[0], None)
                break
        if self._sync:
            self._producer.flush()
        else:
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:  # noqa: ARG002 -- librdkafka's call
        if error is None:
            return
        self._failed += 1
        if self._failed <= _TOLD_MAX:
            tell("produce", f"a record for {self._topic} was not delivered: {error.str()}")
        elif self._failed == _TOLD_MAX + 1:
            tell("produce", f"suppressing further errors ({_TOLD_MAX} already reported)")


@contextmanager
def _input(file: Path | None) -> Iterator[BinaryIO]:
    if file is not None:
        with file.open("rb") as source:
            yield source
    elif sys.stdin.isatty():
        yield _Prompting()  # type: ignore[misc]  # it is only read line by line
    else:
        yield sys.stdin.buffer


class _Prompting:
    """Standard input of a terminal, with Kafka's prompt before each line."""

    def readline(self, size: int) -> bytes:
        print(">", end="", flush=True)
        return sys.stdin.buffer.readline(size)


def _new_producer(settings: dict[str, Any]) -> "Producer":
    """Raises: Trouble on a setting that librdkafka does not know or refuses."""
    import logging

    from confluent_kafka import KafkaException, Producer

    quiet = logging.getLogger("headrace.librdkafka")
    quiet.propagate = False
    quiet.addHandler(logging.NullHandler())
    try:
        return Producer(settings, logger=quiet)
    except KafkaException as error:
        raise Trouble(f"a setting of the producer: {error.args[0].str()}") from error
