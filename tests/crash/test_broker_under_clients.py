"""SIGKILL of the broker under stock clients: a producer and a share consumer that never notice."""

import time
from pathlib import Path

import confluent_kafka
from confluent_kafka import AcknowledgeType

from headrace.client.admin import create_topic
from headrace.client.configs import set_group_configs
from headrace.client.connection import Cluster
from headrace.client.leases import describe
from headrace.demo.server import Server

from .kills import KILLS_FACTOR

RECORDS, KILLS, SECONDS_MAX = 1_200 * KILLS_FACTOR, 2 * KILLS_FACTOR, 180.0 * KILLS_FACTOR


def test_no_record_is_lost_and_no_accepted_one_comes_again(tmp_path: Path) -> None:
    """What was accepted in a call that returned is not delivered again; the rest may be."""
    with Server(tmp_path) as server, Cluster(server.bootstrap) as cluster:
        create_topic(cluster, "jobs", 2)
        # Under `latest` what is produced before the consumer has joined would be passed over.
        set_group_configs(cluster, "work", {"share.auto.offset.reset": "earliest"})
        settings = {
            "bootstrap.servers": server.bootstrap, "log_level": 2, "reconnect.backoff.max.ms": 500
        }  # fmt: skip
        producer = confluent_kafka.Producer({**settings, "enable.idempotence": True})
        consumer = confluent_kafka.ShareConsumer(
            {**settings, "group.id": "work", "share.acknowledgement.mode": "explicit"}
        )
        consumer.subscribe(["jobs"])
        consumer.poll(1.0)
        kill_at = [RECORDS * (kill + 1) // (KILLS + 1) for kill in range(KILLS)]
        settled: set[bytes] = set()
        produced = 0
        until = time.monotonic() + SECONDS_MAX
        while len(settled) < RECORDS and time.monotonic() < until:
            for _ in range(min(10, RECORDS - produced)):
                producer.produce("jobs", b"%d" % produced, partition=produced % 2)
                produced += 1
            producer.poll(0)
            if kill_at and produced >= kill_at[0]:
                kill_at.pop(0)
                server.kill()
                server.start()
            settled |= work_off(consumer, settled)
        assert producer.flush(60) == 0
        consumer.close()
        assert not kill_at
        assert len(settled) == RECORDS
        state = describe(cluster, "work")
        assert [(one.start, one.end) for one in state] == [(one.log_end,) * 2 for one in state]
        assert sum(one.log_end for one in state) == RECORDS  # the producer repeated nothing


def work_off(consumer: confluent_kafka.ShareConsumer, settled: set[bytes]) -> set[bytes]:
    """Accept what one poll brings; the values whose acceptance the broker has confirmed."""
    waiting: list[tuple[str | None, int | None, bytes]] = []
    for message in consumer.poll(0.05):
        if message.error() is not None:
            continue
        value = message.value()
        assert value is not None
        assert value not in settled, f"{value!r} was accepted, and came again"
        consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        waiting.append((message.topic(), message.partition(), value))
    if not waiting:
        return set()
    outcome = consumer.commit_sync(timeout=20.0)
    failed = {
        (place.topic, place.partition)
        for place, error in (outcome or {}).items()
        if error is not None
    }
    return {value for topic, partition, value in waiting if (topic, partition) not in failed}
