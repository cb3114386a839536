"""The repair campaign: what `headrace repair` leaves of damaged folders, and its judge."""

import os
from random import Random

import pytest
from tests.campaign import repairs
from tests.campaign.data import Folder, build, build_large
from tests.campaign.judge import observe

from headrace.folder.repair import Action

CASES = int(os.environ.get("HEADRACE_REPAIR_CASES", "40"))  # for each folder
FOLDERS = {
    "stopped": lambda: build(durability="os", clean=True, is_interrupted=True),
    "killed": lambda: build(durability="os", clean=False, is_interrupted=True),
    "large stopped": lambda: build_large(clean=True),
    "large killed": lambda: build_large(clean=False),
}


@pytest.mark.parametrize("sort", FOLDERS)
def test_a_repair_loses_nothing_that_it_does_not_name(sort: str) -> None:
    folder: Folder = FOLDERS[sort]()
    sound = observe(folder.disk(), folder).account
    assert sound is not None
    rng, repaired, failures = Random(sort), 0, []
    for _ in range(CASES):
        text, files = repairs.drawn(folder.files, rng)
        done, lines = repairs.judged(folder, sound, files)
        repaired += bool(done.actions)
        failures += [f"{text}: {line}" for line in lines]
    assert failures == []
    assert repaired > CASES // 2


def test_the_judge_notices_what_a_repair_does_not_name() -> None:
    folder = build_large(clean=True)
    sound = observe(folder.disk(), folder).account
    assert sound is not None
    batch, *others = sound["log", "orders-0"]
    after = {**sound, ("log", "orders-0"): others}
    lines = [*repairs.missing(folder, sound, None, after, folder.files, [])]
    assert lines == [f"orders-0: the intact batch {batch[:2]} is not served"]
    files = {path: data for path, data in folder.files.items() if not path.startswith("orders-0/")}
    lines = [*repairs.missing(folder, sound, sound, after, files, [])]
    assert lines == [f"orders-0: the batch {batch[:2]} was readable, and is lost without a name"]
    named = Action("orders-0", "", ((0, batch[1]),))
    assert [*repairs.missing(folder, sound, sound, after, files, [named])] == []


def test_the_judge_notices_offsets_that_are_used_again() -> None:
    for is_clean in (True, False):
        folder = build_large(clean=is_clean)
        sound = observe(folder.disk(), folder).account
        assert sound is not None
        lost = ("orders-0/",)
        files = {path: data for path, data in folder.files.items() if not path.startswith(lost)}
        after = {**sound, ("bounds", "orders-0"): (0, 2999)}
        end = 3005 if is_clean else 3000
        assert [*repairs.reused(folder, sound, after, files)] == [
            f"orders-0 ends at (0, 2999), below {end}"
        ]
