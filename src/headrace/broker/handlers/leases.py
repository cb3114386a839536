"""The lease API (20900 to 20905): ranges of a share group for readers like a Spark query.

Messages are those of `wire/leases.py`; decisions are `core/leases.py` and `core/shard.py`.
"""

import asyncio
from functools import partial
from typing import Any

from headrace.broker.budgets import DECODE_BYTES_MAX
from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Raw, Request
from headrace.broker.runtime import StorageFault
from headrace.broker.services import Services
from headrace.broker.share_starts import start_for_lease
from headrace.broker.shares import wait_key
from headrace.core.errors import Refused
from headrace.core.leases import (
    DELAY_MS_MAX,
    REASON_LENGTH_MAX,
    Held,
    LeaseKey,
    Staged,
    in_order,
)
from headrace.core.shard_words import (
    STAGED_PORTION,
    AcquireLease,
    Command,
    CommitLease,
    OpenLease,
    RenewLease,
    StageLease,
)
from headrace.core.share_words import NAME_BYTES_MAX, PORTION_RUNS, ShareKey, Verdict
from headrace.core.types import Span, TopicPartition, after, elapsed_ms
from headrace.log.buggify import buggify
from headrace.wire import leases as wire
from headrace.wire.leases import LeaseApi
from headrace.wire.primitives import Reader, Writer
from headrace.wire.structs import Struct

_STARTS = ("latest", "earliest")

_UNKNOWN = -1
_RESPONSE_RANGES = 500  # that are encoded on the event loop
_PORTION_IN_SIMULATIONS = 1
_PORTION = 20  # share-partitions that are described without a pause

_AnyRequest = (
    wire.OpenRequest
    | wire.AcquireRequest
    | wire.RenewRequest
    | wire.StageRequest
    | wire.CommitRequest
    | wire.DescribeRequest
)
_REQUESTS: dict[LeaseApi, type[_AnyRequest]] = {
    one.KEY: one
    for one in (
        wire.OpenRequest, wire.AcquireRequest, wire.RenewRequest, wire.StageRequest,
        wire.CommitRequest, wire.DescribeRequest,
    )
}  # fmt: skip


async def handle(request: Request, services: Services) -> Answer:
    match await _decoded(request, services):
        case wire.OpenRequest() as call:
            answer: Struct = await _open(call, services)
        case wire.AcquireRequest() as call:
            answer = await _acquire(call, services)
        case wire.RenewRequest() as call:
            answer = await _renew(call, services)
        case wire.StageRequest() as call:
            answer = await _stage(call, services)
        case wire.CommitRequest() as call:
            answer = await _commit(call, services)
        case wire.DescribeRequest() as call:
            described = await _describe(call, services)
            elements = sum(1 + len(one.in_flight) for one in described.partitions)
            return await services.budgets.written(described, elements)
    out = Writer()
    if isinstance(answer, wire.AcquireResponse) and len(answer.ranges) > _RESPONSE_RANGES:
        await services.budgets.in_thread(partial(answer.write, out))
    else:
        answer.write(out)
    return Raw([out.data])


async def _decoded(request: Request, services: Services) -> _AnyRequest:
    """The message of a request; a large one is read beside the event loop. Raises: Malformed."""
    read = partial(_REQUESTS[LeaseApi(request.api_key)].read, Reader(request.body))
    if len(request.body) <= DECODE_BYTES_MAX:
        return read()
    async with services.budgets.one_large():
        return await services.budgets.in_thread(read)


async def _ask(services: Services, group: str, command: Command) -> tuple[Any, int, str | None]:
    """The reply, or none with the code and message of what stood against it."""
    try:
        answer = await services.shares.ask(group, command)
    except StorageFault as fault:
        return None, Code.STORAGE_ERROR, str(fault)
    if isinstance(answer, Refused):
        return None, error_code(answer), answer.message
    return answer, Code.NONE, None


def _lease(call: wire.Call) -> LeaseKey:
    return call.group, call.session


