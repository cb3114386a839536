"""What a journal tells people of one group, and which records of it are looked at."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    OffsetCommitted,
    OffsetDropped,
)
from headrace.core.group_words import Candidate, Cause, Committed, Member, Snapshot
from headrace.core.types import MemberId, WallMs
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
from headrace.log.group_records import GroupJournal
from headrace.wire.batches import CONTROL, TRANSACTIONAL, CorruptBatch, Record, build
from headrace.wire.compression import Codec

ALICE = Member(MemberId("a-1"), None, "a", "/10.0.0.1", 1, 1, (Candidate("range", b""),))
BOB = ConsumerMember(
    MemberId("b-1"), None, None, "b", "/10.0.0.2", frozenset({"orders"}), "", 1, None
)
GONE = MemberId("stranger")


def committed(offset: int, metadata: str = "") -> Committed:
    return Committed(offset, -1, metadata, WallMs(1))


def commit(offset: int, cause: Cause = Cause.COMMIT, by: str = "a-1 /h", **other: str) -> Event:
    return OffsetCommitted("g", "orders", 0, committed(offset, **other), cause, by)


def stored(generation: int, *members: Member) -> Event:
    return GroupStored(
        "g", Snapshot("consumer", generation, "range", ALICE.id, WallMs(1), tuple(members))
    )


def records(events: Iterable[Event]) -> list[Record]:
    """As a journal has them; the timestamp of each is its offset and a thousand."""
    entries = GroupJournal().records(list(events), WallMs(0))
    return [
        Record(at, 1000 + at, one.key, one.value, one.headers) for at, one in enumerate(entries)
    ]


def told(*events: Event, is_whole: bool = True, headers: bool = True) -> list[Happening]:
    history = GroupHistory()
    found = []
    for one in records(events):
        given = one if headers else one._replace(headers=())
        found += history.take(given, is_whole=is_whole)
    assert history.unreadable == []
    return found


def moves(found: list[Happening]) -> list[tuple[int | None, int | None, Cause | None, str]]:
    return [
        (
            None if one.before is None else one.before.offset,
            None if one.after is None else one.after.offset,
            one.cause,
            one.by,
        )
        for one in found
        if isinstance(one, Moved)
    ]


def test_each_move_has_a_beginning_an_end_a_reason_and_somebody() -> None:
    found = told(
        commit(5),
        commit(9),
        commit(2, Cause.RESET, "admin /h"),
        OffsetDropped("g", "orders", 0, Cause.EXPIRY),
        commit(3),
    )
    assert moves(found) == [
        (None, 5, Cause.COMMIT, "a-1 /h"),
        (5, 9, Cause.COMMIT, "a-1 /h"),
        (9, 2, Cause.RESET, "admin /h"),
        (2, None, Cause.EXPIRY, ""),
        (None, 3, Cause.COMMIT, "a-1 /h"),
    ]
    assert [one.at for one in found] == [1000, 1001, 1002, 1003, 1004]
    assert [one.rewound for one in found if isinstance(one, Moved)] == [0, 0, 7, 0, 0]


def test_commits_of_what_was_committed_are_repeats() -> None:
    found = told(commit(5), commit(5), commit(5, metadata="x"), commit(5, metadata="x"), commit(6))
    assert [one.is_repeat for one in found if isinstance(one, Moved)] == [
        False, True, False, True, False,
    ]  # fmt: skip


def test_beginning_is_unknown_where_records_are_missing() -> None:
    first, second = told(commit(5), commit(6), is_whole=False)
    assert isinstance(first, Moved)
    assert isinstance(second, Moved)
    assert (first.before, first.is_known) == (None, False)
    assert (second.before, second.is_known) == (committed(5), True)
    (removed,) = told(OffsetDropped("g", "orders", 0), is_whole=False)
    assert isinstance(removed, Moved)
    assert (removed.before, removed.is_known, removed.cause) == (None, False, None)
    assert told(OffsetDropped("g", "orders", 0)) == []  # it was not there


def test_journals_without_reasons_tell_a_reset_by_the_group_being_empty() -> None:
    found = told(
        commit(1),  # a simple group commits; so does a member
        stored(1, ALICE),
        commit(2),
        stored(2),
        commit(0),
        OffsetDropped("g", "orders", 0),
        headers=False,
    )
    assert moves(found) == [
        (None, 1, Cause.COMMIT, ""),
        (1, 2, Cause.COMMIT, ""),
        (2, 0, Cause.RESET, ""),
        (0, None, None, ""),
    ]


def test_members_and_ends_of_a_group() -> None:
    new = GroupStored("g", Snapshot(None, 0, None, None, WallMs(1), ()))  # Kafka writes it first
    found = told(new, stored(1, ALICE), stored(2), GroupDropped("g"))
    assert found == [
        Assigned(WallMs(1001), 1, "range", (ALICE,)),
        Emptied(WallMs(1002), 2),
        Deleted(WallMs(1003), None, ""),
    ]


# A librdkafka consumer of the new protocol joins group g8, commits, and leaves; then the group is
# deleted: keys and values as Apache Kafka 4.3.1 wrote them.
_MEMBER = "00026738001659385050734b3350534171626d69636e524d44647a41"
_TOPIC = "b12ae73cfe9247428c6afd536cb9f32c"
KAFKAS = (
    (
        f"0005{_MEMBER}",
        "000000000872646b61666b610b2f3132372e302e302e3102076f726465727301000493e00001000100",
    ),
    ("000300026738", "0000000000020100081a1c5607bfe6c31d"),
    (f"0007{_MEMBER}", f"000002{_TOPIC}02000000000000"),
    ("000600026738", "000000000002010008000001a1fef248f8"),
    (
        f"0008{_MEMBER}",
        f"000000000002000000000002{_TOPIC}020000000001000502000000020100",
    ),
    (
        "00010002673800066f726465727300000000",
        f"0004000000000000000a0000000001000001a1fef2497b010010{_TOPIC}",
    ),
    (f"0008{_MEMBER}", None),
    (f"0007{_MEMBER}", None),
    (f"0005{_MEMBER}", None),
    ("000300026738", "00000000000300"),
    ("00010002673800066f726465727300000000", None),
    ("000600026738", None),
    ("000300026738", None),
)


def test_journal_of_apache_kafka() -> None:
    history = GroupHistory()
    found: list[Happening] = []
    for at, (key, value) in enumerate(KAFKAS):
        data = None if value is None else bytes.fromhex(value)
        found += history.take(Record(at, at, bytes.fromhex(key), data), is_whole=True)
    assert history.unreadable == []
    came, epoch, commit, went, empty, removed, end = found
    assert isinstance(came, MemberCame)
    assert (came.member.client_id, came.member.client_host) == ("rdkafka", "/127.0.0.1")
    assert came.member.classic is None
    assert epoch == EpochBegan(WallMs(1), 2, 1)
    assert went == MemberWent(WallMs(8), came.member)
    assert empty == Emptied(WallMs(9), 3)
    assert moves([commit, removed]) == [(None, 10, Cause.COMMIT, ""), (10, None, None, "")]
    assert end == Deleted(WallMs(12), None, "")


@pytest.mark.parametrize("dropped", [GroupDropped, ConsumerGroupDropped])
def test_end_of_a_group_has_a_reason_and_somebody(
    dropped: type[GroupDropped | ConsumerGroupDropped],
) -> None:
    (_, end) = told(commit(5), dropped("g", Cause.GROUP_DELETION, "admin /h"))
    assert end == Deleted(WallMs(1001), Cause.GROUP_DELETION, "admin /h")


def test_members_of_the_new_protocol() -> None:
    found = told(
        ConsumerMemberStored("g", BOB),
        ConsumerGroupStored("g", 1, 7),
        ConsumerMemberStored("g", replace(BOB, topics=frozenset({"bills"}))),
        ConsumerGroupStored("g", 2, 7),
        ConsumerMemberDropped("g", BOB.id),
        ConsumerGroupStored("g", 3, 7),
        ConsumerMemberDropped("g", GONE),
        ConsumerGroupDropped("g"),
    )
    assert found == [
        MemberCame(WallMs(1000), BOB),
        EpochBegan(WallMs(1001), 1, 1),
        EpochBegan(WallMs(1003), 2, 1),
        MemberWent(WallMs(1004), replace(BOB, topics=frozenset({"bills"}))),
        Emptied(WallMs(1005), 3),
        Deleted(WallMs(1007), None, ""),
    ]


def test_group_that_leaves_its_offsets_goes_on_under_the_other_protocol() -> None:
    found = told(commit(5), GroupDropped("g"), ConsumerGroupStored("g", 1, 7))
    assert found[1] == Converted(WallMs(1001), "consumer")
    found = told(commit(5), ConsumerGroupDropped("g"), stored(1, ALICE))
    assert found[1] == Converted(WallMs(1001), "classic")
    assert len(told(commit(5), ConsumerGroupDropped("g"), stored(0))) == 2


def test_records_of_the_future_are_counted_and_passed_over() -> None:
    key = records([commit(5)])[0].key
    history = GroupHistory()
    assert history.take(Record(7, 1, key, b"\x00\x63"), is_whole=True) == []
    assert history.unreadable == [7]
    unknown_kind = b"\x00\x63\x00\x01g"
    assert history.take(Record(8, 1, unknown_kind, b""), is_whole=True) == []
    assert history.unreadable == [7]


# ---- finding the records


def batch(base: int, *events: Event, **other: int) -> bytes:
    return build(records(events), base_offset=base, **other)


def read(*pieces: bytes) -> tuple[list[int], GroupRecords]:
    found = GroupRecords("g")
    return [one.offset for one in found.read(memoryview(b"".join(pieces)))], found


OTHER = OffsetCommitted("other", "g", 0, committed(1))  # its topic has the group's name
LONGER = OffsetCommitted("gg", "orders", 0, committed(1))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
def test_records_of_other_groups_are_passed_over(codec: int) -> None:
    offsets, found = read(
        batch(0, OTHER, LONGER, compression=codec),
        batch(2, OTHER, commit(1), LONGER, stored(1, ALICE), compression=codec),
        batch(6, ConsumerGroupStored("g", 1, 7), compression=codec),
    )
    assert offsets == [3, 5, 6]
    assert found.position == 7
    assert found.whole_since is None


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=4), max_size=6))
def test_every_record_is_found_once_however_the_journal_is_cut(batches: list[list[bool]]) -> None:
    pieces, wanted, base = [], [], 0
    for ours in batches:
        pieces.append(batch(base, *(commit(1) if one else OTHER for one in ours)))
        wanted += [base + at for at, one in enumerate(ours) if one]
        base += len(ours)
    assert read(*pieces)[0] == wanted
    one_by_one = GroupRecords("g")
    again = []
    for at in range(len(pieces)):  # a fetch begins with the batch that holds its offset
        data = memoryview(b"".join(pieces[max(0, at - 1) : at + 1]))
        again += [one.offset for one in one_by_one.read(data)]
    assert again == wanted


def test_holes_tell_since_when_a_journal_is_whole() -> None:
    assert read(batch(0, OTHER), batch(1, OTHER))[1].whole_since is None
    assert read(batch(5, OTHER))[1].whole_since == 1000  # its beginning was deleted
    assert read(batch(0, OTHER), batch(3, OTHER, OTHER), batch(5, OTHER))[1].whole_since == 1001
    kept = build([Record(0, 2000, b"key", b"")], base_offset=1)
    one_of_two = kept[:23] + (1).to_bytes(4, "big") + kept[27:]  # its last offset is 2
    # That compaction took a record out of a batch shows in its header alone: nobody reads it.
    assert read(batch(0, OTHER), one_of_two, batch(3, OTHER))[1].whole_since == 2000


def transaction(base: int, offset: int, producer: int) -> bytes:
    return batch(base, commit(offset), producer_id=producer, attributes=TRANSACTIONAL)


def marker(base: int, kind: int, producer: int) -> bytes:
    record = Record(base, 5000, b"\x00\x00" + kind.to_bytes(2, "big"), b"\x00\x00\x00\x00\x00\x01")
    return build(
        [record], base_offset=base, producer_id=producer, attributes=TRANSACTIONAL | CONTROL
    )


def test_commits_in_transactions_count_when_these_do() -> None:
    found = GroupRecords("g")
    data = b"".join(
        (
            transaction(0, 10, producer=1),
            transaction(1, 20, producer=2),
            transaction(2, 30, producer=3),
            marker(3, kind=0, producer=1),
            marker(4, kind=1, producer=2),
            marker(5, kind=1, producer=2),
        )
    )
    (one,) = found.read(memoryview(data))
    assert (one.offset, one.timestamp) == (1, 5000)


def test_damage_is_told_where_it_would_be_read() -> None:
    data = bytearray(batch(0, commit(1)))
    data[-1] ^= 1
    with pytest.raises(CorruptBatch, match="offset 0"):
        read(bytes(data))
