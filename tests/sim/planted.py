"""Bugs to plant in the broker, as somebody might write them; the simulator has to find each one."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from headrace.broker.runtime import ShardRuntime
from headrace.core import lasting
from headrace.core.archived import PageListed
from headrace.core.errors import Refused
from headrace.core.leases import LeaseCommitted, LeaseDiscarded, LeaseStaged
from headrace.core.runs import State
from headrace.core.shard_words import Forgotten, On
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import Acknowledge, Delayed, Event, Range, Settled, Started, Verdict
from headrace.log import share_batches, share_holds
from headrace.log.record_codec import ShareJournal

Plant = Callable[[pytest.MonkeyPatch], None]


def answers_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """Answers leave once the journal is written, whatever the durability asks for."""
    sound = ShardRuntime.__init__

    def hasty(self: Any, *args: Any, **settings: Any) -> None:
        sound(self, *args, **settings | {"fsync": False})

    patch.setattr(ShardRuntime, "__init__", hasty)


def acceptance_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """Who accepts is told so at once, for speed: nothing comes of it that others would see."""
    sound_decide, sound_wait = ShardRuntime.decide, ShardRuntime.when_durable

    def decide(self: Any, command: Any) -> Any:
        self.accepted = _accepts(command)
        return sound_decide(self, command)

    def hasty(self: Any, told: Any, reply: Any = None) -> None:
        if self._fsync and getattr(self, "accepted", False):
            told(reply)
        else:
            sound_wait(self, told, reply)

    patch.setattr(ShardRuntime, "decide", decide)
    patch.setattr(ShardRuntime, "when_durable", hasty)


def _accepts(command: Any) -> bool:
    if not isinstance(command, On) or not isinstance(command.command, Acknowledge):
        return False
    return all(Verdict.ACCEPT in batch.verdicts for batch in command.command.batches)


def lock_expiry_forgets_the_delivery(patch: pytest.MonkeyPatch) -> None:
    """A delivery whose lock ended counts as none, as if the record had never been taken."""
    sound = SharePartition.expired

    def forgetful(self: SharePartition, *args: Any) -> list[Event]:
        return [_not_counted(event) for event in sound(self, *args)]

    patch.setattr(SharePartition, "expired", forgetful)


def _not_counted(event: Event) -> Event:
    if isinstance(event, Settled) and event.state is State.AVAILABLE:
        return event._replace(deliveries=event.deliveries - 1)
    return event


def deliveries_lost_in_recovery(patch: pytest.MonkeyPatch) -> None:
    """A restart takes what was released for what was never delivered."""
    sound = share_batches.read

    def forgetful(source: Any) -> tuple[Range, ...]:
        return tuple(
            (first, last, state, 0 if state is State.AVAILABLE else deliveries, reason, hold)
            for first, last, state, deliveries, reason, hold in sound(source)
        )

    patch.setattr("headrace.log.record_codec.read", forgetful)


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

    def trusting(self: SharePartition, span: Any, held: Any, holder: Any) -> Refused | None:
        refused = sound(self, span, held, holder)
        return None if refused is not None and "another member" in refused.message else refused

    patch.setattr(SharePartition, "_not_held", trusting)


def snapshots_without_finished_records(patch: pytest.MonkeyPatch) -> None:
    """A snapshot mentions what is to be delivered again, and not what was accepted."""
    sound = lasting.durable

    def short(runs: Any) -> list[Range]:
        return [one for one in sound(runs) if one[2] is not State.ACKNOWLEDGED]

    patch.setattr("headrace.log.record_codec.durable", short)


def commits_not_written(patch: pytest.MonkeyPatch) -> None:
    """The commit of a lease is not written to the journal."""
    _not_written(patch, lambda event: isinstance(event, LeaseCommitted))


def parts_not_written(patch: pytest.MonkeyPatch) -> None:
    """What the tasks of a batch staged is not written to the journal."""
    _not_written(patch, lambda event: isinstance(event, LeaseStaged))


def delays_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What is released with a delay may be had at once."""
    sound = SharePartition.apply_all

    def hasty(self: SharePartition, events: Iterable[Event]) -> None:
        sound(self, [event for event in events if not isinstance(event, Delayed)])

    patch.setattr(SharePartition, "apply_all", hasty)


def resets_not_written(patch: pytest.MonkeyPatch) -> None:
    """The journal has where a queue began first, and not what an administrator made of it."""
    _not_written(patch, lambda event: isinstance(event, Started) and event.state_epoch > 0)


def deletions_not_written(patch: pytest.MonkeyPatch) -> None:
    """A group that was deleted is back after a restart."""
    _not_written(patch, lambda event: isinstance(event, Forgotten))


def lists_not_written(patch: pytest.MonkeyPatch) -> None:
    """What was archived without a dead letter is listed until the process ends."""
    _not_written(patch, lambda event: isinstance(event, PageListed))


def holders_not_written(patch: pytest.MonkeyPatch) -> None:
    """The journal says of archived records alone who had them."""
    patch.setattr(
        "headrace.log.share_holds.encoded",
        lambda rows, client, sound=share_holds.encoded: sound(
            [(n, hold if hold and hold.ended is None else None) for n, hold in rows], client
        ),
    )


def leases_keep_what_was_reset(patch: pytest.MonkeyPatch) -> None:
    """A lease that is read from the journal still has records of before a reset."""
    _not_written(patch, lambda event: isinstance(event, LeaseDiscarded))


def pruned_too_far(patch: pytest.MonkeyPatch) -> None:
    """The newest snapshot of all counts, instead of the oldest of the newest."""

    def hasty(self: Any, end: int) -> int:
        return max(self._newest.values(), default=end)

    patch.setattr(ShareJournal, "needed_from", hasty)


def _not_written(patch: pytest.MonkeyPatch, dropped: Callable[[Any], bool]) -> None:
    sound = ShareJournal.records

    def silent(self: ShareJournal, events: Any, written_at: Any) -> Any:
        return sound(self, [event for event in events if not dropped(event)], written_at)

    patch.setattr(ShareJournal, "records", silent)


def rejected_records_vanish(patch: pytest.MonkeyPatch) -> None:
    """Records that wait for their dead letters count as archived, with nothing to be copied."""
    sound = SharePartition.apply_all

    def lossy(self: SharePartition, events: Iterable[Event]) -> None:
        sound(self, [_archived(event) for event in events])

    patch.setattr(SharePartition, "apply_all", lossy)


def _archived(event: Event) -> Event:
    if isinstance(event, Settled) and event.state is State.ARCHIVING:
        return event._replace(state=State.ARCHIVED)
    return event


IN_THE_CORE: list[Plant] = [
    lock_expiry_forgets_the_delivery,
    deliveries_lost_in_recovery,
    start_beyond_an_unfinished_record,
    anybody_may_acknowledge,
    snapshots_without_finished_records,
    commits_not_written,
    parts_not_written,
    delays_forgotten,
    resets_not_written,
    deletions_not_written,
    lists_not_written,
    leases_keep_what_was_reset,
    pruned_too_far,
    holders_not_written,
]
