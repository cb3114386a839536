"""What the auditors of records and offsets accept, and what they report."""

from collections.abc import Callable

import pytest

from headrace.sim.facts import Asked, Mark, Place, Timeline
from headrace.sim.offset_auditor import ABSENT, OffsetAuditor
from headrace.sim.record_auditor import RecordAuditor
from headrace.sim.static_auditor import StaticAuditor

PLACE: Place = ("orders", 0)


class Small:
    """One auditor of each kind, and a clock."""

    def __init__(self) -> None:
        self.now_us = 1000
        self.broken: list[str] = []
        self.timeline = Timeline(lambda: self.now_us)
        self.records = RecordAuditor(self.timeline.now, self.broken.append)
        self.offsets = OffsetAuditor(
            self.timeline.now, self.broken.append,
            retention_us=60_000_000, session_us=3_000_000, rebalance_us=2_000_000,
        )  # fmt: skip
        self.records.sending(
            PLACE, "ann", 0, [(None, b"a"), (None, b"b"), (None, b"c")], [(1, ())] * 3
        )

    def asked(self) -> Asked:
        self.now_us += 1000
        return self.asked_at_once()

    def asked_at_once(self) -> Asked:
        at_us, requests = self.timeline.sent()
        return Asked(at_us, 0, requests=requests)

    def acknowledged(self, first: int, *values: bytes) -> None:
        asked = self.asked()
        self.now_us += 1000
        self.records.acknowledged(asked, PLACE, first, [(None, value) for value in values])

    def fetched(self, position: int, end: int, **values: bytes) -> None:
        records = {int(name[1:]): (value, None) for name, value in values.items()}
        self.records.fetched(
            self.asked(), PLACE, position, log_start=0, high_watermark=end, records=records
        )


def _reports(work: Callable[[Small], None], part: str) -> None:
    small = Small()
    work(small)
    assert any(part in one for one in small.broken), small.broken


def test_a_sound_log_is_accepted() -> None:
    small = Small()
    small.acknowledged(0, b"a", b"b")
    small.fetched(0, 2, o0=b"a", o1=b"b")
    small.records.ended(PLACE, 0, {0: (b"a", None), 1: (b"b", None)})
    assert small.broken == []


def test_records_that_are_lost_doubled_skipped_or_strange_are_reported() -> None:
    def lost(small: Small) -> None:
        small.acknowledged(0, b"a", b"b")
        small.records.ended(PLACE, 0, {0: (b"a", None)})

    def doubled(small: Small) -> None:
        small.acknowledged(0, b"a")
        small.fetched(0, 2, o0=b"a", o1=b"a")

    def skipped(small: Small) -> None:
        small.acknowledged(0, b"a", b"b", b"c")
        small.fetched(0, 3, o0=b"a", o2=b"c")

    def strange(small: Small) -> None:
        small.fetched(0, 1, o0=b"x")

    def changed(small: Small) -> None:
        small.acknowledged(0, b"a")
        small.fetched(0, 1, o0=b"b")

    def reordered(small: Small) -> None:
        small.records.ended(PLACE, 0, {0: (b"b", None), 1: (b"a", None)})

    def sent_out_of_order(small: Small) -> None:
        small.fetched(0, 3, o0=b"a", o2=b"c", o1=b"b")

    def sent_too_early(small: Small) -> None:
        small.fetched(0, 1, o0=b"a", o1=b"b")

    _reports(lost, "is lost")
    _reports(doubled, "stands twice")
    _reports(skipped, "was skipped")
    _reports(strange, "no producer sent")
    _reports(changed, "was b'a' and is b'b'")
    _reports(reordered, "behind 1")
    _reports(sent_out_of_order, "1 was sent after 2")
    _reports(sent_too_early, "was sent, the high watermark is 1")


