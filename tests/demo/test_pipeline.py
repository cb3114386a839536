"""What becomes of each kind of record, without Spark."""

import json
from typing import Any

import pytest

from headrace.demo.flights import Kind, payloads
from headrace.demo.pipeline import flight_of, meets_outage
from headrace.spark import IncomingRecord, Reject, Release

UNLUCKY = next(offset for offset in range(1_000) if meets_outage("flights", 0, offset))
LUCKY = next(offset for offset in range(1_000) if not meets_outage("flights", 0, offset))


def record(value: bytes | None, offset: int = LUCKY, delivery_count: int = 1) -> IncomingRecord:
    return IncomingRecord(
        key=b"UA1545",
        value=value,
        topic="flights",
        partition=0,
        offset=offset,
        timestamp_ms=None,
        delivery_count=delivery_count,
    )


def flight(**changed: Any) -> bytes:
    return json.dumps({"dep_time": 517, "carrier": "UA"} | changed).encode()


def test_a_flight_is_a_flight() -> None:
    assert flight_of(record(flight())) == {"dep_time": 517, "carrier": "UA"}


def test_a_flight_that_never_left_is_rejected_with_the_reason() -> None:
    for delivery in (1, 2):
        with pytest.raises(Reject, match=r"^cancelled: no departure time$"):
            flight_of(record(flight(dep_time=None), UNLUCKY, delivery))


@pytest.mark.parametrize("value", [None, b"", b"[]", b'{"dep_time":', b"\xff\xfe\x00", b"{}"])
def test_what_is_no_flight_raises(value: bytes | None) -> None:
    with pytest.raises((ValueError, KeyError, Reject)):
        flight_of(record(value))


def test_every_broken_payload_raises_and_no_flight_does() -> None:
    for payload in payloads(11, 2_000, broken=400):
        if payload.kind is Kind.FLIGHT:
            assert flight_of(record(payload.value))["dep_time"] is not None
        else:
            with pytest.raises((ValueError, Reject)):
                flight_of(record(payload.value))


def test_the_outage_releases_a_record_once() -> None:
    with pytest.raises(Release, match="lookup outage"):
        flight_of(record(flight(), UNLUCKY, delivery_count=1))
    assert flight_of(record(flight(), UNLUCKY, delivery_count=2))["carrier"] == "UA"


def test_the_outage_meets_about_one_record_in_twenty() -> None:
    met = sum(meets_outage("flights", partition, n) for partition in range(4) for n in range(5_000))
    assert 800 < met < 1_200
