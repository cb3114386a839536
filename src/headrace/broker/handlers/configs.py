"""DescribeConfigs (32): the settings of topics, of groups, and of this broker.

A group may be asked for before it exists. The loggers of a broker have no levels of their own.
"""

import asyncio
from typing import Any

from headrace.broker.config_entries import Entries
from headrace.broker.dynamic_config import EVERY_BROKER
from headrace.broker.errors import Code, Faulty
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.catalog import Resource

_BROKER_LOGGER = 8
_OPTIONAL: tuple[tuple[str, str, Any], ...] = (
    ("include_synonyms", "synonyms", []),
    ("include_documentation", "documentation", None),
)


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    left_out = {
        field: empty for asked, field, empty in _OPTIONAL if not getattr(message, asked, False)
    }
    entries = Entries(services.topics.started_with, services.catalog)
    results = []
    for asked in message.resources:
        results.append(_described(asked, services, entries, left_out))
        await asyncio.sleep(0)  # tools ask for every topic in one request
    return {"results": results}


def _described(
    asked: Any, services: Services, entries: Entries, left_out: dict[str, Any]
) -> dict[str, Any]:
    result = {
        "error_code": Code.NONE,
        "error_message": None,
        "resource_type": asked.resource_type,
        "resource_name": asked.resource_name,
        "configs": [],
    }
    try:
        shown = _shown(asked.resource_type, asked.resource_name, services, entries)
    except Faulty as fault:
        return result | {"error_code": fault.code, "error_message": str(fault)}
    keys = set(asked.configuration_keys or ())
    return result | {
        "configs": [one | left_out for one in shown if not keys or one["name"] in keys]
    }


def _shown(kind: int, name: str, services: Services, entries: Entries) -> list[dict[str, Any]]:
    catalog = services.catalog
    if kind == Resource.TOPIC:
        if name not in catalog.topics:
            raise Faulty(Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        return entries.of_topic(catalog.configs_of(Resource.TOPIC, name))
    if kind == Resource.GROUP:
        if not name:
            raise Faulty(Code.INVALID_REQUEST, "the name of a group may not be empty")
        return entries.of_group(name)
    if kind == Resource.BROKER and name == EVERY_BROKER:
        return entries.of_every_broker()
    if kind in {Resource.BROKER, _BROKER_LOGGER}:
        require_this_broker(name, services)
        if kind == _BROKER_LOGGER:
            return []
        return [*entries.of_broker(), *entries.of_process(_process_values(services))]
    raise Faulty(Code.INVALID_REQUEST, f"resources of type {kind} have no configuration here")


def _process_values(services: Services) -> dict[str, str]:
    def url(host: str) -> str:
        name = f"[{host}]" if ":" in host else host
        return f"PLAINTEXT://{name}:{services.port}"

    return {
        "listeners": url(services.bound_host or services.host),
        "advertised.listeners": url(services.host),
        "log.dirs": str(services.folder.absolute()),
    }


def require_this_broker(name: str, services: Services) -> None:
    """Raises: Faulty for the name of another broker."""
    if name != str(services.config.node_id):
        raise Faulty(
            Code.INVALID_REQUEST, f"this is broker {services.config.node_id}, not {name!r}"
        )
