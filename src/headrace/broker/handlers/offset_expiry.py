"""DescribeOffsetExpiry (20920): the forecast of the sweep over committed offsets.

Messages are those of `wire/offset_expiry.py`; decided by `core/offset_forecast.py`.
"""

from itertools import islice

from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.offset_forecast import Kept, Outlook, walked_outlooks
from headrace.wire.offset_expiry import (
    OFFSETS_MAX,
    DescribeOffsetExpiryRequest,
    DescribeOffsetExpiryResponse,
    Expiry,
    Fate,
)
from headrace.wire.primitives import Reader


async def handle(request: Request, services: Services) -> Answer:
    call = DescribeOffsetExpiryRequest.read(Reader(request.body))
    answer = await _described(call, services)
    return await services.budgets.written(answer, len(answer.offsets))


async def _described(
    call: DescribeOffsetExpiryRequest, services: Services
) -> DescribeOffsetExpiryResponse:
    groups = services.groups
    machines = [shard.machine for shard in groups.shards]
    group, found = groups.find(call.group), list[Expiry]()
    if group is not None:
        retention = groups.retention_minutes(call.group)
        offsets = groups.offsets(call.group).walk_behind(call.topic, call.partition)
        page = islice(walked_outlooks(group, offsets, retention), OFFSETS_MAX + 1)
        async with services.budgets.one_large():
            found = [_expiry(one) async for one in services.budgets.portions(page)]
    faulty = await groups.durable(machines)
    if faulty is not None:
        return DescribeOffsetExpiryResponse(error_code(faulty), faulty.message)
    shown, more = tuple(found[:OFFSETS_MAX]), int(len(found) > OFFSETS_MAX)
    return DescribeOffsetExpiryResponse(Code.NONE, None, shown, more)


def _expiry(one: Outlook) -> Expiry:
    place = one.topic, one.partition, one.committed.committed_at
    fate = one.fate
    if isinstance(fate, Kept):
        return Expiry(*place, Fate[fate.name])
    return Expiry(*place, Fate[fate.base.name], fate.at, fate.since)
