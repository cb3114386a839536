"""Offsets that the coordinator commits by a group's reset policy (KIP-842), for clients without it.

A client whose group has no offset for a partition, or one outside the log, follows a rule of its
own, and with `latest` skips what a new partition got meanwhile. It does not come to that where an
offset is committed in time: when partitions are added, and when a member asks. What is to be
committed is `reset.decide`'s answer; where that refuses, the client's rule holds. Decided against
what is committed at that moment, so no commit of a client is overwritten unseen.
"""

from typing import assert_never
from uuid import UUID

from headrace.core.consumer_words import ConsumerOutside
from headrace.core.group_events import Event, OffsetCommitted
from headrace.core.group_words import (
    TIME_UNKNOWN,
    Cause,
    Committed,
    Extent,
    ResetPolicy,
    Seed,
)
from headrace.core.machine import Decided
from headrace.core.offset_life import Owner
from headrace.core.offsets import Offsets, is_same
from headrace.core.reset import Missing, OutOfRange, Outside, Reset, decide, was_added
from headrace.core.types import Now

_NO_EPOCH = -1  # so that no client takes the offset for one of a log that was cut since
_UNREAD = 0  # the offset of who has read nothing of a partition yet
_NONE = Offsets()


def seed(
    command: Seed,
    owner: Owner | None,
    offsets: Offsets | None,
    outside: ConsumerOutside,
    now: Now,
) -> Decided[Event]:
    """The offsets that the policy says, where there are none, or such as it does not let stand."""
    policy = outside.reset_policy(command.group)
    have = offsets or _NONE
    events: list[Event] = []
    if policy is None or owner is None:
        return Decided(events, 0)
    topics = {extent.topic: extent.topic_id for extent in command.extents}
    used = {
        name
        for name, topic_id in topics.items()
        if _is_there(name, topic_id, outside)
        and (
            owner.reads(name, outside.matching)
            or (command.added and _has_some(have, name, topic_id))
        )
    }
    for extent in command.extents:
        if extent.topic not in used:
            continue
        known = have.find(extent.topic, extent.partition, extent.topic_id)
        found = _found(command, extent, known, owner, policy)
        if found is None:
            continue
        offset = _offset(decide(found, policy.strategy, policy.out_of_range), extent)
        if offset is not None:
            committed = Committed(offset, _NO_EPOCH, "", now.wall, None, extent.topic_id)
            events.append(
                OffsetCommitted(
                    command.group,
                    extent.topic,
                    extent.partition,
                    committed,
                    Cause.SEEDED,
                    _why(found, policy, command),
                )
            )
    return Decided(events, len(events))


def _is_there(topic: str, topic_id: UUID, outside: ConsumerOutside) -> bool:
    """Whether it still is that topic: another of its name may have offsets by now."""
    known = outside.topic(topic)
    return known is not None and known.id == topic_id


def _has_some(have: Offsets, topic: str, topic_id: UUID) -> bool:
    """Whether the group has committed anything for this topic, and not for an earlier namesake."""
    return any(is_same(one.topic_id, topic_id) for one in have.by_topic.get(topic, {}).values())


def _found(
    command: Seed, extent: Extent, known: Committed | None, owner: Owner, policy: ResetPolicy
) -> Missing | Outside | None:
    """What `reset` is to judge; None where somebody committed to a new partition already."""
    if known is None or known.offset < 0:  # to a client that is none either
        since = owner.began if owner.began != TIME_UNKNOWN else None
        return Missing(command.added or was_added(extent.first, since))
    if command.added:
        return None
    if known.offset == _UNREAD < extent.start and policy.out_of_range is OutOfRange.NONE:
        return Missing(added=True)  # it was seeded when the partition was, and overtaken since
    return Outside(known.offset, extent.start, extent.end)


def _offset(reset: Reset, extent: Extent) -> int | None:
    match reset:
        case Reset.TO_EARLIEST:
            return extent.start
        case Reset.TO_LATEST:
            return extent.end
        case Reset.KEEP | Reset.REFUSE:
            return None
        case _:
            assert_never(reset)


def _why(found: Missing | Outside, policy: ResetPolicy, command: Seed) -> str:
    """By what, for people: the rule, what it met, and who asked."""
    asked = f" ({command.by})" if command.by else ""
    match found:
        case Missing(added):
            what = "new partition" if added else "nothing committed"
            return f"{policy.strategy}: {what}{asked}"
        case Outside():
            is_near = policy.out_of_range is OutOfRange.NEAREST
            rule = policy.out_of_range if is_near else policy.strategy
            return f"{rule}: outside the log{asked}"
        case _:
            assert_never(found)
