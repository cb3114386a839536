"""`headrace consumer-groups --list` and `--validate-regex`."""

import json

import typer

from headrace.broker.topic_patterns import why_refused
from headrace.cli.consumer_groups import Asked
from headrace.cli.ending import FAILED, Trouble
from headrace.cli.table import Table
from headrace.client.connection import Cluster
from headrace.client.groups import GroupListing, list_consumer_groups

# Source: GroupState.groupStatesForType(CONSUMER) of Kafka 4.3.
_STATES = (
    "Assigning", "CompletingRebalance", "Dead", "Empty", "PreparingRebalance", "Reconciling",
    "Stable",
)  # fmt: skip
_TYPES = ("Classic", "Consumer")
_GROUP_WIDTH, _GROUP_GAP, _WIDTH = 15, 10, 20


def list_groups(cluster: Cluster, asked: Asked) -> None:
    """Print the groups of consumers; with --state or --type a table, of those named alone."""
    states = _named(asked.state, _STATES, "state")
    types = _named(asked.type, _TYPES, "types")
    found = list_consumer_groups(cluster, states=states, types=types)
    if asked.as_json:
        for one in found:
            print(json.dumps(_as_object(one)))
    elif asked.state is None and asked.type is None:
        for one in found:
            print(one.group)
    else:
        _table(found, asked)


def named_groups(cluster: Cluster, asked: Asked) -> list[str]:
    """The groups of --group, or those of consumers there are with --all-groups."""
    if asked.all_groups:
        return [one.group for one in list_consumer_groups(cluster)]
    return asked.group


def validate_regex(asked: Asked) -> None:
    """Print whether brokers take a pattern of topics; ends with 1 when they do not."""
    pattern = asked.validate_regex or ""
    reason = why_refused(pattern)
    if asked.as_json:
        print(json.dumps({"regex": pattern, "valid": reason is None, "reason": reason}))
    elif reason is None:
        print(f"The regular expression `{pattern}` is valid.")
    else:
        print(f"The regular expression `{pattern}` is invalid: {reason}.")
    if reason is not None:
        raise typer.Exit(FAILED)


def _named(text: str | None, known: tuple[str, ...], what: str) -> list[str]:
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


def _table(found: list[GroupListing], asked: Asked) -> None:
    longest = max([_GROUP_WIDTH, *(len(one.group) for one in found)])
    with_type, with_state = asked.type is not None, asked.state is not None
    columns = [("GROUP", longest + _GROUP_GAP)]
    columns += [("TYPE", _WIDTH)] * with_type + [("STATE", _WIDTH)] * with_state
    table = Table(*columns)
    for one in found:
        kind = (one.type or "unknown").capitalize()
        table.add(one.group, *[kind] * with_type, *[one.state or "Unknown"] * with_state)
    print(*table.lines(), sep="\n")


def _as_object(one: GroupListing) -> dict[str, str | None]:
    return {
        "group": one.group,
        "type": one.type and one.type.lower(),
        "protocol_type": one.protocol_type,
        "state": one.state,
    }