def test_a_record_has_the_key_the_timestamp_and_the_headers_that_were_sent() -> None:
    mark: Mark = 7, (("trace", b"1"),)
    small = Small()
    small.records.sending(PLACE, "ann", 3, [(b"k", b"d")], [mark])
    small.records.deleting_key(PLACE, b"k")
    small.records.acknowledged(small.asked(), PLACE, 3, [(b"k", b"d"), (b"k", None)], [mark] * 2)
    for offset, value in ((3, b"d"), (4, None)):
        small.records.contained(PLACE, offset, value, b"k", mark)
        assert small.broken == []
        for other in ((8, mark[1]), (7, ()), (7, (("trace", None),))):
            small.records.contained(PLACE, offset, value, b"k", other)
            assert f"orders-0@{offset} was sent with {mark}, and has {other}" in small.broken.pop()
    small.records.contained(PLACE, 3, b"d", b"j", mark)
    assert "was sent with b'k', has b'j'" in small.broken.pop()


@pytest.mark.parametrize(
    ("time", "offset", "found", "part"),
    [
        (20, 1, 20, ""),
        (15, 1, 20, ""),
        (25, -1, -1, ""),
        (20, 2, 20, "and not 1 of 20"),
        (20, -1, -1, "and not 1 of 20"),
        (20, 0, 10, "has 0 of 10 first"),
        (10, 0, 20, "and its time is 10"),
    ],
)
def test_a_look_up_by_time_finds_the_first_record_that_is_as_late(
    time: int, offset: int, found: int, part: str
) -> None:
    small = Small()
    pairs: list[tuple[bytes | None, bytes]] = [(None, b"d"), (None, b"e"), (None, b"f")]
    small.records.sending(PLACE, "ann", 3, pairs, [(10, ()), (20, ()), (15, ())])
    small.records.acknowledged(small.asked(), PLACE, 0, pairs)
    small.records.looked_up(small.asked(), PLACE, time, offset, found)
    assert bool(small.broken) == bool(part)
    assert not part or part in small.broken[0]


@pytest.mark.parametrize("allowed", ["deleted", "compacted", "cut", "later"])
def test_a_look_up_by_time_may_pass_records_that_may_be_gone(allowed: str) -> None:
    small = Small()
    pairs: list[tuple[bytes | None, bytes]] = [(b"k", b"d"), (b"k", b"e")]
    small.records.sending(PLACE, "ann", 3, pairs, [(10, ()), (20, ())])
    asked = small.asked()
    small.records.acknowledged(asked, PLACE, 0, pairs)
    if allowed == "deleted":
        small.records.deleting(PLACE, 1)
    elif allowed == "compacted":
        small.records.compacts(PLACE, 500)
    elif allowed == "cut":
        small.records.power_was_cut()
    else:
        asked = Asked(asked.at_us - 1, 0)
    small.records.looked_up(asked if allowed == "later" else small.asked(), PLACE, 5, 1, 20)
    assert small.broken == []


@pytest.mark.parametrize(
    ("seconds", "known", "is_sound"),
    [(0.4, True, False), (0.6, True, True), (0.4, False, True)],
)
def test_a_tombstone_stays_for_its_retention(seconds: float, known: bool, is_sound: bool) -> None:
    """A tombstone whose offset is not known may be anywhere, and long gone."""
    small = Small()
    small.records.compacts(PLACE, 500)
    small.records.sending(PLACE, "ann", 3, [(b"k", b"d")], [(1, ())])
    small.records.deleting_key(PLACE, b"k")
    asked = small.asked()
    small.records.acknowledged(asked, PLACE, 0, [(b"k", b"d")])
    small.records.acknowledged(asked, PLACE, 1, [(b"k", None)])
    if not known:
        small.records.deleting_key(PLACE, b"k")
    small.now_us = asked.at_us + round(seconds * 1e6)
    small.records.ended(PLACE, 0, {})
    assert (not small.broken) == is_sound, small.broken


@pytest.mark.parametrize("deleted", ["before", "behind", "refused", "unanswered"])
def test_a_tombstone_excuses_only_what_it_may_delete(deleted: str) -> None:
    small = Small()
    small.records.compacts(PLACE, 500)
    small.records.sending(PLACE, "ann", 3, [(b"k", b"d")], [(1, ())])
    small.records.deleting_key(PLACE, b"k")
    if deleted == "refused":
        small.records.refused(PLACE, [(b"k", None)])
    records = {0: (b"k", None), 1: (b"k", b"d"), 2: (b"k", None)}
    acknowledged = {"before": (0, 1), "behind": (1, 2)}.get(deleted, (1,))
    for offset in acknowledged:
        small.records.acknowledged(small.asked(), PLACE, offset, [records[offset]])
    small.now_us += 1_000_000
    small.records.ended(PLACE, 0, {})
    assert [one for one in small.broken if "orders-0@1" in one] == small.broken
    assert bool(small.broken) == (deleted in ("before", "refused"))


