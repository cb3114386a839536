"""Who is told of events that were decided and applied: each of the kinds that it asked for."""

from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

EventT = TypeVar("EventT")
Listener = Callable[[Sequence[EventT]], None]


class Listeners(Generic[EventT]):
    """The listeners of one shard, told in the order in which they were added.

    Acquisitions come by the hundred, and few want to hear of them: what is in a command's events
    is found once, and those that wait for something else do not look.
    """

    def __init__(self) -> None:
        self._all: list[tuple[Listener[EventT], frozenset[type] | None]] = []

    def append(self, listener: Listener[EventT], kinds: Collection[type] | None = None) -> None:
        """Tell `listener` of every command's events, or of those among which one of `kinds` is.

        By their exact types. It is given all events of the command.
        """
        self._all.append((listener, None if kinds is None else frozenset(kinds)))

    def clear(self) -> None:
        """Tell nobody any more."""
        self._all.clear()

    def tell(self, events: Sequence[EventT]) -> None:
        """Tell of the events of one command."""
        found = {type(event) for event in events}
        for listener, kinds in self._all:
            if kinds is None or not kinds.isdisjoint(found):
                listener(events)
