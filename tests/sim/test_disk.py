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