async def _open(call: wire.OpenRequest, services: Services) -> wire.OpenResponse:
    named = all(1 <= len(name.encode()) <= NAME_BYTES_MAX for name in (call.group, call.session))
    if not named or call.start not in _STARTS or not call.topics:
        return wire.OpenResponse(
            Code.INVALID_REQUEST,
            f"a lease needs a group and a session of 1 to {NAME_BYTES_MAX} bytes, topics, and "
            "'latest' or 'earliest' as its start",
        )
    if services.groups.is_consumer_group(call.group):
        return wire.OpenResponse(
            Code.GROUP_ID_NOT_FOUND,
            f"Group {call.group} is a consumer group, or its group.type says so; take another.",
        )
    size = sum(len(one) for one in (*_lease(call), *call.topics))
    refused = services.group_memory.admit_share(call.group, size)
    if refused is not None:
        return wire.OpenResponse(error_code(refused), refused.message)
    earliest = call.start == "earliest"
    command = OpenLease(_lease(call), call.topics, earliest, _portion(PORTION_RUNS))
    try:
        refused = await start_for_lease(services, command)
    except (StorageFault, OSError) as fault:
        return wire.OpenResponse(Code.STORAGE_ERROR, str(fault))
    if refused is not None:
        return wire.OpenResponse(error_code(refused), refused.message)
    opened, code, message = await _ask(services, call.group, command)
    if opened is None:
        return wire.OpenResponse(code, message)
    return wire.OpenResponse(
        code, message, opened.epoch, opened.committed, opened.lock_ms, opened.outstanding
    )


async def _acquire(call: wire.AcquireRequest, services: Services) -> wire.AcquireResponse:
    if call.seq < 1 or call.max_records < 1:
        return wire.AcquireResponse(Code.INVALID_REQUEST, "seq and max_records begin at 1")
    topics = services.catalog.topics
    bounds = {
        ShareKey(call.group, topics[one.topic].id, one.partition): one.end
        for one in call.bounds
        if one.topic in topics  # of one that was deleted there is nothing to acquire
    }
    if call.bounds and not bounds:
        return wire.AcquireResponse(Code.NONE, None)
    command = AcquireLease(
        _lease(call), call.epoch, call.seq, call.max_records, bounds, _portion(PORTION_RUNS)
    )
    deadline = after(services.clock.mono(), call.max_wait_ms)
    lease = services.shares.machine(call.group).leases.get(_lease(call))
    await services.shares.open_topics(() if lease is None else lease.topics)
    while True:
        with services.waits.watch(_keys(services, call)) as watch:
            held, code, message = await _ask(services, call.group, command)
            if held is None:
                return wire.AcquireResponse(code, message)
            left_ms = elapsed_ms(services.clock.mono(), deadline)
            if held or not await watch.wait(left_ms):
                ranges = await _ranges(services, held)
                return wire.AcquireResponse(code, message, ranges, _lock_ms(services, call))


def _keys(services: Services, call: wire.Call) -> list[Any]:
    """Return what could make records available to a lease: appends, and releases in its group."""
    lease = services.shares.machine(call.group).leases.get(_lease(call))
    named = () if lease is None else map(services.catalog.topics.get, lease.topics)
    topics = [topic for topic in named if topic is not None]
    partitions = [TopicPartition(one.id, n) for one in topics for n in range(one.partitions)]
    return [wait_key(call.group), *partitions]


def _lock_ms(services: Services, call: wire.Call) -> int:
    """Return how long locks of the group last, as its settings are now."""
    return services.shares.policy(call.group).lock_ms


def _portion(size: int) -> int:
    """Return how much of a command is decided in one step."""
    return _PORTION_IN_SIMULATIONS if buggify("lease.portion") else size


async def _ranges(services: Services, held: tuple[Held, ...]) -> tuple[wire.Range, ...]:
    topics = services.catalog.topics_by_id
    found: list[wire.Range] = []
    async for one in services.budgets.portions(held, _RESPONSE_RANGES):
        topic = topics.get(one.key.topic_id)
        if topic is not None:
            span = one.span
            found.append(
                wire.Range(topic.name, one.key.partition, span.first, span.last, one.deliveries)
            )
    return tuple(found)


