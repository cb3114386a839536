"""Producing as any application does: an unmodified, idempotent Kafka producer.

Idempotence is what makes the account exact: a batch that is sent again after the broker died
between writing and answering is recognised by its sequence number.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.demo.flights import Kind, Payload

QUEUED_RECORDS_MAX = 100_000
REPORT_EVERY = 5_000


class ProducingFailed(Exception):
    """A record was not delivered, or deliveries stood still for too long."""


@dataclass(slots=True)
class Produced:
    """What was produced, by what it is, and what the broker confirmed, by partition."""

    kinds: Counter[Kind] = field(default_factory=Counter)
    by_partition: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def confirmed(self) -> int:
        return self.by_partition.total()


def create_topic(bootstrap: str, topic: str, partitions: int, *, timeout_s: float = 30) -> None:
    """Create the topic with an ordinary admin client. Raises: ProducingFailed."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = admin.create_topics(
        [NewTopic(topic, num_partitions=partitions, replication_factor=1)],
        request_timeout=timeout_s,
    )
    try:
        asked[topic].result(timeout=timeout_s)
    except KafkaException as refused:
        raise ProducingFailed(f"topic {topic} was not created: {refused}") from refused


def produce(
    bootstrap: str,
    topic: str,
    payloads: Iterable[Payload],
    on_progress: Callable[[int], None],
    *,
    stalled_after_s: float = 90,
) -> Produced:
    """Produce all payloads and wait for their delivery reports.

    `on_progress` is told the number of confirmed records now and then; it may take its time (the
    producer works on in threads of its own), so it is where a broker is killed and started again.

    Raises: ProducingFailed when a record is refused or none is confirmed for `stalled_after_s`.
    """
    return _Run(bootstrap, topic, on_progress, stalled_after_s).produce(payloads)


class _Run:
    def __init__(
        self,
        bootstrap: str,
        topic: str,
        on_progress: Callable[[int], None],
        stalled_after_s: float,
    ) -> None:
        self._topic = topic
        self._on_progress = on_progress
        self._stalled_after_s = stalled_after_s
        self._produced = Produced()
        self._failure: str | None = None
        self._seen = 0
        self._moved_at = time.monotonic()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 20,
                "queue.buffering.max.messages": QUEUED_RECORDS_MAX,
                "delivery.timeout.ms": 600_000,
                "reconnect.backoff.max.ms": 500,
                "error_cb": self._on_error,
                "log_level": 2,  # a broker that is away for a second is no news here
            }
        )

    def produce(self, payloads: Iterable[Payload]) -> Produced:
        began = time.monotonic()
        for payload in payloads:
            self._send(payload)
        while self._producer.flush(0.2):
            self._check()
        self._check()
        self._on_progress(self._produced.confirmed)
        self._produced.seconds = time.monotonic() - began
        sent = self._produced.kinds.total()
        if self._produced.confirmed != sent:
            raise ProducingFailed(f"{self._produced.confirmed} of {sent} records were confirmed")
        return self._produced

    def _send(self, payload: Payload) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic, payload.value, payload.key, on_delivery=self._on_delivery
                )
                break
            except BufferError:
                self._producer.poll(0.2)
                self._check()
        self._produced.kinds[payload.kind] += 1
        if self._produced.kinds.total() % 500 == 0:
            self._producer.poll(0)
            if self._produced.confirmed - self._seen >= REPORT_EVERY:
                self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise ProducingFailed(self._failure)
        confirmed = self._produced.confirmed
        now = time.monotonic()
        if confirmed > self._seen:
            self._seen, self._moved_at = confirmed, now
            self._on_progress(confirmed)
        elif now - self._moved_at > self._stalled_after_s:
            raise ProducingFailed(
                f"no record was confirmed for {self._stalled_after_s:.0f} s, after {confirmed}"
            )

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        partition = message.partition()
        if error is not None or partition is None:
            self._failure = f"a record was not delivered: {error}"
        else:
            self._produced.by_partition[partition] += 1

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._failure = f"the producer gave up: {error}"
