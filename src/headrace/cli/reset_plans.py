"""The file of --from-file: lines of `topic,partition,offset`, with the group in front for several.

It is what --export prints. Source: CsvUtils of Kafka 4.3.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

from headrace.cli.ending import Trouble
from headrace.client.offsets import TopicPartition

Offsets = dict[TopicPartition, int]
Plans = dict[str, Offsets]

_WITHOUT_GROUP, _WITH_GROUP = 3, 4


def read_plans(path: Path, groups: Sequence[str]) -> Plans:
    """The new offsets by group. Raises: Trouble that names the line."""
    plans: Plans = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Trouble(f"--from-file {path} cannot be read: {error}") from error
    for number, fields in enumerate(lines, start=1):
        if not any(field.strip() for field in fields):
            continue
        cells = fields
        if len(cells) == _WITHOUT_GROUP and len(groups) == 1:
            cells = [groups[0], *cells]
        try:
            if len(cells) != _WITH_GROUP:
                raise ValueError
            group, topic, partition, offset = cells
            # A group's name may begin with a blank, a topic's cannot.
            plans.setdefault(group, {})[topic.strip(), _number(partition)] = _number(offset)
        except ValueError:
            form = "topic,partition,offset or " if len(groups) == 1 else ""
            raise Trouble(
                f"line {number} of {path} is {','.join(fields)!r}; write {form}"
                "group,topic,partition,offset"
            ) from None
    return plans


def _number(text: str) -> int:
    if "_" in text:
        raise ValueError  # Python's own notation
    return int(text)
