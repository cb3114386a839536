"""DescribeConfigs (32): the settings of topics, of groups, and of this broker.

A group may be asked for before it exists. The loggers of a broker have no levels of their own.
"""

import asyncio
from typing import Any

from headrace.broker.addresses import address_text
from headrace.broker.config_entries import Entries
from headrace.broker.dynamic_config import EVERY_BROKER
from headrace.broker.errors import Code, Faulty
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.catalog import Resource

_BROKER_LOGGER = 8
ENTRIES_MAX = 50_000  # in one response: some 1,200 topics
_OPTIONAL: tuple[tuple[str, str, Any], ...] = (
    ("include_synonyms", "synonyms", []),
    ("include_documentation", "documentation", None),
)


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    left_out = {
        field: empty for asked, field, empty in _OPTIONAL if not getattr(message, asked, False)
    }
    # Once each, with all keys that were asked for.
    keys: dict[tuple[int, str], set[str] | None] = {}
    for asked in message.resources:
        named = (asked.resource_type, asked.resource_name)
        before, new = keys.get(named, set()), set(asked.configuration_keys or ())
        keys[named] = before | new if before is not None and new else None
    entries = Entries(services.topics.started_with, services.catalog)
    results: list[dict[str, Any]] = []
    room = ENTRIES_MAX
    async with services.budgets.one_large():
        for (kind, name), wanted in keys.items():
            results.append(_described(kind, name, wanted, services, entries, left_out, room))
            room -= len(results[-1]["configs"])
            await asyncio.sleep(0)  # tools ask for every topic in one request
        return await services.budgets.encoded(request, {"results": results})


def _described(
    kind: int, name: str, keys: set[str] | None, services: Services, entries: Entries,
    left_out: dict[str, Any], room: int,
) -> dict[str, Any]:  # fmt: skip
    """The settings of a resource, those of `keys` or all, or why they are not told."""
    result: dict[str, Any] = {
        "error_code": Code.NONE,
        "error_message": None,
        "resource_type": kind,
        "resource_name": name,
        "configs": [],
    }
    try:
        if room <= 0:
            raise Faulty(
                Code.INVALID_REQUEST,
                f"a response has at most {ENTRIES_MAX} settings; request fewer resources at a time",
            )
        shown = _shown(kind, name, services, entries)
    except Faulty as fault:
        return result | {"error_code": fault.code, "error_message": str(fault)}
    return result | {
        "configs": [one | left_out for one in shown if keys is None or one["name"] in keys]
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
        shown = [*entries.of_broker(), *entries.of_process(_process_values(services))]
        for one in shown:
            if one["name"] == "advertised.listeners" and not one["value"]:
                one["value"] = _url(services.host, services.port)
        return shown
    raise Faulty(Code.INVALID_REQUEST, f"resources of type {kind} have no configuration here")


def _url(host: str, port: int) -> str:
    return f"PLAINTEXT://{address_text(host, port)}"


def _process_values(services: Services) -> dict[str, str]:
    return {
        "listeners": _url(services.bound_host or services.host, services.bound_port),
        "log.dirs": str(services.folder.absolute()),
    }


def require_this_broker(name: str, services: Services) -> None:
    """Raises: Faulty for the name of another broker."""
    if name != str(services.config.node_id):
        raise Faulty(
            Code.INVALID_REQUEST, f"this is broker {services.config.node_id}, not {name!r}"
        )