def test_an_end_that_goes_back_is_reported_unless_the_power_may_have_taken_it() -> None:
    def back(small: Small) -> None:
        small.acknowledged(0, b"a", b"b")
        small.fetched(0, 1, o0=b"a")

    _reports(back, "the end of orders-0 was 2 and is 1")
    small = Small()
    small.acknowledged(0, b"a", b"b")
    small.records.power_was_cut()
    small.fetched(0, 1, o0=b"a")
    small.records.ended(PLACE, 0, {0: (b"a", None)})
    assert small.broken == []


@pytest.mark.parametrize(("end", "is_sound"), [(1, True), (2, False)])
def test_a_record_that_no_response_shows_may_replace_what_a_power_cut_took(
    end: int, is_sound: bool
) -> None:
    small = Small()
    small.acknowledged(0, b"a", b"b")
    small.records.power_was_cut()
    small.records.opened(PLACE, end)
    small.records.power_was_cut()
    small.records.opened(PLACE, 2)
    small.fetched(0, 2, o0=b"a", o1=b"c")
    assert (not small.broken) == is_sound, small.broken


@pytest.mark.parametrize("cuts", [1, 2])
@pytest.mark.parametrize(("synced_us", "is_sound"), [(3000, True), (3001, False)])
def test_a_power_cut_takes_no_record_that_was_synced(
    synced_us: int, is_sound: bool, cuts: int
) -> None:
    small = Small()
    small.acknowledged(0, b"a")
    assert small.now_us == 3000
    small.records.power_was_cut(lambda _: synced_us)
    if cuts == 2:  # before any broker opened the log
        small.records.power_was_cut(lambda _: 5000)
    small.records.opened(PLACE, 0)
    assert (not small.broken) == is_sound, small.broken


@pytest.mark.parametrize(("start", "is_sound"), [(7, True), (8, False)])
def test_a_repaired_log_without_a_known_end_begins_no_higher_than_a_commit(
    start: int, is_sound: bool
) -> None:
    small = Small()
    small.acknowledged(0, b"a", b"b")
    small.offsets.committing("blue", PLACE, 7)
    small.offsets.committing("blue", ("orders", 1), 9)
    small.records.quarantined(PLACE, [(0, None)], small.offsets.highest(PLACE))
    small.records.fetched(
        small.asked(), PLACE, start, log_start=start, high_watermark=start, records={}
    )
    assert (not small.broken) == is_sound, small.broken


def test_a_commit_moves_no_start_of_a_log_whose_lost_records_have_a_known_end() -> None:
    small = Small()
    small.acknowledged(0, b"a", b"b")
    small.records.quarantined(PLACE, [(0, 1)], 7)
    small.records.fetched(small.asked(), PLACE, 7, log_start=7, high_watermark=7, records={})
    assert "begins at 7, and nothing above 2 may go" in small.broken[0]


@pytest.mark.parametrize("is_known", [False, True])
def test_deleted_records_come_back_where_no_mark_has_the_start(*, is_known: bool) -> None:
    small = Small()
    small.acknowledged(0, b"a", b"b")
    small.records.deleting(PLACE, 2)
    small.records.fetched(small.asked(), PLACE, 2, log_start=2, high_watermark=2, records={})
    small.records.starts_lost({PLACE} if is_known else set())
    small.fetched(0, 2, o0=b"a", o1=b"b")
    assert bool(small.broken) == is_known, small.broken


def test_a_committed_offset_is_the_last_one_or_one_under_way() -> None:
    small = Small()
    offsets = small.offsets
    for value in (7, 3):
        write = offsets.committing("blue", PLACE, value)
        small.asked()
        offsets.committed(write)
        small.asked()
    offsets.fetched(small.asked(), "blue", PLACE, 3)
    offsets.committing("blue", PLACE, 9)
    offsets.fetched(small.asked(), "blue", PLACE, 9)
    assert small.broken == []
    offsets.fetched(small.asked(), "blue", PLACE, 7)
    assert "the committed offset of orders-0 is 7" in small.broken[0]


