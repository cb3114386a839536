"""FindCoordinator (10): this broker coordinates every group, transaction and share-partition."""

import re
from typing import Any

from headrace.broker.errors import Code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services

_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_SHARE_SINCE = 6
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    kind = getattr(message, "key_type", _GROUP)
    if request.version < 4:
        return _found(message.key, kind, request.version, services)
    keys = message.coordinator_keys
    return {"coordinators": [_found(key, kind, request.version, services) for key in keys]}


def _found(key: str, kind: int, version: int, services: Services) -> dict[str, Any]:
    wrong = _wrong(key, kind, version)
    if wrong:
        return {
            "key": key, "node_id": -1, "host": "", "port": -1,
            "error_code": Code.INVALID_REQUEST, "error_message": wrong,
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
    if kind in {_GROUP, _TRANSACTION}:
        return None
    if kind != _SHARE or version < _SHARE_SINCE:
        return f"coordinator type {kind} is not known in version {version}"
    # A group's name may hold colons, so the key is split from the right.
    group, _, rest = key.rpartition(":")[0].rpartition(":")
    partition = key.rpartition(":")[2]
    if not (group and _TOPIC_ID.fullmatch(rest) and partition.isascii() and partition.isdigit()):
        return f"{key!r} is not group:topicId:partition"
    return None
