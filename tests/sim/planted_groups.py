"""Bugs in committed offsets and static members, as somebody might write them.

The parts break rules of KIP-211, of KIP-496, of assignments, and of KIP-345 and KIP-848.
"""

import dataclasses
from collections.abc import Callable, Container, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from headrace.broker.group_meters import GroupMeters
from headrace.core import consumer_checks, consumer_decision, offset_life, subscription
from headrace.core.classic_group import ClassicGroup
from headrace.core.consumer_decision import ConsumerDecision
from headrace.core.consumer_events import ConsumerGroupStored
from headrace.core.consumer_topics import assigned_by
from headrace.core.errors import Refused, Why
from headrace.core.group_events import GroupStored, OffsetCommitted, OffsetDropped
from headrace.core.group_words import TIME_UNKNOWN, Cause, Gone
from headrace.core.machine import Decided
from headrace.core.offset_life import Spared, Terms
from headrace.core.rebalance import Decision
from headrace.log.group_records import GroupJournal


class Altered:
    """An owner of offsets that shows other values of some properties."""

    def __init__(self, owner: Any, **values: Any) -> None:
        self.__dict__.update(values)
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._owner, name)


def _terms(patch: pytest.MonkeyPatch, wrong: Callable[[Any, Any], Any]) -> None:
    """Let `wrong` decide, of an owner and its sound terms, how long offsets stay."""
    sound = offset_life.terms_of
    patch.setattr(
        offset_life, "terms_of", lambda owner, minutes: wrong(owner, sound(owner, minutes))
    )


def _journal(patch: pytest.MonkeyPatch, written: Callable[[Any], Any]) -> None:
    """Write `written` of each event to the journal of groups; None writes nothing."""
    sound = GroupJournal.records

    def wrong(self: GroupJournal, events: Sequence[Any], written_at: Any) -> Any:
        kept = [one for one in map(written, events) if one is not None]
        return sound(self, kept, written_at)

    patch.setattr(GroupJournal, "records", wrong)


# ---- KIP-211


