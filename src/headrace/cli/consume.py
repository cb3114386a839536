"""`headrace consume`: records of topics on standard output, as kafka-console-consumer.

With --share-group it is a member of a share group, as kafka-console-share-consumer.
Without --group it is the one member of a group with a made-up name, which commits nothing unless
enable.auto.commit says so (KIP-211): nobody would read on from those offsets. --partition joins no
group.
"""

import random
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.connect import (
    BOOTSTRAP_SERVER,
    BootstrapServer,
    CommandConfig,
    Json,
    Version,
    client_settings,
    connect,
    is_given,
    require_plaintext,
)
from headrace.cli.ending import Trouble, ending
from headrace.cli.properties import load, pairs
from headrace.cli.topics import included

if TYPE_CHECKING:
    from headrace.cli.consume_loop import Wanted

_BEGINNING = -2  # as librdkafka's OFFSET_BEGINNING
_LEVELS = ("read_uncommitted", "read_committed")
_FETCH_API = 1
_MADE_UP, _MADE_UP_COUNT = "console-consumer-", 100_000
_REFRESH_MS = 5000  # new topics and partitions are read after this long
# Java's consumer leaves these out of patterns.
_INTERNAL = "^__consumer_offsets$,^__transaction_state$,^__share_group_state$"
_SIGNALLED = 128
_FORMATTER = "DefaultMessageFormatter"
_OF_LOGS = (
    "include", "from_beginning", "partition", "offset", "group", "auto_offset_reset",
    "isolation_level", "skip_message_on_error",
)  # fmt: skip
_OF_SHARES = ("release", "reject", "reject_message_on_error")

