"""The data plane beside Apache Kafka 4.3.1: produce, consume, latency, start-up, idle memory.

    python bench/data_plane.py [--quick]

Each round launches Headrace and Kafka in turn on loopback, on an empty data folder, and has them do
the same work for the same clients: Kafka's own producer and consumer perf tools with their default
settings, confluent-kafka's `consume(10000)`, and a record every millisecond that a consumer waits
for. The order changes from round to round; figures are medians. The last line is one JSON object:
rates are Headrace / Kafka (more is better), times and memory too (less is better).
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from brokers import BROKERS, Broker, java, prepared

_PARTITIONS = 4
_IDLE_SECONDS = 3
_LATENCY_PER_SECOND = 1000
_CONSUME = 10_000
_SECONDS_MAX = 300
_RATES = ("produce_100B", "produce_1KB", "consume", "consume_confluent")
_COSTS = ("startup", "idle_memory", "latency_p99")


@dataclass(frozen=True)
class Work:
    """How much is done in a round."""

    small_records: int
    large_records: int
    latency_seconds: int
    rounds: int


QUICK = Work(small_records=400_000, large_records=100_000, latency_seconds=3, rounds=1)
FULL = Work(small_records=3_000_000, large_records=500_000, latency_seconds=20, rounds=3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small round, under a minute")
    work = QUICK if parser.parse_args().quick else FULL
    found: dict[str, list[dict[str, float]]] = {name: [] for name in BROKERS}
    for number in range(work.rounds):
        for name in sorted(BROKERS, reverse=bool(number % 2)):
            with prepared(BROKERS[name]) as broker:
                figures = _measure(broker, work)
            found[name].append(figures)
            shown = ", ".join(f"{figure} {value:,.4g}" for figure, value in figures.items())
            print(f"{name}: {shown}", flush=True)
    ratios = {}
    for figure in _RATES + _COSTS:
        ours, theirs = (
            statistics.median(one[figure] for one in found[name]) for name in ("headrace", "kafka")
        )
        print(f"{figure}: headrace {ours:,.4g}, kafka {theirs:,.4g}")
        ratios[figure] = round(ours / theirs, 4)
    print(json.dumps(ratios))


def _measure(broker: Broker, work: Work) -> dict[str, float]:
    """Records/s, seconds, MB and milliseconds of one launch."""
    broker.launch()  # its files are in the page cache then, whatever the machine did before
    broker.stop()
    figures = {"startup": broker.launch()}
    try:
        time.sleep(_IDLE_SECONDS)
        figures["idle_memory"] = broker.resident_mb()
        create(broker, "small", "large", "latency")
        used = broker.cpu_seconds()
        figures["produce_100B"] = _produce(broker, "small", work.small_records, 100)
        figures["produce_1KB"] = _produce(broker, "large", work.large_records, 1000)
        figures["consume"] = _consume(broker, "small", work.small_records)
        figures["consume_confluent"] = _consume_confluent(broker, "small", work.small_records)
        figures["latency_p99"] = latency_p99_ms(broker, work.latency_seconds)
        figures["cpu_seconds"] = broker.cpu_seconds() - used
    finally:
        broker.stop()
    return figures


def create(broker: Broker, *topics: str) -> None:
    """Create topics of four partitions."""
    admin = AdminClient({"bootstrap.servers": broker.servers})
    for created in admin.create_topics([NewTopic(one, _PARTITIONS) for one in topics]).values():
        created.result()


def _produce(broker: Broker, topic: str, records: int, size: int) -> float:
    """Records/s by Kafka's producer perf tool."""
    printed = _tool(
        "ProducerPerformance", "--topic", topic, "--num-records", str(records),
        "--record-size", str(size), "--throughput", "-1", "--bootstrap-server", broker.servers,
    )  # fmt: skip
    rates = re.findall(rf"^{records} records sent, ([\d.]+) records/sec", printed, re.MULTILINE)
    if len(rates) != 1:
        sys.exit(f"the producer perf tool printed:\n{printed[-2000:]}")
    return float(rates[0])


def _consume(broker: Broker, topic: str, records: int) -> float:
    """Records/s by Kafka's consumer perf tool, from joining its group on."""
    printed = _tool(
        "ConsumerPerformance", "--topic", topic, "--num-records", str(records), "--hide-header",
        "--bootstrap-server", broker.servers,
    )  # fmt: skip
    columns = [one.strip() for one in printed.strip().splitlines()[-1].split(",")]
    if len(columns) != 10 or int(columns[4]) < records:
        sys.exit(f"the consumer perf tool printed:\n{printed[-2000:]}")
    return float(columns[5])


def _tool(name: str, *arguments: str) -> str:
    command = java(f"org.apache.kafka.tools.{name}", *arguments)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command[3:])} failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout


def _consumer(broker: Broker, topic: str, offset: int) -> confluent_kafka.Consumer:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            # As librdkafka's own performance tool: with its default the client rests for a second
            # whenever its queue is full, which is most of what would be measured.
            "queued.min.messages": 1_000_000,
        }
    )
    consumer.assign(
        [confluent_kafka.TopicPartition(topic, index, offset) for index in range(_PARTITIONS)]
    )
    return consumer


def _consume_confluent(broker: Broker, topic: str, records: int) -> float:
    """Records/s by `consume(10000)`, from the first call on: the median of three passes."""
    return statistics.median(_confluent_pass(broker, topic, records) for _ in range(3))


def _confluent_pass(broker: Broker, topic: str, records: int) -> float:
    consumer = _consumer(broker, topic, confluent_kafka.OFFSET_BEGINNING)
    began, count = time.perf_counter(), 0
    while count < records:
        messages = consumer.consume(_CONSUME, timeout=10)
        if not messages:
            sys.exit(f"consume() returned nothing after {count} of {records} records")
        count += len(messages)
    took = time.perf_counter() - began
    consumer.close()
    return count / took


def latency_p99_ms(broker: Broker, seconds: int, *, warm_up_seconds: int = 1) -> float:
    """From produce() to poll() at 1,000 records/s on topic `latency`, 99th percentile in ms."""
    consumer = _consumer(broker, "latency", confluent_kafka.OFFSET_BEGINNING)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.servers, "linger.ms": 0})
    warm_up = _LATENCY_PER_SECOND * warm_up_seconds
    count = warm_up + _LATENCY_PER_SECOND * seconds
    took: list[float] = []

    def receive() -> None:
        while len(took) < count:
            message = consumer.poll(10)
            if message is None or message.error():
                return
            took.append((time.perf_counter_ns() - int(message.value() or b"")) / 1e6)

    receiver = threading.Thread(target=receive)
    receiver.start()
    began = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, began + number / _LATENCY_PER_SECOND - time.perf_counter()))
        producer.produce("latency", value=str(time.perf_counter_ns()))
        producer.poll(0)
    producer.flush()
    receiver.join()
    consumer.close()
    if len(took) < count:
        sys.exit(f"nothing more was received after {len(took)} of {count} records")
    return statistics.quantiles(took[warm_up:], n=100)[98]


if __name__ == "__main__":
    main()
