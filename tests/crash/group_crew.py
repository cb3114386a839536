"""Those who work with groups while their broker is killed: committers, a janitor, members.

Each is a thread with one request in flight. When the connection breaks they rest until the broker
is back; what was in flight at that moment is in doubt, everything before it is certain.
"""

import random
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.client.connection import Cluster

TOPIC, PARTITIONS = "orders", 6
WAIT_S = 30.0
NONE = -1  # the offset of a partition that nobody committed
_COMMIT, _FETCH, _JOIN, _HEARTBEAT, _LEAVE, _SYNC = 8, 9, 11, 12, 13, 14
_DELETE_GROUPS, _DELETE_OFFSETS = 42, 47
_UNKNOWN_MEMBER, _REBALANCING, _MEMBER_ID_REQUIRED, _FENCED = 25, 27, 79, 82
_ILLEGAL_GENERATION = 22
SESSION_MS = 2_000
_SUBSCRIPTION = struct.pack(f">hih{len(TOPIC)}si", 0, 1, len(TOPIC), TOPIC.encode(), -1)

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
        self, group: str, offsets: Offsets, *, generation: int = -1, **member: Any
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
        (topic,) = self.cluster.ask(_COMMIT, 8, asked).topics
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


class Team:
    """What the members of one group have been told: who owned what in which generation."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name
        self.owners: dict[int, dict[str, frozenset[int]]] = {}
        self.floor = 0
        # Of each partition: the highest offset acknowledged, and the highest ever asked for.
        self.certain = dict.fromkeys(range(PARTITIONS), NONE)
        self.asked = dict.fromkeys(range(PARTITIONS), NONE)
        self.moved: set[int] = set()  # partitions with a commit since the last kill

    def agreed(self, generation: int, member: str, partitions: frozenset[int]) -> None:
        """A member has its assignment: it must fit what the others of that generation have."""
        with self.stage.condition:
            owners = self.owners.setdefault(generation, {})
            assert generation >= self.floor, f"{generation} after {self.floor}"
            assert owners.get(member, partitions) == partitions, (generation, owners, member)
            owners[member] = partitions
            owned = [one for held in owners.values() for one in held]
            assert len(owned) == len(set(owned)), (generation, owners)


class Member(Worker):
    """A member of a team: joins, commits what it owns a few times, leaves, comes again."""

    def __init__(self, stage: Stage, name: str, team: Team, *, instance: str | None = None) -> None:
        self.team = team
        self.instance = instance
        self.id = ""
        self.generation = NONE
        self.owned: frozenset[int] = frozenset()
        self.rounds_left = 0
        super().__init__(stage, name)

    def step(self) -> None:
        if self.generation == NONE:
            self.enter()
        elif self.rounds_left == 0:
            self.leave()
        elif self.goes_on(self.heartbeat()):
            self.rounds_left -= 1
            for partition in self.owned:
                if not self.goes_on(self.move(partition)):
                    break

    @property
    def identity(self) -> dict[str, Any]:
        return {"member_id": self.id, "group_instance_id": self.instance}

    def enter(self) -> None:
        """One join and sync; without success it is tried again in the next step."""
        joining = {
            "group_id": self.team.name,
            "session_timeout": SESSION_MS,
            "rebalance_timeout": 10 * SESSION_MS,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": _SUBSCRIPTION}],
            **self.identity,
        }
        joined = self.cluster.ask(_JOIN, 5, joining)
        if joined.error_code == _MEMBER_ID_REQUIRED:
            self.id = joined.member_id
        if not self.goes_on(joined.error_code):
            return
        self.id = joined.member_id
        leads = joined.leader == self.id
        if leads:
            self.stage.pass_gate("sync")
        syncing = {
            "group_id": self.team.name,
            "generation_id": joined.generation_id,
            "assignments": shared_out(joined.members) if leads else [],
            **self.identity,
        }
        synced = self.cluster.ask(_SYNC, 3, syncing)
        if self.goes_on(synced.error_code):
            self.owned = frozenset(synced.assignment)
            self.team.agreed(joined.generation_id, self.name, self.owned)
            self.generation = joined.generation_id
            self.rounds_left = self.random.randrange(5, 30)

    def goes_on(self, code: int) -> bool:
        """Whether all is well; otherwise the member has to join again, perhaps as a new one."""
        if code == 0:
            return True
        expected = {_ILLEGAL_GENERATION, _REBALANCING, _UNKNOWN_MEMBER, _FENCED}
        assert code in expected | {_MEMBER_ID_REQUIRED}, code
        self.generation = NONE
        if code in (_UNKNOWN_MEMBER, _FENCED):
            self.id = ""
        if code == _REBALANCING:
            self.stage.pass_gate("rejoin")
        return False

    def heartbeat(self) -> int:
        asked = {
            "group_id": self.team.name,
            "generation_id": self.generation,
            **self.identity,
        }
        return int(self.cluster.ask(_HEARTBEAT, 3, asked).error_code)

    def move(self, partition: int) -> int:
        """Go on where the group stands, as whoever takes a partition over does."""
        found = committed(self.cluster, self.team.name)[partition]
        team = self.team
        with self.stage.condition:
            assert found >= team.certain[partition], (partition, found, team.certain)
            team.asked[partition] = max(team.asked[partition], found + 1)
        (code,) = self.commit(
            team.name, {partition: found + 1}, generation=self.generation, **self.identity
        )
        if code == 0:
            with self.stage.condition:
                team.certain[partition] = max(team.certain[partition], found + 1)
                team.moved.add(partition)
                self.stage.condition.notify_all()
        return int(code)

    def leave(self) -> None:
        """A static member just goes, and its next life takes its place."""
        if self.instance is None:
            leaving = {"group_id": self.team.name, "members": [self.identity]}
            (left,) = self.cluster.ask(_LEAVE, 3, leaving).members
            assert left.error_code in (0, _UNKNOWN_MEMBER)
        self.id = ""
        self.generation = NONE


def shared_out(members: Any) -> list[dict[str, Any]]:
    """The partitions dealt to the members; an assignment is a byte for each."""
    names = sorted(one.member_id for one in members)
    hands = [bytes(range(index, PARTITIONS, len(names))) for index in range(len(names))]
    return [
        {"member_id": name, "assignment": hand} for name, hand in zip(names, hands, strict=True)
    ]


def committed(cluster: Cluster, group: str) -> dict[int, int]:
    """The offsets of a group, of every partition."""
    topic = {"name": TOPIC, "partition_indexes": [*range(PARTITIONS)]}
    asked = {"groups": [{"group_id": group, "topics": [topic]}], "require_stable": True}
    (answer,) = cluster.ask(_FETCH, 8, asked).groups
    assert answer.error_code == 0
    return {one.partition_index: one.committed_offset for one in answer.topics[0].partitions}