_Topic = Annotated[str | None, typer.Option(help="The topic to read.")]
_Include = Annotated[
    str | None, typer.Option(help="Regular expression of the topics to read, instead of --topic.")
]
_FromBeginning = Annotated[
    bool, typer.Option("--from-beginning", help="Begin with the first record, not the next one.")
]
_Partition = Annotated[int | None, typer.Option(min=0, help="Read this partition only.")]
_Offset = Annotated[
    str | None,
    typer.Option(help="Where to begin in --partition: earliest, latest or a number."),
]
_Messages = Annotated[int | None, typer.Option(min=0, help="End after so many records.")]
_Timeout = Annotated[
    int | None, typer.Option(min=0, help="End when no record came for so many milliseconds.")
]
_Group = Annotated[
    str | None, typer.Option(help="Read as a member of this group, and commit its offsets.")
]
_ShareGroup = Annotated[
    str | None,
    typer.Option(help="Read as a member of this share group, and accept what was printed."),
]
_Release = Annotated[
    bool, typer.Option("--release", help="With --share-group: release records instead.")
]
_Reject = Annotated[
    bool, typer.Option("--reject", help="With --share-group: reject records instead.")
]
_RejectErrors = Annotated[
    bool,
    typer.Option(
        "--reject-message-on-error",
        help="With --share-group: reject what cannot be read, and go on.",
    ),
]
_Formatter = Annotated[
    list[str] | None,
    typer.Option(
        "--formatter-property",
        metavar="NAME=VALUE",
        help="What is printed, e.g. print.key=true; repeatable.",
    ),
]
_FormatterClass = Annotated[
    str | None,
    typer.Option(
        "--formatter", metavar="CLASS", help=f"{_FORMATTER} alone, which needs no saying."
    ),
]
_FormatterConfig = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Properties file of --formatter-property.")
]
_KeyDeserializer = Annotated[str | None, typer.Option(help="What keys are, e.g. Long.")]
_ValueDeserializer = Annotated[str | None, typer.Option(help="What values are, e.g. Long.")]
_Reset = Annotated[
    str | None,
    typer.Option(
        metavar="STRATEGY",
        help="Where it begins without a committed offset: none, earliest, latest, "
        "earliest_on_start, latest_on_start, safe_latest.",
    ),
]
_Isolation = Annotated[str, typer.Option(metavar="LEVEL", help=f"{' or '.join(_LEVELS)}.")]
_CommandProperty = Annotated[
    list[str] | None,
    typer.Option(
        "--command-property",
        metavar="NAME=VALUE",
        help="A setting of the consumer by librdkafka's name; repeatable.",
    ),
]
_SkipErrors = Annotated[
    bool, typer.Option("--skip-message-on-error", help="Pass over what cannot be read.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(consume)


def consume(
    context: typer.Context,
    bootstrap_server: BootstrapServer = BOOTSTRAP_SERVER,
    topic: _Topic = None,
    include: _Include = None,
    from_beginning: _FromBeginning = False,
    partition: _Partition = None,
    offset: _Offset = None,
    max_messages: _Messages = None,
    timeout_ms: _Timeout = None,
    group: _Group = None,
    auto_offset_reset: _Reset = None,
    share_group: _ShareGroup = None,
    release: _Release = False,
    reject: _Reject = False,
    reject_message_on_error: _RejectErrors = False,
    formatter: _FormatterClass = None,
    formatter_property: _Formatter = None,
    formatter_config: _FormatterConfig = None,
    key_deserializer: _KeyDeserializer = None,
    value_deserializer: _ValueDeserializer = None,
    isolation_level: _Isolation = _LEVELS[0],
    skip_message_on_error: _SkipErrors = False,
    as_json: Json = False,
    command_property: _CommandProperty = None,
    command_config: CommandConfig = None,
    _version: Version = False,
) -> None:
    """Print records; options and text are kafka-console-consumer's.

    headrace consume --topic orders --from-beginning --formatter-property print.key=true
    """
    with ending("consume"):
        shown = _shown(formatter_config, formatter_property, key_deserializer, value_deserializer)
        given = client_settings(command_config) | pairs("--command-property", command_property)
        require_plaintext(given)
        _must_fit(context, topic, formatter, share_group)
        limits = (max_messages, timeout_ms)
        if share_group is not None:
            about = (_identity(share_group, given)["group.id"], topic, _verdict(release, reject))
            rejects = reject_message_on_error
            _share(bootstrap_server, given, about, limits, rejects, None if as_json else shown)
            return
        settings = {
            "bootstrap.servers": bootstrap_server,
            "isolation.level": _level(isolation_level),
            "auto.offset.reset": _strategy(auto_offset_reset, from_beginning),
            **_identity(group, given),
            **({} if include is None else {"topic.blacklist": _INTERNAL}),
            **{name: one for name, one in given.items() if name != "group.id"},
        }
        from headrace.cli.consume_loop import Wanted

        pattern = _pattern(topic, include)
        first = _first(partition, offset, from_beginning, settings["auto.offset.reset"])
        wanted = Wanted(
            topic or pattern.pattern, topic is None, pattern, partition, first, *limits,
            skip_message_on_error, not (group or given.get("group.id")),
        )  # fmt: skip
        _run(bootstrap_server, settings, wanted, None if as_json else shown)


def _strategy(reset: str | None, from_beginning: bool) -> str:
    if reset is None:
        return "earliest" if from_beginning else "latest"
    if from_beginning:
        raise Trouble(
            "Options --from-beginning and --auto-offset-reset cannot be specified together"
        )
    return reset


def _level(isolation_level: str) -> str:
    if isolation_level not in _LEVELS:
        raise Trouble(f"--isolation-level: {' or '.join(_LEVELS)}")
    return isolation_level


def _shown(
    config: Path | None, properties: list[str] | None, key: str | None, value: str | None
) -> dict[str, str]:
    """The properties of the formatter, those of the command line before those of the file."""
    shown = {} if config is None else load(config)
    shown |= pairs("--formatter-property", properties)
    for name, one in (("key", key), ("value", value)):
        if one is not None:
            shown[f"{name}.deserializer"] = one
    return shown


def _must_fit(
    context: typer.Context, topic: str | None, formatter: str | None, share_group: str | None
) -> None:
    """Raises: Trouble for an option that has no meaning with, or without, a share group.

    Also for a topic that none can be, and for a class of Java's.
    """
    if topic is not None:
        _must_be_possible(topic)
    if formatter is not None and formatter.rpartition(".")[2] != _FORMATTER:
        raise Trouble(
            f"--formatter {formatter}: classes of Java's are not run; {_FORMATTER} is what there "
            "is, or --json"
        )
    others = _OF_SHARES if share_group is None else _OF_LOGS
    for name in others:
        if is_given(context, name):
            option = f"--{name.replace('_', '-')}"
            how = "only with" if share_group is None else "not with"
            raise Trouble(f"{option} goes {how} --share-group")


def _must_be_possible(topic: str) -> None:
    """Raises: Trouble for a name that no topic can have: it would be waited for in vain."""
    from headrace.core.catalog import is_topic_name

    if not is_topic_name(topic):
        raise Trouble(
            f"no topic can be called {topic!r}: --topic is 1 to 249 of a-z A-Z 0-9 . _ -; several "
            "are read with --include"
        )


def _verdict(release: bool, reject: bool) -> str:
    if release and reject:
        raise Trouble("At most one of --reject and --release may be specified.")
    return "release" if release else "reject" if reject else "accept"


def _share(
    bootstrap_server: str,
    given: dict[str, str],
    about: tuple[str, str | None, str],
    limits: tuple[int | None, int | None],
    rejects_errors: bool,
    shown: dict[str, str] | None,
) -> None:
    """Read from a share group; `about` are group, topic and verdict. `shown` is None for JSON."""
    from headrace.cli.consume_format import formatter, json_line
    from headrace.cli.consume_share import Wanted, read, settings_of

    group, topic, verdict = about
    if topic is None:
        raise Trouble("--topic is a required argument")
    write = json_line if shown is None else formatter(shown)
    settings = settings_of(given)
    wanted = Wanted(group, topic, verdict, *limits, rejects_errors)
    with connect(bootstrap_server, client_id=settings["client_id"]) as cluster:
        stopped = read(cluster, settings, wanted, write)
    if stopped is not None:
        raise typer.Exit(_SIGNALLED + stopped)


def _run(
    bootstrap_server: str, settings: dict[str, Any], wanted: "Wanted", shown: dict[str, str] | None
) -> None:
    """Read, say how much it was, and end by the signal that came. `shown` is None for JSON."""
    from headrace.cli.consume_format import formatter, json_line
    from headrace.cli.consume_loop import Reading

    write = json_line if shown is None else formatter(shown)
    with connect(bootstrap_server, client_id=settings["client.id"]) as cluster:
        cluster.retrying("connecting", lambda: cluster.offers(_FETCH_API, 4))
        reading = Reading(settings, wanted, write)
        try:
            reading.run(cluster)
        except Trouble:
            _sum_up(reading.count)
            raise
    _sum_up(reading.count)
    if reading.stopped is not None:
        raise typer.Exit(_SIGNALLED + reading.stopped)


def _sum_up(count: int) -> None:
    print(f"Processed a total of {count} messages", file=sys.stderr)


def _pattern(topic: str | None, include: str | None) -> re.Pattern[str]:
    """What the names of topics match. Raises: Trouble unless one of the two is given."""
    if (topic is None) == (include is None):
        raise Trouble("Exactly one of the following arguments is required: --topic, --include")
    return included(include) if include is not None else re.compile(re.escape(topic or ""))


def _identity(group: str | None, given: dict[str, str]) -> dict[str, Any]:
    """Who reads, and whether it commits. Raises: Trouble when two groups are named."""
    named = given.get("group.id")
    if "" in (group, named):  # a variable of a script that is not set, and nothing is committed
        raise Trouble("the name of the group is empty; give one, or leave the option out")
    if group and named and group != named:
        raise Trouble(
            "The group ids provided in different places do not match. "
            f"Detected group ids: '{group}', '{named}'"
        )
    group = group or named
    made_up = f"{_MADE_UP}{random.randrange(_MADE_UP_COUNT)}"  # noqa: S311 -- not a secret
    return {
        "group.id": group or made_up,
        "client.id": "console-consumer",
        "enable.auto.commit": "true" if group else "false",
        "enable.auto.offset.store": False,
        "topic.metadata.refresh.interval.ms": _REFRESH_MS,
    }


def _first(
    partition: int | None, offset: str | None, from_beginning: bool, reset: str
) -> int | None:
    """The first offset; None for the end. Raises: Trouble."""
    if offset is None:
        return _BEGINNING if from_beginning or reset.startswith("earliest") else None
    if partition is None:
        raise Trouble("The partition is required when offset is specified: add --partition")
    if from_beginning:
        raise Trouble("Options --from-beginning and --offset cannot be specified together")
    if offset.lower() == "earliest":
        return _BEGINNING
    if offset.lower() == "latest":
        return None
    if not offset.isdecimal():
        raise Trouble(
            f"The provided offset value '{offset}' is incorrect. Valid values are 'earliest', "
            "'latest', or a non-negative long."
        )
    return int(offset)
