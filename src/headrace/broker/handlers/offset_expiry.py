"""DescribeOffsetExpiry (20920): the forecast of the sweep over committed offsets.

Messages are those of `wire/offset_expiry.py`; decided by `core/offset_forecast.py`.
"""

from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Raw, Request
from headrace.broker.services import Services
from headrace.core.offset_forecast import Kept, Outlook, outlooks
from headrace.wire.offset_expiry import (
    OFFSETS_MAX,
    DescribeOffsetExpiryRequest,
    DescribeOffsetExpiryResponse,
    Expiry,
    Fate,
)
from headrace.wire.primitives import Reader, Writer


async def handle(request: Request, services: Services) -> Answer:
    out = Writer()
    asked = DescribeOffsetExpiryRequest.read(Reader(request.body))
    (await _described(asked, services)).write(out)
    return Raw([out.data])


async def _described(
    asked: DescribeOffsetExpiryRequest, services: Services
) -> DescribeOffsetExpiryResponse:
    group, found = services.groups.find(asked.group), list[Outlook]()
    if group is not None:
        retention = services.groups.retention_minutes(asked.group)
        after = (asked.topic, asked.partition)
        offsets = (one for one in services.groups.offsets(asked.group) if one[:2] > after)
        found = outlooks(group, offsets, retention)
    faulty = await services.groups.durable()
    if faulty is not None:
        return DescribeOffsetExpiryResponse(error_code(faulty), faulty.message)
    told = tuple(map(_expiry, found[:OFFSETS_MAX]))
    return DescribeOffsetExpiryResponse(Code.NONE, None, told, int(len(found) > OFFSETS_MAX))


def _expiry(one: Outlook) -> Expiry:
    place = one.topic, one.partition, one.committed.committed_at
    fate = one.fate
    if isinstance(fate, Kept):
        return Expiry(*place, Fate[fate.name])
    return Expiry(*place, Fate[fate.base.name], fate.at, fate.since)
