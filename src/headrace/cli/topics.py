"""`headrace topics`: create, delete, change and describe topics, as kafka-topics does.

Options and text are those of Kafka 4.3's TopicCommand, so that scripts go on working. Two things
differ: errors are one line on stderr, and deleting by pattern asks for `--yes`.
"""

import json
import re
import sys
from dataclasses import dataclass
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
from headrace.cli.ending import Trouble, ending, tell
from headrace.cli.properties import pairs

if TYPE_CHECKING:
    from headrace.cli.topics_describe import Shown
    from headrace.client.connection import Cluster
    from headrace.client.topics import TopicDescription

_ACTIONS = ("create", "delete", "alter", "describe", "list")
_COLLISION = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') "
    "could collide. To avoid issues it is best to use either, but not both."
)
_PARTITIONS_MAX = (1 << 31) - 1  # what a request holds; brokers have limits of their own
_REPLICATION_FACTOR_MAX = (1 << 15) - 1
# Options that mean something with some actions only, as in Kafka's tool.
_ONLY_WITH = {
    "partitions": {"create", "alter"},
    "replica_assignment": {"create", "alter"},
    "replication_factor": {"create"},
    "config": {"create"},
    "if_not_exists": {"create"},
    "if_exists": {"alter", "delete", "describe"},
    "topic_id": {"describe"},
    "exclude_internal": {"list", "describe"},
    "under_replicated_partitions": {"describe"},
    "unavailable_partitions": {"describe"},
    "under_min_isr_partitions": {"describe"},
    "at_min_isr_partitions": {"describe"},
    "topics_with_overrides": {"describe"},
    "yes": {"delete"},
}

# The options, by the names of the parameters below.
_Create = Annotated[bool, typer.Option("--create", help="Create a topic.")]
_Delete = Annotated[bool, typer.Option("--delete", help="Delete topics.")]
_Alter = Annotated[bool, typer.Option("--alter", help="Add partitions to topics.")]
_Describe = Annotated[bool, typer.Option("--describe", help="Describe topics.")]
_List = Annotated[bool, typer.Option("--list", help="List the names of topics.")]
_Topic = Annotated[
    str | None,
    typer.Option(help="Name; a regular expression, or several with commas, but for --create."),
]
_TopicId = Annotated[str | None, typer.Option(help="Describe the topic with this id.")]
_Partitions = Annotated[
    int | None, typer.Option(help="Number of partitions; the broker's default for --create.")
]
_ReplicationFactor = Annotated[int | None, typer.Option(help="Replicas a partition.")]
_ReplicaAssignment = Annotated[
    str | None,
    typer.Option(help="Brokers of each partition: replicas by ':', partitions by ','."),
]
_Config = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="NAME=VALUE", help="A setting; repeatable."),
]
_IfExists = Annotated[
    bool, typer.Option("--if-exists", help="Do nothing when there is no such topic.")
]
_IfNotExists = Annotated[
    bool, typer.Option("--if-not-exists", help="Do nothing when the topic exists.")
]
_ExcludeInternal = Annotated[
    bool, typer.Option("--exclude-internal", help="Leave out internal topics.")
]
_TopicsWithOverrides = Annotated[
    bool, typer.Option("--topics-with-overrides", help="Topics with settings of their own.")
]
_UnavailablePartitions = Annotated[
    bool, typer.Option("--unavailable-partitions", help="Partitions without a leader.")
]
_UnderReplicatedPartitions = Annotated[
    bool, typer.Option("--under-replicated-partitions", help="Partitions lacking replicas.")
]
_UnderMinIsrPartitions = Annotated[
    bool,
    typer.Option("--under-min-isr-partitions", help="Fewer in sync than min.insync.replicas."),
]
_AtMinIsrPartitions = Annotated[
    bool,
    typer.Option("--at-min-isr-partitions", help="As many in sync as min.insync.replicas."),
]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked of topics, by the names of Kafka's options."""

    topic: str | None
    topic_id: str | None
    partitions: int | None
    replication_factor: int | None
    replica_assignment: str | None
    config: list[str] | None
    if_exists: bool
    if_not_exists: bool
    exclude_internal: bool
    topics_with_overrides: bool
    unavailable_partitions: bool
    under_replicated_partitions: bool
    under_min_isr_partitions: bool
    at_min_isr_partitions: bool
    yes: bool
    as_json: bool

    @property
    def only(self) -> "Shown | None":
        """Which partitions alone are described. Raises: Trouble on more than one filter."""
        from headrace.cli.topics_describe import Shown

        given = [shown for shown in Shown if getattr(self, shown.value)]
        if len(given) > 1:
            names = " and ".join("--" + shown.value.replace("_", "-") for shown in given[:2])
            raise Trouble(f"{names} exclude each other; give one")
        return given[0] if given else None


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(topics)


