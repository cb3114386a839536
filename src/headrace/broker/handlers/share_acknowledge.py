"""ShareAcknowledge (79), and the acknowledgements that ride on a ShareFetch. KIP-932.

A request moves the share session by one epoch; each partition's batches then hold as a whole or not
at all, and the answer leaves when their outcome is durable. The final epoch (-1) ends the session
after its acknowledgements and releases what the member still holds. A batch may bring a reason, in
a tagged field of ours; it is kept with what was rejected.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

from headrace.broker.errors import Code, error_code
from headrace.broker.handlers.share_group_heartbeat import MEMBER_ID_CHARS_MAX
from headrace.broker.request import Answer, Answering, Later, Raw, Request
from headrace.broker.runtime import StorageFault
from headrace.broker.services import Services
from headrace.core.errors import Refused, Why
from headrace.core.shard_words import On, ReleaseMember
from headrace.core.share_session import FINAL, Continue, SessionKey
from headrace.core.share_words import NAME_BYTES_MAX, Acknowledge, Acknowledged, ShareKey, Verdict
from headrace.core.types import MemberId, Span
from headrace.wire import share_requests
from headrace.wire.primitives import TOO_MANY_ELEMENTS
from headrace.wire.share_requests import (
    AcknowledgedPart,
    AcknowledgeRequest,
    Batch,
    FetchRequest,
)

_KEY = 79
_BATCHES_MAX = 10_000
ACKNOWLEDGE_PORTION = 50  # partitions whose records are acknowledged without a pause
REASON_BYTES_MAX = 1_024
_VERDICTS = {verdict.value: verdict for verdict in Verdict}
# What one acknowledge type says of a range, by that type; made once, as it comes with every poll.
_ONE_VERDICT = {bytes([verdict]): (verdict,) for verdict in Verdict}


class ParsedPart(NamedTuple):
    """What a request has about one partition; `batches` is None where they are malformed."""

    topic_id: UUID
    partition: int
    batches: Sequence[Acknowledged] | None

    @property
    def has_batches(self) -> bool:
        """Whether the request acknowledges records of the partition."""
        return self.batches is None or len(self.batches) > 0


def decode(request: Request) -> tuple[AcknowledgeRequest, Sequence[ParsedPart]]:
    """Decode a request. Raises: Malformed."""
    message = share_requests.read_acknowledge(request.body, request.version)
    return message, parsed(message)


def handle(request: Request, services: Services) -> Answering:
    message, parts = request.decoded or decode(request)
    who = session_key(message, services)
    if isinstance(who, Refused):
        return _refusal(who, request, services)
    moved = services.shares.move(
        Continue(who, message.epoch, request.connection_id, may_open=False)
    )
    if isinstance(moved, Refused):
        return _refusal(moved, request, services)
    is_final = message.epoch == FINAL
    if len(parts) > ACKNOWLEDGE_PORTION:
        ended = end_session(services, who, parts, renewing=message.renews) if is_final else None
        return _in_portions(message, parts, request, services, ended)
    acked = acknowledge(services, who, parts, renewing=message.renews)
    if is_final:
        release(services, who)
    return _when_durable(message, acked, request, services)


async def _in_portions(
    message: AcknowledgeRequest, parts: Sequence[ParsedPart], request: Request, services: Services,
    ended: Awaitable[list[AcknowledgedPart]] | None,
) -> Answer:  # fmt: skip
    """Acknowledge records of many partitions, with pauses.

    Args:
        ended: As `end_session` returned it, for the final request of a session.
    """
    if ended is not None:
        acked = await ended
    else:
        acked = await acknowledge_many(services, session_key_of(message), parts, message.renews)
    return await _when_durable(message, acked, request, services).wait()


def _when_durable(
    message: AcknowledgeRequest, acked: list[AcknowledgedPart], request: Request,
    services: Services,
) -> Later:  # fmt: skip
    group, _ = session_key_of(message)
    acked = _once_each(acked)
    later = Later()

    def tell(fault: StorageFault | None) -> None:
        told = acked if fault is None else [failed(one, fault) for one in acked]
        later.set(partial(_answer, services, group, told, request.version))

    services.shares.shard(group).when_durable(tell)
    return later


def _once_each(acked: list[AcknowledgedPart]) -> list[AcknowledgedPart]:
    """Return one result for each partition, an error if there is one."""
    if len(acked) == 1:
        return acked
    results: dict[tuple[UUID, int], AcknowledgedPart] = {}
    for part in acked:
        key = part.topic_id, part.partition
        if part.code or key not in results:
            results[key] = part
    return list(results.values())


def session_key_of(message: AcknowledgeRequest | FetchRequest) -> SessionKey:
    """Return the group and the member of a request that `session_key` accepted."""
    return message.group or "", MemberId(message.member or "")


def session_key(
    message: AcknowledgeRequest | FetchRequest, services: Services
) -> SessionKey | Refused:
    """Return the group and the member of a request, unless a name is invalid.

    Refused also where the request names more partitions than it may have elements.
    """
    if len(message.parts) > services.config.elements_max:
        return Refused(Why.INVALID_REQUEST, TOO_MANY_ELEMENTS)
    group, member = message.group, message.member
    if group is None or len(group.encode()) > NAME_BYTES_MAX:
        return Refused(Why.INVALID_REQUEST, f"GroupId must be a name of {NAME_BYTES_MAX} bytes.")
    if not member or len(member) > MEMBER_ID_CHARS_MAX:
        return Refused(
            Why.INVALID_REQUEST, f"MemberId must have 1 to {MEMBER_ID_CHARS_MAX} characters."
        )
    return group, MemberId(member)


def acknowledge(
    services: Services, who: SessionKey, parts: Iterable[ParsedPart], *, renewing: bool
) -> list[AcknowledgedPart]:
    """Carry out the acknowledgements of a request; one result for each partition that has any.

    Nobody may be told of it before the group's shard is durable.
    """
    return [
        _one(services, who, part, renewing)
        for part in parts
        if part.batches is None or part.batches  # by hand, as it is done for every poll
    ]


def _batches_max(group: str, services: Services) -> int:
    """Return a bound of the batches of one partition; each acknowledges a record in flight."""
    return max(_BATCHES_MAX, services.shares.policy(group).window)


async def acknowledge_many(
    services: Services, who: SessionKey, parts: Iterable[ParsedPart], renewing: bool
) -> list[AcknowledgedPart]:
    """As `acknowledge`, with pauses.

    All of them fail where a fault of the journal takes back what was decided before a pause.
    """
    shard = services.shares.shard(who[0])
    machine = shard.machine
    acked = [
        _one(services, who, part, renewing)
        async for part in services.budgets.portions(parts, ACKNOWLEDGE_PORTION)
        if part.has_batches
    ]
    if shard.fault is None and shard.machine is machine:
        return acked
    fault = StorageFault(f"{shard.name}: {shard.fault or 'its state was rebuilt'}")
    return [failed(one, fault) for one in acked]


def end_session(
    services: Services, who: SessionKey, parts: Iterable[ParsedPart], *, renewing: bool
) -> Awaitable[list[AcknowledgedPart]]:
    """Begin to acknowledge records with pauses for a session that ended, then release the rest.

    The results come once they are durable. The member may open another session meanwhile: this has
    to be called in the turn of the event loop that ended the session.
    """
    work = _acknowledge_and_release(services, who, parts, renewing)
    return asyncio.shield(services.shares.finish_session(who, work))


async def _acknowledge_and_release(
    services: Services, who: SessionKey, parts: Iterable[ParsedPart], renewing: bool
) -> list[AcknowledgedPart]:
    acked = await acknowledge_many(services, who, parts, renewing)
    release(services, who)
    try:
        await services.shares.shard(who[0]).durable()  # a caller would ask for it a turn too late
    except StorageFault as fault:
        return [failed(one, fault) for one in acked]
    return acked


def release(services: Services, who: SessionKey) -> None:
    """Release all that the member of an ended session holds.

    A fault needs no care: rebuilding the shard forgets every lock, which releases them as well.
    """
    services.shares.shard(who[0]).decide(ReleaseMember(*who))


def failed(one: AcknowledgedPart, fault: StorageFault) -> AcknowledgedPart:
    """The same when the journal could not be written."""
    return one._replace(code=Code.STORAGE_ERROR, message=str(fault))


def _one(services: Services, who: SessionKey, part: ParsedPart, renewing: bool) -> AcknowledgedPart:
    topic_id, index, (group, member) = part.topic_id, part.partition, who
    told = partial(AcknowledgedPart, topic_id, index)
    if topic_id not in services.catalog.topics_by_id:
        return told(Code.UNKNOWN_TOPIC_ID, "The topic does not exist any more.")
    batches = part.batches
    if batches is None or (
        len(batches) > _BATCHES_MAX and len(batches) > _batches_max(group, services)
    ):
        return told(Code.INVALID_REQUEST, "The acknowledgement batches are malformed.")
    renews = renewing and any(Verdict.RENEW in batch.verdicts for batch in batches)
    if renews and not services.shares.settings(group).renew_enable:
        return told(
            Code.INVALID_RECORD_STATE,
            "Renewal is off for the group (share.renew.acknowledge.enable).",
        )
    key = ShareKey(group, topic_id, index)
    answer = services.shares.shard(group).decide(On(key, Acknowledge(member, batches)))
    if isinstance(answer, StorageFault):
        return told(Code.STORAGE_ERROR, str(answer))
    if isinstance(answer, Refused):
        return told(error_code(answer), answer.message)
    return told(Code.NONE, None)


def parsed(message: AcknowledgeRequest | FetchRequest) -> list[ParsedPart]:
    """Return the acknowledgements of a request by partition, their syntax checked."""
    return [
        ParsedPart(topic_id, partition, _parsed(batches, message.renews) if batches else ())
        for topic_id, partition, batches in message.parts
    ]


def _parsed(batches: Iterable[Batch], renewing: bool) -> Sequence[Acknowledged] | None:
    """The batches of one partition, or None when their syntax is not right."""
    parsed: list[Acknowledged] = []
    before = -1
    for first, last, types, reason in batches:
        if not 0 <= first <= last or first < before:
            return None
        verdicts = _ONE_VERDICT.get(types) or _verdicts(types, last - first + 1)
        if verdicts is None or (Verdict.RENEW in types and not renewing):
            return None
        before = last
        parsed.append(Acknowledged(Span(first, last), verdicts, _cut(reason)))
    return parsed


def _verdicts(types: bytes, records: int) -> Sequence[Verdict] | None:
    """Verdicts of so many records, one for each or one for all; None for what is neither."""
    if len(types) != records or not types or not _VERDICTS.keys() >= set(types):
        return None
    if types.count(types[0]) == records:
        return (_VERDICTS[types[0]],)
    return [_VERDICTS[kind] for kind in types]


def _cut(reason: str | None) -> str | None:
    """A reason as long as the journal may get it; clients of ours give one, Kafka's have none."""
    if reason is None or len(reason.encode()) <= REASON_BYTES_MAX:
        return reason
    return reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")


def _refusal(refused: Refused, request: Request, services: Services) -> Raw:
    code = error_code(refused)
    services.metrics.failed(_KEY, code)
    told = share_requests.written_acknowledge(
        (), request.version, code=code, message=refused.message
    )
    return Raw([told])


def _answer(services: Services, group: str, acked: Sequence[AcknowledgedPart], version: int) -> Raw:
    for one in acked:
        services.metrics.failed(_KEY, one.code)
    lock_ms, node_id = services.shares.policy(group).lock_ms, services.config.node_id
    told = share_requests.written_acknowledge(acked, version, lock_ms=lock_ms, leader_id=node_id)
    return Raw([told])
