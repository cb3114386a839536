"""Repairs: the plan, its execution, and what is left of the records."""

import errno
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast
from uuid import UUID

import pytest
from tests.campaign.account import Account
from tests.campaign.damage import Damage, draw, exchanged
from tests.campaign.data import Folder, build_compacted, disk_of
from tests.campaign.judge import observe
from tests.campaign.repairs import missing, reused
from tests.folder.conftest import Write

from headrace.core.catalog import PartitionsAdded, Resource, TopicCreated
from headrace.core.machine import encoded
from headrace.core.runs import State
from headrace.core.shard import ShareShard
from headrace.core.share_words import Settled, ShareKey, Started
from headrace.core.types import Span, WallMs
from headrace.folder.bridge import bridge, empty_batches
from headrace.folder.catalogue import (
    listed_topics,
    lost_topics,
    read_catalogue,
    restore_topics,
)
from headrace.folder.check import Finding, Surroundings, check, check_disk
from headrace.folder.overlay import OverlayDisk
from headrace.folder.repair import Action, Repair, _Mechanic, repair, repair_disk
from headrace.folder.share_state import restore_share_partitions
from headrace.log import partition_metadata
from headrace.log import repair as log_repair
from headrace.log.api import Disk, NewerFormatError
from headrace.log.checkpoints import CLEAN_MARK, parsed_offsets, read_clean_mark
from headrace.log.damage import keep_copy
from headrace.log.manifest import (
    CATALOGUE,
    NAME,
    PROPERTIES,
    START_OFFSETS,
    ListedTopic,
    Manifest,
)
from headrace.log.memory_disk import MemoryDisk
from headrace.log.metadata_records import MetadataRecords
from headrace.log.os_disk import OsDisk
from headrace.log.record_codec import ShareJournal
from headrace.log.recovery_point import NO_CLAIM, UNKNOWN, Claim, RecoveryPoint, read_claim
from headrace.log.repair import segment_bases
from headrace.log.segments import SegmentedLog
from headrace.log.small_files import read_file, sealed, write_file
from headrace.sim.disk import NOTHING, FaultyDisk
from headrace.wire import batches
from headrace.wire.batches import Record

CASES = 20
REBUILT = (
    ".index", ".timeindex", ".checksums", ".snapshot", "recovery-point", ".kafka_cleanshutdown",
)  # fmt: skip
SEGMENT = "orders-0/00000000000000000025.log"  # two batches: offsets 25 to 29, and 30 to 32
LARGE = "orders-0/00000000000000000000.log"  # the last segment of a large log


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def repaired(root: Path, *, execute: bool = True) -> Repair:
    return repair(root, lambda _: None, execute=execute)


def started(root: Path, folder: Folder) -> Account:
    """What clients read of a broker on a folder."""
    found = observe(disk_of(contents(root)), folder)
    assert found.account is not None, (found.refusal, found.fault)
    return found.account


def test_a_sound_folder_has_no_plan(stopped: Folder, write: Write) -> None:
    root = write(stopped.files)
    done = repaired(root)
    assert (done.actions, done.is_complete) == ([], True)
    assert contents(root) == stopped.files


def test_only_the_damaged_batch_is_lost_and_the_old_segment_is_kept(
    stopped: Folder, write: Write
) -> None:
    files = dict(stopped.files)
    damaged = files[SEGMENT][:500] + b"\xff\xff" + files[SEGMENT][502:]
    root = write({**files, SEGMENT: damaged})
    plan = repaired(root, execute=False)
    assert [one.path for one in plan.actions] == [SEGMENT]
    assert "offsets lost: 25 to 29" in plan.actions[0].text
    assert contents(root) == {**files, SEGMENT: damaged}
    done = repaired(root)
    assert done.actions == plan.actions
    assert done.is_complete
    assert contents(root)[f"{SEGMENT}.torn.0"] == damaged
    assert check(root, lambda _: None).is_clean
    found, sound = started(root, stopped), started(write(files), stopped)
    lost = [one for one in sound["log", "orders-0"] if one not in found["log", "orders-0"]]
    assert [one[:2] for one in lost] == [(25, 29)]
    assert found["bounds", "orders-0"] == sound["bounds", "orders-0"]


FORMER = "orders-0/00000000000000000020.log"  # one batch: offsets 20 to 24
SWAP = f"{FORMER}.swap"


@pytest.mark.parametrize("replaces", [True, False])
def test_a_damaged_replacement_of_a_segment_is_set_aside(
    replaces: bool, stopped: Folder, write: Write
) -> None:
    """A power cut may undo that compaction gave its segment the name of the one it replaces."""
    files = dict(stopped.files)
    damaged = files[SEGMENT][:500] + b"\xff\xff" + files[SEGMENT][502:]
    former = SEGMENT if replaces else f"{SEGMENT}.deleted"
    files[former] = files.pop(SEGMENT)
    root = write({**files, f"{SEGMENT}.swap": damaged})
    plan, done = repaired(root, execute=False), repaired(root)
    assert plan.actions == done.actions
    assert done.is_complete
    assert not any(action.lost for action in done.actions)
    assert contents(root)[f"{SEGMENT}.swap.torn.0"] == damaged
    assert contents(root)[SEGMENT] == stopped.files[SEGMENT]
    assert log_of(started(root, stopped)) == log_of(started(write(stopped.files), stopped))


def log_of(account: Account) -> tuple[Any, Any]:
    """Return what the log of the replaced segments has."""
    return account["bounds", "orders-0"], account["log", "orders-0"]


def replaced(files: Mapping[str, bytes], first: str, second: str) -> dict[str, bytes]:
    """Stage a damaged replacement of two segments, which get these suffixes."""
    out = dict(files)
    whole = files[FORMER] + files[SEGMENT]
    at = len(files[FORMER]) + 500
    out[SWAP] = whole[:at] + b"\xff\xff" + whole[at + 2 :]
    for path, suffix in (FORMER, first), (SEGMENT, second):
        out[f"{path}{suffix}"] = out.pop(path)
        out.pop(f"{path.removesuffix('.log')}.checksums")
    return out


SUFFIXES = [("", ""), ("", ".deleted"), (".deleted", ""), (".deleted", ".deleted")]


@pytest.mark.parametrize(("first", "second"), SUFFIXES)
def test_all_segments_that_a_damaged_one_replaces_come_back(
    first: str, second: str, stopped: Folder, write: Write
) -> None:
    root = write(replaced(stopped.files, first, second))
    plan, done = repaired(root, execute=False), repaired(root)
    assert plan.actions == done.actions
    assert done.is_complete
    (action,) = done.actions
    assert not action.lost
    assert action.text.count(".deleted") == bool(first) + bool(second)
    assert f"{SWAP}.torn.0" in action.text
    assert log_of(started(root, stopped)) == log_of(started(write(stopped.files), stopped))


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_damaged_replacement_takes_its_place_where_not_all_is_left_of_the_segments(
    is_missing: bool, stopped: Folder, write: Write
) -> None:
    files = replaced(stopped.files, ".deleted", ".deleted")
    if is_missing:
        del files[f"{FORMER}.deleted"]
    else:
        files[f"{FORMER}.deleted"] = files[f"{FORMER}.deleted"][:-1] + b"?"
    root = write(files)
    plan, done = repaired(root, execute=False), repaired(root)
    assert plan.actions == done.actions
    assert done.is_complete
    assert [one for action in done.actions for one in action.lost] == [(25, 29)]
    found, sound = started(root, stopped), started(write(stopped.files), stopped)
    lost = [one for one in sound["log", "orders-0"] if one not in found["log", "orders-0"]]
    assert [one[:2] for one in lost] == [(25, 29)]
    for path in files:
        if path.endswith((".swap", ".deleted")):
            assert contents(root)[f"{path}.torn.0"] == files[path]


def test_a_damaged_replacement_takes_the_place_of_a_damaged_segment(
    stopped: Folder, write: Write
) -> None:
    files = replaced(stopped.files, "", ".deleted")
    files[FORMER] = files[FORMER][:-1] + b"?"
    root = write(files)
    done = repaired(root)
    assert done.is_complete
    assert [one for action in done.actions for one in action.lost] == [(25, 29)]
    for path in (FORMER, SWAP, f"{SEGMENT}.deleted"):
        assert contents(root)[f"{path}.torn.0"] == files[path]


EARLIER = "orders-0/00000000000000000015.log"  # one batch: offsets 15 to 19
ACTIVE = "orders-0/00000000000000000033.log"


def worsened(files: dict[str, bytes], path: str, state: str) -> None:
    """Damage, cut behind the first batch, or remove a segment."""
    if state == "bad":
        files[path] = files[path][:-1] + b"?"
    elif state == "short":
        files[path] = files[path][: batches.read_header(files[path]).size]
    elif state == "gone":
        del files[path]


def require_lost(root: Path, stopped: Folder, write: Write, *lost: tuple[int, int]) -> Repair:
    """Repair a folder, and check which batches are missing then."""
    plan, done = repaired(root, execute=False), repaired(root)
    assert plan.actions == done.actions
    assert done.is_complete
    left, sound = started(root, stopped), started(write(stopped.files), stopped)
    missing_batches = [
        one for one in sound["log", "orders-0"] if one not in left["log", "orders-0"]
    ]
    assert [one[:2] for one in missing_batches] == [*lost]
    assert left["bounds", "orders-0"] == sound["bounds", "orders-0"]
    return done


@pytest.mark.parametrize(
    ("first", "second", "lost"),
    [
        ("bad", "", []),  # the swap file is damaged where the second segment has all
        ("gone", "", []),
        ("", "gone", [(25, 29)]),
        ("", "bad", [(25, 29)]),
        ("", "short", [(25, 29)]),
        ("bad", "bad", [(25, 29)]),
    ],
)
def test_a_damaged_replacement_takes_its_place_where_a_segment_with_its_name_is_not_intact(
    first: str, second: str, lost: list[tuple[int, int]], stopped: Folder, write: Write
) -> None:
    files = replaced(stopped.files, "", "")
    worsened(files, FORMER, first)
    worsened(files, SEGMENT, second)
    root = write(files)
    require_lost(root, stopped, write, *lost)
    kept = {content for path, content in contents(root).items() if ".torn." in path}
    kept |= {contents(root)[SEGMENT]} if SEGMENT in contents(root) else set()
    assert kept >= {files[path] for path in (FORMER, SEGMENT, SWAP) if path in files}


@pytest.mark.parametrize("state", ["bad", "gone"])
def test_an_intact_segment_does_not_hide_what_a_replacement_has_behind_it(
    state: str, stopped: Folder, write: Write
) -> None:
    files = replaced(stopped.files, "", "")
    files[f"{EARLIER}.swap"] = files[EARLIER] + files.pop(SWAP)
    worsened(files, SEGMENT, state)
    root = write(files)
    require_lost(root, stopped, write, (25, 29))
    assert contents(root)[f"{FORMER}.torn.0"] == files[FORMER]


def test_a_replacement_without_an_intact_batch_is_set_aside(stopped: Folder, write: Write) -> None:
    files = replaced(stopped.files, "", "")
    files[SWAP] = bytes(len(files[SWAP]))
    worsened(files, SEGMENT, "bad")
    root = write(files)
    require_lost(root, stopped, write, (30, 32))
    assert contents(root)[FORMER] == files[FORMER]


def test_a_damaged_offset_of_a_replacement_takes_no_other_segment(
    stopped: Folder, write: Write
) -> None:
    """The checksum of a batch does not cover its offset."""
    files = replaced(stopped.files, "", "")
    last = len(files[FORMER]) + batches.read_header(files[SEGMENT]).size
    files[SWAP] = files[SWAP][:last] + (1000).to_bytes(8, "big") + files[SWAP][last + 8 :]
    worsened(files, FORMER, "bad")
    root = write(files)
    require_lost(root, stopped, write)
    assert contents(root)[ACTIVE] == files[ACTIVE]
    assert contents(root)[SEGMENT] == files[SEGMENT]