def test_an_offset_may_expire_only_after_the_retention_without_members() -> None:
    small = Small()
    offsets = small.offsets
    offsets.active("blue", ["orders"])
    offsets.committed(offsets.committing("blue", PLACE, 7))
    for _ in range(70):
        small.now_us += 1_000_000
        offsets.active("blue", ["orders"])
    offsets.fetched(small.asked(), "blue", PLACE, ABSENT)
    assert small.broken
    small.broken.clear()
    small.now_us += 61_000_000
    offsets.fetched(small.asked(), "blue", PLACE, ABSENT)
    assert small.broken == []


@pytest.mark.parametrize("leaves", [False, True])
def test_after_a_jump_of_the_clock_an_offset_may_expire_when_a_member_leaves(leaves: bool) -> None:
    small = Small()
    small.offsets.clock_was_set = True
    small.offsets.active("blue", ["orders"])
    small.offsets.committed(small.offsets.committing("blue", PLACE, 7))
    small.now_us += 1_000_000
    if leaves:
        small.offsets.gives_up("blue", "ann")
    small.offsets.fetched(small.asked(), "blue", PLACE, ABSENT)
    assert bool(small.broken) != leaves


@pytest.mark.parametrize("others", [(), ("bob",)])
def test_after_a_jump_of_the_clock_an_offset_may_expire_when_the_last_classic_member_leaves(
    others: tuple[str, ...],
) -> None:
    small = Small()
    small.offsets.clock_was_set = True
    for name in ("ann", *others):
        small.offsets.active("blue", ["orders"], name)
    small.offsets.committed(small.offsets.committing("blue", PLACE, 7))
    small.now_us += 1_000_000
    small.offsets.leaves("blue", "ann")
    small.offsets.fetched(small.asked(), "blue", PLACE, ABSENT)
    assert bool(small.broken) == bool(others)


@pytest.mark.parametrize("others", [(), ("bob",)])
def test_generations_begin_again_in_a_classic_group_that_the_last_member_left(
    others: tuple[str, ...],
) -> None:
    small = Small()
    for name in ("ann", *others):
        small.offsets.active("blue", ["orders"], name)
    small.offsets.generation("blue", 3)
    small.offsets.leaves("blue", "ann")
    small.offsets.generation("blue", 1)
    small.offsets.committed_in(small.asked(), "blue", 1)
    assert bool(small.broken) == bool(others)


def test_a_repair_may_bring_back_an_expired_offset_that_has_to_expire_again() -> None:
    small = Small()
    offsets = small.offsets
    offsets.committed(offsets.committing("blue", PLACE, 7))
    small.now_us += 61_000_000
    offsets.fetched(small.asked(), "blue", PLACE, ABSENT)
    offsets.has_expired("blue", PLACE, ABSENT)
    offsets.journal_was_repaired()
    offsets.fetched(small.asked(), "blue", PLACE, 7)
    offsets.has_expired("blue", PLACE, 7)
    assert small.broken == []
    offsets.fetched(small.asked(), "blue", PLACE, 8)
    small.now_us += 2 * 60_000_000
    offsets.has_expired("blue", PLACE, 7)
    assert ["is 8" in one or "did not expire" in one for one in small.broken] == [True, True]


@pytest.mark.parametrize(("metadata", "breaks"), [("first", True), ("second", False), ("", True)])
def test_metadata_is_that_of_its_offset(metadata: str, breaks: bool) -> None:
    small = Small()
    offsets = small.offsets
    for sent in ("first", "second"):
        small.now_us += 1000
        offsets.committed(offsets.committing("blue", PLACE, 7, sent))
    offsets.fetched(small.asked(), "blue", PLACE, 7, metadata)
    assert bool(small.broken) == breaks


def test_one_partition_has_one_member() -> None:
    small = Small()
    small.offsets.assigned("blue", "ann", [PLACE], small.now_us)
    small.offsets.assigned("blue", "bob", [PLACE], small.now_us)
    assert "has ann and bob" in small.broken[0]
    small.broken.clear()
    small.offsets.gives_up("blue", "bob")
    small.offsets.assigned("blue", "ann", [PLACE], small.now_us)
    assert small.broken == []


