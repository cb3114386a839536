"""What the log tells of consumer groups, for those who look at it at 3 a.m."""

import pytest

from headrace.broker.group_log import tell
from headrace.core.consumer_events import (
    ConsumerGroupDropped,
    ConsumerGroupStored,
    ConsumerMemberDropped,
    ConsumerMemberStored,
)
from headrace.core.consumer_words import ConsumerMember
from headrace.core.group_events import (
    Event,
    GroupDropped,
    GroupStored,
    MemberGone,
    OffsetCommitted,
    OffsetDropped,
)
from headrace.core.group_words import (
    Cause,
    Committed,
    Gone,
    Member,
    Snapshot,
)
from headrace.core.types import MemberId, WallMs

M = MemberId("m-1")
MEMBER = Member(M, None, "c", "/::1", 1, 1, ())
AT = WallMs(1)
FULL, EMPTY = (
    Snapshot("consumer", 3, "range", M, AT, (MEMBER,)),
    Snapshot("consumer", 4, None, None, AT, ()),
)
BLANK = Snapshot("consumer", 0, None, None, AT, ())
MODERN = ConsumerMember(M, None, None, "c", "/::1", frozenset(), "", 1, None)
STAYS = "group g has no members left; its offsets stay for offsets.retention.minutes"


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (GroupStored("g", FULL, True), "group g: generation 3 has 1 members, assigned by range"),
        (GroupStored("g", EMPTY), STAYS),
        (MemberGone("g", M, Gone.LEFT), "group g: member m-1 left"),
        (MemberGone("g", M, Gone.SILENT), "group g: member m-1 was silent for its session timeout"),
        (GroupDropped("g", Cause.GROUP_DELETION, "a /::1"), "group g was deleted by a /::1"),
        (ConsumerGroupStored("g", 7, 0), "group g: epoch 7 begins"),
        (ConsumerGroupStored("g", 7, 0, AT), STAYS),
        (ConsumerMemberStored("g", MODERN), "group g: member m-1 of client c"),
        (
            ConsumerMemberDropped("g", M, Gone.LATE),
            "group g: member m-1 did not take part in the rebalance in time",
        ),
        (
            ConsumerGroupDropped("g", Cause.GROUP_DELETION, "a /::1"),
            "group g was deleted by a /::1",
        ),
    ],
)
def test_what_happens_to_a_group_is_a_line(
    caplog: pytest.LogCaptureFixture, event: Event, line: str
) -> None:
    caplog.set_level("INFO", "headrace.broker")
    tell([event])
    assert caplog.messages == [line]


def test_what_people_did_to_offsets_is_a_line_for_all_of_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "headrace.broker")
    one = Committed(7, -1, "", AT)
    tell([OffsetDropped("g", "t", index, Cause.DELETION, "a /::1") for index in range(3)])
    tell([OffsetCommitted("g", "t", index, one, Cause.RESET, "a /::1") for index in range(2)])
    assert caplog.messages == [
        "group g: deletion of 3 offsets by a /::1",
        "group g: reset of 2 offsets by a /::1",
    ]


@pytest.mark.parametrize(
    "event",
    [
        OffsetCommitted("g", "t", 0, Committed(7, -1, "", AT)),
        OffsetDropped("g", "t", 0, Cause.EXPIRY),  # a sweep tells all that it dropped at its end
        GroupDropped("g", Cause.EXPIRY),
        GroupDropped("g"),  # it is of the other protocol from now on
        GroupStored("g", FULL),  # a static member came back
        GroupStored("g", BLANK),  # it was of the other protocol, and its first member is to come
    ],
)
def test_what_is_told_elsewhere_or_of_no_use_is_no_line(
    caplog: pytest.LogCaptureFixture, event: Event
) -> None:
    caplog.set_level("INFO", "headrace.broker")
    tell([event])
    assert caplog.messages == []
