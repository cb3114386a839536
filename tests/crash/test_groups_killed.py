"""SIGKILL of the broker in the middle of commits, deletions and rebalances, again and again.

After each restart every acknowledged commit is there, nothing that was deleted has come back, and
the group goes on: every partition has an owner that commits, in a generation not below the last.
"""

import random
from collections.abc import Callable
from pathlib import Path

from headrace.client.admin import create_topic
from headrace.client.connection import Cluster

from . import kills
from .conftest import CountKills
from .group_crew import PARTITIONS, TOPIC, Committer, Janitor, Stage, Worker, committed
from .group_members import ClassicMember, ClassicTeam, ConsumerMember, ConsumerTeam, Team
from .killed_server import KilledServer
from .kills import KILLS_FACTOR

KILLS = 5 * KILLS_FACTOR
SETTINGS = {
    "group.min.session.timeout.ms": "1000",
    # The journal is compacted between the kills, too, and stays short whatever their number.
    "offsets.topic.segment.bytes": "200000",
    "log.cleaner.backoff.ms": "200",
}


def test_classic_groups_go_on(tmp_path: Path, count_kills: CountKills) -> None:
    """Kills come somewhere among the commits; when somebody has joined and another has not yet;
    when all have joined and the leader has not yet handed out the assignment."""

    def crew(stage: Stage) -> tuple[Team, list[Worker]]:
        team = ClassicTeam(stage, "team")
        members = [ClassicMember(stage, f"member-{number}", team) for number in range(2)]
        return team, [*members, ClassicMember(stage, "fixed", team, instance="i")]

    survive(tmp_path, crew, ["", "rejoin", "sync"], count_kills)


def test_groups_of_the_new_protocol_go_on(tmp_path: Path, count_kills: CountKills) -> None:
    """Kills come somewhere among the commits; when a member was asked to let go of a partition;
    when a member was given one, and the broker does not know yet that it knows."""

    def crew(stage: Stage) -> tuple[Team, list[Worker]]:
        team = ConsumerTeam(stage, "team")
        return team, [ConsumerMember(stage, f"member-{number}", team) for number in range(3)]

    survive(tmp_path, crew, ["", "revoked", "given"], count_kills)


def survive(
    folder: Path,
    members: Callable[[Stage], tuple[Team, list[Worker]]],
    gates: list[str],
    count_kills: CountKills,
) -> None:
    stage = Stage()
    chance = random.Random(0)
    with KilledServer(folder, seed=str(gates), settings=SETTINGS) as server:
        stage.bootstrap = server.bootstrap
        with Cluster(server.bootstrap) as cluster:
            create_topic(cluster, TOPIC, PARTITIONS)
        team, crew = members(stage)
        crew += [Committer(stage, "committer-0"), Committer(stage, "committer-1")]
        crew += [Janitor(stage, "janitor")]
        try:
            for kill in range(KILLS):
                work(stage, team, chance.randrange(5, 80))
                hold_at(stage, gates[kill % len(gates)])
                stage.up = False
                server.kill()
                stage.tell(gate="")
                stage.wait(lambda: stage.resting == len(crew), lambda: stage.resting)
                if server.draw():
                    server.kill_amid_start()
                server.start()
                check(stage, team)
                stage.tell(up=True)
            work(stage, team, 20)
        finally:
            stage.tell(ended=True)
            for worker in crew:
                worker.join()
    assert stage.failure is None
    count_kills(kills.STAGED, KILLS)
    amid, early = server.kills_amid_starts, server.kills_before_listening
    count_kills(kills.IN_STARTS, early)
    count_kills(kills.AFTER_STARTS, amid - early)
    assert amid >= KILLS // 4


def work(stage: Stage, team: Team, changes: int) -> None:
    """Until all have done something: every partition of the team was moved by its owner, too."""
    workers = ["committer-0", "committer-1", "janitor"]
    stage.wait(
        lambda: (
            len(team.moved) == PARTITIONS
            and all(stage.changes.get(name, 0) >= changes for name in workers)
        ),
        lambda: (stage.changes, team.moved),
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
        team.check(cluster)
    stage.changes.clear()
