"""ListLeaseSessions (20921): the sessions of `core/leases.py`; see `wire/lease_sessions.py`."""

from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Raw, Request
from headrace.broker.services import Services
from headrace.core.lease_settling import locked
from headrace.core.leases import Lease
from headrace.core.types import elapsed_ms
from headrace.wire import lease_sessions as wire
from headrace.wire.primitives import Reader, Writer


async def handle(request: Request, services: Services) -> Answer:
    out = Writer()
    asked = wire.ListLeaseSessionsRequest.read(Reader(request.body))
    (await _listed(asked, services)).write(out)
    return Raw([out.data])


async def _listed(
    asked: wire.ListLeaseSessionsRequest, services: Services
) -> wire.ListLeaseSessionsResponse:
    machines = [shard.machine for shard in services.shares.shards]
    after = (asked.after_group, asked.after_session)
    leases = [
        lease
        for shard in services.shares.shards
        for key, lease in services.shares.machine_of(shard).leases.items()
        if key > after and asked.group in ("", key[0])
    ]
    leases.sort(key=lambda one: one.key)
    told = tuple([await _session(one, services) for one in leases[: wire.SESSIONS_MAX]])
    faulty = await services.shares.durable(machines)
    if faulty is not None:
        return wire.ListLeaseSessionsResponse(error_code(faulty), faulty.message)
    more = int(len(leases) > wire.SESSIONS_MAX)
    return wire.ListLeaseSessionsResponse(Code.NONE, None, told, more)


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
