"""The disk: it dies in the middle of writes, and leaves of what was not synced what a seed says."""

import re

import pytest

from headrace.log.recovery_point import NO_CLAIM, Claim, encoded
from headrace.sim.damage import BIT, LOST, MISDIRECTED, MISSING, SHORT
from headrace.sim.disk import NOTHING, REORDERED, WHOLE, FaultyDisk

LOG = "t-0/00000000000000000000.log"
POINT = "t-0/recovery-point"
BATCH = bytes(8) + (60).to_bytes(4, "big") + bytes(60)


def claim(disk: FaultyDisk, size: int) -> None:
    """Let a recovery point claim the first bytes of `LOG`."""
    disk.overwrite(POINT, encoded(POINT, 1, Claim(0, 0, size, 1)), 0)


def test_it_dies_with_the_operation_that_was_drawn_and_stays_dead() -> None:
    died: list[bool] = []
    disk = FaultyDisk("seed", lambda: died.append(True))
    disk.write("a", b"1")
    disk.die_after(1)
    disk.write("b", b"2")
    with pytest.raises(OSError, match="Input/output"):
        disk.write("c", b"3")
    with pytest.raises(OSError, match="Input/output"):
        disk.read("a")
    assert (died, disk.dead) == ([True], True)
    disk.revive(power_cut=False)
    assert disk.list("") == ["a", "b"]


def test_an_append_amid_which_it_dies_is_torn() -> None:
    sizes = set()
    for seed in range(30):
        disk = FaultyDisk(str(seed), lambda: None)
        file = disk.open("log")
        disk.die_after(0)
        try:
            file.append(b"0123456789")
        except OSError:
            assert disk.dead
        disk.revive(power_cut=False)
        sizes.add(disk.size("log"))
    assert {0, 10} <= sizes
    assert len(sizes) > 5


def test_it_dies_with_an_append_that_fails_and_the_next_process_does_not() -> None:
    died: list[bool] = []
    disk = FaultyDisk("seed", lambda: died.append(True))
    file = disk.open("log")
    disk.die_after(0)
    disk.failing.add("append")
    with pytest.raises(OSError, match="Input/output"):
        file.append(b"0123456789")
    assert died == [True]
    disk.failing.clear()
    disk.revive(power_cut=False)
    disk.open("log").append(b"0123456789")
    assert died == [True]
    assert disk.read("log") == b"0123456789"


def test_a_power_cut_takes_only_what_was_not_synced_and_is_the_same_each_time() -> None:
    left = set()
    for seed in range(40):
        found = []
        for _ in range(2):
            disk = FaultyDisk(str(seed), lambda: None)
            file = disk.open("log")
            file.append(b"kept")
            file.sync()
            file.append(bytes(range(1, 201)))
            disk.revive(power_cut=True)
            found.append(disk.read("log"))
        assert found[0] == found[1]
        assert found[0].startswith(b"kept")
        left.add(found[0])
    assert b"kept" in left
    assert b"kept" + bytes(range(1, 201)) in left
    assert any(bytes(64) in one for one in left), "holes"


def test_it_knows_since_when_a_log_is_not_synced() -> None:
    disk, now_us = FaultyDisk("seed", lambda: None), [1]
    disk.now_us = lambda: now_us[0]
    first, second = disk.open("a/1.log"), disk.open("b/1.log")
    for now_us[0] in (2, 3):
        first.append(b"1")
    second.append(b"2")
    assert [disk.unsynced_us(one) for one in ("a/", "b/", "")] == [2, 3, 2]
    disk.revive(power_cut=False)
    assert disk.unsynced_us("") == 2
    disk.write_back()
    assert disk.unsynced_us("") is None
    now_us[0] = 4
    disk.open("a/1.log").append(b"3")
    assert (disk.unsynced_us("a/"), disk.unsynced_us("b/")) == (4, None)
    disk.revive(power_cut=True)
    assert disk.unsynced_us("") is None


