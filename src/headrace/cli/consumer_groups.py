"""`headrace consumer-groups`: list, describe, reset and delete groups, as kafka-consumer-groups.

Options and tables are those of Kafka 4.3's ConsumerGroupCommand; --delete-offsets has KIP-496's.
Errors are one line on stderr, and the exit code is 1 when anything failed (Kafka's tool exits 0).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import group_options
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
from headrace.cli.group_options import (
    TIMEOUT_MS,
    Describe,
    Execute,
    Group,
    Members,
    Offsets,
    State,
    Timeout,
    ToDatetime,
    ToEarliest,
    ToLatest,
    ValuesOptional,
    check_described,
    check_scenario,
    one_action,
    option,
)

if TYPE_CHECKING:
    from headrace.client.connection import Cluster

COMMAND = "consumer-groups"
_ACTIONS = ("list", "describe", "delete", "reset_offsets", "delete_offsets", "validate_regex")
SCENARIOS = (
    "to_earliest", "to_latest", "to_offset", "shift_by", "to_current", "to_nearest",
    "to_datetime", "by_duration", "from_file",
)  # fmt: skip
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

# The options that are not in group_options, by the names of the parameters below.
_List = Annotated[bool, typer.Option("--list", help="List the names of groups.")]
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
_AllGroups = Annotated[bool, typer.Option("--all-groups", help="All groups of consumers.")]
_Topic = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC[:0,1,...]", help="Partitions of a topic; repeatable."),
]
_AllTopics = Annotated[bool, typer.Option("--all-topics", help="All that the group committed.")]
_Type = Annotated[
    str | None,
    typer.Option(
        "--type", metavar="[TYPE,...]", help="List types, of these groups alone if named."
    ),
]
_Verbose = Annotated[bool, typer.Option("--verbose", help="Describe epochs and assignments too.")]
_ToOffset = Annotated[int | None, typer.Option(help="To this offset.")]
_ShiftBy = Annotated[int | None, typer.Option(help="So many records on, or back if negative.")]
_ToCurrent = Annotated[bool, typer.Option("--to-current", help="To where they are.")]
_ToNearest = Annotated[
    bool,
    typer.Option("--to-nearest", help="Those outside the log to its nearest end, others stay."),
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
_Export = Annotated[bool, typer.Option("--export", help="Print the new offsets as CSV.")]


@dataclass(frozen=True, slots=True)
class Asked(group_options.Asked):
    """What is asked of consumer groups."""

    type: str | None
    to_offset: int | None
    shift_by: int | None
    to_current: bool
    to_nearest: bool
    by_duration: str | None
    from_file: Path | None
    export: bool
    validate_regex: str | None


class _Command(ValuesOptional):
    """--state and --type may stand alone."""

    value_optional = frozenset({"--state", "--type"})


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(COMMAND, cls=_Command)(consumer_groups)


def consumer_groups(
    context: typer.Context,
    bootstrap_server: BootstrapServer = BOOTSTRAP_SERVER,
    list_: _List = False,
    describe: Describe = False,
    delete: _Delete = False,
    reset_offsets: _ResetOffsets = False,
    delete_offsets: _DeleteOffsets = False,
    validate_regex: _ValidateRegex = None,
    group: Group = None,
    all_groups: _AllGroups = False,
    topic: _Topic = None,
    all_topics: _AllTopics = False,
    members: Members = False,
    offsets: Offsets = False,
    state: State = None,
    type_: _Type = None,
    verbose: _Verbose = False,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_offset: _ToOffset = None,
    shift_by: _ShiftBy = None,
    to_current: _ToCurrent = False,
    to_nearest: _ToNearest = False,
    to_datetime: ToDatetime = None,
    by_duration: _ByDuration = None,
    from_file: _FromFile = None,
    dry_run: _DryRun = False,
    execute: Execute = False,
    export: _Export = False,
    timeout: Timeout = TIMEOUT_MS,
    as_json: Json = False,
    command_config: CommandConfig = None,
    _version: Version = False,
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
        if action in {"delete", "delete_offsets"} or (action == "reset_offsets" and execute):
            require_address(context, option(action) + (" --execute" if execute else ""))
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
    action = one_action(given, _ACTIONS, _ONLY_WITH)
    if given["group"] and action not in _WITH_GROUPS:
        raise Trouble(f"--group can't be used with {option(action)}; leave it out")
    if given["topic"] and action not in {"reset_offsets", "delete_offsets"}:
        if action == "delete":
            raise Trouble(
                "The consumer does not support topic-specific offset deletion from a consumer "
                "group with --delete; use --delete-offsets"
            )
        raise Trouble(f"--topic can't be used with {option(action)}; leave it out")
    return action


def _check(action: str, asked: Asked) -> None:
    """Raises: Trouble when an action lacks something, or is asked for two things at once."""
    if action == "delete_offsets":
        if not asked.group or not asked.topic:
            raise Trouble("--delete-offsets needs --topic and --group")
        if len(asked.group) > 1:
            raise Trouble("Found multiple arguments for option group; --delete-offsets takes one")
    elif action in _WITH_GROUPS and not (asked.group or asked.all_groups):
        raise Trouble(f"{option(action)} takes one of these options: --group, --all-groups")
    if action == "describe":
        check_described(asked)
    if action == "reset_offsets":
        _check_reset(asked)


def _check_reset(asked: Asked) -> None:
    check_scenario(asked, SCENARIOS)
    if asked.export and asked.as_json:
        raise Trouble("--export can't be used with --json; give one of the two")
    scoped = bool(asked.all_topics or asked.topic)
    if asked.from_file is None and not scoped:
        raise Trouble("One of the reset scopes should be defined: --all-topics, --topic.")
    if asked.from_file is not None and scoped:
        raise Trouble("--from-file says which partitions; leave --all-topics and --topic out")
