"""IncrementalAlterConfigs (44) and AlterConfigs (33) of topics, groups and this broker.

The older of the two replaces everything that was set for a resource. What is set is kept in the
catalogue with values as this broker spells them. Source: ConfigAdminManager and
ConfigurationControlManager (4.3).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from headrace.broker.config import OPTIONS, Config
from headrace.broker.dynamic_config import EVERY_BROKER, overlaid
from headrace.broker.errors import Code, Faulty, error_code
from headrace.broker.group_settings import GroupSettings
from headrace.broker.handlers.configs import require_this_broker
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.broker.settings import ConfigError, Setting, Table, require_bounded, spelled
from headrace.broker.storage_faults import STORAGE_ERRORS, storage_text
from headrace.broker.topic_settings import TopicSettings
from headrace.core.catalog import Resource, SetConfigs

REPLACE, ALTER = 33, 44
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_TABLES: Mapping[int, type[Table]] = {
    Resource.TOPIC: TopicSettings,
    Resource.BROKER: Config,
    Resource.GROUP: GroupSettings,
}
_NAME_BYTES_MAX = 1000
_PORTION = 50  # resources that are checked without a pause
Values = dict[str, str | None]


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    values_of = _replaced if request.api_key == REPLACE else _altered
    times = Counter((one.resource_type, one.resource_name) for one in message.resources)
    responses = []
    async for asked in services.budgets.portions(message.resources, _PORTION):
        twice = times[asked.resource_type, asked.resource_name] > 1
        code, said = (
            (Code.INVALID_REQUEST, "a resource may be named once in a request")
            if twice
            else await _carry_out(asked, values_of, services, message.validate_only)
        )
        responses.append(
            {
                "error_code": code,
                "error_message": said,
                "resource_type": asked.resource_type,
                "resource_name": asked.resource_name,
            }
        )
    return {"responses": responses}


async def _carry_out(
    asked: Any,
    values_of: Callable[[Any, type[Table], Services], Values],
    services: Services,
    validate_only: bool,
) -> tuple[Code, str | None]:
    try:
        _require_resource(asked.resource_type, asked.resource_name, services)
        values = values_of(asked, _TABLES[asked.resource_type], services)
        resource = Resource(asked.resource_type)
        _check(resource, asked.resource_name, values, services)
    except Faulty as fault:
        return fault.code, str(fault)
    except ConfigError as error:
        # Kafka answers so for brokers: the request could be read, and yet cannot be applied.
        is_broker = asked.resource_type == Resource.BROKER
        return Code.INVALID_REQUEST if is_broker else Code.INVALID_CONFIG, str(error)
    if values and not validate_only:
        command = SetConfigs(resource, asked.resource_name, values)
        try:
            refused = await services.topics.set_configs(command)
        except STORAGE_ERRORS as error:
            return Code.STORAGE_ERROR, storage_text(error)
        if refused is not None:
            return error_code(refused), refused.message
    return Code.NONE, None


def _require_resource(kind: int, name: str, services: Services) -> None:
    """Raises: Faulty."""
    if kind not in _TABLES:
        raise Faulty(Code.INVALID_REQUEST, f"resources of type {kind} cannot be configured here")
    if kind == Resource.TOPIC and name not in services.catalog.topics:
        raise Faulty(Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
    if kind == Resource.GROUP and not name:
        raise Faulty(Code.INVALID_REQUEST, "the name of a group may not be empty")
    if kind == Resource.BROKER and name != EVERY_BROKER:
        require_this_broker(name, services)


def _replaced(asked: Any, table: type[Table], services: Services) -> Values:
    """What makes the values asked for the only ones that are set. Raises: Faulty, ConfigError."""
    old = services.catalog.configs_of(Resource(asked.resource_type), asked.resource_name)
    values: Values = dict.fromkeys(old)
    for change in asked.configs:
        setting = _setting(asked, table, change.name)
        if values.get(setting.name) is not None:
            raise Faulty(Code.INVALID_REQUEST, f"{setting.name} is named twice")
        values[setting.name] = _parsed(setting, change.value)
    return values


def _altered(asked: Any, table: type[Table], services: Services) -> Values:
    """The values that change. Raises: Faulty, ConfigError."""
    old = services.catalog.configs_of(Resource(asked.resource_type), asked.resource_name)
    values: Values = {}
    for change in asked.configs:
        is_gone = change.config_operation == _DELETE
        setting = _setting(asked, table, change.name, accepts_unknown=is_gone)
        if setting.name in values:
            raise Faulty(Code.INVALID_REQUEST, f"{setting.name} is named twice")
        if change.config_operation == _DELETE:
            values[setting.name] = None
        elif change.config_operation == _SET:
            values[setting.name] = _parsed(setting, change.value)
        elif change.config_operation in {_APPEND, _SUBTRACT}:
            values[setting.name] = _list_changed(setting, change, old.get(setting.name))
        else:
            raise Faulty(Code.INVALID_REQUEST, f"operation {change.config_operation} is not known")
    return values


def _setting(
    asked: Any, table: type[Table], name: str, *, accepts_unknown: bool = False
) -> Setting:
    """The declaration of a setting. Raises: ConfigError for an unknown name.

    As in Kafka, every name can be deleted, and a broker stores names that it does not know.
    """
    # Those that are options here would seem to be changed; DescribeConfigs has their values.
    is_stored = asked.resource_type == Resource.BROKER and name not in OPTIONS
    if (is_stored or accepts_unknown) and not table.knows(name):
        if not name or len(name.encode()) > _NAME_BYTES_MAX:
            raise ConfigError(f"the name of a setting has 1 to {_NAME_BYTES_MAX} bytes")
        return Setting(name, "", "")
    return table.find(name)[1]


def _list_changed(setting: Setting, change: Any, old: str | None) -> str:
    """A list with items more or less. Raises: Faulty, ConfigError."""
    if setting.type is not tuple:
        raise ConfigError(f"{setting.name} is no list: set it, or delete it")
    items = setting.default if old is None else setting.parse(old)
    named = setting.parse(_parsed(setting, change.value))
    if change.config_operation == _APPEND:
        return spelled((*items, *(item for item in named if item not in items)))
    return spelled(tuple(item for item in items if item not in named))


def _parsed(setting: Setting, text: str | None) -> str:
    """A value as this broker spells it. Raises: Faulty, ConfigError."""
    if text is None:
        raise Faulty(Code.INVALID_REQUEST, f"{setting.name}: null is no value; delete it instead")
    return spelled(setting.parse(text))


def _check(resource: Resource, name: str, values: Values, services: Services) -> None:
    """Whether the resource can have these values with all others. Raises: ConfigError."""
    given = {key: value for key, value in values.items() if value is not None}
    old = services.catalog.configs_of(resource, name)
    new = {key: text for key, text in {**old, **values}.items() if text is not None}
    require_bounded(new, old)
    if resource is Resource.TOPIC:
        TopicSettings.check(services.config, new)
    elif resource is Resource.GROUP:
        configured = services.catalog.configured_groups
        if not old and given and configured >= services.config.groups_max:
            raise ConfigError(
                f"{configured} groups have settings (headrace.max.groups); delete those of groups"
                " that are not used"
            )
        others = {key: text for key, text in new.items() if key not in given}
        GroupSettings.check(services.config, given, others, old.keys() - new.keys())
        _check_type(name, given.get("group.type", ""), services)
    else:
        overlaid(services.config, given)


def _check_type(group: str, wanted: str, services: Services) -> None:
    """group.type fixes the type of a group that is yet to come. Raises: ConfigError."""
    is_share, is_consumer = services.shares.exists(group), services.groups.find(group) is not None
    if (wanted == "consumer" and is_share) or (wanted == "share" and is_consumer):
        kind = "share" if is_share else "consumer"
        raise ConfigError(f"group.type: {group} is a {kind} group; delete it, or take another name")
