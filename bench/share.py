"""Share groups beside Apache Kafka 4.3.1: clients' rates, the first record, a million in flight.

    python bench/share.py [--quick] [--only PART]

Both brokers run at the same time, with what they ship with, and take turns at the same work.

- java, confluent: one KafkaShareConsumer (`ShareReader.java`), or one ShareConsumer of
  confluent-kafka (`share_reader.py`), in a process of its own that stays for all rounds, so that it
  is warm, reads a topic of 100-byte records in one partition with default settings: every poll
  accepts the one before. Records/s from the first records on until the last are acknowledged.
- many: four Java consumers, four partitions. members: eight on one partition; `_fairness` is what
  the slowest got of what the fastest got.
- perf_tool: kafka-share-consumer-perf-test, a new process each round, by the rate that it prints,
  which counts from `subscribe`: Kafka's first assignment of five seconds is in it.
- first_record: from `subscribe` to the first record of a new group (`first_record.py`).
- holes: one member acquires 1,000,000 records and releases every second; another acquires 100 at a
  time, which are 100 ranges: the 99th percentile of its answers. Then the broker is stopped, and
  killed, and launched: seconds from the launch until the group has acquired records again. Kafka
  beside it with the 10,000 in flight that it allows.

`_cpu` is processor time of the broker a record, which neighbours on the machine change less than
rates; `_client_cpu` that of the client. With --quick two parts, less of them, in one round. The
last line is one JSON object: keys in `_s`, `_ms` and `_mb` are Headrace's own (`kafka_`: Kafka's),
all other figures are Headrace / Kafka.
"""

import argparse
import contextlib
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

import first_record
from brokers import BROKERS, Broker, class_path, cpu_seconds, java, prepared, running
from share_client import RECORD_LIMIT, RELEASE, Member

_RECORD_BYTES = 100
_SECONDS_MAX = 300
_TOPIC = "jobs"
_ACQUIRED = 100  # records an acquisition of `holes`
_KAFKA_IN_FLIGHT_MAX = 10_000
_FILL = 10_000  # records an acquisition that puts records in flight
_LOCK_MS = 600_000  # nothing runs out meanwhile
_groups = count(1)

Figures = dict[str, float]


@dataclass(frozen=True)
class Work:
    """How much is done."""

    warm_up_rounds: int
    rounds: int
    records: int
    first_records: int
    in_flight: int


