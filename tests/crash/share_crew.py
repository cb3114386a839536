"""Those who consume shares while their broker is killed; the simulator's auditor hears all of it.

The auditor knows what was asked and what was answered, from the clients' side: an answer that did
not arrive before the broker died leaves what it was about in doubt. What members held dies with
the process, and so does every delivery that nobody heard of.
"""

import time
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from headrace.client.connection import Cluster
from headrace.client.leases import describe
from headrace.core.runs import State
from headrace.sim.auditor import Auditor
from headrace.sim.facts import Asked, Place
from headrace.wire import batches
from headrace.wire.error_codes import ErrorCode

from .group_crew import Stage, Worker

TOPIC, PARTITIONS = "jobs", 2
COPIED, PLAIN, STOCK = "copied", "plain", "stock"  # with dead letters, without, of stock clients
LIMIT, LOCK_MS = 4, 1_500
_HEARTBEAT, _FETCH, _ACKNOWLEDGE = 76, 78, 79
_CODES = {"accept": 1, "release": 2, "reject": 3, "renew": 4}
_BEAT_S = 2.0

Said = dict[Place, list[tuple[int, int, str]]]


def now_us() -> int:
    return time.monotonic_ns() // 1000


class Court(Stage):
    """The stage, and the auditor of what is said on it."""

    def __init__(self) -> None:
        super().__init__()
        groups = frozenset((COPIED, PLAIN, STOCK))
        self.auditor = Auditor(now_us, limit=LIMIT, lock_ms=LOCK_MS, earliest=groups)
        self.lives_us = [0, 0]  # when the broker's lives began
        self.is_honest = False  # members accept all they get

    def asked(self, group: str, holder: str, *, acquires: bool = False) -> Asked:
        with self.condition:
            return self.auditor.asked(group, holder, acquires=acquires)

    def answered(self, asked: Asked) -> None:
        with self.condition:
            self.auditor.answered(asked)

    def died(self) -> None:
        """The broker was killed."""
        with self.condition:
            self.auditor.locks_lost()
            self.lives_us.append(now_us())

    def died_amid_start(self) -> None:
        """The broker was killed amid a start.

        The next life counts as a part of this one: stock consumers may still hand out records that
        they fetched before both.
        """
        with self.condition:
            self.auditor.locks_lost()

    def did(self, worker: str, times: int = 1) -> None:
        with self.condition:
            self.changes[worker] = self.changes.get(worker, 0) + times
            self.condition.notify_all()

    def look(self, cluster: Cluster, group: str) -> bool:
        """Hold what a restarted broker says of a group to what was said; whether all is done."""
        asked = self.asked(group, "")
        seen = [one for one in describe(cluster, group) if one.topic == TOPIC]
        with self.condition:
            for one in seen:
                queue = (group, (TOPIC, one.partition))
                runs = [
                    (run.first, run.last, State(run.state).name.lower()) for run in one.in_flight
                ]
                self.auditor.described(asked, queue, one.start, runs)
                counts = [(run.first, run.last, run.delivery_count) for run in one.in_flight]
                self.auditor.counted(asked, queue, counts)
        return len(seen) == PARTITIONS and all(one.start == one.log_end for one in seen)


