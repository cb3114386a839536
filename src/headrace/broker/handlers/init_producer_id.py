"""InitProducerId (22): ids for idempotent producers; transactional ids are refused.

Source: InitProducerIdRequest.json; KafkaApis.handleInitProducerIdRequest,
TransactionCoordinator.handleInitProducerId (4.3).
"""

from typing import Any

from headrace.broker import transactions
from headrace.broker.errors import Code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services

_TRANSACTION_MS_MAX = 900_000  # the default of Kafka's transaction.max.timeout.ms


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    refused = _refused(message)
    if refused is transactions.REFUSAL:
        transactions.log_refusal(message.transactional_id, request, services)
    if refused is not None:
        return {"error_code": refused, "producer_id": -1, "producer_epoch": -1}
    return {
        "error_code": Code.NONE,
        "producer_id": await services.topics.next_producer_id(),
        "producer_epoch": 0,
    }


def _refused(message: Any) -> Code | None:
    producer = getattr(message, "producer_id", -1), getattr(message, "producer_epoch", -1)
    if (producer[0] == -1) != (producer[1] == -1):
        return Code.INVALID_REQUEST
    if message.transactional_id is None:
        return None
    if not message.transactional_id:
        return Code.INVALID_REQUEST
    if not 0 < message.transaction_timeout <= _TRANSACTION_MS_MAX:
        return Code.INVALID_TRANSACTION_TIMEOUT
    return transactions.REFUSAL
