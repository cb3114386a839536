"""Bugs in share groups that break rules of KIP-932, as somebody might write them."""

import dataclasses
from typing import Any

import pytest

from headrace.broker import share_bounds, shares
from headrace.broker.runtime import ShardRuntime
from headrace.broker.share_polls import SharePoll
from headrace.core import lost_end, offset_life, settling, shard, share_admin, share_starts
from headrace.core.errors import Why
from headrace.core.runs import State
from headrace.core.shard_words import Committed, LogEndLost
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import Acquire, Acquired, Policy, Replayed, Started, Verdict


def _outcome(patch: pytest.MonkeyPatch, verdict: Verdict, state: State) -> None:
    """Let a verdict make something else of records."""
    sound = settling.Settling._outcome

    def wrong(self: Any, status: Any, said: Verdict, reason: Any) -> Any:
        return (state, None) if said is verdict else sound(self, status, said, reason)

    patch.setattr(settling.Settling, "_outcome", wrong)


def rejected_records_are_delivered_again(patch: pytest.MonkeyPatch) -> None:
    """Reject does what release does."""
    _outcome(patch, Verdict.REJECT, State.AVAILABLE)


def released_records_are_finished(patch: pytest.MonkeyPatch) -> None:
    """Release archives, at whatever delivery."""
    _outcome(patch, Verdict.RELEASE, State.ARCHIVED)


def accepted_records_are_delivered_again(patch: pytest.MonkeyPatch) -> None:
    """Accept does what release does."""
    _outcome(patch, Verdict.ACCEPT, State.AVAILABLE)


def deliveries_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """Every delivery is the first one."""
    sound = SharePartition._acquire

    def wrong(self: SharePartition, *args: Any) -> Any:
        return [
            one._replace(deliveries=1) if isinstance(one, Acquired) else one
            for one in sound(self, *args)
        ]

    patch.setattr(SharePartition, "_acquire", wrong)


def windows_have_no_bound(patch: pytest.MonkeyPatch) -> None:
    """As many records are in flight as members fetch."""
    sound = SharePartition._acquire

    def wrong(self: SharePartition, command: Acquire, *args: Any) -> Any:
        return sound(self, dataclasses.replace(command, window=1 << 30), *args)

    patch.setattr(SharePartition, "_acquire", wrong)


def acquired_batches_are_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """The acquired ranges of a response are sorted by nothing."""
    sound = SharePoll.outcome

    def wrong(self: SharePoll, *args: Any) -> Any:
        return [one._replace(acquired=list(reversed(one.acquired))) for one in sound(self, *args)]

    patch.setattr(SharePoll, "outcome", wrong)


def _starts(patch: pytest.MonkeyPatch, wrong: Any) -> None:
    sound = share_starts.started
    patch.setattr(shard, "started", lambda *args, **settings: wrong(sound, *args, **settings))


def added_partitions_begin_at_their_end(patch: pytest.MonkeyPatch) -> None:
    """A partition that is added to a known topic begins where any other does."""
    _starts(patch, lambda sound, group, _known, views, **told: sound(group, (), views, **told))


def subscriptions_begin_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """share.auto.offset.reset does not count."""
    _starts(patch, lambda sound, *args, **_told: sound(*args, earliest=False))


def subscriptions_begin_at_the_start(patch: pytest.MonkeyPatch) -> None:
    """A subscription begins at the first record where nothing else is set."""
    _starts(patch, lambda sound, *args, **_told: sound(*args, earliest=True))


def groups_with_members_are_reset(patch: pytest.MonkeyPatch) -> None:
    """An administrator may set where a group begins although it has members."""
    patch.setattr(share_admin.Queue, "is_empty", lambda *_: True)


def resets_keep_what_was_delivered(patch: pytest.MonkeyPatch) -> None:
    """A reset moves SPSO, and keeps the states of the records behind it."""
    sound = SharePartition._change

    def wrong(self: SharePartition, event: Any) -> None:
        if isinstance(event, Started) and self.start <= event.start <= self.end:
            self.runs.drop_below(event.start)
            self.state_epoch = event.state_epoch
        else:
            sound(self, event)

    patch.setattr(SharePartition, "_change", wrong)


def lock_durations_of_groups_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """share.record.lock.duration.ms of a group does not count; the broker's does."""
    sound = Policy

    def wrong(**settings: Any) -> Any:
        return sound(**settings | {"lock_ms": 1000})

    patch.setattr(shares, "Policy", wrong)


def share_groups_may_commit(patch: pytest.MonkeyPatch) -> None:
    """The type of a group is not compared when offsets are committed."""
    sound = offset_life._check_commit

    def wrong(command: Any, owner: Any, outside: Any) -> Any:
        refused = sound(command, owner, outside)
        is_type = refused is not None and refused.why is Why.WRONG_GROUP_TYPE
        return None if is_type else refused

    patch.setattr(offset_life, "_check_commit", wrong)


def state_is_not_recovered(patch: pytest.MonkeyPatch) -> None:
    """A restart recovers SPSO, and none of the records behind it."""
    sound = SharePartition.apply_all

    def wrong(self: SharePartition, events: Any) -> None:
        sound(self, [one for one in events if not isinstance(one, Replayed)])

    patch.setattr(SharePartition, "apply_all", wrong)


def lost_ends_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """SPSO and the states behind it stay, although a power cut took the end of the log."""
    patch.setattr(share_bounds, "_log_end_lost", lambda key, _: LogEndLost(key, 1 << 62))


def states_of_lost_records_stay(patch: pytest.MonkeyPatch) -> None:
    """SPSO goes back to the end of the log, and the states behind it stay for new records."""
    patch.setattr(lost_end, "_below", lambda ranges, _: list(ranges))


def leases_keep_lost_records(patch: pytest.MonkeyPatch) -> None:
    """A lease still has what it acquired of records that a power cut took."""
    patch.setattr(lost_end, "discarded", lambda *_: [])


def lost_ends_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    """What a group forgets of lost records is written, and may itself be lost."""

    async def hasty(*_: Any) -> None:
        pass

    patch.setattr(share_bounds, "_keep", hasty)


def portions_are_written_apart(patch: pytest.MonkeyPatch) -> None:
    """Each portion of a commit is written once it is decided, and not with the last one."""
    patch.setattr(ShardRuntime, "_is_amid_portions", lambda _: False)


def commits_are_answered_before_their_last_portion(patch: pytest.MonkeyPatch) -> None:
    """A commit is answered when its first portion is durable; the rest is decided meanwhile."""
    sound = ShardRuntime._finish

    async def wrong(self: Any, reply: Any, told: Any, machine: Any) -> None:
        if reply.prepare is not None:  # it is a commit
            self._amid = None
            self.when_durable(told, Committed(0, 0, 0, 0))
            told = _nobody
        await sound(self, reply, told, machine)

    patch.setattr(ShardRuntime, "_finish", wrong)


def _nobody(reply: object) -> None:
    """The caller has its answer."""
