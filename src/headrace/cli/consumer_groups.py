"""`headrace consumer-groups`: list, describe, reset and delete groups, as kafka-consumer-groups.

Options and tables are those of Kafka 4.3's ConsumerGroupCommand; --delete-offsets has KIP-496's.
Errors are one line on stderr, and the exit code is 1 when anything failed (Kafka's tool exits 0).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from headrace.cli.connect import BOOTSTRAP_SERVER, BootstrapServer, CommandConfig, Json, connect
from headrace.cli.ending import Trouble, ending, tell

if TYPE_CHECKING:
    from headrace.client.connection import Cluster

COMMAND = "consumer-groups"
_ACTIONS = ("list", "describe", "delete", "reset_offsets", "delete_offsets", "validate_regex")
SCENARIOS = (
    "to_earliest", "to_latest", "to_offset", "shift_by", "to_current", "to_datetime",
    "by_duration", "from_file",
)  # fmt: skip
_SHOWN = ("members", "offsets", "state")
# Options that mean something with some actions only.
_ONLY_WITH = {
    "all_groups": {"describe", "delete", "reset_offsets"},
    "members": {"describe"},
    "offsets": {"describe"},
    "verbose": {"describe"},
    "state": {"describe", "list"},
    "type": {"list"},
    "all_topics": {"reset_offsets"},
    "dry_run": {"reset_offsets"},
    "execute": {"reset_offsets"},
    "export": {"reset_offsets"},
    **{scenario: {"reset_offsets"} for scenario in SCENARIOS},
}
_WITH_GROUPS = {"describe", "delete", "reset_offsets", "delete_offsets"}
_TIMEOUT_MS = 30_000
_VALUE_OPTIONAL = frozenset({"--state", "--type"})

# The options, by the names of the parameters below.
_List = Annotated[bool, typer.Option("--list", help="List the names of groups.")]
_Describe = Annotated[bool, typer.Option("--describe", help="Describe groups, and their lag.")]
_Delete = Annotated[bool, typer.Option("--delete", help="Delete groups with their offsets.")]
_ResetOffsets = Annotated[
    bool, typer.Option("--reset-offsets", help="Set the offsets of groups without members.")
]
_DeleteOffsets = Annotated[
    bool, typer.Option("--delete-offsets", help="Delete offsets of topics from a group.")
]
_ValidateRegex = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Say whether RE2, as brokers use it, takes this."),
]
_Group = Annotated[list[str] | None, typer.Option("--group", help="A group; repeatable.")]
_AllGroups = Annotated[bool, typer.Option("--all-groups", help="All groups of consumers.")]
_Topic = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC[:0,1,...]", help="Partitions of a topic; repeatable."),
]
_AllTopics = Annotated[bool, typer.Option("--all-topics", help="All that the group committed.")]
_Members = Annotated[bool, typer.Option("--members", help="Describe the members.")]
_Offsets = Annotated[bool, typer.Option("--offsets", help="Describe the offsets; the default.")]
_State = Annotated[
    str | None,
    typer.Option(
        metavar="[STATE,...]", help="Describe states; list them, of these groups alone if named."
    ),
]
_Type = Annotated[
    str | None,
    typer.Option(
        "--type", metavar="[TYPE,...]", help="List types, of these groups alone if named."
    ),
]
_Verbose = Annotated[bool, typer.Option("--verbose", help="Describe epochs and assignments too.")]
_ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="To the first records.")]
_ToLatest = Annotated[bool, typer.Option("--to-latest", help="Behind the last records.")]
_ToOffset = Annotated[int | None, typer.Option(help="To this offset.")]
_ShiftBy = Annotated[int | None, typer.Option(help="So many records on, or back if negative.")]
_ToCurrent = Annotated[bool, typer.Option("--to-current", help="To where they are.")]
_ToDatetime = Annotated[
    str | None,
    typer.Option(metavar="YYYY-MM-DDThh:mm:ss.sss", help="To the records of then; UTC."),
]
_ByDuration = Annotated[
    str | None, typer.Option(metavar="PnDTnHnMnS", help="To the records of so long ago.")
]
_FromFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="To what --export wrote: topic,partition,offset on each line."
    ),
]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the new offsets, set none; the default.")
]
_Execute = Annotated[bool, typer.Option("--execute", help="Set the new offsets.")]
_Export = Annotated[bool, typer.Option("--export", help="Print the new offsets as CSV.")]
_Timeout = Annotated[
    int, typer.Option("--timeout", min=1, metavar="MS", help="How long to try each step.")
]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of groups, by the names of the options."""

    group: list[str]
    all_groups: bool
    topic: list[str]
    all_topics: bool
    members: bool
    offsets: bool
    state: str | None
    type: str | None
    verbose: bool
    to_earliest: bool
    to_latest: bool
    to_offset: int | None
    shift_by: int | None
    to_current: bool
    to_datetime: str | None
    by_duration: str | None
    from_file: Path | None
    dry_run: bool
    execute: bool
    export: bool
    validate_regex: str | None
    as_json: bool