def empty_groups_expire_by_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Retention counts from each commit, and not from when the group became empty."""

    def wrong(_owner: Any, terms: Any) -> Any:
        is_terms = isinstance(terms, Terms)
        return dataclasses.replace(terms, empty_since=TIME_UNKNOWN) if is_terms else terms

    _terms(patch, wrong)


def first_emptiness_counts(patch: pytest.MonkeyPatch) -> None:
    """A group that is active in between keeps the time at which it was empty first."""
    sound = ClassicGroup.empty_since.fget  # type: ignore[attr-defined]  # a property
    firsts: WeakKeyDictionary[ClassicGroup, Any] = WeakKeyDictionary()

    def wrong(self: ClassicGroup) -> Any:
        since = sound(self)
        return since if since == TIME_UNKNOWN else firsts.setdefault(self, since)

    patch.setattr(ClassicGroup, "empty_since", property(wrong))


def emptiness_is_forgotten_in_recovery(patch: pytest.MonkeyPatch) -> None:
    """The journal does not contain since when a group is empty."""

    def written(event: Any) -> Any:
        if isinstance(event, GroupStored) and not event.snapshot.members:
            unknown = dataclasses.replace(event.snapshot, state_at=TIME_UNKNOWN)
            return dataclasses.replace(event, snapshot=unknown)
        if isinstance(event, ConsumerGroupStored):
            return dataclasses.replace(event, empty_since=TIME_UNKNOWN)
        return event

    _journal(patch, written)


def rebalancing_groups_lose_offsets(patch: pytest.MonkeyPatch) -> None:
    """A group whose members rejoin counts as one that subscribes to nothing."""

    def wrong(_owner: Any, terms: Any) -> Any:
        if terms is Spared.REBALANCING:
            return Terms(subscription.NOTHING, TIME_UNKNOWN, 60_000)
        return terms

    _terms(patch, wrong)


def unsubscribed_offsets_expire_at_once(patch: pytest.MonkeyPatch) -> None:
    """An active group keeps offsets only of topics that it subscribes to."""

    def wrong(owner: Any, terms: Any) -> Any:
        if isinstance(terms, Terms) and not owner.is_empty:
            return dataclasses.replace(terms, retention_ms=0)
        return terms

    _terms(patch, wrong)


def custom_retention_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """The retention that an old client sets for its offset does not count."""
    sound = offset_life.commit

    def wrong(command: Any, *args: Any) -> Any:
        return sound(command._replace(retention_ms=None), *args)

    patch.setattr(offset_life, "commit", wrong)


def standalone_offsets_never_expire(patch: pytest.MonkeyPatch) -> None:
    """Offsets of a group that never had members stay."""

    def wrong(owner: Any, terms: Any) -> Any:
        return Spared.REBALANCING if owner.protocol_type is None else terms

    _terms(patch, wrong)


def standalone_offsets_expire_together(patch: pytest.MonkeyPatch) -> None:
    """All offsets of a standalone consumer go with the oldest of them."""
    sound = offset_life._due

    def wrong(owner: Any, seen: Any, *args: Any) -> Any:
        every = list(seen)
        due = list(sound(owner, every, *args))
        if owner.protocol_type is None and due:
            return [
                OffsetDropped(owner.name, topic, index, Cause.EXPIRY) for topic, index, _ in every
            ]
        return due

    patch.setattr(offset_life, "_due", wrong)


def expired_groups_stay(patch: pytest.MonkeyPatch) -> None:
    """A group whose offsets all expired is listed for ever."""
    sound = offset_life.expire

    def wrong(command: Any, owners: Any, *args: Any) -> Any:
        kept = {name: Altered(one, is_awaited=True) for name, one in owners.items()}
        return sound(command, kept, *args)

    patch.setattr(offset_life, "expire", wrong)


def metadata_is_not_written(patch: pytest.MonkeyPatch) -> None:
    """The journal has the offset of a commit, and not its metadata."""

    def written(event: Any) -> Any:
        if not isinstance(event, OffsetCommitted):
            return event
        return event._replace(committed=dataclasses.replace(event.committed, metadata=""))

    _journal(patch, written)


# ---- KIP-496


def _deletions(patch: pytest.MonkeyPatch, wrong: Callable[..., Any]) -> None:
    """Let `wrong` decide deletions; its first argument is the sound decision."""
    sound = offset_life.delete_offsets
    patch.setattr(offset_life, "delete_offsets", lambda *args: wrong(sound, *args))


def offset_deletions_are_not_written(patch: pytest.MonkeyPatch) -> None:
    """A deleted offset is back after a restart."""

    def written(event: Any) -> Any:
        is_deletion = isinstance(event, OffsetDropped) and event.cause is Cause.DELETION
        return None if is_deletion else event

    _journal(patch, written)


def offsets_in_use_are_deleted(patch: pytest.MonkeyPatch) -> None:
    """What members subscribe to does not protect offsets from deletion."""

    def wrong(sound: Any, command: Any, owner: Any, *args: Any) -> Any:
        free = None if owner is None else Altered(owner, subscribed=frozenset())
        return sound(command, free, *args)

    _deletions(patch, wrong)


def active_groups_keep_every_offset(patch: pytest.MonkeyPatch) -> None:
    """No offset of a group with members can be deleted."""

    def wrong(sound: Any, command: Any, owner: Any, *args: Any) -> Any:
        if owner is not None and not owner.is_empty:
            return Refused(Why.NON_EMPTY_GROUP, "The group has members.")
        return sound(command, owner, *args)

    _deletions(patch, wrong)


def unknown_groups_have_deletions(patch: pytest.MonkeyPatch) -> None:
    """A deletion in a group that does not exist succeeds."""

    def wrong(sound: Any, command: Any, owner: Any, *args: Any) -> Any:
        if owner is None:
            return Decided([], [None] * len(command.partitions))
        return sound(command, owner, *args)

    _deletions(patch, wrong)


def other_types_are_read_as_consumers(patch: pytest.MonkeyPatch) -> None:
    """The metadata of every protocol type is taken for a subscription."""

    def wrong(sound: Any, command: Any, owner: Any, *args: Any) -> Any:
        if owner is not None and owner.protocol_type is not None:
            owner = Altered(owner, protocol_type="consumer")
        return sound(command, owner, *args)

    _deletions(patch, wrong)


def offsets_of_other_types_expire(patch: pytest.MonkeyPatch) -> None:
    """A group of another protocol type counts as one that subscribes to nothing."""

    def wrong(_owner: Any, terms: Any) -> Any:
        if terms is Spared.OTHER_PROTOCOL:
            return Terms(subscription.NOTHING, TIME_UNKNOWN, 60_000)
        return terms

    _terms(patch, wrong)


def later_subscriptions_are_not_read(patch: pytest.MonkeyPatch) -> None:
    """A subscription of a version above 0 names no topic."""
    sound = subscription.subscribed

    def wrong(metadata: Any) -> Container[str]:
        return sound(one for one in metadata if one[:2] == b"\x00\x00")

    patch.setattr(subscription, "subscribed", wrong)


def deletions_are_not_metered(patch: pytest.MonkeyPatch) -> None:
    """Deleted offsets are not counted."""
    _not_metered(patch, lambda one: getattr(one, "cause", None) is Cause.DELETION)


def expirations_are_not_metered(patch: pytest.MonkeyPatch) -> None:
    """Expired offsets are not counted."""
    _not_metered(patch, lambda one: getattr(one, "cause", None) is Cause.EXPIRY)


def commits_are_not_metered(patch: pytest.MonkeyPatch) -> None:
    """Committed offsets are not counted."""
    _not_metered(patch, lambda one: isinstance(one, OffsetCommitted))


def rebalances_are_not_metered(patch: pytest.MonkeyPatch) -> None:
    """Completed rebalances are not counted."""
    _not_metered(patch, lambda one: isinstance(one, GroupStored))


def protocol_types_are_mixed(patch: pytest.MonkeyPatch) -> None:
    """A group takes members of every protocol type."""
    patch.setattr(ClassicGroup, "supports", lambda *_: True)


def _not_metered(patch: pytest.MonkeyPatch, is_left_out: Callable[[Any], bool]) -> None:
    sound = GroupMeters.count

    def wrong(self: GroupMeters, events: Sequence[Any]) -> None:
        sound(self, [one for one in events if not is_left_out(one)])

    patch.setattr(GroupMeters, "count", wrong)


# ---- assignments


def partitions_without_a_member(patch: pytest.MonkeyPatch) -> None:
    """The broker's assignor leaves out the last of several partitions (KIP-848)."""
    sound = assigned_by

    def wrong(*args: Any) -> Any:
        assigned = sound(*args)
        every = sorted(one for some in assigned.values() for one in some)
        return {
            member: frozenset(one for one in some if len(every) < 2 or one != every[-1])
            for member, some in assigned.items()
        }

    patch.setattr(consumer_decision, "assigned_by", wrong)


