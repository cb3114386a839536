"""What will expire of a group's offsets, when, and what decides it, if nothing happens until then.

Asked is what the sweep asks (`offset_life.terms_of`), so the two cannot disagree: at the time that
is told here a sweep drops an offset, a millisecond earlier it does not.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from headrace.core import subscription
from headrace.core.group_words import TIME_UNKNOWN, Committed
from headrace.core.offset_life import Owner, Spared, Terms, terms_of
from headrace.core.types import WallMs


class Base(Enum):
    """From what on retention counts."""

    EMPTY = auto()  # when the group lost its last member
    COMMIT = auto()
    OWN = auto()  # the commit brought its own time of expiry


class Kept(Enum):
    """Why an offset does not expire."""

    SUBSCRIBED = auto()
    UNREADABLE = auto()  # a member's subscription cannot be read: it may be to any topic
    REBALANCING = auto()
    OTHER_PROTOCOL = auto()


@dataclass(frozen=True, slots=True)
class Due:
    """Expires with the first sweep at `at` or later; `since` is when its retention began."""

    at: WallMs
    base: Base
    since: WallMs


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is to come for one committed offset."""

    topic: str
    partition: int
    committed: Committed
    fate: Due | Kept


def outlooks(
    owner: Owner, offsets: Iterable[tuple[str, int, Committed]], retention_minutes: int
) -> list[Outlook]:
    """The fate of each offset of a group, in the order of topics and partitions."""
    ordered = sorted(offsets, key=lambda place: place[:2])
    return list(walked_outlooks(owner, ordered, retention_minutes))


def walked_outlooks(
    owner: Owner, offsets: Iterable[tuple[str, int, Committed]], retention_minutes: int
) -> Iterator[Outlook]:
    """Yield the fate of each offset, by the state of the group at the first step."""
    terms = terms_of(owner, retention_minutes)
    for topic, partition, one in offsets:
        yield Outlook(topic, partition, one, _fate(topic, one, terms))


def removed_at(owner: Owner, found: Iterable[Outlook]) -> WallMs | None:
    """When the group itself goes: with its last offset; None as long as it has members.

    Zero: with the next sweep, since an empty group has nothing left to stay for.
    """
    times = [one.fate.at for one in found if isinstance(one.fate, Due)]
    if not owner.is_empty or owner.is_awaited:
        return None
    return max(times, default=WallMs(0))


def _fate(topic: str, one: Committed, terms: Terms | Spared) -> Due | Kept:
    match terms:
        case Spared.REBALANCING:
            return Kept.REBALANCING
        case Spared.OTHER_PROTOCOL:
            return Kept.OTHER_PROTOCOL
    if topic in terms.subscribed:
        unreadable = terms.subscribed is subscription.EVERYTHING
        return Kept.UNREADABLE if unreadable else Kept.SUBSCRIBED
    at = terms.expires_at(one)
    if one.expires_at is not None:
        return Due(at, Base.OWN, one.committed_at)
    if terms.empty_since != TIME_UNKNOWN:
        return Due(at, Base.EMPTY, terms.empty_since)
    return Due(at, Base.COMMIT, one.committed_at)
