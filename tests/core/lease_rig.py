"""A shard with one topic of two partitions, a lease on it, and others that take records."""

from uuid import UUID

from headrace.core.shard_words import On, OpenLease
from headrace.core.share_group import TopicView
from headrace.core.share_words import Acquire, ShareKey
from headrace.core.types import MemberId, Span

from .share_shard_rig import ShardRig

TOPIC = UUID(int=5)
LEASE = ("delays", "checkpoint")
P0, P1 = ShareKey("delays", TOPIC, 0), ShareKey("delays", TOPIC, 1)
LOCK_MS = 30_000


class LeaseRig(ShardRig):
    """With one topic of two partitions, unless it is deleted."""

    ends: tuple[int, ...] = (100, 100)
    exists = True

    def topic(self, name: str) -> TopicView | None:
        if name != "flights" or not self.exists:
            return None
        return TopicView(TOPIC, (0,) * len(self.ends), self.ends)

    def open(self) -> int:
        return int(self.ask(OpenLease(LEASE, ("flights",), True)).epoch)

    def other_takes(self, key: ShareKey, first: int, last: int) -> list[Span]:
        command = Acquire(MemberId("other"), [Span(first, last)], 1000, 1000, exact=True)
        return [Span(*bounds) for event in self.ask(On(key, command)) for bounds in event.spans]

    def state(self, key: ShareKey = P0) -> str:
        partition = self.shard.partitions[key]
        runs = [f"{run.span} {run.state.name} {run.deliveries}" for run in partition.runs]
        return ", ".join([f"SPSO={partition.start}", *runs])
