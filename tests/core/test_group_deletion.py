"""The deletion of a group with many offsets, in portions with other commands between them."""

from typing import Any

import pytest

from headrace.core.group_events import Event, OffsetsDropped
from headrace.core.group_words import NOBODY, Commit, DeleteGroup, DropDetached, Offset
from headrace.core.machine import Unfinished

from .group_rig import GroupDriver

PLACES = [(topic, partition) for topic in ("t", "u", "v") for partition in range(3)]


class Deletion:
    """The deletion of group g with nine offsets, whose first portion is decided."""

    def __init__(self, offsets_max: int) -> None:
        self.driver = GroupDriver()
        self.commit(7, *PLACES)
        self.portions = 0
        answer = self.driver.do_once(DeleteGroup("g", offsets_max=offsets_max))
        assert isinstance(answer, Unfinished)
        self._rest: Any = answer.following()

    def commit(self, offset: int, *places: tuple[str, int]) -> None:
        offsets = tuple(Offset(topic, index, offset, -1, "", None) for topic, index in places)
        self.driver.do(Commit("g", NOBODY, None, -1, offsets))

    @property
    def is_done(self) -> bool:
        return self._rest is None

    def go_on(self) -> None:
        """Decide the next portion."""
        self.portions += 1
        answer = self.driver.do_once(self._rest)
        self._rest = answer.following() if isinstance(answer, Unfinished) else None
        assert self._rest or answer is None

    def finish(self) -> None:
        while not self.is_done:
            self.go_on()


def test_a_group_is_gone_with_the_first_portion_and_from_the_journal_with_the_last() -> None:
    deletion = Deletion(2)
    driver = deletion.driver
    assert "g" not in driver.shard.groups
    assert driver.shard.offset_count == 0
    assert list(driver.shard.names.walk()) == []
    deletion.finish()
    assert deletion.portions == 5
    assert driver.committed() == {}
    assert not driver.rebuilt().groups


@pytest.mark.parametrize("offsets_max", [1, 2, 3, 4, 8])
def test_portions_are_of_so_many_offsets(offsets_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    deletion, written = Deletion(offsets_max), list[list[tuple[str, int]]]()
    take = deletion.driver.take

    def taken(events: list[Event]) -> None:
        (event,) = events
        assert isinstance(event, OffsetsDropped)
        written.append([(topic, index) for topic, places in event.partitions for index in places])
        take(events)

    monkeypatch.setattr(deletion.driver, "take", taken)
    deletion.finish()
    assert [len(block) for block in written[:-1]] == [offsets_max] * (len(written) - 1)
    assert [place for block in written for place in block] == PLACES


def test_as_many_offsets_as_a_portion_has_are_dropped_at_once() -> None:
    driver = GroupDriver()
    driver.do(
        Commit(
            "g",
            NOBODY,
            None,
            -1,
            tuple(Offset(topic, index, 7, -1, "", None) for topic, index in PLACES),
        )
    )
    assert driver.do_once(DeleteGroup("g", offsets_max=len(PLACES))) is None
    assert driver.committed() == {}


@pytest.mark.parametrize("portions", range(10))
def test_a_commit_amid_the_deletion_stays(portions: int) -> None:
    """Wherever it comes: its record stands before the tombstones that are yet to be written."""
    deletion = Deletion(1)
    for _ in range(portions):
        deletion.go_on()
    deletion.commit(9, ("t", 0), ("u", 1), ("v", 2), ("w", 0))
    deletion.finish()
    kept = {("t", 0): 9, ("u", 1): 9, ("v", 2): 9, ("w", 0): 9}
    assert deletion.driver.committed() == kept
    assert deletion.driver.shard.offset_count == 4


def test_a_group_that_begins_amid_the_deletion_may_be_deleted_as_well() -> None:
    deletion = Deletion(1)
    deletion.commit(9, ("t", 0), ("v", 2))
    deletion.go_on()
    assert deletion.driver.delete("g") is None
    deletion.finish()
    assert deletion.driver.committed() == {}
    assert not deletion.driver.shard.groups


def test_a_member_that_joins_amid_the_deletion_stays() -> None:
    deletion = Deletion(4)
    deletion.driver.join()
    deletion.finish()
    assert list(deletion.driver.group().members) == ["m1"]
    assert deletion.driver.committed() == {}


def test_a_large_topic_is_in_several_blocks() -> None:
    driver = GroupDriver()
    offsets = tuple(Offset("t", index, 7, -1, "", None) for index in range(5))
    driver.do(Commit("g", NOBODY, None, -1, offsets))
    answer = driver.do_once(DeleteGroup("g", offsets_max=2))
    rest = answer.following()
    assert isinstance(rest, DropDetached)
    assert [[len(partitions) for _, partitions in block] for block in rest.blocks] == [
        [2],
        [2],
        [1],
    ]
