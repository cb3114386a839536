"""FindCoordinator (10): this broker coordinates every group and share-partition.

Transactions are not supported. A transactional id is refused with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: the one error that librdkafka, Java and franz-go take as
fatal here; they repeat the request after any other.
"""

import re
from typing import Any

from headrace.broker import transactions
from headrace.broker.errors import Code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services

_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_SHARE_SINCE = 6
_LOGGED_MAX = 10  # transactional ids of one request
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    kind = getattr(message, "key_type", _GROUP)
    keys = [message.key] if request.version < 4 else list(dict.fromkeys(message.coordinator_keys))
    if kind == _TRANSACTION:
        for key in keys[:_LOGGED_MAX]:
            transactions.log_refusal(key, request, services)
    if request.version < 4:
        return _found(message.key, kind, request.version, services)
    return {
        "coordinators": [
            _found(key, kind, request.version, services)
            async for key in services.budgets.portions(keys)
        ]
    }


def _found(key: str, kind: int, version: int, services: Services) -> dict[str, Any]:
    code, wrong = Code.INVALID_REQUEST, _wrong(key, kind, version)
    if kind == _TRANSACTION:
        code, wrong = transactions.REFUSAL, transactions.MESSAGE
    if wrong:
        return {
            "key": key, "node_id": -1, "host": "", "port": -1,
            "error_code": code, "error_message": wrong,
        }  # fmt: skip
    return {
        "key": key,
        "node_id": services.config.node_id,
        "host": services.host,
        "port": services.port,
        "error_code": Code.NONE,
        "error_message": "NONE" if version < 4 else "",
    }


def _wrong(key: str, kind: int, version: int) -> str | None:
    if kind == _GROUP:
        return None
    if kind != _SHARE or version < _SHARE_SINCE:
        return f"coordinator type {kind} is not known in version {version}"
    # A group's name may hold colons, so the key is split from the right.
    group, _, rest = key.rpartition(":")[0].rpartition(":")
    partition = key.rpartition(":")[2]
    if not (group and _TOPIC_ID.fullmatch(rest) and partition.isascii() and partition.isdigit()):
        return f"{key!r} is not group:topicId:partition"
    return None