@pytest.mark.parametrize(("seconds", "asleep", "breaks"), [
    (1.9, 0, True), (2.1, 0, False), (11.9, 10, True), (12.1, 10, False),
])  # fmt: skip
def test_a_session_lasts_its_time_without_a_stall(
    seconds: float, asleep: int, breaks: bool
) -> None:
    small = Small()
    small.offsets.is_alive("blue", "ann", small.now_us)
    if asleep:
        small.offsets.stalled(asleep * 1_000_000)
    small.now_us += round(seconds * 1e6)
    small.offsets.is_unknown("blue", "ann")
    assert bool(small.broken) == breaks


@pytest.mark.parametrize(("seconds", "breaks"), [(12.9, True), (13.1, False)])
def test_a_partition_stays_with_its_member_for_a_session_without_a_stall(
    seconds: float, breaks: bool
) -> None:
    small = Small()
    small.offsets.assigned("blue", "ann", [PLACE], small.now_us)
    small.offsets.beats("blue", "ann", small.now_us, confirms=True)
    small.offsets.stalled(10_000_000)
    small.now_us += round(seconds * 1e6)
    small.offsets.assigned("blue", "bob", [PLACE], small.now_us)
    assert bool(small.broken) == breaks


@pytest.mark.parametrize("stall_seconds", [0, 10])
@pytest.mark.parametrize(("seconds", "breaks"), [(2.9, True), (3.1, False)])
def test_a_session_begins_with_the_request_however_late_its_response_leaves(
    seconds: float, breaks: bool, stall_seconds: int
) -> None:
    """A slow disk delays the response; a stall between the two extends the session."""
    small = Small()
    asked_us = small.now_us
    if stall_seconds:
        small.offsets.stalled(stall_seconds * 1_000_000)
        small.now_us += stall_seconds * 1_000_000
    small.now_us += 500_000
    small.offsets.beats("blue", "ann", asked_us, confirms=False)
    small.offsets.assigned("blue", "ann", [PLACE], asked_us)
    small.now_us = asked_us + round((stall_seconds + seconds) * 1e6)
    small.offsets.assigned("blue", "bob", [PLACE], small.now_us)
    assert bool(small.broken) == breaks


@pytest.mark.parametrize("loses", [False, True])
def test_a_broker_that_lost_its_sessions_may_know_no_member(loses: bool) -> None:
    small = Small()
    small.offsets.is_alive("blue", "ann", small.now_us)
    if loses:
        small.offsets.lost_sessions()
    small.offsets.is_unknown("blue", "ann")
    assert bool(small.broken) != loses


@pytest.mark.parametrize(("seconds", "breaks"), [(1.9, True), (2.1, False)])
def test_a_member_that_asked_before_sessions_were_lost_may_have_to_confirm(
    seconds: float, breaks: bool
) -> None:
    small = Small()
    asked_us = small.now_us
    small.offsets.lost_sessions()
    small.now_us += 1_000_000
    small.offsets.assigned("blue", "ann", [PLACE], asked_us)
    small.now_us = asked_us + round(seconds * 1e6)
    small.offsets.assigned("blue", "bob", [PLACE], small.now_us)
    assert bool(small.broken) == breaks


