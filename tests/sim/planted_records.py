"""Bugs in logs, idempotence, groups, clocks and damage checks, as somebody might write them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.checked_clock import CheckedClock
from headrace.broker.handlers import list_offsets
from headrace.broker.offset_expiry import OffsetExpiry, Swept
from headrace.broker.partition import Partition
from headrace.broker.topics import Topics
from headrace.core import offset_life, settling, subscription
from headrace.core.classic_group import ClassicGroup
from headrace.core.consumer_group import ConsumerGroup
from headrace.core.group_events import OffsetCommitted, OffsetDropped
from headrace.core.leases import Lease
from headrace.core.offsets import Offsets
from headrace.core.share_session import ShareSessions
from headrace.core.types import after
from headrace.log import compaction, damage, opening, producers
from headrace.log.checkpoints import StartOffsets
from headrace.log.compaction import Compaction
from headrace.log.group_records import GroupJournal
from headrace.log.manifest import CATALOGUE
from headrace.log.opening import Opening
from headrace.log.producers import Fenced, OutOfOrder, Producers
from headrace.log.segments import SegmentedLog
from headrace.wire import batches

Plant = Callable[[pytest.MonkeyPatch], None]


def _check(patch: pytest.MonkeyPatch, passes: Callable[[Any, Any, Any], bool]) -> None:
    """Let `Producers.check` accept what `passes` says: of itself, the header and the answer."""
    sound = Producers.check

    def lax(self: Producers, header: Any) -> Any:
        answer = sound(self, header)
        return None if passes(self, header, answer) else answer

    patch.setattr(Producers, "check", lax)


def _expected(self: Any, header: Any) -> int:
    return int(self._by_id[header.producer_id].last_sequence) + 1


def old_sequences_are_accepted(patch: pytest.MonkeyPatch) -> None:
    """A batch older than the last five is appended again."""
    _check(
        patch,
        lambda self, header, answer: (
            isinstance(answer, OutOfOrder)
            and header.producer_epoch == self._by_id[header.producer_id].epoch
            and header.base_sequence < _expected(self, header)
        ),
    )


def gaps_are_accepted(patch: pytest.MonkeyPatch) -> None:
    """A batch may leave sequences out."""
    _check(
        patch,
        lambda self, header, answer: (
            isinstance(answer, OutOfOrder) and header.base_sequence > _expected(self, header)
        ),
    )


def old_epochs_may_write(patch: pytest.MonkeyPatch) -> None:
    """A producer with a replaced epoch is not fenced."""
    _check(patch, lambda _self, _header, answer: isinstance(answer, Fenced))


def duplicates_are_appended(patch: pytest.MonkeyPatch) -> None:
    """No batch is a duplicate."""
    sound = Producers.check

    def forgetful(self: Producers, header: Any) -> Any:
        answer = sound(self, header)
        return answer if isinstance(answer, OutOfOrder | Fenced) else None

    patch.setattr(Producers, "check", forgetful)


def four_batches_are_remembered(patch: pytest.MonkeyPatch) -> None:
    """Of the five batches that a producer may have in flight the oldest is no duplicate."""
    patch.setattr(producers, "_OLDER_BYTES_MAX", 3 * producers._BATCH.size)


def only_the_newest_batch_is_a_duplicate(patch: pytest.MonkeyPatch) -> None:
    """A batch that is sent again is compared with the newest one of its producer."""
    patch.setattr(producers, "_OLDER_BYTES_MAX", 0)
    sound = Producers._remember

    def wrong(self: Producers, producer_id: int, *args: Any, **settings: Any) -> None:
        known = self._by_id.get(producer_id)
        if known is not None:
            self._by_id[producer_id] = known._replace(batches=b"")
        sound(self, producer_id, *args, **settings)

    patch.setattr(Producers, "_remember", wrong)


def batches_behind_a_failed_one_are_appended(patch: pytest.MonkeyPatch) -> None:
    """A batch is appended although the one before it, in flight with it, was not."""
    gaps_are_accepted(patch)


def producers_forgotten_in_recovery(patch: pytest.MonkeyPatch) -> None:
    """A start after a crash knows no idempotent producer."""
    sound = Opening.open

    def forgetful(self: Opening, *args: Any, **settings: Any) -> Any:
        opened = sound(self, *args, **settings)
        return dataclasses.replace(opened, producers=Producers())

    patch.setattr(Opening, "open", forgetful)


def producer_ids_given_twice(patch: pytest.MonkeyPatch) -> None:
    """Producer ids begin at 0 after every start."""

    async def next_id(self: Any) -> int:
        self.planted_id = getattr(self, "planted_id", -1) + 1
        return int(self.planted_id)

    patch.setattr(Topics, "next_producer_id", next_id)


def lower_commits_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """A commit below the last one does not count."""
    sound = Offsets.put

    def only_up(self: Offsets, topic: str, partition: int, committed: Any) -> None:
        known = self.get(topic, partition)
        if known is None or committed.offset >= known.offset:
            sound(self, topic, partition, committed)

    patch.setattr(Offsets, "put", only_up)


def commits_are_not_written(patch: pytest.MonkeyPatch) -> None:
    """A committed offset is in memory only."""
    _group_events_lost(patch, OffsetCommitted)


def expired_offsets_come_back(patch: pytest.MonkeyPatch) -> None:
    """The journal does not contain that an offset expired."""
    _group_events_lost(patch, OffsetDropped)


def _group_events_lost(patch: pytest.MonkeyPatch, kind: type) -> None:
    sound = GroupJournal.records

    def silent(self: GroupJournal, events: Any, written_at: Any) -> Any:
        return sound(self, [one for one in events if not isinstance(one, kind)], written_at)

    patch.setattr(GroupJournal, "records", silent)


def subscribed_offsets_expire(patch: pytest.MonkeyPatch) -> None:
    """Retention counts from the commit, whatever members subscribe to (KIP-211)."""
    sound = offset_life.terms_of

    def hasty(owner: Any, retention_minutes: int) -> Any:
        terms = sound(owner, retention_minutes)
        if isinstance(terms, offset_life.Terms):
            return dataclasses.replace(terms, subscribed=subscription.NOTHING)
        return terms

    patch.setattr(offset_life, "terms_of", hasty)


def offsets_never_expire(patch: pytest.MonkeyPatch) -> None:
    """The sweep finds nothing that is due."""

    async def idle(self: Any) -> Swept:
        return Swept()

    patch.setattr(OffsetExpiry, "sweep", idle)


def unsubscribed_offsets_stay(patch: pytest.MonkeyPatch) -> None:
    """Nothing of a group with members expires (KIP-496)."""
    sound = offset_life.terms_of

    def lasting(owner: Any, retention_minutes: int) -> Any:
        if not owner.is_empty:
            return offset_life.Spared.REBALANCING
        return sound(owner, retention_minutes)

    patch.setattr(offset_life, "terms_of", lasting)


def old_generations_may_commit(patch: pytest.MonkeyPatch) -> None:
    """The generation of a commit is not compared."""
    patch.setattr(ClassicGroup, "check_generation", lambda _self, _generation: None)


def two_members_own_a_partition(patch: pytest.MonkeyPatch) -> None:
    """A partition is given to its next member before the last one gave it up (KIP-848)."""
    patch.setattr(ConsumerGroup, "holder", lambda _self, _partition: None)


def compaction_drops_the_newest(patch: pytest.MonkeyPatch) -> None:
    """The cleaner keeps the first value of a key."""
    sound = Compaction._stays

    def wrong(self: Any, header: Any, one: Any) -> bool:
        if one.offset < self.end and one.key is not None and not one.is_tombstone:
            return bool(self._last_offsets.get(one.key, one.offset) > one.offset)
        return sound(self, header, one)

    patch.setattr(Compaction, "_stays", wrong)


def tombstones_go_at_once(patch: pytest.MonkeyPatch) -> None:
    """The cleaner removes a tombstone with the records that it deletes."""
    sound = Compaction._stays

    def hasty(self: Any, header: Any, one: Any) -> bool:
        stays = sound(self, header, one)
        return stays and not (one.is_tombstone and one.offset < self.end)

    patch.setattr(Compaction, "_stays", hasty)


def tombstones_delete_later_values(patch: pytest.MonkeyPatch) -> None:
    """A key that was deleted once stays deleted."""
    sound = Compaction._stays

    def wrong(self: Any, header: Any, one: Any) -> bool:
        deleted = self.__dict__.setdefault("planted", set())
        if one.is_tombstone:
            deleted.add(one.key)
        elif one.key in deleted and one.offset < self.end:
            return False
        return sound(self, header, one)

    patch.setattr(Compaction, "_stays", wrong)


def cleaned_timestamps_shift(patch: pytest.MonkeyPatch) -> None:
    """A batch with tombstones gets its delete horizon, and its records keep their deltas."""
    patch.setattr(compaction, "moved", lambda body, one, _shift: body[one.start : one.end])


def headers_are_dropped(patch: pytest.MonkeyPatch) -> None:
    """A batch is stored with the keys and values of its records alone."""
    sound = Partition.append

    def wrong(self: Any, data: Any, headers: Any, **settings: Any) -> Any:
        (one,) = headers
        if not self.topic.internal:
            data = bytearray(
                batches.build(
                    [record._replace(headers=()) for record in batches.records(data)],
                    producer_id=one.producer_id,
                    producer_epoch=one.producer_epoch,
                    base_sequence=one.base_sequence,
                )
            )
            headers = [batches.read_header(data)]
        return sound(self, data, headers, **settings)

    patch.setattr(Partition, "append", wrong)


def look_ups_by_time_are_late(patch: pytest.MonkeyPatch) -> None:
    """A look-up by time finds the record behind the one that it should."""
    sound = list_offsets._find

    async def wrong(partition: Any, timestamp: int, threads: Any) -> tuple[int, int]:
        offset, time = await sound(partition, timestamp, threads)
        return (offset + 1, time) if timestamp >= 0 and offset >= 0 else (offset, time)

    patch.setattr(list_offsets, "_find", wrong)


def produce_is_answered_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """A response to Produce leaves once the batch is written."""

    async def hasty(self: Any, *, cuts: int | None = None) -> None:
        """Wait for nothing."""

    patch.setattr(Partition, "durable", hasty)
    patch.setattr(Partition, "_waits_for_disk", property(lambda _self: False))


def deleted_records_come_back(patch: pytest.MonkeyPatch) -> None:
    """The start of a log is in memory only."""
    patch.setattr(StartOffsets, "put_all", lambda *_: None)


def one_record_too_many_is_deleted(patch: pytest.MonkeyPatch) -> None:
    """DeleteRecords deletes the record at the offset, too."""
    sound = SegmentedLog.advance_start
    patch.setattr(
        SegmentedLog,
        "advance_start",
        lambda self, offset: sound(self, min(offset + 1, self.end_offset)),
    )


def reads_skip_a_batch(patch: pytest.MonkeyPatch) -> None:
    """A read in a later segment begins one record late."""
    sound = SegmentedLog.read_bytes

    def skipping(self: Any, offset: int, *args: Any, **settings: Any) -> Any:
        late = offset + 1 if offset % 7 == 3 and offset + 1 < self.end_offset else offset
        return sound(self, late, *args, **settings)

    patch.setattr(SegmentedLog, "read_bytes", skipping)


def torn_appends_stay(patch: pytest.MonkeyPatch) -> None:
    """What a failed append left is not cut off before the next one."""

    def careless(self: Any) -> None:
        self._torn = False

    patch.setattr(SegmentedLog, "_require_whole", careless)


def recovery_cuts_the_last_batch(patch: pytest.MonkeyPatch) -> None:
    """A start after a crash takes the last batch for torn, except that of the catalogue.

    Without its topics the broker would refuse the clients that are to see what is lost.
    """
    sound = Opening._checked

    def hasty(self: Any, base: int, producers: Any) -> Any:
        segment = sound(self, base, producers)
        if segment.size and self._folder != CATALOGUE:
            position = segment.position_after(segment.end_offset - 1)
            segment.file.truncate(position)
            segment.cut(position)
        return segment

    patch.setattr(Opening, "_checked", hasty)


def all_damage_counts_as_torn(patch: pytest.MonkeyPatch) -> None:
    """Damage anywhere in the last segment is cut off."""
    patch.setattr(damage, "require_torn", lambda *_args, **_settings: None)
    patch.setattr(opening, "_require_continuity", lambda *_: None)

    def lax(self: Any, base: int, producers: Any) -> Any:
        self._point.claim = self._point.claim._replace(size=0)
        return sound(self, base, producers)

    sound = Opening._checked
    patch.setattr(Opening, "_checked", lax)


def missing_segments_pass(patch: pytest.MonkeyPatch) -> None:
    """A log may have lost the segments that its recovery point names, and its end."""
    patch.setattr(Opening, "_require_claimed_segments", lambda *_: None)
    patch.setattr(Opening, "_require_end", lambda *_: None)


def missing_folders_pass(patch: pytest.MonkeyPatch) -> None:
    """A partition whose folder is missing begins anew, empty."""
    patch.setattr(Partition, "refuse", lambda *_: None)


def retention_trusts_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """What decides about deletion is the wall clock as it is."""
    patch.setattr(CheckedClock, "proven", lambda self: self.wall())


def locks_end_early(patch: pytest.MonkeyPatch) -> None:
    """An acquisition lock ends a millisecond before its time."""
    patch.setattr("headrace.core.share_partition.after", lambda start, ms: after(start, ms - 1))


def session_epochs_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A share session takes every epoch."""
    sound = ShareSessions.decide

    def lax(self: Any, command: Any) -> Any:
        known = self._sessions.get(command.key)
        if known is not None and command.epoch > 0:
            command = dataclasses.replace(command, epoch=known.next_epoch)
        return sound(self, command)

    patch.setattr(ShareSessions, "decide", lax)


def old_drivers_are_served(patch: pytest.MonkeyPatch) -> None:
    """A driver that another one replaced is not fenced."""
    patch.setattr(Lease, "fence", lambda *_: None)


def one_delivery_too_many(patch: pytest.MonkeyPatch) -> None:
    """A record is delivered once more than the limit allows."""
    sound = settling.Settling.__init__

    def lax(self: Any, key: Any, policy: Any, *args: Any, **settings: Any) -> None:
        more = dataclasses.replace(policy, delivery_limit=policy.delivery_limit + 1)
        sound(self, key, more, *args, **settings)

    patch.setattr(settling.Settling, "__init__", lax)
