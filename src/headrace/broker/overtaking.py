"""Commits that the next one of the same connection overtakes.

A consumer that commits with every record is soon ahead of the answers, with requests that differ in
nothing but their offsets. Those that arrived together are decided one behind the other, and nothing
comes between: all are told the same, and only the last offsets remain. So the last is decided,
and journaled, for all of them.
"""

from collections import deque

from headrace.wire import frames, offset_commits
from headrace.wire.offset_commits import OFFSET_BYTES
from headrace.wire.primitives import Malformed

KEY = 8
_KIND = slice(0, 4)  # API key and version
_CORRELATION_ID = slice(4, 8)
_ANY_ID, _ANY_OFFSET = bytes(4), bytes(OFFSET_BYTES)
# Behind the last offset stand at least the length of the metadata, and in flexible versions the
# leader epoch before it and three empty lists of tags behind it.
_END, _END_FLEXIBLE = slice(-2, None), slice(-8, None)


def take(queue: deque[bytearray], *, flexible: bool) -> list[bytearray]:
    """Take the next frame, an OffsetCommit that is served; before it those that it overtakes."""
    run = [queue.popleft()]
    if not queue or not _may_be_alike(run[0], queue[0], flexible=flexible):
        return run
    offsets = _offsets(run[0], flexible=flexible)
    if offsets is None:
        return run
    said = _without(run[0], offsets)
    while queue and len(queue[0]) == len(said) and _without(queue[0], offsets) == said:
        run.append(queue.popleft())
    return run


def correlation_id(frame: bytearray) -> bytes:
    """As it stands in the request, and in its response."""
    return bytes(frame[_CORRELATION_ID])


def _may_be_alike(first: bytearray, second: bytearray, *, flexible: bool) -> bool:
    """Compare what is no offset in any request, before the offsets are looked for.

    Commits with metadata of their own, such as a counter, differ at their end.
    """
    end = _END_FLEXIBLE if flexible else _END
    return len(first) == len(second) and first[_KIND] == second[_KIND] and first[end] == second[end]


def _offsets(frame: bytearray, *, flexible: bool) -> list[int] | None:
    """Where the offsets of a request stand; None when it is damaged."""
    try:
        head = frames.request_head(frame)
        body = frames.body_of(frame, head, flexible=flexible)
        message = offset_commits.read(body, head.version)
    except Malformed:
        return None
    start = len(frame) - len(body)
    return [start + place.at for _, places in message.topics for place in places]


def _without(frame: bytearray, offsets: list[int]) -> bytearray:
    """What a request says beside its offsets and its number."""
    said = frame.copy()
    said[_CORRELATION_ID] = _ANY_ID
    for at in offsets:
        said[at : at + OFFSET_BYTES] = _ANY_OFFSET
    return said
