"""Apache Kafka's formatters of `__consumer_offsets`: they print our journal as they print its own.

The same things happen to groups of both brokers; then the console consumer reads the topic of each.
Our records have headers besides, which say why an offset moved: the formatters pass over them.
"""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.client.admin import log_end

from .side_by_side import Side, Sides

TOOLS = "org.apache.kafka.tools.consumer"
GROUPS = {f"journaled{one}" for one in ("", "-static", "-old", "-gone", "-moved")}
TOPIC = "journaled"
COMMIT, COMMIT_VERSION = 8, 2  # of a client that chooses its own retention
RETENTION_MS = 600_000
UNBORN = {
    "protocolType": "",
    "generation": 0,
    "protocol": None,
    "leader": None,
    "members": [],
}


@pytest.fixture(scope="module")
def told(sides: Sides) -> dict[str, tuple[list[Any], list[Any]]]:
    """By formatter, what Kafka's topic and ours say of the same events."""

    def story(side: Side) -> dict[str, list[Any]]:
        happen(side)
        return {name: printed(side, name) for name in ("Offsets", "GroupMetadata")}

    kafka, headrace = sides.both(story)
    return {name: (kafka[name], headrace[name]) for name in kafka}


def happen(side: Side) -> None:
    def groups(arguments: str) -> None:
        done = side.run(f"{TOOLS}.group.ConsumerGroupCommand", *arguments.split())
        assert done.code == 0
        assert "Error" not in "".join(done.out), done.out

    side.order("create", TOPIC, partitions=2)
    side.order("produce", TOPIC, partitions=2, count=5, time=0)
    settings = {"auto.offset.reset": "earliest"}
    side.order("join", "dynamic", group="journaled", topics=[TOPIC], settings=settings)
    side.order("read", "dynamic", count=10)
    side.order("leave", "dynamic")
    groups(f"--reset-offsets --execute --to-offset 2 --topic {TOPIC}:1 --group journaled")
    groups(f"--delete-offsets --topic {TOPIC}:0 --group journaled")
    # It goes without leaving, and must not expire before the journals are printed.
    settings = {"group.instance.id": "i", "session.timeout.ms": "300000"}
    side.order("join", "fixed", group="journaled-static", topics=[TOPIC], settings=settings)
    side.order("own", counts={"fixed": 2})
    side.order("commit", "fixed", offsets={f"{TOPIC}-0": 3})
    side.order("leave", "fixed")
    groups(f"--reset-offsets --execute --to-earliest --topic {TOPIC}:0 --group journaled-gone")
    groups("--delete --group journaled-gone")
    for protocol in ("classic", "consumer"):
        settings = {"group.protocol": protocol}
        side.order("join", protocol, group="journaled-moved", topics=[TOPIC], settings=settings)
        side.order("own", counts={protocol: 2})
        side.order("commit", protocol, offsets={f"{TOPIC}-1": 1})
        side.order("leave", protocol)
    place = {"partition_index": 0, "committed_offset": 4, "committed_metadata": "old"}
    committing = {
        "group_id": "journaled-old",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time": RETENTION_MS,
        "topics": [{"name": TOPIC, "partitions": [place]}],
    }
    (topic,) = side.cluster.ask(COMMIT, COMMIT_VERSION, committing).topics
    assert topic.partitions[0].error_code == 0


def printed(side: Side, name: str) -> list[Any]:
    """What a formatter printed of our groups, normalised."""
    count = log_end(side.cluster, "__consumer_offsets", 0)
    reading = f"--topic __consumer_offsets --partition 0 --offset earliest --max-messages {count}"
    formatter = f"--formatter {TOOLS}.{name}MessageFormatter --timeout-ms 20000"
    outcome = side.run(f"{TOOLS}.ConsoleConsumer", *f"{reading} {formatter}".split())
    assert outcome.code == 0, outcome.error
    text = re.sub(r'"topicId":"[\w-]{22}"', '"topicId":"<id>"', "".join(outcome.out))
    records = [one for one in parsed(text) if one["key"]["data"]["group"] in GROUPS]
    for record in records:
        without_times((record["value"] or {"data": {}})["data"])
    return records


def without_times(value: dict[str, Any]) -> None:
    """Times of day go; how long after its commit an offset expires stays."""
    if "expireTimestamp" in value:
        value["expireTimestamp"] -= value["commitTimestamp"]
        assert value["expireTimestamp"] == RETENTION_MS
    for name in ("commitTimestamp", "currentStateTimestamp"):
        if name in value:
            assert abs(time.time() * 1000 - value.pop(name)) < 600_000


def parsed(text: str) -> Iterator[Any]:
    """The objects in `text`: these formatters put nothing between two records."""
    decoder, position = json.JSONDecoder(), 0
    while position < len(text):
        found, position = decoder.raw_decode(text, position)
        yield found


def test_offsets(told: dict[str, tuple[list[Any], list[Any]]]) -> None:
    kafka, headrace = told["Offsets"]
    assert len(kafka) == 10
    assert headrace == kafka


def test_group_metadata(told: dict[str, tuple[list[Any], list[Any]]]) -> None:
    """Kafka also writes down a group that has no member yet; nothing is lost without that.

    Ours are of version 4, which has a place for the time when the group began.
    """
    kafka, headrace = told["GroupMetadata"]
    for record in headrace:
        assert record["value"] is None or record["value"].pop("version") in {0, 4}
    for record in kafka:
        assert record["value"] is None or record["value"].pop("version") in {0, 3}
    kafka = [one for one in kafka if (one["value"] or {"data": {}})["data"] != UNBORN]
    assert len(kafka) == 7
    assert headrace == kafka
