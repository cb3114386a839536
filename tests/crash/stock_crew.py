"""Stock clients of confluent_kafka that work while their broker is killed, and do not notice.

An idempotent producer writes a plain and a compacted topic; consumers of the classic protocol and
of KIP-848 read the plain one in a group each, commit synchronously, leave and come again.
"""

import random
import threading
import time
from contextlib import closing
from functools import partial

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.client.admin import create_topic
from headrace.client.connection import Cluster
from headrace.client.group_offsets import list_group_offsets

from .group_crew import WAIT_S, Stage
from .stock_account import NONE, Place, StockAccount, key_of, value_of

STREAM, TABLE = "stream", "table"
PARTITIONS = 3
PROTOCOLS = ("classic", "consumer")  # each the name of its group, too
ASSIGNED, REVOKED = "stock assigned", "stock revoked"  # gates
_UNCOMMITTED_MAX = 25
_PAUSE_S = 0.04  # between records of a partition: logs stay short enough to be read as a whole
_SESSION_MS = 2_500
SETTINGS = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(_SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "offsets.topic.segment.bytes": "200000",  # commits are compacted between kills, too
    "log.cleaner.backoff.ms": "200",
}
_TABLE_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "8000",
    "min.cleanable.dirty.ratio": "0.01",
}
# Errors of a commit that is in doubt, or refused since the group went on without the member.
_EXPECTED = {
    KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._WAIT_COORD, KafkaError._NO_OFFSET,
    KafkaError._DESTROY, KafkaError._STATE, KafkaError._ASSIGNMENT_LOST,
    KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.STALE_MEMBER_EPOCH, KafkaError.FENCED_MEMBER_EPOCH,
}  # fmt: skip


class StockCrew:
    """A producer and two consumers of each protocol, and their account.

    Args:
        stage: has the address of a broker that runs; `stage.changes` counts acknowledgements by
            topic and by group.
    """

    def __init__(self, stage: Stage) -> None:
        self.account = StockAccount()
        self._stage = stage
        with Cluster(stage.bootstrap) as cluster:
            create_topic(cluster, STREAM, PARTITIONS)
            create_topic(cluster, TABLE, 1, configs=_TABLE_SETTINGS)
        self._producer = StockProducer(stage, self.account)
        self._members = [
            StockMember(stage, self.account, protocol, number)
            for protocol in PROTOCOLS
            for number in range(2)
        ]

    def has_worked(self) -> bool:
        """Return whether every kind of client got an acknowledgement since the last kill."""
        return all(self._stage.changes.get(name) for name in (STREAM, TABLE, *PROTOCOLS))

    def check(self) -> None:
        """Compare what a restarted broker has with what was acknowledged, while all go on."""
        bootstrap, account = self._stage.bootstrap, self.account
        acknowledged = account.acknowledged()
        newest = account.newest((TABLE, 0))
        with Cluster(bootstrap) as cluster:
            for group in PROTOCOLS:
                committed = account.committed(group)
                found = _committed(cluster, group)
                for place in {*committed, *found}:
                    before = committed.get(place, NONE)
                    account.check_commit(group, place, before, found.get(place, NONE))
        with Reader(bootstrap) as reader:
            for place, before in acknowledged.items():
                account.check_end(place, before, reader.end(place))
            account.check_newest((TABLE, 0), newest, self._read(reader, (TABLE, 0)))

    def finish(self) -> None:
        """Wait until everything is acknowledged and committed, and compare it from the start.

        Before, each member has to come back and commit: the others hide one that does not.
        """
        changes = self._stage.changes
        self._stage.wait(
            lambda: all(changes.get(member.name) for member in self._members), lambda: changes
        )
        self._producer.finish()
        places = [(STREAM, partition) for partition in range(PARTITIONS)]
        ends = {place: self.account.sent(place) for place in places}
        with Cluster(self._stage.bootstrap) as cluster:
            for group in PROTOCOLS:
                is_done = partial(_has_committed, cluster, group, ends)
                self._stage.wait_for(is_done, f"{group} to commit {ends}")
        self.check()
        with Reader(self._stage.bootstrap) as reader:
            for place in places:
                assert self._read(reader, place) == [*range(ends[place])]
            kept = self._read(reader, (TABLE, 0))
        assert len(kept) < self.account.sent((TABLE, 0)), "the topic was never compacted"

    def join(self) -> None:
        """Wait for all clients to close, once the stage has ended."""
        for client in (self._producer, *self._members):
            client.join()

    def _read(self, reader: "Reader", place: Place) -> list[int]:
        offsets = []
        for message in reader.read(place):
            offset = message.offset()
            assert offset is not None
            self.account.check_record(place, offset, message.key(), message.value(), "read")
            offsets.append(offset)
        return offsets


