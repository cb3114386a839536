"""DescribeOffsetExpiry (20920), of Headrace's own: when committed offsets go, and what decides it.

It tells what the broker's own sweep would do if nothing happened until then. Offsets are told in
pages, by topic and partition. Messages are flexible (compact types, request header 2, response
header 1), version 0.
"""

from dataclasses import dataclass
from enum import IntEnum

from headrace.wire.structs import Int8, Int16, Int32, Int64, MaybeText, Struct, Text

KEY, VERSION = 20920, 0
OFFSETS_MAX = 5_000  # in one answer
NEVER = -1


class Fate(IntEnum):
    """What decides over an offset: from when on its retention counts, or what keeps it."""

    EMPTY = 1  # due: counted since the group lost its last member
    COMMIT = 2  # due: counted since the commit
    OWN = 3  # due: the commit brought its own retention
    SUBSCRIBED = 4
    UNREADABLE = 5  # kept: a member's subscription cannot be read
    REBALANCING = 6
    OTHER_PROTOCOL = 7  # kept: an active group whose topics are not known


@dataclass(frozen=True, slots=True)
class DescribeOffsetExpiryRequest(Struct):
    """The offsets of a group that come behind `topic` and `partition`; "" and -1 begin."""

    group: Text
    topic: Text = ""
    partition: Int32 = -1


@dataclass(frozen=True, slots=True)
class Expiry(Struct):
    """One offset; times are ms since 1970, `expires_at` and `since` -1 while something keeps it."""

    topic: Text
    partition: Int32
    committed_at: Int64
    fate: Int8
    expires_at: Int64 = NEVER
    since: Int64 = NEVER


@dataclass(frozen=True, slots=True)
class DescribeOffsetExpiryResponse(Struct):
    """Offsets by topic and partition; none of a group that does not exist.

    `more` is 1 when there are offsets behind these. `error_code` is 15 when the journal cannot be
    written.
    """

    error_code: Int16
    error_message: MaybeText
    offsets: tuple[Expiry, ...] = ()
    more: Int8 = 0
