"""ShareFetch (78): records of a share group, acquired for the member that asks. KIP-932, KIP-1206.

Order, as in Kafka: the request's form, the share session, acknowledgements, then the records. All
of it is decided in one turn, so that one write to the journal serves it, and what else is decided
then; but where others wait for records, they look first. A request that only brings
acknowledgements, finding no records, is answered at once: its caller waits for the outcome. One
that brings none waits for as much as it wants, and takes what there is when its time is up. Errors
of partitions wait, too, for a little while: clients come back at once, however often.
"""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial

from headrace.broker.budgets import PORTION
from headrace.broker.errors import error_code
from headrace.broker.handlers.share_acknowledge import (
    ACKNOWLEDGE_PORTION,
    ParsedPart,
    acknowledge,
    acknowledge_many,
    end_session,
    parsed,
    release,
    session_key,
)
from headrace.broker.request import Answer, Answering, Later, Raw, Request
from headrace.broker.runtime import StorageFault
from headrace.broker.services import Services
from headrace.broker.share_polls import LOOK_PORTION, ROOM, SharePoll
from headrace.broker.shares import wait_key
from headrace.core.errors import Refused, Why
from headrace.core.share_session import FINAL, OPEN, Continue, Session, SessionKey
from headrace.core.types import TopicPartition, elapsed_ms
from headrace.wire import share_requests
from headrace.wire.primitives import Buffer
from headrace.wire.share_requests import AcknowledgedPart, FetchedPart, FetchRequest

_KEY = 78
_ERRORS_WAIT_MS = 500
_ACQUIRE_MODES = (0, 1)  # batch_optimized, record_limit


def decode(request: Request) -> tuple[FetchRequest, Sequence[ParsedPart]]:
    """Decode a request. Raises: Malformed."""
    asking = share_requests.read_fetch(request.body, request.version)
    return asking, parsed(asking)


def handle(request: Request, services: Services) -> Answering:
    asking, parts = request.decoded or decode(request)
    who = session_key(asking, services)
    if isinstance(who, Refused):
        return _refusal(who, services)
    has_acks = any(part.batches is None or part.batches for part in parts)
    refused = _malformed(asking, has_acks)
    if refused is not None:
        return _refusal(refused, services)
    added = [TopicPartition(part.topic_id, part.partition) for part in asking.parts]
    forgotten = [TopicPartition(*one) for one in asking.forgotten]
    moved = services.shares.move(
        Continue(who, asking.epoch, request.connection_id, added, forgotten)
    )
    if isinstance(moved, Refused):
        if moved.why is Why.SESSION_LIMIT:  # clients ask again without a pause of their own
            services.shares.meters.sessions_refused += 1
            return _refused_later(moved, asking.wait_ms_max, services)
        return _refusal(moved, services)
    if asking.acquire_mode not in _ACQUIRE_MODES:
        # Behind the session, whose epoch the client moves on unless it is told of the session.
        if asking.epoch == FINAL:
            release(services, who)
        wrong = f"{asking.acquire_mode} is not an acquire mode"
        return _refusal(Refused(Why.INVALID_REQUEST, wrong), services)
    is_large = len(parts) > ACKNOWLEDGE_PORTION
    if asking.epoch == FINAL and is_large:
        ended = end_session(services, who, parts, renewing=asking.renews)
        return _ended(services, who, asking, ended)
    if asking.epoch != FINAL and (
        is_large
        or len(services.shares.sessions.sessions[who].partitions) >= LOOK_PORTION
        or services.shares.is_finishing(who)
        # The other logs of the session were opened when they were new to it.
        or any(map(services.partitions.must_open, added))
    ):
        session = services.shares.sessions.sessions.get(who)
        return _in_portions(services, who, asking, parts, added, session)
    acked = acknowledge(services, who, parts, renewing=asking.renews) if has_acks else ()
    poll, wait_ms_max = _poll(services, who, asking, added, acked, has_acks=has_acks)
    if poll.order and services.waits.waiting_for(wait_key(who[0])):
        # What the acknowledgements made room for is for those who waited: they are awake, and look
        # first. Else members that are quick to come back would leave nothing to the others.
        services.shares.shard(who[0]).when_durable(poll.acknowledged)
        return _when_found(services, who, poll, asking, wait_ms_max)
    found = poll.look(_bytes_min(asking))
    if found or (found is not None and wait_ms_max <= 0):
        return _durable(services, who, poll)
    if found is None:
        services.shares.shard(who[0]).when_durable(poll.acknowledged)
    return _when_found(services, who, poll, asking, wait_ms_max)