@pytest.mark.parametrize(("since", "seconds", "breaks"), [
    ("nothing", 1.9, True),
    ("nothing", 2.1, False),
    ("a second loss", 1.9, True),
    ("a second loss", 2.1, False),
    ("names its partitions", 2.9, True),
    ("names its partitions", 3.1, False),
    ("is assigned partitions and confirms", 2.9, True),
    ("joins again", 2.9, True),
])  # fmt: skip
def test_partitions_of_a_member_are_unknown_from_a_loss_of_sessions_until_it_names_them(
    since: str, seconds: float, breaks: bool
) -> None:
    """A member of two partitions may have to give one up in a request sent after the loss."""
    small = Small()
    small.offsets.assigned("blue", "ann", [PLACE, ("orders", 1)], small.now_us)
    small.offsets.lost_sessions()
    small.now_us += 500_000
    match since:
        case "a second loss":
            small.offsets.lost_sessions()
        case "names its partitions":
            small.offsets.gives_up("blue", "ann", [PLACE])
        case "is assigned partitions and confirms":
            small.offsets.assigned("blue", "ann", [PLACE], small.now_us)
            small.offsets.beats("blue", "ann", small.now_us, confirms=True)
        case "joins again":
            small.offsets.gives_up("blue", "ann")
    small.now_us += 100_000
    asked_us = small.now_us
    small.offsets.beats("blue", "ann", asked_us, confirms=False)
    small.offsets.assigned("blue", "ann", [PLACE], asked_us)
    small.now_us = asked_us + round(seconds * 1e6)
    small.offsets.assigned("blue", "bob", [PLACE], small.now_us)
    assert bool(small.broken) == breaks


def assigned_less_after_a_delay() -> tuple[Small, tuple[str, int], int]:
    """Return a member of two partitions that is to give up the second, and when that began."""
    small, other = Small(), ("orders", 1)
    began_us = small.now_us
    small.offsets.assigned("blue", "ann", [PLACE, other], began_us)
    small.now_us = began_us + 1_800_000
    small.offsets.beats("blue", "ann", began_us, confirms=True)
    small.offsets.assigned("blue", "ann", [PLACE], began_us)
    return small, other, began_us


@pytest.mark.parametrize(("seconds", "confirms", "breaks"), [
    (1.9, False, True),
    (2.1, False, False),
    (2.1, True, True),
    (5.1, True, False),
])  # fmt: skip
def test_a_member_that_does_not_confirm_what_it_gives_up_loses_the_rest(
    seconds: float, confirms: bool, breaks: bool
) -> None:
    """The rebalance timeout begins with the decision, and a slow disk delays its response."""
    small, other, began_us = assigned_less_after_a_delay()
    small.offsets.gives_up("blue", "ann", [PLACE])
    small.offsets.beats("blue", "ann", small.now_us, confirms=confirms)
    small.now_us = began_us + round(seconds * 1e6)
    small.offsets.assigned("blue", "bob", [PLACE, other], small.now_us)
    assert [one for one in small.broken if "orders-0 has ann and bob" in one] == small.broken
    assert bool(small.broken) == breaks


@pytest.mark.parametrize(("seconds", "breaks"), [(1.9, True), (2.1, False)])
def test_a_member_that_learns_late_what_to_give_up_is_removed_when_it_does_not_confirm(
    seconds: float, breaks: bool
) -> None:
    small, other, began_us = assigned_less_after_a_delay()
    small.now_us = began_us + round(seconds * 1e6)
    small.offsets.assigned("blue", "bob", [other], small.now_us)
    assert bool(small.broken) == breaks


@pytest.mark.parametrize(("seconds", "is_taken"), [(1.9, True), (2.1, False), (3.1, False)])
def test_an_instance_is_free_when_its_member_may_have_failed_to_give_up_partitions(
    seconds: float, is_taken: bool
) -> None:
    """The rebalance timeout removes a member that is silent, before its session ends (KIP-848)."""
    now_us = 0
    statics = StaticAuditor(lambda: now_us, pytest.fail, lambda: 0, 3_000_000, 2_000_000)
    statics.answered("g", "one", "one.1", 0)
    now_us = round(seconds * 1e6)
    assert statics.is_taken("g", "one", "one.2") == is_taken
    assert not statics.is_taken("g", "one", "one.1")


@pytest.mark.parametrize(("seconds", "is_taken"), [(11.9, True), (12.1, False)])
def test_an_instance_stays_taken_over_a_stall(seconds: float, is_taken: bool) -> None:
    now_us = 0
    statics = StaticAuditor(lambda: now_us, pytest.fail, lambda: 0, 3_000_000, 2_000_000)
    statics.answered("g", "one", "one.1", 0)
    statics.stalled(10_000_000)
    now_us = round(seconds * 1e6)
    assert statics.is_taken("g", "one", "one.2") == is_taken


