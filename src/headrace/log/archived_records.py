"""Records of `__share_group_state` that list what was archived without a dead letter: type 20907.

Each is one page of the list of a share-partition (`core/archived.py`); Kafka has none, and its
tools pass over them. The key is type, group, topic id, partition and page; the value version, the
number of the next run, the records dropped, the texts that the runs name, and the runs.
"""

import struct

from headrace.core.archived import ArchivedRun, PageForgotten, PageListed
from headrace.core.machine import Entry
from headrace.core.share_words import ShareKey
from headrace.core.types import MemberId, Span, WallMs
from headrace.wire.primitives import Malformed, NewerVersionError, Reader, Writer

ARCHIVED = 20907
_VALUE_VERSION = 0
_RUN = struct.Struct(">qqqhqii")  # number, first, last, deliveries, at, reason, member


def page_key(key: ShareKey, page: int) -> bytes:
    """The key of the records of a page; a tombstone under it forgets the page."""
    out = Writer()
    out.int16(ARCHIVED)
    out.nullable_string(key.group)
    out.uuid(key.topic_id)
    out.int32(key.partition)
    out.int64(page)
    return bytes(out.data)


def page_record(event: PageListed | PageForgotten) -> Entry:
    """The record that makes such an event durable."""
    key = page_key(event.key, event.page)
    if isinstance(event, PageForgotten):
        return Entry(key, None)
    texts: dict[str, int] = {}  # of a hundred runs there are few
    packed = [
        _RUN.pack(
            run.number,
            run.span.first,
            run.span.last,
            run.deliveries,
            run.at,
            texts.setdefault(run.reason, len(texts)),
            texts.setdefault(run.member, len(texts)),
        )
        for run in event.runs
    ]
    out = Writer()
    out.int16(_VALUE_VERSION)
    out.int64(event.upcoming)
    out.int64(event.dropped)
    out.compact_array(list(texts), Writer.compact_string)
    out.count(len(packed), flexible=True)
    out.raw(b"".join(packed))
    out.tags()
    return Entry(key, bytes(out.data))


def restored(source: Reader, value: bytes | None) -> PageListed | PageForgotten:
    """What such a record says; `source` is its key behind the type. Raises: Malformed."""
    group = source.nullable_string()
    if group is None:
        raise Malformed("null where a name must stand")
    key, page = ShareKey(group, source.uuid(), source.int32()), source.int64()
    if value is None:
        return PageForgotten(key, page)
    body = Reader(value)
    version = body.int16()
    if version != _VALUE_VERSION:
        raise NewerVersionError(
            f"version {version} of a list of archived records is from the future"
        )
    upcoming, dropped = body.int64(), body.int64()
    texts = body.compact_array(Reader.compact_string)

    def read_run(source: Reader) -> ArchivedRun:
        number, first, last, deliveries, at, reason, member = source.unpack(_RUN)
        if not (0 <= first <= last and 0 <= reason < len(texts) and 0 <= member < len(texts)):
            raise Malformed(f"{first}-{last} is no run of archived records")
        return ArchivedRun(
            number,
            Span(first, last),
            deliveries,
            texts[reason],
            MemberId(texts[member]),
            WallMs(at),
        )

    runs = tuple(body.compact_array(read_run))
    body.tags()
    return PageListed(key, page, runs, upcoming, dropped)
