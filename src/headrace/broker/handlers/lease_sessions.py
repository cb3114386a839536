"""ListLeaseSessions (20921): the sessions of `core/leases.py`; see `wire/lease_sessions.py`."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.lease_settling import locked
from headrace.core.leases import Lease
from headrace.core.ordered import ascending
from headrace.core.types import elapsed_ms
from headrace.wire import lease_sessions as wire
from headrace.wire.primitives import Reader

_PORTION = 50  # sessions that are described without a pause
_LOOKED = 10_000  # keys that are looked at without a pause


async def handle(request: Request, services: Services) -> Answer:
    call = wire.ListLeaseSessionsRequest.read(Reader(request.body))
    answer = await _listed(call, services)
    return await services.budgets.written(answer, len(answer.sessions))


async def _listed(
    call: wire.ListLeaseSessionsRequest, services: Services
) -> wire.ListLeaseSessionsResponse:
    machines = [shard.machine for shard in services.shares.shards]
    found = list[wire.Session]()
    async with services.budgets.one_large(), aclosing(_walk(call, services)) as leases:
        async for lease in leases:
            found.append(await _session(lease, services))
            if len(found) > wire.SESSIONS_MAX:
                break
            if len(found) % _PORTION == 0:
                await asyncio.sleep(0)
    faulty = await services.shares.durable(machines)
    if faulty is not None:
        return wire.ListLeaseSessionsResponse(error_code(faulty), faulty.message)
    sessions, more = tuple(found[: wire.SESSIONS_MAX]), int(len(found) > wire.SESSIONS_MAX)
    return wire.ListLeaseSessionsResponse(Code.NONE, None, sessions, more)


async def _walk(
    call: wire.ListLeaseSessionsRequest, services: Services
) -> AsyncGenerator[Lease, None]:
    """Yield the leases of the request in order, with a pause after each `_LOOKED` of a group.

    Leases may come and go between two steps.
    """
    shares, after = services.shares, (call.after_group, call.after_session)
    groups = [
        name
        for shard in shares.shards
        for name in shares.machine_of(shard).with_leases()
        if name >= call.after_group and call.group in ("", name)
    ]
    for name in ascending(groups):
        keys = list(shares.machine(name).leases_of(name))
        later = list[str]()
        for first in range(0, len(keys), _LOOKED):
            part = keys[first : first + _LOOKED]
            later += [session for group, session in part if (group, session) > after]
            if len(part) == _LOOKED:
                await asyncio.sleep(0)
        for session in ascending(later):
            lease = shares.machine(name).leases_of(name).get((name, session))
            if lease is not None:
                yield lease


async def _session(lease: Lease, services: Services) -> wire.Session:
    group, name = lease.key
    now, seen_ms = services.clock.now(), wire.UNKNOWN
    if lease.seen_until is not None:  # each call holds for as long as locks last
        lock_ms = services.shares.policy(group).lock_ms
        seen_ms = max(0, lock_ms - elapsed_ms(now.mono, lease.seen_until))
    partitions = services.shares.machine(group).partitions
    epoch, committed, active = lease.epoch, lease.committed, int(lease.is_member(now))
    outstanding, acquired = list[wire.Outstanding](), 0
    for seq, one in sorted(lease.acquisitions.items()):
        records = 0
        async for held in services.budgets.portions(one.held):
            records += locked(lease, (held,), partitions)
            acquired += held.span.count
        outstanding.append(wire.Outstanding(seq, records))
    lapsed = acquired - sum(one.records for one in outstanding)
    return wire.Session(
        group, name, epoch, committed, active, seen_ms, lease.topics, tuple(outstanding), lapsed
    )