def topics(
    context: typer.Context,
    bootstrap_server: BootstrapServer = BOOTSTRAP_SERVER,
    create: _Create = False,
    delete: _Delete = False,
    alter: _Alter = False,
    describe: _Describe = False,
    list_: _List = False,
    topic: _Topic = None,
    topic_id: _TopicId = None,
    partitions: _Partitions = None,
    replication_factor: _ReplicationFactor = None,
    replica_assignment: _ReplicaAssignment = None,
    config: _Config = None,
    if_exists: _IfExists = False,
    if_not_exists: _IfNotExists = False,
    exclude_internal: _ExcludeInternal = False,
    topics_with_overrides: _TopicsWithOverrides = False,
    unavailable_partitions: _UnavailablePartitions = False,
    under_replicated_partitions: _UnderReplicatedPartitions = False,
    under_min_isr_partitions: _UnderMinIsrPartitions = False,
    at_min_isr_partitions: _AtMinIsrPartitions = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete what a pattern matches without asking.")
    ] = False,
    as_json: Json = False,
    command_config: CommandConfig = None,
    _version: Version = False,
) -> None:
    """Create, delete, change, describe or list topics; text and options are kafka-topics'.

    headrace topics --create --topic orders --partitions 3 --config retention.ms=86400000
    """
    given = locals()
    with ending("topics"):
        action = _action([name for name in _ACTIONS if given["list_" if name == "list" else name]])
        for name, actions in _ONLY_WITH.items():
            if given[name] not in (None, False) and action not in actions:
                option = name.replace("_", "-")
                raise Trouble(f"--{option} cannot be used with --{action}; leave it out")
        asked = _Asked(**{name: given[name] for name in _Asked.__dataclass_fields__})
        if topic is None and action in {"create", "alter", "delete"}:
            raise Trouble(f"--{action} needs --topic")
        _require_counts(asked)
        if action == "delete":
            require_address(context, "--delete")
        run = {"create": _create, "delete": _delete, "alter": _alter, "describe": _describe}
        with connect(bootstrap_server, command_config) as cluster:
            run.get(action, _list)(cluster, asked)


def _action(given: list[str]) -> str:
    if len(given) != 1:
        raise Trouble("give exactly one of --list, --describe, --create, --alter and --delete")
    return given[0]


def _require_counts(asked: _Asked) -> None:
    """Raises: Trouble for a number that Kafka's tool refuses, or no request can hold."""
    for option, count, limit in (
        ("--partitions", asked.partitions, _PARTITIONS_MAX),
        ("--replication-factor", asked.replication_factor, _REPLICATION_FACTOR_MAX),
    ):
        if count is not None and not 1 <= count <= limit:
            raise Trouble(f"{option} {count}: expected a number from 1 to {limit}")


def _create(cluster: "Cluster", asked: _Asked) -> None:
    from headrace.client.topics import create_topic

    name = asked.topic or ""
    if asked.replica_assignment and (asked.partitions or asked.replication_factor):
        raise Trouble("--replica-assignment says all; leave --partitions, --replication-factor out")
    if not asked.as_json and "." in name and "_" in name:
        print(_COLLISION)
    created = create_topic(
        cluster,
        name,
        asked.partitions,
        replication_factor=asked.replication_factor,
        assignments=_assignments(asked.replica_assignment),
        configs=pairs("--config", asked.config),
        exist_ok=asked.if_not_exists,
    )
    if asked.as_json:
        print(json.dumps({"topic": name, "created": created}))
    elif created:
        print(f"Created topic {name}.")


