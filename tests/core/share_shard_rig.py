"""A share shard with its journal, which outlives it: the base of the brokers that tests make up."""

from typing import Any

from headrace.core.errors import Refused
from headrace.core.machine import Entry, Unfinished, encoded
from headrace.core.shard import ShareShard
from headrace.core.shard_words import Command, Event, Recovered
from headrace.core.share_group import Timing, TopicView
from headrace.core.share_words import PORTION_RUNS, Policy
from headrace.core.types import MonoMs, Now, WallMs
from headrace.log.record_codec import ShareJournal


class ShardRig:
    """Runs commands and time as the runtime does; who derives from it says which topics exist."""

    def __init__(self) -> None:
        self.mono = 0
        self.earliest = False
        self.records: list[Entry] = []
        self._new_process()

    def policy(self, group: str) -> Policy:
        return Policy()

    def timing(self, group: str) -> Timing:
        return Timing()

    def starts_earliest(self, group: str) -> bool:
        return self.earliest

    def topic(self, name: str) -> TopicView | None:
        raise NotImplementedError

    @property
    def now(self) -> Now:
        return Now(MonoMs(self.mono), WallMs(self.mono))

    def ask(self, command: Command) -> Any:
        answer = self.ask_once(command)
        while isinstance(answer, Unfinished):
            answer = self.ask_once(answer.following())
        return answer

    def ask_once(self, command: Command) -> Any:
        """Decide one portion of a command."""
        answer = self.shard.decide(command, self.now)
        if isinstance(answer, Refused):
            return answer
        self._take(list(answer.events))
        return answer.reply

    def elapse(self, ms: int) -> None:
        self.mono += ms
        self._take(list(self.shard.tick(self.now)))

    def restart(self, runs_max: int = PORTION_RUNS) -> None:
        self._new_process()
        for key, value, _ in self.records:
            self.shard.apply_all(self.journal.events(key, value))
        self.ask(Recovered(runs_max))

    def _take(self, events: list[Event]) -> None:
        self.shard.apply_all(events)
        self.records += encoded(self.journal.records(events, WallMs(0)))

    def _new_process(self) -> None:
        self.shard = ShareShard(self)
        self.journal = ShareJournal(self.shard)
