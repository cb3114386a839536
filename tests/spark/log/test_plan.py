"""What a batch reads, decided from ends of logs alone."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.resets import OutOfRange
from headrace.spark.log.plan import (
    Log,
    Seen,
    begins,
    limited,
    must_wait,
    ranges_between,
    split,
    still_there,
    together,
)
from headrace.spark.log.position import Position
from headrace.wire.leases import Range

A, B = ("a", 0), ("b", 1)
NONE, NEAREST = OutOfRange


def seen(a: tuple[int, int] | None, *, id_of_a: str = "1") -> Seen:
    return Seen({} if a is None else {A: Log(*a)}, {} if a is None else {"a": id_of_a})


@pytest.mark.parametrize(
    ("at", "there", "begin", "told", "instead"),
    [
        (5, seen((0, 9)), 5, None, None),
        (5, seen((5, 5)), 5, None, None),
        (9, seen((0, 9)), 9, None, None),
        (5, seen((8, 9)), 8, "offsets 5 to 7 were removed", "from offset 8"),
        (12, seen((0, 9)), 9, "offsets 9 to 11 are beyond the end", "on from its end, 9"),
        (5, seen((0, 9), id_of_a="2"), 0, "deleted and created again after offset 5", "start, 0"),
        (12, seen((3, 9), id_of_a="2"), 3, "deleted and created again", "from its start, 3"),
        (5, seen(None), None, "it is gone; it was read up to offset 5", "it is left out"),
    ],
)
def test_where_a_partition_is_read_on_from_and_what_was_lost(
    at: int, there: Seen, begin: int | None, told: str | None, instead: str | None
) -> None:
    found, losses = begins(Position({A: at}, ids={"a": "1"}), there, {}, NEAREST)
    assert found == ({} if begin is None else {A: begin})
    assert len(losses) == (told is not None)
    if told is not None and instead is not None:
        assert str(losses[0]).startswith("a-0: ")
        assert told in str(losses[0])
        assert instead in losses[0].instead


def test_a_new_partition_is_read_from_its_first_record() -> None:
    there = Seen({A: Log(0, 5), B: Log(0, 7)}, {})
    assert begins(Position({A: 5}), there, {}, NEAREST) == ({A: 5, B: 0}, [])
    there = Seen({A: Log(0, 5), B: Log(3, 7)}, {})
    found, losses = begins(Position({A: 5}), there, {}, NEAREST)
    assert found == {A: 5, B: 3}
    assert [str(loss) for loss in losses] == [
        "b-1: offsets 0 to 2 were removed (retention or deletion)"
    ]


def test_brokers_without_ids_of_topics_tell_no_recreation() -> None:
    known = Position({A: 5}, ids={"a": "1"})
    assert begins(known, Seen({A: Log(0, 9)}, {}), {}, NEAREST) == ({A: 5}, [])
    assert begins(Position({A: 5}), seen((0, 9)), {}, NEAREST) == ({A: 5}, [])


def test_a_new_partition_is_read_from_where_it_is_said_to_begin() -> None:
    there = Seen({A: Log(0, 5), B: Log(3, 7)}, {})
    assert begins(Position({A: 5}), there, {B: 6}, NONE) == ({A: 5, B: 6}, [])


@pytest.mark.parametrize(
    ("there", "refused", "gone_on"),
    [
        (seen((0, 9)), [], []),
        (seen((6, 9)), [True], [False]),
        (seen((0, 4)), [True], [False]),
        (seen((0, 9), id_of_a="2"), [None], [None]),
        (seen(None), [None], [None]),
    ],
)
def test_the_setting_decides_on_positions_outside_the_log_and_on_no_other_loss(
    there: Seen, refused: list[bool | None], gone_on: list[bool | None]
) -> None:
    at, batch = Position({A: 5}, ids={"a": "1"}), [Range("a", 0, 5, 5, 0)]
    for setting, wanted in ((NONE, refused), (NEAREST, gone_on)):
        assert [one.is_refused for one in begins(at, there, {}, setting)[1]] == wanted
        losses = still_there(batch, {"a": "1"}, there, setting)[1]
        assert [one.is_refused for one in losses] == wanted


PLANNED = Range("a", 0, 3, 7, 0)


@pytest.mark.parametrize(
    ("there", "left", "told"),
    [
        (seen((0, 8)), PLANNED, None),
        (seen((3, 8)), PLANNED, None),
        (seen((5, 9)), Range("a", 0, 5, 7, 0), "of offsets 3 to 7 some are not there"),
        (seen((0, 6)), Range("a", 0, 3, 5, 0), "the log has 0 to 5"),
        (seen((8, 9)), None, "the log has 8 to 8"),
        (seen((0, 3)), None, "the log has 0 to 2"),
        (seen((0, 9), id_of_a="2"), None, "offsets 3 to 7 were deleted; its topic is a new one"),
        (seen(None), None, "offsets 3 to 7 are gone with it"),
    ],
)
def test_what_is_left_of_a_batch_that_runs_again(
    there: Seen, left: Range | None, told: str | None
) -> None:
    found, losses = still_there([PLANNED], {"a": "1"}, there, NEAREST)
    assert found == ([] if left is None else [left])
    assert len(losses) == (told is not None)
    assert (told or "") in "".join(map(str, losses))


def test_a_limit_is_shared_by_what_waits() -> None:
    start = {("t", n): 100 for n in range(3)}
    ends = {("t", 0): 100, ("t", 1): 400, ("t", 2): 200}
    assert limited(start, ends, 40) == {("t", 0): 100, ("t", 1): 130, ("t", 2): 110}
    assert limited(start, ends, 400) == ends
    assert limited(start, ends, 5000) == ends


def test_a_small_partition_is_not_starved() -> None:
    ends = {A: 1_000_000, B: 1}
    assert limited({A: 0, B: 0}, ends, 10) == {A: 9, B: 1}


WAITING = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**7)), min_size=1, max_size=9)


@given(waiting=WAITING, most=st.integers(1, 10**7))
def test_a_limit_always_gets_on_and_is_kept(waiting: list[tuple[int, int]], most: int) -> None:
    start = {("t", n): first for n, (first, _) in enumerate(waiting)}
    ends = {("t", n): first + size for n, (first, size) in enumerate(waiting)}
    found = limited(start, ends, most)
    sizes = {at: found[at] - start[at] for at in found}
    assert found.keys() == ends.keys()
    assert all(0 <= size <= ends[at] - start[at] for at, size in sizes.items())
    assert all(size or start[at] == ends[at] for at, size in sizes.items())
    assert sum(sizes.values()) <= most + len(waiting)


@pytest.mark.parametrize(
    ("waiting", "fewest", "since", "waits"),
    [
        (5, None, 1.0, False),
        (5, 6, None, False),
        (5, 6, 1.0, True),
        (6, 6, 1.0, False),
        (5, 6, 10.0, False),
        (0, 6, 9.9, True),
    ],
)
def test_a_batch_waits_for_its_least_size_but_not_for_ever(
    waiting: int, fewest: int | None, since: float | None, waits: bool
) -> None:
    assert must_wait(waiting, fewest, since, 10.0) is waits


def test_a_partition_is_a_task_unless_told_otherwise() -> None:
    ranges = [Range("a", 0, 0, 99, 0), Range("b", 1, 50, 59, 0)]
    assert split(ranges, None, None) == ranges
    assert split(ranges, 2, None) == ranges
    assert split(ranges, 3, None) == [
        Range("a", 0, 0, 49, 0), Range("a", 0, 50, 99, 0), Range("b", 1, 50, 59, 0)
    ]  # fmt: skip
    assert [one.last - one.first + 1 for one in split(ranges, None, 40)] == [33, 33, 34, 10]


SIZES = st.lists(st.integers(1, 300), max_size=8)


@given(sizes=SIZES, least=st.none() | st.integers(1, 40), most=st.none() | st.integers(1, 90))
def test_every_offset_is_in_one_task(sizes: list[int], least: int | None, most: int | None) -> None:
    ranges = [Range("t", n, 10 * n, 10 * n + size - 1, 0) for n, size in enumerate(sizes)]
    found = split(ranges, least, most)
    offsets = [(one.partition, o) for one in found for o in range(one.first, one.last + 1)]
    assert offsets == [(r.partition, o) for r in ranges for o in range(r.first, r.last + 1)]
    assert all(one.first <= one.last for one in found)
    assert most is None or all(one.last - one.first < most for one in found)
    assert len(found) >= min(least or 0, sum(sizes))


def test_small_ranges_share_no_more_tasks_than_run_at_once() -> None:
    ranges = [Range("t", n, 0, last, 0) for n, last in enumerate((99, 9, 89, 19))]
    a, b, c, d = ranges
    assert together(ranges, None) == [(a,), (b,), (c,), (d,)]
    assert together(ranges, 2) == [(a, b), (c, d)]
    assert together(ranges, 3) == [(a,), (c,), (d, b)]
    assert together(ranges, 8) == [(a,), (c,), (d,), (b,)]
    assert together([], 2) == []
    large = Range("t", 4, 0, 9_999 - 220, 0)
    assert len(together([*ranges, large], 2)) == 5, "a task each of 5,000 would do"
    assert len(together([*ranges, large], 3)) == 3


@given(sizes=SIZES, slots=st.integers(1, 10))
def test_no_range_is_lost_by_sharing_a_task(sizes: list[int], slots: int) -> None:
    ranges = [Range("t", n, 0, size - 1, 0) for n, size in enumerate(sizes)]
    tasks = together(ranges, slots)
    assert sorted(sum(tasks, ()), key=lambda one: one.partition) == ranges
    assert len(tasks) == min(slots, len(ranges))
    assert all(tasks)


def test_empty_partitions_have_no_range() -> None:
    assert ranges_between({A: 4, B: 2}, {A: 9, B: 2}) == [Range("a", 0, 4, 8, 0)]


def test_a_position_survives_the_offset_log() -> None:
    position = Position({A: 5, B: 9}, {A: 3}, {"a": "00ff"}, 1_790_000_000_000)
    told = json.loads(json.dumps(position.to_json()))
    assert Position.from_json(told) == position
    assert told == {
        "v": 1,
        "offsets": {"a": {"0": 5}, "b": {"1": 9}},
        "from": {"a": {"0": 3}},
        "ids": {"a": "00ff"},
        "started": 1_790_000_000_000,
    }


def test_a_batch_begins_where_its_end_says_or_else_where_the_last_one_ended() -> None:
    later = Position({A: 7, B: 9})
    assert Position({A: 5, B: 9}, {A: 3}).begins(later) == {A: 3, B: 9}
    # a partition that was gone when the batch was planned is not read
    assert Position({A: 5}).begins(Position({A: 4, B: 9})) == {A: 4}


def test_only_a_position_that_nothing_was_read_before_may_be_initial() -> None:
    assert Position({A: 5}, {A: 5}).may_be_initial
    assert Position({}, {}).may_be_initial
    assert not Position({A: 6}, {A: 5}).may_be_initial
    assert not Position({A: 6}).may_be_initial


@pytest.mark.parametrize(
    "found", [{"v": 2, "offsets": {}}, {"v": 1, "session": "s", "seq": 3, "ranges": []}, {}]
)
def test_offsets_of_another_version_or_use_are_refused(found: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="this reads a log in version 1; go on with the release"):
        Position.from_json(found)
