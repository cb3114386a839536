"""DescribeCluster (60)."""

from headrace.broker.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED
from headrace.broker.errors import Code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services

_BROKERS, _CONTROLLERS = 1, 2


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    endpoint = getattr(message, "endpoint_type", _BROKERS)
    if endpoint != _BROKERS:
        return {
            "error_code": Code.MISMATCHED_ENDPOINT_TYPE
            if endpoint == _CONTROLLERS
            else Code.UNSUPPORTED_ENDPOINT_TYPE,
            "error_message": f"endpoint type {endpoint} is not served here",
            "cluster_id": services.cluster_id,
            "brokers": [],
        }
    node_id = services.config.node_id
    asks = message.include_cluster_authorized_operations
    return {
        "error_code": Code.NONE,
        "cluster_id": services.cluster_id,
        "controller_id": node_id,
        "brokers": [
            {
                "broker_id": node_id,
                "host": services.host,
                "port": services.port,
                "is_fenced": False,
            }
        ],
        "cluster_authorized_operations": CLUSTER_OPERATIONS if asks else NOT_ASKED,
    }
