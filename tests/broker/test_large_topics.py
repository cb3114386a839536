"""A topic whose files take long to make or remove: others are served, and changes stay whole."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.broker import services
from headrace.log.os_disk import OsDisk
from headrace.wire import codec

CREATE, DELETE = 19, 20
SECONDS_MAX = 30


class Gate:
    """Where the disk stops, once it is shut, until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def shut(self) -> None:
        self.open.clear()
        self.reached.clear()

    def pass_through(self) -> None:
        if not self.open.is_set():
            self.reached.set()
            assert self.open.wait(SECONDS_MAX), "the test did not open the gate"


GATE = Gate()


class GatedDisk(OsDisk):
    """The real disk; files of the topic `slow` are made and removed when the gate opens."""

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if path.startswith("slow-"):
            GATE.pass_through()
        super().write(path, data, durable=durable)

    def remove(self, path: str) -> None:
        if path.startswith("slow"):
            GATE.pass_through()
        super().remove(path)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    monkeypatch.setattr(services, "OsDisk", GatedDisk)
    yield GATE
    GATE.open.set()


@pytest.fixture
def connections(gate: Gate, request: pytest.FixtureRequest) -> Callable[[], Any]:
    """Connections to a broker on the gated disk."""
    opening: Callable[[], Any] = request.getfixturevalue("connect")
    return opening


def creation(name: str, partitions: int) -> dict[str, Any]:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    topics = [topic | {"assignments": [], "configs": []}]
    return {"topics": topics, "timeout": 1000, "validate_only": False}


def answer(wire: Any, key: int, version: int) -> Any:
    _, body = wire.receive()
    return codec.decode_response(key, version, body)


def partitions_of(wire: Any, name: str) -> int:
    answer = wire.call(3, 4, topics=[{"name": name}], allow_auto_topic_creation=False)
    return len(answer.topics[0].partitions)


def test_others_are_served_while_a_topic_is_made_and_removed(
    connections: Callable[[], Any], gate: Gate
) -> None:
    changing, other = connections(), connections()
    gate.shut()
    changing.send(CREATE, 4, bytes(codec.encode_request(CREATE, 4, creation("slow", 100))))
    assert gate.reached.wait(SECONDS_MAX)
    assert partitions_of(other, "slow") == 100, "it exists, its files do not yet"
    gate.open.set()
    assert answer(changing, CREATE, 4).topics[0].error_code == 0
    gate.shut()
    deletion = {"topic_names": ["slow"], "timeout": 1000}
    changing.send(DELETE, 1, bytes(codec.encode_request(DELETE, 1, deletion)))
    assert gate.reached.wait(SECONDS_MAX)
    assert partitions_of(other, "slow") == 0
    gate.open.set()
    assert answer(changing, DELETE, 1).responses[0].error_code == 0


def test_a_change_waits_for_the_one_before_it(connections: Callable[[], Any], gate: Gate) -> None:
    """What was asked amid a creation and an end of it finds it whole."""
    creating, deleting, again = connections(), connections(), connections()
    gate.shut()
    creating.send(CREATE, 4, bytes(codec.encode_request(CREATE, 4, creation("slow", 100))))
    assert gate.reached.wait(SECONDS_MAX)
    deletion = {"topic_names": ["slow"], "timeout": 1000}
    deleting.send(DELETE, 1, bytes(codec.encode_request(DELETE, 1, deletion)))
    assert partitions_of(again, "slow") == 100, "the deletion has to wait"
    gate.open.set()
    assert answer(creating, CREATE, 4).topics[0].error_code == 0
    assert answer(deleting, DELETE, 1).responses[0].error_code == 0
    assert again.create("slow", num_partitions=3).error_code == 0
    found = again.call(35, 1, topics=None).results[0].topics
    assert {t.name: len(t.partitions) for t in found if t.name == "slow"} == {"slow": 3}
