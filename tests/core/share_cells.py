"""The model of a share-partition: one cell an offset. It shares no code with the machine."""

from dataclasses import dataclass

from headrace.core.runs import State
from headrace.core.share_partition import SharePartition


@dataclass
class Cell:
    """One record: state, deliveries, who holds it and until when, and its verdicts so far."""

    state: str = "available"
    deliveries: int = 0
    holder: str | None = None
    until: int = 0
    stored: int = 0  # deliveries that a settlement has made durable
    leased: int | None = None  # the delivery that an uncommitted acquisition of the lease has

    @property
    def finished(self) -> bool:
        return self.state in ("acknowledged", "archived")


def durable(partition: SharePartition) -> dict[int, tuple[State, int, str | None]]:
    """Offset by offset what a restart must find: locks forgotten, untouched records left out."""
    found: dict[int, tuple[State, int, str | None]] = {}
    for run in partition.runs:
        acquired = run.state is State.ACQUIRED
        state = State.AVAILABLE if acquired else run.state
        deliveries = run.stored if acquired else run.deliveries
        if state is not State.AVAILABLE or deliveries:
            found |= dict.fromkeys(run.span, (state, deliveries, run.reason))
    return found
