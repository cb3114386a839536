"""Those who work with groups while their broker is killed: committers and a janitor.

Each is a thread with one request in flight. When the connection breaks they rest until the broker
is back; what was in flight at that moment is in doubt, everything before it is certain.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.client.connection import Cluster

TOPIC, PARTITIONS = "orders", 6
WAIT_S = 90.0
NONE = -1  # the offset of a partition that nobody committed
_COMMIT, _FETCH = 8, 9
_DELETE_GROUPS, _DELETE_OFFSETS = 42, 47

Place = tuple[str, int]
Offsets = Mapping[int, int]


class Stage:
    """When the crew works and when it rests, and what is known of the offsets."""

    def __init__(self) -> None:
        self.bootstrap = ""
        self.up = True
        self.gate = ""  # where the next kill comes
        self.held = False
        self.ended = False
        self.resting = 0
        self.failure: BaseException | None = None
        self.condition = threading.Condition()
        # What the broker may answer for a place: one offset, or two while a change is in doubt.
        self.allowed: dict[Place, set[int]] = {}
        self.changes: dict[str, int] = {}  # acknowledged since the last kill, by worker

    @contextmanager
    def changing(self, worker: str, group: str, offsets: Offsets) -> Iterator[None]:
        """Within it a change is in doubt; when it ends well, the change is certain."""
        places = {(group, partition): offset for partition, offset in offsets.items()}
        for place, offset in places.items():
            self.allowed.setdefault(place, {NONE}).add(offset)
        yield
        with self.condition:
            for place, offset in places.items():
                self.allowed[place] = {offset}
            self.changes[worker] = self.changes.get(worker, 0) + 1
            self.condition.notify_all()

    def tell(self, **state: object) -> None:
        """Change what the crew goes by."""
        with self.condition:
            for name, value in state.items():
                setattr(self, name, value)
            self.condition.notify_all()

    def wait(self, condition: Callable[[], object], what: Callable[[], object]) -> None:
        """Wait for the crew. Raises what one of it raised."""
        with self.condition:
            done = self.condition.wait_for(lambda: condition() or self.failure, WAIT_S)
            if self.failure is not None:
                raise self.failure
            assert done, f"waited in vain: {what()}"

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Look again and again until something is so; also when nobody tells."""
        until = time.monotonic() + 2 * WAIT_S
        while not condition():
            if self.failure is not None:
                raise self.failure
            assert time.monotonic() < until, f"waited in vain for {what}"
            time.sleep(0.05)

    def pass_gate(self, name: str) -> None:
        """Where the broker is to be killed just here, hold until it is dead."""
        with self.condition:
            if self.gate == name:
                self.held = True
                self.condition.notify_all()
                self.condition.wait_for(lambda: self.gate != name or self.ended, WAIT_S)

    def rest(self) -> None:
        with self.condition:
            assert not self.up or self.ended, "the broker hung up though it was not killed"
            self.resting += 1
            self.condition.notify_all()
            self.condition.wait_for(lambda: self.up or self.ended)
            self.resting -= 1


class Worker(threading.Thread):
    """Somebody who makes one step after the other as long as the stage is up."""

    def __init__(self, stage: Stage, name: str) -> None:
        super().__init__(name=name)
        self.stage = stage
        self.random = random.Random(name)
        self.cluster = Cluster(stage.bootstrap, client_id=name)
        self.start()

    def step(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        try:
            while not self.stage.ended:
                try:
                    self.step()
                except OSError:
                    self.cluster.close()
                    self.stage.rest()
        except BaseException as error:
            with self.stage.condition:
                self.stage.failure = error
                self.stage.condition.notify_all()
        finally:
            self.cluster.close()

    def commit(
        self,
        group: str,
        offsets: Offsets,
        *,
        version: int = 8,
        generation: int = -1,
        **member: Any,
    ) -> set[int]:
        """Commit to a group; the error codes."""
        places = [
            {"partition_index": partition, "committed_offset": offset, "committed_metadata": ""}
            for partition, offset in offsets.items()
        ]
        asked: dict[str, Any] = {
            "group_id": group,
            "generation_id_or_member_epoch": generation,
            "member_id": "",
            "topics": [{"name": TOPIC, "partitions": places}],
            **member,
        }
        (topic,) = self.cluster.ask(_COMMIT, version, asked).topics
        return {one.error_code for one in topic.partitions}


class Committer(Worker):
    """Commits ever higher offsets for two partitions of a group of its own, both at once."""

    count = 0

    def step(self) -> None:
        self.count += 1
        offsets = {0: self.count, 1: self.count}
        with self.stage.changing(self.name, self.name, offsets):
            assert self.commit(self.name, offsets) == {0}


class Janitor(Worker):
    """Commits, deletes one of the offsets and then the group, on names that come again."""

    count = 0

    def step(self) -> None:
        self.count += 1
        group = f"doomed-{self.count % 20}"
        offsets = {0: self.count, 1: self.count}
        with self.stage.changing(self.name, group, offsets):
            assert self.commit(group, offsets) == {0}
        with self.stage.changing(self.name, group, {0: NONE}):
            places = [{"partition_index": 0}]
            deleting = {"group_id": group, "topics": [{"name": TOPIC, "partitions": places}]}
            answer = self.cluster.ask(_DELETE_OFFSETS, 0, deleting)
            assert answer.error_code == 0
            assert answer.topics[0].partitions[0].error_code == 0
        if self.random.random() < 0.5:
            with self.stage.changing(self.name, group, {0: NONE, 1: NONE}):
                (deleted,) = self.cluster.ask(_DELETE_GROUPS, 2, {"groups_names": [group]}).results
                assert deleted.error_code == 0


def committed(cluster: Cluster, group: str) -> dict[int, int]:
    """The offsets of a group, of every partition."""
    topic = {"name": TOPIC, "partition_indexes": [*range(PARTITIONS)]}
    asked = {"groups": [{"group_id": group, "topics": [topic]}], "require_stable": True}
    (answer,) = cluster.ask(_FETCH, 8, asked).groups
    assert answer.error_code == 0
    return {one.partition_index: one.committed_offset for one in answer.topics[0].partitions}
