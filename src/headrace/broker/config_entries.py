"""Settings as DescribeConfigs and CreateTopics show them: value, where it is from, what it is.

Source: ConfigHelper (4.3); the synonyms of topics are ServerTopicConfigSynonyms.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.broker.config import DYNAMIC, INHERITED, Config
from headrace.broker.dynamic_config import (
    EVERY_BROKER,
    OF_BROKER,
    OF_DEFAULT,
    OF_EVERY_BROKER,
    OF_GROUP,
    OF_START,
    OF_TOPIC,
    Source,
    effective,
    sources,
)
from headrace.broker.group_settings import GroupSettings
from headrace.broker.settings import INT_MAX, Setting, spelled
from headrace.broker.topic_settings import BEHIND, TopicSettings
from headrace.core.catalog import Catalog, Resource

_UNKNOWN_TYPE = 0
_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = 1, 2, 3, 5, 6, 7
# Where the broker's default of a topic's setting has several names, the one that Kafka shows.
_SHOWN_BEHIND = BEHIND | {
    "segment_ms": "roll_ms",
    "segment_jitter_ms": "roll_jitter_ms",
    "retention_ms": "retention_ms",
    "flush_ms": "flush_ms",
}


# Name, type, and documentation.
_OF_PROCESS = (
    ("listeners", _LIST, "Address and port that are listened on."),
    ("log.dirs", _STRING, "The data folder."),
)


class Entries:
    """The settings of every resource, at one moment.

    Args:
        config: what the broker was started with.
    """

    def __init__(self, config: Config, catalog: Catalog) -> None:
        self._config = config
        self._catalog = catalog
        self._effective = effective(config, catalog)
        self._found: dict[str, list[Source]] = {}

    def of_topic(self, overrides: Mapping[str, str]) -> list[dict[str, Any]]:
        """All settings of a topic for which `overrides` were set."""
        resolved = TopicSettings.resolve(self._effective, overrides)
        entries = []
        for field, setting in TopicSettings.settings().items():
            behind = _SHOWN_BEHIND.get(field)
            found = self._sources(behind) if behind else []
            if setting.name in overrides:
                found = [Source(setting.name, overrides[setting.name], OF_TOPIC), *found]
            entries.append(_entry(setting, getattr(resolved, field), found))
        return entries

    def of_group(self, group: str) -> list[dict[str, Any]]:
        """All settings of a group, which need not exist."""
        overrides = self._catalog.configs_of(Resource.GROUP, group)
        resolved = GroupSettings.resolve(self._effective, overrides)
        entries = []
        for field, setting in GroupSettings.settings().items():
            default = Source(setting.name, spelled(setting.default), OF_DEFAULT)
            found = self._sources(field) if field in INHERITED else [default]
            if setting.name in overrides:
                found = [Source(setting.name, overrides[setting.name], OF_GROUP), *found]
            entries.append(_entry(setting, getattr(resolved, field), found))
        return entries

    def of_broker(self) -> list[dict[str, Any]]:
        """All settings of this broker."""
        shown = [
            _entry(setting, getattr(self._effective, field), self._sources(field))
            | {"read_only": field not in DYNAMIC}
            for field, setting in Config.settings().items()
        ]
        broker = str(self._config.node_id)
        for_all = self._catalog.configs_of(Resource.BROKER, EVERY_BROKER)
        for_one = self._catalog.configs_of(Resource.BROKER, broker)
        unknown = dict.fromkeys(for_all, OF_EVERY_BROKER) | dict.fromkeys(for_one, OF_BROKER)
        shown += [
            _unknown_entry(name, source)
            for name, source in unknown.items()
            if not Config.knows(name)
        ]
        return shown

    def of_process(self, values: Mapping[str, str]) -> list[dict[str, Any]]:
        """Settings that follow from how this process was started."""
        return [
            _entry(Setting(name, "", doc), values[name], [Source(name, values[name], OF_START)])
            | {"read_only": True, "config_type": kind}
            for name, kind, doc in _OF_PROCESS
        ]

    def of_every_broker(self) -> list[dict[str, Any]]:
        """What was set for all brokers while they ran, and no more."""
        return [
            _entry(Config.find(name)[1], value, [Source(name, value, OF_EVERY_BROKER)])
            if Config.knows(name)
            else _unknown_entry(name, OF_EVERY_BROKER)
            for name, value in self._catalog.configs_of(Resource.BROKER, EVERY_BROKER).items()
        ]

    def _sources(self, field: str) -> list[Source]:
        """As `sources`, which are the same for every topic of an answer."""
        if field not in self._found:
            self._found[field] = sources(self._config, self._catalog, field)
        return self._found[field]


def _entry(setting: Setting, value: Any, found: Iterable[Source]) -> dict[str, Any]:
    synonyms = [one._asdict() for one in found]
    return {
        "name": setting.name,
        "value": None if value is None else spelled(value),
        "read_only": False,
        "config_source": synonyms[0]["source"] if synonyms else OF_DEFAULT,
        "is_sensitive": False,
        "synonyms": synonyms,
        "config_type": _type(setting),
        "documentation": setting.doc,
    }


def _unknown_entry(name: str, source: int) -> dict[str, Any]:
    """A setting that this broker does not know: Kafka takes its value for a secret."""
    return {
        "name": name,
        "value": None,
        "read_only": False,
        "config_source": source,
        "is_sensitive": True,
        "synonyms": [{"name": name, "value": None, "source": source}],
        "config_type": _UNKNOWN_TYPE,
        "documentation": None,
    }


def _type(setting: Setting) -> int:
    if setting.type is int:
        return _INT if setting.high is not None and setting.high <= INT_MAX else _LONG
    return {bool: _BOOLEAN, float: _DOUBLE, tuple: _LIST}.get(setting.type, _STRING)
