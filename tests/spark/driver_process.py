"""What tests of failures share: the halting driver as a process, its topics, and the account."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple
from pathlib import Path

from confluent_kafka import Producer

from headrace.client.admin import create_topic, set_group_configs
from headrace.client.connection import Cluster
from headrace.client.leases import describe
from headrace.demo.account import settle
from headrace.demo.evidence import collect, dead_letters
from headrace.demo.run import finished, settled

from . import halting_driver
from .halting_driver import PARTITIONS, Case, Program

DEAD_LETTERS = "dlq.all"
WAIT_S = 600


@contextmanager
def driver(
    bootstrap: str,
    folder: Path,
    cases: Iterable[Case],
    *,
    # A task that stands still keeps its core; a worker that is slow to start costs one attempt.
    master: str = "local[3,4]",
    config: Mapping[str, str] | None = None,
) -> Iterator[Callable[[], None]]:
    """A driver in a session of its own, killed at the end; yields a check that it still runs."""
    log = folder / "driver.log"
    given = Program(bootstrap, str(folder), [list(astuple(one)) for one in cases], master, {})
    told = json.dumps(asdict(given) | {"config": dict(config or {})})
    with (
        log.open("ab") as out,
        subprocess.Popen(
            [sys.executable, halting_driver.__file__, told],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):

        def check() -> None:
            assert process.poll() is None, log.read_text(errors="replace")[-6_000:]

        try:
            yield check
        finally:
            # Python's workers have a group of their own and outlive this for a moment, as they do
            # in production: the next driver must cope.
            os.killpg(process.pid, signal.SIGKILL)


def until_none(what: Callable[[], list[str]], check: Callable[[], None]) -> None:
    """Until nobody is left to be waited for."""
    deadline = time.monotonic() + WAIT_S
    while left := what():
        check()
        assert time.monotonic() < deadline, f"waited in vain for {left}"
        time.sleep(0.1)


def prepare(cluster: Cluster, bootstrap: str, lock_ms: Mapping[str, int], records: int) -> None:
    """A topic with records and a group with locks of so long, for each name in `lock_ms`."""
    allowed = {"errors.deadletterqueue.group.enable": "true"}
    create_topic(cluster, DEAD_LETTERS, 1, configs=allowed)
    for name, duration_ms in lock_ms.items():
        create_topic(cluster, name, PARTITIONS)
        settings = {
            "errors.deadletterqueue.topic.name": DEAD_LETTERS,
            "share.record.lock.duration.ms": str(duration_ms),
        }
        set_group_configs(cluster, name, settings)
        produce(bootstrap, name, range(records))


def produce(bootstrap: str, name: str, numbers: range) -> None:
    """Records with these numbers, each in the partition that it has by its number."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in numbers:
        producer.produce(name, json.dumps({"number": number}), partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def not_reached(folder: Path, names: Iterable[str]) -> list[str]:
    """Which queries are not at their point yet."""
    return [name for name in names if not (folder / name / "reached").exists()]


def unfinished(cluster: Cluster, names: Iterable[str], records: int) -> list[str]:
    """Which groups have something left to deliver, in flight, or not even begun."""
    found = []
    for name in names:
        state = describe(cluster, name)
        if sum(map(finished, state)) != records or not all(map(settled, state)):
            found.append(name)
    return found


def complaints(bootstrap: str, name: str, parquet: Path, records: int) -> tuple[str, ...]:
    """What does not add up in the account of a group over the topic of its name."""
    with Cluster(bootstrap) as cluster:
        dead = [one for one in dead_letters(cluster, DEAD_LETTERS) if one.topic == name]
        assert {letter.reason for letter in dead} == {"never"}
        evidence = collect(
            cluster,
            group=name,
            topic=name,
            parquet=parquet,
            produced=dict.fromkeys(range(PARTITIONS), records // PARTITIONS),
            dead=dead,
        )
    return settle(evidence, unprocessable=records // 10).complaints