QUICK = Work(warm_up_rounds=1, rounds=1, records=100_000, first_records=1, in_flight=100_000)
FULL = Work(warm_up_rounds=2, rounds=5, records=1_000_000, first_records=5, in_flight=1_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small round, under a minute")
    parser.add_argument("--only", choices=PARTS, help="one part")
    arguments = parser.parse_args()
    work = QUICK if arguments.quick else FULL
    told: Figures = {}
    for name in [arguments.only] if arguments.only else QUICK_PARTS if arguments.quick else PARTS:
        told |= PARTS[name](work)
    print(json.dumps({key: round(value, 4) for key, value in told.items()}))


def _show(part: str, name: str, figures: Figures) -> None:
    shown = ", ".join(f"{figure} {value:,.4g}" for figure, value in figures.items())
    print(f"{part}, {name}: {shown}", flush=True)


def _configure(broker: Broker, group: str, **values: str) -> None:
    """Settings of a group, by names with `_` for `.`."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in values.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": broker.servers})
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result()


def _fill(broker: Broker, partitions: int, records: int) -> None:
    """A topic of so many records."""
    admin = AdminClient({"bootstrap.servers": broker.servers})
    admin.create_topics([NewTopic(_TOPIC, partitions)])[_TOPIC].result()
    command = java(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", _TOPIC,
        "--num-records", str(records), "--record-size", str(_RECORD_BYTES), "--throughput", "-1",
        "--bootstrap-server", broker.servers,
    )  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS_MAX)


# ---- rates


class Reader:
    """A process that reads in rounds (`ShareReader.java`, `share_reader.py`)."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip

    def read(self, broker: Broker, consumers: int, records: int) -> Figures:
        """One round: records/s, microseconds of the processor a record, fairness."""
        group = f"group-{next(_groups)}"
        _configure(broker, group, share_auto_offset_reset="earliest")
        assert self.process.stdin is not None
        self.process.stdin.write(f"{broker.servers} {_TOPIC} {group} {consumers} {records}\n")
        self.process.stdin.flush()
        if self._line() != "begun":
            sys.exit("the reader did not begin to read")
        cpu = broker.cpu_seconds(), cpu_seconds(self.process.pid)
        read, seconds, *each = map(float, self._line().split())
        return {
            "rate": read / seconds,
            "cpu": 1e6 * (broker.cpu_seconds() - cpu[0]) / read,
            "client_cpu": 1e6 * (cpu_seconds(self.process.pid) - cpu[1]) / read,
            "fairness": min(each) / max(each),
        }

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextlib.contextmanager
def _reader(command: list[str]) -> Iterator[Reader]:
    reader = Reader(command)
    try:
        yield reader
    finally:
        reader.process.kill()
        reader.process.wait()


@contextlib.contextmanager
def _java() -> Iterator[Reader]:
    with tempfile.TemporaryDirectory() as classes:
        source = Path(__file__).with_name("ShareReader.java")
        subprocess.run(["javac", "-cp", class_path(), "-d", classes, str(source)], check=True)
        with _reader(java("ShareReader", folder=Path(classes))) as reader:
            yield reader


def _confluent() -> AbstractContextManager[Reader]:
    return _reader([sys.executable, str(Path(__file__).with_name("share_reader.py"))])


def _rates(
    part: str,
    client: Callable[[], AbstractContextManager[Reader]],
    partitions: int,
    consumers: int,
    work: Work,
) -> Figures:
    found: dict[str, list[Figures]] = {name: [] for name in BROKERS}
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(running(kind)) for name, kind in BROKERS.items()}
        for broker in brokers.values():
            _fill(broker, partitions, work.records)
        reader = stack.enter_context(client())
        for number in range(-work.warm_up_rounds, work.rounds):
            for name in sorted(brokers, reverse=bool(number % 2)):
                told = reader.read(brokers[name], consumers, work.records)
                if number >= 0:
                    _show(part, name, told)
                    found[name].append(told)
    ratios = {}
    # With fewer members than partitions, who came first has more of them until it is told again.
    figures = ("rate", "cpu", "client_cpu", "fairness")[: 4 if consumers > partitions else 3]
    for figure in figures:
        ours, theirs = (
            statistics.median(one[figure] for one in found[name]) for name in ("headrace", "kafka")
        )
        ratios[f"{part}_{figure}"] = ours / theirs
    return ratios


def _perf_tool(work: Work) -> Figures:
    """Records/s as Kafka's own tool tells them."""
    found: dict[str, list[float]] = {name: [] for name in BROKERS}
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(running(kind)) for name, kind in BROKERS.items()}
        for broker in brokers.values():
            _fill(broker, 1, work.records)
        for number in range(-1, work.rounds):
            for name in sorted(brokers, reverse=bool(number % 2)):
                rate = _told_by_tool(brokers[name], work.records)
                if number >= 0:
                    _show("perf_tool", name, {"rate": rate})
                    found[name].append(rate)
    ours, theirs = (statistics.median(found[name]) for name in ("headrace", "kafka"))
    return {"perf_tool_rate": ours / theirs}


def _told_by_tool(broker: Broker, records: int) -> float:
    group = f"group-{next(_groups)}"
    _configure(broker, group, share_auto_offset_reset="earliest")
    command = java(
        "org.apache.kafka.tools.ShareConsumerPerformance", "--topic", _TOPIC, "--group", group,
        "--num-records", str(records), "--bootstrap-server", broker.servers,
        "--timeout", str(1000 * _SECONDS_MAX),  # three times which all records must have come
    )  # fmt: skip
    told = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=_SECONDS_MAX
    ).stdout.splitlines()
    named, values = (line.split(", ") for line in told[-2:])
    row = dict(zip(named, values, strict=True))
    assert int(row["data.consumed.in.nMsg"]) >= records, "the tool gave up"
    return float(row["nMsg.sec"])


# ---- the first record