async def _in_portions(
    services: Services, who: SessionKey, asking: FetchRequest, parts: Sequence[ParsedPart],
    added: Sequence[TopicPartition], session: Session | None,
) -> Answer:  # fmt: skip
    """Answer a request of many partitions, or of some whose logs must be opened, with pauses.

    So is one that must wait for the end of an earlier session of its member.

    Args:
        session: the session as the request left it.
    """
    await services.shares.session_finished(who)
    for one in added:
        await services.partitions.opened(one.topic_id, one.partition)
    acked = await acknowledge_many(services, who, parts, asking.renews)
    is_awaited = services.shares.sessions.sessions.get(who) is session
    if not is_awaited:  # nobody reads what would be acquired for the request
        poll = SharePoll(services, who, asking, (), added, acked)
        return _answer(services, who, poll.outcome(await _fault(services, who)))
    has_acks = any(part.has_batches for part in parts)
    poll, wait_ms_max = _poll(services, who, asking, added, acked, has_acks=has_acks)
    if poll.order:
        services.shares.shard(who[0]).when_durable(poll.acknowledged)
    return await _when_found(services, who, poll, asking, wait_ms_max)


async def _ended(
    services: Services, who: SessionKey, asking: FetchRequest,
    ended: Awaitable[list[AcknowledgedPart]],
) -> Answer:  # fmt: skip
    """Answer the final request of a session, once its acknowledgements are carried out."""
    poll = SharePoll(services, who, asking, (), (), await ended)
    return await _when_found(services, who, poll, asking, 0)


def _poll(
    services: Services, who: SessionKey, asking: FetchRequest, added: Sequence[TopicPartition],
    acked: Sequence[AcknowledgedPart], *, has_acks: bool,
) -> tuple[SharePoll, int]:  # fmt: skip
    """Return the search for records of a request, and how long it may wait for some."""
    order: Sequence[TopicPartition] = ()
    told: Sequence[TopicPartition] = ()
    if asking.epoch == FINAL:
        release(services, who)
    elif not asking.renews:
        order = _order(services, who)
        told = added  # also when there is nothing, so that the client knows it is served
    poll = SharePoll(services, who, asking, order, told, acked)
    waits = order and not has_acks and asking.records_max > 0 and asking.bytes_max > 0
    return poll, asking.wait_ms_max if waits else 0


def _bytes_min(asking: FetchRequest) -> int:
    """Less is not worth an answer; who does not wait gets what there is."""
    return asking.bytes_min if asking.wait_ms_max > 0 else 0


def _malformed(asking: FetchRequest, has_acks: bool) -> Refused | None:
    limits = (asking.bytes_max, asking.bytes_min, asking.records_max, asking.wait_ms_max)
    if asking.renews and any(limits):
        return Refused(Why.INVALID_REQUEST, "a renewal fetches nothing: its limits must be 0")
    if asking.epoch == OPEN and has_acks:
        return Refused(Why.INVALID_REQUEST, "a new session has nothing to acknowledge")
    return None


def _order(services: Services, who: SessionKey) -> Sequence[TopicPartition]:
    """The partitions of a session, from another one on with every request."""
    session = services.shares.sessions.sessions[who]
    turn = session.next_epoch % max(len(session.partitions), 1)
    return session.partitions[turn:] + session.partitions[:turn]


