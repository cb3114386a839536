"""What the log tells of consumer groups: generations, who is gone and why, who touched offsets.

Commits are not told; `headrace offsets history` knows them.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence

from headrace.core.consumer_events import (
    ConsumerEvent,
    ConsumerGroupDropped,
    ConsumerGroupStored,
    ConsumerMemberDropped,
    ConsumerMemberStored,
)
from headrace.core.group_events import (
    Event,
    GroupDropped,
    GroupStored,
    MemberGone,
    OffsetCommitted,
    OffsetDropped,
)
from headrace.core.group_words import TIME_UNKNOWN, Cause

log = logging.getLogger("headrace.broker")

_PLACES_TOLD = 20
_EMPTY = "group %s has no members left; its offsets stay for offsets.retention.minutes"


def tell(events: Sequence[Event]) -> None:
    """A listener of shards: events were decided and applied."""
    moved: defaultdict[tuple[str, Cause, str], int] = defaultdict(int)
    seeded: dict[tuple[str, str, str], list[OffsetCommitted]] = {}
    for event in events:
        match event:
            case OffsetCommitted():
                if event.cause is Cause.RESET:
                    moved[event.group, event.cause, event.by] += 1
                elif event.cause is Cause.SEEDED:
                    seeded.setdefault((event.group, event.topic, event.by), []).append(event)
            case OffsetDropped():
                if event.cause is Cause.DELETION:
                    moved[event.group, event.cause, event.by] += 1
            case MemberGone(group, member, why):
                log.info("group %s: member %s %s", group, member, why.value)
            case GroupStored() | GroupDropped():
                _tell_classic(event)
            case (
                ConsumerGroupStored()
                | ConsumerMemberStored()
                | ConsumerMemberDropped()
                | ConsumerGroupDropped()
            ):
                _tell_consumer(event)
    for (group, cause, by), count in moved.items():
        log.info("group %s: %s of %d offsets by %s", group, cause.value, count, by)
    for (group, topic, by), places in seeded.items():
        _tell_seeded(group, topic, by, places)


def _tell_seeded(group: str, topic: str, by: str, places: Sequence[OffsetCommitted]) -> None:
    told = [f"{one.partition} at {one.committed.offset}" for one in places[:_PLACES_TOLD]]
    if len(places) > _PLACES_TOLD:
        told.append(f"{len(places) - _PLACES_TOLD} more")
    log.info("group %s: seeded %s: partition %s, by %s", group, topic, ", ".join(told), by)


def _tell_classic(event: GroupStored | GroupDropped) -> None:
    if isinstance(event, GroupDropped):
        _tell_end(event)
    elif not event.snapshot.members:
        if event.snapshot.generation:  # else its first member is yet to come
            log.info(_EMPTY, event.group)
    elif event.completes:
        log.info(
            "group %s: generation %d has %d members, assigned by %s",
            event.group,
            event.snapshot.generation,
            len(event.snapshot.members),
            event.snapshot.protocol,
        )


def _tell_consumer(event: ConsumerEvent) -> None:
    match event:
        case ConsumerGroupStored(group, epoch, empty_since=empty_since):
            if empty_since != TIME_UNKNOWN:
                log.info(_EMPTY, group)
            else:
                log.info("group %s: epoch %d begins", group, epoch)
        case ConsumerMemberStored(group, member):
            log.info("group %s: member %s of client %s", group, member.id, member.client_id)
        case ConsumerMemberDropped(group, id_, why):
            if why is not None:
                log.info("group %s: member %s %s", group, id_, why.value)
        case ConsumerGroupDropped():
            _tell_end(event)


def _tell_end(event: GroupDropped | ConsumerGroupDropped) -> None:
    if event.cause is Cause.GROUP_DELETION:
        log.info("group %s was deleted by %s", event.group, event.by, extra={"always": True})
