"""Stock clients whose broker is killed: a producer that sees nothing of it, and consumers."""

import threading
from collections.abc import Iterable

import confluent_kafka
from confluent_kafka import AcknowledgeType, ShareConsumer

from headrace.sim.facts import Asked

from .group_crew import WAIT_S
from .share_crew import LIMIT, PARTITIONS, STOCK, TOPIC, Court, Said

_TYPES = {
    "accept": AcknowledgeType.ACCEPT,
    "release": AcknowledgeType.RELEASE,
    "reject": AcknowledgeType.REJECT,
}
_COMMIT_S = 20.0


class StockConsumer(threading.Thread):
    """confluent-kafka's consumer, which sees nothing of a kill but commits that fail.

    It holds records that it fetched in the broker's last life, and tells nobody of what it
    fetched and does not hand out: the auditor must allow for both.
    """

    def __init__(self, court: Court, name: str) -> None:
        super().__init__(name=name)
        self.court = court
        self._made = 0
        for _ in range(LIMIT):
            court.asked(STOCK, name, acquires=True)  # and never answered
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": court.bootstrap, "group.id": STOCK, "log_level": 2,
                "share.acknowledgement.mode": "explicit", "reconnect.backoff.max.ms": 200,
            }
        )  # fmt: skip
        self._consumer.subscribe([TOPIC])
        self.start()

    def run(self) -> None:
        try:
            while not self.court.ended:
                self._work_off(self._consumer.poll(0.1))
        except BaseException as error:
            self.court.tell(failure=error)
        finally:
            self._consumer.close()

    def _work_off(self, messages: Iterable[confluent_kafka.Message]) -> None:
        said: Said = {}
        for message in messages:
            offset, partition, value = message.offset(), message.partition(), message.value()
            if message.error() is not None or offset is None or partition is None:
                continue
            place = (TOPIC, partition)
            verdict = self._verdict()
            with self.court.condition:
                asked = Asked(self.court.lives_us[-2], -1, STOCK, self.name, acquires=True)
                count = message.delivery_count() or 1
                self.court.auditor.read(place, {offset: value or b""})
                self.court.auditor.delivered(asked, place, [(offset, offset, count)])
                self.court.auditor.acknowledging(
                    STOCK, place, self.name, [(offset, offset, verdict)]
                )
            self._consumer.acknowledge(message, _TYPES[verdict])
            said.setdefault(place, []).append((offset, offset, verdict))
        if said:
            self._commit(said)

    def _verdict(self) -> str:
        self._made += 1
        if self.court.is_honest or self._made % 5:
            return "accept"
        return "reject" if self._made % 2 else "release"

    def _commit(self, said: Said) -> None:
        asked = self.court.asked(STOCK, self.name)
        outcome = self._consumer.commit_sync(timeout=_COMMIT_S) or {}
        done = {(one.topic, one.partition) for one, error in outcome.items() if error is None}
        with self.court.condition:
            for place, parts in said.items():
                if place in done:
                    self.court.auditor.acknowledged(asked, place, self.name, parts)
        if done:
            self.court.did(self.name)


class Feeder(threading.Thread):
    """An idempotent producer of a steady stream of records, until members are to finish."""

    def __init__(self, court: Court) -> None:
        super().__init__(name="feeder")
        self._court = court
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": court.bootstrap, "enable.idempotence": True, "log_level": 2,
                "linger.ms": 20, "reconnect.backoff.max.ms": 200,
            }
        )  # fmt: skip
        self.start()

    def run(self) -> None:
        number = 0
        while not self._court.ended and not self._court.is_honest:
            for _ in range(4 if self._court.up else 0):
                partition = number % PARTITIONS
                self._producer.produce(
                    TOPIC, b"%d" % number, partition=partition, on_delivery=self._produced
                )
                number += 1
            self._producer.poll(0.05)

    def finish(self) -> None:
        """Wait until everything is on the broker."""
        self.join()
        assert self._producer.flush(WAIT_S) == 0

    def _produced(
        self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        offset, partition, value = message.offset(), message.partition(), message.value()
        assert error is None, error
        assert offset is not None
        assert partition is not None
        asked = self._court.asked("", "")
        with self._court.condition:
            self._court.auditor.produced(asked, (TOPIC, partition), offset, [value or b""])
