"""Connections: what is asked again, what is not, and what people are told."""

import logging
import threading
from typing import Any

import pytest

from headrace.client.admin import LogEnd, create_topic, log_ends
from headrace.client.connection import Address, Cluster, Patience, addresses
from headrace.client.errors import BrokerError, Unreachable, Unsupported
from headrace.client.leases import describe
from headrace.wire.codec import encode_response


def test_bootstrap_servers_are_host_and_port() -> None:
    assert addresses("a:1, [::1]:2") == (Address("a", 1), Address("::1", 2))
    assert str(Address("::1", 2)) == "[::1]:2"
    for wrong in ("", "a", ":1", "a:x", "a:0", "a:99999"):
        with pytest.raises(ValueError, match=r"127\.0\.0\.1:9092"):
            addresses(wrong)


def test_metadata_finds_partitions_and_ends(cluster: Cluster, broker: Any) -> None:
    broker.append(b"a", b"b")
    assert cluster.partitions("t") == (0,)
    assert log_ends(cluster, "t") == {0: 2}
    assert log_ends(cluster, "t", LogEnd.EARLIEST) == {0: 0}


def test_a_missing_topic_is_told_at_once_with_a_remedy(cluster: Cluster, broker: Any) -> None:
    with pytest.raises(BrokerError, match=r"'missing': UNKNOWN_TOPIC_OR_PARTITION: create the"):
        cluster.partitions("missing")
    assert broker.asked.count(3) == 1


def test_a_broker_that_comes_back_costs_time_only(cluster: Cluster, broker: Any) -> None:
    assert cluster.partitions("t") == (0,)
    broker.stop()
    threading.Timer(0.3, broker.start).start()
    assert cluster.partitions("t") == (0,)


def test_an_address_where_nobody_ever_answered_is_told_sooner(broker: Any) -> None:
    patience = Patience(total_s=30, contact_s=0.2, first_s=0.01)
    with Cluster(broker.address, patience=patience) as cluster:
        broker.stop()
        with pytest.raises(Unreachable, match=r"gave up after 0\.2 s at 127\.0\.0\.1"):
            cluster.partitions("t")
        broker.start()
        assert cluster.partitions("t") == (0,)
        broker.stop()
        threading.Timer(0.4, broker.start).start()
        assert cluster.partitions("t") == (0,), "it was there once, so it is waited for"


def test_a_connection_that_breaks_in_the_middle_is_made_anew(cluster: Cluster, broker: Any) -> None:
    real = broker.answers[3]
    broker.answers[3] = lambda body: broker.answers.update({3: real})
    assert cluster.partitions("t") == (0,)
    assert broker.asked.count(3) == 2


def test_patience_ends_and_says_so_meanwhile(broker: Any, caplog: pytest.LogCaptureFixture) -> None:
    broker.stop()
    patience = Patience(total_s=3, first_s=0.01, most_s=0.1)  # it is told after one second
    told = r"looking up t: gave up after 3 s at 127.*running"
    with (
        Cluster(broker.address, patience=patience) as cluster,
        caplog.at_level(logging.WARNING),
        pytest.raises(Unreachable, match=told),
    ):
        cluster.partitions("t")
    assert len(caplog.records) == 1
    assert "looking up t: no answer from 127" in caplog.text
    assert "s more" in caplog.text


def test_a_broker_that_refuses_for_long_is_not_called_silent(
    broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = {"name": "t", "error_code": 14, "error_message": "busy", "configs": None}
    broker.answers[19] = lambda body: bytes(encode_response(19, 5, {"topics": [topic]}))
    patience = Patience(total_s=3, first_s=0.01, most_s=0.1)  # the warning comes after one second
    with (
        Cluster(broker.address, patience=patience) as cluster,
        caplog.at_level(logging.WARNING),
        pytest.raises(Unreachable, match=r"gave up after 3 s .*COORDINATOR_LOAD_IN_PROGRESS"),
    ):
        create_topic(cluster, "t", 1)
    (line,) = (one.message for one in caplog.records)
    assert "only errors from 127" in line
    assert "busy" in line


def test_the_next_bootstrap_server_is_asked(broker: Any) -> None:
    with Cluster(f"127.0.0.1:1,{broker.address}") as cluster:
        assert cluster.partitions("t") == (0,)


def test_a_retriable_code_is_asked_again_and_another_is_not(cluster: Cluster, broker: Any) -> None:
    codes = [14, 16, 0]

    def create(code: int) -> bytes:
        topic = {"name": "t", "error_code": code, "error_message": "said", "configs": None}
        return bytes(encode_response(19, 5, {"topics": [topic]}))

    broker.answers[19] = lambda body: create(codes.pop(0))
    create_topic(cluster, "t", 1)
    assert codes == []
    broker.answers[19] = lambda body: create(36)
    with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS: said; use it, or delete") as found:
        create_topic(cluster, "t", 1)
    assert found.value.code == 36
    create_topic(cluster, "t", 1, exist_ok=True)


def test_another_broker_is_told_from_headrace(cluster: Cluster, broker: Any) -> None:
    broker.offers_leases = False
    with pytest.raises(Unsupported, match=r"lacks the lease API; .* needs Headrace"):
        describe(cluster, "g")


def test_what_is_no_kafka_broker_is_named_so(broker: Any) -> None:
    broker._versions = lambda: b"\x7f\xff" * 3
    patience = Patience(total_s=0.1, first_s=0.01)
    with (
        Cluster(broker.address, patience=patience) as cluster,
        pytest.raises((Unreachable, BrokerError)),
    ):
        cluster.partitions("t")
