"""Chunks of runs: a sorted list of beginnings in pieces, which are rewritten one at a time."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import accumulate, compress, count, islice
from operator import sub
from typing import Generic, TypeVar

from headrace.core.spans import Each, Spans

CHUNK_RUNS = 512  # more are split; 8 kB in all, which the processor copies in a microsecond
_FILL_RUNS = 384  # in the parts of a chunk that was split: room for some more
_LOOK_RUNS = 16  # so many laid runs pay for looking through the whole chunk

T = TypeVar("T")
Move = Callable[[T, T, int], None]
_Columns = tuple[list[int], list[int], list[T]]  # where runs begin, where they end, what they are


class Chunk(Generic[T]):
    """Where runs begin, and what each is until the next one begins.

    `seen` holds every status in the chunk, and maybe some that are not in it any more.
    """

    __slots__ = ("firsts", "seen", "statuses")

    def __init__(self, firsts: "array[int]", statuses: list[T], seen: set[T]) -> None:
        self.firsts = firsts
        self.statuses = statuses
        self.seen = seen

    def see(self, status: T) -> None:
        """It is in the chunk now."""
        self.seen.add(status)
        if len(self.seen) > CHUNK_RUNS:
            self.see_again()  # what is in it no more would be kept alive

    def see_again(self) -> None:
        """Make `seen` exact."""
        self.seen = set(self.statuses)


def found(
    chunk: Chunk[T], stop: int, wanted: Set[T], offset: int, records: int
) -> tuple[Each[T], int]:
    """The runs of `wanted` from `offset` on, until they are `records`; how many of these are left.

    The chunk's runs end at `stop`.
    """
    here = chunk.seen.intersection(wanted)
    low = max(bisect_right(chunk.firsts, offset) - 1, 0)
    runs_max = min(records, len(chunk.firsts))
    begin = next(_places(chunk.statuses, here, low), None)
    if begin is None:
        return (Spans([], []), []), records
    columns = _every_second(chunk, stop, begin, runs_max) if len(here) == 1 else None
    firsts, ends, statuses = columns or _scattered(chunk, stop, here, begin, runs_max)
    firsts[0] = max(firsts[0], offset)
    spans = Spans(firsts, ends)
    if spans.records > records:
        runs = 1 + bisect_left(list(accumulate(map(sub, ends, firsts))), records)
        spans = spans.cut(0, runs)
        del statuses[runs:]
    return (spans, statuses), records - spans.records


def _every_second(chunk: Chunk[T], stop: int, low: int, runs_max: int) -> _Columns[T] | None:
    """The runs like number `low`, from there on; None where they are not every second one."""
    firsts, statuses, status = chunk.firsts, chunk.statuses, chunk.statuses[low]
    high = min(low + 2 * runs_max, len(statuses))
    like = statuses[low:high:2]
    if like.count(status) < len(like):
        return None
    ends = firsts[low + 1 : high + 1 : 2].tolist()
    if len(ends) < len(like):
        ends.append(stop)
    return firsts[low:high:2].tolist(), ends, like


def _scattered(chunk: Chunk[T], stop: int, wanted: Set[T], low: int, runs_max: int) -> _Columns[T]:
    """The runs of `wanted` from number `low` on."""
    statuses, bounds = chunk.statuses, [*chunk.firsts, stop]
    at = list(islice(_places(statuses, wanted, low), runs_max))
    return [bounds[n] for n in at], [bounds[n + 1] for n in at], [statuses[n] for n in at]


def _places(statuses: Sequence[T], wanted: Set[T], low: int) -> Iterator[int]:
    """The numbers of runs of `wanted`, from `low` on."""
    return compress(count(low), map(wanted.__contains__, islice(statuses, low, None)))


def rewritten(
    chunk: Chunk[T],
    stop: int,
    before: T | None,
    pieces: Sequence[tuple[int, int, T]],
    move: Move[T],
) -> Chunk[T]:
    """The chunk with `pieces` laid over its runs, which end at `stop`.

    A run that is what `before`, the run before the chunk, is already does not begin: so the result
    may be empty. `move` is told of every record that is something else now. Pieces ascend, do not
    overlap, and lie inside the chunk.
    """
    firsts, statuses, count = chunk.firsts, chunk.statuses, len(chunk.firsts)
    new_firsts, new_statuses = array("q"), list[T]()
    held: T | None = before  # what the run is that new_firsts ends with
    rest: list[tuple[int, T]] = []  # of a run that a piece cut: where it begins
    at = 0  # the next run that begins as before
    moves: dict[T, dict[T, int]] = {}  # records by what they are now, and were
    for first, last, status in pieces:
        if rest and rest[0][0] < first:
            held = _resume(new_firsts, new_statuses, rest)
        rest = []
        if at < count and firsts[at] < first:
            new_firsts.append(firsts[at])  # most often it is the only one
            new_statuses.append(statuses[at])
            at += 1
            if at < count and firsts[at] < first:
                copied = bisect_left(firsts, first, at)
                new_firsts += firsts[at:copied]
                new_statuses += statuses[at:copied]
                at = copied
            held = new_statuses[-1]
        under = at if at < count and firsts[at] == first else at - 1
        moved = moves.get(status) or moves.setdefault(status, {})
        place = first
        while place <= last:  # over what the piece covers
            old, under = statuses[under], under + 1
            end = firsts[under] if under < count else stop
            after = end if end <= last else last + 1
            moved[old] = moved.get(old, 0) + after - place
            place = after
        at = under
        if held is not status:
            new_firsts.append(first)
            new_statuses.append(status)
            held = status
        if end > place:
            rest = [(place, old)] if old is not status else []
        elif at < count and statuses[at] is status:
            at += 1
    _resume(new_firsts, new_statuses, rest)
    new_firsts += firsts[at:]
    new_statuses += statuses[at:]
    for now, moved in moves.items():
        for was, records in moved.items():
            move(was, now, records)
    looks = len(pieces) >= _LOOK_RUNS
    seen = set(new_statuses) if looks else chunk.seen | {status for _, _, status in pieces}
    return Chunk(new_firsts, new_statuses, seen)


def exchanged(
    chunk: Chunk[T],
    stop: int,
    beside: tuple[T | None, T | None],
    pieces: Sequence[tuple[int, int, T]],
    move: Move[T],
) -> int:
    """Put pieces in the place of runs that they cover exactly, amid runs unlike them.

    As many as come first of that kind, which is their number: nothing moves but a reference, and
    most acquisitions of what was released are such. The chunk's runs end at `stop`, between runs
    that are `beside` them. `move` is told as by `rewritten`.
    """
    statuses, firsts = chunk.statuses, chunk.firsts + array("q", (stop,))
    before, following = beside
    around: list[T | None] = [*statuses, following, before]  # of which the last is also at -1
    count = len(statuses)
    at = done = records = 0
    old = new = statuses[0]
    moves: list[tuple[T, T, int]] = []  # those of neighbours that are alike together
    for first, last, status in pieces:
        if at >= count or firsts[at] != first:
            at = bisect_left(firsts, first)
        if firsts[at] != first or firsts[at + 1] != last + 1:
            break
        if around[at - 1] is status or around[at + 1] is status:
            break
        if status is not new or statuses[at] is not old:
            moves.append((old, new, records))
            old, new, records = statuses[at], status, 0
        statuses[at] = around[at] = status
        records += last - first + 1
        done += 1
        at += 2  # most often what lies between is one run
    moves.append((old, new, records))
    for was, now, count in moves:
        if count:
            move(was, now, count)
            chunk.see(now)
    return done


def replaced(
    chunk: Chunk[T],
    stop: int,
    beside: tuple[T | None, T | None],
    spans: Spans,
    status: T,
    move: Move[T],
) -> bool:
    """Put `status` in the place of every second run, where those are `spans`, and alike.

    Nothing beside them may be like `status` already. False when it is not so; nothing changed then.
    Other parameters are those of `exchanged`, which does as much run by run.
    """
    firsts, ends = spans.firsts, spans.ends
    statuses, runs = chunk.statuses, 2 * len(firsts)
    at = bisect_left(chunk.firsts, firsts[0])
    bounds = chunk.firsts[at : at + runs].tolist()
    if len(bounds) == runs - 1:
        bounds.append(stop)
    if bounds[::2] != firsts or bounds[1::2] != ends:
        return False
    old, places = statuses[at], slice(at, at + runs - 1, 2)
    before = statuses[at - 1] if at else beside[0]
    following = statuses[at + runs - 1] if at + runs <= len(statuses) else beside[1]
    if statuses[places].count(old) < len(firsts) or status is before or status is following:
        return False
    if status in chunk.seen and status in statuses[at + 1 : at + runs - 2 : 2]:
        return False
    statuses[places] = [status] * len(firsts)
    move(old, status, spans.records)
    chunk.see(status)
    return True


def _resume(firsts: "array[int]", statuses: list[T], rest: Sequence[tuple[int, T]]) -> T | None:
    """A run goes on that was cut; what it is."""
    for first, status in rest:
        firsts.append(first)
        statuses.append(status)
        return status
    return None


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