@pytest.mark.parametrize("offset", [31, 32])
def test_a_damaged_offset_of_a_replacement_reaches_into_no_last_segment(
    offset: int, killed: Folder, write: Write
) -> None:
    """The last segment seldom is intact after a kill; here its end is torn."""
    files = replaced(killed.files, "", "")
    files[SWAP] = files[FORMER] + files[SEGMENT]
    last = len(files[FORMER]) + batches.read_header(files[SEGMENT]).size
    files[SWAP] = files[SWAP][:last] + offset.to_bytes(8, "big") + files[SWAP][last + 8 :]
    files[ACTIVE] += files[FORMER][:200]
    root = write(files)
    done = require_lost(root, killed, write)
    assert [one.path for one in done.actions] == [SWAP, ACTIVE]
    assert contents(root)[ACTIVE] == killed.files[ACTIVE]


@pytest.mark.parametrize("is_torn", [True, False])
def test_a_replacement_that_waits_for_its_name_survives_a_repair_behind_it(
    is_torn: bool, killed: Folder, write: Write
) -> None:
    """After the repair the recovery point said that the log begins with the repaired segment."""
    files = {
        path: data
        for path, data in killed.files.items()
        if not (path.startswith("orders-0/0") and path < SEGMENT)
    }
    files[f"{SEGMENT}.swap"] = files[f"{SEGMENT}.deleted"] = files.pop(SEGMENT)
    files[ACTIVE] = files[ACTIVE] + files[ACTIVE][:80] if is_torn else b"\xff" * 99 + files[ACTIVE]
    root = write({**files, "orders-0/recovery-point": b""})
    repaired(root)
    offsets = {last for _, last, *_ in started(root, killed)["log", "orders-0"]}
    assert offsets >= {29, 32}


def test_what_an_earlier_compaction_replaced_does_not_come_back(
    stopped: Folder, write: Write
) -> None:
    """The removal of replaced files is not synced, so they may be there at the next compaction."""
    files = replaced(stopped.files, "", "")
    files[f"{FORMER}.deleted"] = files[FORMER]
    files[FORMER] += files.pop(SEGMENT)
    files[f"{SEGMENT}.deleted"] = stopped.files[SEGMENT]
    root = write(files)
    done = repaired(root)
    assert done.is_complete
    assert [action.path for action in done.actions] == [SWAP]
    assert contents(root)[FORMER] == files[FORMER]
    assert SEGMENT not in contents(root)
    assert log_of(started(root, stopped)) == log_of(started(write(stopped.files), stopped))


def awaiting(files: Mapping[str, bytes], first: int, second: int, suffix: str) -> dict[str, bytes]:
    """Let two segments have a whole replacement that waits for its name."""
    paths = [f"orders-0/{base:020d}.log" for base in (first, second)]
    out = {**files, f"{paths[0]}.swap": b"".join(files[path] for path in paths)}
    for path in paths:
        out[f"{path}{suffix}"] = out.pop(path)
        out.pop(f"{path.removesuffix('.log')}.checksums")
    return out


@pytest.mark.parametrize("suffix", ["", ".deleted"])
def test_a_log_begins_with_a_replacement_when_its_torn_end_is_cut_off(
    suffix: str, killed: Folder, write: Write
) -> None:
    files = awaiting(killed.files, 0, 5, suffix)
    files[ACTIVE] += files[FORMER][:200]
    root = write(files)
    done = require_lost(root, killed, write)
    assert [one.path for one in done.actions] == [ACTIVE]
    names = [f"orders-0/{base:020d}.log" for base in (0, 5)]
    copies = {path: f"{path}.deleted" if suffix else f"{path}.torn.0" for path in names}
    for path, copy in copies.items():
        assert suffix or contents(root)[copy] == killed.files[path]
        assert (copy in done.actions[0].text) == (not suffix)


@pytest.mark.parametrize("suffix", ["", ".deleted"])
def test_a_segment_before_a_replacement_is_rewritten_up_to_it(
    suffix: str, stopped: Folder, write: Write
) -> None:
    files = awaiting(stopped.files, 10, 15, suffix)
    worsened(files, "orders-0/00000000000000000005.log", "bad")
    root = write(files)
    assert [one.lost for one in require_lost(root, stopped, write, (5, 9)).actions] == [((5, 9),)]


@pytest.mark.parametrize("base", [0, 5])
def test_a_damaged_segment_over_which_a_whole_replacement_stands_is_left_to_the_start(
    base: int, stopped: Folder, write: Write
) -> None:
    files = awaiting(stopped.files, 0, 5, "")
    worsened(files, f"orders-0/{base:020d}.log", "bad")
    assert not require_lost(write(files), stopped, write).actions


@pytest.mark.parametrize("base", [0, 5])
def test_a_repair_behind_a_replacement_keeps_the_damaged_segments_it_replaces(
    base: int, stopped: Folder, write: Write
) -> None:
    """A rewrite of them would have put empty batches over the records of the replacement."""
    files = awaiting(stopped.files, 0, 5, "")
    damaged = f"orders-0/{base:020d}.log"
    worsened(files, damaged, "bad")
    worsened(files, "orders-0/00000000000000000015.log", "bad")
    root = write(files)
    (action,) = require_lost(root, stopped, write, (15, 19)).actions
    assert action.lost == ((15, 19),)
    assert contents(root)[f"{damaged}.torn.0"] == files[damaged]


@pytest.mark.parametrize("state", ["torn", "bad"])
def test_what_retention_gave_up_does_not_come_back_with_a_repair(
    state: str, killed: Folder, write: Write
) -> None:
    """A power cut may undo that its segments were renamed."""
    disk = MemoryDisk()
    path = "orders-0/recovery-point"
    disk.write(path, killed.files[path])
    point = RecoveryPoint(disk, "orders-0")
    size = len(killed.files[ACTIVE])
    point.replace(point.claim._replace(first_base=5, base_offset=33, size=size, end_offset=35))
    files = {**killed.files, path: disk.read(path)}
    if state == "torn":
        files[ACTIVE] += files[FORMER][:200]
    else:
        worsened(files, ACTIVE, state)
    root = write(files)
    assert [one.path for one in repaired(root).actions] == [ACTIVE]
    assert started(root, killed)["bounds", "orders-0"] == (5, 35)


@pytest.mark.parametrize(("offset", "end"), [(15, 15), (5, 5)])
def test_a_journal_is_cut_in_and_behind_a_replacement(offset: int, end: int) -> None:
    disk, folder = MemoryDisk(), "__consumer_offsets-0"
    whole = [
        batches.build([Record(0, 1, b"key", b"value")], base_offset=base, leader_epoch=0)
        for base in range(20)
    ]
    disk.write(f"{folder}/{0:020d}.log.swap", b"".join(whole[:10]))
    disk.write(f"{folder}/{10:020d}.log", b"".join(whole[10:]))
    RecoveryPoint(disk, folder).replace(Claim(0, 10, 0, 10))
    assert _Mechanic(disk, Surroundings())._journal(folder, offset) is not None
    log = SegmentedLog(disk, folder)
    assert (log.start_offset, log.end_offset) == (0, end)


class KilledError(Exception):
    """The process died."""


class MortalDisk:
    """A disk whose process dies at a change."""

    def __init__(self, disk: MemoryDisk, changes: int) -> None:
        self._disk = disk
        self._left = changes

    def __getattr__(self, name: str) -> Any:
        if name in {"open", "rename", "remove", "write", "overwrite"}:
            if not self._left:
                raise KilledError
            self._left -= 1
        return getattr(self._disk, name)


@pytest.mark.parametrize(
    ("first", "second"),
    [*SUFFIXES, ("gone", ".deleted"), ("bad", ".deleted"), ("", "gone"), ("", "bad"), ("", "old")],
)
def test_a_killed_repair_of_a_replacement_is_repeated(
    first: str, second: str, stopped: Folder
) -> None:
    is_second_intact = second in {"", ".deleted"}
    files = replaced(
        stopped.files,
        ".deleted" if first in {"gone", "bad"} else first,
        second if is_second_intact else "",
    )
    if second == "old":  # what an earlier compaction replaced is intact
        files[f"{SEGMENT}.deleted"] = files[SEGMENT]
    worsened(files, SEGMENT, "bad" if second == "old" else second)
    if first == "gone":
        del files[f"{FORMER}.deleted"]
    elif first == "bad":
        files[f"{FORMER}.deleted"] = files[f"{FORMER}.deleted"][:-1] + b"?"
        files[FORMER] = files.pop(f"{FORMER}.deleted")

    def repaired_disk(disk: MemoryDisk, changes: int) -> Repair:
        dying: Any = MortalDisk(disk, changes)
        return repair_disk(dying, partial(view_of, disk), Path(), lambda _: None)

    whole = disk_of(files)
    done = repaired_disk(whole, 1000)
    lost = [one for action in done.actions for one in action.lost]
    assert lost == ([(25, 29)] if first in {"gone", "bad"} or not is_second_intact else [])
    expected = observe(whole, stopped).account
    assert expected is not None
    is_killed, changes = True, 0
    while is_killed:
        disk = disk_of(files)
        try:
            done = repaired_disk(disk, changes)
        except KilledError:
            done = repaired_disk(disk, 1000)
        else:
            is_killed = False
        assert done.is_complete
        found = observe(disk, stopped)
        assert found.account is not None, (changes, found.refusal, found.fault)
        assert log_of(found.account) == log_of(expected), changes
        changes += 1
    assert changes > 2