async def _renew(call: wire.RenewRequest, services: Services) -> wire.RenewResponse:
    command = RenewLease(_lease(call), call.epoch, _portion(PORTION_RUNS))
    renewed, code, message = await _ask(services, call.group, command)
    if renewed is None:
        return wire.RenewResponse(code, message)
    lock_ms = _lock_ms(services, call)
    return wire.RenewResponse(code, message, renewed.held, renewed.lost, lock_ms)


async def _stage(call: wire.StageRequest, services: Services) -> wire.StageResponse:
    staged: list[Staged] = []
    keys: dict[tuple[str, int], ShareKey] = {}  # one for all ranges of a partition: names are long
    async for one in services.budgets.portions(call.dispositions):
        topic = services.catalog.topics.get(one.topic)
        trouble = _trouble(one) if topic is not None else "is of a topic that does not exist"
        if topic is None or trouble:
            what = f"{one.topic}-{one.partition} {one.first} to {one.last} {trouble}"
            return wire.StageResponse(Code.INVALID_REQUEST, what)
        key = ShareKey(call.group, topic.id, one.partition)
        key = keys.setdefault((one.topic, one.partition), key)
        span = Span(one.first, one.last)
        staged.append(Staged(key, span, Verdict(one.verdict), one.reason, one.delay_ms))
    said, size = tuple(staged), _portion(STAGED_PORTION)
    staged.clear()
    if len(said) > size:
        said = await services.budgets.in_thread(partial(in_order, said))
    command = StageLease(_lease(call), call.epoch, call.seq, said, call.part, size)
    _, code, message = await _ask(services, call.group, command)
    return wire.StageResponse(code, message)


def _trouble(said: wire.Disposition) -> str | None:
    """What is wrong with a disposition on the face of it."""
    if not 0 <= said.first <= said.last:
        return "is no range of records"
    if said.delay_ms and (said.verdict is not wire.Verdict.RELEASE):
        return "has a delay, and only released records come back"
    if not 0 <= said.delay_ms <= DELAY_MS_MAX:
        return f"has a delay of {said.delay_ms} ms; give 0 to {DELAY_MS_MAX}"
    if said.reason is not None and len(said.reason) > REASON_LENGTH_MAX:
        return f"has a reason of more than {REASON_LENGTH_MAX} characters"
    return None


async def _commit(call: wire.CommitRequest, services: Services) -> wire.CommitResponse:
    command = CommitLease(_lease(call), call.epoch, call.seq, _portion(PORTION_RUNS))
    done, code, message = await _ask(services, call.group, command)
    if done is None:
        return wire.CommitResponse(code, message)
    return wire.CommitResponse(
        code, message, done.accepted, done.released, done.rejected, done.refused
    )


async def _describe(call: wire.DescribeRequest, services: Services) -> wire.DescribeResponse:
    for key in list(services.shares.machine(call.group).partitions_of(call.group)):
        await services.partitions.opened(key.topic_id, key.partition)
    found, rows = [], 0
    machine = services.shares.machine(call.group)
    known = machine.partitions_of(call.group)
    async for key, share in services.budgets.portions(list(known.items()), _PORTION):
        topic = services.catalog.topics_by_id.get(key.topic_id)
        partition = services.partitions.get(key.topic_id, key.partition)
        if topic is None or partition is None:
            continue
        try:
            end = partition.high_watermark
        except OSError:  # the log is damaged; the partition has logged it
            end = _UNKNOWN
        begins, ends, pieces = share.start, share.end, share.runs.copied().pieces()
        runs = [
            wire.InFlight(first, last, status.state, status.deliveries, status.holder or "")
            async for first, last, status in services.budgets.portions(pieces, _RESPONSE_RANGES)
        ]
        found.append(wire.SharePartition(topic.name, key.partition, begins, ends, end, tuple(runs)))
        rows += len(runs)
        if rows >= _RESPONSE_RANGES:  # of some share-partitions together
            await asyncio.sleep(0)
            rows = 0
    found.sort(key=lambda one: (one.topic, one.partition))
    refused = await services.shares.durable_of(call.group, machine)
    if refused is not None:
        return wire.DescribeResponse(Code.STORAGE_ERROR, refused.message)
    return wire.DescribeResponse(Code.NONE, None, tuple(found))
