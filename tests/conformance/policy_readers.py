"""Unmodified consumers of three clients with `auto.offset.reset=latest`, behind one face."""

import asyncio
import itertools
import json
import subprocess
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from confluent_kafka import Consumer, KafkaException

Read = list[tuple[str, str]]  # "topic-partition" and value of each record

POLL_S = 0.05
_LONG_S = 600


class Reader(Protocol):
    """One member; `owned` are its partitions as of the last poll."""

    owned: set[str]

    def poll(self) -> Read:
        """What a short poll brings."""

    def commit(self) -> None:
        """Commit what was polled; not if a rebalance comes first."""

    def close(self) -> None:
        """Leave the group."""


class Readers(Protocol):
    """Opens members. A topic that begins with ^ is a pattern; their metadata age for minutes."""

    def open(self, servers: str, group: str, protocol: str, topic: str) -> Reader: ...


class Confluent:
    """librdkafka's consumer."""

    def __init__(self, servers: str, group: str, protocol: str, topic: str) -> None:
        classic = {"heartbeat.interval.ms": 200} if protocol == "classic" else {}
        self.owned: set[str] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "group.protocol": protocol,
                "topic.metadata.refresh.interval.ms": _LONG_S * 1000,
                "auto.offset.reset": "latest",
                "enable.auto.commit": False,
                "log_level": 2,
                **classic,
            }
        )
        self._consumer.subscribe([topic])

    def poll(self) -> Read:
        found = [one for one in self._consumer.consume(100, POLL_S) if one.error() is None]
        self.owned = {f"{one.topic}-{one.partition}" for one in self._consumer.assignment()}
        return [
            (f"{one.topic()}-{one.partition()}", (one.value() or b"").decode()) for one in found
        ]

    def commit(self) -> None:
        with suppress(KafkaException):  # it goes on from what it committed before
            self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


class Aio:
    """aiokafka's consumer, on a loop of its own."""

    def __init__(self, servers: str, group: str, protocol: str, topic: str) -> None:
        assert protocol == "classic", "it speaks no other"
        self.owned: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._consumer: AIOKafkaConsumer = self._waited(self._open(servers, group))
        if topic.startswith("^"):
            self._consumer.subscribe(pattern=topic)
        else:
            self._consumer.subscribe([topic])
        # It is started when it has joined, for which others have to poll.
        self._started = asyncio.run_coroutine_threadsafe(self._consumer.start(), self._loop)

    @staticmethod
    async def _open(servers: str, group: str) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            bootstrap_servers=servers,
            group_id=group,
            metadata_max_age_ms=_LONG_S * 1000,
            auto_offset_reset="latest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
        )

    def _waited(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def poll(self) -> Read:
        if not self._started.done():
            time.sleep(POLL_S)
            return []
        self._started.result()
        found = self._waited(self._consumer.getmany(timeout_ms=round(POLL_S * 1000)))
        self.owned = {f"{one.topic}-{one.partition}" for one in self._consumer.assignment()}
        return [
            (f"{place.topic}-{place.partition}", (one.value or b"").decode())
            for place, records in found.items()
            for one in records
        ]

    def commit(self) -> None:
        with suppress(KafkaError):  # as above
            self._waited(self._consumer.commit())

    def close(self) -> None:
        self._waited(self._consumer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Java:
    """The readers of one process of PolicyReader.java."""

    def __init__(self, command: list[str]) -> None:
        self._numbers = itertools.count()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def open(self, servers: str, group: str, protocol: str, topic: str) -> Reader:
        del servers  # the process was told
        name = str(next(self._numbers))
        self.ask("open", name, group, protocol, str(_LONG_S), topic)
        return JavaReader(self, name)

    def ask(self, *order: str) -> Any:
        """The answer to an order."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(" ".join(order) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, f"PolicyReader ended with {process.wait()}"
        return json.loads(line)

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


class JavaReader:
    """One consumer of it."""

    def __init__(self, java: Java, name: str) -> None:
        self.owned: set[str] = set()
        self._java, self._name = java, name

    def poll(self) -> Read:
        found, owned = self._java.ask("poll", self._name)
        self.owned = set(owned)
        return [(place, value) for place, value in found]

    def commit(self) -> None:
        self._java.ask("commit", self._name)

    def close(self) -> None:
        self._java.ask("close", self._name)


class Opener:
    """`Readers` of a class that needs nothing else."""

    def __init__(self, kind: type[Confluent] | type[Aio]) -> None:
        self._kind = kind

    def open(self, servers: str, group: str, protocol: str, topic: str) -> Reader:
        return self._kind(servers, group, protocol, topic)


@contextmanager
def java_readers(command: list[str]) -> Iterator[Java]:
    """Readers of a process that ends with the block."""
    java = Java(command)
    try:
        yield java
    finally:
        java.end()