@pytest.mark.parametrize("sort", ["large_stopped", "large_killed"])
def test_batches_behind_a_damaged_one_of_the_last_segment_stay(
    sort: str, request: pytest.FixtureRequest, write: Write
) -> None:
    folder: Folder = request.getfixturevalue(sort)
    content = bytearray(folder.files[LARGE])
    content[len(content) // 2] ^= 1
    root = write({**folder.files, LARGE: bytes(content)})
    done = repaired(root)
    assert done.is_complete
    ((first, last),) = (lost for one in done.actions for lost in one.lost)
    found, sound = started(root, folder), started(write(folder.files), folder)
    assert found["bounds", "orders-0"] == sound["bounds", "orders-0"]
    gone = [one for one in sound["log", "orders-0"] if one not in found["log", "orders-0"]]
    assert [one[:2] for one in gone] == [(first, last)]


@pytest.mark.parametrize(
    ("at", "mask"), [(7, 1), (11, 64), (15, 2), (16, 4)], ids=["offset", "size", "epoch", "magic"]
)
def test_fields_outside_the_checksum_are_recovered(
    stopped: Folder, write: Write, at: int, mask: int
) -> None:
    content = bytearray(stopped.files[SEGMENT])
    content[at] ^= mask
    root = write({**stopped.files, SEGMENT: bytes(content)})
    done = repaired(root)
    assert done.is_complete
    assert "offsets lost: none" in done.actions[0].text
    assert contents(root)[SEGMENT] == stopped.files[SEGMENT]


def test_a_whole_segment_of_another_log_is_set_aside(killed: Folder, write: Write) -> None:
    path, other = (f"orders-{index}/00000000000000000033.log" for index in range(2))
    root = write({**killed.files, path: killed.files[other]})
    done = repaired(root)
    assert done.is_complete
    assert started(root, killed)["bounds", "orders-0"] == (0, 33)
    assert contents(root)[f"{path}.torn.0"] == killed.files[other]
    assert (root / other).read_bytes() == killed.files[other]


EXCHANGED = [
    ("orders-0/00000000000000000005.log", "orders-0/00000000000000000010.log"),  # of one log
    ("jobs-0/00000000000000000000.log", "jobs-0/00000000000000000009.log"),
    ("orders-0/00000000000000000025.log", "orders-1/00000000000000000025.log"),  # of two
    ("jobs-0/00000000000000000000.log", "jobs-1/00000000000000000000.log"),
    ("jobs-0/00000000000000000000.log", "orders-0/00000000000000000020.log"),
]


@pytest.mark.parametrize("both", [True, False], ids=["exchanged", "overwritten"])
@pytest.mark.parametrize(("path", "other"), EXCHANGED)
@pytest.mark.parametrize("sort", ["stopped", "killed"])
def test_no_batch_of_another_segment_is_kept(
    sort: str, path: str, other: str, both: bool, request: pytest.FixtureRequest, write: Write
) -> None:
    folder: Folder = request.getfixturevalue(sort)
    damage = exchanged(folder.files, path, other, both=both)
    root = write(damage.files)
    errors = {one.path for one in check(root, lambda _: None).findings if one.grade == "error"}
    assert errors & set(damage.paths)
    done = repaired(root)
    assert done.is_complete, done.left
    _require_quarantined(folder, damage, done, contents(root))


def _require_quarantined(
    folder: Folder, damage: Damage, done: Repair, after: dict[str, bytes]
) -> None:
    """All of each file that stands in the wrong place is set aside and told, and nothing else."""
    lost: dict[str, set[int]] = {path: set() for path in damage.paths}
    for action in done.actions:
        for first, last in action.lost:
            assert last is not None
            lost[action.path] |= set(range(first, last + 1))
    for path, offsets in lost.items():
        headers = batches.headers(folder.files[path])
        assert offsets == set(range(headers[0].base_offset, headers[-1].last_offset + 1))
        assert after[f"{path}.torn.0"] == damage.files[path]
        assert not any(one.record_count for one in batches.headers(after[path]))
    wrong = {path for path in damage.files if path.endswith(".log")} - set(damage.paths)
    assert [path for path in sorted(wrong) if after[path] != damage.files[path]] == []


@pytest.mark.parametrize("claim", ["kept", "lost"])
@pytest.mark.parametrize("sort", ["stopped", "killed"])
def test_no_batch_of_another_segment_is_kept_in_the_last_one(
    sort: str, claim: str, request: pytest.FixtureRequest, write: Write
) -> None:
    folder: Folder = request.getfixturevalue(sort)
    path, other = "orders-0/00000000000000000033.log", "orders-0/00000000000000000025.log"
    damage = exchanged(folder.files, path, other, both=True)
    left = {
        name: data
        for name, data in damage.files.items()
        if claim == "kept" or name != "orders-0/recovery-point"
    }
    root = write(left)
    done = repaired(root)
    assert done.is_complete, done.left
    after = contents(root)
    for one in (path, other):
        assert after[f"{one}.torn.0"] == damage.files[one]
        assert not any(header.record_count for header in batches.headers(after[one]))
    found, sound = started(root, folder), started(write(folder.files), folder)
    before = [[row for row in one["log", "orders-0"] if row[1] < 25] for one in (found, sound)]
    assert before[0] == before[1] != []


def test_segments_of_one_log_are_told_apart_by_their_offsets_alone(
    killed: Folder, write: Write
) -> None:
    path, other = (f"jobs-0/{base:020d}.log" for base in (0, 9))
    damage = exchanged(killed.files, path, other, both=True)
    derived = (".index", ".timeindex", ".checksums")
    left = {
        name: data
        for name, data in damage.files.items()
        if not (name.startswith("jobs-0/") and name.endswith(derived))
    }
    root = write(left)
    done = repaired(root)
    assert done.is_complete, done.left
    _require_quarantined(killed, damage, done, contents(root))


@pytest.mark.parametrize("byte", [5, 7, 9, 11, 15, 16, 18, 40, 99])
@pytest.mark.parametrize("at", [0, 649, 649 + 659], ids=["first", "middle", "last"])
@pytest.mark.parametrize("is_known", [True, False], ids=["checksums", "none"])
def test_a_segment_with_a_damaged_batch_is_not_another_one(
    at: int, byte: int, is_known: bool, stopped: Folder, write: Write
) -> None:
    path = f"jobs-0/{0:020d}.log"
    content = bytearray(stopped.files[path])
    content[at + byte] ^= 1
    files = {**stopped.files, path: bytes(content)}
    if not is_known:
        files = {name: data for name, data in files.items() if name != f"{path[:-4]}.checksums"}
    root = write(files)
    assert repaired(root).is_complete
    kept = batches.headers(contents(root)[path])
    assert sum(one.record_count > 0 for one in kept) >= 2


def test_a_segment_that_is_cut_behind_a_batch_is_known_by_its_time_index(
    stopped: Folder, write: Write
) -> None:
    path = f"jobs-0/{0:020d}.log"
    assert stopped.files[f"{path[:-4]}.timeindex"]
    root = write({**stopped.files, path: stopped.files[path][: 649 + 659]})
    done = repaired(root)
    assert [one.lost for one in done.actions] == [((6, 8),)]
    files = {**stopped.files, path: stopped.files[path][: 649 + 659]}
    for disk in killed_and_repeated(files):
        kept = [one.base_offset for one in batches.headers(disk.read(path)) if one.record_count]
        assert kept == [0, 3], "no intact batch is set aside"


@pytest.mark.parametrize("torn", [".index", ".timeindex"])
def test_indexes_are_not_trusted_when_a_repair_sets_their_checksums_aside(
    torn: str, stopped: Folder, write: Write
) -> None:
    """A power cut takes any part of what is rebuilt, as nothing of it is synced."""
    stem = f"jobs-0/{0:020d}"
    sound = started(write(stopped.files), stopped)
    root = write({**stopped.files, f"{stem}.checksums": b"", f"{stem}{torn}": b""})
    (action,) = repaired(root).actions
    assert action.path == f"{stem}.checksums"
    assert started(root, stopped)["times", "jobs-0"] == sound["times", "jobs-0"]
    assert f"kept as {stem}.index.torn.0, {stem}.timeindex.torn.0" in action.text


def test_the_offsets_of_a_missing_last_segment_are_not_used_again(
    stopped: Folder, write: Write
) -> None:
    path = "orders-1/00000000000000000033.log"
    root = write({name: data for name, data in stopped.files.items() if name != path})
    done = repaired(root)
    assert done.is_complete
    assert started(root, stopped)["bounds", "orders-1"] == (0, 35)


def test_a_missing_partition_continues_at_its_old_end(stopped: Folder, write: Write) -> None:
    kept = {name: data for name, data in stopped.files.items() if not name.startswith("jobs-0/")}
    root = write(kept)
    assert repaired(root).is_complete
    assert started(root, stopped)["bounds", "jobs-0"] == (20, 20)


def without_folders(folder: Folder, *prefixes: str) -> dict[str, bytes]:
    return {name: data for name, data in folder.files.items() if not name.startswith(prefixes)}


def test_all_missing_partitions_continue_at_their_old_ends(
    stopped: Folder, write: Write, tmp_path: Path
) -> None:
    prefixes = ("orders-", "jobs-", "__share_group_state-")
    bounds = {
        key: value
        for key, value in started(write(stopped.files), stopped).items()
        if key[0] == "bounds" and key[1].startswith(prefixes)
    }
    assert len(bounds) == 5
    shutil.rmtree(tmp_path / "data")
    root = write(without_folders(stopped, *prefixes))
    plan = repaired(root, execute=False)
    done = repaired(root)
    assert (done.is_complete, done.actions) == (True, plan.actions)
    account = started(root, stopped)
    for key, (_, end) in bounds.items():
        assert account[key] == (end, end)


def test_a_missing_partition_of_a_killed_broker_continues_above_what_groups_have(
    killed: Folder, write: Write
) -> None:
    """Offsets of groups, and those of checkpoints of deleted and of compacted records."""
    lost = ("orders-0/", "jobs-0/", "events-0/", "prices-0/", "dlq.workers-0/")
    root = write(without_folders(killed, *lost))
    done = repaired(root)
    assert done.is_complete
    texts = {action.path: action.text for action in done.actions}
    assert "the end of its log is unknown; it continues at offset 31" in texts["orders-0"]
    assert "it begins at offset 0, as no group" in texts["dlq.workers-0"]
    account = started(root, killed)
    ends = {"orders-0": 31, "events-0": 22, "jobs-0": 9, "prices-0": 40, "dlq.workers-0": 0}
    for folder, end in ends.items():
        assert account["bounds", folder] == (end, end)


def test_a_missing_partition_waits_until_the_groups_can_be_read(
    killed: Folder, write: Write
) -> None:
    files = without_folders(killed, "orders-0/")
    journal = f"__share_group_state-0/{0:020d}.log"
    content = bytearray(files[journal])
    content[30] ^= 1
    root = write({**files, journal: bytes(content), "meta.properties": b"\0"})
    done = repaired(root)
    assert done.is_complete
    assert started(root, killed)["bounds", "orders-0"] == (31, 31)
    assert done.actions[-1].path == "orders-0"


def test_a_lost_manifest_is_written_with_the_partitions_of_the_catalogue(
    large_stopped: Folder, write: Write
) -> None:
    root = write(without_folders(large_stopped, "orders-1/", "headrace.manifest"))
    assert repaired(root).is_complete
    assert started(root, large_stopped)["bounds", "orders-1"] == (3000, 3000)


def test_a_topic_whose_deletion_had_begun_is_not_restored(killed: Folder, write: Write) -> None:
    """The catalogue has forgotten it; its folder was to be removed next."""
    root = write(killed.files)
    disk, topic_id = OsDisk(root), "AAAAAAAAAAUAAAAAAACAAA"
    partition_metadata.write(disk, "gone-0", topic_id)
    disk.write(f"gone-0/{0:020d}.log", b"")
    Manifest(disk).put_topic(topic_id, ListedTopic(1, "gone", is_deleting=True))
    text = (root / "headrace.manifest").read_text()
    (root / "headrace.manifest").write_text(text.replace("journal", "jourNal"))
    done = repaired(root)
    assert done.is_complete
    assert [one.path for one in done.actions] == ["headrace.manifest"]
    assert Manifest(disk).topics[topic_id].is_deleting


@pytest.mark.parametrize("is_deleting", [False, True])
def test_a_topic_that_only_the_catalogue_has_keeps_its_damaged_partition(
    is_deleting: bool, killed: Folder, write: Write
) -> None:
    """A kill amid its creation or deletion, or a full disk, kept it out of the manifest."""
    root = write(killed.files)
    metadata, disk = root / "orders-0" / "partition.metadata", OsDisk(root)
    topic_id = partition_metadata.read(disk, "orders-0").topic_id
    manifest = Manifest(disk)
    if is_deleting:
        manifest.begin_deletion(topic_id, manifest.topics[topic_id])
    else:
        manifest.remove_topic(topic_id)
    metadata.write_bytes(metadata.read_bytes()[:20])
    done = repaired(root)
    assert done.is_complete
    assert [one.path for one in done.actions] == ["orders-0/partition.metadata"]
    found = log_of(started(root, killed))
    assert partition_metadata.read(disk, "orders-0").topic_id == topic_id
    shutil.rmtree(root)
    assert found == log_of(started(write(killed.files), killed))


def test_a_topic_gets_no_folder_that_a_deleted_one_of_its_name_may_have(
    killed: Folder, write: Write
) -> None:
    root = write(killed.files)
    metadata, disk = root / "orders-0" / "partition.metadata", OsDisk(root)
    topic_id = partition_metadata.read(disk, "orders-0").topic_id
    Manifest(disk).remove_topic(topic_id)
    former = ListedTopic(1, "orders", is_deleting=True)
    Manifest(disk).put_topic("AAAAAAAAAAUAAAAAAACAAA", former)
    metadata.write_bytes(metadata.read_bytes()[:20])
    done = repaired(root)
    assert (done.actions, done.is_complete) == ([], False)


def test_the_first_offset_that_a_cut_of_a_journal_takes_is_reported(
    large_killed: Folder, write: Write
) -> None:
    """The record that cannot be replayed is the second one of its batch."""
    path = f"__share_group_state-0/{0:020d}.log"
    content = bytearray(large_killed.files[path])
    content[30] ^= 1
    root = write({**large_killed.files, path: bytes(content)})
    *_, cut = repaired(root).actions
    assert (cut.path, cut.lost) == ("__share_group_state-0", ((2, None),))


def test_a_partition_folder_without_its_files_is_a_missing_one(
    killed: Folder, write: Write
) -> None:
    root = write(without_folders(killed, "orders-0/"))
    (root / "orders-0").mkdir()
    assert repaired(root).is_complete
    assert started(root, killed)["bounds", "orders-0"] == (31, 31)


def test_a_missing_last_segment_of_a_killed_broker_continues_above_what_groups_have(
    killed: Folder, write: Write
) -> None:
    path = "orders-0/00000000000000000025.log"
    claim = Claim(0, 25, 100, 26)
    disk = MemoryDisk()
    RecoveryPoint(disk, "orders-0").replace(claim)
    files = without_folders(killed, "orders-0/0000000000000000002", "orders-0/0000000000000000003")
    root = write({**files, "orders-0/recovery-point": disk.read("orders-0/recovery-point")})
    done = repaired(root)
    assert (done.is_complete, done.actions[0].path) == (True, path)
    assert started(root, killed)["bounds", "orders-0"] == (0, 31)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\0", "write the file with a new cluster id, node 1"),
        (
            b"cluster.id=ePvC4xBVQqKQjJmJvHc0Zw\nnode.id=7\n",  # the catalogue names node 1
            "write the file with cluster id ePvC4xBVQqKQjJmJvHc0Zw, node 1",
        ),
    ],
)
def test_the_plan_for_the_properties_is_what_the_repair_does(
    content: bytes, text: str, stopped: Folder, write: Write
) -> None:
    root = write({**stopped.files, "meta.properties": content})
    plan = repaired(root, execute=False)
    done = repaired(root)
    assert plan.actions == done.actions
    assert done.actions[0].text == f"{text}; kept as meta.properties.torn.0"


