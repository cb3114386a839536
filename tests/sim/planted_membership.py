"""Bugs in members, sessions and assignments of share groups, as somebody might write them."""

from collections.abc import Mapping
from typing import Any

import pytest

from headrace.broker.handlers import describe_share_records
from headrace.core import assignors, share_group
from headrace.core.errors import Refused, Why
from headrace.core.runs import State
from headrace.core.shard_words import ReleaseMember
from headrace.core.share_group import ShareGroup
from headrace.core.share_partition import SharePartition
from headrace.core.share_session import ShareSessions
from headrace.core.share_words import Settled


def _accept(patch: pytest.MonkeyPatch, reason: Why) -> None:
    """Let no heartbeat be refused for a reason."""
    sound = ShareGroup.check

    def wrong(self: ShareGroup, *args: Any) -> Refused | None:
        refused = sound(self, *args)
        return None if refused is not None and refused.why is reason else refused

    patch.setattr(ShareGroup, "check", wrong)


def share_groups_have_no_size(patch: pytest.MonkeyPatch) -> None:
    """group.share.max.size does not count."""
    _accept(patch, Why.GROUP_FULL)


def member_epochs_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat is served at whatever member epoch."""
    _accept(patch, Why.STALE_EPOCH)


def share_sessions_have_no_bound(patch: pytest.MonkeyPatch) -> None:
    """group.share.max.share.sessions does not count."""
    sound = ShareSessions.__init__

    def wrong(self: ShareSessions, _: int, *args: Any) -> None:
        sound(self, 1 << 31, *args)

    patch.setattr(ShareSessions, "__init__", wrong)


def silent_members_stay(patch: pytest.MonkeyPatch) -> None:
    """A member without heartbeats stays in its group."""
    patch.setattr(ShareGroup, "next_deadline", lambda _: None)
    patch.setattr(ShareGroup, "expired", lambda *_: [])


def _assignor(patch: pytest.MonkeyPatch, wrong: Any) -> None:
    """Let `wrong` make assignments; its first argument is the sound assignor."""
    sound = assignors.share
    patch.setattr(share_group, "share", lambda *args: wrong(sound, *args))


def share_partitions_without_a_member(patch: pytest.MonkeyPatch) -> None:
    """With several members the last partition is assigned to none of them."""

    def wrong(sound: Any, subscriptions: Mapping[Any, Any], *args: Any) -> Any:
        assigned = sound(subscriptions, *args)
        every = frozenset().union(*assigned.values())
        if len(assigned) == 1 or not every:
            return assigned
        return {member: some - {max(every)} for member, some in assigned.items()}

    _assignor(patch, wrong)


def assignments_ignore_subscriptions(patch: pytest.MonkeyPatch) -> None:
    """Every member is assigned partitions of every topic of the group."""

    def wrong(sound: Any, subscriptions: Mapping[Any, frozenset[Any]], *args: Any) -> Any:
        every = frozenset().union(*subscriptions.values())
        return sound(dict.fromkeys(subscriptions, every), *args)

    _assignor(patch, wrong)


def one_member_has_every_partition(patch: pytest.MonkeyPatch) -> None:
    """The first member that subscribes to a topic has all of its partitions."""

    def wrong(sound: Any, subscriptions: Mapping[Any, frozenset[Any]], *args: Any) -> Any:
        topics = frozenset().union(*subscriptions.values())
        owners = {
            topic: min(member for member, some in subscriptions.items() if topic in some)
            for topic in topics
        }
        wanted = {
            member: frozenset(topic for topic in some if owners[topic] == member)
            for member, some in subscriptions.items()
        }
        return sound(wanted, *args)

    _assignor(patch, wrong)


def browsers_release_records(patch: pytest.MonkeyPatch) -> None:
    """A description of records ends the acquisitions that it contains."""
    sound = describe_share_records._described

    async def wrong(call: Any, services: Any) -> Any:
        answer = await sound(call, services)
        known = services.shares.machine(call.group).groups.get(call.group)
        for member in () if known is None else list(known.members):
            services.shares.shard(call.group).tell(ReleaseMember(call.group, member))
        return answer

    patch.setattr(describe_share_records, "_described", wrong)


def elapsed_locks_archive_nothing(patch: pytest.MonkeyPatch) -> None:
    """A record whose last delivery ends with its lock is available once more."""
    sound = SharePartition.expired

    def wrong(self: SharePartition, *args: Any) -> list[Any]:
        return [_available(event) for event in sound(self, *args)]

    patch.setattr(SharePartition, "expired", wrong)


def _available(event: Any) -> Any:
    if isinstance(event, Settled) and event.state in (State.ARCHIVED, State.ARCHIVING):
        return event._replace(state=State.AVAILABLE)
    return event
