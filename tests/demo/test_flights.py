"""The input: real flights, each whole, and broken payloads at places that the seed decides."""

import json
from collections import Counter

from headrace.demo.flights import Kind, broken_among, payloads


def parses(value: bytes) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


def test_the_first_flight_has_all_its_columns() -> None:
    [first] = payloads(1, 1, broken=0)
    assert first.key == b"UA1545"
    assert b" " not in first.value
    assert json.loads(first.value) == {
        "year": 2013,
        "month": 1,
        "day": 1,
        "dep_time": 517,
        "sched_dep_time": 515,
        "dep_delay": 2,
        "arr_time": 830,
        "sched_arr_time": 819,
        "arr_delay": 11,
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "air_time": 227,
        "distance": 1400,
        "hour": 5,
        "minute": 15,
        "time_hour": "2013-01-01T10:00:00Z",
    }


def test_kinds_are_what_they_say() -> None:
    for payload in payloads(7, 3_000, broken=300):
        assert parses(payload.value) == (payload.kind is not Kind.BROKEN)
        if payload.kind is not Kind.BROKEN:
            cancelled = json.loads(payload.value)["dep_time"] is None
            assert cancelled == (payload.kind is Kind.CANCELLED)


def test_the_seed_decides_the_places() -> None:
    once = list(payloads(7, 2_000, broken=50))
    places = [place for place, one in enumerate(once) if one.kind is Kind.BROKEN]
    assert list(payloads(7, 2_000, broken=50)) == once
    assert len(places) == 50
    assert places != [
        place for place, one in enumerate(payloads(8, 2_000, broken=50)) if one.kind is Kind.BROKEN
    ]


def test_all_flights_are_there() -> None:
    kinds = Counter(payload.kind for payload in payloads(2013))
    assert kinds == {Kind.FLIGHT: 328_521, Kind.CANCELLED: 8_255, Kind.BROKEN: 336}


def test_broken_payloads_grow_with_the_flights() -> None:
    assert [broken_among(flights) for flights in (10, 20_000, 336_776)] == [4, 20, 336]