def test_a_power_cut_may_undo_what_was_not_synced_of_a_folder_and_nothing_else() -> None:
    found = set()
    for seed in range(40):
        disk = FaultyDisk(str(seed), lambda: None)
        disk.write("t/a", b"old")
        disk.write("t/a", b"new", durable=False)
        disk.rename("t/a", "t/b", durable=False)
        disk.write("u/c", b"kept")
        disk.revive(power_cut=True)
        assert disk.read("u/c") == b"kept"
        found.add(tuple(disk.list("t")))
    assert found == {("a",), ("b",)}


def test_damage_is_undone_by_a_copy_and_keeps_what_was_appended_since() -> None:
    kinds = set()
    for seed in range(60):
        disk = FaultyDisk(str(seed), lambda: None)
        file = disk.open("t-0/00000000000000000000.log")
        file.append(bytes(range(1, 200)))
        before = disk.read("t-0/00000000000000000000.log")
        disk.damage.kinds = (BIT, LOST, SHORT, MISSING)
        done = disk.damage.offline(in_order=True)
        assert done is not None
        kinds.add(done.split(":")[0])
        assert disk.damage.standing
        disk.damage.undo()
        assert disk.read("t-0/00000000000000000000.log") == before
    assert kinds == {BIT, LOST, SHORT, MISSING}


def test_damage_stands_where_a_failed_sync_has_the_unsynced_end_cut_off() -> None:
    disk, synced = FaultyDisk("seed", lambda: None), b"synced" * 10
    file = disk.open(LOG)
    file.append(synced)
    file.sync()
    claim(disk, len(synced))
    file.append(b"unsynced")
    disk.damage.kinds = (BIT,)
    assert disk.damage.live(["t"]) is not None
    file.truncate(len(synced))
    assert disk.damage.standing == [LOG]
    file.append(b"later")
    disk.damage.undo()
    assert disk.read(LOG) == synced + b"later"


def test_a_lost_write_may_leave_what_the_file_was_before() -> None:
    slot, later = (encoded(POINT, number, NO_CLAIM) for number in (1, 2))
    found, point = set(), slot + later
    for seed in range(40):
        disk = FaultyDisk(str(seed), lambda: None)
        disk.write("small", b"former bytes")
        disk.write("small", b"present bytes")
        disk.overwrite(POINT, slot, 0)
        disk.overwrite(POINT, later, len(slot))
        disk.damage.kinds = (LOST,)
        disk.damage.offline(in_order=True)
        found.add((disk.damage.turned_back, disk.read("small"), disk.read(POINT)))
        disk.damage.undo()
        assert disk.read("small") == b"present bytes"
        assert disk.read(POINT) == point
    assert {("small", b"former bytes", point), (POINT, b"present bytes", slot)} < found
    assert any(name == "" and bytes(10) in small for name, small, _ in found)


def test_a_file_that_was_removed_has_no_former_bytes() -> None:
    disk = FaultyDisk("0", lambda: None)
    disk.write("small", b"former bytes")
    disk.write("small", b"present bytes")
    disk.remove("small")
    disk.write("small", b"other bytes")
    disk.damage.kinds = (LOST,)
    disk.damage.offline(in_order=True)
    assert disk.damage.turned_back == ""
    assert set(disk.read("small")) < {0, *b"other bytes"}


def test_a_misdirected_write_is_lost_at_its_own_place() -> None:
    former = 0
    for seed in range(60):
        disk = FaultyDisk(str(seed), lambda: None)
        data = bytes(range(1, 251))
        disk.open(LOG).append(data)
        disk.write("small", b"a" * 100)
        disk.write("small", b"b" * 100)
        disk.damage.kinds = (MISDIRECTED,)
        done = disk.damage.offline(in_order=True)
        assert done is not None
        target, source = (
            (path, int(at))
            for path, at in re.findall(r"([\w./-]+) at byte (\d+)", done.split(": ")[1])
        )
        files = {LOG: data, "small": b"b" * 100}
        block = files[source[0]][source[1] : source[1] + 64][: len(files[target[0]]) - target[1]]
        after = {path: bytearray(one) for path, one in files.items()}
        if source[0] == "small":
            after["small"][:], former = b"a" * 100, former + 1
        else:
            after[LOG][source[1] : source[1] + 64] = bytes(64)
        after[target[0]][target[1] : target[1] + len(block)] = block
        assert {path: disk.read(path) for path in files} == after
        assert set(disk.damage.standing) == {path for path in files if after[path] != files[path]}
        disk.damage.undo()
        assert {path: disk.read(path) for path in files} == files
    assert 10 < former < 50


