"""Crews of share group workers in processes of their own, and the account of every record.

The account: each record was accepted or rejected once, by a verdict that the broker confirmed; it
was delivered again only when it was released or its holder was in trouble; nothing is left.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import confluent_kafka
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tests.java_archives import quick_java

from brokers import java
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.share_groups import describe_share_groups, list_share_group_offsets
from headrace.client.share_records import RecordState, in_flight
from headrace.demo.server import Server

GROUP, TOPIC = "crew", "records"
BATCH = 5  # records in each batch that is produced
SECONDS_MAX = 120
_WORKER = Path(__file__).with_name("share_worker.py")
_SETTINGS = {
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.session.timeout.ms": "4000",  # what is stopped is to be missed, what is busy not
}
Place = tuple[int, int]


class Worker:
    """One process, and what it told."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.took: list[tuple[Place, int]] = []  # with the delivery count
        self.settled: list[tuple[Place, str]] = []
        self.failed: list[str] = []
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,))
        self._reader.start()

    def order(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self, *, kill: bool = False) -> None:
        """Have it stop and wait for that; it must end well."""
        if kill:
            self.process.kill()
        elif self.process.poll() is None:
            self.order("stop")
        code = self.process.wait(SECONDS_MAX)
        assert kill or code == 0, code
        self._close()

    def abandon(self) -> None:
        """End it, however it stands."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        self._reader.join()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            told = json.loads(line)
            took, settled = told.get("took", ()), told.get("settled", ())
            self.took += [((partition, offset), count) for partition, offset, count in took]
            self.settled += [((partition, offset), kind) for partition, offset, kind in settled]
            self.failed += told.get("failed", ())


class Crew:
    """Workers of one group on a broker, and the producer of what they work on."""

    def __init__(
        self, server: Server, folder: Path, classes: Path, mode: str, partitions: int
    ) -> None:
        self.server = server
        self.workers: list[Worker] = []
        self.produced = 0
        self.partitions = partitions
        self._folder, self._classes, self._mode = folder, classes, mode
        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": server.bootstrap,
            "log_level": 2,
        }
        self._admin = AdminClient(settings)
        self._admin.create_topics([NewTopic(TOPIC, partitions)])[TOPIC].result(SECONDS_MAX)
        self._producer = confluent_kafka.Producer({**settings, "linger.ms": 1000})

    def close(self) -> None:
        for worker in self.workers:
            if worker.process.returncode is None:
                worker.abandon()

    def configure(self, **settings: str) -> None:
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(SECONDS_MAX)

    def hire(self, kind: str, *orders: str) -> Worker:
        arguments = (self.server.bootstrap, GROUP, TOPIC, self._mode)
        command = (
            java(
                "ShareWorker", *arguments, options=(*quick_java(), "-Xmx128m"), folder=self._classes
            )
            if kind == "java"
            else [sys.executable, str(_WORKER), *arguments]
        )
        worker = Worker(command, self._folder / f"worker-{len(self.workers)}.txt")
        for order in orders:
            worker.order(order)
        self.workers.append(worker)
        return worker

    def produce(self, count: int) -> None:
        """So many records, by turns to each partition."""
        assert count % (BATCH * self.partitions) == 0
        for _ in range(count // (BATCH * self.partitions)):
            for partition in range(self.partitions):
                for _ in range(BATCH):
                    self._producer.produce(TOPIC, b"v", partition=partition)
            assert self._producer.flush(SECONDS_MAX) == 0
        self.produced += count

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + SECONDS_MAX
        while not condition():
            assert time.monotonic() < end, f"waited in vain; {self.finished()} of {self.produced}"
            time.sleep(0.02)

    def finished(self) -> int:
        """How many records have a confirmed verdict that is their last."""
        return len(self._verdicts())

    def left(self) -> int:
        """How many records the broker knows to be unfinished."""
        with contextlib.closing(Cluster(self.server.bootstrap)) as cluster:
            found = list_share_group_offsets(cluster, GROUP)
        return sum(place.lag or 0 for place in found.values() if place is not None)

    def members(self) -> list[str]:
        """The ids of the group's members."""
        with contextlib.closing(Cluster(self.server.bootstrap)) as cluster:
            group = describe_share_groups(cluster, [GROUP])[GROUP]
        assert not isinstance(group, BrokerError), group
        return [member.member for member in group.members]

    def acquired(self, member: str) -> int:
        """How many records the broker holds for a member: maybe more than its polls brought yet."""
        count = 0
        with contextlib.closing(Cluster(self.server.bootstrap)) as cluster:
            for partition in range(self.partitions):
                place, states = (TOPIC, partition), [RecordState.ACQUIRED]
                found = in_flight(cluster, GROUP, place, 0, states=states, runs_max=1000)
                held = (run for run in found.runs if run.holder and run.holder.member == member)
                count += sum(run.last - run.first + 1 for run in held)
        return count

    def _verdicts(self) -> Counter[Place]:
        """How often each record was told to be accepted or rejected."""
        told = [one for worker in self.workers for one in tuple(worker.settled)]
        return Counter(place for place, kind in told if kind != "RELEASE")

    def deliveries(self) -> dict[Place, list[int]]:
        """The delivery counts that each record came with, to whomever."""
        found: dict[Place, list[int]] = {}
        for worker in self.workers:
            for place, count in worker.took:
                found.setdefault(place, []).append(count)
        return {place: sorted(counts) for place, counts in found.items()}

    def places(self) -> set[Place]:
        offsets = range(self.produced // self.partitions)
        return {(partition, offset) for partition in range(self.partitions) for offset in offsets}

    def finished_once(self) -> bool:
        """Whether no record was confirmed to be finished twice."""
        return set(self._verdicts().values()) <= {1}


@contextlib.contextmanager
def crew(
    folder: Path, classes: Path, mode: str = "explicit", partitions: int = 1, **group: str
) -> Iterator[Crew]:
    """A broker process, and a crew without workers yet, with settings of its group."""
    with (
        Server(folder, settings=_SETTINGS) as server,
        contextlib.closing(Crew(server, folder, classes, mode, partitions)) as one,
    ):
        one.configure(share_auto_offset_reset="earliest", **group)
        yield one
