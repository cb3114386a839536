"""When a consumer group started, kept with its offsets, for which any Kafka broker has a place.

The mark is a line of the metadata of committed offsets, so it is as durable as they are: it
outlives all members and moves with the coordinator, and it goes when the group's last offset
expires, as then the group is a new one. Each commit of a member writes it again.
"""

import re
from collections.abc import Iterable

from headrace.core.types import WallMs

# librdkafka sends the NUL at the end of a C string, too, and takes it away when it reads.
_MARK = re.compile(r"(?:^|\n)headrace\.group\.started=(\d{1,18})\0?\Z")


def marked(metadata: str | None, since: int) -> str:
    """Metadata of an application with the mark behind it, in place of one that is there."""
    told = unmarked(metadata)
    return f"{told}\nheadrace.group.started={since}" if told else f"headrace.group.started={since}"


def unmarked(metadata: str | None) -> str | None:
    """What the application wrote; None: nothing."""
    return _MARK.sub("", metadata).removesuffix("\0") or None if metadata else None


def started(metadata: Iterable[str | None]) -> WallMs | None:
    """The earliest start that any offset of a group tells of, in ms; None: none does."""
    found = (_MARK.search(one) for one in metadata if one)
    return min((WallMs(int(one[1])) for one in found if one is not None), default=None)