def _committed(cluster: Cluster, group: str) -> dict[Place, int]:
    return {place: one.offset for place, one in list_group_offsets(cluster, group).items()}


def _has_committed(cluster: Cluster, group: str, offsets: dict[Place, int]) -> bool:
    return _committed(cluster, group) == offsets


class Reader:
    """A stock consumer without a group that reads whole partitions."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 2,
                "enable.auto.commit": False, "enable.partition.eof": True,
                "auto.offset.reset": "error", "fetch.wait.max.ms": 10,
            }
        )  # fmt: skip

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def end(self, place: Place) -> int:
        """Return the end of a log."""
        _, end = self._consumer.get_watermark_offsets(TopicPartition(*place), WAIT_S)
        return int(end)

    def read(self, place: Place) -> list[confluent_kafka.Message]:
        """Return all records of a partition."""
        self._consumer.assign([TopicPartition(*place, 0)])
        messages = []
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            message = self._consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                return messages
            else:
                raise KafkaException(error)
        raise AssertionError(f"{place} has no end")


class _Client(threading.Thread):
    """A client of its own thread; an exception ends the stage's wait."""

    def __init__(self, stage: Stage, account: StockAccount, name: str) -> None:
        super().__init__(name=name)
        self.stage = stage
        self.account = account
        self.start()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.stage.tell(failure=error)

    def work(self) -> None:
        """Work until the stage has ended."""
        raise NotImplementedError

    def count(self, name: str) -> None:
        """Count an acknowledgement."""
        with self.stage.condition:
            self.stage.changes[name] = self.stage.changes.get(name, 0) + 1
            self.stage.condition.notify_all()


