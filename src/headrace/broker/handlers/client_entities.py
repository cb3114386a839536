"""DescribeClientQuotas (48) and DescribeUserScramCredentials (50): there are neither.

`kafka-configs --describe` asks for both when it is asked for users, clients or addresses.
Source: KIP-546, KIP-554.
"""

from headrace.broker.errors import Code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services

_QUOTAS, _SCRAM = 48, 50


async def handle(
    request: Request,
    services: Services,  # noqa: ARG001  # asked by Handler
) -> Answer:
    message = request.message()
    fine = {"error_code": Code.NONE, "error_message": None}
    if request.api_key == _QUOTAS:
        return fine | {"entries": []}
    absent = {
        "error_code": Code.RESOURCE_NOT_FOUND,
        "error_message": "there is no authentication, and so no user",
        "credential_infos": [],
    }
    names = dict.fromkeys(user.name for user in message.users or ())
    return fine | {"results": [{"user": name} | absent for name in names]}
