"""`headrace configs`: settings of topics, brokers and groups, as kafka-configs does.

Options and text are those of Kafka 4.3's ConfigCommand; the entities that Headrace does not have
(users, clients, ips, loggers, metrics subscriptions) are refused by name.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.connect import (
    BOOTSTRAP_SERVER,
    BootstrapServer,
    CommandConfig,
    Json,
    Version,
    connect,
    require_address,
)
from headrace.cli.ending import Trouble, ending
from headrace.cli.properties import load

if TYPE_CHECKING:
    from headrace.client.configs import ConfigEntry, ResourceType
    from headrace.client.connection import Cluster

_TYPES = {"topics": "topic", "brokers": "broker", "groups": "group"}
_ADDED = re.compile(r"\s*([^=,\s]+)\s*=\s*(?:\[([^\]]*)\]|([^,]*))\s*(?:,|$)")


@dataclass(frozen=True, slots=True)
class _Entity:
    """What settings are asked of; `name` is None for all of the type, "" for its default."""

    type: str
    name: str | None

    @property
    def kind(self) -> "ResourceType":
        from headrace.client.configs import ResourceType

        return ResourceType[self.word.upper()]

    @property
    def word(self) -> str:
        return _TYPES[self.type]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(configs)


def configs(
    context: typer.Context,
    bootstrap_server: BootstrapServer = BOOTSTRAP_SERVER,
    entity_type: Annotated[
        str | None, typer.Option(help=f"What has the settings: {', '.join(_TYPES)}.")
    ] = None,
    entity_name: Annotated[
        str | None, typer.Option(help="Name of the topic or group, or id of the broker.")
    ] = None,
    entity_default: Annotated[
        bool, typer.Option("--entity-default", help="The default of all brokers.")
    ] = False,
    topic: Annotated[str | None, typer.Option(help="Short for topics by name.")] = None,
    broker: Annotated[str | None, typer.Option(help="Short for brokers by id.")] = None,
    group: Annotated[str | None, typer.Option(help="Short for groups by name.")] = None,
    describe: Annotated[
        bool, typer.Option("--describe", help="Print the settings made for it.")
    ] = False,
    all_: Annotated[
        bool, typer.Option("--all", help="Print all settings, defaults included.")
    ] = False,
    alter: Annotated[bool, typer.Option("--alter", help="Change settings.")] = False,
    add_config: Annotated[
        str | None, typer.Option(metavar="A=B,C=[X,Y]", help="Settings to make.")
    ] = None,
    add_config_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Properties file of settings to make.")
    ] = None,
    delete_config: Annotated[
        str | None, typer.Option(metavar="A,B", help="Settings to return to their defaults.")
    ] = None,
    as_json: Json = False,
    command_config: CommandConfig = None,
    _version: Version = False,
) -> None:
    """Describe or change settings of topics, brokers and groups; options are kafka-configs'.

    headrace configs --bootstrap-server host:9092 --alter --topic t --add-config retention.ms=1000
    """
    with ending("configs"):
        if describe == alter:
            raise Trouble("give exactly one of --describe and --alter")
        named = {"topics": topic, "brokers": broker, "groups": group}
        entity = _entity(entity_type, entity_name, named, entity_default)
        values = _values(add_config, add_config_file)
        delete = [name.strip() for name in (delete_config or "").split(",") if name.strip()]
        if describe and (values or delete):
            raise Trouble("--add-config and --delete-config go with --alter, not --describe")
        if alter and not (values or delete):
            raise Trouble(
                "At least one of --add-config, --add-config-file, or --delete-config must be "
                "specified with --alter"
            )
        if alter:
            require_address(context, "--alter")  # retention.ms=1 deletes records
        with connect(bootstrap_server, command_config) as cluster:
            if describe:
                _describe(cluster, entity, everything=all_, as_json=as_json)
            else:
                _alter(cluster, entity, values, delete, as_json=as_json)


def _entity(
    entity_type: str | None, name: str | None, named: dict[str, str | None], default: bool
) -> _Entity:
    """The one entity, or all of a type. Raises: Trouble unless exactly one is meant."""
    short = [(kind, value) for kind, value in named.items() if value is not None]
    if len(short) + (entity_type is not None) > 1:
        raise Trouble("give one entity: --entity-type, or one of --topic, --broker and --group")
    if short:
        return _Entity(*short[0])
    if entity_type is None:
        raise Trouble("At least one entity type must be specified: --entity-type topics, ...")
    if entity_type not in _TYPES:
        raise Trouble(
            f"Invalid entity type {entity_type}, the entity type must be one of {', '.join(_TYPES)}"
        )
    if default and (entity_type != "brokers" or name is not None):
        raise Trouble("--entity-default goes with --entity-type brokers alone")
    return _Entity(entity_type, "" if default else name)


def _values(text: str | None, file: Path | None) -> dict[str, str]:
    """The settings to make. Raises: Trouble."""
    values = {} if file is None else load(file)
    position = 0
    while text and position < len(text):
        found = _ADDED.match(text, position)
        if found is None:
            raise Trouble(
                f"--add-config {text}: write key=value, and key=[value,value] where a value has "
                "commas"
            )
        values[found[1]] = found[2] if found[2] is not None else found[3].strip()
        position = found.end()
    return values


def _alter(
    cluster: "Cluster",
    entity: _Entity,
    values: dict[str, str],
    delete: Iterable[str],
    *,
    as_json: bool,
) -> None:
    from headrace.client.configs import alter_configs

    if entity.name is None:
        raise Trouble(f"An entity name must be specified with --alter of {entity.type}")
    alter_configs(cluster, entity.kind, entity.name, values=values, delete=delete)
    if as_json:
        print(json.dumps({entity.word: entity.name, "set": values, "deleted": list(delete)}))
    elif entity.name:
        print(f"Completed updating config for {entity.word} {entity.name}.")
    else:
        print(f"Completed updating default config for {entity.type} in the cluster.")


def _describe(cluster: "Cluster", entity: _Entity, *, everything: bool, as_json: bool) -> None:
    from headrace.client.configs import describe_configs
    from headrace.client.errors import BrokerError

    for name in _names(cluster, entity):
        try:
            entries = sorted(describe_configs(cluster, entity.kind, name), key=lambda one: one.name)
        except BrokerError as error:
            if entity.name is None and error.name == "UNKNOWN_TOPIC_OR_PARTITION":
                continue  # deleted since it was listed
            if error.name not in {"UNKNOWN_TOPIC_OR_PARTITION", "INVALID_REQUEST"}:
                raise
            raise Trouble(
                f"The {entity.word} '{name}' doesn't exist and doesn't have dynamic config."
            ) from error
        shown = [one for one in entries if everything or _is_own(entity, name, one)]
        if as_json:
            print(json.dumps({entity.word: name, "configs": [_as_object(one) for one in shown]}))
            continue
        print(_head(entity, name, everything))
        for one in shown:
            print(_line(one))


def _names(cluster: "Cluster", entity: _Entity) -> list[str]:
    """The resources that are described."""
    from headrace.client.configs import groups_with_configs
    from headrace.client.topics import broker_ids, describe_topics

    if entity.name is not None:
        return [entity.name]
    if entity.type == "topics":
        return list(describe_topics(cluster))
    if entity.type == "groups":
        return groups_with_configs(cluster)
    return [*(str(broker) for broker in broker_ids(cluster)), ""]


def _is_own(entity: _Entity, name: str, one: "ConfigEntry") -> bool:
    """Whether a setting was made for this very resource while the broker ran."""
    from headrace.client.configs import ConfigSource

    return (
        one.source
        == {
            "topics": ConfigSource.DYNAMIC_TOPIC_CONFIG,
            "brokers": ConfigSource.DYNAMIC_BROKER_CONFIG
            if name
            else ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
            "groups": ConfigSource.DYNAMIC_GROUP_CONFIG,
        }[entity.type]
    )


def _head(entity: _Entity, name: str, everything: bool) -> str:
    if not name:
        return f"Default configs for {entity.type} in the cluster are:"
    return f"{'All' if everything else 'Dynamic'} configs for {entity.word} {name} are:"


def _line(one: "ConfigEntry") -> str:
    synonyms = ", ".join(
        f"{other.source.name}:{other.name}={_spelled(other.value)}" for other in one.synonyms
    )
    secret = str(one.sensitive).lower()
    return f"  {one.name}={_spelled(one.value)} sensitive={secret} synonyms={{{synonyms}}}"


def _as_object(one: "ConfigEntry") -> dict[str, object]:
    return {
        "name": one.name,
        "value": one.value,
        "source": one.source.name,
        "sensitive": one.sensitive,
    }


def _spelled(value: str | None) -> str:
    return "null" if value is None else value
