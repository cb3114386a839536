"""confluent-kafka's ShareConsumer, unmodified, against a broker over the wire."""

import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import AcknowledgeType
from confluent_kafka.admin import NewPartitions

import headrace

from .confluent_client import SECONDS_MAX, TOPIC, Client, accepted, accepted_now, polled, values

_SETTINGS = {
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.heartbeat.interval.ms": "100",
    "log.cleaner.backoff.ms": "100",
}


@pytest.fixture
def broker() -> Iterator[headrace.Broker]:
    """A broker of its own for one test, whose members ask often for what is new."""
    with headrace.Broker(settings=_SETTINGS) as running:
        yield running


@pytest.fixture
def client(broker: headrace.Broker) -> Client:
    client = Client(broker)
    client.create()
    client.configure(share_auto_offset_reset="earliest")
    return client


def test_implicit_mode_accepts_what_the_last_poll_returned(client: Client) -> None:
    client.produce("a", "b", "c")
    with client.consumer("implicit") as consumer:
        assert values(polled(consumer, 3)) == ["a", "b", "c"]
        consumer.commit_sync()
    client.produce("d")
    with client.consumer("implicit") as consumer:
        assert values(polled(consumer, 1)) == ["d"]


def test_explicit_accept_release_reject(client: Client) -> None:
    client.produce("accepted", "released", "rejected")
    with client.consumer() as consumer:
        accepted, released, rejected = polled(consumer, 3)
        consumer.acknowledge(accepted, AcknowledgeType.ACCEPT)
        consumer.acknowledge(released, AcknowledgeType.RELEASE)
        consumer.acknowledge(rejected, AcknowledgeType.REJECT)
        consumer.commit_sync()
        (again,) = polled(consumer, 1)
        assert again.value() == b"released"
        consumer.acknowledge(again, AcknowledgeType.ACCEPT)
        consumer.commit_sync()
    client.produce("next")
    with client.consumer() as consumer:
        assert values(polled(consumer, 1)) == ["next"]


def test_rejected_and_exhausted_records_become_dead_letters(client: Client) -> None:
    client.configure(errors_deadletterqueue_topic_name="dlq.jobs", share_delivery_count_limit="2")
    client.produce("poison", "unlucky", "fine")
    with client.consumer() as consumer:
        for message in polled(consumer, 3):
            verdict = {
                b"poison": AcknowledgeType.REJECT,
                b"unlucky": AcknowledgeType.RELEASE,
                b"fine": AcknowledgeType.ACCEPT,
            }[message.value()]
            consumer.acknowledge(message, verdict)
        consumer.commit_sync()
        (unlucky,) = polled(consumer, 1)
        consumer.acknowledge(unlucky, AcknowledgeType.RELEASE)
        consumer.commit_sync()
    letters = {message.value(): dict(message.headers()) for message in client.read("dlq.jobs", 2)}
    assert letters[b"poison"].pop("__dlq.errors.member")  # the client made it up
    assert letters[b"poison"] == {
        "__dlq.errors.group": b"work",
        "__dlq.errors.topic": b"jobs",
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"0",
        "__dlq.errors.delivery.count": b"1",
        "__dlq.errors.message": b"rejected by the consumer",
    }
    assert letters[b"unlucky"]["__dlq.errors.delivery.count"] == b"2"
    assert letters[b"unlucky"]["__dlq.errors.message"] == b"delivery count limit 2 reached"


def test_two_consumers_share_one_partition(client: Client) -> None:
    with client.consumer() as first, client.consumer() as second:
        seen: dict[str, str] = {}
        until = time.monotonic() + SECONDS_MAX
        produced = 0
        # Who joined first may be given forty records before the other is there.
        while len(seen) < max(40, produced) or set(seen.values()) != {"first", "second"}:
            assert time.monotonic() < until, seen
            if produced < 40 or len(seen) == produced:
                client.produce(f"{produced}")
                produced += 1
            for name, consumer in (("first", first), ("second", second)):
                for message in consumer.poll(0.01):
                    assert message.value().decode() not in seen, "delivered twice"
                    seen[message.value().decode()] = name
                    consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        assert sorted(map(int, seen)) == list(range(produced))


