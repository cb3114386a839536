"""What the options of `headrace consumer-groups` and `headrace share-groups` have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand

from headrace.cli.ending import Trouble

OnlyWith = Mapping[str, set[str]]

TIMEOUT_MS = 30_000
_SHOWN = ("members", "offsets", "state")  # by --describe

Describe = Annotated[bool, typer.Option("--describe", help="Describe groups, and their lag.")]
Group = Annotated[list[str] | None, typer.Option("--group", help="A group; repeatable.")]
Members = Annotated[bool, typer.Option("--members", help="Describe the members.")]
Offsets = Annotated[bool, typer.Option("--offsets", help="Describe the offsets; the default.")]
State = Annotated[
    str | None,
    typer.Option(
        metavar="[STATE,...]", help="Describe states; list them, of these groups alone if named."
    ),
]
ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="To the first records.")]
ToLatest = Annotated[bool, typer.Option("--to-latest", help="Behind the last records.")]
ToDatetime = Annotated[
    str | None,
    typer.Option(metavar="YYYY-MM-DDThh:mm:ss.sss", help="To the records of then; UTC."),
]
Execute = Annotated[bool, typer.Option("--execute", help="Set the new offsets.")]
Timeout = Annotated[
    int, typer.Option("--timeout", min=1, metavar="MS", help="How long to try each step.")
]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of groups of either kind, by the names of the options."""

    group: list[str]
    all_groups: bool
    topic: list[str]
    all_topics: bool
    members: bool
    offsets: bool
    state: str | None
    verbose: bool
    to_earliest: bool
    to_latest: bool
    to_datetime: str | None
    dry_run: bool
    execute: bool
    as_json: bool


class ValuesOptional(TyperCommand):
    """Options that may stand alone; they are read as if an empty value followed."""

    value_optional: ClassVar[frozenset[str]] = frozenset({"--state"})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        following = [*args[1:], "-"]
        spelled = [
            f"{one}=" if one in self.value_optional and after.startswith("-") else one
            for one, after in zip(args, following, strict=False)
        ]
        return super().parse_args(ctx, spelled)


def one_action(given: Mapping[str, Any], actions: Sequence[str], only_with: OnlyWith) -> str:
    """The one action. Raises: Trouble unless there is one, or when an option goes with others."""
    found = [name for name in actions if is_given(given[name])]
    if len(found) != 1:
        raise Trouble(f"Command must include exactly one action: {options(actions)}")
    action = found[0]
    for name, its in only_with.items():
        if is_given(given[name]) and action not in its:
            raise Trouble(f"{option(name)} cannot be used with {option(action)}; leave it out")
    if given["group"] and given["all_groups"]:
        raise Trouble("--group can't be used with --all-groups; give one of the two")
    return action


def check_described(asked: Asked) -> None:
    """Raises: Trouble when --describe is asked for two things at once, or for states by name."""
    wanted = [name for name in _SHOWN if is_given(getattr(asked, name))]
    if len(wanted) > 1:
        raise Trouble(f"--describe takes at most one of these options: {options(_SHOWN)}")
    if asked.state:
        raise Trouble(f"--describe does not take a value for --state: {asked.state!r}")


def check_scenario(asked: Asked, scenarios: Sequence[str]) -> None:
    """Raises: Trouble unless --reset-offsets is told one scenario, and one thing to do with it."""
    if asked.dry_run and asked.execute:
        raise Trouble("--reset-offsets only accepts one of --execute and --dry-run")
    given = [name for name in scenarios if is_given(getattr(asked, name))]
    if not given:
        raise Trouble(
            f"--reset-offsets requires one of the following scenarios: {options(scenarios)}"
        )
    if len(given) > 1:
        raise Trouble(f"{option(given[0])} can't be used with {option(given[1])}")
    if asked.all_topics and asked.topic:
        raise Trouble("--all-topics can't be used with --topic; give one of the two")


def named(text: str | None, known: Sequence[str], what: str) -> list[str]:
    """The names in a list with commas, spelled as Kafka does. Raises: Trouble for another."""
    if not text:
        return []
    spelled = {one.lower(): one for one in known}
    given = [one.strip().lower() for one in text.split(",")]
    if not spelled.keys() >= set(given):
        raise Trouble(
            f"Invalid {what} list '{text}'. Valid {what.rstrip('s')}s are: {', '.join(known)}"
        )
    return [spelled[one] for one in dict.fromkeys(given)]


def is_given(value: object) -> bool:
    """Whether somebody gave an option; 0 and an empty value are given."""
    return value is not None and value is not False


def option(name: str) -> str:
    """An option as it is typed, by the name of its parameter."""
    return "--" + name.replace("_", "-")


def options(names: Sequence[str]) -> str:
    """Several of them, with commas between."""
    return ", ".join(map(option, names))