def _alter(cluster: "Cluster", asked: _Asked) -> None:
    from headrace.client.topics import add_partitions

    if asked.partitions is None:
        raise Trouble("--alter needs --partitions; settings are changed with headrace configs")
    for name, found in _matching(cluster, asked).items():
        # Kafka's tool takes the assignment of all partitions, its broker that of new ones.
        new = _assignments(asked.replica_assignment)[len(found.partitions) :]
        add_partitions(cluster, name, asked.partitions, assignments=new)
        if asked.as_json:
            print(json.dumps({"topic": name, "partitions": asked.partitions}))


def _delete(cluster: "Cluster", asked: _Asked) -> None:
    from headrace.client.errors import BrokerError
    from headrace.client.topics import delete_topic

    found = _matching(cluster, asked)
    _confirm(list(found), asked)
    refused = 0
    for name in found:
        try:
            delete_topic(cluster, name)
        except BrokerError as error:
            tell("topics", str(error))
            refused += 1
        else:
            if asked.as_json:
                print(json.dumps({"topic": name, "deleted": True}))
    if refused:
        raise Trouble(f"{refused} of {len(found)} topics were not deleted")


def _confirm(found: list[str], asked: _Asked) -> None:
    """Raises: Trouble unless each topic was named as it is, or a person says yes."""
    meant = set((asked.topic or "").split(","))
    unnamed = [name for name in found if name not in meant]
    if asked.yes or not unnamed:
        return
    question = f"--topic {asked.topic} would delete {', '.join(found)}"
    if not sys.stdin.isatty():
        raise Trouble(f"{question}; add --yes if you mean that")
    if not typer.confirm(f"{question}. Delete?", err=True):
        raise Trouble("nothing was deleted")


def _describe(cluster: "Cluster", asked: _Asked) -> None:
    from headrace.cli.topics_describe import describe

    only = asked.only
    find = _matching if asked.topic_id is None else _with_id
    found = find(cluster, asked)
    describe(cluster, found, only=only, as_json=asked.as_json)


def _list(cluster: "Cluster", asked: _Asked) -> None:
    from headrace.cli.topics_describe import as_object

    for name, found in _matching(cluster, asked, must_exist=False).items():
        print(json.dumps(as_object(found)) if asked.as_json else name)


def _matching(
    cluster: "Cluster", asked: _Asked, *, must_exist: bool = True
) -> dict[str, "TopicDescription"]:
    """The topics that --topic matches whole, all without it. Raises: Trouble when none does."""
    from headrace.client.topics import describe_topics

    found = describe_topics(cluster)
    if asked.exclude_internal:
        found = {name: one for name, one in found.items() if not one.internal}
    if asked.topic is None:
        return found
    pattern = included(asked.topic)
    found = {name: one for name, one in found.items() if pattern.fullmatch(name)}
    if not found and must_exist and not asked.if_exists:
        raise Trouble(f"Topic '{asked.topic}' does not exist as expected; see --list")
    return found


def _with_id(cluster: "Cluster", asked: _Asked) -> dict[str, "TopicDescription"]:
    from headrace.cli.topics_describe import spelled_id
    from headrace.client.topics import describe_topics

    every = describe_topics(cluster)
    found = {name: one for name, one in every.items() if spelled_id(one.id) == asked.topic_id}
    if not found and not asked.if_exists:
        raise Trouble(f"TopicId '{asked.topic_id}' does not exist as expected; see --describe")
    return found


def included(text: str) -> re.Pattern[str]:
    """Kafka's list of topics: regular expressions with commas between. Raises: Trouble."""
    try:
        return re.compile("|".join(part.strip().strip("\"'") for part in text.split(",")))
    except re.error as error:
        raise Trouble(f"{text!r} is no regular expression: {error}") from error


def _assignments(text: str | None) -> list[list[int]]:
    """The brokers of each partition in Kafka's spelling. Raises: Trouble."""
    if not text:
        return []
    try:
        return [[int(broker) for broker in one.split(":")] for one in text.split(",")]
    except ValueError:
        raise Trouble(
            f"--replica-assignment {text}: write brokers' ids as 1:2,2:1, one part a partition"
        ) from None