def test_only_what_a_recovery_point_claims_is_damaged_after_a_crash() -> None:
    disk = FaultyDisk("seed", lambda: None)
    file = disk.open(LOG)
    file.append(b"synced")
    file.sync()
    disk.damage.kinds = (BIT, SHORT)
    for slot in (NO_CLAIM, Claim(0, 0, 0, 0)):
        disk.overwrite(POINT, encoded(POINT, 1, slot), 0)
        assert disk.damage.offline(in_order=False) is None
    claim(disk, 3)
    done = disk.damage.offline(in_order=False)
    assert done is not None
    assert done.split(": ")[1].startswith(LOG)


def test_a_log_that_an_orderly_stop_did_not_close_is_not_damaged() -> None:
    log, hits = "t-0/00000000000000000000.log", {"t-0": 0, "u-0": 0}
    for folder in hits:
        for seed in range(20):
            disk = FaultyDisk(str(seed), lambda: None)
            disk.open(log).append(b"not synced")
            disk.write(".kafka_cleanshutdown", f"0 1 {folder}\n".encode())
            disk.damage.kinds = (BIT, SHORT)
            assert disk.damage.offline(in_order=True) is not None
            hits[folder] += disk.read(log) != b"not synced"
    assert hits["t-0"]
    assert not hits["u-0"]


def test_a_file_that_was_cut_short_and_written_again_is_not_damaged() -> None:
    disk = FaultyDisk("0", lambda: None)
    disk.write("meta.properties", b"version=1")
    disk.damage.kinds = (SHORT,)
    assert disk.damage.offline(in_order=True) is not None
    assert disk.damage.standing == ["meta.properties"]
    disk.write("meta.properties", b"version=1")
    assert (disk.damage.standing, disk.damage.gone) == ([], [])
    disk.remove("meta.properties")
    assert disk.damage.gone == ["meta.properties"]


def test_damage_follows_a_file_whose_rename_is_lost() -> None:
    for seed in range(100):
        disk = FaultyDisk(str(seed), lambda: None)
        disk.write("t-0/log.swap", b"synced")
        disk.rename("t-0/log.swap", "t-0/log", durable=False)
        disk.damage.kinds = (BIT,)
        assert disk.damage.offline(in_order=True) is not None
        disk.revive(power_cut=True)
        if disk.exists("t-0/log.swap"):
            break
    assert disk.damage.standing == ["t-0/log.swap"]
    disk.damage.undo()
    assert disk.read("t-0/log.swap") == b"synced"


def test_a_mark_that_a_start_removed_is_not_restored() -> None:
    disk = FaultyDisk("0", lambda: None)
    disk.write(".kafka_cleanshutdown", b"0 1 t-0\n")
    disk.damage.kinds = (MISSING,)
    assert disk.damage.offline(in_order=True) is not None
    assert disk.damage.standing == [".kafka_cleanshutdown"]
    disk.damage.started()
    assert disk.damage.standing == []
    assert disk.damage.undo() == ""
    assert not disk.exists(".kafka_cleanshutdown")


def test_a_power_cut_keeps_unsynced_writes_in_any_order() -> None:
    first, second = b"1" * 10, b"2" * 20
    left = set()
    for seed in range(60):
        disk = FaultyDisk(str(seed), lambda: None)
        disk.fates = (REORDERED,)
        file = disk.open("log")
        file.append(first)
        file.append(second)
        disk.revive(power_cut=True)
        left.add(disk.read("log"))
    assert left == {b"", first, bytes(10) + second, first + second}


def test_a_power_cut_has_a_fate_of_its_own_for_each_file() -> None:
    left = set()
    for seed in range(60):
        disk = FaultyDisk(str(seed), lambda: None)
        disk.fates = (NOTHING, WHOLE)
        for name in ("one", "other"):
            disk.open(name).append(b"unsynced")
        disk.revive(power_cut=True)
        left.add((disk.read("one"), disk.read("other")))
    assert len(left) == 4
    assert set().union(*left) == {b"", b"unsynced"}


