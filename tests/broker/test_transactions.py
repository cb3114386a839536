"""Transactional producers fail at once: this broker does not support transactions."""

import logging
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.testing import BrokerUnderTest

SECONDS_MAX = 30.0


@pytest.fixture
def broker() -> Iterator[BrokerUnderTest]:
    with BrokerUnderTest() as running:
        yield running


def test_librdkafka_raises_at_once_and_the_log_names_the_transactional_id(
    broker: BrokerUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "payments"}
    with caplog.at_level(logging.WARNING, "headrace.broker"):
        for _ in range(2):
            producer = Producer({**settings, "client.id": "till"})
            begun = time.monotonic()
            with pytest.raises(KafkaException) as raised:
                producer.init_transactions(SECONDS_MAX)
            assert time.monotonic() - begun < SECONDS_MAX / 2
            error = raised.value.args[0]
            assert error.fatal()
            assert error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert "does not support transactions; unset transactional.id" in error.str()
    lines = [one.getMessage() for one in caplog.records if "payments" in one.getMessage()]
    assert len(lines) == 1, "one line for each client"
    assert "till" in lines[0]
