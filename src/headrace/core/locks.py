"""Who holds what, and until when: acquisition locks by deadline and by holder.

Work is that of the locks asked for, however many there are beside them.
"""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

from headrace.core.types import MemberId, MonoMs

_PASSED_MAX = 1000  # deadlines of what is locked no longer that are kept until they have passed

T = TypeVar("T", bound=Hashable)
KeyT = TypeVar("KeyT")


class Locks(Generic[T]):
    """Things that are each locked by one holder until one deadline."""

    def __init__(self) -> None:
        self._by_deadline: dict[MonoMs, set[T]] = {}
        self._by_holder: dict[MemberId, set[T]] = {}
        self._deadlines: list[MonoMs] = []  # a heap of those above, and of some that are no more

    def add(self, what: T, holder: MemberId, deadline: MonoMs) -> None:
        """A lock begins."""
        due = self._by_deadline.get(deadline)
        if due is None:
            if len(self._deadlines) > 2 * len(self._by_deadline) + _PASSED_MAX:
                self._deadlines = sorted(self._by_deadline)
            heapq.heappush(self._deadlines, deadline)
            due = self._by_deadline[deadline] = set()
        due.add(what)
        held = self._by_holder.get(holder)
        if held is None:
            held = self._by_holder[holder] = set()
        held.add(what)

    def discard(self, what: T, holder: MemberId, deadline: MonoMs) -> None:
        """A lock that began so is over."""
        _discard(self._by_deadline, deadline, what)
        _discard(self._by_holder, holder, what)

    def next_deadline(self) -> MonoMs | None:
        """The earliest deadline of any lock."""
        while self._deadlines and self._deadlines[0] not in self._by_deadline:
            heapq.heappop(self._deadlines)
        return self._deadlines[0] if self._deadlines else None

    def due(self, now: MonoMs) -> list[T]:
        """What is locked although its deadline has come."""
        passed: set[MonoMs] = set()
        places = [0]
        while places:  # a heap: nothing below a place is earlier than what is there
            place = places.pop()
            if place < len(self._deadlines) and self._deadlines[place] <= now:
                passed.add(self._deadlines[place])
                places += (2 * place + 1, 2 * place + 2)
        return [one for deadline in passed for one in self._by_deadline.get(deadline, ())]

    def held_by(self, holder: MemberId) -> list[T]:
        """What a holder has."""
        return list(self._by_holder.get(holder, ()))


def _discard(places: dict[KeyT, set[T]], key: KeyT, what: T) -> None:
    place = places[key]
    place.discard(what)
    if not place:
        del places[key]