def test_topics_that_the_catalogue_lost_are_restored_from_the_manifest(
    large_stopped: Folder, write: Write, tmp_path: Path
) -> None:
    """Each batch of the catalogue is damaged in turn; what is not damaged is served."""
    path = f"__cluster_metadata-0/{0:020d}.log"
    sound = started(write(large_stopped.files), large_stopped)
    content, position, restored = large_stopped.files[path], 0, set()
    for header in batches.headers(content):
        position += header.size
        damaged = bytearray(content)
        damaged[position - 1] ^= 1
        shutil.rmtree(tmp_path / "data")
        root = write({**large_stopped.files, path: bytes(damaged)})
        plan = repaired(root, execute=False)
        done = repaired(root)
        assert (done.is_complete, done.actions) == (True, plan.actions)
        assert check(root, lambda _: None).is_clean
        account = started(root, large_stopped)
        names = {name for section, name in sound if section == "topic"}
        for name in names:
            assert account["topic", name] == sound["topic", name]
            if f"restore {name}-0" in done.actions[0].text:
                restored.add(name)
                assert "settings of restored topics are lost" in done.actions[0].text
        for key, value in sound.items():
            if key[0] in ("log", "bounds"):
                assert account[key] == value, key
    assert restored == names


def test_no_record_of_a_restored_topic_expires(large_stopped: Folder, write: Write) -> None:
    path = f"__cluster_metadata-0/{0:020d}.log"
    content = large_stopped.files[path]
    root = write({**large_stopped.files, path: content[:-1] + b"?"})
    disk, node_id = OsDisk(root), 1
    position = 0
    for header in batches.headers(content):
        position += header.size
        damaged = bytearray(content)
        damaged[position - 1] ^= 1
        (root / path).write_bytes(damaged)
        catalog = read_catalogue(disk, node_id)
        lost = lost_topics(catalog, listed_topics(disk))
        if "jobs" in {topic.listed.name for topic in lost}:
            break
    else:
        pytest.fail("no batch has the topic jobs")
    repaired(root)
    configs = read_catalogue(disk, node_id).configs_of(Resource.TOPIC, "jobs")
    assert (configs["retention.ms"], configs["retention.bytes"]) == ("-1", "-1")
    assert configs["cleanup.policy"] == "delete"


def test_a_topic_that_got_partitions_after_its_lost_creation_is_restored(
    large_killed: Folder, write: Write
) -> None:
    """The broker cannot replay what is left of the catalogue without the checkpoint."""
    path = f"__cluster_metadata-0/{0:020d}.log"
    content = large_killed.files[path]
    position = 0
    for header in batches.headers(content):
        data = content[position : position + header.size]
        if b"orders" in data:
            break
        position += header.size
    disk = MemoryDisk()
    created = next(
        event
        for _, key, value in batches.entries(data)
        for event in MetadataRecords(1).events(key, value)
        if isinstance(event, TopicCreated)
    )
    added = PartitionsAdded(created.topic_id, 1, 1)
    (entry,) = MetadataRecords(1).records([added], WallMs(1))
    end = batches.headers(content)[-1].last_offset + 1
    later = batches.build([Record(0, 1, *entry)], base_offset=end, leader_epoch=0)
    damaged = bytearray(content)
    damaged[position + header.size - 1] ^= 1
    disk.write(path, bytes(damaged) + bytes(later))
    bridge(disk, path, 0, end + 1, is_last=True)
    lost = {"__cluster_metadata-0/recovery-point": b""}  # by a power cut
    root = write({**large_killed.files, **lost, path: disk.read(path)})
    errors = [
        finding for finding in check(root, lambda _: None).findings if finding.grade == "error"
    ]
    assert "cannot be replayed: the journal lacks an earlier one" in str(errors[0])
    refusal = observe(disk_of(contents(root)), large_killed).refusal or ""
    assert "__cluster_metadata-0: the record at offset" in refusal
    assert "headrace repair" in refusal
    assert repaired(root).is_complete
    sound = observe(large_killed.disk(), large_killed).account
    assert sound is not None
    assert started(root, large_killed)["topic", "orders"] == sound["topic", "orders"]


@pytest.mark.parametrize("lost", ["orders-0/recovery-point", "orders-0/"])
def test_a_power_cut_leaves_the_recovery_point_that_a_repair_wrote(
    lost: str, stopped: Folder
) -> None:
    disk = FaultyDisk("seed", lambda: None)
    for path, data in without_folders(stopped, lost).items():
        disk.write(path, data)
    assert repair_disk(disk, partial(view_of, disk), Path(), lambda _: None).is_complete
    disk.fates = (NOTHING,)
    disk.revive(power_cut=True)
    assert read_claim(disk, "orders-0")[1] != NO_CLAIM


@pytest.mark.parametrize("lost", ["partitions", "topic"])
def test_a_repair_that_is_killed_can_be_repeated(lost: str, large_stopped: Folder) -> None:
    sound = observe(large_stopped.disk(), large_stopped).account
    assert sound is not None
    files = without_folders(large_stopped, "orders-", "jobs-0/")
    if lost == "topic":
        path = f"__cluster_metadata-0/{0:020d}.log"
        content = bytearray(large_stopped.files[path])
        content[batches.headers(content)[0].size - 1] ^= 1
        files = {**large_stopped.files, path: bytes(content)}
    for disk in killed_and_repeated(files):
        account = observe(disk_of(view_of(disk).contents), large_stopped).account
        assert account is not None
        assert [*reused(large_stopped, sound, account, files)] == []
        assert [*missing(large_stopped, sound, None, account, files, [])] == []


def killed_and_repeated(files: Mapping[str, bytes]) -> Iterator[FaultyDisk]:
    """Yield the files after a repair that was killed and repeated, for each point of a kill.

    Every other kill is a power cut.
    """
    for left in range(200):
        disk = FaultyDisk(f"left {left}", lambda: None)
        for path, data in files.items():
            disk.write(path, data)
        disk.die_after(left)
        is_killed = False
        for _ in range(2):
            try:
                done = repair_disk(disk, partial(view_of, disk), Path(), lambda _: None)
            except OSError:
                disk.revive(power_cut=left % 2 == 1)
                is_killed = True
        disk.die_after(None)
        assert done.is_complete, left
        yield disk
        if not is_killed:
            assert left > 5, "the repair was killed at several points"
            return
    pytest.fail("the repair makes fewer changes")


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_killed_repair_of_the_last_segment_leaves_intact_batches_for_the_next_one(
    is_cut: bool, stopped: Folder
) -> None:
    """The rewritten file is neither that of the old checksums nor that of the old claim."""
    path, files = f"batches-0/{27:020d}.log", dict(stopped.files)
    headers = batches.headers(files[path])
    content = bytearray(files[path])
    content[70] ^= 1
    files[path] = bytes(content[: headers[0].size + headers[1].size] if is_cut else content)
    for disk in killed_and_repeated(files):
        kept = [one for one in batches.headers(disk.read(path)) if one.record_count]
        assert [one.base_offset for one in kept] == ([30] if is_cut else [30, 33])


def view_of(disk: MemoryDisk) -> OverlayDisk:
    return OverlayDisk.of_contents({path: bytes(one.data) for path, one in disk._files.items()})


def test_a_catalogue_that_lacks_topics_is_not_sound(stopped: Folder, write: Write) -> None:
    root = write(stopped.files)
    disk = OsDisk(root)
    id_, listed = next(
        (id_, topic) for id_, topic in Manifest(disk).topics.items() if topic.name == "orders"
    )
    Manifest(disk).put_topic(id_, listed._replace(partitions=3))
    errors = [one for one in check(root, lambda _: None).findings if one.grade == "error"]
    assert [str(one) for one in errors] == [
        "error: __cluster_metadata-0: the catalogue lacks orders-2, which the manifest lists; the "
        "next start renames these folders to `…-stray`, and their records are not served; run "
        "`headrace repair`, or restore a backup"
    ]
    assert repaired(root).is_complete
    assert started(root, stopped)["topic", "orders"][1] == 3


@pytest.mark.parametrize("byte", [20, 200, -20])
def test_a_damaged_checkpoint_of_the_catalogue_is_written_again(
    byte: int, stopped: Folder, write: Write
) -> None:
    """Also where the log begins behind what the checkpoint replaced; a start keeps the copy."""
    path = next(name for name in stopped.files if name.endswith(".checkpoint"))
    end = int(path.rpartition("/")[2].split("-")[0])
    content = bytearray(stopped.files[path])
    content[byte] ^= 1
    files = {**stopped.files, path: bytes(content)}
    log = files.pop(f"__cluster_metadata-0/{0:020d}.log")
    position = 0
    for header in batches.headers(log):
        if header.base_offset >= end:
            break
        position += header.size
    del files["__cluster_metadata-0/recovery-point"], files[".kafka_cleanshutdown"]
    files[f"__cluster_metadata-0/{end:020d}.log"] = log[position:]
    root = write(files)
    done = repaired(root)
    assert done.is_complete
    sound = observe(stopped.disk(), stopped).account
    disk = disk_of(contents(root))
    account = observe(disk, stopped).account
    assert sound is not None
    assert account is not None
    for key, value in sound.items():
        if key[0] in ("topic", "log", "bounds"):
            assert account[key] == value, key
    assert disk.exists(f"{path}.torn.0")


def test_the_catalogue_waits_for_a_damaged_manifest(large_killed: Folder, write: Write) -> None:
    path = f"__cluster_metadata-0/{0:020d}.log"
    content = bytearray(large_killed.files[path])
    content[batches.headers(content)[0].size - 1] ^= 1
    files = {**large_killed.files, path: bytes(content)}
    del files["headrace.manifest"]
    root = write(files)
    done = repaired(root)
    assert done.is_complete
    sound = observe(large_killed.disk(), large_killed).account
    assert sound is not None
    for key, value in started(root, large_killed).items():
        if key[0] in ("topic", "log", "bounds"):
            assert sound[key] == value


