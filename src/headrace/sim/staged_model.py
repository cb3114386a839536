"""The reference model of what drivers of a lease staged: by number, part and offset."""

from collections.abc import Mapping

Said = tuple[str, int]  # a verdict, and how long a released record is withheld, in ms

_STRICTNESS = ("accept", "release", "reject")


class StagedModel:
    """What shall become of records at the commits to come."""

    def __init__(self) -> None:
        self._parts: dict[int, dict[str, Mapping[int, Said]]] = {}
        self._epochs: dict[int, int] = {}

    def stage(self, number: int, part: str, epoch: int, said: Mapping[int, Said]) -> None:
        """A part replaces what it said; what drivers before this one let stage is void."""
        if self._epochs.get(number) != epoch:
            self._parts[number] = {}
        self._epochs[number] = epoch
        self._parts[number][part] = said

    def taken(self, number: int) -> dict[int, Said]:
        """The strictest of what was said under a number, which is settled now."""
        found: dict[int, Said] = {}
        self._epochs.pop(number, None)
        for said in self._parts.pop(number, {}).values():
            for offset, one in said.items():
                found[offset] = max(found.get(offset, one), one, key=_strictness)
        return found

    def clear(self) -> None:
        """Nothing is staged any more."""
        self._parts.clear()
        self._epochs.clear()


def _strictness(said: Said) -> tuple[int, int]:
    return _STRICTNESS.index(said[0]), said[1]
