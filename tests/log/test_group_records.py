"""Records of `__consumer_offsets`: Kafka's bytes, both ways, and what must stop a start."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.group_events import (
    Event,
    GroupDropped,
    GroupStored,
    JoinParked,
    MemberGone,
    OffsetCommitted,
    OffsetDropped,
    OffsetsDropped,
)
from headrace.core.group_words import Candidate, Cause, Committed, Gone, Member, Snapshot, Ticket
from headrace.core.types import MemberId, WallMs
from headrace.log.group_records import BY_HEADER, CAUSE_HEADER, GroupJournal
from headrace.wire.primitives import Malformed

AT = WallMs(0x0123456789ABCDEF)
AT_HEX = "0123456789abcdef"
KEY = bytes.fromhex("0001 0002 6742 0002 7461 00000000")  # Kafka's: group gB, topic ta
GROUP_KEY = bytes.fromhex("0002 0002 6746")  # group gF
JOURNAL = GroupJournal()


def written(event: Event) -> tuple[bytes | None, bytes | None]:
    ((key, value, _),) = JOURNAL.records([event], WallMs(0))
    return key, value


def test_offsets_are_written_as_kafka_writes_them() -> None:
    topic_id = "00112233445566778899aabbccddeeff"
    plain = Committed(7, -1, "", AT, None, UUID(topic_id))
    event = OffsetCommitted("gB", "ta", 0, plain)
    value = f"0004 0000000000000007 ffffffff 01 {AT_HEX} 01 00 10 {topic_id}"
    assert written(event) == (KEY, bytes.fromhex(value))
    assert JOURNAL.events(*written(event)) == [event]


def test_offsets_with_a_retention_of_their_own_are_of_version_one() -> None:
    event = OffsetCommitted("gB", "ta", 0, Committed(7, -1, "", AT, WallMs(AT + 5_000)))
    value = f"0001 0000000000000007 0000 {AT_HEX} {AT + 5_000:016x}"
    assert written(event) == (KEY, bytes.fromhex(value))
    assert JOURNAL.events(*written(event)) == [event]


def test_new_group_is_written_as_kafka_writes_it() -> None:
    event = GroupStored("gF", Snapshot(None, 0, None, None, AT, ()))
    value = f"0003 0000 00000000 ffff ffff {AT_HEX} 00000000"
    assert written(event) == (GROUP_KEY, bytes.fromhex(value))
    assert JOURNAL.events(*written(event)) == [event]


def test_when_a_group_began_stands_in_a_tagged_field_of_version_four() -> None:
    """Which Kafka reads, and whose tags it passes over."""
    member = Member(MemberId("m"), None, "c", "h", 60_000, 10_000, (Candidate("p", b"r"),), b"a")
    event = GroupStored("gF", Snapshot("x", 3, "p", MemberId("m"), AT, (member,), WallMs(AT + 1)))
    began = f"01 90b233 08 {AT + 1:016x}"  # tag 842000
    value = f"0004 02 78 00000003 02 70 02 6d {AT_HEX} 02 {MEMBER_PARTS[4]} {began}"
    assert written(event) == (GROUP_KEY, bytes.fromhex(value))
    assert JOURNAL.events(*written(event)) == [event]


@pytest.mark.parametrize(
    ("event", "key"),
    [(OffsetDropped("gB", "ta", 0), KEY), (GroupDropped("gF"), GROUP_KEY)],
)
def test_tombstones(event: Event, key: bytes) -> None:
    assert written(event) == (key, None)
    assert JOURNAL.events(key, None) == [event]


def test_what_dies_with_the_process_is_not_written() -> None:
    events: list[Event] = [
        JoinParked("g", MemberId("m"), Ticket(1)),
        MemberGone("g", MemberId("m"), Gone.LEFT),
    ]
    assert JOURNAL.records(events, WallMs(0)) == []


def test_of_what_a_member_offers_the_chosen_protocol_is_kept() -> None:
    offers = (Candidate("range", b"r"), Candidate("sticky", b"s"))
    member = Member(MemberId("m"), "i", "client", "/host", 60_000, 10_000, offers, b"mine")
    event = GroupStored("g", Snapshot("consumer", 3, "sticky", MemberId("m"), AT, (member,)))
    (again,) = JOURNAL.events(*written(event))
    assert isinstance(again, GroupStored)
    assert again.snapshot.members[0].candidates == (Candidate("sticky", b"s"),)
    assert again.snapshot.members[0].assignment == b"mine"
    assert JOURNAL.events(*written(again)) == [again]


MEMBER_PARTS = {  # of member m with session timeout 10 s: what each version has of it
    0: "0001 6d 0001 63 0001 68 00002710 00000001 72 00000001 61",
    1: "0001 6d 0001 63 0001 68 0000ea60 00002710 00000001 72 00000001 61",
    3: "0001 6d ffff 0001 63 0001 68 0000ea60 00002710 00000001 72 00000001 61",
    4: "02 6d 00 02 63 02 68 0000ea60 00002710 02 72 02 61 00",
}


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_group_is_read(version: int) -> None:
    at = AT_HEX if version >= 2 else ""
    member = MEMBER_PARTS[version if version != 2 else 1]
    if version < 4:
        value = f"{version:04x} 0001 78 00000003 0001 70 0001 6d {at} 00000001 {member}"
    else:
        value = f"0004 02 78 00000003 02 70 02 6d {at} 02 {member} 00"
    rebalance_ms = 60_000 if version else 10_000
    known = Member(
        MemberId("m"), None, "c", "h", rebalance_ms, 10_000, (Candidate("p", b"r"),), b"a"
    )
    state_at = AT if version >= 2 else WallMs(-1)
    expected = GroupStored("gF", Snapshot("x", 3, "p", MemberId("m"), state_at, (known,)))
    assert JOURNAL.events(GROUP_KEY, bytes.fromhex(value)) == [expected]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"0000 0000000000000007 0001 6d {AT_HEX}", Committed(7, -1, "m", AT)),
        (f"0001 0000000000000007 0001 6d {AT_HEX} {'f' * 16}", Committed(7, -1, "m", AT)),
        (f"0002 0000000000000007 0001 6d {AT_HEX}", Committed(7, -1, "m", AT)),
        (f"0003 0000000000000007 00000005 0001 6d {AT_HEX}", Committed(7, 5, "m", AT)),
        (f"0004 0000000000000007 00000005 02 6d {AT_HEX} 00", Committed(7, 5, "m", AT)),
        (
            f"0004 0000000000000007 00000005 02 6d {AT_HEX} 01 00 10 {'00' * 16}",
            Committed(7, 5, "m", AT),
        ),
    ],
)
def test_every_version_of_an_offset_is_read(value: str, expected: Committed) -> None:
    for key in (KEY, b"\x00\x00" + KEY[2:]):
        events = JOURNAL.events(key, bytes.fromhex(value))
        assert events == [OffsetCommitted("gB", "ta", 0, expected)]


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        (None, b"", "without a key"),
        (b"", b"", "bytes wanted"),
        (b"\x00\x09\x00\x01g", b"", "type 9 is from the future"),
        (b"\x7f\xff", None, "from the future"),
        (KEY + b"x", None, "more than the record has"),
        (GROUP_KEY + b"x", None, "more than the record has"),
        (KEY, b"\x00\x05", "version 5 of a committed offset is from the future"),
        (KEY, b"\xff\xff", "version -1"),
        (KEY, b"\x00\x04\x00", "bytes wanted"),
        (GROUP_KEY, b"\x00\x05", "version 5 of a group is from the future"),
        (GROUP_KEY, b"", "bytes wanted"),
        (b"\x00\x02\xff\xff", b"", "null where a name"),
        (GROUP_KEY, bytes.fromhex(f"0003 0000 00000000 ffff ffff {AT_HEX} 7fffffff"), "an array"),
        (
            GROUP_KEY,
            bytes.fromhex(f"0003 0001 78 00000003 ffff ffff {AT_HEX} 00000001 {MEMBER_PARTS[3]}"),
            "without a protocol",
        ),
    ],
)
def test_what_is_not_known_stops_the_start(
    key: bytes | None, value: bytes | None, match: str
) -> None:
    with pytest.raises(Malformed, match=match):
        JOURNAL.events(key, value)


@given(st.sampled_from([KEY, GROUP_KEY]), st.integers(0, 4), st.binary(max_size=60))
def test_foreign_bytes_are_refused_or_read_to_the_end(
    key: bytes, version: int, rest: bytes
) -> None:
    try:
        events = JOURNAL.events(key, version.to_bytes(2, "big") + rest)
    except Malformed:
        return
    for event in events:
        assert JOURNAL.events(*written(event)) == [event]


def test_history_is_told_in_headers() -> None:
    plain = OffsetCommitted("gB", "ta", 0, Committed(7, -1, "", AT), Cause.COMMIT, "c-1 /::1")
    (commit,) = JOURNAL.records([plain], WallMs(0))
    assert commit.headers == ((BY_HEADER, b"c-1 /::1"),)
    reset = OffsetCommitted("gB", "ta", 0, Committed(7, -1, "", AT), Cause.RESET, "admin /::1")
    (told,) = JOURNAL.records([reset], WallMs(0))
    assert told.headers == ((CAUSE_HEADER, b"reset"), (BY_HEADER, b"admin /::1"))
    (gone,) = JOURNAL.records([OffsetDropped("gB", "ta", 0, Cause.EXPIRY)], WallMs(0))
    assert gone.headers == ((CAUSE_HEADER, b"expiry"),)


def test_the_offsets_of_a_deleted_group_are_dropped_one_by_one() -> None:
    told = Cause.GROUP_DELETION, "client /127.0.0.1"
    places = (("ta", (0, 7)), ("tb", (1,)))
    apart = [OffsetDropped("g", topic, one, *told) for topic, some in places for one in some]
    together = JOURNAL.records([OffsetsDropped("g", places, *told)], WallMs(0))
    assert together == JOURNAL.records(apart, WallMs(0))
