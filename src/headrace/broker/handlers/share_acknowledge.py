"""ShareAcknowledge (79), and the acknowledgements that ride on a ShareFetch. KIP-932.

A request moves the share session by one epoch; each partition's batches then hold as a whole or not
at all, and the answer leaves when their outcome is durable. The final epoch (-1) ends the session
after its acknowledgements and releases what the member still holds. A batch may bring a reason, in
a tagged field of ours; it is kept with what was rejected.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from headrace.broker.errors import Code, error_code
from headrace.broker.handlers.share_group_heartbeat import MEMBER_ID_CHARS_MAX
from headrace.broker.request import Answer, Request
from headrace.broker.runtime import StorageFault
from headrace.broker.services import Services
from headrace.core.errors import Refused, Why
from headrace.core.shard_words import On, ReleaseMember
from headrace.core.share_session import FINAL, Continue
from headrace.core.share_words import NAME_BYTES_MAX, Acknowledge, Acknowledged, ShareKey, Verdict
from headrace.core.types import MemberId, Span, TopicPartition

REASON_BYTES_MAX = 1_024


@dataclass(frozen=True, slots=True)
class Acked:
    """What became of the acknowledgements of one partition."""

    partition: TopicPartition
    code: Code
    message: str | None = None


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    refused = malformed(message)
    if refused is None:
        member = MemberId(message.member_id)
        moved = services.shares.move(
            Continue(
                (message.group_id, member),
                message.share_session_epoch,
                request.connection_id,
                may_open=False,
            )
        )
        refused = moved if isinstance(moved, Refused) else None
    if refused is not None:
        return _answer(services, message, error_code(refused), refused.message, [])
    acked = await acknowledge(services, message, renewing=getattr(message, "is_renew_ack", False))
    if message.share_session_epoch == FINAL:
        await release(services, message.group_id, member)
    return _answer(services, message, Code.NONE, None, acked)


def malformed(message: Any) -> Refused | None:
    """What is wrong with the group or member of a ShareFetch or ShareAcknowledge."""
    if message.group_id is None or len(message.group_id.encode()) > NAME_BYTES_MAX:
        return Refused(Why.INVALID_REQUEST, f"GroupId must be a name of {NAME_BYTES_MAX} bytes.")
    if not 1 <= len(message.member_id or "") <= MEMBER_ID_CHARS_MAX:
        return Refused(
            Why.INVALID_REQUEST, f"MemberId must have 1 to {MEMBER_ID_CHARS_MAX} characters."
        )
    return None


async def acknowledge(services: Services, message: Any, *, renewing: bool) -> list[Acked]:
    """Carry out the acknowledgements of a request; one result for each partition that has any."""
    member = MemberId(message.member_id)
    return list(
        await asyncio.gather(
            *(
                _one(services, message.group_id, member, topic.topic_id, part, renewing)
                for topic in message.topics
                for part in topic.partitions
                if part.acknowledgement_batches
            )
        )
    )


async def release(services: Services, group: str, member: MemberId) -> None:
    """Release all that the member of an ended session holds."""
    try:
        await services.shares.ask(group, ReleaseMember(group, member))
    except StorageFault:
        return  # rebuilding the shard forgets every lock, which releases them as well


async def _one(
    services: Services, group: str, member: MemberId, topic_id: UUID, part: Any, renewing: bool
) -> Acked:
    where = TopicPartition(topic_id, part.partition_index)
    if topic_id not in services.catalog.topics_by_id:
        return Acked(where, Code.UNKNOWN_TOPIC_ID, "The topic does not exist any more.")
    batches = _parsed(part.acknowledgement_batches, renewing)
    if batches is None:
        return Acked(where, Code.INVALID_REQUEST, "The acknowledgement batches are malformed.")
    renews = any(Verdict.RENEW in batch.verdicts for batch in batches)
    if renews and not services.shares.settings(group).renew_enable:
        return Acked(
            where,
            Code.INVALID_RECORD_STATE,
            "Renewal is off for the group (share.renew.acknowledge.enable).",
        )
    key = ShareKey(group, topic_id, part.partition_index)
    try:
        answer = await services.shares.ask(group, On(key, Acknowledge(member, batches)))
    except StorageFault as fault:
        return Acked(where, Code.STORAGE_ERROR, str(fault))
    if isinstance(answer, Refused):
        return Acked(where, error_code(answer), answer.message)
    return Acked(where, Code.NONE)


def _parsed(batches: Iterable[Any], renewing: bool) -> Sequence[Acknowledged] | None:
    """The batches of one partition, or None when their syntax is not right."""
    known = set(Verdict) if renewing else set(Verdict) - {Verdict.RENEW}
    parsed: list[Acknowledged] = []
    before = -1
    for batch in batches:
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if not 0 <= first <= last or first < before or not types or not known.issuperset(types):
            return None
        if len(types) not in (1, last - first + 1):
            return None
        before = last
        verdicts = [Verdict(kind) for kind in types]
        parsed.append(Acknowledged(Span(first, last), verdicts, _cut(batch.reason)))
    return parsed


def _cut(reason: str | None) -> str | None:
    """A reason as long as the journal may get it; clients of ours give one, Kafka's have none."""
    if reason is None or len(reason.encode()) <= REASON_BYTES_MAX:
        return reason
    return reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")


def _answer(
    services: Services, message: Any, code: Code, text: str | None, acked: Sequence[Acked]
) -> dict[str, Any]:
    by_topic: dict[UUID, list[dict[str, Any]]] = {}
    for one in acked:
        by_topic.setdefault(one.partition.topic_id, []).append(
            {
                "partition_index": one.partition.partition,
                "error_code": one.code,
                "error_message": one.message,
                "current_leader": {"leader_id": services.config.node_id, "leader_epoch": 0},
            }
        )
    lock_ms = 0 if code else services.shares.policy(message.group_id).lock_ms
    return {
        "error_code": code,
        "error_message": text,
        "acquisition_lock_timeout": lock_ms,
        "responses": [
            {"topic_id": topic_id, "partitions": found} for topic_id, found in by_topic.items()
        ],
        "node_endpoints": [],
    }
