"""How settings are declared: Kafka's names, defaults and bounds, in one table a kind of resource.

A setting is declared once, as a field of a frozen dataclass; parsing, the answers of
DescribeConfigs and the reference in the documentation are made from the declaration. Names that
the proposal of share groups used are accepted as aliases; names with `headrace.` are ours.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Self

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
RESOURCE_BYTES_MAX = 64 * 1024  # names and values of what is set for one topic, broker or group


class ConfigError(ValueError):
    """A setting that is unknown or out of bounds; the message is one line that says what is."""


def require_bounded(new: Mapping[str, str], old: Mapping[str, str]) -> None:
    """Bound the settings of a resource: they stay in memory, and in the catalogue's journal.

    Any client may set them. A resource that has more, of an earlier release, may get fewer.

    Raises: ConfigError.
    """
    size = _bytes_of(new)
    if size > max(RESOURCE_BYTES_MAX, _bytes_of(old)):
        raise ConfigError(
            f"the settings of the resource take {size} bytes; {RESOURCE_BYTES_MAX} are allowed"
        )


def _bytes_of(values: Mapping[str, str]) -> int:
    return sum(len(name.encode()) + len(text.encode()) for name, text in values.items())


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: how it is spelled, what it may be, and what it does.

    Its type is that of the default; `kind` says it where the default is None, for "not set". A
    default that is a tuple makes it a list, whose items are each one of `choices`. `why` is said
    with a refusal, where the bounds do not explain themselves. `fault` says what is wrong with a
    text that neither bounds nor choices describe, or None.
    """

    name: str
    default: Any
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    kind: type | None = None
    why: str = ""
    fault: Callable[[str], str | None] | None = None

    @property
    def type(self) -> type:
        """bool, int, float, str or tuple (of str)."""
        return self.kind or type(self.default)

    def parse(self, text: str) -> Any:
        """The value that `text` spells. Raises: ConfigError, naming the bound."""
        text = text.strip()
        if self.type is bool:
            if text.lower() not in {"true", "false"}:
                raise self._error(f"{text!r} is neither true nor false")
            self._require_choice(text.lower())
            return text.lower() == "true"
        if self.type is int:
            return self._within(self._number(text, int, "a whole number"))
        if self.type is float:
            return self._within(self._number(text, float, "a number"))
        if self.type is tuple:
            return self._items(text)
        self._require_choice(text)
        wrong = self.fault(text) if self.fault is not None else None
        if wrong is not None:
            raise self._error(wrong)
        return text

    def _number(self, text: str, kind: Callable[[str], Any], what: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise self._error(f"{text!r} is not {what}") from None

    def _within(self, value: Any) -> Any:
        if self.low is not None and not value >= self.low:
            raise self._error(f"{value} is below the minimum of {self.low}")
        if self.high is not None and value > self.high:
            raise self._error(f"{value} is above the maximum of {self.high}")
        return value

    def _items(self, text: str) -> tuple[str, ...]:
        items = tuple(item.strip() for item in text.split(",") if item.strip())
        for item in items:
            self._require_choice(item)
        return items

    def _require_choice(self, text: str) -> None:
        if self.choices and text not in self.choices:
            only = len(self.choices) == 1
            told = ", ".join(choice for choice in self.choices if choice)  # empty is the default
            raise self._error(f"{text!r} is {'not' if only else 'none of'} {told}")

    def _error(self, what: str) -> ConfigError:
        return ConfigError(f"{self.name}: {what}" + (f" ({self.why})" if self.why else ""))


def setting(name: str, default: Any, doc: str, **rules: Any) -> Any:
    return dataclasses.field(
        default=default, metadata={"setting": Setting(name, default, doc, **rules)}
    )


def spelled(value: Any) -> str:
    """A value that is set, as configuration files and DescribeConfigs spell it."""
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


class Table:
    """What every settings dataclass can do."""

    __slots__ = ()

    @classmethod
    @cache
    def settings(cls) -> Mapping[str, Setting]:
        """Field name to declaration, in order."""
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # subclasses are dataclasses
        return MappingProxyType({field.name: field.metadata["setting"] for field in fields})

    @classmethod
    def find(cls, name: str) -> tuple[str, Setting]:
        """Field and declaration of a setting by its name or alias. Raises: ConfigError."""
        for field, setting in cls.settings().items():
            if name == setting.name or name in setting.aliases:
                return field, setting
        import difflib  # late: only a mistake needs it

        known = [n for s in cls.settings().values() for n in (s.name, *s.aliases)]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"there is no setting {name!r}{hint}")

    @classmethod
    def knows(cls, name: str) -> bool:
        """Whether there is a setting of this name or alias."""
        return any(name == one.name or name in one.aliases for one in cls.settings().values())

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Settings from names and texts, the rest at its default. Raises: ConfigError."""
        given: dict[str, Any] = {}
        for name, text in values.items():
            field, setting = cls.find(name)
            if field in given:
                raise ConfigError(f"{setting.name} is set twice, once under another name")
            given[field] = setting.parse(text)
        return cls(**given)
