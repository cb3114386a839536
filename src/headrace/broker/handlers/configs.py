"""DescribeConfigs (32) and IncrementalAlterConfigs (44) of topics, groups and this broker.

What was set for a topic or group is kept in the catalogue; the broker's own settings are those it
was started with and cannot be changed while it runs. A group may be configured before it exists.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.broker.config import Config
from headrace.broker.errors import Code, Faulty, error_code
from headrace.broker.group_settings import GroupSettings
from headrace.broker.request import Answer, Api, Request
from headrace.broker.services import Services
from headrace.broker.settings import INT_MAX, ConfigError, Setting, spelled
from headrace.broker.topic_settings import TopicSettings
from headrace.core.catalog import Resource, SetConfigs

DESCRIBE, ALTER = 32, 44
APIS = (
    Api(DESCRIBE, "DescribeConfigs", range(1, 5)),
    Api(ALTER, "IncrementalAlterConfigs", range(2)),
)
_BROKER = 4
# ConfigResponse's sources and types, as numbered by Kafka.
_FROM_TOPIC, _FROM_START, _FROM_DEFAULT, _FROM_GROUP = 1, 4, 5, 8
_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = 1, 2, 3, 5, 6, 7
_SET, _DELETE = 0, 1


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    if request.api_key == DESCRIBE:
        return {"results": [_described(asked, services) for asked in message.resources]}
    responses = [
        await _altered(asked, services, message.validate_only) for asked in message.resources
    ]
    return {"responses": responses}


def topic_configs(config: Config, overrides: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every setting of a topic, as DescribeConfigs and CreateTopics show it."""
    resolved = TopicSettings.resolve(config, overrides)
    return _shown(TopicSettings.settings(), resolved, overrides, _FROM_TOPIC)


def _described(asked: Any, services: Services) -> dict[str, Any]:
    result = {
        "error_code": Code.NONE,
        "error_message": None,
        "resource_type": asked.resource_type,
        "resource_name": asked.resource_name,
        "configs": [],
    }
    try:
        shown = _configs(asked.resource_type, asked.resource_name, services)
    except Faulty as fault:
        return result | {"error_code": fault.code, "error_message": str(fault)}
    keys = set(asked.configuration_keys or ())
    return result | {"configs": [one for one in shown if not keys or one["name"] in keys]}


def _configs(kind: int, name: str, services: Services) -> list[dict[str, Any]]:
    config, catalog = services.config, services.catalog
    if kind == Resource.TOPIC:
        if name not in catalog.topics:
            raise Faulty(Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        return topic_configs(config, catalog.configs_of(Resource.TOPIC, name))
    if kind == Resource.GROUP:
        _require_group(name)
        overrides = catalog.configs_of(Resource.GROUP, name)
        resolved = GroupSettings.resolve(config, overrides)
        return _shown(GroupSettings.settings(), resolved, overrides, _FROM_GROUP)
    if kind == _BROKER:
        if name not in {"", str(config.node_id)}:
            raise Faulty(Code.INVALID_REQUEST, f"this is broker {config.node_id}, not {name!r}")
        settings = Config.settings()
        started_with = {
            setting.name: ""
            for field, setting in settings.items()
            if getattr(config, field) != setting.default
        }
        return _shown(settings, config, started_with, _FROM_START, read_only=True)
    raise Faulty(Code.INVALID_REQUEST, f"resources of type {kind} have no configuration here")


def _shown(
    settings: Mapping[str, Setting],
    resolved: Any,
    overridden: Iterable[str],
    source: int,
    *,
    read_only: bool = False,
) -> list[dict[str, Any]]:
    return [
        {
            "name": setting.name,
            "value": _spelled(getattr(resolved, field)),
            "read_only": read_only,
            "config_source": source if setting.name in overridden else _FROM_DEFAULT,
            "is_sensitive": False,
            "synonyms": [],
            "config_type": _type(setting),
            "documentation": setting.doc,
        }
        for field, setting in settings.items()
    ]


def _spelled(value: Any) -> str | None:
    return None if value is None else spelled(value)


def _type(setting: Setting) -> int:
    if setting.type is int:
        return _INT if setting.high is not None and setting.high <= INT_MAX else _LONG
    return {bool: _BOOLEAN, float: _DOUBLE, tuple: _LIST}.get(setting.type, _STRING)


async def _altered(asked: Any, services: Services, validate_only: bool) -> dict[str, Any]:
    result = {
        "error_code": Code.NONE,
        "error_message": None,
        "resource_type": asked.resource_type,
        "resource_name": asked.resource_name,
    }
    try:
        values = _new_values(asked, services)
    except Faulty as fault:
        return result | {"error_code": fault.code, "error_message": str(fault)}
    except ConfigError as error:
        return result | {"error_code": Code.INVALID_CONFIG, "error_message": str(error)}
    if values and not validate_only:
        command = SetConfigs(Resource(asked.resource_type), asked.resource_name, values)
        refused = await services.topics.set_configs(command)
        if refused is not None:
            return result | {"error_code": error_code(refused), "error_message": refused.message}
    return result


def _new_values(asked: Any, services: Services) -> dict[str, str | None]:
    """Checked values by setting name. Raises: Faulty, ConfigError."""
    kind, name = asked.resource_type, asked.resource_name
    if kind == _BROKER:
        message = "the settings of a broker are those it was started with (serve --set)"
        raise Faulty(Code.INVALID_REQUEST, message)
    if kind not in set(Resource):
        raise Faulty(Code.INVALID_REQUEST, f"resources of type {kind} have no configuration here")
    if kind == Resource.TOPIC and name not in services.catalog.topics:
        raise Faulty(Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
    if kind == Resource.GROUP:
        _require_group(name)
    table = TopicSettings if kind == Resource.TOPIC else GroupSettings
    values: dict[str, str | None] = {}
    for change in asked.configs:
        _, setting = table.find(change.name)
        if setting.name in values:
            raise Faulty(Code.INVALID_REQUEST, f"{setting.name} is named twice")
        if change.config_operation == _DELETE:
            values[setting.name] = None
        elif change.config_operation == _SET and change.value is not None:
            values[setting.name] = spelled(setting.parse(change.value))
        else:
            raise ConfigError(f"{setting.name} is no list; set it or delete it")
    if kind == Resource.GROUP:
        given = {key: value for key, value in values.items() if value is not None}
        GroupSettings.check(services.config, given)
    return values


def _require_group(name: str) -> None:
    if not name:
        raise Faulty(Code.INVALID_REQUEST, "the name of a group may not be empty")
