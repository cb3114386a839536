"""What `headrace offsets history` prints: a line for each move of an offset, oldest first.

That the journal is whole from some time on is known at its end, and told at the top: what is to be
printed is kept as lines of JSON meanwhile, in a file as soon as they are many.
"""

import json
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from headrace.cli.ending import Trouble, tell
from headrace.cli.offsets_journal import TOPIC, Source
from headrace.cli.table import harmless
from headrace.cli.times import local
from headrace.core.consumer_words import ConsumerMember
from headrace.core.group_words import Member
from headrace.log.group_history import (
    Assigned,
    Converted,
    Deleted,
    Emptied,
    EpochBegan,
    GroupHistory,
    GroupRecords,
    Happening,
    MemberCame,
    MemberWent,
    Moved,
)

_COMMAND = "offsets history"
_IN_MEMORY_MAX = 8 << 20
_MEMBERS_TOLD_MAX = 8
_COLUMNS = ("TIME", "TOPIC", "PARTITION", "FROM", "TO", "CAUSE", "BY", "NOTE")
_NONE, _UNKNOWN = "-", "?"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is shown: of which partitions, since when (ms), how much, and how.

    `places`: the partitions of a topic, None for all of them; all topics when it is empty.
    `repeats`: also commits of what was committed already.
    """

    places: Mapping[str, Collection[int] | None]
    since: int | None
    count_max: int | None
    repeats: bool
    as_json: bool

    def has(self, one: Happening) -> bool:
        """Whether it is shown, but for repeats."""
        if self.since is not None and one.at < self.since:
            return False
        if not self.places:
            return True
        if not isinstance(one, Moved):
            return False
        partitions = self.places.get(one.topic, ())
        return partitions is None or one.partition in partitions


def history(source: Source, group: str, wanted: Wanted) -> None:
    """Print it. Raises: Trouble for a group that the journal does not know; as the source."""
    happened = GroupHistory()
    count = repeats = 0
    with SpooledTemporaryFile(_IN_MEMORY_MAX, "w+", encoding="utf-8") as file:
        lines = _Lines(file, wanted.count_max)
        for record in source.read():
            count += 1
            for one in happened.take(record, is_whole=source.records.whole_since is None):
                if not wanted.has(one):
                    continue
                if isinstance(one, Moved) and one.is_repeat and not wanted.repeats:
                    repeats += 1
                else:
                    lines.add(one)
        if not count:
            raise Trouble(
                f"group {group} is unknown: {TOPIC}-{source.partition} has no record of it;"
                " check the name"
            )
        if wanted.as_json:
            about = {"type": "journal", "group": group, "partition": source.partition}
            print(json.dumps(about | _wholeness(source.records) | {"repeats": repeats}))
            for line in lines.finish():
                print(line)
        else:
            for line in _text(group, source, lines, repeats):
                print(harmless(line))
    if happened.unreadable:
        tell(
            _COMMAND,
            f"{len(happened.unreadable)} records cannot be read, the first at offset"
            f" {happened.unreadable[0]} of {TOPIC}-{source.partition}: a newer version wrote them",
        )


def as_object(one: Happening) -> dict[str, Any]:
    """What happened, as a JSON object."""
    about: dict[str, Any] = {"time": local(one.at), "timestamp": one.at}
    match one:
        case Moved():
            after = one.after
            return {"type": "offset"} | about | {
                "topic": one.topic,
                "partition": one.partition,
                "from": one.before.offset if one.before else None,
                "from_known": one.is_known,
                "to": after.offset if after else None,
                "cause": one.cause.value if one.cause else None,
                "by": one.by or None,
                "metadata": after.metadata if after else None,
                "rewound": one.rewound,
            }  # fmt: skip
        case Assigned(_, generation, protocol, members):
            told = [_member(one) for one in members]
            made = {"generation": generation, "protocol": protocol, "members": told}
            return {"type": "generation"} | about | made
        case EpochBegan(_, epoch, count):
            return {"type": "epoch"} | about | {"epoch": epoch, "members": count}
        case MemberCame(_, member):
            return {"type": "member came"} | about | _member(member)
        case MemberWent(_, member):
            return {"type": "member went"} | about | _member(member)
        case Converted(_, kind):
            return {"type": "conversion"} | about | {"to": kind}
        case Emptied(_, generation):
            return {"type": "empty"} | about | {"generation": generation}
        case Deleted(_, cause, by):
            why = {"cause": cause.value if cause else None, "by": by or None}
            return {"type": "deletion"} | about | why


def _member(member: Member | ConsumerMember) -> dict[str, Any]:
    return {
        "member_id": member.id,
        "group_instance_id": member.instance,
        "client_id": member.client_id,
        "client_host": member.client_host,
    }


class _Lines:
    """Objects that wait to be printed, the last `count_max` of them; memory is bounded."""

    def __init__(self, file: IO[str], count_max: int | None) -> None:
        self.widths = {name: len(name) for name in _COLUMNS}
        self._file = file
        self._last: deque[Happening] | None = None if count_max is None else deque(maxlen=count_max)

    def add(self, one: Happening) -> None:
        if self._last is None:
            self._file.write(self._line(one) + "\n")
        else:
            self._last.append(one)

    def finish(self) -> Iterable[str]:
        """The lines; from then on `widths` are those of the columns."""
        if self._last is not None:
            return [self._line(one) for one in self._last]
        self._file.seek(0)
        return (line.rstrip("\n") for line in self._file)

    def _line(self, one: Happening) -> str:
        about = as_object(one)
        if isinstance(one, Moved):
            for name, cell in zip(_COLUMNS, _cells(about), strict=True):
                self.widths[name] = max(self.widths[name], len(cell))
        return json.dumps(about)


def _wholeness(records: GroupRecords) -> dict[str, Any]:
    since = records.whole_since
    if since is None:
        return {"complete": True, "complete_since": None}
    return {"complete": False, "complete_since": local(since)}


def _text(group: str, source: Source, lines: _Lines, repeats: int) -> Iterator[str]:
    since = source.records.whole_since
    whole = (
        "complete: nothing was compacted away yet"
        if since is None
        else f"complete since {local(since)}; older moves may have been compacted away"
    )
    yield f"Group {group} in {TOPIC}-{source.partition}, {whole}."
    if repeats:
        were = "1 commit" if repeats == 1 else f"{repeats} commits"
        yield f"{were} of what was committed already left out; --all shows them."
    yield ""
    kept = lines.finish()
    yield _row(_COLUMNS, lines.widths)
    for line in kept:
        about = json.loads(line)
        if about["type"] == "offset":
            yield _row(_cells(about), lines.widths)
        else:
            yield f"{about['time']}  {_sentence(about)}"


def _row(cells: tuple[str, ...], widths: dict[str, int]) -> str:
    padded = (cell.ljust(widths[name]) for name, cell in zip(_COLUMNS, cells, strict=True))
    return "  ".join(padded).rstrip()


def _cells(about: dict[str, Any]) -> tuple[str, ...]:
    def told(offset: int | None, known: bool = True) -> str:
        return str(offset) if offset is not None else (_NONE if known else _UNKNOWN)

    cause = about["cause"] or "removed (reason not recorded)"
    notes = []
    if about["rewound"]:
        notes.append(f"rewound by {about['rewound']}")
    if about["metadata"]:
        notes.append(f"metadata {json.dumps(about['metadata'], ensure_ascii=False)}")
    return (
        about["time"],
        about["topic"],
        str(about["partition"]),
        told(about["from"], about["from_known"]),
        told(about["to"]),
        cause,
        about["by"] or _NONE,
        ", ".join(notes),
    )


def _sentence(about: dict[str, Any]) -> str:
    match about["type"]:
        case "generation":
            members = about["members"]
            told = [f"{one['member_id']} {one['client_host']}" for one in members]
            if len(members) > _MEMBERS_TOLD_MAX:
                told[_MEMBERS_TOLD_MAX:] = [f"{len(members) - _MEMBERS_TOLD_MAX} more"]
            which = f"{_members(len(members))} ({about['protocol']}): {', '.join(told)}"
            return f"generation {about['generation']}, {which}"
        case "epoch":
            return f"epoch {about['epoch']}, {_members(about['members'])}"
        case "member came" | "member went" as what:
            who = f"{about['member_id']} {about['client_host']} ({about['client_id']})"
            return f"{what}: {who}"
        case "empty":
            return f"the last member went (generation {about['generation']})"
        case "conversion":
            return f"the group goes on under the {about['to']} protocol"
        case _:
            cause = about["cause"] or "reason not recorded"
            by = f" by {about['by']}" if about["by"] else ""
            return f"the group was removed ({cause}{by})"


def _members(count: int) -> str:
    return "1 member" if count == 1 else f"{count} members"
