"""Settings of a broker that were changed while it ran: kept in the catalogue, laid over the rest.

Kafka's order: what was set for this broker, for all brokers (the resource ""), at the start, and
the default. Source: DynamicBrokerConfig (4.3), ConfigHelper for what DescribeConfigs shows of it.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from headrace.broker.config import DYNAMIC, Config
from headrace.broker.settings import ConfigError, spelled
from headrace.core.catalog import Catalog, Resource

EVERY_BROKER = ""
# ConfigResponse's sources, as numbered by Kafka.
OF_TOPIC, OF_BROKER, OF_EVERY_BROKER, OF_START, OF_DEFAULT, OF_GROUP = 1, 2, 3, 4, 5, 8
# Anybody who reaches the broker may change these settings; a lower value would lock others out,
# administrators too, and outlive a restart.
FLOORS = {"connections_max": 100}
# Settings that say the same in other units; the first that is set counts.
_CHAINS = (
    ("roll_ms", "roll_hours"),
    ("roll_jitter_ms", "roll_jitter_hours"),
    ("retention_ms", "retention_minutes", "retention_hours"),
)


class Source(NamedTuple):
    """One place where a value was found: a synonym, in the words of DescribeConfigs."""

    name: str
    value: str
    source: int


def effective(config: Config, catalog: Catalog) -> Config:
    """The settings as they count now; `config` has those of the start.

    Raises: ConfigError when a value that was set before does not fit those of this start.
    """
    # A value below its floor, set with an earlier release, must not lock administrators out.
    changes = [
        {name: text for name, text in change.items() if not _is_too_low(name, text)}
        for change in _changes(config, catalog)
    ]
    return overlaid(config, *changes)


def ignored(config: Config, catalog: Catalog) -> list[str]:
    """Return the settings, as `name=value`, that `effective` ignores because they are too low."""
    return [
        f"{name}={text}"
        for change in _changes(config, catalog)
        for name, text in change.items()
        if _is_too_low(name, text)
    ]


def _changes(config: Config, catalog: Catalog) -> list[Mapping[str, str]]:
    return [
        catalog.configs_of(Resource.BROKER, EVERY_BROKER),
        catalog.configs_of(Resource.BROKER, str(config.node_id)),
    ]


def _is_too_low(name: str, text: str) -> bool:
    if not Config.knows(name):
        return False
    field, setting = Config.find(name)
    return field in FLOORS and setting.parse(text) < FLOORS[field]


def overlaid(config: Config, *changes: Mapping[str, str]) -> Config:
    """The settings with `changes` over them, the last one on top. Raises: ConfigError.

    Unknown names are stored as Kafka stores them, for plugins, and have no effect.
    """
    values = {}
    for change in changes:
        for name, text in change.items():
            if not Config.knows(name):
                continue
            field, setting = Config.find(name)
            if field not in DYNAMIC:
                raise ConfigError(
                    f"{setting.name} cannot change while the broker runs; "
                    f"restart it with: serve --set {setting.name}={text}"
                )
            values[field] = setting.parse(text)
            if field in FLOORS and values[field] < FLOORS[field]:
                raise ConfigError(
                    f"{setting.name}: {text} is below {FLOORS[field]}, the lowest that can be "
                    "set while the broker runs; for a lower one restart the broker with:"
                    f" serve --set {setting.name}={text}"
                )
    return dataclasses.replace(config, **values)


def sources(config: Config, catalog: Catalog, field: str) -> list[Source]:
    """Where the value of a setting and of its synonyms comes from, what counts first."""
    chain = next((chain for chain in _CHAINS if field in chain), (field,))
    settings = [Config.settings()[one] for one in chain]
    found = []
    for resource, source in ((str(config.node_id), OF_BROKER), (EVERY_BROKER, OF_EVERY_BROKER)):
        values = catalog.configs_of(Resource.BROKER, resource)
        found += [Source(s.name, values[s.name], source) for s in settings if s.name in values]
    for one, setting in zip(chain, settings, strict=True):
        value = getattr(config, one)
        if value != setting.default and value is not None:
            found.append(Source(setting.name, spelled(value), OF_START))
    found += [
        Source(setting.name, spelled(setting.default), OF_DEFAULT)
        for setting in settings
        if setting.default is not None
    ]
    # Kafka shows nothing that comes before the first place where the setting itself was found.
    name = Config.settings()[field].name
    first = next((at for at, one in enumerate(found) if one.name == name), len(found))
    return found[first:]
