"""Repairs of damaged data folders, judged by what clients read before and after them.

The rules: a repair is complete, and does what its plan says; nothing that clients read before it is
missing afterwards unless the repair names it; every batch whose bytes are intact is served; every
topic is there, with its id and its partitions; and no partition is created below an offset that was
used before.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from tests.campaign.account import Account
from tests.campaign.damage import Damage, draw
from tests.campaign.data import Folder, disk_of
from tests.campaign.judge import observe

from headrace.folder.check import check_disk
from headrace.folder.overlay import OverlayDisk
from headrace.folder.repair import Action, Repair, repair_disk
from headrace.wire import batches

CATALOGUE = "__cluster_metadata-0"
Files = Mapping[str, bytes]


def drawn(files: Files, rng: Random) -> tuple[str, Files]:
    """Return one to three damages, in words and as files.

    Half of them are to logs, and half of those to logs of topics.
    """
    texts = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        damage = _of_logs(files, rng) if rng.random() < 0.5 else draw(files, rng)
        files = damage.files
        texts.append(damage.text)
    return ", ".join(texts), files


def _of_logs(files: Files, rng: Random) -> Damage:
    excluded = "__" if rng.random() < 0.5 else "-"
    logs = {
        path: data
        for path, data in files.items()
        if path.endswith(".log") and not path.startswith(excluded)
    }
    if not logs:
        return draw(files, rng)
    damage = draw(logs, rng)
    folder = damage.path if damage.text.endswith("delete the folder") else None
    others = {
        path: data
        for path, data in files.items()
        if path not in logs and path.rpartition("/")[0] != folder
    }
    return Damage(
        damage.text, damage.path, {**others, **damage.files},
        damage.first_byte, damage.end_byte, damage.paths, damage.keeps_bytes,
    )  # fmt: skip


def judged(folder: Folder, sound: Account, files: Files) -> tuple[Repair, list[str]]:
    """Repair damaged files; return the repair, and a line for each rule that it breaks."""
    before = observe(disk_of(files), folder).account
    disk = OverlayDisk.of_contents(files)
    done = repair_disk(disk, lambda: disk, Path(), lambda _: None)
    if not done.is_complete:
        is_catalogue_lost = not any(path.startswith(f"{CATALOGUE}/") for path in files)
        return done, [] if is_catalogue_lost else [f"not complete: {done.left}"]
    after = observe(disk_of(disk.contents), folder)
    if after.account is None:
        return done, [f"the broker does not start: {after.refusal} {after.fault}"]
    report = check_disk(OverlayDisk.of_contents(disk.contents), Path(), lambda _: None)
    lines = [] if report.is_clean else [f"check: {report.findings}"]
    lines += missing(folder, sound, before, after.account, files, done.actions)
    lines += reused(folder, sound, after.account, files)
    for key, value in sound.items():
        if key[0] == "topic" and after.account.get(key) != value:
            lines.append(f"{key}: {value} became {after.account.get(key)}")
    return done, lines


def missing(
    folder: Folder, sound: Account, before: Account | None, after: Account,
    files: Files, actions: list[Action],
) -> Iterator[str]:  # fmt: skip
    """Yield what is not served although it is intact, or was readable and is not named."""
    for (section, name), rows in sound.items():
        if section != "log":
            continue
        served = after.get((section, name))
        if not isinstance(served, list):
            yield f"{name} is not served: {served}"
            continue
        readable = before.get((section, name)) if before is not None else None
        intact = _intact_offsets(folder.files, files, name)
        for row in rows:
            if row in served:
                continue
            is_named = _is_named(name, row, actions)
            if row[:2] in intact and not (is_named and name.startswith("__")):
                yield f"{name}: the intact batch {row[:2]} is not served"
            elif isinstance(readable, list) and row in readable and not is_named:
                yield f"{name}: the batch {row[:2]} was readable, and is lost without a name"


def _intact_offsets(original: Files, files: Files, name: str) -> set[tuple[int, int]]:
    """Return the offsets of the batches whose bytes still stand in their segment."""
    intact = set()
    for path, data in original.items():
        if path.rpartition("/")[0] != name or not path.endswith(".log"):
            continue
        position, damaged = 0, files.get(path, b"")
        for header in batches.headers(data):
            if data[position : position + header.size] in damaged:
                intact.add((header.base_offset, header.last_offset))
            position += header.size
    return intact


def _is_named(name: str, row: tuple[Any, ...], actions: list[Action]) -> bool:
    ranges = [
        lost for action in actions if action.path.partition("/")[0] == name for lost in action.lost
    ]
    return any(first <= row[0] and (last is None or row[1] <= last) for first, last in ranges)


def reused(folder: Folder, sound: Account, after: Account, files: Files) -> Iterator[str]:
    """Yield the partitions without a log that are created below an offset that was used."""
    committed: dict[str, int] = {}
    mark = folder.files.get(".kafka_cleanshutdown")
    for (section, _), rows in after.items():
        for row in rows if section == "offsets" and isinstance(rows, list) else ():
            name = f"{row[0]}-{row[1]}"
            committed[name] = max(committed.get(name, 0), row[2])
    for (section, name), bounds in sound.items():
        if section != "bounds" or any(path.startswith(f"{name}/") for path in files):
            continue
        is_end_known = mark is not None and files.get(".kafka_cleanshutdown") == mark
        end = bounds[1] if is_end_known else committed.get(name, 0)
        if after[section, name][1] < end:
            yield f"{name} ends at {after[section, name]}, below {end}"
