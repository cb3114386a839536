"""A share-partition that tests drive in the seed's own words."""

from dataclasses import dataclass, field

from headrace.core.errors import Refused
from headrace.core.runs import State
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import (
    Acknowledge,
    Acknowledged,
    Acquire,
    Acquired,
    Command,
    Event,
    Policy,
    Verdict,
)
from headrace.core.types import MemberId, MonoMs, Now, Span, WallMs

WORDS = {
    State.AVAILABLE: "available",
    State.ACQUIRED: "acquired",
    State.ACKNOWLEDGED: "acknowledged",
    State.ARCHIVING: "archiving",
    State.ARCHIVED: "archived",
}


@dataclass
class Driver:
    """Decides and applies, and describes the state as the seed's walkthrough does."""

    partition: SharePartition
    policy: Policy
    mono: int = 0
    events: list[Event] = field(default_factory=list)

    @property
    def now(self) -> Now:
        return Now(MonoMs(self.mono), WallMs(1_700_000_000_000 + self.mono))

    def run(self, command: Command) -> list[Event] | Refused:
        answer = self.partition.decide(command, self.now, self.policy)
        if not isinstance(answer, Refused):
            self._apply(answer)
        return answer

    def fetch(
        self, first: int, last: int, member: str = "member", records_max: int = 1000
    ) -> list[Span]:
        """Fetch as a member would, from one record batch that holds `first` to `last`."""
        command = Acquire(
            MemberId(member), [Span(first, last)], records_max, self.policy.window, exact=True
        )
        answer = self.run(command)
        assert isinstance(answer, list)
        taken = [event for event in answer if isinstance(event, Acquired)]
        return [Span(*bounds) for event in taken for bounds in event.spans]

    def say(
        self, verdict: Verdict, first: int, last: int, member: str = "member"
    ) -> list[Event] | Refused:
        said = Acknowledged(Span(first, last), [verdict])
        return self.run(Acknowledge(MemberId(member), [said]))

    def elapse(self, ms: int) -> None:
        self.mono += ms
        self._apply(self.partition.expired(self.now, self.policy))

    def describe(self) -> str:
        """E.g. `SPSO=110, SPEO=120, 110 available 1, 111-119 acquired 1`, as the seed has it."""
        parts = [f"SPSO={self.partition.start}", f"SPEO={self.partition.end}"]
        for run in self.partition.runs:
            counted = run.state in (State.ACQUIRED, State.AVAILABLE) and run.deliveries
            parts.append(
                f"{run.span} {WORDS[run.state]}" + (f" {run.deliveries}" if counted else "")
            )
        return ", ".join(parts)

    def _apply(self, events: list[Event]) -> None:
        for event in events:
            self.partition.apply(event)
        self.events += events
