"""Members of one group, of the classic protocol and of the new one, while their broker is killed.

They are what a stock client is, but for its pauses: a member joins, heartbeats, commits each of its
partitions one further than the group stands, hands over what it is asked for, leaves and comes
again. What they are told has to fit together, over all restarts.
"""

import struct
from typing import Any
from uuid import UUID

from headrace.client.connection import Cluster
from headrace.wire.error_codes import ErrorCode

from .group_crew import NONE, PARTITIONS, TOPIC, Stage, Worker, committed

_JOIN, _HEARTBEAT, _LEAVE, _SYNC, _CONSUMER_HEARTBEAT, _CONSUMER_DESCRIBE = 11, 12, 13, 14, 68, 69
_LEAVES = -1  # in place of an epoch
SESSION_MS = 2_000
_REBALANCE_MS = 10 * SESSION_MS
_SUBSCRIPTION = struct.pack(f">hih{len(TOPIC)}si", 0, 1, len(TOPIC), TOPIC.encode(), -1)


class Team:
    """What is known of a group; how far its offsets were moved."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name
        # Of each partition: the highest offset acknowledged, and the highest ever asked for.
        self.certain = dict.fromkeys(range(PARTITIONS), NONE)
        self.asked = dict.fromkeys(range(PARTITIONS), NONE)
        self.moved: set[int] = set()  # partitions with a commit since the last kill

    def check(self, cluster: Cluster) -> None:
        """Everybody rests: what the broker says now is what it has kept."""
        for partition, found in committed(cluster, self.name).items():
            assert self.certain[partition] <= found <= self.asked[partition]
        self.moved.clear()


class Teammate(Worker):
    """A member of a group, whatever the protocol."""

    version: int  # of its commits

    def __init__(self, stage: Stage, name: str, team: Team) -> None:
        self.team = team
        self.epoch = NONE  # or generation
        self.owned: frozenset[int] = frozenset()
        self.rounds_left = 0
        super().__init__(stage, name)

    @property
    def identity(self) -> dict[str, Any]:
        """How it names itself in a commit."""
        raise NotImplementedError

    def move(self, partition: int) -> int:
        """Go on where the group stands, as whoever takes a partition over does; the code."""
        found = committed(self.cluster, self.team.name)[partition]
        team = self.team
        with self.stage.condition:
            assert found >= team.certain[partition], (partition, found, team.certain)
            team.asked[partition] = max(team.asked[partition], found + 1)
        (code,) = self.commit(
            team.name,
            {partition: found + 1},
            version=self.version,
            generation=self.epoch,
            **self.identity,
        )
        if code == 0:
            with self.stage.condition:
                team.certain[partition] = max(team.certain[partition], found + 1)
                team.moved.add(partition)
                self.stage.condition.notify_all()
        return int(code)


# ---- the classic protocol


class ClassicTeam(Team):
    """Who owned what in which generation."""

    def __init__(self, stage: Stage, name: str) -> None:
        super().__init__(stage, name)
        self.owners: dict[int, dict[str, frozenset[int]]] = {}
        self.floor = 0

    def agreed(self, generation: int, member: str, partitions: frozenset[int]) -> None:
        """A member has its assignment: it must fit what the others of that generation have."""
        with self.stage.condition:
            owners = self.owners.setdefault(generation, {})
            assert generation >= self.floor, f"{generation} after {self.floor}"
            assert owners.get(member, partitions) == partitions, (generation, owners, member)
            owners[member] = partitions
            owned = [one for held in owners.values() for one in held]
            assert len(owned) == len(set(owned)), (generation, owners)

    def check(self, cluster: Cluster) -> None:
        super().check(cluster)
        self.floor = max(self.owners)


class ClassicMember(Teammate):
    """Joins and syncs; static where it has an instance."""

    version = 8

    def __init__(
        self, stage: Stage, name: str, team: ClassicTeam, *, instance: str | None = None
    ) -> None:
        self.instance = instance
        self.id = ""
        self.classic = team
        super().__init__(stage, name, team)

    def step(self) -> None:
        if self.epoch == NONE:
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
            "rebalance_timeout": _REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": _SUBSCRIPTION}],
            **self.identity,
        }
        joined = self.cluster.ask(_JOIN, 5, joining)
        if joined.error_code == ErrorCode.member_id_required:
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
            self.classic.agreed(joined.generation_id, self.name, self.owned)
            self.epoch = joined.generation_id
            self.rounds_left = self.random.randrange(5, 30)

    def goes_on(self, code: int) -> bool:
        """Whether all is well; otherwise the member has to join again, perhaps as a new one."""
        if code == 0:
            return True
        expected = {
            ErrorCode.illegal_generation,
            ErrorCode.rebalance_in_progress,
            ErrorCode.unknown_member_id,
            ErrorCode.fenced_instance_id,
        }
        assert code in expected | {ErrorCode.member_id_required}, code
        self.epoch = NONE
        if code in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id):
            self.id = ""
        if code == ErrorCode.rebalance_in_progress:
            self.stage.pass_gate("rejoin")
        return False

    def heartbeat(self) -> int:
        asked = {
            "group_id": self.team.name,
            "generation_id": self.epoch,
            **self.identity,
        }
        return int(self.cluster.ask(_HEARTBEAT, 3, asked).error_code)

    def leave(self) -> None:
        """A static member just goes, and its next life takes its place."""
        if self.instance is None:
            leaving = {"group_id": self.team.name, "members": [self.identity]}
            (left,) = self.cluster.ask(_LEAVE, 3, leaving).members
            assert left.error_code in (0, ErrorCode.unknown_member_id)
        self.id = ""
        self.epoch = NONE


def shared_out(members: Any) -> list[dict[str, Any]]:
    """The partitions dealt to the members; an assignment is a byte for each."""
    names = sorted(one.member_id for one in members)
    hands = [bytes(range(index, PARTITIONS, len(names))) for index in range(len(names))]
    return [
        {"member_id": name, "assignment": hand} for name, hand in zip(names, hands, strict=True)
    ]


# ---- the new protocol (KIP-848)


class ConsumerTeam(Team):
    """Who owns what now, and which epoch each member has been told."""

    def __init__(self, stage: Stage, name: str) -> None:
        super().__init__(stage, name)
        self.holders: dict[int, str] = {}
        self.epochs: dict[str, int] = {}

    def hand(self, member: str, *, lost: frozenset[int], given: frozenset[int]) -> None:
        """A member lets go and takes: nobody may be given what another still has."""
        with self.stage.condition:
            for partition in lost:
                del self.holders[partition]
            for partition in given:
                assert partition not in self.holders, (partition, member, self.holders)
                self.holders[partition] = member

    def check(self, cluster: Cluster) -> None:
        super().check(cluster)
        asked = {"group_ids": [self.name], "include_authorized_operations": False}
        (group,) = cluster.ask(_CONSUMER_DESCRIBE, 0, asked).groups
        assert group.error_code == 0, group
        kept = {one.member_id: one.member_epoch for one in group.members}
        for member, epoch in self.epochs.items():
            assert kept.get(member, NONE) >= epoch, (member, epoch, kept)
            assert group.group_epoch >= epoch


class ConsumerMember(Teammate):
    """Heartbeats, and lets go of what it is asked for."""

    version = 9

    def __init__(self, stage: Stage, name: str, team: ConsumerTeam) -> None:
        self.consumers = team
        self.life = 1
        self.leaving = False
        self.tells = True  # what it owns, in the next heartbeat
        self.topic: UUID | None = None
        super().__init__(stage, name, team)

    @property
    def id(self) -> str:
        return f"{self.name}-{self.life}"

    @property
    def identity(self) -> dict[str, Any]:
        return {"member_id": self.id}

    def step(self) -> None:
        if self.leaving:
            self.leave()
        elif self.heartbeat():
            codes = {self.move(partition) for partition in self.owned}
            assert codes <= {0, ErrorCode.stale_member_epoch}, codes
            self.rounds_left -= 1
            self.leaving = self.rounds_left <= 0

    def heartbeat(self) -> bool:
        """Whether it is a member with something to do."""
        joins = self.epoch == NONE
        answer = self.beat(
            max(self.epoch, 0),
            rebalance_timeout=_REBALANCE_MS if joins else -1,
            subscribed_topic_names=[TOPIC] if joins else None,
            topic_partitions=self.told() if joins or self.tells else None,
        )
        if answer.error_code in (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id):
            # The answer to its last heartbeat never came, and the group went on without it.
            self.forget()
            return False
        assert answer.error_code == 0, answer
        self.epoch = answer.member_epoch
        self.consumers.epochs[self.id] = self.epoch
        if joins:
            self.rounds_left = self.random.randrange(5, 30)
        self.tells = answer.assignment is not None
        if answer.assignment is not None:
            self.take(answer.assignment)
        return True

    def take(self, assignment: Any) -> None:
        now = frozenset(
            partition for topic in assignment.topic_partitions for partition in topic.partitions
        )
        for topic in assignment.topic_partitions:
            self.topic = topic.topic_id
        lost, given = self.owned - now, now - self.owned
        self.consumers.hand(self.name, lost=lost, given=given)
        self.owned = now
        if lost:
            self.stage.pass_gate("revoked")
        if given:
            self.stage.pass_gate("given")

    def leave(self) -> None:
        """Asked for again where the answer did not come."""
        self.forget()
        answer = self.beat(_LEAVES)
        assert answer.error_code in (0, ErrorCode.unknown_member_id), answer
        self.leaving = False
        self.life += 1

    def forget(self) -> None:
        """It owns nothing, and begins again."""
        self.consumers.epochs.pop(self.id, None)
        self.consumers.hand(self.name, lost=self.owned, given=frozenset())
        self.owned = frozenset()
        self.epoch = NONE

    def told(self) -> list[dict[str, Any]]:
        if not self.owned:
            return []
        return [{"topic_id": self.topic, "partitions": sorted(self.owned)}]

    def beat(self, epoch: int, **more: Any) -> Any:
        asked = {
            "group_id": self.team.name,
            "member_id": self.id,
            "member_epoch": epoch,
            "rebalance_timeout": -1,
            "subscribed_topic_names": None,
            "topic_partitions": None,
            **more,
        }
        return self.cluster.ask(_CONSUMER_HEARTBEAT, 0, asked)
