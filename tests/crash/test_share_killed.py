"""SIGKILL of the broker under stock clients: nothing is lost, and nothing accepted comes again.

Members accept, release, reject, renew and let locks end, in groups with dead letters and without;
stock clients are among them. The broker dies somewhere, or just when somebody has got records, or
has been told that they are accepted, released, rejected or renewed; and it prunes its journal all
the while. What a restarted broker says and does is held to what its clients were told before.

Beside them work the idempotent producer and the consumers of `stock_crew.py`, of the classic
protocol and of KIP-848, and the broker also dies while a consumer is assigned or gives up
partitions. All their records, commits and compacted values are accounted for.
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
from headrace.sim.auditor import Auditor

from . import kills, stock_crew
from .conftest import CountKills
from .killed_server import KilledServer
from .kills import KILLS_FACTOR, PLANTED_SERVER
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
from .stock_crew import ASSIGNED, REVOKED, StockCrew

KILLS = 9 if KILLS_FACTOR == 1 else 14 * KILLS_FACTOR
DEAD = "dead"
GATES = ["", "acquired", "release", "", "reject", "renew", "accept"]
STOCK_GATES = [ASSIGNED, REVOKED]
MEMBERS = {COPIED: 2, PLAIN: 2}
SETTINGS = {
    "group.share.record.lock.duration.ms": str(LOCK_MS),
    "group.share.delivery.count.limit": str(LIMIT),
    "share.coordinator.snapshot.update.records.per.snapshot": "20",
    "share.coordinator.state.topic.prune.interval.ms": "200",
    "share.coordinator.cold.partition.snapshot.interval.ms": "1000",
    "headrace.share.history.ms": "0",
}


@pytest.mark.timeout(900 * (1 + KILLS_FACTOR // 10))
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_the_account_of_stock_clients_closes(
    durability: str, tmp_path: Path, count_kills: CountKills
) -> None:
    settings = {**SETTINGS, **stock_crew.SETTINGS, "headrace.durability": durability}
    gates = [*GATES, *STOCK_GATES]
    server = KilledServer(tmp_path, seed=durability, settings=settings)
    with Theatre(server, seed=durability, stock=True) as theatre:
        for kill in range(KILLS):
            theatre.work(gates[kill % len(gates)])
            theatre.kill()
            assert theatre.failures == []
        theatre.finish()
        assert theatre.failures == []
        letters = theatre.account()
    assert theatre.failures == []
    assert {letter.group for letter in letters} == {COPIED, STOCK}
    assert any("limit" in letter.reason for letter in letters), "no record was exhausted"
    amid, early = server.kills_amid_starts, server.kills_before_listening
    count_kills(kills.STOCK, KILLS)
    count_kills(kills.IN_STARTS, early)
    count_kills(kills.AFTER_STARTS, amid - early)
    assert amid >= KILLS // 4
    assert early > 0 or KILLS_FACTOR == 1, "no kill came before the broker listened"


@pytest.mark.parametrize(
    ("bug", "kills"),
    [
        ("deliveries_lost_in_recovery", 7),
        ("snapshots_without_finished_records", 7),
        ("rejected_records_vanish", 2),  # the last account finds it
        ("starts_rewrite_the_journal", 12),  # kills amid starts find it
    ],
)
def test_a_bug_that_is_planted_is_found(bug: str, kills: int, tmp_path: Path) -> None:
    command = (sys.executable, str(PLANTED_SERVER), bug, "serve")
    server = KilledServer(tmp_path, seed=bug, settings=SETTINGS, command=command)
    with Theatre(server, seed=bug) as theatre:
        for kill in range(kills):
            theatre.work(GATES[kill % len(GATES)])
            theatre.kill()
            if theatre.failures:
                return
        theatre.finish()
        theatre.account()
    assert theatre.failures != []


class Theatre:
    """A broker that is killed, and all who work with it meanwhile.

    Args:
        stock: whether stock producers and consumers of groups work beside those of shares.
    """

    def __init__(self, server: KilledServer, *, seed: str, stock: bool = False) -> None:
        self._server = server
        self._random = random.Random(seed)
        self._court = Court()
        self._has_crew = stock
        self._crew: StockCrew | None = None
        self._members: list[ShareMember] = []
        self._stock: list[StockConsumer] = []
        self._feeder: Feeder | None = None
        self.auditor: Auditor = self._court.auditor

    @property
    def failures(self) -> list[str]:
        """What does not fit in one of the accounts, and an exception of a client."""
        of_crew = self._crew.account.failures if self._crew else []
        exceptions = [repr(self._court.failure)] if self._court.failure else []
        return [*self.auditor.failures, *of_crew, *exceptions]

    def __enter__(self) -> "Theatre":
        self._server.start()
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
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
        for group, count in MEMBERS.items():
            for number in range(count):
                self._members.append(ShareMember(self._court, f"{group}-{number}", group))
        for number in range(2):
            self._stock.append(StockConsumer(self._court, f"stock-{number}"))
        if self._has_crew:
            self._crew = StockCrew(self._court)

    def __exit__(self, *_: object) -> None:
        self._court.tell(ended=True)
        for one in (*self._members, *self._stock, self._feeder, self._crew):
            if one is not None:
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
                and (self._crew is None or self._crew.has_worked())
            ),
            lambda: court.changes,
        )
        if gate:
            court.tell(gate=gate, held=False)
            court.wait(lambda: court.held, lambda: f"nobody came to {gate}")

    def kill(self) -> None:
        """Kill the broker, start it again, and look what it has kept before anybody goes on.

        After one kill in four a second one comes amid the start, and the broker starts once more.
        """
        court = self._court
        court.up = False
        self._server.kill()
        court.died()
        court.tell(gate="")
        court.wait(lambda: court.resting == len(self._members), lambda: court.resting)
        if self._server.draw():
            self._server.kill_amid_start()
            court.died_amid_start()
        self._server.start()
        with Cluster(self._server.bootstrap) as cluster:
            for group in (COPIED, PLAIN, STOCK):
                court.look(cluster, group)
        court.changes.clear()
        court.tell(up=True)
        if self._crew:
            self._crew.check()

    def finish(self) -> None:
        """Everything is accepted that comes from now on, until nothing is left."""
        court = self._court
        court.tell(is_honest=True)
        assert self._feeder is not None
        self._feeder.finish()
        with Cluster(self._server.bootstrap) as cluster:
            for group in (COPIED, PLAIN, STOCK):
                court.wait_for(partial(court.look, cluster, group), f"{group} to finish")
        if self._crew:
            self._crew.finish()

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
            count = facts.count.value
            if not facts.verdicts() & {"accept", "reject"} and count < LIMIT:
                self.auditor.broken(f"{queue} {offset} was given up after {count} deliveries")
