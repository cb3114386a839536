"""The journal of the catalogue stays about as large as the catalogue, over restarts too."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import headrace

Connecting = Callable[[headrace.Broker], AbstractContextManager[Callable[[], Any]]]


def set_segment_ms(wire: Any, value: int) -> None:
    change = {"name": "segment.ms", "config_operation": 0, "value": str(value)}
    resource = {"resource_type": 2, "resource_name": "orders", "configs": [change]}
    (answer,) = wire.call(44, 1, resources=[resource], validate_only=False).responses
    assert answer.error_code == 0


def segment_ms(wire: Any) -> str:
    resource = {"resource_type": 2, "resource_name": "orders", "configuration_keys": ["segment.ms"]}
    (result,) = wire.call(32, 1, resources=[resource]).results
    return str(result.configs[0].value)


def checkpoints(folder: Path) -> list[Path]:
    return list((folder / "__cluster_metadata-0").glob("*.checkpoint*"))


def test_a_journal_of_changes_that_were_changed_again_is_shortened(
    tmp_path: Path, connecting: Connecting
) -> None:
    with headrace.Broker(tmp_path) as broker, connecting(broker) as connect:
        wire = connect()
        made = wire.create("orders", num_partitions=3)
        wire.create("gone")
        wire.call(20, 1, topic_names=["gone"], timeout=0)
        for number in range(900):
            set_segment_ms(wire, 1000 + number)
        assert checkpoints(tmp_path) == []
        for number in range(1300):
            set_segment_ms(wire, 2000 + number)
        (first,) = checkpoints(tmp_path)
    with headrace.Broker(tmp_path) as broker, connecting(broker) as connect:
        wire = connect()
        assert segment_ms(wire) == "3299"
        asked = [{"topic_id": made.topic_id, "name": None}]
        topics = wire.call(3, 12, topics=asked, include_topic_authorized_operations=False).topics
        assert [(topic.name, len(topic.partitions)) for topic in topics] == [("orders", 3)]
        assert wire.create("gone").error_code == 0
        for number in range(1100):
            set_segment_ms(wire, 4000 + number)
        (second,) = checkpoints(tmp_path)
        assert second.name > first.name
    with headrace.Broker(tmp_path) as broker, connecting(broker) as connect:
        assert segment_ms(connect()) == "5099"