def holding(seed: int, data: bytes) -> FaultyDisk:
    disk = FaultyDisk(str(seed), lambda: None)
    disk.damage.kinds = (BIT,)
    file = disk.open(LOG)
    file.append(data)
    file.sync()
    claim(disk, len(data))
    return disk


def test_damage_under_a_broker_spares_the_offsets_of_batches() -> None:
    for seed in range(40):
        disk = holding(seed, 2 * BATCH)
        assert disk.damage.live(["t"]) is not None
        now = disk.read(LOG)
        assert now != 2 * BATCH
        assert all(now[at : at + 8] == bytes(8) for at in (0, 72))


def test_an_offset_is_damaged_only_where_the_broker_verifies_it() -> None:
    found = set()
    for seed in range(40):
        disk = holding(seed, 2 * BATCH)
        assert disk.damage.live_offset(["t"], lambda *_: False) is None
        done = disk.damage.live_offset(["t"], lambda _, position: position == len(BATCH))
        now = disk.read(LOG)
        assert (now == 2 * BATCH) == (done is None)
        assert now[:72] + now[80:] == BATCH + BATCH[8:]
        found.add(done is None)
    assert found == {True, False}


def test_a_power_cut_keeps_damage_that_a_whole_batch_follows() -> None:
    kept = {True: 0, False: 0}
    for seed in range(60):
        disk = holding(seed, 3 * BATCH)
        disk.open(LOG).append(BATCH)  # not synced: it protects nothing
        assert disk.damage.live(["t"]) is not None
        now = disk.read(LOG)
        at = next(n for n, byte in enumerate(now) if byte != (4 * BATCH)[n])
        disk.revive(power_cut=True)
        after = disk.read(LOG)
        is_followed = at < 2 * len(BATCH)
        assert (after[: 3 * len(BATCH)] == 3 * BATCH) == (not is_followed)
        assert bool(disk.damage.standing) == is_followed
        disk.damage.undo()
        assert disk.read(LOG)[: 3 * len(BATCH)] == 3 * BATCH
        kept[is_followed] += 1
    assert min(kept.values()) > 5


def test_a_log_stays_damaged_whatever_a_power_cut_leaves_of_its_unsynced_end() -> None:
    ends = set()
    for seed in range(30):
        disk = holding(seed, 2 * BATCH)
        disk.open(LOG).append(b"torn")
        disk.revive(power_cut=False)
        assert disk.damage.offline(in_order=False) is not None
        disk.revive(power_cut=True)
        ends.add(disk.read(LOG)[2 * len(BATCH) :])
        assert disk.damage.standing == [LOG]
        assert disk.damage.undo() == LOG
        assert disk.read(LOG)[: 2 * len(BATCH)] == 2 * BATCH
    assert {b"", b"torn"} < ends


def test_what_is_cut_off_without_a_copy_is_noted() -> None:
    disk = FaultyDisk("seed", lambda: None)
    file = disk.open("t-0/0.log")
    file.append(b"abcd")
    disk.revive(power_cut=False)
    file = disk.open("t-0/0.log")
    disk.watches_cuts = True
    disk.open("t-0/0.log.torn.2").append(b"cd")
    file.append(b"ef")  # its own, of an append that failed
    file.truncate(4)
    file.truncate(2)
    assert disk.cut_without_copy == []
    file.truncate(1)
    assert disk.cut_without_copy == ["t-0/0.log"]


def test_what_a_process_appended_where_it_has_cut_needs_no_copy() -> None:
    """A start cuts off a torn end, and an append of its own fails behind the cut."""
    disk = FaultyDisk("seed", lambda: None)
    disk.open("t-0/0.log").append(b"synced, torn")
    disk.revive(power_cut=False)
    file = disk.open("t-0/0.log")
    disk.watches_cuts = True
    disk.open("t-0/0.log.torn.6").append(b", torn")
    file.truncate(6)
    file.append(b"own")
    file.truncate(6)
    assert disk.cut_without_copy == []