@pytest.mark.parametrize("has_returned", [False, True])
def test_a_silent_instance_excuses_a_generation_after_a_loss_of_sessions(
    has_returned: bool,
) -> None:
    """A broker that lost no session removes a member that was silent before the fault."""
    now_us, losses, broken = 0, 0, list[str]()
    statics = StaticAuditor(lambda: now_us, broken.append, lambda: losses, 3_000_000, 2_000_000)

    def join(instance: str, generation: int) -> None:
        statics.joining("g", instance, "")
        statics.joined("g", instance, f"{instance}.{now_us}", generation)
        statics.synced("g", instance, generation)

    join("one", 1)
    join("two", 1)
    losses += 1
    join("one", 1)
    if has_returned:
        join("two", 1)
    now_us = 2_900_000
    statics.answered("g", "one", "one.2", now_us)
    if has_returned:
        statics.answered("g", "two", "two.2", now_us)
    now_us = 3_100_000
    join("one", 2)
    assert bool(broken) == has_returned


@pytest.mark.parametrize("leaves", [False, True])
def test_a_leave_excuses_a_generation_although_a_join_was_refused_in_between(leaves: bool) -> None:
    """A full disk refuses the join of an instance whose request to leave was carried out."""
    broken = list[str]()
    statics = StaticAuditor(lambda: 0, broken.append, lambda: 0, 3_000_000, 2_000_000)
    statics.joining("g", "one", "")
    statics.joined("g", "one", "one.1", 1)
    statics.synced("g", "one", 1)
    if leaves:
        statics.leaving("g", "one")
    statics.joining("g", "one", "")
    statics.refused("g", "one")
    statics.joining("g", "one", "")
    statics.joined("g", "one", "one.2", 3)
    assert bool(broken) != leaves
    statics.synced("g", "one", 3)
    statics.joining("g", "one", "")
    statics.joined("g", "one", "one.3", 4)
    assert len(broken) == (1 if leaves else 2)  # the leave excuses nothing once it has joined


def _write(small: Small, value: int) -> None:
    small.offsets.committed(small.offsets.committing("blue", PLACE, value))


def _sees(small: Small, asked: Asked, start: int, end: int) -> None:
    small.records.fetched(asked, PLACE, 0, log_start=start, high_watermark=end, records={})


# By promise: a response, and what contradicts it if it left before a request.
TIED: dict[str, tuple[Callable[[Small], object], Callable[[Small, Asked], object]]] = {
    "the end of orders-0 was 2 and is 1": (
        lambda s: s.records.saw_end(s.asked_at_once(), PLACE, 2),
        lambda s, asked: s.records.saw_end(asked, PLACE, 1),
    ),
    "the start of orders-0 was 2 and is 0": (
        lambda s: s.records.deleted(PLACE, 2), lambda s, asked: _sees(s, asked, 0, 2),
    ),
    "was acknowledged, and the log ended at 2 before the request": (
        lambda s: s.records.saw_end(s.asked_at_once(), PLACE, 2),
        lambda s, asked: s.records.acknowledged(asked, PLACE, 0, [(None, b"a")]),
    ),
    "and not 0 of 1": (
        lambda s: s.records.acknowledged(s.asked_at_once(), PLACE, 0, [(None, b"a")]),
        lambda s, asked: s.records.looked_up(asked, PLACE, 1, -1, -1),
    ),
    "the committed offset of orders-0 is -1": (
        lambda s: _write(s, 7), lambda s, asked: s.offsets.fetched(asked, "blue", PLACE, ABSENT),
    ),
    "a commit of generation 1 was carried out after": (
        lambda s: s.offsets.generation("blue", 2),
        lambda s, asked: s.offsets.committed_in(asked, "blue", 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("is_earlier", [False, True])
@pytest.mark.parametrize("promise", TIED)
def test_a_response_counts_for_later_requests_of_its_microsecond(
    promise: str, is_earlier: bool
) -> None:
    small = Small()
    response, contradicts = TIED[promise]
    earlier = small.asked()
    response(small)
    later = small.asked_at_once()
    assert earlier.at_us == later.at_us
    assert small.broken == []
    contradicts(small, earlier if is_earlier else later)
    assert any(promise in failure for failure in small.broken) != is_earlier
    assert bool(small.broken) != is_earlier
