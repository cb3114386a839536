"""The disk: it dies in the middle of writes, and leaves of what was not synced what a seed says."""

import pytest

from headrace.sim.disk import FaultyDisk


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
        done = disk.damage(in_order=True)
        assert done is not None
        kinds.add(done.split(":")[0])
        assert disk.is_damaged
        disk.undo_damage()
        assert disk.read("t-0/00000000000000000000.log") == before
    assert kinds >= {"bit", "zeros", "short", "missing"}


def test_only_what_a_recovery_point_claims_is_damaged_after_a_crash() -> None:
    disk = FaultyDisk("seed", lambda: None)
    file = disk.open("t-0/00000000000000000000.log")
    file.append(b"synced")
    file.sync()
    assert disk.damage(in_order=False) is None
    disk.overwrite("t-0/recovery-point", b"claim", 0)
    done = disk.damage(in_order=False)
    assert done is not None
    assert done.split(": ")[1].startswith("t-0/00000000000000000000.log")
