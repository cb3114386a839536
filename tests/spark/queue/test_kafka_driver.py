"""The reader as Spark's driver-side process has it, by the stock share protocol, without Spark."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType
from tests.spark.queue.stock_rig import Shared

import headrace
from brokers import Broker, Kafka
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError, Unsupported
from headrace.client.leases import Lease
from headrace.client.share_consumer.sync import SyncShareConsumer
from headrace.client.share_groups import list_share_group_offsets
from headrace.client.topics import delete_records
from headrace.spark.queue.checkpoints import CheckpointRefused
from headrace.spark.queue.driver import Driver
from headrace.spark.queue.handle import Handle
from headrace.spark.queue.holder import holder
from headrace.spark.queue.kafka import KafkaDriver
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.plan import Batch
from headrace.spark.queue.reader import ShareReader, Task
from headrace.wire.leases import Disposition, Verdict

Offset = dict[str, Any]


class Reading(Shared):
    """Readers of one checkpoint, one after the other."""

    def __init__(self, servers: str) -> None:
        super().__init__(servers)
        self.reader = self.again()

    def again(self, **more: str) -> ShareReader:
        """A reader as a restarted query has it."""
        self.reader = ShareReader(self.options(**more), StructType(), KafkaDriver)
        return self.reader

    def next(self, before: Offset, most: int = 1000) -> Offset:
        """The next batch, once there is one; also what Spark does with it before tasks run."""
        found: list[Offset] = []

        def look() -> bool:
            found.append(self.reader.latestOffset(before, ReadMaxRows(most)))
            return found[-1] != before

        self.until(look)
        self.reader.partitions(before, found[-1])
        return found[-1]

    def all(self, before: Offset, count: int) -> Offset:
        """Batches until so many records came, each committed by the next; the last of them."""
        while count > 0:
            before = self.next(before)
            count -= sum(records(before).values())
        assert count == 0
        return before

    def to_the_end(self, before: Offset) -> None:
        """Batches until there is none."""
        while (after := self.reader.latestOffset(before, ReadMaxRows(100))) != before:
            self.reader.partitions(before, after)
            before = after

    def stage(self, before: Offset, after: Offset, *said: Disposition) -> None:
        (task, *_) = self.reader.partitions(before, after)
        assert isinstance(task, Task)
        handle = Handle.parse(task.lease)
        with Cluster(handle.address) as cluster:
            Lease(cluster, self.group, handle.session, handle.epoch).stage(handle.seq, said)

    def settle(self, last: Offset) -> None:
        """Commit, and wait until the group has no lag: Kafka shows that a moment later."""
        self.reader.commit(last)
        self.until(self.finished)

    def settle_replayed(self, last: Offset) -> None:
        """As `settle`, where a replay released records late: they come again, to be settled."""
        self.reader.commit(last)

        def is_over() -> bool:
            assert self.reader.latestOffset(last, ReadMaxRows(100)) == last
            return self.finished()

        self.until(is_over)


def records(batch: Offset) -> dict[int, int]:
    """How many records of each delivery count a batch has."""
    found: dict[int, int] = {}
    for _, _, first, last, deliveries in batch["ranges"]:
        found[deliveries] = found.get(deliveries, 0) + last - first + 1
    return found


@pytest.fixture
def reading(served: Broker) -> Iterator[Reading]:
    made = Reading(served.servers)
    yield made
    made.reader.stop()
    made.cluster.close()


def test_the_same_number_has_the_same_records(reading: Reading) -> None:
    reading.produce(50)
    begin = reading.reader.initialOffset()
    first = reading.next(begin, 30)
    assert reading.reader.latestOffset(begin, ReadMaxRows(30)) == first
    rest = reading.all(first, 50 - sum(records(first).values()))
    reading.settle(rest)


def test_locks_are_renewed_while_a_batch_runs(
    reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    reading.set_group(share_record_lock_duration_ms="3000")
    reading.produce(50)
    last = reading.next(reading.reader.initialOffset())
    time.sleep(5)
    last = reading.all(last, 50 - sum(records(last).values()))
    reading.settle(last)
    assert "refused" not in caplog.text


def test_latest_is_where_the_topic_ended_when_the_query_first_started(
    reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka alone would find it anew with the restarted query, and pass over the ten."""
    reading.produce(4)
    begin = reading.again(startingOffsets="latest").initialOffset()
    assert reading.reader.latestOffset(begin, ReadMaxRows(100)) == begin
    assert "this checkpoint is new" not in caplog.text
    reading.reader.stop()
    reading.produce(10)
    reading.again(startingOffsets="latest")
    last = reading.all(begin, 10)
    reading.settle(last)
    assert f"has positions in {reading.topic}-0, {reading.topic}-1, and this" in caplog.text


