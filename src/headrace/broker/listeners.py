"""Who is told of events that were decided and applied: each of the kinds that it asked for."""

from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

EventT = TypeVar("EventT")
Listener = Callable[[Sequence[EventT]], None]


class Listeners(Generic[EventT]):
    """The listeners of one shard, told in the order in which they were added.

    Acquisitions come by the hundred, and few want to hear of them: who is told of the kinds of a
    command's events is found once.
    """

    def __init__(self) -> None:
        self._all: list[tuple[Listener[EventT], frozenset[type] | None]] = []
        self._told: dict[frozenset[type], list[Listener[EventT]]] = {}

    def append(self, listener: Listener[EventT], kinds: Collection[type] | None = None) -> None:
        """Tell `listener` of every command's events, or of those among which one of `kinds` is.

        By their exact types. It is given all events of the command.
        """
        self._all.append((listener, None if kinds is None else frozenset(kinds)))
        self._told.clear()

    def clear(self) -> None:
        """Tell nobody any more."""
        self._all.clear()
        self._told.clear()

    def tell(self, events: Sequence[EventT]) -> None:
        """Tell of the events of one command."""
        kinds = frozenset(map(type, events))
        told = self._told.get(kinds)
        if told is None:
            told = self._told[kinds] = [
                listener
                for listener, wanted in self._all
                if wanted is None or not wanted.isdisjoint(kinds)
            ]
        for listener in told:
            listener(events)
