"""A worker of a share group as a process of its own: confluent-kafka's consumer, unmodified.

Arguments: bootstrap servers, group, topic, acknowledgement mode. Lines on the standard input are
orders: `hold` what the next poll brings, `go` on, `stop`. Each line on the standard output tells in
JSON what a poll brought or what became of its verdicts. ShareWorker.java does the same in Java.
"""

import json
import queue
import sys
import threading
from typing import Any

import confluent_kafka
from confluent_kafka import AcknowledgeType

RELEASED, REJECTED = 3, 7  # last digits of offsets


def verdict(offset: int, count: int) -> AcknowledgeType:
    if offset % 10 == RELEASED and count == 1:
        return AcknowledgeType.RELEASE
    return AcknowledgeType.REJECT if offset % 10 == REJECTED else AcknowledgeType.ACCEPT


def tell(**told: Any) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def taken(consumer: Any) -> list[Any]:
    """What a poll brings; errors are told, and the client goes on by itself."""
    found = []
    for message in consumer.poll(0.1):
        if message.error() is None:
            found.append(message)
        else:
            tell(trouble=str(message.error()))
    return found


def settle(consumer: Any, messages: list[Any], *, explicit: bool) -> None:
    """Give each record its verdict; tell of those that the broker has confirmed."""
    verdicts: dict[tuple[int, int], AcknowledgeType] = {}
    for message in messages:
        kind = AcknowledgeType.ACCEPT
        if explicit:
            kind = verdict(message.offset(), message.delivery_count())
            consumer.acknowledge(message, kind)
        verdicts[message.partition(), message.offset()] = kind
    try:
        outcomes = consumer.commit_sync(30.0)
    except confluent_kafka.KafkaException as error:
        tell(failed=[str(error)])
        return
    well = {place.partition for place, error in outcomes.items() if error is None}
    failed = [error.args[0].name() for error in outcomes.values() if error is not None]
    done = [
        (partition, offset, kind.name)
        for (partition, offset), kind in verdicts.items()
        if partition in well
    ]
    tell(settled=done, failed=failed)


def main(servers: str, group: str, topic: str, mode: str) -> None:
    orders: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            orders.put(line.strip())
        orders.put("stop")

    threading.Thread(target=listen, daemon=True).start()
    settings = {
        "bootstrap.servers": servers,
        "group.id": group,
        "share.acknowledgement.mode": mode,
        "max.poll.records": 20,
        "log_level": 2,
    }
    consumer = confluent_kafka.ShareConsumer(settings)
    consumer.subscribe([topic])
    order = ""
    while order != "stop":
        messages = taken(consumer)
        if messages:
            tell(took=[(one.partition(), one.offset(), one.delivery_count()) for one in messages])
        while not orders.empty() or (order == "hold" and messages):
            order = orders.get()
        if messages:
            settle(consumer, messages, explicit=mode == "explicit")
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