def test_a_new_checkpoint_on_a_group_with_finished_records_is_refused(
    reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    reading.produce(10)
    reading.settle(reading.all(reading.reader.initialOffset(), 10))
    reading.reader.stop()
    begin = reading.again().initialOffset()
    message = (
        rf"{reading.group}' has finished records of {reading.topic}-0, {reading.topic}-1, and this "
        r"checkpoint is new: .*batch ids begin at 0 again.*or set option newCheckpoint=continue"
    )
    with pytest.raises(CheckpointRefused, match=message):
        reading.reader.latestOffset(begin, ReadMaxRows(10))

    reading.produce(4)
    reading.again(newCheckpoint="continue")
    reading.settle(reading.all(begin, 4))
    assert "reads on with a new checkpoint, whose batch ids begin at 0" in caplog.text


def test_records_finished_behind_a_gap_count_as_history(reading: Reading) -> None:
    """The group's position is at the first record still, as that one was released."""
    reading.produce(20)
    begin = reading.reader.initialOffset()
    first = reading.next(begin)
    topic, partition, offset, last, _ = first["ranges"][0]
    assert (offset, last > offset) == (0, True)
    hour = Disposition(topic, partition, 0, 0, Verdict.RELEASE, None, 3_600_000)
    reading.stage(begin, first, hour)
    reading.reader.commit(reading.all(first, 20 - sum(records(first).values())))

    def lag() -> int | None:
        found = list_share_group_offsets(reading.cluster, reading.group, [(topic, partition)])
        return None if (one := found[topic, partition]) is None else one.lag

    reading.until(lambda: lag() == 1)
    reading.reader.stop()
    begin = reading.again(startingOffsets="latest").initialOffset()
    with pytest.raises(CheckpointRefused, match=f"has finished records of .*{topic}-{partition}"):
        reading.reader.latestOffset(begin, ReadMaxRows(10))


def test_records_that_left_the_log_before_the_group_finished_them_are_a_warning(
    reading: Reading, served: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Headrace moves the position of the group with the start of the log, and has a list."""
    reading.produce(20)
    last = reading.all(reading.reader.initialOffset(), 20)
    reading.settle(last)
    delete_records(reading.cluster, {(reading.topic, 1): 10})
    reading.produce(10)
    delete_records(reading.cluster, {(reading.topic, 0): 13})
    last = reading.all(last, 7)
    for _ in range(2):
        assert reading.reader.reportLatestOffset() is not None
    told = [text for text in caplog.messages if "left the log before" in text]
    if isinstance(served, Kafka):
        (line,) = told
        assert line.startswith(f"share group {reading.group}: records left the log before the")
        assert f"deletion: at least 3 of {reading.topic}-0 offsets 0 to 12; Apache" in line
    else:
        assert told == []
    reading.settle(last)
    assert reading.reader.reportLatestOffset() is not None
    assert len([text for text in caplog.messages if "left the log before" in text]) == len(told)


def test_a_release_with_a_delay_waits_at_the_driver(reading: Reading) -> None:
    reading.produce(1)
    begin = reading.reader.initialOffset()
    first = reading.next(begin)
    topic, partition, offset, _, _ = first["ranges"][0]
    delay_ms = 3000
    later = Disposition(topic, partition, offset, offset, Verdict.RELEASE, None, delay_ms)
    reading.stage(begin, first, later)
    began = time.monotonic()
    reading.reader.commit(first)
    second = reading.next(first)
    assert time.monotonic() - began >= delay_ms / 1000
    assert records(second) == {2: 1}
    reading.settle(second)


def test_a_run_of_what_is_available_does_not_wait_for_delays(reading: Reading) -> None:
    reading.produce(4)
    begin = reading.reader.initialOffset()
    last = reading.all(begin, 4)
    topic, partition, offset, _, _ = last["ranges"][0]
    hour = Disposition(topic, partition, offset, offset, Verdict.RELEASE, None, 3_600_000)
    reading.stage(begin, last, hour)
    reading.reader.prepareForTriggerAvailableNow()
    assert reading.reader.latestOffset(last, ReadMaxRows(100)) == last
    assert not reading.finished()
    reading.reader.stop()  # and the record is free
    reading.again(includeDelivery="true")
    last = reading.all(last, 1)
    assert set(records(last)) == {2}
    reading.settle(last)


def test_rejections_are_told_once(reading: Reading, caplog: pytest.LogCaptureFixture) -> None:
    reading.produce(40)
    before = reading.reader.initialOffset()
    left = 40
    while left:
        batch = reading.next(before, 20)
        said = [
            Disposition(topic, partition, first, last, Verdict.REJECT, "no number")
            for topic, partition, first, last, _ in batch["ranges"]
        ]
        reading.stage(before, batch, *said)
        left -= sum(records(batch).values())
        before = batch
    reading.settle(before)
    told = [one.getMessage() for one in caplog.records if "archived" in one.getMessage()]
    assert len(told) == 1
    assert told[0].endswith("offset 0: no number")


def test_a_replayed_batch_that_comes_again_is_settled_and_not_delivered(reading: Reading) -> None:
    reading.produce(60)
    begin = reading.reader.initialOffset()
    logged = reading.next(begin, 40)
    reading.reader.stop()  # its locks end
    reader = reading.again()
    (task, *_) = reader.partitions(reader.initialOffset(), logged)
    assert isinstance(task, Task)
    assert Handle.parse(task.lease).replayed
    rest = reading.all(logged, 60 - sum(records(logged).values()))
    reading.settle_replayed(rest)


def test_what_the_replay_released_is_delivered_again(reading: Reading) -> None:
    reading.produce(10)
    begin = reading.reader.initialOffset()
    logged = reading.next(begin)
    topic, partition, offset, _, _ = logged["ranges"][0]
    reading.reader.stop()
    reading.again()
    reading.stage(begin, logged, Disposition(topic, partition, offset, offset, Verdict.RELEASE))
    reading.settle_replayed(reading.all(logged, 11 - sum(records(logged).values())))


def test_verdicts_that_went_with_their_process_mean_once_more(
    reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    reading.produce(10)
    reader = reading.again(includeDelivery="true")
    begin = reader.initialOffset()
    last = reading.all(begin, 10)
    reader.stop()
    reading.again(includeDelivery="true")
    again = reading.next(last)
    assert set(records(again)) == {2}
    assert "the verdicts are gone" in caplog.text
    reading.settle(reading.all(again, sum(records(last).values()) - sum(records(again).values())))


def test_a_broker_that_restarts_in_a_batch_costs_no_second_run(
    reading: Reading, served: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    reading.produce(60)
    last = reading.all(reading.reader.initialOffset(), 60)
    served.kill()
    served.launch()
    assert reading.reader.latestOffset(last, ReadMaxRows(100)) == last
    assert "refused (their locks had ended" in caplog.text

    def settled() -> bool:
        assert reading.reader.latestOffset(last, ReadMaxRows(100)) == last
        return reading.finished()

    reading.until(settled)


def test_a_run_of_what_is_available_waits_for_what_others_hold(reading: Reading) -> None:
    reading.produce(10)
    last = reading.all(reading.reader.initialOffset(), 10)
    reading.settle(last)
    other = SyncShareConsumer(reading.servers, group=reading.group, topics=[reading.topic])
    with other, ThreadPoolExecutor(1) as thread:
        reading.produce(2)  # one for each member
        (held,) = other.poll(1, timeout_s=120)
        reading.reader.prepareForTriggerAvailableNow()
        run = thread.submit(reading.to_the_end, last)
        with pytest.raises(TimeoutError):
            run.result(timeout=1)
        held.accept()
        while not run.done():
            for record in other.poll(1, timeout_s=1):
                record.accept()
        run.result()
        assert reading.finished()


def test_a_group_with_members_begins_where_the_option_says(reading: Reading) -> None:
    reading.produce(10)
    other = Shared(reading.servers)
    with SyncShareConsumer(reading.servers, group=reading.group, topics=[other.topic]):
        last = reading.all(reading.reader.initialOffset(), 10)
        reading.settle(last)
    other.cluster.close()


def test_a_topic_that_does_not_exist_is_told(reading: Reading) -> None:
    begin = reading.again(subscribe="nowhere").initialOffset()
    with pytest.raises(BrokerError, match="create the topic, or correct its name"):
        reading.reader.latestOffset(begin, ReadMaxRows(1))


def test_the_broker_s_offer_decides_the_way(reading: Reading, served: Broker) -> None:
    found = holder(reading.options(), Batch("session", 0))
    found.close()
    assert isinstance(found, KafkaDriver if isinstance(served, Kafka) else Driver)


def test_a_broker_without_share_groups_is_told_with_the_remedy() -> None:
    with headrace.Broker(settings={"share.group.enable": "false"}) as broker:
        options = QueueOptions(bootstrap_servers=broker.bootstrap_servers, topics=("t",), group="g")
        with pytest.raises(Unsupported, match="needs Headrace or Apache Kafka"):
            holder(options, Batch("session", 0))
