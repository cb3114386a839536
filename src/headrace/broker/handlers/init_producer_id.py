"""InitProducerId (22): ids for idempotent producers; transactions are not served."""

from headrace.broker.errors import Code
from headrace.broker.request import Answer, Api, Request
from headrace.broker.services import Services

APIS = (Api(22, "InitProducerId", range(6)),)


async def handle(request: Request, services: Services) -> Answer:
    transactional_id = request.message().transactional_id
    if transactional_id is not None:
        code = Code.UNSUPPORTED_VERSION if transactional_id else Code.INVALID_REQUEST
        return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
    return {
        "error_code": Code.NONE,
        "producer_id": await services.topics.next_producer_id(),
        "producer_epoch": 0,
    }
