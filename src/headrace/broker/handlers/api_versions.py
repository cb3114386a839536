"""ApiVersions (18): what is served, from the handlers registered; KIP-511 for the fallback.

Versions 3 and newer list features as Kafka 4.3 does: metadata.version, group.version and
share.version. transaction.version, streams.version, eligible.leader.replicas.version and
kraft.version would be at level 0, and features at level 0 are not listed (KIP-584).
"""

from typing import Any

from headrace.broker.apis import Api
from headrace.broker.errors import Code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.wire import codec

KEY = 18
_METADATA_VERSIONS = (7, 30)  # 3.3-IV3, the oldest that Kafka 4 can have, and 4.3-IV0


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    named = request.version < 3 or (
        message.client_software_name and message.client_software_version
    )
    if not named:
        return {"error_code": Code.INVALID_REQUEST, "api_keys": []}
    lowest = 0 if request.version > 3 else 1
    share = int(services.config.share_group_enable)
    features = (
        ("group.version", lowest, 1, 1),
        ("metadata.version", *_METADATA_VERSIONS, _METADATA_VERSIONS[1]),
        ("share.version", lowest, 1, share),
    )
    return {
        "error_code": Code.NONE,
        "api_keys": [_shown(api) for api in services.apis],
        "supported_features": [
            {"name": name, "min_version": low, "max_version": high}
            for name, low, high, _ in features
        ],
        "finalized_features_epoch": 0,
        "finalized_features": [
            {"name": name, "min_version_level": level, "max_version_level": level}
            for name, _, _, level in features
            if level
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
