"""The account that the quiet days of a history keep of the meters of offsets."""

import asyncio
from collections.abc import Callable

import pytest

from headrace.sim import offset_rules
from headrace.sim.facts import Place
from headrace.sim.offset_auditor import ABSENT, Write
from headrace.sim.offset_rules import OffsetMeters, OffsetRules
from headrace.sim.world import World

from .focus import GROUPS, SEEDS_MAX, Focus, history
from .planted_groups import deletions_are_not_metered, expirations_are_not_metered

_UNUSED: Place = ("table", 0)
_LAST = f"{GROUPS['consumers'][-1]}-group"  # the offset of which is deleted last
_FOCUS: Focus = GROUPS | {"stays": True}


@pytest.fixture
def seen_late(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let an offset expire between the look of the auditor and its deletion.

    Returns:
        A list to which the offset is added.
    """
    sound = OffsetRules.look
    late: list[int] = []

    async def look(self: OffsetRules, group: str) -> dict[Place, int]:
        seen = now = await sound(self, group)
        while group == _LAST and now[_UNUSED] != ABSENT:
            await asyncio.sleep(0.1)
            now = await sound(self, group)
        if now is not seen:
            late.append(seen[_UNUSED])
        return seen

    monkeypatch.setattr(OffsetRules, "look", look)
    monkeypatch.setattr(offset_rules, "_DELETES", 1.0)
    return late


def _failures(seen_late: list[int]) -> tuple[str, ...]:
    """Return the failures of the first history in which the group has committed the offset."""
    for seed in range(SEEDS_MAX):
        failures = history(seed, _FOCUS).failures
        if seen_late:
            return failures
    raise AssertionError("no history has the offset")


def test_an_offset_that_expires_before_its_deletion_is_not_deleted(seen_late: list[int]) -> None:
    assert _failures(seen_late) == ()


@pytest.mark.parametrize("plant", [deletions_are_not_metered, expirations_are_not_metered])
def test_meters_that_miss_the_end_of_an_offset_are_reported(
    plant: Callable[[pytest.MonkeyPatch], None],
    seen_late: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    failures = _failures(seen_late)
    assert any("commits and deletions" in one for one in failures), failures


def test_the_account_of_the_meters_is_exact() -> None:
    before = OffsetMeters(commits=7, deletions=2, expirations=5, offsets=9)
    for commits, deletions, expirations, gone, possible, is_right in (
        (1, 0, 0, 0, range(1), True),
        (0, 0, 0, 0, range(1), False),  # the commit is missing
        (1, 2, 0, 2, range(2, 3), True),
        (1, 1, 0, 2, range(2, 3), False),  # a deletion is missing
        (1, 1, 1, 2, range(2, 3), False),  # one counts as an expiration
        (1, 1, 1, 2, range(1, 3), True),  # an offset expired before its deletion
        (1, 2, 1, 3, range(1, 3), True),  # another one expired meanwhile
        (1, 1, 1, 3, range(1, 3), False),  # a deletion is missing, and another one expired
        (1, 2, 0, 3, range(1, 3), False),  # an expiration is missing
        (1, 3, 0, 3, range(1, 3), False),  # an expiration counts as a deletion
    ):
        after = OffsetMeters(7 + commits, 2 + deletions, 5 + expirations, 9 - gone)
        assert (after.miscount(before, possible) is None) == is_right, after


@pytest.mark.parametrize(
    ("commits", "added", "is_right"),
    [
        (1, 0, True),  # the other one was carried out before
        (1, 1, True),  # the other one's commit counts, and the own one does not
        (2, 0, True),
        (2, 1, True),
        (2, 2, False),  # the first one was over an older offset
        (2, -1, False),  # a deletion or an expiration is missing
        (3, 0, False),
    ],
)
def test_a_commit_of_another_member_may_count_and_add_an_offset(
    commits: int, added: int, is_right: bool
) -> None:
    before = OffsetMeters(commits=7, deletions=2, expirations=5, offsets=9)
    after = OffsetMeters(7 + commits, 2, 5, 9 + added)
    assert (after.miscount(before, range(1), range(1, 3)) is None) == is_right


def test_commits_are_counted_from_their_responses() -> None:
    world = World(0)
    auditor = world.offsets

    def sent(at_us: int, done_us: int | None = None, *, value: int = 1) -> Write:
        world.loop.now_us = at_us
        write = auditor.committing("green", ("ledger", 0), value)
        if done_us is not None:
            world.loop.now_us = done_us
            auditor.committed(write)
        return write

    since_us = 60_000_000
    sent(since_us - 9, since_us - 1)  # the meters have it already
    sent(since_us - 60_000_000)  # its response was lost long ago
    sent(since_us + 1, since_us + 9, value=ABSENT)
    auditor.refused("green", ("ledger", 0), sent(since_us + 1))
    assert auditor.commits_since(since_us) == range(1)
    sent(since_us + 1, since_us + 9)
    assert auditor.commits_since(since_us) == range(1, 2)
    sent(since_us - 9, since_us + 1)  # was carried out before, or since
    assert auditor.commits_since(since_us) == range(1, 3)
    sent(since_us + 1)
    assert auditor.commits_since(since_us) == range(1, 4)
