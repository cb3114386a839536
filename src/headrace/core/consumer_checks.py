"""What a consumer group of the new protocol refuses. KIP-848; Kafka 4.3, GroupMetadataManager."""

from headrace.core.consumer_group import ConsumerGroup
from headrace.core.consumer_words import (
    JOINING,
    LEAVING_FOR_NOW,
    ConsumerBeat,
    ConsumerLimits,
    Holding,
)
from headrace.core.errors import Refused, Why
from headrace.core.group_words import NOBODY, Leaver
from headrace.core.share_words import NAME_BYTES_MAX
from headrace.core.types import MemberId

_REGEX_BYTES_MAX = 32_767  # what a string in a record's key has room for
_WITHOUT_ID = frozenset({JOINING, LEAVING_FOR_NOW})  # epochs in which version 0 needs no member id


def check_beat(beat: ConsumerBeat, limits: ConsumerLimits) -> Refused | None:
    """Refuse a heartbeat that makes no sense, whatever the group is."""
    wrong = _empty(beat) or _too_long(beat) or _epoch_alone(beat)
    if wrong is None and beat.epoch == JOINING:
        wrong = _incomplete_join(beat)
    if wrong is not None:
        return Refused(Why.INVALID_REQUEST, wrong)
    if beat.assignor is not None and beat.assignor not in limits.assignors:
        return Refused(
            Why.UNKNOWN_ASSIGNOR,
            f"ServerAssignor {beat.assignor} is not supported. Supported assignors:"
            f" {', '.join(limits.assignors)}.",
        )
    return None


def _empty(beat: ConsumerBeat) -> str | None:
    fields = (
        ("GroupId", beat.group),
        ("MemberId", beat.member or (beat.new_id if beat.epoch in _WITHOUT_ID else NOBODY)),
        ("InstanceId", beat.instance),
        ("RackId", beat.rack),
    )
    return next((f"{name} can't be empty." for name, value in fields if value == ""), None)


def _too_long(beat: ConsumerBeat) -> str | None:
    names = (beat.group, beat.member, beat.instance or "", beat.rack or "", beat.assignor or "")
    if any(len(name.encode()) > NAME_BYTES_MAX for name in names):
        return f"A name of more than {NAME_BYTES_MAX} bytes."
    if len((beat.regex or "").encode()) > _REGEX_BYTES_MAX:
        return f"A regular expression of more than {_REGEX_BYTES_MAX} bytes."
    return None


def _epoch_alone(beat: ConsumerBeat) -> str | None:
    if beat.epoch < LEAVING_FOR_NOW:
        return f"MemberEpoch is invalid: {beat.epoch}."
    if beat.epoch == LEAVING_FOR_NOW and beat.instance is None:
        return "InstanceId can't be null when a member leaves for now (epoch -2)."
    return None


def _incomplete_join(beat: ConsumerBeat) -> str | None:
    if beat.rebalance_ms is None:
        return "RebalanceTimeoutMs must be provided in first request."
    if beat.owned is None or beat.owned:
        return "TopicPartitions must be empty when (re-)joining."
    if beat.topics is None and beat.regex is None:
        return (
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining."
        )
    return None


def check_room(group: ConsumerGroup, member: MemberId, members_max: int) -> Refused | None:
    if member in group.members or len(group.members) < members_max:
        return None
    return Refused(
        Why.GROUP_FULL,
        f"The consumer group has reached its maximum capacity of {members_max} members "
        "(group.consumer.max.size).",
    )


def check_instance(group: ConsumerGroup, beat: ConsumerBeat) -> Refused | None:
    """Refuse a member whose instance id another has, or, but for a join, nobody."""
    assert beat.instance is not None
    static = group.with_instance(beat.instance)
    if beat.epoch == JOINING:
        if static is None or static.id == beat.member:
            return None
        if group.holdings[static.id].epoch == LEAVING_FOR_NOW:
            return None
        return Refused(
            Why.INSTANCE_IN_USE,
            f"Static member {beat.member} with instance id {beat.instance} cannot join group "
            f"{group.name} because the instance id is owned by member {static.id}.",
        )
    return _check_static(group, beat.member, beat.instance)


def _check_static(group: ConsumerGroup, member: MemberId, instance_id: str) -> Refused | None:
    known = group.members.get(member)
    if known is not None and known.instance == instance_id:
        return None  # as nearly always, and without a look at the others
    static = group.with_instance(instance_id)
    if static is None:
        return Refused(
            Why.UNKNOWN_MEMBER, f"Instance {instance_id} of group {group.name} is unknown; rejoin."
        )
    return Refused(
        Why.FENCED_INSTANCE,
        f"Instance {instance_id} of group {group.name} is member {static.id} now.",
    )


def find_leaver(group: ConsumerGroup, asked: Leaver) -> MemberId | Refused:
    """Who is to leave with a LeaveGroup, which removes members of both protocols."""
    if asked.instance is None:
        return asked.member if asked.member in group.members else group.unknown(asked.member)
    static = group.with_instance(asked.instance)
    if static is not None and asked.member == NOBODY:
        return static.id
    return _check_static(group, asked.member, asked.instance) or asked.member


def check_epoch(held: Holding, beat: ConsumerBeat) -> Refused | None:
    """Refuse who is not where the group thinks it is. One step behind is no fault if it does not
    own too much: then an answer was lost."""
    if beat.epoch == held.epoch:
        return None
    one_behind = held.previous_epoch == beat.epoch < held.epoch
    if one_behind and beat.owned is not None and beat.owned <= held.assigned:
        return None
    side = "greater" if beat.epoch > held.epoch else "smaller"
    return Refused(
        Why.STALE_EPOCH,
        f"The consumer group member has a {side} member epoch ({beat.epoch}) than the one known "
        f"by the group coordinator ({held.epoch}). The member must abandon all its partitions and "
        "rejoin.",
    )
