"""From subscribe to the first record of a new share group: Headrace beside Apache Kafka 4.3.1.

    python bench/first_record.py [--quick]

confluent-kafka's ShareConsumer joins a group that nobody used before, its policy earliest, on a
topic with one record; the clock runs from `subscribe` to the record. Both brokers run on loopback,
started by `bench/brokers.py`. The last line is one JSON object, milliseconds and Headrace / Kafka.
"""

import argparse
import json
import statistics
import sys
import time

import confluent_kafka
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from brokers import BROKERS, Broker, running


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two groups each, under a minute")
    groups = 2 if parser.parse_args().quick else 10
    figures: dict[str, float] = {}
    for name, kind in BROKERS.items():
        with running(kind) as broker:
            found = measure(broker, groups)
        print(f"{name}: " + ", ".join(f"{one:.0f}" for one in found) + " ms")
        figures[f"{name}_first_record_ms"] = round(statistics.median(found), 1)
        figures[f"{name}_first_record_ms_max"] = round(max(found), 1)
    ratio = figures["headrace_first_record_ms"] / figures["kafka_first_record_ms"]
    figures["first_record_ratio"] = round(ratio, 4)
    print(json.dumps(figures))


def measure(broker: Broker, groups: int) -> list[float]:
    """Milliseconds from `subscribe` to the first record, of so many new groups."""
    servers = broker.servers
    admin = AdminClient({"bootstrap.servers": servers})
    for created in admin.create_topics([NewTopic("jobs", 1)]).values():
        created.result()
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    producer.produce("jobs", value=b"first")
    producer.flush()
    _first_record(admin, servers, "warm-up")  # Kafka creates its state topic for the first group
    return [_first_record(admin, servers, f"group-{number}") for number in range(groups)]


def _first_record(admin: AdminClient, servers: str, group: str) -> float:
    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result()
    consumer = confluent_kafka.ShareConsumer(
        {"bootstrap.servers": servers, "group.id": group, "log_level": 2}
    )
    began = time.perf_counter()
    consumer.subscribe(["jobs"])
    while not any(message.error() is None for message in consumer.poll(0.05)):
        if time.perf_counter() - began > 60:
            sys.exit(f"{group}: no record within 60 s")
    took = (time.perf_counter() - began) * 1000
    consumer.close()
    return took


if __name__ == "__main__":
    main()
