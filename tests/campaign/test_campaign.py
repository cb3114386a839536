"""The damage campaign over folders of brokers that stopped in order, and the judge itself."""

from itertools import combinations
from random import Random

import pytest
from tests.campaign import account
from tests.campaign.campaign import SORTS, judges
from tests.campaign.damage import Damage, draw, exchanged, kind_of
from tests.campaign.data import build
from tests.campaign.judge import REFUSED_PARTITION, TORN, observe
from tests.campaign.parts import CASES, PARTS, check_part, parts

# Every kind of file that a data folder has.
KINDS = {
    ".kafka_cleanshutdown", "cleaner-offset-checkpoint", "clock-checkpoint", "headrace.manifest",
    "log-start-offset-checkpoint", "meta.properties",
    *(
        f"{owner} {suffix}"
        for owner in ("consumer_offsets", "share_group_state", "partition")
        for suffix in (".log", ".index", ".timeindex", ".snapshot", ".checksums", ".metadata")
    ),
    *(
        f"{owner} recovery-point"
        for owner in ("consumer_offsets", "share_group_state", "partition", "cluster_metadata")
    ),
    "cluster_metadata .log", "cluster_metadata .checkpoint",
    "consumer_offsets .swap", "partition .swap",
}  # fmt: skip


@pytest.mark.parametrize("part", parts(clean=True))
def test_no_damage_changes_anything_silently(part: int) -> None:
    check_part(part)


def test_the_folders_have_every_kind_of_file() -> None:
    found = {kind_of(path) for folder, _ in judges(SORTS[:1]) for path in folder.files}
    assert found >= KINDS


@pytest.mark.parametrize("part", range(PARTS))
def test_each_part_draws_every_kind_of_file_and_of_damage(part: int) -> None:
    durability, is_clean = SORTS[part % len(SORTS)]
    folder = build(durability=durability, clean=is_clean, seed=part, is_interrupted=True)
    rng, kinds, damages = Random(part), set[str](), set[str]()
    for _ in range(CASES // PARTS):
        damage = draw(folder.files, rng)
        kinds.add(kind_of(damage.path))
        damages.add(damage.text.partition(": ")[2].split()[0])
    assert kinds >= {kind_of(path) for path in folder.files}
    assert damages >= {"flip", "truncate", "zero", "delete", "empty", "append", "swap", "overwrite"}


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_cut_at_the_end_of_a_log_is_torn_only_above_what_was_synced(durability: str) -> None:
    """The judge itself: the same cut is allowed for unsynced bytes alone."""
    [(folder, judge)] = judges([(durability, False)])
    path = "orders-0/00000000000000000033.log"
    content = folder.files[path]
    size = len(content)
    cut = {**folder.files, path: content[: size - 5]}
    damage = Damage(f"{path}: cut", path, cut, size - 5, size, (path,), keeps_bytes=False)
    expected = REFUSED_PARTITION if durability == "fsync" else TORN
    assert judge.judge(damage).name == expected


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_last_segments_that_were_exchanged_are_refused(durability: str) -> None:
    """They have the same name, and all of their batches are valid."""
    [(folder, judge)] = judges([(durability, False)])
    lasts = {path.partition("/")[0]: path for path in sorted(folder.files) if is_topic_log(path)}
    pairs = [
        (one, other)
        for one, other in combinations(lasts.values(), 2)
        if one.partition("/")[2] == other.partition("/")[2]
    ]
    assert len(pairs) >= 3
    for one, other in pairs:
        outcome = judge.judge(exchanged(folder.files, one, other, both=True))
        assert outcome.name == REFUSED_PARTITION, (one, other, outcome)


def is_topic_log(path: str) -> bool:
    return path.endswith(".log") and not path.startswith("__")


def test_the_judge_notices_a_change_that_nothing_refuses() -> None:
    [(folder, judge)] = judges([("os", True)])
    found = observe(folder.disk(), folder)
    assert found.account is not None
    changed = {key: value for key, value in found.account.items() if key[0] != "topic"}
    assert account.differences(judge.account, changed)
