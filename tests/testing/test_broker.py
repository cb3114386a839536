"""A broker under test makes topics whatever its faults, and stops whatever waits in it."""

import socket
import struct
import threading
import time
from pathlib import Path

import pytest

import headrace
from headrace.testing import BrokerUnderTest
from headrace.testing.clock import NotRunning

API_VERSIONS = 18


@pytest.mark.parametrize("after", [False, True])
def test_it_does_not_wait_for_what_a_fault_delays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, after: bool
) -> None:
    head = struct.pack(">hhih", API_VERSIONS, 0, 1, -1)
    request = struct.pack(">i", len(head)) + head
    with BrokerUnderTest(data_dir=tmp_path) as broker:
        delayed = broker.faults.delay(3600, api="ApiVersions", after=after)
        host, _, port = broker.bootstrap_servers.partition(":")
        with socket.create_connection((host, int(port)), 60) as connection:
            connection.sendall(request + request)  # the second one waits behind the first
            while not delayed.hits:
                time.sleep(0.01)
            broker.stop()
            assert connection.recv(1) == b""
    assert delayed.hits == 1
    # Requests that are not through after some seconds are cut off, and nothing is said.
    assert "ApiVersions: the broker stops, a fault delayed it" in caplog.text


def test_its_topics_are_made_whatever_faults_are_in_force() -> None:
    with BrokerUnderTest(settings={"num.partitions": 3}) as broker:
        dropped = broker.faults.drop()
        assert broker.create_topic() != broker.create_topic("orders")
        topic = broker.create_topic(partitions=None)
        broker.faults.clear()
        with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
            assert len(admin.describe_topics([topic])[topic].partitions) == 3
    assert dropped.hits == 0


def test_settings_of_a_topic_are_named_as_in_admin_or_as_before() -> None:
    compact = {"cleanup.policy": "compact"}
    with BrokerUnderTest() as broker, headrace.SyncAdmin(broker.bootstrap_servers) as admin:
        for topic in (broker.create_topic(configs=compact), broker.create_topic(config=compact)):
            resource = (headrace.ResourceType.TOPIC, topic)
            values = {one.name: one.value for one in admin.describe_configs(*resource)}
            assert values["cleanup.policy"] == "compact"
        with pytest.raises(ValueError, match="the same argument: give one of them"):
            broker.create_topic(config=compact, configs=compact)


def test_an_advance_ends_with_its_broker() -> None:
    told: list[str] = []
    broker = BrokerUnderTest().start()

    def advance_for_ever() -> None:
        try:
            while True:
                broker.clock.advance(days=30)
        except NotRunning as error:
            told.append(str(error))

    threads = [threading.Thread(target=advance_for_ever) for _ in range(2)]
    for thread in threads:
        thread.start()
    while broker.clock.skipped.days < 30:
        time.sleep(0.01)
    broker.stop()
    for thread in threads:
        thread.join(60)
    assert len(told) == 2