class StockProducer(_Client):
    """An idempotent producer of a steady stream."""

    def __init__(self, stage: Stage, account: StockAccount) -> None:
        self._finishing = False
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": stage.bootstrap, "enable.idempotence": True, "log_level": 2,
                "linger.ms": 5, "retry.backoff.ms": 50, "reconnect.backoff.max.ms": 200,
                "batch.num.messages": 5,
            }
        )  # fmt: skip
        super().__init__(stage, account, "producer")

    def work(self) -> None:
        places = [(STREAM, partition) for partition in range(PARTITIONS)]
        while not self.stage.ended and not self._finishing:
            for place in (*places, *((TABLE, 0) for _ in range(4))) if self.stage.up else ():
                number = self.account.next_number(place)
                topic, partition = place
                self._producer.produce(
                    topic, value_of(number), key_of(number), partition, on_delivery=self._delivered
                )
            self._producer.poll(0)
            time.sleep(_PAUSE_S)

    def finish(self) -> None:
        """Wait for all records to be acknowledged."""
        self._finishing = True
        self.join()
        assert self._producer.flush(WAIT_S) == 0

    def _delivered(self, error: KafkaError | None, message: confluent_kafka.Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        if error is not None:
            self.account.add_failure(f"{topic} {partition}: a record failed: {error}")
            return
        key, value = message.key() or b"", message.value() or b""
        self.account.check_acknowledged((topic, partition), offset, key, value)
        self.count(topic)


class StockMember(_Client):
    """A consumer that commits what it has read, leaves, and comes again."""

    def __init__(self, stage: Stage, account: StockAccount, protocol: str, number: int) -> None:
        self._group = protocol
        self._is_first = number == 0
        self._leaving = False
        self._random = random.Random(f"{protocol}-{number}")
        self._starts: dict[Place, int] = {}  # assigned and not read yet: what was committed before
        self._positions: dict[Place, int] = {}
        self._committed: dict[Place, int] = {}  # of the positions
        super().__init__(stage, account, f"{protocol}-{number}")

    def work(self) -> None:
        while not self.stage.ended:
            self._leaving = False
            with closing(self._consumer()) as consumer:
                consumer.subscribe([STREAM], on_assign=self._assigned, on_revoke=self._revoked)
                commits = self._random.randrange(20, 80)
                while commits and not self.stage.ended and not self._is_called_away():
                    commits -= self._step(consumer)
                self._leaving = True

    def _consumer(self) -> confluent_kafka.Consumer:
        # librdkafka 2.16 does not repeat the look-up of a subscribed topic that a kill broke off
        # while the consumer joined: it joins after the next refresh, by default in five minutes.
        refresh = {"topic.metadata.refresh.interval.ms": 2_000}
        classic = {"session.timeout.ms": _SESSION_MS, "heartbeat.interval.ms": 300}
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.stage.bootstrap, "log_level": 2,
                "group.id": self._group, "group.protocol": self._group,
                "enable.auto.commit": False, "auto.offset.reset": "earliest",
                "retry.backoff.ms": 50, "reconnect.backoff.max.ms": 200, "fetch.wait.max.ms": 50,
                **refresh,
                **(classic if self._group == "classic" else {}),
            }
        )  # fmt: skip

    def _is_called_away(self) -> bool:
        """Return whether the first member has to go and come, for someone to reach a gate."""
        is_due = self.stage.gate in (ASSIGNED, REVOKED) and not self.stage.held
        return self._is_first and is_due and bool(self._positions)

    def _step(self, consumer: confluent_kafka.Consumer) -> bool:
        """Read some records and commit them; return whether the broker acknowledged that."""
        for _ in range(_UNCOMMITTED_MAX):
            message = consumer.poll(0.05)
            if message is None:
                break
            error = message.error()
            if error is not None:
                assert error.code() in _EXPECTED or error.retriable(), error
                continue
            self._take(message)
        offsets = {
            place: position
            for place, position in self._positions.items()
            if self._committed.get(place) != position
        }
        return bool(offsets) and self._commit(consumer, offsets)

    def _take(self, message: confluent_kafka.Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        place = (topic, partition)
        self.account.check_record(place, offset, message.key(), message.value(), "consumed")
        if place in self._starts:
            self.account.check_start(self._group, place, self._starts.pop(place), offset)
        else:
            self.account.check_next(self._group, place, self._positions.get(place, NONE), offset)
        self._positions[place] = offset + 1

    def _commit(self, consumer: confluent_kafka.Consumer, offsets: dict[Place, int]) -> bool:
        self.account.committing(self._group, offsets)
        try:
            done = consumer.commit(
                offsets=[TopicPartition(*place, offset) for place, offset in offsets.items()],
                asynchronous=False,
            )
        except KafkaException as failure:
            error = failure.args[0]
            assert error.code() in _EXPECTED, error
            return False
        acknowledged = {(one.topic, one.partition): one.offset for one in done if one.error is None}
        self.account.add_commits(self._group, acknowledged)
        self._committed.update(acknowledged)
        self.count(self._group)
        self.count(self.name)
        return True

    # ---- rebalances

    def _assigned(self, _: object, partitions: list[TopicPartition]) -> None:
        committed = self.account.committed(self._group)
        for one in partitions:
            place = (one.topic, one.partition)
            self._starts[place] = committed.get(place, NONE)
        if partitions:
            self.stage.pass_gate(ASSIGNED)

    def _revoked(self, _: object, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self._starts.pop((one.topic, one.partition), None)
            self._positions.pop((one.topic, one.partition), None)
            self._committed.pop((one.topic, one.partition), None)
        if partitions and not self._leaving:
            self.stage.pass_gate(REVOKED)