class ShareMember(Worker):
    """A member by the wire: it fetches, and says of most records something, of some nothing."""

    def __init__(self, court: Court, name: str, group: str) -> None:
        self.court = court
        self.auditor = court.auditor
        self.group = group
        self.topic_ids: dict[str, UUID] = {}
        self.forget()
        super().__init__(court, name)

    def forget(self) -> None:
        """A new life of the broker: it knows the member no more."""
        self.epoch = self.session = 0
        self.beaten_at = 0.0
        self.places: set[Place] = set()
        self.in_session: set[Place] = set()

    def step(self) -> None:
        try:
            if not self.places or time.monotonic() - self.beaten_at > _BEAT_S:
                self.beat()
            held = self.fetch()
            if held:
                self.stage.pass_gate("acquired")
                self.settle(held)
            if self.random.random() < 0.03 and not self.court.is_honest:
                self.leave()
        except OSError:
            self.forget()
            raise

    def beat(self, epoch: int | None = None) -> None:
        answer = self.cluster.ask(
            _HEARTBEAT,
            1,
            {
                "group_id": self.group,
                "member_id": self.name,
                "member_epoch": self.epoch if epoch is None else epoch,
                "rack_id": None,
                "subscribed_topic_names": None if self.epoch else [TOPIC],
            },
        )
        assert answer.error_code == 0, answer
        self.epoch, self.beaten_at = answer.member_epoch, time.monotonic()
        if answer.assignment is not None:
            given = answer.assignment.topic_partitions
            self.places = {(TOPIC, index) for topic in given for index in topic.partitions}
            for topic in given:
                self.topic_ids[TOPIC] = topic.topic_id

    def fetch(self) -> Said:
        """What it was given, as ranges of nothing said yet."""
        asked = self.court.asked(self.group, self.name, acquires=True)
        try:
            answer = self.cluster.ask(_FETCH, 2, self._wanted())
        finally:
            self.court.answered(asked)  # without an answer it dies with the broker
        assert answer.error_code == 0, answer
        self.session += 1
        self.in_session = set(self.places)
        held: Said = {}
        for place, part in self._parts(answer):
            assert part.error_code == 0, part
            sent = batches.records(part.records or b"")
            records = {one.offset: one.value or b"" for one in sent}
            ranges = [
                (one.first_offset, one.last_offset, one.delivery_count)
                for one in part.acquired_records
            ]
            with self.court.condition:
                self.auditor.read(place, records)
                self.auditor.delivered(asked, place, ranges, records)
            if ranges:
                held[place] = [(first, last, "") for first, last, _ in ranges]
        return held

    def settle(self, held: Said) -> None:
        """Renew first, perhaps; then say something of each part, or nothing until its lock ends."""
        if self.random.random() < 0.1:
            said = {place: [(a, b, "renew") for a, b, _ in parts] for place, parts in held.items()}
            self.acknowledge(said)
        verdicts: Said = {}
        for place, parts in held.items():
            for first, last, _ in parts:
                middle = self.random.randint(first, last)
                for part in ((first, middle), (middle + 1, last)):
                    verdict = self.verdict()
                    if part[0] <= part[1] and verdict:
                        verdicts.setdefault(place, []).append((*part, verdict))
        if verdicts:
            self.acknowledge(verdicts)

    def verdict(self) -> str:
        if self.court.is_honest:
            return "accept"
        return self.random.choices(("accept", "release", "reject", ""), (5, 3, 1, 0.3))[0]

    def acknowledge(self, said: Said) -> None:
        court, group, name = self.court, self.group, self.name
        asked = court.asked(group, name)
        renews = any(verdict == "renew" for parts in said.values() for *_, verdict in parts)
        with court.condition:
            for place, parts in said.items():
                self.auditor.acknowledging(group, place, name, parts)
        asking = {
            "group_id": group,
            "member_id": name,
            "share_session_epoch": self.session,
            "is_renew_ack": renews,
            "topics": self._topics(said, said),
        }
        answer = self.cluster.ask(_ACKNOWLEDGE, 2, asking)
        assert answer.error_code == 0, answer
        self.session += 1
        done: set[str] = set()
        with court.condition:
            for place, part in self._parts(answer):
                if part.error_code == 0:
                    self.auditor.acknowledged(asked, place, name, said[place])
                    done |= {verdict for *_, verdict in said[place]}
                else:  # a lock has ended
                    assert part.error_code == ErrorCode.invalid_record_state, part
                    self.auditor.refused(group, place, name, said[place])
        for verdict in done:
            court.did(f"{group}: {verdict}")
        court.did(name)
        for verdict in sorted(done):
            self.stage.pass_gate(verdict)

    def leave(self) -> None:
        """What it held and said nothing of is released."""
        asking = {
            "group_id": self.group,
            "member_id": self.name,
            "share_session_epoch": -1,
            "is_renew_ack": False,
            "topics": (),
        }
        with self.court.condition:
            self.auditor.let_go(self.group, self.name)
        assert self.cluster.ask(_ACKNOWLEDGE, 2, asking).error_code == 0
        self.beat(epoch=-1)
        self.forget()

    def _wanted(self) -> dict[str, Any]:
        new, old = self.places - self.in_session, self.in_session - self.places
        return {
            "group_id": self.group,
            "member_id": self.name,
            "share_session_epoch": self.session,
            "max_wait": 100,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": self.random.randint(1, 8),
            "batch_size": 4,
            "share_acquire_mode": self.random.randrange(2),
            "is_renew_ack": False,
            "topics": self._topics(new, {}),
            "forgotten_topics_data": [
                {"topic_id": self.topic_ids[topic], "partitions": [index]} for topic, index in old
            ],
        }

    def _topics(self, places: Iterable[Place], said: Said) -> list[dict[str, Any]]:
        return [
            {
                "topic_id": self.topic_ids[place[0]],
                "partitions": [
                    {
                        "partition_index": place[1],
                        "acknowledgement_batches": [
                            {
                                "first_offset": first,
                                "last_offset": last,
                                "acknowledge_types": [_CODES[verdict]],
                            }
                            for first, last, verdict in said.get(place, ())
                        ],
                    }
                ],
            }
            for place in places
        ]

    def _parts(self, answer: Any) -> list[tuple[Place, Any]]:
        return [
            ((TOPIC, part.partition_index), part)
            for topic in answer.responses
            for part in topic.partitions
        ]
