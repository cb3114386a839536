"""When committed offsets of a group expire, and what decides it, as the broker foretells it.

Source: DescribeOffsetExpiry (20920) of Headrace, see `wire/offset_expiry.py`.
"""

from dataclasses import dataclass

from headrace.client.connection import Cluster
from headrace.client.nodes import Node, at_coordinator
from headrace.client.offsets import TopicPartition
from headrace.client.own_apis import ask_own
from headrace.wire.offset_expiry import (
    KEY,
    NEVER,
    VERSION,
    DescribeOffsetExpiryRequest,
    DescribeOffsetExpiryResponse,
    Expiry,
    Fate,
)

_REASONS = {
    Fate.EMPTY: "the group is empty",
    Fate.COMMIT: "no member subscribes to the topic",
    Fate.OWN: "the commit brought its own retention",
    Fate.SUBSCRIBED: "subscribed by an active group",
    Fate.UNREADABLE: "a member's subscription cannot be read",
    Fate.REBALANCING: "the group is rebalancing",
    Fate.OTHER_PROTOCOL: "an active group whose topics are not known",
}


@dataclass(frozen=True, slots=True)
class OffsetExpiry:
    """The forecast of one committed offset, should nothing happen until then.

    `expires_at` is None while `reason` keeps the offset; times are ms since 1970.
    """

    committed_at: int
    expires_at: int | None
    reason: str


def offset_expiry(cluster: Cluster, group: str) -> dict[TopicPartition, OffsetExpiry]:
    """The forecast of every committed offset of a group; none of one that does not exist.

    Raises: `Unsupported` on any other broker than Headrace; otherwise as `Cluster`.
    """
    what = f"asking when offsets of group {group!r} expire"
    found: dict[TopicPartition, OffsetExpiry] = {}
    after, more = ("", -1), True
    while more:
        answer = _page(cluster, DescribeOffsetExpiryRequest(group, *after), what)
        for one in answer.offsets:
            after = (one.topic, one.partition)
            found[after] = _told(one)
        more = bool(answer.more)
    return found


def _page(
    cluster: Cluster, request: DescribeOffsetExpiryRequest, what: str
) -> DescribeOffsetExpiryResponse:
    def asking(node: Node) -> DescribeOffsetExpiryResponse:
        answer = DescribeOffsetExpiryResponse
        return ask_own(cluster, node.address, (KEY, VERSION), request, answer, what)

    return at_coordinator(cluster, request.group, what, asking)


def _told(one: Expiry) -> OffsetExpiry:
    expires_at = None if one.expires_at == NEVER else one.expires_at
    return OffsetExpiry(one.committed_at, expires_at, _REASONS[Fate(one.fate)])
