"""Bugs to plant in the broker, as somebody might write them; the simulator has to find each one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.broker.runtime import ShardRuntime
from headrace.core.errors import Refused
from headrace.core.runs import State
from headrace.core.shard import ShareShard
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import Settled
from headrace.log import record_codec
from headrace.log.record_codec import ShareJournal, StateBatch


def answers_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """Answers leave once the journal is written, whatever the durability asks for."""
    sound = ShardRuntime.__init__

    def hasty(self: Any, *args: Any, **settings: Any) -> None:
        sound(self, *args, **settings | {"fsync": False})

    patch.setattr(ShardRuntime, "__init__", hasty)


def deliveries_lost_in_recovery(patch: pytest.MonkeyPatch) -> None:
    """A restart takes what was released for what was never delivered."""
    sound = record_codec._read_batch

    def forgetful(source: Any) -> StateBatch:
        found = sound(source)
        return replace(found, deliveries=0) if found.state is State.AVAILABLE else found

    patch.setattr(record_codec, "_read_batch", forgetful)


def start_beyond_an_unfinished_record(patch: pytest.MonkeyPatch) -> None:
    """SPSO follows the head of what is not acquired, released records included."""

    def careless(self: SharePartition) -> None:
        start = self.start
        for run in self.runs:
            if not run.state.finished and not (run.state is State.AVAILABLE and run.deliveries):
                break
            start = run.span.last + 1
        if start > self.start:
            self.runs.drop_below(start)

    patch.setattr(SharePartition, "_follow_finished_head", careless)


def anybody_may_acknowledge(patch: pytest.MonkeyPatch) -> None:
    """Acknowledgements are taken from whoever sends them, as long as the record is acquired."""
    sound = SharePartition._not_held

    def trusting(self: SharePartition, span: Any, holder: Any) -> Refused | None:
        refused = sound(self, span, holder)
        return None if refused is not None and "another member" in refused.message else refused

    patch.setattr(SharePartition, "_not_held", trusting)


def snapshots_without_finished_records(patch: pytest.MonkeyPatch) -> None:
    """A snapshot mentions what is to be delivered again, and not what was accepted."""
    sound = record_codec._durable

    def short(runs: Any) -> list[StateBatch]:
        return [batch for batch in sound(runs) if batch.state is not State.ACKNOWLEDGED]

    patch.setattr(record_codec, "_durable", short)


def commits_not_written(patch: pytest.MonkeyPatch) -> None:
    """The commit of a lease is not written to the journal."""
    sound = ShareJournal.records

    def silent(self: ShareJournal, events: Any, written_at: Any) -> Any:
        return sound(self, [e for e in events if type(e).__name__ != "LeaseCommitted"], written_at)

    patch.setattr(ShareJournal, "records", silent)


def rejected_records_vanish(patch: pytest.MonkeyPatch) -> None:
    """Recovery forgets that dead letters are still to be written."""
    sound = ShareShard._apply_to_partition

    def lossy(self: ShareShard, event: Any) -> None:
        sound(self, event)
        if isinstance(event, Settled) and event.state is State.ARCHIVING:
            partition = self.partitions[event.key]
            partition.apply(replace(event, state=State.ARCHIVED))
            self.archiving.discard(event.key)

    patch.setattr(ShareShard, "_apply_to_partition", lossy)


PLANTED: list[Callable[[pytest.MonkeyPatch], None]] = [
    answers_before_the_sync,
    deliveries_lost_in_recovery,
    start_beyond_an_unfinished_record,
    anybody_may_acknowledge,
    snapshots_without_finished_records,
    commits_not_written,
    rejected_records_vanish,
]
IN_THE_CORE: list[Callable[[pytest.MonkeyPatch], None]] = [
    deliveries_lost_in_recovery,
    start_beyond_an_unfinished_record,
    anybody_may_acknowledge,
    snapshots_without_finished_records,
    commits_not_written,
]