def _told(
    services: Services, who: SessionKey, poll: SharePoll, fault: StorageFault | None
) -> Raw:  # fmt: skip
    """The answer of a poll that waited for the journal, when it leaves."""
    answer = _answer(services, who, poll.outcome(fault))
    poll.end()
    return answer


def _durable(services: Services, who: SessionKey, poll: SharePoll) -> Later | Raw:
    """The answer, once what it rests on is in the journal; an acquisition alone is not."""
    shard = poll.shard
    if shard.is_durable:
        return _answer(services, who, poll.outcome(None))
    later = Later()

    def tell(fault: StorageFault | None) -> None:
        later.set(partial(_told, services, who, poll, fault))

    shard.when_durable(tell)
    return later


async def _when_found(
    services: Services, who: SessionKey, poll: SharePoll, asking: FetchRequest, wait_ms_max: int
) -> Answer:
    """The answer, once there are records enough or errors, or the time is up."""
    try:
        await _search(services, who, poll, asking, wait_ms_max)
        parts = poll.outcome(await _fault(services, who))
        if len(parts) <= PORTION:
            return _answer(services, who, parts)
        written = _written(services, who, parts)
        async with services.budgets.one_large():
            return Raw(await services.budgets.in_thread(written))
    finally:
        poll.end()


async def _search(
    services: Services, who: SessionKey, poll: SharePoll, asking: FetchRequest, wait_ms_max: int
) -> None:
    """Look for records, and wait for some."""
    bytes_min = _bytes_min(asking)
    began = services.clock.mono()
    keys = [*poll.order, wait_key(who[0])]
    # What comes to a partition while a look pauses behind it must end the wait, too.
    watched = len(poll.order) >= LOOK_PORTION and not services.waits.is_full
    lacking = [*keys, ROOM]

    def lacks(key: Hashable) -> bool:
        return key != ROOM or poll.lacks_room

    with services.waits.watch(lacking if watched else (), lacks) as watch:
        # Both at first too: something may have come before this task began to run.
        while poll.is_awaited and not await poll.look_in_portions(bytes_min):
            wait_ms = min(wait_ms_max, _ERRORS_WAIT_MS) if poll.has_errors else wait_ms_max
            left_ms = wait_ms - elapsed_ms(began, services.clock.mono())
            if watched:
                wait = watch.wait(left_ms)
            else:
                wait = services.waits.wait(lacking if poll.lacks_room else keys, left_ms)
            if not await wait:
                if bytes_min > 1 and wait_ms_max > 0 and poll.is_awaited:
                    await poll.look_in_portions()
                break


async def _fault(services: Services, who: SessionKey) -> StorageFault | None:
    """Wait until the group's shard is durable; return why it cannot be."""
    try:
        await services.shares.shard(who[0]).durable()
    except StorageFault as error:
        return error
    return None


def _answer(services: Services, who: SessionKey, parts: Sequence[FetchedPart]) -> Raw:
    return Raw(_written(services, who, parts)())


def _written(
    services: Services, who: SessionKey, parts: Sequence[FetchedPart]
) -> Callable[[], list[Buffer]]:
    """Count the errors of an answer; return what encodes it."""
    for part in parts:
        services.metrics.failed(_KEY, part.code)
        services.metrics.failed(_KEY, part.acknowledge_code)
    lock_ms = services.shares.policy(who[0]).lock_ms
    return partial(share_requests.written_fetch, parts, lock_ms=lock_ms)


async def _refused_later(refused: Refused, wait_ms: int, services: Services) -> Answer:
    await services.waits.wait((), wait_ms)
    return _refusal(refused, services)


def _refusal(refused: Refused, services: Services) -> Raw:
    code = error_code(refused)
    services.metrics.failed(_KEY, code)
    return Raw(share_requests.written_fetch((), code=code, message=refused.message))
