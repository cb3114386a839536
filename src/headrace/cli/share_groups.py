"""`headrace share-groups`: list, describe, reset and delete share groups, as kafka-share-groups.

Options and tables are those of Kafka 4.3's ShareGroupCommand. Errors are one line on stderr, and
the exit code is 1 when anything failed (Kafka's tool exits 0).
"""

from typing import TYPE_CHECKING, Annotated, Any

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
from headrace.cli.group_options import (
    TIMEOUT_MS,
    Asked,
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

COMMAND = "share-groups"
_ACTIONS = ("list", "describe", "delete", "reset_offsets", "delete_offsets")
_SCENARIOS = ("to_earliest", "to_latest", "to_datetime")
# Options that mean something with some actions only.
_ONLY_WITH = {
    "all_groups": {"describe", "delete"},
    "members": {"describe"},
    "offsets": {"describe"},
    "verbose": {"describe"},
    "state": {"describe", "list"},
    "all_topics": {"reset_offsets"},
    "dry_run": {"reset_offsets"},
    "execute": {"reset_offsets"},
    **{scenario: {"reset_offsets"} for scenario in _SCENARIOS},
}
_OF_ONE_GROUP = {"reset_offsets", "delete_offsets"}

# The options that are not in group_options, by the names of the parameters below.
_List = Annotated[bool, typer.Option("--list", help="List the names of share groups.")]
_Delete = Annotated[bool, typer.Option("--delete", help="Delete groups with all their state.")]
_ResetOffsets = Annotated[
    bool, typer.Option("--reset-offsets", help="Set where a group without members begins.")
]
_DeleteOffsets = Annotated[
    bool, typer.Option("--delete-offsets", help="Have a group without members forget topics.")
]
_AllGroups = Annotated[bool, typer.Option("--all-groups", help="All share groups.")]
_Topic = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="TOPIC[:0,1,...]",
        help="A topic, or partitions of it to reset; repeatable.",
    ),
]  # fmt: skip
_AllTopics = Annotated[bool, typer.Option("--all-topics", help="All that the group reads.")]
_Verbose = Annotated[bool, typer.Option("--verbose", help="Describe epochs too.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the new offsets, set none.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(COMMAND, cls=ValuesOptional)(share_groups)


def share_groups(
    context: typer.Context,
    bootstrap_server: BootstrapServer = BOOTSTRAP_SERVER,
    list_: _List = False,
    describe: Describe = False,
    delete: _Delete = False,
    reset_offsets: _ResetOffsets = False,
    delete_offsets: _DeleteOffsets = False,
    group: Group = None,
    all_groups: _AllGroups = False,
    topic: _Topic = None,
    all_topics: _AllTopics = False,
    members: Members = False,
    offsets: Offsets = False,
    state: State = None,
    verbose: _Verbose = False,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_datetime: ToDatetime = None,
    dry_run: _DryRun = False,
    execute: Execute = False,
    timeout: Timeout = TIMEOUT_MS,
    as_json: Json = False,
    command_config: CommandConfig = None,
    _version: Version = False,
) -> None:
    """List, describe, reset and delete share groups; options are kafka-share-groups'.

    headrace share-groups --describe --group work
    """
    given = {name.rstrip("_"): value for name, value in locals().items()}
    with ending(COMMAND):
        given |= {"group": group or [], "topic": topic or []}
        action = one_action(given, _ACTIONS, _ONLY_WITH)
        asked = Asked(**{name: given[name] for name in Asked.__dataclass_fields__})
        _check(action, asked)
        if action in {"delete", "delete_offsets"} or (action == "reset_offsets" and execute):
            require_address(context, option(action) + (" --execute" if execute else ""))
        with connect(bootstrap_server, command_config, patience_s=timeout / 1000) as cluster:
            _run(action, cluster, asked)


def _run(action: str, cluster: "Cluster", asked: Asked) -> None:
    from headrace.cli import share_groups_change, share_groups_describe

    run: dict[str, Any] = {
        "list": share_groups_describe.list_groups,
        "describe": share_groups_describe.describe,
        "delete": share_groups_change.delete,
        "delete_offsets": share_groups_change.delete_offsets,
        "reset_offsets": share_groups_change.reset,
    }
    run[action](cluster, asked)


def _check(action: str, asked: Asked) -> None:
    """Raises: Trouble when an action lacks something, or is asked for two things at once."""
    if "" in asked.group:  # a variable of a script that is not set
        raise Trouble("the name of the group is empty; name one of --list")
    if action == "list" and asked.group:
        raise Trouble("--group can't be used with --list; leave it out")
    if asked.topic and action not in _OF_ONE_GROUP:
        raise Trouble(f"--topic can't be used with {option(action)}; leave it out")
    if action == "describe":
        check_described(asked)
    if action in _OF_ONE_GROUP:
        if len(asked.group) != 1:
            raise Trouble(f"{option(action)} takes one --group, not {len(asked.group)}")
    elif action != "list" and not (asked.group or asked.all_groups):
        raise Trouble(f"{option(action)} takes one of these options: --group, --all-groups")
    if action == "delete_offsets":
        _check_forgotten(asked)
    if action == "reset_offsets":
        check_scenario(asked, _SCENARIOS)
        if not (asked.all_topics or asked.topic):
            raise Trouble("--reset-offsets takes one of these options: --all-topics, --topic")
        if not (asked.dry_run or asked.execute):
            raise Trouble(
                "--reset-offsets takes --dry-run to print the new offsets or --execute to set them"
            )


def _check_forgotten(asked: Asked) -> None:
    if not asked.topic:
        raise Trouble("--delete-offsets needs --topic")
    for named in asked.topic:
        topic, colon, _ = named.partition(":")
        if colon:
            raise Trouble(
                f"--delete-offsets forgets whole topics: write --topic {topic}, not {named}"
            )