def _first_record(work: Work) -> Figures:
    told = {}
    for name, kind in BROKERS.items():
        with running(kind) as broker:
            seconds = statistics.median(first_record.measure(broker, work.first_records)) / 1000
        _show("first_record", name, {"seconds": seconds})
        told["first_record_s" if name == "headrace" else "kafka_first_record_s"] = seconds
    return told


# ---- a million in flight


def _holes(work: Work) -> Figures:
    told: Figures = {}
    for name, kind in BROKERS.items():
        is_ours = name == "headrace"
        in_flight = work.in_flight if is_ours else min(work.in_flight, _KAFKA_IN_FLIGHT_MAX)
        with prepared(kind) as broker:
            figures = _with_holes(broker, in_flight, restarts=is_ours or work.rounds > 1)
        _show(f"holes of {in_flight:,}", name, figures)
        wanted = {
            figure: value for figure, value in figures.items() if is_ours or "acquire" in figure
        }
        told |= {
            figure if is_ours else f"kafka_{figure}": value for figure, value in wanted.items()
        }
    return told


def _with_holes(broker: Broker, in_flight: int, *, restarts: bool) -> Figures:
    """Milliseconds of acquisitions, seconds of recovery when it `restarts`, MB."""
    limits = {
        "group.share.partition.max.record.locks": str(in_flight),
        "group.share.max.partition.max.record.locks": str(max(in_flight, _KAFKA_IN_FLIGHT_MAX)),
        "group.share.record.lock.duration.ms": str(_LOCK_MS),
        "group.share.max.record.lock.duration.ms": str(_LOCK_MS),
    }
    broker.launch(limits)
    _fill(broker, 1, in_flight)
    _configure(broker, "holes", share_auto_offset_reset="earliest")
    first = Member(broker, "holes", _TOPIC, "first")
    held = 0
    while held < in_flight:
        spans, _ = first.fetch(min(_FILL, in_flight - held), RECORD_LIMIT)
        held += sum(last - start + 1 for start, last in spans)
        if not spans:
            time.sleep(0.01)
    first.settle(((offset, offset) for offset in range(1, in_flight, 2)), RELEASE)
    second, used = Member(broker, "holes", _TOPIC, "second"), broker.cpu_seconds()
    took = _acquisitions(second, in_flight // 2)
    figures = {
        "acquire_cpu_ms": 1000 * (broker.cpu_seconds() - used) / len(took),
        "acquire_p50_ms": 1000 * statistics.median(took),
        "acquire_p99_ms": 1000 * statistics.quantiles(took, n=100)[98],
        "memory_mb": broker.resident_mb(),
    }
    broker.stop()
    if not restarts:
        return figures
    figures["recovery_s"], figures["recovery_cpu_s"] = _recovery(broker, limits)
    broker.kill()
    figures["recovery_after_kill_s"], _ = _recovery(broker, limits)
    broker.stop()
    return figures


def _acquisitions(member: Member, holes: int) -> list[float]:
    """Seconds of each acquisition of 100 records that lie apart, of half of them."""
    found = []
    for _ in range(min(holes // _ACQUIRED // 2, 2_000)):
        spans, seconds = member.fetch(_ACQUIRED, RECORD_LIMIT)
        assert len(spans) == _ACQUIRED, "a hole is one record"
        found.append(seconds)
    return found


def _recovery(broker: Broker, limits: dict[str, str]) -> tuple[float, float]:
    """Seconds from the launch until a member has acquired records; those of the processor."""
    began = time.perf_counter()
    broker.launch(limits)
    member = Member(broker, "holes", _TOPIC, "third")
    while not member.fetch(_ACQUIRED, RECORD_LIMIT)[0]:
        time.sleep(0.001)
    return time.perf_counter() - began, broker.cpu_seconds()


PARTS: dict[str, Callable[[Work], Figures]] = {
    "java": functools.partial(_rates, "java", _java, 1, 1),
    "confluent": functools.partial(_rates, "confluent", _confluent, 1, 1),
    "many": functools.partial(_rates, "many", _java, 4, 4),
    "members": functools.partial(_rates, "members", _java, 1, 8),
    "perf_tool": _perf_tool,
    "first_record": _first_record,
    "holes": _holes,
}
QUICK_PARTS = ("java", "holes")


if __name__ == "__main__":
    main()
