"""SIGKILL of the broker under share consumers: nothing is lost, and nothing accepted comes again.

Members accept, release, reject, renew and let locks end, in groups with dead letters and without;
stock clients are among them. The broker dies somewhere, or just when somebody has got records, or
has been told that they are accepted, released, rejected or renewed; and it prunes its journal all
the while. What a restarted broker says and does is held to what its clients were told before.
"""

import random
import sys
from functools import partial
from pathlib import Path

import pytest

from headrace.client.admin import create_topic
from headrace.client.configs import set_group_configs
from headrace.client.connection import Cluster
from headrace.client.leases import describe
from headrace.demo.evidence import DeadLetter, dead_letters
from headrace.demo.server import Server
from headrace.sim.auditor import Auditor

from .kills import KILLS_FACTOR
from .share_clients import Feeder, StockConsumer
from .share_crew import (
    COPIED,
    LIMIT,
    LOCK_MS,
    PARTITIONS,
    PLAIN,
    STOCK,
    TOPIC,
    Court,
    ShareMember,
)

KILLS, KILLS_TO_FIND_A_BUG = 14 * KILLS_FACTOR, 7
DEAD = "dead"
GATES = ["", "acquired", "release", "", "reject", "renew", "accept"]
MEMBERS = {COPIED: 2, PLAIN: 2}
SETTINGS = {
    "group.share.record.lock.duration.ms": str(LOCK_MS),
    "group.share.delivery.count.limit": str(LIMIT),
    "share.coordinator.snapshot.update.records.per.snapshot": "20",
    "share.coordinator.state.topic.prune.interval.ms": "200",
    "share.coordinator.cold.partition.snapshot.interval.ms": "1000",
    "headrace.share.history.ms": "0",
}
PLANTED_SERVER = Path(__file__).with_name("planted_server.py")


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_what_share_consumers_were_told_stays_true(durability: str, tmp_path: Path) -> None:
    server = Server(tmp_path, settings={**SETTINGS, "headrace.durability": durability})
    with Theatre(server, seed=durability) as theatre:
        for kill in range(KILLS):
            theatre.work(GATES[kill % len(GATES)])
            theatre.kill()
            assert theatre.auditor.failures == []
        theatre.finish()
        assert theatre.auditor.failures == []
        letters = theatre.account()
    assert theatre.auditor.failures == []
    assert {letter.group for letter in letters} == {COPIED, STOCK}
    assert any("limit" in letter.reason for letter in letters), "no record was exhausted"


@pytest.mark.parametrize(
    "bug",
    [
        "deliveries_lost_in_recovery",
        "snapshots_without_finished_records",
        "rejected_records_vanish",
    ],
)
def test_a_bug_that_is_planted_is_found(bug: str, tmp_path: Path) -> None:
    command = (sys.executable, str(PLANTED_SERVER), bug, "serve")
    server = Server(tmp_path, settings=SETTINGS, command=command)
    with Theatre(server, seed=bug) as theatre:
        for kill in range(KILLS_TO_FIND_A_BUG):
            theatre.work(GATES[kill % len(GATES)])
            theatre.kill()
            if theatre.auditor.failures:
                return
        theatre.finish()
        theatre.account()
    assert theatre.auditor.failures != []


class Theatre:
    """A broker that is killed, and all who work with it meanwhile."""

    def __init__(self, server: Server, *, seed: str) -> None:
        self._server = server
        self._random = random.Random(seed)
        self._court = Court()
        self.auditor: Auditor = self._court.auditor

    def __enter__(self) -> "Theatre":
        self._server.start()
        bootstrap = self._court.bootstrap = self._server.bootstrap
        with Cluster(bootstrap) as cluster:
            create_topic(cluster, TOPIC, PARTITIONS)
            create_topic(cluster, DEAD, 1)
            for group in (COPIED, PLAIN, STOCK):
                settings = {"share.auto.offset.reset": "earliest"}
                if group != PLAIN:
                    settings["errors.deadletterqueue.topic.name"] = DEAD
                set_group_configs(cluster, group, settings)
        self._feeder = Feeder(self._court)
        self._members = [
            ShareMember(self._court, f"{group}-{number}", group)
            for group, count in MEMBERS.items()
            for number in range(count)
        ]
        self._stock = [StockConsumer(self._court, f"stock-{number}") for number in range(2)]
        return self

    def __exit__(self, *_: object) -> None:
        self._court.tell(ended=True)
        for one in (*self._members, *self._stock, self._feeder):
            one.join()
        self._server.stop()

    def work(self, gate: str) -> None:
        """Until everybody has done something, and somebody stands where the kill is to come."""
        court, turns = self._court, self._random.randrange(2, 12)
        names = [one.name for one in self._members]
        court.wait(
            lambda: (
                all(court.changes.get(name, 0) >= turns for name in names)
                and any(court.changes.get(one.name, 0) for one in self._stock)
            ),
            lambda: court.changes,
        )
        if gate:
            court.tell(gate=gate, held=False)
            court.wait(lambda: court.held, lambda: f"nobody came to {gate}")

    def kill(self) -> None:
        """Kill the broker, start it again, and look what it has kept before anybody goes on."""
        court = self._court
        court.up = False
        self._server.kill()
        court.died()
        court.tell(gate="")
        court.wait(lambda: court.resting == len(self._members), lambda: court.resting)
        self._server.start()
        with Cluster(self._server.bootstrap) as cluster:
            for group in (COPIED, PLAIN, STOCK):
                court.look(cluster, group)
        court.changes.clear()
        court.tell(up=True)

    def finish(self) -> None:
        """Everything is accepted that comes from now on, until nothing is left."""
        court = self._court
        court.tell(is_honest=True)
        self._feeder.finish()
        with Cluster(self._server.bootstrap) as cluster:
            for group in (COPIED, PLAIN, STOCK):
                court.wait_for(partial(court.look, cluster, group), f"{group} to finish")

    def account(self) -> list[DeadLetter]:
        """Where every record has gone."""
        with Cluster(self._server.bootstrap) as cluster:
            letters = dead_letters(cluster, DEAD)
            for group in (COPIED, PLAIN, STOCK):
                for one in describe(cluster, group):
                    queue = (group, (TOPIC, one.partition))
                    mine = [x for x in letters if (x.group, x.partition) == (group, one.partition)]
                    copies = [letter.offset for letter in mine] if group != PLAIN else None
                    self.auditor.ended(queue, one.start, 0, one.log_end, copies)
                    if group != STOCK:
                        self._not_given_up_early(queue, one.log_end)
        return letters

    def _not_given_up_early(self, queue: tuple[str, tuple[str, int]], end: int) -> None:
        """What nobody finished has had its last delivery, and a kill takes none of them away."""
        for offset in range(end):
            facts = self.auditor.facts(queue, offset)
            if not facts.verdicts() & {"accept", "reject"} and facts.count < LIMIT:
                self.auditor.broken(f"{queue} {offset} was given up after {facts.count} deliveries")