def test_records_of_a_closed_consumer_go_to_another(client: Client) -> None:
    client.produce("a", "b")
    with client.consumer() as consumer:
        polled(consumer, 2)
    with client.consumer() as consumer:
        assert values(polled(consumer, 2)) == ["a", "b"]


def test_latest_begins_at_the_first_heartbeat(client: Client) -> None:
    client.configure(share_auto_offset_reset="latest")
    client.produce("before")
    with client.consumer() as consumer:
        client.joined(consumer)
        client.produce("after")
        assert values(polled(consumer, 1)) == ["after"]


def test_topic_created_after_the_subscription(client: Client) -> None:
    """Also under `latest` nothing is skipped: there was nothing when the subscription was made."""
    client.configure(share_auto_offset_reset="latest")
    with client.consumer(topic="later") as consumer:
        client.joined(consumer)
        client.create("later")
        client.produce("hello", topic="later")
        assert values(polled(consumer, 1)) == ["hello"]


def test_acknowledging_by_offset_and_hearing_of_it_later(client: Client) -> None:
    client.produce("a", "b", "c")
    heard: list[Any] = []
    with client.consumer() as consumer:
        consumer.set_acknowledgement_commit_callback(lambda *told: heard.append(told))
        first, *others = polled(consumer, 3)
        with pytest.raises(confluent_kafka.IllegalStateException):
            consumer.poll(0.1)  # verdicts are missing
        consumer.acknowledge_offset(TOPIC, 0, first.offset(), AcknowledgeType.REJECT)
        for message in others:
            consumer.acknowledge(message)
        consumer.commit_async()
        until = time.monotonic() + SECONDS_MAX
        while not heard:
            assert time.monotonic() < until
            assert not consumer.poll(0.1)
        with pytest.raises(confluent_kafka.IllegalStateException):
            consumer.acknowledge(first)
    assert client.left() == 0


def test_a_late_verdict_is_refused_and_the_next_holder_decides(client: Client) -> None:
    client.configure(share_record_lock_duration_ms="1000")
    client.produce("a", "b")
    with client.consumer() as slow, client.consumer() as other:
        held = polled(slow, 2)
        client.configure(share_record_lock_duration_ms="30000")  # for those to come
        again = polled(other, 2)
        assert [message.delivery_count() for message in again] == [2, 2]
        for message in held:
            slow.acknowledge(message, AcknowledgeType.REJECT)
        (refused,) = slow.commit_sync().values()
        assert refused.args[0].name() == "INVALID_RECORD_STATE"
        assert client.left() == 2
        for message in again:
            other.acknowledge(message)
        assert list(other.commit_sync().values()) == [None]
    assert client.left() == 0


