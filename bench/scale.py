"""What grows when work grows: memory, start-up, latency with many topics, connections, bytes.

    python bench/scale.py [--quick] [--only LOAD]

Loads, each on a fresh data folder, by Headrace and Apache Kafka 4.3.1 in the same run: nothing;
1,000 topics of 4 partitions; 500 idle connections; a log of 10 GB in one partition. Of each:
resident memory, the 99th percentile from produce() to poll() at 1,000 records a second, and seconds
from launch to the first answer after SIGTERM and after SIGKILL. With --quick a tenth of the three
together, without SIGKILL. The last line is one JSON object; ratios are Headrace / Kafka (less is
better).
"""

import argparse
import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack

from confluent_kafka.admin import AdminClient, NewTopic

from brokers import BROKERS, Broker, java, prepared
from data_plane import create, latency_p99_ms

_PARTITIONS = 4
_TOPICS_PER_REQUEST = 100
_LOG_BYTES = 10_000_000_000
_RECORD_BYTES = 10_000
_SETTLE_SECONDS = 3
_WARM_UP_SECONDS = 8
_HELLO = b"\0\0\0\x0a\0\x12\0\0\0\0\0\x01\xff\xff"
_SECONDS_MAX = 900

Load = Callable[[Broker, ExitStack, int], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of it, under a minute")
    parser.add_argument("--only", choices=LOADS, help="one load")
    arguments = parser.parse_args()
    loads = ["together"] if arguments.quick else list(LOADS)[:-1]
    ratios: dict[str, float] = {}
    for load in [arguments.only] if arguments.only else loads:
        found = {name: _measure(kind, load, arguments.quick) for name, kind in BROKERS.items()}
        for figure, value in found["headrace"].items():
            ratios[f"{load}_{figure}"] = round(value / found["kafka"][figure], 4)
    print(json.dumps(ratios))


def _measure(kind: type[Broker], load: str, quick: bool) -> dict[str, float]:
    with prepared(kind) as broker:
        broker.launch()
        with ExitStack() as stack:
            create(broker, "latency")
            LOADS[load](broker, stack, 10 if quick else 1)
            time.sleep(_SETTLE_SECONDS)
            figures = {"memory_mb": broker.resident_mb()}
            figures["latency_p99_ms"] = latency_p99_ms(
                broker, _SETTLE_SECONDS, warm_up_seconds=2 if quick else _WARM_UP_SECONDS
            )
        broker.stop()
        figures["after_stop_s"] = broker.launch()
        if not quick:
            broker.kill()
            figures["after_kill_s"] = broker.launch()
        broker.stop()
    shown = ", ".join(f"{figure} {value:,.4g}" for figure, value in figures.items())
    print(f"{load}, {kind.__name__}: {shown}", flush=True)
    return figures


def _nothing(_broker: Broker, _stack: ExitStack, _part: int) -> None:
    pass


def _topics(broker: Broker, _stack: ExitStack, part: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.servers})
    for first in range(0, 1000 // part, _TOPICS_PER_REQUEST):
        names = [f"topic-{number}" for number in range(first, first + _TOPICS_PER_REQUEST)]
        wanted = [NewTopic(name, _PARTITIONS) for name in names]
        for created in admin.create_topics(wanted, operation_timeout=60).values():
            created.result()


def _connections(broker: Broker, stack: ExitStack, part: int) -> None:
    """Connections that said hello and then nothing, as those of idle clients."""
    for _ in range(500 // part):
        connection = socket.create_connection(("127.0.0.1", broker.port))
        stack.enter_context(contextlib.closing(connection))
        connection.sendall(_HELLO)
        connection.recv(1 << 16)


def _log(broker: Broker, _stack: ExitStack, part: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.servers})
    admin.create_topics([NewTopic("big", 1)])["big"].result()
    command = java(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", "big",
        "--num-records", str(_LOG_BYTES // part // _RECORD_BYTES),
        "--record-size", str(_RECORD_BYTES),
        "--throughput", "-1", "--bootstrap-server", broker.servers,
        "--command-property", "batch.size=131072",
    )  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS_MAX)


def _together(broker: Broker, stack: ExitStack, part: int) -> None:
    for load in (_topics, _connections, _log):
        load(broker, stack, part)


LOADS: dict[str, Load] = {
    "nothing": _nothing,
    "topics": _topics,
    "connections": _connections,
    "log": _log,
    "together": _together,
}


if __name__ == "__main__":
    main()
