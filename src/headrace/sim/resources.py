"""Settings of topics and groups that change at run time, and an actor that changes and reads them.

A setting is a register: DescribeConfigs returns the value that was acknowledged last, or one whose
request failed or is not answered: such a value may be there, and may be taken back. A value that
Kafka refuses is refused, and changes nothing.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.sim.actor import Actor
from headrace.sim.network import Connection
from headrace.sim.options import CONSUMER_SESSION_MS, CONSUMER_SESSION_MS_MAX

if TYPE_CHECKING:
    from headrace.sim.world import World

TOPIC, GROUP = 2, 32
LOCK = "share.record.lock.duration.ms"
_DESCRIBE, _ALTER = 32, 44
_SET = 0
_INVALID_CONFIG, _STORAGE = 40, 56
_UNDECIDED = frozenset({_STORAGE, 14, 15, 16, 41})  # codes after which either value may hold


class Setting(NamedTuple):
    """A setting of a resource, with values that are valid and one that is not."""

    kind: int
    resource: str
    name: str
    values: tuple[str, ...]
    invalid: str


async def alter_config(
    connection: Connection, kind: int, resource: str, name: str, value: str, let_out: Any = None
) -> int:
    """Set one setting. Returns: the error code."""
    config = {"name": name, "config_operation": _SET, "value": value}
    changed = {"resource_type": kind, "resource_name": resource, "configs": (config,)}
    answer = await connection.call(
        _ALTER, 1, let_out or (lambda _: None), resources=(changed,), validate_only=False
    )
    return int(answer.responses[0].error_code)


class Reconfigurer(Actor):
    """Changes settings of topics and groups that others use, and reads them."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self._settings = _settings(world)
        self._possible: dict[Setting, set[str]] = {}
        self._losses = world.losses

    async def _turn(self, connection: Connection) -> None:
        setting = self._rng.choice(self._settings)
        if self._losses != self._world.losses:
            self._losses = self._world.losses  # acknowledged settings may be gone
            self._possible.clear()
        drawn = self._rng.random()
        if drawn < 0.4 and setting in self._possible:
            await self.look(connection, setting)
        elif drawn < 0.5:
            await self._refuse(connection, setting)
        else:
            await self._change(connection, setting)

    async def _change(self, connection: Connection, setting: Setting) -> None:
        value = self._rng.choice(setting.values)
        before = self._possible.get(setting)
        losses = self._world.losses
        if before is not None:
            self._possible[setting] = {*before, value}
        is_lock = setting.name == LOCK
        if is_lock:
            self._world.auditor.lock_changes(setting.resource, int(value))

        def let_out(answer: Any) -> None:
            code = answer.responses[0].error_code
            if losses != self._world.losses:
                return
            if code == 0:
                self._possible[setting] = {value}
                if is_lock:
                    self._world.auditor.lock_lasts(setting.resource, int(value))
            elif code not in _UNDECIDED:
                self._broken(setting, f"a valid value, {value}, was refused with {code}")

        code = await alter_config(connection, *setting[:3], value, let_out)
        self._step(f"sets {setting.name}={value} of {setting.resource}: {code}")

    async def _refuse(self, connection: Connection, setting: Setting) -> None:
        code = await alter_config(connection, *setting[:3], setting.invalid)
        self._step(f"sets {setting.name}={setting.invalid} of {setting.resource}: {code}")
        if code == 0:
            self._broken(setting, f"{setting.invalid} was accepted")

    async def look(self, connection: Connection, setting: Setting) -> None:
        """Read a setting that was acknowledged before."""
        losses, possible = self._world.losses, self._possible[setting]

        def let_out(answer: Any) -> None:
            (result,) = answer.results
            if result.error_code or losses != self._world.losses:
                return
            (one,) = result.configs
            if one.value not in possible:
                self._broken(setting, f"is {one.value}, and was set to {sorted(possible)}")

        wanted = {
            "resource_type": setting.kind, "resource_name": setting.resource,
            "configuration_keys": (setting.name,),
        }  # fmt: skip
        await connection.call(
            _DESCRIBE, 4, let_out, resources=(wanted,), include_synonyms=False,
            include_documentation=False,
        )  # fmt: skip
        self._step(f"sees {setting.name} of {setting.resource}: {sorted(self._possible[setting])}")

    def _broken(self, setting: Setting, what: str) -> None:
        self._world.records_broken(f"setting {setting.name} of {setting.resource}: {what}")

    def _step(self, what: str) -> None:
        self._world.history.step(self.name, what)


def _settings(world: "World") -> tuple[Setting, ...]:
    """Return the settings that may change in a world without breaking what auditors rely on."""
    options = world.options
    found: list[Setting] = []
    if options.records:
        found += [
            Setting(TOPIC, "ledger", "segment.bytes", ("1024", "4096", "1048576"), "13"),
            Setting(TOPIC, "ledger", "retention.ms", ("-1", "604800000"), "soon"),
            Setting(TOPIC, "table", "min.cleanable.dirty.ratio", ("0.01", "0.3"), "1.5"),
        ]
        if options.cleans:
            policies = ("compact", "compact,delete")
            found.append(Setting(TOPIC, "table", "cleanup.policy", policies, "shred"))
        sessions = str(CONSUMER_SESSION_MS), str(CONSUMER_SESSION_MS_MAX)
        found += [
            Setting(GROUP, f"{one}-group", "consumer.session.timeout.ms", sessions, "1")
            for one in options.consumers
        ]
    if options.queues:
        locks = str(options.lock_ms), str(2 * options.lock_ms)
        found += [Setting(GROUP, group, LOCK, locks, "10") for group in world.groups]
    return tuple(found)
