"""Every API of share groups while `share.group.enable` is false: error 35 (UNSUPPORTED_VERSION).

As Kafka answers while the feature share.version is 0. ApiVersions does not list them then, so that
clients say it themselves; this is for those who call all the same.
"""

from collections.abc import Callable
from typing import Any

from headrace.broker.errors import Code
from headrace.broker.group_descriptions import NOTHING_KNOWN
from headrace.broker.request import Answer, Raw, Request
from headrace.broker.services import Services
from headrace.wire import lease_sessions, leases, share_archived, share_records
from headrace.wire.leases import LeaseApi
from headrace.wire.primitives import Writer
from headrace.wire.share_archived import ArchivedApi
from headrace.wire.structs import Struct

_TOLD = "This broker serves no share groups: share.group.enable is false."
_WHOLE: dict[str, Any] = {"error_code": Code.UNSUPPORTED_VERSION, "error_message": _TOLD}
_MEMBER = {"member_id": None, "member_epoch": 0, "heartbeat_interval": 0, "assignment": None}
_NOTHING_HELD = {"acquisition_lock_timeout": 0, "responses": (), "node_endpoints": ()}
_OURS: dict[int, Callable[[int, str], Struct]] = {
    LeaseApi.OPEN: leases.OpenResponse,
    LeaseApi.ACQUIRE: leases.AcquireResponse,
    LeaseApi.RENEW: leases.RenewResponse,
    LeaseApi.STAGE: leases.StageResponse,
    LeaseApi.COMMIT: leases.CommitResponse,
    LeaseApi.DESCRIBE: leases.DescribeResponse,
    share_records.KEY: share_records.DescribeShareRecordsResponse,
    ArchivedApi.LIST: share_archived.ListArchivedResponse,
    ArchivedApi.CLEAR: share_archived.ClearArchivedResponse,
    lease_sessions.KEY: lease_sessions.ListLeaseSessionsResponse,
}


async def handle(request: Request, services: Services) -> Answer:  # noqa: ARG001  # as all handlers
    match request.api_key:
        case 76:
            return _WHOLE | _MEMBER
        case 77:
            groups = dict.fromkeys(request.message().group_ids)
            return {"groups": [{"group_id": name} | _WHOLE | NOTHING_KNOWN for name in groups]}
        case 78 | 79:
            return _WHOLE | _NOTHING_HELD
        case 90:
            groups = dict.fromkeys(one.group_id for one in request.message().groups)
            return {"groups": [{"group_id": name, "topics": ()} | _WHOLE for name in groups]}
        case 91 | 92:
            return _WHOLE | {"responses": ()}
        case key:
            out = Writer()
            _OURS[key](Code.UNSUPPORTED_VERSION, _TOLD).write(out)
            return Raw([out.data])
