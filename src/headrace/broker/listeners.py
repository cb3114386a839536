"""Who is told of events that were decided and applied: each of the kinds that it asked for."""

from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

EventT = TypeVar("EventT")
Listener = Callable[[Sequence[EventT]], None]


class Listeners(Generic[EventT]):
    """The listeners of one shard, told in the order in which they were added.

    Acquisitions come by the hundred, and few listeners ask for them. The listeners of each set of
    kinds that a command can have are looked up once; there are some dozens of such sets.
    """

    def __init__(self) -> None:
        self._all: list[tuple[Listener[EventT], frozenset[type] | None]] = []
        self._by_kinds: dict[frozenset[type], list[Listener[EventT]]] = {}

    def append(self, listener: Listener[EventT], kinds: Collection[type] | None = None) -> None:
        """Tell `listener` of every command's events, or of those among which one of `kinds` is.

        By their exact types. It is given all events of the command.
        """
        self._all.append((listener, None if kinds is None else frozenset(kinds)))
        self._by_kinds.clear()

    def clear(self) -> None:
        """Tell nobody any more."""
        self._all.clear()
        self._by_kinds.clear()

    def tell(self, events: Sequence[EventT]) -> None:
        """Tell of the events of one command."""
        kinds = frozenset(map(type, events))
        listeners = self._by_kinds.get(kinds)
        if listeners is None:
            listeners = self._by_kinds[kinds] = [
                listener
                for listener, chosen in self._all
                if chosen is None or not chosen.isdisjoint(kinds)
            ]
        for listener in listeners:
            listener(events)
