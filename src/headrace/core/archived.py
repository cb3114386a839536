"""What share groups archived without a dead letter: listed, until somebody clears it (design §8).

A rejected or exhausted record is in a dead-letter topic or in this list, and so is a record that
retention removed before it was finished. The list of a share-partition outlives SPSO, resets and
the pruning of the journal; it goes with the share-partition.

Theory of operation. A list is pages of runs, and a page is a record of the journal: what is listed
rewrites the newest page, never all. Neighbours that are alike in all but their time are one run.
Each run has a number that rises with all that is listed, also when a run grows: who clears a list
"through" a number clears what was seen, and nothing that came since. The number outlives the runs,
because a page stays when all are cleared. The oldest pages go when there are too many; how many
records went with them is kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from headrace.core.runs import State, Status
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import DELAYED, NO_RECORD, Advanced, Ended, Settled, ShareKey
from headrace.core.types import MemberId, Now, Span, WallMs

RUNS_PER_PAGE = 50
PAGES_MAX = 200
REASON_CHARS_MAX = 1000
_REMOVED = "removed from the log, by retention or an administrator, before it was finished"


Alike = tuple[int, str, MemberId, WallMs]  # deliveries, reason, member and time of a range
Unlisted = tuple[int, int, Alike]  # first, last, and the rest of an `ArchivedRun`


class ArchivedRun(NamedTuple):
    """Records that were archived for a `reason`, after so many deliveries, the last to `member`.

    `member` is "" where nobody had them; `at` is when the last of them was archived.
    """

    number: int
    span: Span
    deliveries: int
    reason: str
    member: MemberId
    at: WallMs


@dataclass(frozen=True, slots=True)
class PageListed:
    """A page of a list as it is now, and what the list has beside its runs. Durable.

    `upcoming` is the number of the next run, `dropped` the records that there was no room for.
    """

    key: ShareKey
    page: int
    runs: tuple[ArchivedRun, ...]
    upcoming: int
    dropped: int
    news: int = 0  # records that were not listed before; for those who tell people


@dataclass(frozen=True, slots=True)
class PageForgotten:
    """A page of a list is no more. Durable."""

    key: ShareKey
    page: int


ArchiveEvent = PageListed | PageForgotten


@dataclass(slots=True)
class ArchivedList:
    """The list of one share-partition, oldest page first."""

    pages: dict[int, tuple[ArchivedRun, ...]] = field(default_factory=dict)
    upcoming: int = 1
    dropped: int = 0

    @property
    def runs(self) -> list[ArchivedRun]:
        return [run for page in sorted(self.pages) for run in self.pages[page]]


_EMPTY = ArchivedList()


class Archive:
    """The lists of all share-partitions of a shard."""

    def __init__(self) -> None:
        self._lists: dict[ShareKey, ArchivedList] = {}

    @property
    def lists(self) -> Mapping[ShareKey, ArchivedList]:
        return MappingProxyType(self._lists)

    def apply(self, event: ArchiveEvent) -> None:
        """The only place where a list changes."""
        match event:
            case PageListed(key, page, runs, upcoming, dropped):
                known = self._lists.setdefault(key, ArchivedList())
                known.pages[page], known.upcoming, known.dropped = runs, upcoming, dropped
            case PageForgotten(key, page):
                there = self._lists.get(key)
                if there is not None:
                    there.pages.pop(page, None)
                    if not there.pages:
                        del self._lists[key]

    def listed(self, key: ShareKey, found: Iterable[Unlisted]) -> list[ArchiveEvent]:
        """Return the events that list ranges, and number them."""
        known = self._lists.get(key, _EMPTY)
        page = max(known.pages, default=0)
        runs = list(known.pages.get(page, ()))
        touched, number, news = {page: runs}, known.upcoming, 0
        for first, last, alike in found:
            news += last - first + 1
            newest = runs[-1] if runs else None
            if (
                newest is not None
                and newest.span.last + 1 == first
                and newest[2:5] == alike[:3]  # all but the time
            ):
                runs[-1] = ArchivedRun(number, Span(newest.span.first, last), *alike)
            else:
                if len(runs) >= RUNS_PER_PAGE:
                    page, runs = page + 1, list[ArchivedRun]()
                    touched[page] = runs
                runs.append(ArchivedRun(number, Span(first, last), *alike))
            number += 1
        gone = sorted({*known.pages, *touched})[:-PAGES_MAX]
        dropped = known.dropped
        for one_gone in gone:
            lost = touched.pop(one_gone, known.pages.get(one_gone, ()))
            dropped += sum(len(run.span) for run in lost)
        return [
            *(PageForgotten(key, one) for one in gone if one in known.pages),
            *(
                PageListed(key, one, tuple(rows), number, dropped, news if one == page else 0)
                for one, rows in touched.items()
                if tuple(rows) != known.pages.get(one)
            ),
        ]

    def kept(self, key: ShareKey, page: int) -> list[ArchiveEvent]:
        """A page to be journaled as it is."""
        known = self._lists.get(key, _EMPTY)
        if page not in known.pages:
            return []
        return [PageListed(key, page, known.pages[page], known.upcoming, known.dropped)]

    def cleared(self, key: ShareKey, through: int) -> list[ArchiveEvent]:
        """The events that clear the runs up to a number, and what there was no room for."""
        known = self._lists.get(key, _EMPTY)
        newest = max(known.pages, default=0)
        events: list[ArchiveEvent] = []
        for page, runs in known.pages.items():
            left = tuple(run for run in runs if run.number > through)
            if left or page == newest:
                if left != runs or (page == newest and known.dropped):
                    events.append(PageListed(key, page, left, known.upcoming, 0))
            else:
                events.append(PageForgotten(key, page))
        return events

    def forgotten(self, key: ShareKey) -> list[ArchiveEvent]:
        """The events that forget the list of a share-partition."""
        return [PageForgotten(key, page) for page in self._lists.get(key, _EMPTY).pages]


def found_in(
    events: Sequence[object], partitions: Mapping[ShareKey, SharePartition], now: Now
) -> dict[ShareKey, list[Unlisted]]:
    """What is archived by events that are decided and not applied yet, without a dead letter."""
    found: dict[ShareKey, list[Unlisted]] = {}
    archived = State.ARCHIVED
    for event in events:
        if type(event) is Settled:  # they come by the thousand: `isinstance` takes longer
            if event[2] is not archived:
                continue
            _, span, _, deliveries, reason, hold = event
            if not reason or reason == NO_RECORD:
                continue
            member, ended = (None, None) if hold is None else (hold.holder, hold.ended)
            if ended is not Ended.COPIED:
                alike = _alike(deliveries, reason, member, now)
                found.setdefault(event.key, []).append((span.first, span.last, alike))
        elif type(event) is Advanced:
            overtaken = _overtaken(partitions[event.key], event.start, now)
            if overtaken:
                found.setdefault(event.key, []).extend(overtaken)
    return found


def _overtaken(partition: SharePartition, start: int, now: Now) -> list[Unlisted]:
    """Return what was not finished below the new start of a log."""
    ranges: list[Unlisted] = []
    removed: dict[Status, Alike | None] = {}
    for first, last, status in partition.runs.between(partition.start, start - 1):
        if status not in removed:
            removed[status] = _removed(status, now)
        if (alike := removed[status]) is not None:
            ranges.append((first, last, alike))
    if partition.end < start:
        ranges.append((partition.end, start - 1, _alike(0, _REMOVED, None, now)))
    return ranges


def _removed(status: Status, now: Now) -> Alike | None:
    """Return what the list has of removed records; None if they were finished."""
    if status.state.finished:
        return None
    reason = f"{status.reason}; {_REMOVED}" if status.reason else _REMOVED
    member = status.holder if status.holder != DELAYED else None
    return _alike(status.deliveries, reason, member, now)


def _alike(deliveries: int, reason: str, member: MemberId | None, now: Now) -> Alike:
    return deliveries, reason[:REASON_CHARS_MAX], member or MemberId(""), now.wall
