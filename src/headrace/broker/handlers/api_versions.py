"""ApiVersions (18): what is served, from the handlers registered; KIP-511 for the fallback."""

from typing import Any

from headrace.broker.apis import Api
from headrace.broker.errors import Code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.wire import codec

KEY = 18


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    named = request.version < 3 or (
        message.client_software_name and message.client_software_version
    )
    if not named:
        return {"error_code": Code.INVALID_REQUEST, "api_keys": []}
    levels = {"group.version": 1, "share.version": int(services.config.share_group_enable)}
    return {
        "error_code": Code.NONE,
        "api_keys": [_shown(api) for api in services.apis],
        "supported_features": [
            {"name": name, "min_version": 0 if request.version > 3 else 1, "max_version": 1}
            for name in levels
        ],
        "finalized_features_epoch": 0,
        "finalized_features": [
            {"name": name, "min_version_level": level, "max_version_level": level}
            for name, level in levels.items()
        ],
    }


def unsupported(api: Api) -> bytearray:
    """The body for a version that is not served: version 0, error 35, and what is."""
    return codec.encode_response(
        KEY, 0, {"error_code": Code.UNSUPPORTED_VERSION, "api_keys": [_shown(api)]}
    )


def _shown(api: Api) -> dict[str, Any]:
    lowest = api.versions.start if api.advertised_from is None else api.advertised_from
    return {"api_key": api.key, "min_version": lowest, "max_version": api.versions.stop - 1}