def followers_are_assigned_nothing(patch: pytest.MonkeyPatch) -> None:
    """Of the assignments that the leader of a classic group sends, only its own is kept."""
    sound = Decision._assign

    def wrong(self: Any, command: Any) -> None:
        own = {one: held for one, held in command.assignments.items() if one == command.member}
        sound(self, dataclasses.replace(command, assignments=own))

    patch.setattr(Decision, "_assign", wrong)


# ---- static members: KIP-345, KIP-848


def returning_members_rebalance(patch: pytest.MonkeyPatch) -> None:
    """A static member that returns in time causes a rebalance."""
    sound, elected = Decision._replace, ClassicGroup.elected

    def wrong(self: Any, *args: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ClassicGroup, "elected", lambda group: elected(group) + "?")
            return sound(self, *args)

    patch.setattr(Decision, "_replace", wrong)


def old_static_members_are_served(patch: pytest.MonkeyPatch) -> None:
    """The instance id alone says who a static member is."""
    sound = ClassicGroup.check

    def wrong(self: ClassicGroup, member: Any, instance: str | None) -> Refused | None:
        known = instance is not None and self.with_instance(instance) is not None
        return None if known else sound(self, member, instance)

    patch.setattr(ClassicGroup, "check", wrong)


def instances_are_shared(patch: pytest.MonkeyPatch) -> None:
    """A member may join under the instance id of one that is there."""
    sound = consumer_checks.check_instance

    def wrong(group: Any, beat: Any) -> Refused | None:
        refused = sound(group, beat)
        in_use = refused is not None and refused.why is Why.INSTANCE_IN_USE
        return None if in_use else refused

    patch.setattr(consumer_checks, "check_instance", wrong)


def places_of_absent_members_are_given_away(patch: pytest.MonkeyPatch) -> None:
    """A static member that is away for a moment counts as gone."""

    def wrong(self: Any, member: Any) -> None:
        self._remove({member: Gone.LEFT})

    patch.setattr(ConsumerDecision, "_step_out", wrong)
