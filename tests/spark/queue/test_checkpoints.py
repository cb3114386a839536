"""A new checkpoint on a share group that was read before: refused, unless the user chose."""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

import headrace
from headrace.client.admin import create_topic, set_group_configs
from headrace.client.connection import Cluster
from headrace.client.lease_sessions import list_lease_sessions
from headrace.client.leases import describe
from headrace.spark.queue.checkpoints import CheckpointRefused
from headrace.spark.queue.driver import Driver
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.plan import Batch


@pytest.fixture
def servers() -> Iterator[str]:
    """A broker with ten records in the topic `t`."""
    with headrace.Broker() as broker, Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "t", 1)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(10):
            producer.produce("t", f"value {number}")
        assert producer.flush(20) == 0
        yield broker.bootstrap_servers


def options(servers: str, new_checkpoint: str = "fail") -> QueueOptions:
    return QueueOptions(
        bootstrap_servers=servers,
        topics=("t",),
        group="g",
        start="earliest",
        acquire_wait_ms=1,
        new_checkpoint=new_checkpoint,
    )


def read(servers: str, session: str, *, settle: bool) -> None:
    """Acquire four records in a session, and settle them or leave."""
    driver = Driver(options(servers), Batch(session, 0))
    assert driver.acquire(1, 4)
    if settle:
        driver.commit(1)
    driver.close()


def test_a_new_checkpoint_on_a_group_with_history_is_refused_with_the_choice(servers: str) -> None:
    read(servers, "one", settle=True)
    with Cluster(servers) as cluster:
        before = describe(cluster, "g")
        message = (
            r"'g' was read by another checkpoint before \(lease session one settled 1 batches\), "
            r"and this checkpoint is new: .*batch ids begin at 0 again, .*use the earlier "
            r"checkpoint, or set option newCheckpoint=continue and write to a new output folder"
        )
        with pytest.raises(CheckpointRefused, match=message):
            Driver(options(servers), Batch("two", 0))
        assert describe(cluster, "g") == before


def test_a_user_may_read_on_with_a_new_checkpoint(
    servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    read(servers, "one", settle=True)
    driver = Driver(options(servers, "continue"), Batch("two", 0))
    assert [(one.first, one.last) for one in driver.acquire(1, 10)] == [(4, 9)]
    assert (
        "lease session two reads on with a new checkpoint, whose batch ids begin at 0"
        in caplog.text
    )
    driver.close()


def test_a_checkpoint_that_has_batches_is_not_new(servers: str) -> None:
    read(servers, "one", settle=True)
    driver = Driver(options(servers, "continue"), Batch("two", 0))
    driver.acquire(1, 3)
    driver.close()
    back = Driver(options(servers), Batch("two", 1))
    back.commit(1)
    back.close()


def test_a_query_that_died_before_it_logged_a_batch_starts_again(
    servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first session is left behind, and says so as long as it may be a query at work."""
    read(servers, "one", settle=False)
    driver = Driver(options(servers), Batch("two", 0))
    assert [(one.first, one.last) for one in driver.acquire(1, 10)] == [(4, 9)]
    assert "session one reads it as well, or its driver died" in caplog.text
    driver.close()


def test_a_new_checkpoint_beside_a_planned_batch_is_refused(servers: str) -> None:
    """The query of the earlier checkpoint may have written the batch, settled or not."""
    driver = Driver(options(servers), Batch("one", 0))
    ranges = driver.acquire(1, 4)
    batch = Batch("one", 1, ranges)
    assert driver.reading(batch) == batch
    assert "replayed" not in driver.handle(1)
    message = (
        r"'g' was read by another checkpoint before \(lease session one planned a batch and did "
        r"not settle it\), and this checkpoint is new: .*or set option newCheckpoint=continue"
    )
    with pytest.raises(CheckpointRefused, match=message):
        Driver(options(servers), Batch("two", 0))
    assert driver.acquire(1, 4) == ranges
    driver.commit(1)
    driver.close()


def test_a_driver_opens_its_session_again_for_the_first_batch_only(servers: str) -> None:
    driver = Driver(options(servers), Batch("one", 0))
    epochs: list[int] = []
    for seq in (1, 2):
        batch = Batch("one", seq, driver.acquire(seq, 4))
        for _ in range(2):
            driver.reading(batch)
            epochs.append(int(driver.handle(seq).split("/")[1]))
        driver.commit(seq)
    driver.close()
    assert epochs == [2, 2, 2, 2]


def test_an_unsettled_batch_of_an_earlier_checkpoint_is_a_warning(
    servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its query died before it planned the batch, or is of an earlier release."""
    with Cluster(servers) as cluster:
        set_group_configs(cluster, "g", {"share.record.lock.duration.ms": "1000"})
        read(servers, "one", settle=False)
        deadline = time.monotonic() + 60
        while any(one.active for one in list_lease_sessions(cluster, "g")):
            assert time.monotonic() < deadline, "the session did not end"
            time.sleep(0.05)
    Driver(options(servers), Batch("two", 0)).close()
    assert "session one acquired a batch and did not settle it" in caplog.text
    assert "use a new output folder" in caplog.text


def test_a_checkpoint_of_several_sources_is_not_new_to_the_one_without_records(
    servers: str,
) -> None:
    """Spark logs batches of the other sources, with the number 0 for this one."""
    Driver(options(servers), Batch("two", 0)).close()
    read(servers, "one", settle=True)
    Driver(options(servers), Batch("two", 0)).close()
