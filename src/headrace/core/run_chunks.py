"""Chunks of runs: a sorted list of beginnings in pieces, which are rewritten one at a time."""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

CHUNK_RUNS = 512  # more are split; 8 kB in all, which the processor copies in a microsecond
_FILL_RUNS = 384  # in the parts of a chunk that was split: room for some more
_LOOK_RUNS = 16  # so many laid runs pay for looking through the whole chunk

T = TypeVar("T")
Move = Callable[[T, T, int], None]


class Chunk(Generic[T]):
    """Where runs begin, and what each is until the next one begins.

    `seen` holds every status in the chunk, and maybe some that are not in it any more.
    """

    __slots__ = ("firsts", "seen", "statuses")

    def __init__(self, firsts: "array[int]", statuses: list[T], seen: set[T]) -> None:
        self.firsts = firsts
        self.statuses = statuses
        self.seen = seen

    def see_again(self) -> None:
        """Make `seen` exact."""
        self.seen = set(self.statuses)


def rewritten(
    chunk: Chunk[T], stop: int, before: T | None, pieces: Sequence[tuple[int, int, T]], move: Move[T]
) -> Chunk[T]:
    """The chunk with `pieces` laid over its runs, which end at `stop`.

    A run that is what `before`, the run before the chunk, is already does not begin: so the result
    may be empty. `move` is told of every record that is something else now. Pieces ascend, do not
    overlap, and lie inside the chunk.
    """
    firsts, statuses = chunk.firsts, chunk.statuses
    count = len(firsts)
    new_firsts, new_statuses = array("q"), list[T]()
    held: T | None = before  # what the run is that new_firsts ends with
    follows, beyond = stop, before  # where the rest of a cut run begins, and what it is
    at = 0  # the next run that begins as before
    for first, last, status in pieces:
        if follows < first:
            new_firsts.append(follows)
            new_statuses.append(beyond)  # type: ignore[arg-type]  # a rest is of some run
            held = beyond
        if at < count and firsts[at] < first:
            copied = bisect_left(firsts, first, at)
            new_firsts += firsts[at:copied]
            new_statuses += statuses[at:copied]
            held, at = new_statuses[-1], copied
        under = at if at < count and firsts[at] == first else at - 1
        place = first
        while True:  # over what the piece covers
            old = statuses[under]
            end = firsts[under + 1] if under + 1 < count else stop
            covered = (end if end <= last else last + 1) - place
            if old is not status:
                move(old, status, covered)
            place += covered
            if place > last:
                break
            under += 1
        at = under + 1
        if held is not status:
            new_firsts.append(first)
            new_statuses.append(status)
            held = status
        follows = stop
        if end > place:
            if old is not status:
                follows, beyond = place, old
        elif at < count and statuses[at] is status:
            at += 1
    if follows < stop:
        new_firsts.append(follows)
        new_statuses.append(beyond)  # type: ignore[arg-type]  # as above
    new_firsts += firsts[at:]
    new_statuses += statuses[at:]
    if len(pieces) >= _LOOK_RUNS:
        return Chunk(new_firsts, new_statuses, set(new_statuses))
    return Chunk(new_firsts, new_statuses, chunk.seen | {status for _, _, status in pieces})


def split(chunk: Chunk[T]) -> list[Chunk[T]]:
    """The chunk as parts that are not too long; none when it is empty."""
    count = len(chunk.firsts)
    if count <= CHUNK_RUNS:
        return [chunk] if count else []
    parts = []
    for low in range(0, count, _FILL_RUNS):
        statuses = chunk.statuses[low : low + _FILL_RUNS]
        parts.append(Chunk(chunk.firsts[low : low + _FILL_RUNS], statuses, set(statuses)))
    return parts
