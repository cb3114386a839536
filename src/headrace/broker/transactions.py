"""The refusal of transactional producers: transactions are not supported."""

import logging

from headrace.broker.errors import Code
from headrace.broker.request import Request
from headrace.broker.services import Services

REFUSAL = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
MESSAGE = "this broker does not support transactions; unset transactional.id"


def log_refusal(transactional_id: str, request: Request, services: Services) -> None:
    """Log one line for each client and transactional id, throttled."""
    subject = f"transactional id {transactional_id[:256]!r}"
    services.refusals.refused(subject, request.asked_by(), MESSAGE, level=logging.WARNING)
