"""A broker that ran out of space is ready again by itself once there is space."""

import errno
import time
from uuid import uuid4

import pytest
from confluent_kafka import Producer

import headrace
from headrace.broker import write_probe
from headrace.broker.partitions import Partition
from headrace.broker.write_probe import FILE
from headrace.core.catalog import CreateTopic
from headrace.log.memory_disk import MemoryDisk
from headrace.log.os_disk import OsFile
from headrace.log.segments import SegmentedLog
from headrace.wire.batches import Record

from .inside_rig import Inside, play
from .metrics_rig import METRICS, TIMEOUT, get

LARGE = Record(0, 5, None, b"v" * 300_000)


async def orders(broker: Inside) -> Partition:
    await broker.services.topics.create(CreateTopic("orders", uuid4(), 1, {}))
    found = broker.services.partition("orders", 0)
    assert found is not None
    return found


def test_a_partition_that_failed_is_ready_once_there_is_space(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = MemoryDisk()

    async def scene(broker: Inside) -> None:
        services, partition = broker.services, await orders(broker)
        disk.fail_after(100)
        with pytest.raises(OSError, match=r"\[Errno 28\]"):
            partition.append_records([LARGE])
        assert "orders-0 cannot be written" in (services.trouble() or "")
        await services.write_probe.probe()
        assert services.trouble() is not None
        disk.fail_after(200_000)  # enough for a small file, and not for the batch that failed
        await services.write_probe.probe()
        assert services.trouble() is not None
        disk.fail_after(None)
        await services.write_probe.probe()
        assert services.trouble() is None
        assert not disk.exists(FILE)
        assert partition.log.end_offset == 0
        assert partition.append_records([LARGE]) == 0

    play(lambda: Inside(disk), scene)
    assert "orders-0 is written again" in caplog.text


def test_a_broker_is_ready_again_although_nobody_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: OsFile, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(write_probe, "PROBE_MS", 20)
    with headrace.Broker(settings=METRICS) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        producer.produce("orders", b"1")
        assert producer.flush(TIMEOUT) == 0
        with monkeypatch.context() as full:
            full.setattr(OsFile, "append", fail)
            producer.produce("orders", b"2")
            until_ready(broker, 503)
            producer.purge()
            time.sleep(0.1)  # several probes
            assert get(broker, "/-/ready")[0] == 503
        until_ready(broker, 200)


def until_ready(broker: headrace.Broker, status: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    while get(broker, "/-/ready")[0] != status:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_partition_that_still_fails_stays_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()

    async def scene(broker: Inside) -> None:
        partition = await orders(broker)
        disk.fail_after(100)
        with pytest.raises(OSError, match=r"\[Errno 28\]"):
            partition.append_records([LARGE])
        disk.fail_after(None)

        def fail(_log: SegmentedLog, *, keep: bool) -> None:
            raise OSError(errno.EACCES, f"Permission denied, {keep}")

        monkeypatch.setattr(SegmentedLog, "heal", fail)
        await broker.services.write_probe.probe()
        assert broker.services.trouble() is not None

    play(lambda: Inside(disk), scene)


def test_nothing_is_written_while_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(broker: Inside) -> None:
        monkeypatch.setattr(broker.services.write_probe, "_write", None)
        await broker.services.write_probe.probe()

    play(Inside, scene)
