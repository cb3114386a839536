"""What the members of a classic consumer group subscribe to, as they told each other.

The coordinator hands the metadata of members on without a look, but for this: expiry and deletion
of offsets want to know the topics. Read is version 0 of the consumer protocol, whatever version
stands there, and of that the topics alone; later versions keep them in that place.
Source: KIP-496; ConsumerProtocolSubscription.json.
"""

from collections.abc import Callable, Container, Iterable

from headrace.core.errors import Refused

PROTOCOL_TYPE = "consumer"  # groups of any other type speak a language of their own
# The topics that match a regular expression, or why nobody can tell.
Matching = Callable[[str], frozenset[str] | Refused]
_LENGTH_BYTES, _COUNT_BYTES = 2, 4


class _Everything:
    """Holds every topic: where nobody can tell the subscription, all offsets count as in use."""

    def __contains__(self, topic: object) -> bool:
        return True

    def __repr__(self) -> str:
        return "EVERYTHING"


EVERYTHING: Container[str] = _Everything()
NOTHING: Container[str] = frozenset()


def subscribed(metadata: Iterable[bytes]) -> Container[str]:
    """The topics of all members together; everything when one of them cannot be read."""
    found: set[str] = set()
    for one in set(metadata):  # most members of a group say the same
        topics = parsed(one)
        if topics is None:
            return EVERYTHING
        found |= topics
    return frozenset(found)


def parsed(metadata: bytes) -> frozenset[str] | None:
    """The topics of one subscription; None when it is none. What follows the topics is ignored."""
    at = _LENGTH_BYTES  # of the version
    end = at + _COUNT_BYTES
    if len(metadata) < end:
        return None
    count = int.from_bytes(metadata[at:end], signed=True)
    if not 0 <= count <= (len(metadata) - end) // _LENGTH_BYTES:
        return None
    topics = set()
    for _ in range(count):
        at, end = end, end + _LENGTH_BYTES
        length = int.from_bytes(metadata[at:end], signed=True)
        at, end = end, end + length
        if length < 0 or end > len(metadata):
            return None
        try:
            topics.add(metadata[at:end].decode())
        except UnicodeDecodeError:
            return None
    return frozenset(topics)
