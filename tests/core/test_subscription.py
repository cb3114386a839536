"""The topics in what members of a classic consumer group tell each other, and what is no topic."""

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.subscription import EVERYTHING, parsed, subscribed

Subscribing = Callable[..., bytes]


@pytest.mark.parametrize("version", [0, 3, 77, -1])
@pytest.mark.parametrize("after", [b"", b"\xff\xff\xff\xff", b"\0\0\0\x02ab", b"junk", b"\0"])
def test_the_version_and_what_follows_the_topics_are_ignored(
    subscribing: Subscribing, version: int, after: bytes
) -> None:
    told = subscribing("orders", "größe", version=version, after=after)
    assert parsed(told) == frozenset({"orders", "größe"})
    assert parsed(subscribing(version=version, after=after)) == frozenset()


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\0\0\0\0\0", id="ends in the count"),
        pytest.param(struct.pack(">hi", 0, -1), id="null instead of topics"),
        pytest.param(struct.pack(">hi", 0, 2**31 - 1), id="more topics than bytes"),
        pytest.param(struct.pack(">hih", 0, 1, 5) + b"shor", id="ends in a name"),
        pytest.param(struct.pack(">hi", 0, 1) + b"\0", id="ends in a length"),
        pytest.param(struct.pack(">hih", 0, 1, -1), id="null as a name"),
        pytest.param(struct.pack(">hih", 0, 1, -6) + b"a" * 6, id="a length below zero"),
        pytest.param(struct.pack(">hih", 0, 1, 1) + b"\xff", id="a name that is no text"),
        pytest.param(struct.pack(">hihh", 0, 2, 0, 9), id="the second is cut off"),
    ],
)
def test_what_cannot_be_read_is_none(told: bytes) -> None:
    assert parsed(told) is None


@given(st.binary(max_size=200))
def test_no_bytes_are_a_fault(told: bytes) -> None:
    topics = parsed(told)
    assert topics is None or sum(2 + len(topic.encode()) for topic in topics) <= len(told)


@given(st.lists(st.text(max_size=20).filter(lambda one: one.isprintable()), max_size=20))
def test_every_subscription_is_read_whole_or_not_at_all(topics: list[str]) -> None:
    names = b"".join(struct.pack(">h", len(one.encode())) + one.encode() for one in topics)
    told = struct.pack(">hi", 1, len(topics)) + names
    assert parsed(told) == frozenset(topics)
    assert all(parsed(told[:end]) is None for end in range(len(told)))


def test_a_group_subscribes_to_what_any_member_subscribes_to(subscribing: Subscribing) -> None:
    one, two = subscribing("orders"), subscribing("bills", "orders")
    assert subscribed([one, two, one]) == {"orders", "bills"}
    assert subscribed([]) == frozenset()
    assert subscribed([one, b"junk"]) is EVERYTHING
    assert "whatever" in EVERYTHING
