"""What `headrace offsets forecast` prints: when each offset of a group expires, and what stops it.

The group is rebuilt from its journal; of the live one only its phase is asked, since a rebalance is
in no journal. The decision is that of the broker's sweep (`core/offset_forecast.py`).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.cli.ending import Trouble
from headrace.cli.offsets_journal import TOPIC, GroupOnWire, Source
from headrace.cli.table import harmless
from headrace.cli.times import in_words, local
from headrace.client.configs import ConfigSource, ResourceType, describe_configs
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.groups import GroupDescription, describe_groups
from headrace.client.topics import broker_ids
from headrace.core.classic_group import ClassicGroup
from headrace.core.consumer_group import Group
from headrace.core.group_events import RebalanceBegan
from headrace.core.group_shard import GroupShard
from headrace.core.group_words import TIME_UNKNOWN, Phase
from headrace.core.offset_forecast import Base, Due, Kept, Outlook, outlooks, removed_at
from headrace.core.offsets import Offsets
from headrace.core.types import WallMs
from headrace.log.group_records import GroupJournal
from headrace.wire.primitives import Malformed, Reader

_RETENTION, _CHECK = "offsets.retention.minutes", "offsets.retention.check.interval.ms"
_MS_PER_MINUTE = 60_000
_GROUP_NOT_FOUND = 69
_COLUMNS = ("TOPIC", "PARTITION", "OFFSET", "EXPIRES", "IN", "BECAUSE", "STOPPED BY")
_REBALANCING = {Phase.PREPARING.value, Phase.COMPLETING.value}
_KEPT = {
    Kept.SUBSCRIBED: "subscribed by an active group",
    Kept.UNREADABLE: "a member's subscription cannot be read, so it counts as to every topic",
    Kept.REBALANCING: "the group is rebalancing",
    Kept.OTHER_PROTOCOL: "an active group whose topics are not known (protocol type {})",
}
_JOIN, _SUBSCRIBE, _COMMIT = (
    "a member joins",
    "a member subscribes to the topic",
    "a commit to the partition",
)


@dataclass(frozen=True, slots=True)
class Retention:
    """The settings that count: `source` says whose the retention is."""

    minutes: int
    source: str
    check_ms: int | None


@dataclass(frozen=True, slots=True)
class _Known:
    """A group with all that is foretold of it, at the time `now` in ms."""

    name: str
    group: Group
    state: str
    retention: Retention
    found: list[Outlook]
    removed_at: WallMs | None
    now: int


def forecast(cluster: Cluster, name: str, *, now: int, as_json: bool) -> None:
    """Print it. Raises: Trouble for a group that does not exist; as `Cluster`."""
    group, offsets = _rebuilt(GroupOnWire(cluster, name), name)
    live = _live(cluster, name)
    if group is None and live is None:
        raise Trouble(f"group {name} does not exist; headrace offsets history tells what was")
    group = group or ClassicGroup(name)
    if live is not None and live.state in _REBALANCING and isinstance(group, ClassicGroup):
        group.apply(RebalanceBegan(name))
    retention = _retention(cluster, name, live)
    found = outlooks(group, offsets, retention.minutes)
    state = live.state if live is not None else _state(group)
    known = _Known(name, group, state, retention, found, removed_at(group, found), now)
    lines = _objects(known) if as_json else map(harmless, _text(known))
    for line in lines:
        print(line)


# ---- what is known


def _rebuilt(source: Source, name: str) -> tuple[Group | None, Offsets]:
    """The group as its journal has it, and its offsets. Raises: Trouble."""
    outside: Any = None  # to replay is to decide nothing, so nothing of it is asked
    shard, codec = GroupShard(outside), GroupJournal()
    for record in source.read():
        try:
            for event in codec.events(record.key, record.value):
                shard.apply(event)
        except Malformed as error:
            kind = Reader(record.key or b"\0\0").int16()
            raise Trouble(
                f"record {record.offset} of {TOPIC}-{source.partition} (type {kind}) cannot be"
                f" read: {error}; a forecast without it could be wrong"
            ) from error
    return shard.groups.get(name), shard.offsets.get(name, Offsets())


def _live(cluster: Cluster, name: str) -> GroupDescription | None:
    """The group as its coordinator sees it now. Raises: BrokerError."""
    answer = describe_groups(cluster, [name])[name]
    if isinstance(answer, GroupDescription):
        return answer
    if answer.code == _GROUP_NOT_FOUND:
        return None
    raise answer


def _state(group: Group) -> str:
    return group.phase.value if isinstance(group, ClassicGroup) else group.state.value


def _retention(cluster: Cluster, name: str, live: GroupDescription | None) -> Retention:
    """By which settings the coordinator's sweep goes. Raises: Trouble; as `Cluster`."""
    node = live.coordinator.id if live is not None else broker_ids(cluster)[0]
    entries = describe_configs(cluster, ResourceType.BROKER, str(node))
    broker = {one.name: one.value for one in entries}
    try:
        own = [
            one
            for one in describe_configs(cluster, ResourceType.GROUP, name)
            if one.name == _RETENTION and one.source is ConfigSource.DYNAMIC_GROUP_CONFIG
        ]
    except BrokerError as error:
        if error.name not in {"INVALID_REQUEST", "GROUP_ID_NOT_FOUND"}:
            raise
        own = []  # a broker whose groups have no settings
    minutes = own[0].value if own else broker.get(_RETENTION)
    check = broker.get(_CHECK)
    if minutes is None:
        raise Trouble(f"broker {node} does not tell {_RETENTION}, so nothing can be foretold")
    whose = "set for the group" if own else "the broker's"
    return Retention(int(minutes), whose, None if check is None else int(check))


