"""ListConfigResources (74): what has a configuration. Version 0 asks for client metrics alone.

Source: KIP-1142, ConfigHelper (4.3).
"""

from headrace.broker.errors import Code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.catalog import Resource

_BROKER_LOGGER, _CLIENT_METRICS = 8, 16
_PORTION = 5000
_KINDS = (Resource.TOPIC, Resource.BROKER, _BROKER_LOGGER, _CLIENT_METRICS, Resource.GROUP)


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    kinds = set(getattr(message, "resource_types", (_CLIENT_METRICS,))) or set(_KINDS)
    if not kinds <= set(_KINDS):
        return {"error_code": Code.UNSUPPORTED_VERSION, "config_resources": []}
    groups = [name for kind, name in services.catalog.configs if kind is Resource.GROUP]
    broker = [str(services.config.node_id)]
    names: dict[int, list[str]] = {
        Resource.TOPIC: list(services.catalog.topics),
        Resource.BROKER: broker,
        _BROKER_LOGGER: broker,
        _CLIENT_METRICS: [],
        Resource.GROUP: groups,
    }
    return {
        "error_code": Code.NONE,
        "config_resources": [
            {"resource_name": name, "resource_type": kind}
            for kind in _KINDS
            if kind in kinds
            async for name in services.budgets.portions(names[kind], _PORTION)
        ],
    }
