"""What positions and ends of logs show of records that left the log unfinished."""

import pytest

from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.log_ends import Ends
from headrace.client.offsets import TopicPartition
from headrace.client.share_groups import ShareOffset
from headrace.spark.queue import kafka_removed
from headrace.spark.queue.kafka_removed import RemovedRecords


@pytest.mark.parametrize(
    ("position", "ends", "count"),
    [
        (ShareOffset(10, 0, 90), Ends(10, 100), 0),
        (ShareOffset(10, 0, 90), Ends(13, 100), 3),
        (ShareOffset(10, 0, 88), Ends(13, 100), 1),  # two finished records may be the removed ones
        (ShareOffset(10, 0, 87), Ends(13, 100), 0),
        (ShareOffset(10, 0, 90), Ends(), 0),
    ],
)
def test_the_least_number_of_lost_records_is_logged_once_for_each_start_of_the_log(
    position: ShareOffset, ends: Ends, count: int,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    found: tuple[dict[TopicPartition, Ends], dict[TopicPartition, BrokerError]]
    found = {("t", 1): ends}, {}
    monkeypatch.setattr(kafka_removed, "readable_ends_of", lambda _cluster, _positions: found)
    removed = RemovedRecords("g")
    with Cluster("127.0.0.1:1") as cluster:
        for _ in range(2):
            removed.warn(cluster, {("t", 1): position})
    messages = [f"at least {count} of t-1 offsets 10 to 12"] if count else []
    assert len(caplog.messages) == len(messages)
    assert all(text in logged for text, logged in zip(messages, caplog.messages, strict=True))


def test_positions_without_a_lag_cost_no_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with Cluster("127.0.0.1:1") as cluster:
        RemovedRecords("g").warn(cluster, {("t", 0): ShareOffset(10, 0, None)})
    assert caplog.messages == []
