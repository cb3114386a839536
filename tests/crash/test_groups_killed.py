"""SIGKILL of the broker in the middle of commits, deletions and rebalances, again and again.

After each restart every acknowledged commit is there, nothing that was deleted has come back, and
the group goes on: every partition has an owner that commits, in a generation not below the last.
"""

import random
from pathlib import Path

from headrace.client.admin import create_topic
from headrace.client.connection import Cluster
from headrace.demo.server import Server

from .group_crew import (
    PARTITIONS,
    TOPIC,
    Committer,
    Janitor,
    Member,
    Stage,
    Team,
    Worker,
    committed,
)

KILLS = 12
# Where a kill comes: somewhere among the commits; when somebody has joined and another has not yet;
# when all have joined and the leader has not yet handed out the assignment.
GATES = ["", "rejoin", "sync"]
SETTINGS = {"group.min.session.timeout.ms": "1000"}


def test_nothing_acknowledged_is_lost_and_groups_go_on(tmp_path: Path) -> None:
    stage = Stage()
    chance = random.Random(0)
    with Server(tmp_path, settings=SETTINGS) as server:
        stage.bootstrap = server.bootstrap
        with Cluster(server.bootstrap) as cluster:
            create_topic(cluster, TOPIC, PARTITIONS)
        team = Team(stage, "team")
        crew: list[Worker] = [
            *(Committer(stage, f"committer-{number}") for number in range(2)),
            Janitor(stage, "janitor"),
            *(Member(stage, f"member-{number}", team) for number in range(2)),
            Member(stage, "fixed", team, instance="i"),
        ]
        try:
            for kill in range(KILLS):
                work(stage, team, chance.randrange(20, 200))
                hold_at(stage, GATES[kill % len(GATES)])
                stage.up = False
                server.kill()
                stage.tell(gate="")
                stage.wait(lambda: stage.resting == len(crew), lambda: stage.resting)
                server.start()
                check(stage, team)
                stage.tell(up=True)
            work(stage, team, 20)
        finally:
            stage.tell(ended=True)
            for worker in crew:
                worker.join()
    assert stage.failure is None


def work(stage: Stage, team: Team, changes: int) -> None:
    """Until all have done something: every partition of the team was moved by its owner, too."""
    workers = ["committer-0", "committer-1", "janitor"]
    stage.wait(
        lambda: (
            len(team.moved) == PARTITIONS
            and all(stage.changes.get(name, 0) >= changes for name in workers)
        ),
        lambda: (stage.changes, team.moved, team.owners),
    )


def hold_at(stage: Stage, gate: str) -> None:
    """Until somebody stands there."""
    if gate:
        stage.tell(gate=gate, held=False)
        stage.wait(lambda: stage.held, lambda: f"nobody came to {gate}")


def check(stage: Stage, team: Team) -> None:
    """Everybody rests: what the broker says now is what it has kept."""
    with Cluster(stage.bootstrap) as cluster:
        kept = {group: committed(cluster, group) for group, _ in stage.allowed}
        for (group, partition), allowed in stage.allowed.items():
            found = kept[group][partition]
            assert found in allowed, f"{group} {partition}: {found}, not one of {allowed}"
            stage.allowed[group, partition] = {found}
        for partition, found in committed(cluster, team.name).items():
            assert team.certain[partition] <= found <= team.asked[partition]
    stage.changes.clear()
    team.moved.clear()
    team.floor = max(team.owners)
