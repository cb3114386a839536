"""A member of a KIP-848 group as stock clients are; a model drives it, beat by beat."""

from dataclasses import dataclass, field

from headrace.core.consumer_words import NOTHING, Beaten, ConsumerBeat, Partitions
from headrace.core.errors import Refused, Why
from headrace.core.types import MemberId, TopicPartition

REBALANCE_MS = 60_000


@dataclass
class Client:
    """The client's half. `reading` is what it reads now, `told` what it was assigned last."""

    id: MemberId
    instance: str | None
    topics: frozenset[str]
    regex: str
    assignor: str | None
    epoch: int = 0
    reading: set[TopicPartition] = field(default_factory=set)
    told: Partitions = NOTHING
    said: Partitions | None = None  # that it owns
    says_all: bool = True  # after every fault

    def request(self) -> ConsumerBeat:
        complete = self.says_all or self.epoch == 0
        owned = frozenset(self.reading)
        changed, self.said = owned != self.said, owned
        return ConsumerBeat(
            "g", self.id, self.epoch, instance=self.instance, client_id="c", client_host="/h",
            rebalance_ms=REBALANCE_MS if complete else None,
            topics=self.topics if complete else None,
            regex=self.regex if complete else None,
            assignor=self.assignor if complete else None,
            owned=owned if complete or changed else None,
        )  # fmt: skip

    def hear(self, answer: Beaten | Refused) -> None:
        if isinstance(answer, Refused):
            assert answer.why in (Why.UNKNOWN_MEMBER, Why.STALE_EPOCH, Why.UNKNOWN_GROUP), answer
            self.reading, self.told, self.epoch, self.says_all = set(), NOTHING, 0, True
            return
        assert answer.epoch >= self.epoch
        self.epoch, self.says_all = answer.epoch, False
        if answer.assignment is not None:
            self.told = answer.assignment

    def work(self) -> None:
        """Let go of what it is not to have; then take what it is to have.

        But not while it waits for an answer: what it said that it does not own may be another's by
        then. The protocol leaves that to clients, here as in Kafka.
        """
        if self.reading - self.told:
            self.reading &= self.told
        elif not self.says_all:
            self.reading |= self.told
