"""The one pattern for state: decide, apply, journal (docs/architecture.md).

`decide` reads state and answers with events or a refusal; `apply` is the only place where state
changes, cannot refuse and never looks at a clock; live traffic and recovery call the same `apply`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from headrace.core.errors import Refused
from headrace.core.types import MonoMs, Now, WallMs

CommandT = TypeVar("CommandT", contravariant=True)
EventT = TypeVar("EventT")


@dataclass(slots=True)  # not frozen, which would double the cost of making one
class Decided(Generic[EventT]):
    """What a command makes true, and what its caller is told once that is durable."""

    events: Sequence[EventT]
    reply: Any = None


class Entry(NamedTuple):
    """A record as a journal wants it written; headers are for people, recovery needs none."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Machine(Protocol[CommandT, EventT]):
    """An event-sourced state machine as the runtime drives it."""

    def decide(self, command: CommandT, now: Now) -> Decided[EventT] | Refused: ...
    def apply(self, event: EventT) -> None: ...

    def next_deadline(self) -> MonoMs | None:
        """When time alone will make something true; the runtime then sends a Tick."""

    def tick(self, now: Now) -> Sequence[EventT]:
        """Decide what the passing of time alone makes true."""


class Journal(Protocol[EventT]):
    """Durable events as the records of a shard's journal, and back."""

    def records(self, events: Sequence[EventT], written_at: WallMs) -> list[Entry]:
        """The records that these applied events need; none if all are volatile.

        Called with the events of one command, after `apply`, in order.
        """

    def events(self, key: bytes | None, value: bytes | None) -> list[EventT]:
        """The events that one record stands for, to be applied in recovery.

        Raises: `wire.primitives.Malformed` on bytes that are no record of this journal, or of a
        type or version from the future.
        """
