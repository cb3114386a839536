"""The one pattern for state: decide, apply, journal (docs/architecture.md).

`decide` reads state and answers with events or a refusal; `apply` is the only place where state
changes, cannot refuse and never looks at a clock; live traffic and recovery call the same `apply`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from headrace.core.errors import Refused
from headrace.core.types import MonoMs, Now, WallMs

CommandT = TypeVar("CommandT", contravariant=True)
RestT = TypeVar("RestT")
EventT = TypeVar("EventT")
AppliedT = TypeVar("AppliedT", contravariant=True)


@dataclass(slots=True)  # not frozen, which would double the cost of making one
class Decided(Generic[EventT]):
    """What a command makes true, and what its caller is told once that is durable.

    `unused` is long data that only the state before the events has: freeing a million ranges takes
    100 ms, so that is done in a thread.
    """

    events: Sequence[EventT]
    reply: Any = None
    unused: Sequence[tuple[object, ...]] = ()


@dataclass(frozen=True, slots=True)
class Unfinished(Generic[RestT]):
    """A reply: the command is decided in portions, and this was not the last of them.

    `rest` is the command that decides the next portion. If `prepare` is set, that command is
    `prepare()` instead, which reads immutable data only and may run in a thread. The reply is that
    of the last portion. Nothing of an atomic command is durable before all its portions are
    decided; what another one decided may be written between two portions.
    """

    rest: RestT | None = None
    prepare: Callable[[], RestT] | None = None
    is_atomic: bool = True

    def following(self) -> RestT:
        """Return the command of the next portion; this takes long if it is to be prepared."""
        if self.prepare is not None:
            return self.prepare()
        assert self.rest is not None
        return self.rest


class Entry(NamedTuple):
    """A record as a journal wants it written; headers are for people, recovery needs none."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class LateEntries:
    """Records that take long to encode: `encode` does it in a thread, from immutable data."""

    encode: Callable[[], list[Entry]]


def encoded(records: "Sequence[Entry | LateEntries]") -> list[Entry]:
    """Return records in order, those that were left for later as well."""
    found: list[Entry] = []
    for record in records:
        if isinstance(record, LateEntries):
            found += record.encode()
        else:
            found.append(record)
    return found


class Machine(Protocol[CommandT, EventT]):
    """An event-sourced state machine as the runtime drives it."""

    def decide(self, command: CommandT, now: Now) -> Decided[EventT] | Refused: ...
    def apply(self, event: EventT) -> None: ...

    def next_deadline(self) -> MonoMs | None:
        """When time alone will make something true; the runtime then sends a Tick."""

    def tick(self, now: Now) -> Sequence[EventT]:
        """Decide what the passing of time alone makes true."""


@runtime_checkable
class AppliesMany(Protocol[AppliedT]):
    """A machine to which many events come at once; the outcome is that of one `apply` each."""

    def apply_all(self, events: Sequence[AppliedT]) -> None: ...


@runtime_checkable
class Placing(Protocol):
    """A journal codec that keeps account of where its records are."""

    def placed(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """A record is in the journal at `offset`; told of all, in order."""


class Journal(Protocol[EventT]):
    """Durable events as the records of a shard's journal, and back."""

    def records(
        self, events: Sequence[EventT], written_at: WallMs
    ) -> "Sequence[Entry | LateEntries]":
        """The records that these applied events need; none if all are volatile.

        Called with the events of one command, after `apply`, in order.
        """

    def events(self, key: bytes | None, value: bytes | None) -> list[EventT]:
        """The events that one record stands for, to be applied in recovery.

        Raises: `wire.primitives.Malformed` on bytes that are no record of this journal, or of a
        type or version from the future.
        """


def applier(machine: Machine[CommandT, EventT]) -> Callable[[Sequence[EventT]], None]:
    """How events are applied to a machine."""
    if isinstance(machine, AppliesMany):
        return machine.apply_all
    apply = machine.apply

    def apply_each(events: Sequence[EventT]) -> None:
        for event in events:
            apply(event)

    return apply_each


def placer(codec: Journal[EventT]) -> Callable[[int, bytes | None, bytes | None], None] | None:
    """What is to be told of where each record is, if anything is."""
    return codec.placed if isinstance(codec, Placing) else None