class _Command(TyperCommand):
    """--state and --type may stand alone; they are read as if an empty value followed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        following = [*args[1:], "-"]
        spelled = [
            f"{one}=" if one in _VALUE_OPTIONAL and after.startswith("-") else one
            for one, after in zip(args, following, strict=False)
        ]
        return super().parse_args(ctx, spelled)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(COMMAND, cls=_Command)(consumer_groups)


def consumer_groups(
    bootstrap_server: BootstrapServer = BOOTSTRAP_SERVER,
    list_: _List = False,
    describe: _Describe = False,
    delete: _Delete = False,
    reset_offsets: _ResetOffsets = False,
    delete_offsets: _DeleteOffsets = False,
    validate_regex: _ValidateRegex = None,
    group: _Group = None,
    all_groups: _AllGroups = False,
    topic: _Topic = None,
    all_topics: _AllTopics = False,
    members: _Members = False,
    offsets: _Offsets = False,
    state: _State = None,
    type_: _Type = None,
    verbose: _Verbose = False,
    to_earliest: _ToEarliest = False,
    to_latest: _ToLatest = False,
    to_offset: _ToOffset = None,
    shift_by: _ShiftBy = None,
    to_current: _ToCurrent = False,
    to_datetime: _ToDatetime = None,
    by_duration: _ByDuration = None,
    from_file: _FromFile = None,
    dry_run: _DryRun = False,
    execute: _Execute = False,
    export: _Export = False,
    timeout: _Timeout = _TIMEOUT_MS,
    as_json: Json = False,
    command_config: CommandConfig = None,
) -> None:
    """List, describe, reset and delete groups of consumers; options are kafka-consumer-groups'.

    headrace consumer-groups --describe --group billing
    """
    given = {name.rstrip("_"): value for name, value in locals().items()}
    with ending(COMMAND):
        given |= {"group": group or [], "topic": topic or []}
        action = _action(given)
        asked = Asked(**{name: given[name] for name in Asked.__dataclass_fields__})
        _check(action, asked)
        if action == "validate_regex":
            from headrace.cli.consumer_groups_list import validate_regex as validate

            validate(asked)
            return
        if action == "reset_offsets" and not (execute or dry_run):
            tell(
                COMMAND,
                "WARN: No action will be performed as the --execute option is missing; add it to "
                "set the offsets, or --dry-run to go without this line",
            )
        with connect(bootstrap_server, command_config, patience_s=timeout / 1000) as cluster:
            _run(action, cluster, asked)


def _run(action: str, cluster: "Cluster", asked: Asked) -> None:
    from headrace.cli import (
        consumer_groups_delete,
        consumer_groups_describe,
        consumer_groups_list,
        consumer_groups_reset,
    )

    run = {
        "list": consumer_groups_list.list_groups,
        "describe": consumer_groups_describe.describe,
        "delete": consumer_groups_delete.delete,
        "delete_offsets": consumer_groups_delete.delete_offsets,
        "reset_offsets": consumer_groups_reset.reset,
    }
    run[action](cluster, asked)


def _action(given: dict[str, Any]) -> str:
    """The one action. Raises: Trouble unless there is one, or when an option goes with others."""
    actions = [name for name in _ACTIONS if _is_given(given[name])]
    if len(actions) != 1:
        raise Trouble(f"Command must include exactly one action: {_options(_ACTIONS)}")
    action = actions[0]
    for name, its in _ONLY_WITH.items():
        if _is_given(given[name]) and action not in its:
            raise Trouble(f"{_option(name)} means nothing with {_option(action)}; leave it out")
    if given["group"] and given["all_groups"]:
        raise Trouble("--group can't be used with --all-groups; give one of the two")
    if given["group"] and action not in _WITH_GROUPS:
        raise Trouble(f"--group can't be used with {_option(action)}; leave it out")
    if given["topic"] and action not in {"reset_offsets", "delete_offsets"}:
        if action == "delete":
            raise Trouble(
                "The consumer does not support topic-specific offset deletion from a consumer "
                "group with --delete; use --delete-offsets"
            )
        raise Trouble(f"--topic can't be used with {_option(action)}; leave it out")
    return action


def _check(action: str, asked: Asked) -> None:
    """Raises: Trouble when an action lacks something, or is asked for two things at once."""
    if action == "delete_offsets":
        if not asked.group or not asked.topic:
            raise Trouble("--delete-offsets needs --topic and --group")
        if len(asked.group) > 1:
            raise Trouble("Found multiple arguments for option group; --delete-offsets takes one")
    elif action in _WITH_GROUPS and not (asked.group or asked.all_groups):
        raise Trouble(f"{_option(action)} takes one of these options: --group, --all-groups")
    if action == "describe":
        shown = [name for name in _SHOWN if _is_given(getattr(asked, name))]
        if len(shown) > 1:
            raise Trouble(f"--describe takes at most one of these options: {_options(_SHOWN)}")
        if asked.state:
            raise Trouble(f"--describe does not take a value for --state: {asked.state!r}")
    if action == "reset_offsets":
        _check_reset(asked)


def _check_reset(asked: Asked) -> None:
    if asked.dry_run and asked.execute:
        raise Trouble("--reset-offsets only accepts one of --execute and --dry-run")
    if asked.export and asked.as_json:
        raise Trouble("--export can't be used with --json; give one of the two")
    scenarios = [name for name in SCENARIOS if _is_given(getattr(asked, name))]
    if not scenarios:
        raise Trouble(
            f"--reset-offsets requires one of the following scenarios: {_options(SCENARIOS)}"
        )
    if len(scenarios) > 1:
        raise Trouble(f"{_option(scenarios[0])} can't be used with {_option(scenarios[1])}")
    if asked.all_topics and asked.topic:
        raise Trouble("--all-topics can't be used with --topic; give one of the two")
    scoped = bool(asked.all_topics or asked.topic)
    if asked.from_file is None and not scoped:
        raise Trouble("One of the reset scopes should be defined: --all-topics, --topic.")
    if asked.from_file is not None and scoped:
        raise Trouble("--from-file says which partitions; leave --all-topics and --topic out")


def _is_given(value: object) -> bool:
    return value is not None and value is not False  # 0 is a number that somebody gave


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _options(names: tuple[str, ...]) -> str:
    return ", ".join(map(_option, names))
