"""Names in an order that a walk over all of them can leave off and take up again.

A dictionary cannot: who changes it ends every walk, and a copy of a million keys takes longer than
others may be kept waiting.
"""

from collections.abc import Iterator


class Roster:
    """A set of names; adding and dropping one take the same time however many there are."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._places: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def walk(self) -> Iterator[str]:
        """Every name that is there from the beginning of the walk to its end.

        Names may come and go between two steps: new ones are passed over, and when one goes,
        another may come twice.
        """
        place = len(self._names)
        while (place := min(place, len(self._names)) - 1) >= 0:
            yield self._names[place]

    # ---- changes, called by apply only

    def add(self, name: str) -> None:
        if name not in self._places:
            self._places[name] = len(self._names)
            self._names.append(name)

    def drop(self, name: str) -> None:
        """The last one takes its place: a walk goes backwards, and has been there."""
        place = self._places.pop(name, None)
        if place is None:
            return
        last = self._names.pop()
        if last != name:
            self._names[place] = last
            self._places[last] = place