# ---- what is told


def _text(known: _Known) -> Iterator[str]:
    group, retention = known.group, known.retention
    since = f" since {local(group.empty_since)}" if _is_empty_since(known) else ""
    yield f"Group {known.name} is {known.state}{since}; {_kind(group)}."
    kept_for = in_words(retention.minutes * _MS_PER_MINUTE)
    yield (
        f"Offsets are kept for {kept_for} ({_RETENTION}={retention.minutes}, {retention.source});"
        f" {_checked(retention)}."
    )
    yield ""
    if known.found:
        rows = [_COLUMNS, *(_row(one, known) for one in known.found)]
        widths = [max(len(row[at]) for row in rows) for at in range(len(_COLUMNS))]
        for row in rows:
            padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            yield "  ".join(padded).rstrip()
        yield ""
    yield _end(known)


def _objects(known: _Known) -> Iterator[str]:
    retention = known.retention
    removed = None if known.removed_at is None else _check_at(known.removed_at, known)
    about = {
        "type": "group",
        "group": known.name,
        "kind": _kind(known.group),
        "state": known.state,
        "empty_since": local(known.group.empty_since) if _is_empty_since(known) else None,
        "retention_minutes": retention.minutes,
        "retention_source": retention.source,
        "check_interval_ms": retention.check_ms,
        "removed": None if removed is None else local(removed),
        "removed_timestamp": removed,
        "end": _end(known),
    }
    yield json.dumps(about)
    for one in known.found:
        fate = one.fate
        due = fate if isinstance(fate, Due) else None
        yield json.dumps(
            {
                "type": "offset",
                "topic": one.topic,
                "partition": one.partition,
                "offset": one.committed.offset,
                "expires": local(due.at) if due else None,
                "expires_timestamp": due.at if due else None,
                "expires_in_ms": max(0, due.at - known.now) if due else None,
                "base": due.base.name.lower() if due else None,
                "since": local(due.since) if due else None,
                "kept": None if isinstance(fate, Due) else fate.name.lower().replace("_", " "),
                "because": _because(fate, known.group),
                "stopped_by": _stops(one, known.group),
            }
        )


def _row(one: Outlook, known: _Known) -> tuple[str, ...]:
    fate = one.fate
    place = one.topic, str(one.partition), str(one.committed.offset)
    because = _because(fate, known.group)
    if not isinstance(fate, Due):
        return (*place, "never", "-", because, "-")
    left_ms = fate.at - known.now
    left = in_words(left_ms) if left_ms > 0 else "next check"
    return (*place, local(fate.at), left, because, " or ".join(_stops(one, known.group)))


def _because(fate: Due | Kept, group: Group) -> str:
    if isinstance(fate, Kept):
        return _KEPT[fate].format(group.protocol_type)
    match fate.base:
        case Base.EMPTY:
            return f"the group is empty since {local(fate.since)}"
        case Base.COMMIT:
            return f"committed {local(fate.since)}"
        case Base.OWN:
            return f"the commit of {local(fate.since)} chose it"


def _stops(one: Outlook, group: Group) -> list[str]:
    """What would keep an offset that is due; in an empty group a commit alone may not."""
    if not isinstance(one.fate, Due):
        return []
    comes = _JOIN if group.is_empty else _SUBSCRIBE
    return [comes] if one.fate.base is Base.EMPTY else [comes, _COMMIT]


def _end(known: _Known) -> str:
    if known.removed_at is None:
        return f"Group {known.name} stays as long as it has members."
    if not known.found:
        return f"Group {known.name} has no offsets: the next check removes it, unless {_JOIN}."
    last = max(known.found, key=lambda one: one.fate.at if isinstance(one.fate, Due) else 0)
    again = "" if _stops(last, known.group) == [_JOIN] else " or it is committed again"
    at = local(_check_at(known.removed_at, known))
    return f"Group {known.name} is removed with its last offset, {at}, unless {_JOIN}{again}."


def _check_at(moment: WallMs, known: _Known) -> int:
    """The earliest time of a check that finds it due: what was due before now is so with it."""
    return max(moment, known.now)


def _is_empty_since(known: _Known) -> bool:
    group = known.group
    named = group.protocol_type is not None
    return group.is_empty and named and group.empty_since != TIME_UNKNOWN


def _kind(group: Group) -> str:
    if not isinstance(group, ClassicGroup):
        return "consumer protocol"
    if group.protocol_type is None:
        return "simple: committed to, never joined"
    return f"classic protocol, type {group.protocol_type}"


def _checked(retention: Retention) -> str:
    if retention.check_ms is None:
        return "they go with the first check at the time told or later"
    every = in_words(retention.check_ms)
    return f"they go with the first check at the time told or later, one every {every} ({_CHECK})"
