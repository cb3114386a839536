"""Log lines about records that were archived without a dead letter: few, however many there are.

Each group has one line in `PAUSE_MS` at most; what was not told since is counted in the next, which
comes by then (`ShareWatch` sees to it). The list itself is durable (`core/archived.py`), so a line
is a hint where to look.
"""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.broker.topics import Topics
from headrace.core.archived import PageListed
from headrace.core.shard_words import Event
from headrace.core.types import MonoMs, elapsed_ms
from headrace.log.api import Clock

log = logging.getLogger("headrace.broker")

PAUSE_MS = 10_000
_GROUPS_MAX = 1_000
TOLD = (PageListed,)  # the events that are told of


@dataclass(slots=True)
class _Told:
    """When a group was told of last, and what it archived since: how many records, which last."""

    at: MonoMs
    untold: int = 0
    latest: PageListed | None = None


class ArchivedLog:
    """A listener of the shards of share groups."""

    def __init__(self, clock: Clock, topics: Topics) -> None:
        self._clock = clock
        self._topics = topics
        self._groups: OrderedDict[str, _Told] = OrderedDict()  # who was told of last is last

    def tell(self, events: Sequence[Event]) -> None:
        """Events were decided and applied."""
        for event in events:
            if type(event) is PageListed and event.news:
                self._page(event)

    def tell_rest(self, *, is_end: bool = False) -> None:
        """Tell what was left untold, where that is long enough ago, or the broker stops."""
        now = self._clock.mono()
        for group, known in tuple(self._groups.items()):
            if not is_end and elapsed_ms(known.at, now) < PAUSE_MS:
                break  # nor were those behind it
            if known.latest is not None:
                self._say(known.latest, known.untold)
                self._told(group, now)

    def _page(self, event: PageListed) -> None:
        group, now = event.key.group, self._clock.mono()
        known = self._groups.get(group)
        if known is not None and elapsed_ms(known.at, now) < PAUSE_MS:
            known.untold += event.news
            known.latest = event
            return
        self._say(event, event.news + (known.untold if known is not None else 0))
        self._told(group, now)

    def _told(self, group: str, now: MonoMs) -> None:
        self._groups[group] = _Told(now)
        self._groups.move_to_end(group)
        if len(self._groups) > _GROUPS_MAX:
            self._groups.popitem(last=False)

    def _say(self, event: PageListed, count: int) -> None:
        group = event.key.group
        topic = self._topics.catalog.topics_by_id.get(event.key.topic_id)
        newest = event.runs[-1]
        log.warning(
            "group %s: %s archived without a dead letter; the last is %d of %s-%d, after %d "
            "deliveries: %s; see: headrace share archived %s",
            group,
            "1 record was" if count == 1 else f"{count} records were",
            newest.span.last,
            topic.name if topic is not None else event.key.topic_id,
            event.key.partition,
            newest.deliveries,
            newest.reason,
            group,
            extra={"group": group},
        )
        if event.dropped:
            log.warning(
                "group %s: its list of archived records is full in partition %d of that topic; %d "
                "older ones were dropped from it; clear it: headrace share archived %s --clear",
                group,
                event.key.partition,
                event.dropped,
                group,
                extra={"group": group},
            )