def test_the_catalogue_cannot_be_made_up(stopped: Folder, write: Write) -> None:
    kept = {
        name: data
        for name, data in stopped.files.items()
        if not name.startswith("__cluster_metadata-0/")
    }
    root = write(kept)
    done = repaired(root)
    assert not done.is_complete
    assert done.actions == []
    assert "restore a backup" in str(done.left[0])
    assert contents(root) == kept


@pytest.mark.parametrize("sort", ["stopped", "killed"])
def test_whatever_is_damaged_a_repair_does_what_it_planned_and_a_broker_starts(
    sort: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder: Folder = request.getfixturevalue(sort)
    rng, repairs = Random(9), 0
    for number in range(CASES):
        damage = draw(folder.files, rng)
        root = tmp_path / str(number)
        for path, content in damage.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
        plan = repaired(root, execute=False)
        assert contents(root) == damage.files, damage.text
        done = repaired(root)
        if damage.path == "__cluster_metadata-0":
            continue
        assert done.is_complete, (damage.text, done)
        assert plan.actions == done.actions, damage.text
        left = contents(root)
        for path, content in damage.files.items():
            if not path.endswith(REBUILT):
                assert _is_kept(path, content, left), (damage.text, path)
        started(root, folder)
        repairs += bool(done.actions)
    assert repairs > CASES // 4


def _is_kept(path: str, content: bytes, left: dict[str, bytes]) -> bool:
    """Whether a file, or its parts, are still there under its name or that of a copy."""
    copies = [data for name, data in left.items() if name.startswith(f"{path}.torn.")]
    now = left.get(path, b"")
    return content in (now, *copies) or any(now + copy == content for copy in copies)


def test_a_bridge_keeps_every_intact_batch() -> None:
    """Against a model: batches and offsets of a list, damaged at random."""
    for seed in range(60):
        rng, disk = Random(seed), MemoryDisk()
        path, found, end = "t-0/00000000000000000100.log", [], 100
        for _ in range(rng.randrange(1, 8)):
            count = rng.randrange(1, 5)
            records = [Record(0, 1, None, rng.randbytes(40)) for _ in range(count)]
            found.append(batches.build(records, base_offset=end, leader_epoch=0))
            end += count
        damaged = {one for one in range(len(found)) if rng.random() < 0.3}
        for one in damaged:
            content = bytearray(found[one])
            content[rng.randrange(21, len(content))] ^= 1 << rng.randrange(8)
            disk_content: Any = bytes(content)
            found[one] = disk_content
        disk.write(path, b"".join(found))
        done = bridge(disk, path, 100, end)
        new = disk.read(path)
        intact = [data for one, data in enumerate(found) if one not in damaged]
        assert all(data in new for data in intact)
        headers = batches.headers(new)
        assert [one.base_offset for one in headers[1:]] == [
            one.last_offset + 1 for one in headers[:-1]
        ]
        assert (headers[0].base_offset, headers[-1].last_offset + 1) == (100, end)
        assert done.end_offset == end
        assert done.copy is not None
        assert disk.read(done.copy) == b"".join(found)


@pytest.mark.parametrize("gap", [0, 4])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_all_batches_from_the_next_segment_on_are_left_out_at_once(count: int, gap: int) -> None:
    disk, path = MemoryDisk(), f"t-0/{0:020d}.log"
    whole = [
        batches.build([Record(0, 1, None, b"value")] * 10, base_offset=base, leader_epoch=0)
        for base in (0, *range(10 + gap, 10 + gap + 10 * count, 10))
    ]
    disk.write(path, b"".join(whole))
    done = bridge(disk, path, 0, 10 + gap)
    headers = batches.headers(disk.read(path))
    assert headers[-1].last_offset + 1 == done.end_offset == 10 + gap
    assert disk.read(path).startswith(whole[0])
    assert done.lost == ([(10, 9 + gap)] if gap else [])


@pytest.mark.parametrize("part", ["offset", "size", "epoch", "magic"])
@pytest.mark.parametrize("gap", [0, 10])
def test_a_batch_behind_a_gap_keeps_its_offset_or_is_lost(part: str, gap: int) -> None:
    """Compaction leaves gaps, so a damaged offset does not follow from the batch before."""
    disk, path = MemoryDisk(), f"t-0/{0:020d}.log"
    records = [Record(0, 1, None, b"value")] * 10
    bases = (0, 10 + gap, 20 + gap)
    built = [batches.build(records, base_offset=base, leader_epoch=0) for base in bases]
    content = bytearray(built[1])
    if part == "offset":
        content[:8] = (4).to_bytes(8, "big")
    else:
        content[{"size": 10, "epoch": 15, "magic": 16}[part]] ^= 4
    disk.write(path, built[0] + bytes(content) + built[2])
    done = bridge(disk, path, 0, 30 + gap)
    if gap and part == "offset":
        assert done.lost == [(10, 29)]
        headers = batches.headers(disk.read(path))
        assert [(header.base_offset, header.last_offset) for header in headers] == [
            (0, 9),
            (10, 29),
            (30, 39),
        ]
        assert disk.read(path).endswith(built[2])
    else:
        assert done.lost == []
        assert disk.read(path) == b"".join(built)


def _placed(*ranges: tuple[int, int]) -> list[bytes]:
    """Build a batch over each range of offsets, first and last."""
    return [
        batches.build(
            [Record(offset, 1, None, b"v%d" % offset) for offset in range(first, last + 1)],
            base_offset=first,
            leader_epoch=0,
        )
        for first, last in ranges
    ]


def _at_offset(batch: bytes, offset: int) -> bytes:
    """Damage the offset of a batch, which its checksum does not cover."""
    return offset.to_bytes(8, "big") + batch[8:]


@pytest.mark.parametrize("damaged_offset", [19, 3])
def test_a_batch_behind_a_gap_stays_when_the_offset_of_the_next_one_is_damaged(
    damaged_offset: int,
) -> None:
    """The first one fits nowhere below the second, so it is the second that is damaged."""
    disk, path = MemoryDisk(), f"t-0/{4:020d}.log"
    built = _placed((4, 15), (18, 22), (23, 23))
    disk.write(path, b"".join([*built[:2], _at_offset(built[2], damaged_offset)]))
    done = bridge(disk, path, 4, 24)
    assert (done.lost, disk.read(path)) == ([], b"".join(built))


def test_a_damaged_offset_beside_a_gap_loses_no_batch_before_it() -> None:
    disk, path = MemoryDisk(), f"t-0/{4:020d}.log"
    built = _placed((4, 15), (18, 22), (23, 23), (30, 31))
    disk.write(path, b"".join([*built[:2], _at_offset(built[2], 19), built[3]]))
    done = bridge(disk, path, 4, 32)
    filled = b"".join(empty_batches(23, 30))
    assert done.lost == [(23, 29)]
    assert disk.read(path) == b"".join([*built[:2], filled, built[3]])


def test_a_damaged_offset_that_passes_the_next_batch_loses_only_its_own() -> None:
    """The second one fits nowhere above the first, so it is the first that is damaged."""
    disk, path = MemoryDisk(), f"t-0/{0:020d}.log"
    built = _placed((0, 9), (12, 14), (20, 24), (25, 29))
    disk.write(path, b"".join([built[0], _at_offset(built[1], 28), *built[2:]]))
    done = bridge(disk, path, 0, 30)
    filled = b"".join(empty_batches(10, 20))
    assert done.lost == [(10, 19)]
    assert disk.read(path) == b"".join([built[0], filled, *built[2:]])


def test_a_batch_with_a_wrong_checksum_gives_no_offset_to_the_one_before() -> None:
    disk, path = MemoryDisk(), f"t-0/{0:020d}.log"
    built = _placed((0, 9), (18, 19), (30, 30))
    disk.write(path, b"".join([*built[:2], _at_offset(built[2], 16)[:-1] + b"?"]))
    done = bridge(disk, path, 0, 40)
    filled = b"".join(empty_batches(20, 40))
    assert (done.lost, disk.read(path)) == ([(20, 39)], b"".join([*built[:2], filled]))


def test_a_damaged_offset_among_gaps_moves_no_record() -> None:
    """Against a model: the damage fits a gap, or each batch has its offset or is lost."""
    lost_beside = 0
    for seed in range(400):
        rng, disk, path = Random(seed), MemoryDisk(), f"t-0/{0:020d}.log"
        ranges, end = [], rng.choice((0, 0, 3))
        for _ in range(rng.randrange(2, 6)):
            last = end + rng.randrange(4)
            ranges.append((end, last))
            end = last + 1 + rng.choice((0, 0, 1, 4, 20))
        built, one = _placed(*ranges), rng.randrange(len(ranges))
        first, last = ranges[one]
        moved = first ^ 1 << rng.randrange(8)
        low = ranges[one - 1][1] + 1 if one else 0
        high = ranges[one + 1][0] if one + 1 < len(ranges) else end
        content = b"".join([*built[:one], _at_offset(built[one], moved), *built[one + 1 :]])
        disk.write(path, content)
        done = bridge(disk, path, 0, end)
        if low <= moved <= high - (last - first + 1):
            continue  # only a digest shows it
        kept = {
            header.base_offset: disk.read(path)[position : position + header.size]
            for header, position in _positions(disk.read(path))
            if header.record_count
        }
        assert all(data in built for data in kept.values()), seed
        missing_ranges = [two for two in ranges if two[0] not in kept]
        assert all(
            any(begin <= two[0] and two[1] <= behind for begin, behind in done.lost)
            for two in missing_ranges
        ), seed
        beside = [ranges.index(two) for two in missing_ranges if two != ranges[one]]
        seen = [*ranges]
        seen[one] = moved, moved + last - first
        assert all(_is_ambiguous(seen, min(two, one), end) for two in beside), seed
        assert len(beside) <= 1, seed
        lost_beside += len(beside)
    assert lost_beside, "a neighbour is lost where nothing shows which one is damaged"


def _is_ambiguous(ranges: list[tuple[int, int]], number: int, end: int) -> bool:
    """Return whether a batch fits lower, and the one behind it higher."""
    (first, last), (next_first, next_last) = ranges[number : number + 2]
    low = ranges[number - 1][1] + 1 if number else 0
    high = ranges[number + 2][0] if number + 2 < len(ranges) else end
    return low + last - first < next_first and last + 1 + next_last - next_first < high


def _positions(data: bytes) -> Iterator[tuple[batches.BatchHeader, int]]:
    position = 0
    for header in batches.headers(data):
        yield header, position
        position += header.size


def test_of_two_batches_that_fit_elsewhere_neither_is_kept_at_a_wrong_offset() -> None:
    """The first one may have been lower, and the second one higher."""
    disk, path = MemoryDisk(), f"t-0/{0:020d}.log"
    built = _placed((0, 9), (18, 19), (20, 20))
    disk.write(path, b"".join([*built[:2], _at_offset(built[2], 16)]))
    done = bridge(disk, path, 0, 30)
    filled = b"".join(empty_batches(10, 30))
    assert (done.lost, disk.read(path)) == ([(10, 29)], built[0] + filled)


def _last_segment(*offsets: int | None) -> tuple[list[bytes], bytes]:
    """Build batches of one record from offset 0 on, and the segment with damage to the offsets.

    Args:
        offsets: the offset that each batch shows, or None for a batch with a wrong checksum.
    """
    built = _placed(*((offset, offset) for offset in range(len(offsets))))
    shown = [
        data[:-1] + b"?" if offset is None else _at_offset(data, offset)
        for data, offset in zip(built, offsets, strict=True)
    ]
    return built, b"".join(shown)


@pytest.mark.parametrize("high", [4, 1 << 24])
def test_a_write_over_the_end_of_a_batch_and_the_next_offset_loses_no_other_batch(
    high: int,
) -> None:
    """The offset is plausible, as nothing follows the last segment, and passes the one behind."""
    disk, path = MemoryDisk(), f"t-0/{0:020d}.log"
    built, data = _last_segment(0, None, None, high, 4)
    disk.write(path, data)
    done = bridge(disk, path, 0, 5, is_last=True, known_bytes=len(data))
    assert (done.lost, done.end_offset, done.is_end_lost) == ([(1, 3)], 5, False)
    assert disk.read(path) == b"".join([built[0], *empty_batches(1, 4), built[4]])


@pytest.mark.parametrize("offset", [2, 4, 1 << 24])
def test_an_offset_by_which_the_log_would_not_end_where_it_ended_is_damaged(offset: int) -> None:
    disk, path = MemoryDisk(), f"t-0/{0:020d}.log"
    built, data = _last_segment(0, None, None, offset)
    disk.write(path, data)
    done = bridge(disk, path, 0, 4, is_last=True, known_bytes=len(data))
    assert (done.lost, done.end_offset) == ([(1, 3)], 4)
    assert disk.read(path) == built[0] + b"".join(empty_batches(1, 4))


@pytest.mark.parametrize(
    ("shown", "kept"),
    [
        pytest.param((0, None, None, 2, 4), (0, 4), id="a low offset before the last batch"),
        pytest.param((0, None, None, 2, 4, 5), (0, 4, 5), id="a low offset before two batches"),
        pytest.param((0, None, None, 9, 4, 5), (0, 4, 5), id="a high offset before two batches"),
        pytest.param((0, None, None, 3, 9), (0, 3, 4), id="the last offset is damaged"),
        pytest.param((0, None, None, 3, 2, 5), (0, 3, 4, 5), id="the second offset is damaged"),
        pytest.param(
            (0, None, None, None, 4, 3, 6), (0, 4, 5, 6), id="the second offset fits behind damage"
        ),
    ],
)
def test_behind_damage_to_the_last_segment_two_of_three_show_an_offset(
    shown: tuple[int | None, ...], kept: tuple[int, ...]
) -> None:
    """The third is the batch behind the next, or the end of the log."""
    disk, path = MemoryDisk(), f"t-0/{0:020d}.log"
    built, data = _last_segment(*shown)
    disk.write(path, data)
    known_bytes = 0 if len(built) > 5 else len(data)
    done = bridge(disk, path, 0, len(built), is_last=True, known_bytes=known_bytes)
    left = {header.base_offset: at for header, at in _positions(disk.read(path))}
    for offset in kept:
        assert disk.read(path)[left[offset] :].startswith(built[offset])
    lost = [offset for first, last in done.lost for offset in range(first, last + 1)]
    assert sorted([*kept, *lost]) == [*range(len(built))]


def test_a_damaged_offset_at_the_known_end_is_recovered_where_no_other_fits() -> None:
    disk, path = MemoryDisk(), f"t-0/{0:020d}.log"
    built, data = _last_segment(0, None, 1 << 24)
    disk.write(path, data)
    done = bridge(disk, path, 0, 3, is_last=True, known_bytes=len(data))
    assert (done.lost, done.end_offset) == ([(1, 1)], 3)
    assert disk.read(path).endswith(built[2])


def test_an_offset_above_the_known_end_is_damaged_also_between_damaged_batches() -> None:
    disk, path = MemoryDisk(), f"t-0/{0:020d}.log"
    built, data = _last_segment(0, None, None, 1 << 24, None, 5)
    disk.write(path, data)
    done = bridge(disk, path, 0, 6, is_last=True, known_bytes=len(data))
    assert (done.lost, done.end_offset) == ([(1, 4)], 6)
    assert disk.read(path).endswith(built[5])


def test_a_batch_beyond_the_known_bytes_may_have_any_offset() -> None:
    disk, path = MemoryDisk(), f"t-0/{0:020d}.log"
    built = _placed((0, 0), (1, 99), (100, 100))
    disk.write(path, b"".join([built[0], built[1][:-1] + b"?", built[2]]))
    done = bridge(disk, path, 0, 1, is_last=True, known_bytes=len(built[0]))
    assert (done.lost, done.end_offset) == ([(1, 99)], 101)
    assert disk.read(path).endswith(built[2])


@pytest.mark.parametrize("is_damaged", [False, True])
def test_batches_that_a_killed_repair_moved_into_the_known_bytes_stay(is_damaged: bool) -> None:
    """The recovery point still has the bytes of the file before, and later batches follow."""
    disk, path = MemoryDisk(), f"t-0/{0:020d}.log"
    built, data = _last_segment(0, None if is_damaged else 1, 2, 3, 4)
    disk.write(path, data)
    done = bridge(disk, path, 0, 2, is_last=True, known_bytes=len(data) - 9)
    assert (done.lost, done.end_offset) == ([(1, 1)] if is_damaged else [], 5)
    assert disk.read(path).endswith(b"".join(built[2:]))


def test_a_misdirected_write_to_the_last_segment_loses_only_what_it_covers() -> None:
    """Against a model: each batch without a changed byte stays, and none gets another offset."""
    for seed in range(1_000):
        rng, disk, path = Random(seed), MemoryDisk(), f"t-0/{0:020d}.log"
        built, end = list[bytes](), 0
        for _ in range(rng.randrange(2, 7)):
            records = [Record(0, 1, None, rng.randbytes(24)) for _ in range(rng.randrange(1, 4))]
            built.append(batches.build(records, base_offset=end, leader_epoch=0))
            end += len(records)
        sound = b"".join(built)
        begins = [sum(map(len, built[:number])) for number in range(1, len(built))]
        begin = rng.choice(begins) + rng.randrange(9) - 64  # the write ends in an offset
        block = bytes(rng.choice((0, 0, 0, 1, rng.randrange(256))) for _ in range(64))
        first = max(begin, 0)
        data = sound[:first] + block[first - begin :] + sound[begin + 64 :]
        disk.write(path, data)
        done = bridge(disk, path, 0, end, is_last=True, known_bytes=len(data))
        new = disk.read(path)
        kept = {new[at : at + one.size] for one, at in _positions(new) if one.record_count}
        at = 0
        for batch in built:
            assert batch in kept or data[at : at + len(batch)] != batch, seed
            at += len(batch)
        assert kept <= {*built}, seed
        assert done.end_offset == end, seed


@pytest.mark.parametrize("known_by", ["both", "recovery-point", ".kafka_cleanshutdown"])
def test_the_end_of_a_log_shows_that_an_offset_in_its_last_segment_is_damaged(
    known_by: str, stopped: Folder, killed: Folder, write: Write
) -> None:
    """A misdirected write covers the end of a batch, and the offset of the next one in part."""
    folder = killed if known_by == "recovery-point" else stopped
    path, files = f"batches-0/{27:020d}.log", dict(folder.files)
    content = files[path]
    headers = batches.headers(content)
    assert [one.base_offset for one in headers] == [27, 30, 33]
    end = headers[0].size + 6  # of the write; it leaves the offset 0x67af001e
    files[path] = content[: end - 64] + bytes(62) + b"\x67\xaf" + content[end:]
    if known_by == ".kafka_cleanshutdown":
        files["batches-0/recovery-point"] = b""
    done = repaired(write(files))
    lost = [one.lost for one in done.actions if one.path == path]
    assert (lost, done.is_complete) == ([((27, 32),)], True)


@pytest.mark.parametrize("is_point_lost", [False, True])
def test_a_cut_at_a_batch_after_an_orderly_stop_shows_nothing_of_the_offsets_before(
    is_point_lost: bool, stopped: Folder, write: Write
) -> None:
    path, files = f"batches-0/{27:020d}.log", dict(stopped.files)
    headers = batches.headers(files[path])
    content = bytearray(files[path][: headers[0].size + headers[1].size])
    content[70] ^= 1
    files[path] = bytes(content)
    if is_point_lost:
        files["batches-0/recovery-point"] = b""
    done = repaired(root := write(files))
    lost = [one.lost for one in done.actions if one.path == path]
    assert (lost[:1], done.is_complete) == ([((27, 29), (33, 35))], True)
    assert bytes(content[headers[0].size :]) in (root / path).read_bytes()


@pytest.mark.parametrize(
    ("parts", "end", "lost"),
    [
        pytest.param("0?2016", None, [(1, 1), (3, 5)], id="no end is known"),
        pytest.param("0?201", 1, [(1, 1)], id="the recovery point is older"),
        pytest.param("0?201", 5, [(1, 1), (3, 4)], id="the end is known"),
    ],
)
def test_old_batches_written_behind_a_sound_one_do_not_overrule_it(
    parts: str, end: int | None, lost: list[tuple[int, int]]
) -> None:
    disk, path = MemoryDisk(), f"t-0/{0:020d}.log"
    built = _placed(*((offset, offset) for offset in range(7)))
    damaged = built[1][:-1] + b"?"
    data = b"".join(damaged if one == "?" else built[int(one)] for one in parts)
    disk.write(path, data)
    known_bytes = {None: 0, 1: len(built[0])}.get(end, len(data))
    done = bridge(disk, path, 0, end, is_last=True, known_bytes=known_bytes)
    left = {header.base_offset: at for header, at in _positions(disk.read(path))}
    assert disk.read(path)[left[2] :].startswith(built[2])
    assert done.lost == lost


@pytest.mark.parametrize(
    ("parts", "kept", "lost"),
    [
        pytest.param("01231", "0123", [], id="an old one at the end"),
        pytest.param("01214", "0124", [(3, 3)], id="an old one in the place of another"),
        pytest.param("0?224", "024", [(1, 1), (3, 3)], id="an old one behind damage"),
        pytest.param("03234", "0234", [(1, 1)], id="a later one in the place of another"),
    ],
)
def test_a_batch_that_is_in_the_file_twice_gets_no_other_offset(
    parts: str, kept: str, lost: list[tuple[int, int]]
) -> None:
    disk, path = MemoryDisk(), f"t-0/{0:020d}.log"
    built = _placed(*((offset, offset) for offset in range(5)))
    damaged = built[1][:-1] + b"?"
    data = b"".join(damaged if one == "?" else built[int(one)] for one in parts)
    disk.write(path, data)
    end = int(kept[-1]) + 1
    done = bridge(disk, path, 0, end, is_last=True, known_bytes=len(built[0]) * end)
    new = disk.read(path)
    found = [new[at : at + one.size] for one, at in _positions(new) if one.record_count]
    assert (found, done.lost) == ([built[int(one)] for one in kept], lost)


def test_an_old_wide_batch_is_not_moved_behind_damage() -> None:
    disk, path = MemoryDisk(), f"t-0/{0:020d}.log"
    first, wide, last = _placed((0, 0), (1, 3), (4, 4))
    data = first + wide[:-1] + b"?" + last + first + wide
    disk.write(path, data)
    done = bridge(disk, path, 0, 5, is_last=True, known_bytes=len(data))
    assert (done.lost, done.end_offset) == ([(1, 3)], 5)
    assert disk.read(path) == b"".join([first, *empty_batches(1, 4), last])


PRICES = f"prices-0/{15:020d}.log"  # compacted; of its offsets 15 to 29 it has PRICES_KEPT
CATALOGUE_LOG = f"__cluster_metadata-0/{0:020d}.log"
PRICES_KEPT = [15, 18, 21, 24, 27, 29]


def offsets_of(root: Path, folder: str) -> list[int]:
    """Return the offsets of the batches with records in a folder of a log."""
    paths = sorted((root / folder).glob("*.log"))
    headers = [one for path in paths for one in batches.headers(path.read_bytes())]
    return [one.base_offset for one in headers if one.record_count]


def without_last_prices(*, is_point_lost: bool) -> dict[str, bytes]:
    """Return a folder that lacks the last segment of `prices-0`."""
    files = dict(build_compacted().files)
    del files[f"prices-0/{30:020d}.log"]
    if is_point_lost:
        files["prices-0/recovery-point"] = bytes(len(files["prices-0/recovery-point"]))
    return files


@pytest.mark.parametrize("is_point_lost", [False, True])
def test_a_killed_repair_of_a_segment_with_gaps_moves_no_record(
    is_point_lost: bool, write: Write
) -> None:
    files = without_last_prices(is_point_lost=is_point_lost)
    before = offsets_of(write(files), "prices-0")
    for disk in killed_and_repeated(files):
        paths = sorted(one for one in disk.list("prices-0") if one.endswith(".log"))
        headers = [one for path in paths for one in batches.headers(disk.read(f"prices-0/{path}"))]
        assert [one.base_offset for one in headers if one.record_count] == before


@pytest.mark.parametrize("point", ["sound", "empty", "missing"])
@pytest.mark.parametrize("damaged", ["nothing", PRICES, CATALOGUE_LOG, "metadata"])
def test_a_killed_repair_leaves_the_end_of_a_log_that_was_closed_in_order(
    damaged: str, point: str
) -> None:
    """Only the mark of the orderly stop has the end of a log that lost its recovery point."""
    files = without_last_prices(is_point_lost=point == "empty")
    if point == "missing":
        del files["prices-0/recovery-point"]
    if damaged == "metadata":
        files["__consumer_offsets-0/partition.metadata"] = b"?"
    elif damaged != "nothing":
        files[damaged] = first_batch_damaged(files[damaged])
    for disk in killed_and_repeated(files):
        assert end_of(disk, "prices-0") == 40
        assert check_disk(view_of(disk), Path(), lambda _: None).is_clean


@pytest.mark.parametrize("path", ["batches-0/", "orders-0/", "orders-1/"])
def test_a_killed_repair_of_a_log_leaves_the_ends_of_the_others(path: str, stopped: Folder) -> None:
    last, files = f"orders-1/{33:020d}.log", dict(stopped.files)
    del files[last]
    files["orders-1/recovery-point"] = bytes(len(files["orders-1/recovery-point"]))
    path = min(name for name in files if name.startswith(path) and name.endswith(".log"))
    files[path] = first_batch_damaged(files[path])
    sound = disk_of(stopped.files)
    ends = {
        folder: end_of(sound, folder)
        for folder in ("batches-0", "orders-0", "orders-1", "__cluster_metadata-0")
    }
    assert ends["orders-1"] == 35
    for disk in killed_and_repeated(files):
        assert {folder: end_of(disk, folder) for folder in ends} == ends


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_log_that_lost_its_point_and_last_segment_continues_in_a_segment_at_its_end(
    is_checked: bool, write: Write
) -> None:
    """Else a repair could not tell the gaps of compaction from records that are lost."""
    files = without_last_prices(is_point_lost=True)
    if not is_checked:
        files = {name: data for name, data in files.items() if not name.endswith(".checksums")}
    before = offsets_of(write(files), "prices-0")
    done = repaired(root := write(files))
    assert [one.lost for one in done.actions if one.path == PRICES] == [((30, 39),)]
    assert offsets_of(root, "prices-0") == before
    assert (root / f"prices-0/{40:020d}.log").read_bytes() == b""
    assert check(root, lambda _: None).is_clean


def test_a_log_of_deleted_records_keeps_a_segment_at_its_end_when_a_repair_is_killed(
    stopped: Folder,
) -> None:
    """An opening accepts a claim to a missing segment where all records before it are deleted."""
    path, files = f"batches-0/{27:020d}.log", dict(stopped.files)
    end = batches.headers(files[path])[-1].last_offset + 1
    files[path] = first_batch_damaged(files[path])
    files["batches-0/recovery-point"] = bytes(len(files["batches-0/recovery-point"]))
    disk = disk_of(files)
    kept = dict(parsed_offsets(read_file(disk, START_OFFSETS).text))
    rows = [f"{topic} {index} {offset}\n" for (topic, index), offset in kept.items()]
    text = "".join(["0\n", f"{len(rows) + 1}\n", *rows, f"batches 0 {end}\n"])
    write_file(disk, START_OFFSETS, text)
    files = {name: disk.read(name) for name in files}
    for disk in killed_and_repeated(files):
        assert end_of(disk, "batches-0") == end
        base = read_claim(disk, "batches-0")[1].base_offset
        assert base in [UNKNOWN, *segment_bases(disk, "batches-0")]


def test_a_log_that_lost_its_first_segment_has_no_start_offset_after_the_repair(
    stopped: Folder, write: Write
) -> None:
    """The mark of the stop had the start of the segment that is lost."""
    first, second = sorted(
        name for name in stopped.files if name.startswith("orders-1/") and name.endswith(".log")
    )[:2]
    files = {name: data for name, data in stopped.files.items() if name != first}
    root = write(files)
    assert repaired(root).is_complete
    base = int(second.removeprefix("orders-1/").removesuffix(".log"))
    assert started(root, stopped)["bounds", "orders-1"] == (base, 35)
    marked = read_clean_mark(OsDisk(root)) or {}
    assert "orders-0" in marked
    assert "orders-1" not in marked


def former_starts(files: Mapping[str, bytes]) -> bytes:
    """Return the file with start offsets as it was before `events` got one."""
    text = read_file(disk_of(files), START_OFFSETS).text
    rows = [row for row in text.splitlines()[2:] if not row.startswith("events ")]
    lines = ["0", str(len(rows)), *rows, ""]
    return sealed(START_OFFSETS, "\n".join(lines))


@pytest.mark.parametrize("state", ["damaged", "missing", "former"])
@pytest.mark.parametrize("other", ["nothing", NAME, PROPERTIES, CATALOGUE_LOG])
def test_start_offsets_that_only_the_mark_has_are_written_before_a_line_of_it_is_removed(
    other: str, state: str, stopped: Folder
) -> None:
    """After a kill between the two, or a lost write of the file, deleted records came back."""
    files, starts = dict(stopped.files), stopped.files[START_OFFSETS]
    if state == "missing":
        del files[START_OFFSETS]
    else:
        files[START_OFFSETS] = b"?" + starts[1:] if state == "damaged" else former_starts(files)
    if other == CATALOGUE_LOG:
        files[other] = first_batch_damaged(files[other])
    elif other != "nothing":
        files[other] = b"?" + files[other][1:]
    path = max(name for name in files if name.startswith("events-0/") and name.endswith("0.log"))
    files[path] = first_batch_damaged(files[path])
    disk = disk_of(files)
    done = repair_disk(disk, partial(view_of, disk), Path(), lambda _: None)
    assert done.actions[0].path == START_OFFSETS
    assert path in [one.path for one in done.actions]
    assert done.is_complete
    assert disk.read(START_OFFSETS) == starts


def test_a_repair_takes_the_start_of_a_former_topic_from_no_log(stopped: Folder) -> None:
    """The disk lost the write that removed it, and the one with the start of `events`."""
    disk = disk_of(stopped.files)
    write_file(disk, START_OFFSETS, "0\n1\norders 0 100\n")
    done = repair_disk(disk, partial(view_of, disk), Path(), lambda _: None)
    assert ([one.path for one in done.actions], done.is_complete) == ([START_OFFSETS], True)
    assert disk.read(START_OFFSETS) == stopped.files[START_OFFSETS]


def test_no_log_is_repaired_while_the_start_offsets_cannot_be_read(
    stopped: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = dict(stopped.files)
    path = max(name for name in files if name.startswith("events-0/") and name.endswith("0.log"))
    files[path] = first_batch_damaged(files[path])
    disk = disk_of(files)

    def refusing(read: Callable[..., bytes]) -> Callable[..., bytes]:
        def refused(self: Disk, name: str, *where: int) -> bytes:
            if name == START_OFFSETS:
                raise OSError(errno.EIO, "Input/output error", name)
            return read(self, name, *where)

        return refused

    view = partial(view_of, disk)
    seen = view()  # reads all files
    monkeypatch.setattr(OverlayDisk, "read", refusing(OverlayDisk.read))
    monkeypatch.setattr(MemoryDisk, "read", refusing(MemoryDisk.read))
    with pytest.raises(OSError, match=START_OFFSETS):
        repair_disk(disk, lambda: seen, Path(), lambda _: None)
    monkeypatch.undo()
    assert {name: disk.read(name) for name in files} == files


def test_a_repair_keeps_a_copy_of_the_checkpoint_that_it_replaces(stopped: Folder) -> None:
    """The catalogue may end where its checkpoint does."""
    files = dict(stopped.files)
    disk = disk_of(files)
    for _ in range(2):
        before = {one: disk.read(f"{CATALOGUE}/{one}") for one in disk.list(CATALOGUE)}
        restore_topics(disk, 1, WallMs(0))
    name = max(one for one in before if one.endswith(".checkpoint"))
    assert disk.read(f"{CATALOGUE}/{name}.torn.0") == before[name]
    assert read_catalogue(disk, 1).topics.keys() == read_catalogue(disk_of(files), 1).topics.keys()


def test_a_repair_names_the_logs_whose_start_offsets_are_lost(stopped: Folder) -> None:
    """A repair before has removed the line of a log from the mark of the stop."""
    files = dict(stopped.files)
    path = max(name for name in files if name.startswith("events-0/") and name.endswith("0.log"))
    files[path] = first_batch_damaged(files[path])
    disk = disk_of(files)
    assert repair_disk(disk, partial(view_of, disk), Path(), lambda _: None).is_complete
    disk.write(START_OFFSETS, b"?" + disk.read(START_OFFSETS)[1:])
    done = repair_disk(disk, partial(view_of, disk), Path(), lambda _: None)
    assert [one.path for one in done.actions] == [START_OFFSETS]
    assert done.actions[0].text.startswith(
        "write the start offsets of the last orderly stop; logs that it does not name begin with "
        "their first segments, and deleted records of them come back: events-0; kept as "
    )


@pytest.mark.parametrize("newer", [CLEAN_MARK, START_OFFSETS])
def test_a_folder_that_a_newer_release_closed_is_not_repaired(
    newer: str, stopped: Folder, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, disk = dict(stopped.files), disk_of(stopped.files)
    text = read_file(disk, newer).text
    with monkeypatch.context() as patch:
        patch.setattr("headrace.log.small_files._newest", lambda _: 9)
        files[newer] = sealed(newer, text)
    path = f"batches-0/{27:020d}.log"
    files[path] = first_batch_damaged(files[path])
    root = write(files)
    with pytest.raises(NewerFormatError, match="upgrade Headrace"):
        repaired(root)
    assert contents(root) == files


def first_batch_damaged(data: bytes) -> bytes:
    content = bytearray(data)
    content[batches.headers(content)[0].size - 1] ^= 1
    return bytes(content)


def end_of(disk: Disk, folder: str) -> int:
    """Return the end offset by the batches of a log; the base of a last segment without any."""
    base = segment_bases(disk, folder)[-1]
    headers = batches.headers(disk.read(f"{folder}/{base:020d}.log"))
    return headers[-1].last_offset + 1 if headers else base


@pytest.mark.parametrize("is_point_lost", [False, True])
@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_segment_with_gaps_keeps_its_offsets_where_the_last_segment_is_lost(
    is_damaged: bool, is_stopped: bool, is_point_lost: bool, write: Write
) -> None:
    """Without the recovery point, the checksums show that segments followed."""
    files = without_last_prices(is_point_lost=is_point_lost)
    before = offsets_of(write(files), "prices-0")
    assert before[-len(PRICES_KEPT) :] == PRICES_KEPT
    if is_damaged:
        first, second = batches.headers(files[PRICES])[:2]
        at = first.size + second.size - 1
        damaged = bytearray(files[PRICES])
        damaged[at] ^= 1
        files[PRICES] = bytes(damaged)
        before.remove(18)
    if not is_stopped:
        del files[".kafka_cleanshutdown"]
    done = repaired(root := write(files))
    assert done.is_complete
    assert offsets_of(root, "prices-0") == before
    assert check(root, lambda _: None).is_clean


@pytest.mark.parametrize("steps", range(7))
def test_a_cut_of_a_segment_with_gaps_that_is_killed_moves_no_record(
    steps: int, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = dict(build_compacted().files)
    position = sum(one.size for one in batches.headers(files[PRICES])[:4])
    root = write(files)
    before, left = offsets_of(root, "prices-0"), [steps]

    def counted(step: Callable[..., Any], *args: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.EIO, "killed")
        return step(*args)

    for name in ("set_aside", "remove_index", "_claim", "_truncate"):
        step = getattr(log_repair, name)
        monkeypatch.setattr(log_repair, name, partial(counted, step))
    with suppress(OSError):
        log_repair.cut_log(OsDisk(root), "prices-0", 15, position)
    monkeypatch.undo()
    assert repaired(root).is_complete
    assert {*offsets_of(root, "prices-0")} <= {*before}
    assert {*range(25)}.intersection(before) <= {*offsets_of(root, "prices-0")}


def test_a_damaged_offset_that_fits_a_gap_is_named(write: Write) -> None:
    """No batch by itself is damaged; only the digest of the block is wrong."""
    folder = build_compacted()
    path = f"prices-0/{0:020d}.log"
    content = bytearray(folder.files[path])
    first, second = batches.headers(content)[:2]
    assert (first.last_offset, second.base_offset) == (0, 3)
    content[first.size : first.size + 8] = (2).to_bytes(8, "big")
    root = write({**folder.files, path: bytes(content)})
    errors = [one for one in check(root, lambda _: None).findings if one.grade == "error"]
    assert "offsets or sizes of batches are not those that were written" in str(errors[0])
    (action,) = (one for one in repaired(root).actions if one.path == path)
    assert "an offset in the 256 KiB from byte 0 on is damaged" in str(action)
    assert (root / path).read_bytes() == content


def older_claim(point: bytes) -> bytes:
    """Return the recovery point of `orders-0` without the slot that was written last."""
    slots = [point[:512] + bytes(len(point) - 512), bytes(512) + point[512:]]
    claims = []
    for slot in slots:
        disk = MemoryDisk()
        disk.write("orders-0/recovery-point", slot)
        claims.append(read_claim(disk, "orders-0"))
    assert min(claims)[1].base_offset < max(claims)[1].base_offset
    return slots[claims.index(min(claims))]


@pytest.mark.parametrize("sort", ["stopped", "killed", "older claim", "no claim"])
@pytest.mark.parametrize("base", [25, 33])
@pytest.mark.parametrize(("byte", "bit"), [(6, 8), (4, 1), (7, 1)])
def test_a_damaged_offset_at_the_end_is_recovered(
    base: int, sort: str, byte: int, bit: int, request: pytest.FixtureRequest, write: Write
) -> None:
    """Also where a power cut took the latest claim, which a broker may have made before."""
    folder: Folder = request.getfixturevalue("stopped" if sort == "stopped" else "killed")
    path, point = f"orders-0/{base:020d}.log", "orders-0/recovery-point"
    files = dict(folder.files)
    last = batches.headers(files[path])[-1]
    content = bytearray(files[path])
    content[len(content) - last.size + byte] ^= bit
    files[path] = bytes(content)
    if sort == "older claim":
        files[point] = older_claim(files[point])
    elif sort == "no claim":
        files[point] = b""
    root = write(files)
    done = repaired(root)
    assert ([one.path for one in done.actions if one.path != point], done.is_complete) == (
        [path],
        True,
    )
    assert contents(root)[path] == folder.files[path]


def test_a_missing_segment_before_the_last_is_filled_whatever_segment_is_claimed(
    write: Write,
) -> None:
    files, point = dict(build_compacted().files), "prices-0/recovery-point"
    del files[PRICES]
    del files[".kafka_cleanshutdown"]
    disk = MemoryDisk()
    disk.write(point, files[point])
    claims = RecoveryPoint(disk, "prices-0")
    claims.replace(claims.claim._replace(base_offset=15, size=0, end_offset=15))
    files[point] = disk.read(point)
    before = offsets_of(root := write(files), "prices-0")
    done = repaired(root)
    assert done.is_complete
    assert offsets_of(root, "prices-0") == before
    assert check(root, lambda _: None).is_clean


@pytest.mark.parametrize("has_batch", [False, True])
def test_a_missing_last_segment_moves_no_record_of_a_compacted_one_before_it(
    *, has_batch: bool, write: Write
) -> None:
    """Nothing was synced since it began, so that only its first batch may claim it."""
    files = dict(build_compacted().files)
    del files[".kafka_cleanshutdown"]
    disk = OsDisk(root := write(files))
    before = offsets_of(root, "prices-0")
    log = SegmentedLog(disk, "prices-0", has_point=True)
    log.roll()
    *_, sealed_one, last = log.segments()
    whole = disk.read(path := f"prices-0/{sealed_one.base_offset:020d}.log")
    sizes = [one.size for one in batches.headers(whole)]
    disk.write(f"{path}.cleaned", whole[: sizes[0]] + whole[sizes[0] + sizes[1] :])
    log.replace([sealed_one.base_offset], f"{path}.cleaned")
    if has_batch:
        data = batches.build([Record(0, 0, b"k", b"v")])
        log.append(bytearray(data), batches.headers(data))
    log.close()
    kept = offsets_of(root, "prices-0")
    assert len(kept) == len(before) - 1 + has_batch
    disk.remove(f"prices-0/{last.base_offset:020d}.log")
    done = repaired(root)
    assert done.is_complete
    assert [one.lost for one in done.actions] == [((last.base_offset, None),)]
    assert offsets_of(root, "prices-0") == (kept[:-1] if has_batch else kept)
    again = SegmentedLog(disk, "prices-0", has_point=True)
    assert again.end_offset == last.base_offset
    again.close()


def test_more_damaged_segments_than_any_bound_of_rounds(
    stopped: Folder, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of each folder is repaired in a round, and the file is damaged in all of them."""
    paths = [f"orders-0/{base:020d}.log" for base in (0, 5, 10, 15, 20, 25, 33)]
    files = dict(stopped.files)
    for path in paths:
        files[path] = files[path][:-1] + b"?"
    root = write(files)
    rounds = 0

    def counted(*args: Any) -> Any:
        nonlocal rounds
        rounds += 1
        return check_disk(*args)

    monkeypatch.setattr("headrace.folder.repair.check_disk", counted)
    done = repaired(root)
    assert done.is_complete
    assert {one.path for one in done.actions} == {*paths}
    assert rounds > len(paths)


def test_a_repair_that_changes_nothing_ends(
    stopped: Folder, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = {**stopped.files, SEGMENT: stopped.files[SEGMENT][:-1] + b"?"}
    root = write(damaged)
    rounds: list[Finding] = []

    def idle(self: Any, finding: Finding) -> list[Action]:
        keep_copy(self._disk, finding.path, 0, len(rounds))  # a note more each time
        rounds.append(finding)
        return [Action(finding.path, "nothing")]

    monkeypatch.setattr("headrace.folder.repair._Mechanic.act", idle)
    done = repaired(root)
    assert not done.is_complete
    assert len(rounds) == len(set(rounds)) < 10


def test_batches_behind_the_recovery_point_of_the_last_segment_stay() -> None:
    disk, path = MemoryDisk(), f"t-0/{0:020d}.log"
    whole = [
        batches.build([Record(0, 1, None, b"v" * 40)], base_offset=offset, leader_epoch=0)
        for offset in range(3)
    ]
    disk.write(path, whole[0][:-1] + b"?" + whole[1] + whole[2])
    done = bridge(disk, path, 0, 2, is_last=True)
    assert (done.lost, done.end_offset, done.is_end_lost) == ([(0, 0)], 3, False)
    disk.write(path, whole[0])
    done = bridge(disk, path, 0, 2, is_last=True)
    assert (done.lost, done.end_offset, done.is_end_lost) == ([(1, 1)], 2, True)


@pytest.mark.parametrize("half_made", [b"half of a copy", b""])
def test_a_repair_keeps_the_copy_that_a_killed_compaction_began(
    half_made: bytes, stopped: Folder, write: Write
) -> None:
    """It may have records that are damaged in the segment by now."""
    damaged = stopped.files[SEGMENT][:500] + b"\xff\xff" + stopped.files[SEGMENT][502:]
    root = write({**stopped.files, SEGMENT: damaged, f"{SEGMENT}.cleaned": half_made})
    (action,) = repaired(root).actions
    assert contents(root)[f"{SEGMENT}.cleaned.torn.0"] == half_made
    assert contents(root)[f"{SEGMENT}.torn.0"] == damaged
    assert f"; kept as {SEGMENT}.cleaned.torn.0, {SEGMENT}.torn.0" in str(action)
    assert f"{SEGMENT}.cleaned" not in contents(root)
    started(root, stopped)


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("count", [2, 3])
def test_a_batch_never_gets_an_offset_of_the_damaged_batch_before(
    count: int, is_last: bool
) -> None:
    """A lost write over two batches leaves the second whole, with the offset of the first."""
    disk, path = MemoryDisk(), f"t-0/{0:020d}.log"
    whole = [
        batches.build([Record(0, 1, None, b"v%d" % offset)], base_offset=offset, leader_epoch=0)
        for offset in range(count)
    ]
    disk.write(path, whole[0][:-1] + b"?" + bytes(8) + whole[1][8:] + b"".join(whole[2:]))
    done = bridge(disk, path, 0, count, is_last=is_last)
    kept = disk.read(path)[batches.read_header(disk.read(path)).size :]
    # Between a damaged batch and the next intact one there is a single offset for the second.
    if is_last and count == 2:
        assert (done.lost, kept) == ([(0, 1)], b"")
    else:
        assert (done.lost, kept) == ([(0, 0)], b"".join(whole[1:]))


class DyingDisk(MemoryDisk):
    """A disk whose process is killed before the change numbered `left`, counted from 0."""

    left: int | None = None

    def check(self, operation: str) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.EIO, f"killed before {operation}")
        super().check(operation)


def test_a_bridge_killed_at_any_point_leaves_every_intact_batch_in_its_place() -> None:
    path = f"t-0/{0:020d}.log"
    whole = [
        batches.build([Record(0, 1, None, b"v" * 40)], base_offset=offset, leader_epoch=0)
        for offset in range(3)
    ]
    for left in range(30):
        disk = DyingDisk()
        disk.write(path, whole[0] + whole[1][:-1] + b"?" + whole[2])
        disk.left = left
        try:
            bridge(disk, path, 0, 3)
        except OSError:
            disk.left = None
            data = disk.read(path)
            assert data.startswith(whole[0])
            assert data.endswith(whole[2])
            continue
        assert left > 5, "the bridge was killed at several points"
        return
    pytest.fail("the bridge makes fewer changes")


def test_empty_batches_cover_more_offsets_than_one_can_hold() -> None:
    headers = [batches.read_header(one) for one in empty_batches(5, 5 + 3 * (1 << 31))]
    assert headers[0].base_offset == 5
    assert headers[-1].last_offset == 4 + 3 * (1 << 31)


def test_segments_that_compaction_replaced_are_set_aside_by_a_new_snapshot() -> None:
    """They may have the snapshot that is lost, and opening a log removes what was replaced."""
    disk, share = MemoryDisk(), ShareKey("workers", UUID(int=7), 0)
    shard = ShareShard(cast(Any, None))
    codec = ShareJournal(shard)
    begun = Started(share, 0, 0)
    finished = Settled(share, Span(2, 3), State.ACKNOWLEDGED, 1)
    shard.apply_all([begun, finished])
    codec.records([begun], WallMs(1))
    with closing(SegmentedLog(disk, "state")) as log:
        updates = encoded(codec.records([finished], WallMs(1)))
        data, header = batches.build_with_header([Record(0, 1, *one) for one in updates])
        log.append(data, [header])
    replaced = f"state/{0:020d}.log.deleted"
    file = disk.open(replaced)
    file.append(b"snapshot")
    file.close()
    restored, copies = restore_share_partitions(disk, "state", 0, WallMs(2))
    assert (restored, copies) == ([share], [f"{replaced}.torn.0"])
    assert disk.read(copies[0], 99) == b"snapshot"
