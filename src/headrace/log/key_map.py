"""A map from record keys to offsets that grows and goes in small pieces.

A dictionary of a million keys holds the interpreter, and with it the event loop, for 25 ms
(measured) when it moves to a larger table, and for longer when it is freed.
"""

from collections.abc import Iterable, Iterator

_PARTS = 1 << 8


class KeyMap:
    """The last offset of each key."""

    def __init__(self) -> None:
        self._parts: list[dict[bytes, int]] = [{} for _ in range(_PARTS)]

    def __bool__(self) -> bool:
        return any(self._parts)

    def __contains__(self, key: bytes) -> bool:
        return key in self._parts[hash(key) % _PARTS]

    def get(self, key: bytes, default: int) -> int:
        """The last offset of a key; `default` without any."""
        return self._parts[hash(key) % _PARTS].get(key, default)

    def update(self, found: Iterable[tuple[bytes, int]]) -> None:
        """Take notice of keys, each with an offset behind those told before."""
        parts = self._parts
        for key, offset in found:
            parts[hash(key) % _PARTS][key] = offset

    def forget(self) -> Iterator[None]:
        """Free everything, a piece with each step."""
        for part in self._parts:
            part.clear()
            yield
