"""Records of groups of the new protocol: the bytes that Kafka 4.3 makes of them, both ways."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.consumer_events import (
    ConsumerEvent,
    ConsumerGroupDropped,
    ConsumerGroupStored,
    ConsumerMemberDropped,
    ConsumerMemberStored,
    ConsumerTimerCleared,
    HoldingDropped,
    HoldingStored,
    RegexDropped,
    RegexResolved,
    TargetDropped,
    TargetSet,
    TargetStored,
    TargetUnset,
)
from headrace.core.consumer_words import Classic, ConsumerMember, Holding, Progress, Resolved
from headrace.core.group_words import Candidate, Timer
from headrace.core.types import MemberId, TopicPartition, WallMs
from headrace.log.group_records import GroupJournal
from headrace.wire.primitives import Malformed

JOURNAL = GroupJournal()
AT = WallMs(0x0123456789ABCDEF)
AT_HEX = "0123456789abcdef"
TOPIC = UUID("00112233445566778899aabbccddeeff")
M = MemberId("m")
PLAIN = ConsumerMember(M, None, None, "c", "/h", frozenset({"ta", "tb"}), "", 300_000, None)
CLASSIC = Classic(45_000, (Candidate("range", b"\1\2\3"),))
FULL = ConsumerMember(M, "i", "r", "c", "/h", frozenset(), "t.*", 300_000, "range", CLASSIC)
KEYS = {
    3: "0003 0002 6746",
    4: "0004 0002 6746",
    5: "0005 0002 6746 0001 6d",
    6: "0006 0002 6746",
    7: "0007 0002 6746 0001 6d",
    8: "0008 0002 6746 0001 6d",
    16: "0010 0002 6746 0003 742e2a",
}


def parts(*indexes: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(TOPIC, index) for index in indexes)


HOLDING = Holding(
    3, 2, Progress.UNREVOKED, parts(0, 2), parts(1),
    {TopicPartition(TOPIC, 0): 2, TopicPartition(TOPIC, 2): 3},
)  # fmt: skip
# What Kafka's own classes made of the same, for all but the field that is ours.
SAMPLES: list[tuple[int, ConsumerEvent, str]] = [
    (3, ConsumerGroupStored("gF", 2, 0), "0000 00000002 00"),
    (3, ConsumerGroupStored("gF", 2, -5), "0000 00000002 01 00 08 fffffffffffffffb"),
    (3, ConsumerGroupStored("gF", 2, 0, AT), f"0000 00000002 01 80e133 08 {AT_HEX}"),
    (3, ConsumerGroupStored("gF", 2, 0, began=AT), f"0000 00000002 01 90b233 08 {AT_HEX}"),
    (
        5,
        ConsumerMemberStored("gF", PLAIN),
        "0000 0000 0263 032f68 03037461037462 01 000493e0 00 01 00 01 00",
    ),
    (
        5,
        ConsumerMemberStored("gF", FULL),
        "0000 0269 0272 0263 032f68 01 04742e2a 000493e0 0672616e6765"
        "01 00 12 01 0000afc8 02 0672616e6765 04010203 00 00",
    ),
    (6, TargetStored("gF", 2, AT), f"0000 00000002 01 00 08 {AT_HEX}"),
    (6, TargetStored("gF", 2, WallMs(-1)), "0000 00000002 00"),
    (7, TargetSet("gF", M, parts(2, 0)), f"0000 02 {TOPIC.hex} 03 00000000 00000002 00 00"),
    (
        8,
        HoldingStored("gF", M, HOLDING),
        f"0000 00000003 00000002 01 02 {TOPIC.hex} 03 00000000 00000002 01 00 09 03 00000002"
        f"00000003 02 {TOPIC.hex} 02 00000001 00 00",
    ),
    (
        16,
        RegexResolved("gF", "t.*", Resolved(frozenset({"tb", "ta"}), 7, AT)),
        f"0000 03 037461 037462 0000000000000007 {AT_HEX} 00",
    ),
]  # fmt: skip


def written(event: ConsumerEvent) -> tuple[bytes | None, bytes | None]:
    ((key, value, _),) = JOURNAL.records([event], WallMs(0))
    return key, value


@pytest.mark.parametrize(("kind", "event", "value"), SAMPLES)
def test_records_are_written_and_read_as_kafka_does(
    kind: int, event: ConsumerEvent, value: str
) -> None:
    assert written(event) == (bytes.fromhex(KEYS[kind]), bytes.fromhex(value))
    assert JOURNAL.events(*written(event)) == [event]


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        (3, ConsumerGroupDropped("gF")),
        (5, ConsumerMemberDropped("gF", M)),
        (6, TargetDropped("gF")),
        (7, TargetUnset("gF", M)),
        (8, HoldingDropped("gF", M)),
        (16, RegexDropped("gF", "t.*")),
    ],
)
def test_what_is_dropped_is_a_tombstone(kind: int, event: ConsumerEvent) -> None:
    assert written(event) == (bytes.fromhex(KEYS[kind]), None)
    assert JOURNAL.events(*written(event)) == [event]


@pytest.mark.parametrize("value", [None, f"0000 02 {TOPIC.hex} 037461 00000003 01 00 00"])
def test_the_partitions_that_kafka_wrote_before_4_1_are_passed_over(value: str | None) -> None:
    raw = None if value is None else bytes.fromhex(value)
    assert JOURNAL.events(bytes.fromhex(KEYS[4]), raw) == []


def test_timers_die_with_the_process() -> None:
    assert JOURNAL.records([ConsumerTimerCleared("g", Timer.SESSION, M)], WallMs(0)) == []


def test_an_expression_that_is_null_is_none() -> None:
    """As Kafka before 4.0 has it, which leaves out the classic protocol too."""
    value = bytes.fromhex("0000 0000 0263 032f68 03037461037462 00 000493e0 00 00")
    key = bytes.fromhex(KEYS[5])
    assert JOURNAL.events(key, value) == [ConsumerMemberStored("gF", PLAIN)]


def test_fields_of_a_newer_kafka_are_passed_over() -> None:
    value = bytes.fromhex("0000 00000002 02 00 08 0000000000000001 07 02 cafe")
    assert JOURNAL.events(bytes.fromhex(KEYS[3]), value) == [ConsumerGroupStored("gF", 2, 1)]


@pytest.mark.parametrize(
    ("kind", "value", "match"),
    [
        (3, "0001 00000002 00", "version 1 of record type 3 is from the future"),
        (3, "0000 00000002 00 00", "more than the record"),
        (3, "0000 0000", "bytes wanted"),
        (8, "0000 00000003 00000002 07 01 01 00", "state 7, which is from the future"),
        (
            8,
            f"0000 00000003 00000002 00 02 {TOPIC.hex} 02 00000000 01 00 09 03 00000002 00000003"
            "01 00",
            "2 assignment epochs of 1 partitions",
        ),
        (7, "0000 ff", "bytes wanted"),
        (7, "0000 7f", "an array of 126"),
    ],
)
def test_what_is_not_known_stops_the_load(kind: int, value: str, match: str) -> None:
    with pytest.raises(Malformed, match=match):
        JOURNAL.events(bytes.fromhex(KEYS[kind]), bytes.fromhex(value))


@pytest.mark.parametrize("key", ["0005 0002 6746 ffff", "0003 0002 6746 00", "0010 0002 6746"])
def test_keys_that_are_none_stop_the_load(key: str) -> None:
    with pytest.raises(Malformed):
        JOURNAL.events(bytes.fromhex(key), None)


names = st.text(max_size=9)
partitions = st.frozensets(st.builds(TopicPartition, st.uuids(), st.integers(0, 2**31 - 1)))


@st.composite
def holdings(draw: st.DrawFn) -> Holding:
    assigned, revoking = draw(partitions), draw(partitions)
    epochs = {one: draw(st.integers(0, 9)) for one in assigned | revoking}
    state = draw(st.sampled_from(Progress))
    return Holding(draw(st.integers(-2, 9)), 1, state, assigned, revoking, epochs or None)


@given(
    st.one_of(
        st.builds(HoldingStored, names, names.map(MemberId), holdings()),
        st.builds(TargetSet, names, names.map(MemberId), partitions),
        st.builds(
            RegexResolved, names, names,
            st.builds(Resolved, st.frozensets(names), st.integers(0, 9), st.just(AT)),
        ),
    )
)  # fmt: skip
def test_everything_comes_back(event: ConsumerEvent) -> None:
    assert JOURNAL.events(*written(event)) == [event]


@given(st.sampled_from(sorted(KEYS)), st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(kind: int, value: bytes) -> None:
    try:
        events = JOURNAL.events(bytes.fromhex(KEYS[kind]), b"\0\0" + value)
    except Malformed:
        return
    assert [event.group for event in events] == ["gF"][: len(events)]
