"""Each deletion has its line in the log of the server, however many are deleted at a time."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.cli.logs import REPEATS_MAX, Repeats

DELETE_GROUPS, DELETE_TOPICS, HEARTBEAT, OFFSET_COMMIT = 42, 20, 76, 8
COUNT = 2 * REPEATS_MAX


@pytest.fixture
def shown(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Return the lines on deletions that the log of the server shows."""
    caplog.set_level(logging.INFO, "headrace.broker")
    repeats = Repeats(lambda _: None, seconds=10)
    caplog.handler.addFilter(repeats)
    yield lambda: [line for line in caplog.messages if "was deleted by" in line]
    caplog.handler.removeFilter(repeats)


def names(kind: str) -> list[str]:
    return [f"{kind}-{number}" for number in range(COUNT)]


def test_of_topics(wire: Any, shown: Callable[[], list[str]]) -> None:
    for name in names("topic"):
        wire.create(name)
    answer = wire.call(DELETE_TOPICS, 5, topic_names=names("topic"), timeout=1000)
    assert {one.error_code for one in answer.responses} == {0}
    assert shown() == [f"topic {one} was deleted by - /127.0.0.1" for one in names("topic")]


def test_of_consumer_groups(wire: Any, shown: Callable[[], list[str]]) -> None:
    wire.create("orders")
    for name in names("group"):
        partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
        answer = wire.call(
            OFFSET_COMMIT, 2, group_id=name, generation_id_or_member_epoch=-1, member_id="",
            retention_time_ms=-1, topics=[{"name": "orders", "partitions": [partition]}],
        )  # fmt: skip
        assert answer.topics[0].partitions[0].error_code == 0
    answer = wire.call(DELETE_GROUPS, 2, groups_names=names("group"))
    assert {one.error_code for one in answer.results} == {0}
    assert shown() == [f"group {one} was deleted by - /127.0.0.1" for one in names("group")]


def test_of_share_groups(wire: Any, shown: Callable[[], list[str]]) -> None:
    wire.create("orders")
    for name in names("share"):
        for epoch in (0, -1):
            fields = {"group_id": name, "member_id": "m" * 22, "member_epoch": epoch,
                      "rack_id": None, "subscribed_topic_names": ("orders",)}  # fmt: skip
            assert wire.call(HEARTBEAT, 1, **fields).error_code == 0
    answer = wire.call(DELETE_GROUPS, 2, groups_names=names("share"))
    assert {one.error_code for one in answer.results} == {0}
    expected = [f"share group {one} was deleted by - /127.0.0.1" for one in names("share")]
    assert shown() == expected