def test_the_last_delivery_of_a_record(client: Client) -> None:
    client.configure(share_delivery_count_limit="3")
    client.produce("poison")
    with client.consumer() as consumer:
        for delivery in (1, 2, 3):
            (message,) = polled(consumer, 1)
            assert message.delivery_count() == delivery
            consumer.acknowledge(message, AcknowledgeType.RELEASE)
            consumer.commit_sync()
        client.produce("next")
        assert values(polled(consumer, 1)) == ["next"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_one_is_released_in_the_middle_of_a_compressed_batch(client: Client, codec: str) -> None:
    settings: dict[str, Any] = {"bootstrap.servers": client.servers, "compression.type": codec}
    producer = confluent_kafka.Producer({**settings, "linger.ms": 5000})
    for number in range(100):
        producer.produce(TOPIC, value=b"%d" % number * 20, partition=0)
    assert producer.flush(SECONDS_MAX) == 0
    with client.consumer() as consumer:
        messages = polled(consumer, 100)
        for number, message in enumerate(messages):
            assert message.value() == b"%d" % number * 20
            released = AcknowledgeType.RELEASE if number == 57 else AcknowledgeType.ACCEPT
            consumer.acknowledge(message, released)
        consumer.commit_sync()
        (again,) = accepted(consumer, 1)
        assert (again.offset(), again.delivery_count()) == (57, 2)
    assert client.left() == 0


def test_large_records_come_one_by_one(client: Client) -> None:
    client.produce(*(f"{number}" * 900_000 for number in range(4)))
    with client.consumer(fetch_max_bytes=1_000_000, receive_message_max_bytes=2_000_000) as one:
        found = accepted(one, 4)
        assert values(found) == [f"{number}" * 900_000 for number in range(4)]
    assert client.left() == 0


def test_gaps_of_compaction_are_finished_by_somebody(client: Client) -> None:
    settings = {
        "cleanup.policy": "compact",
        "segment.bytes": "2000",
        "min.cleanable.dirty.ratio": "0.01",
    }
    client.create("compacted", config=settings)
    for number in range(400):
        client.producer.produce("compacted", b"%d" % number, b"%d" % (number % 40), partition=0)
        if number % 10 == 9:
            assert client.producer.flush(SECONDS_MAX) == 0
    until = time.monotonic() + 2 * SECONDS_MAX
    while len(left := client.all_of("compacted")) >= 200:
        assert time.monotonic() < until, f"{len(left)} records"
    with client.consumer(topic="compacted") as consumer:
        found: list[str] = []
        while "399" not in found:  # the log goes on being cleaned
            assert time.monotonic() < until, found
            found += values(accepted_now(consumer))
        assert found == sorted(set(found), key=int)
        assert set(client.all_of("compacted")) <= set(found) <= set(left)
        while client.left():
            assert time.monotonic() < until, f"{client.left()} offsets"
            assert not consumer.poll(0.1)


def test_two_groups_and_a_subscription_that_changes(client: Client) -> None:
    client.configure("others", share_auto_offset_reset="earliest")
    client.create("second")
    client.produce("a", "b")
    client.produce("c", topic="second")
    with client.consumer() as one, client.consumer(group="others") as other:
        held = polled(one, 2)
        assert values(accepted(other, 2)) == ["a", "b"]
        one.subscribe(["second"])
        assert one.subscription() == ["second"]
        for message in held:
            one.acknowledge(message)
        assert values(accepted(one, 1)) == ["c"]
        client.produce("d")
        assert values(accepted(other, 1)) == ["d"]
        assert not one.poll(0.5)
        one.subscribe([TOPIC, "second"])
        assert values(accepted(one, 1)) == ["d"]


def test_nothing_is_lost_of_partitions_that_come_later(client: Client) -> None:
    client.configure(share_auto_offset_reset="latest")
    with client.consumer() as consumer:
        client.joined(consumer)
        client.admin.create_partitions([NewPartitions(TOPIC, 3)])[TOPIC].result()
        for partition in range(3):
            client.produce(f"{partition}", partition=partition)
        assert sorted(values(accepted(consumer, 3))) == ["0", "1", "2"]


def test_state_survives_a_restart(tmp_path: Any) -> None:
    with headrace.Broker(data_dir=tmp_path) as broker:
        client = Client(broker)
        client.create()
        client.configure(share_auto_offset_reset="earliest")
        client.produce("accepted", "released", "unanswered")
        with client.consumer() as consumer:
            accepted, released, _ = polled(consumer, 3)
            consumer.acknowledge(accepted, AcknowledgeType.ACCEPT)
            consumer.acknowledge(released, AcknowledgeType.RELEASE)
            consumer.commit_sync()
    with headrace.Broker(data_dir=tmp_path) as broker, Client(broker).consumer() as consumer:
        assert values(polled(consumer, 2)) == ["released", "unanswered"]
