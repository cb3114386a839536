"""A group that reads one topic, with the list of what it archived; the journal may be pruned."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from headrace.core.archived import ArchivedRun
from headrace.core.shard import ShareShard
from headrace.core.shard_words import (
    On,
    Recovered,
)
from headrace.core.share_group import Heartbeat, TopicView
from headrace.core.share_words import (
    PORTION_RUNS,
    Acknowledge,
    Acknowledged,
    Acquire,
    Policy,
    ShareKey,
    Verdict,
)
from headrace.core.types import MemberId, Span
from headrace.log.archived_records import ARCHIVED
from headrace.log.record_codec import ShareJournal

from .share_shard_rig import ShardRig

TOPIC, LOG_END, LIMIT = UUID(int=7), 1000, 2
KEY, ME = ShareKey("work", TOPIC, 0), MemberId("me")
LEASE = ("work", "checkpoint")
PAGE = ARCHIVED.to_bytes(2, "big")
REMOVED = "removed from the log, by retention or an administrator, before it was finished"
EXHAUSTED = f"delivery count limit {LIMIT} reached"


class Work(ShardRig):
    """A group that reads one topic from its start."""

    def __init__(self) -> None:
        self.dead_letters = False
        super().__init__()
        self.earliest = True

    def policy(self, group: str) -> Policy:
        return Policy(LIMIT, 1000, 500, 500, dead_letters=self.dead_letters)

    def topic(self, name: str) -> TopicView | None:
        return TopicView(TOPIC, (0,), (LOG_END,)) if name == "jobs" else None

    def join(self) -> None:
        self.ask(Heartbeat("work", ME, 0, frozenset({"jobs"})))

    def fetch(self, first: int, last: int, member: MemberId = ME) -> None:
        wanted = Acquire(member, [Span(first, last)], 1000, 500, exact=True, looked_from=first)
        self.ask(On(KEY, wanted))

    def say(self, verdict: Verdict, first: int, last: int, reason: str | None = None) -> Any:
        said = Acknowledged(Span(first, last), [verdict], reason)
        return self.ask(On(KEY, Acknowledge(ME, [said])))

    def runs(self) -> list[ArchivedRun]:
        found = self.shard.archive.lists.get(KEY)
        return [] if found is None else found.runs

    def listed(self) -> list[tuple[int, int, int, str, str, int]]:
        return [
            (one.span.first, one.span.last, one.deliveries, one.reason, one.member, one.at)
            for one in self.runs()
        ]

    def lost(self) -> int:
        return self.shard.archive.lists[KEY].dropped


class Pruned(Work):
    """With a journal that is cut at its front."""

    def __init__(self) -> None:
        self.start = self.known = 0
        super().__init__()

    def placed(self) -> Iterator[tuple[int, Any]]:
        return enumerate(self.records, self.start)

    def prune(self, *, renew: bool) -> None:
        self._place()
        if renew:
            self.ask(self.journal.cold(self.start + len(self.records), 10))
            self._place()
        needed = self.journal.needed_from(self.start + len(self.records))
        del self.records[: needed - self.start]
        self.start = max(self.start, needed)

    def replayed(self) -> ShareShard:
        shard = ShareShard(self)
        journal = ShareJournal(shard, pruned=self.start > 0)
        for entry in self.records:
            shard.apply_all(journal.events(entry.key, entry.value))
        return shard

    def restart(self, runs_max: int = PORTION_RUNS) -> None:
        self.known = self.start
        self._new_process()
        for offset, entry in self.placed():
            self.shard.apply_all(self.journal.events(entry.key, entry.value))
            self.journal.placed(offset, entry.key, entry.value)
            self.known = offset + 1
        self.ask(Recovered(runs_max))

    def _place(self) -> None:
        for offset, entry in self.placed():
            if offset >= self.known:
                self.journal.placed(offset, entry.key, entry.value)
                self.known = offset + 1

    def _new_process(self) -> None:
        self.shard = ShareShard(self)
        self.journal = ShareJournal(self.shard, 3, pruned=self.start > 0)
