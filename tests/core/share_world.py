"""The small world of the share shard's model: one topic, two members, one lease, and its cells."""

from dataclasses import dataclass
from uuid import UUID

from headrace.core.runs import State
from headrace.core.share_group import Timing, TopicView
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import Policy, ShareKey, Verdict
from headrace.core.types import MemberId

TOPIC = UUID(int=9)
KEY = ShareKey("group", TOPIC, 0)
LEASE = ("group", "checkpoint")
LIMIT, LOCK_MS, WINDOW, LOG_END = 3, 1_000, 30, 200
MEMBERS = [MemberId("a"), MemberId("b")]
POLICY = Policy(LIMIT, LOCK_MS, WINDOW, WINDOW, dead_letters=True)


class World:
    def policy(self, group: str) -> Policy:
        return POLICY

    def timing(self, group: str) -> Timing:
        return Timing(session_ms=1 << 40)

    def starts_earliest(self, group: str) -> bool:
        return True

    def topic(self, name: str) -> TopicView | None:
        return TopicView(TOPIC, (0,), (LOG_END,)) if name == "topic" else None


@dataclass
class Cell:
    """One record: state, deliveries, who holds it since and until when, and its verdicts so far.

    Of one that is archived, `holder` had it last.
    """

    state: str = "available"
    deliveries: int = 0
    holder: str | None = None
    since: int = 0
    until: int = 0
    stored: int = 0  # deliveries that a settlement has made durable
    leased: int | None = None  # the delivery that an uncommitted acquisition of the lease has

    @property
    def finished(self) -> bool:
        return self.state in ("acknowledged", "archived")

    @property
    def seen(self) -> tuple[str, int, str | None, int | None]:
        """State, deliveries, holder and since when, as a run of the machine has them."""
        since = self.since if self.state == "acquired" else None
        return self.state, self.deliveries, self.holder, since

    def settle(self, verdict: Verdict, holder: str | None = None) -> None:
        """End a delivery, of `holder` where its lock has lapsed."""
        last, self.holder, self.stored = self.holder or holder, None, self.deliveries
        if verdict is Verdict.ACCEPT:
            self.state = "acknowledged"
        elif verdict is Verdict.RELEASE and self.deliveries < LIMIT:
            self.state = "available"
        else:
            self.state = "archived" if verdict is Verdict.GAP else "archiving"
            self.holder = last

    def may_be_taken_back(self, holder: str, deliveries: int) -> bool:
        """Whether a lease that has it on this delivery may have it again, or settle it."""
        if self.state == "available":
            return self.deliveries in (deliveries, deliveries - 1)
        return (self.state, self.holder, self.deliveries) == ("acquired", holder, deliveries)


def durable(partition: SharePartition) -> dict[int, tuple[State, int, str | None, str | None]]:
    """Offset by offset what a restart must find: locks forgotten, untouched records left out."""
    found: dict[int, tuple[State, int, str | None, str | None]] = {}
    for run in partition.runs:
        acquired = run.state is State.ACQUIRED
        state = State.AVAILABLE if acquired else run.state
        deliveries = run.stored if acquired else run.deliveries
        if state is not State.AVAILABLE or deliveries:
            holder = None if acquired else run.holder
            found |= dict.fromkeys(run.span, (state, deliveries, run.reason, holder))
    return found
