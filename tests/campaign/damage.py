"""Damages to the files of a data folder, drawn by a seeded generator.

Kinds of files are drawn evenly, then a file of the kind, then what happens to it: so a small file
is damaged as often as the segments of all logs together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

Files = Mapping[str, bytes]

_BLOCKS = (512, 4096)


@dataclass(frozen=True, slots=True)
class Damage:
    """One damage: what was done, to which file or folder, and what the files are then.

    `first_byte` and `end_byte` bound the bytes of `path` that are not as they were; for a file that
    is gone or cut off, up to its old end. `paths` are all files touched.
    """

    text: str
    path: str
    files: Files
    first_byte: int
    end_byte: int
    paths: tuple[str, ...]
    keeps_bytes: bool  # what follows the damage in the file is still there


def kind_of(path: str) -> str:
    """The kind of a file: its suffix, with the journals apart from the partitions of topics."""
    folder, _, name = path.rpartition("/")
    suffix = name[name.rfind(".") :] if "." in name else name
    if not folder:
        return name
    journals = ("__cluster_metadata-", "__consumer_offsets-", "__share_group_state-")
    owner = next((one.strip("_-") for one in journals if folder.startswith(one)), "partition")
    return f"{owner} {suffix}"


def draw(files: Files, rng: Random) -> Damage:
    """One damage to one file, or to a whole folder."""
    kinds: dict[str, list[str]] = {}
    for path in sorted(files):
        kinds.setdefault(kind_of(path), []).append(path)
    kinds["folder"] = sorted({path.rpartition("/")[0] for path in files if "/" in path})
    kind = rng.choice(sorted(kinds))
    path = rng.choice(kinds[kind])
    if kind == "folder":
        return _without_folder(files, path)
    how = rng.choice(("flip", "flip", "flip", "truncate", "zero", "delete", "empty", "append"))
    others = [one for one in kinds[kind] if one != path and files[one] != files[path]]
    if others and rng.random() < 0.15:
        how = rng.choice(("swap", "overwrite"))
        return exchanged(files, path, rng.choice(others), both=how == "swap")
    if how == "delete" or not files[path]:
        return _without(files, path)
    return _damaged(files, path, how, rng)


def _damaged(files: Files, path: str, how: str, rng: Random) -> Damage:
    data = files[path]
    size = len(data)
    if how == "flip":
        at, bit = rng.randrange(size), rng.randrange(8)
        new = bytearray(data)
        new[at] ^= 1 << bit
        return _changed(files, path, bytes(new), f"flip bit {bit} of byte {at}", at, at + 1)
    if how == "truncate" and size > 1:
        at = rng.randrange(1, size)
        return _changed(files, path, data[:at], f"truncate to {at} of {size} bytes", at, size)
    if how == "append":
        count = rng.choice((1, 61, 512, 4096))
        more = bytes(count) if rng.random() < 0.5 else rng.randbytes(count)
        what = "zero" if not any(more) else "random"
        text = f"append {count} {what} bytes"
        return _changed(files, path, data + more, text, size, size + count)
    if how == "zero":
        block = rng.choice(_BLOCKS)
        at = rng.randrange(0, size, block)
        end = min(at + block, size)
        new = bytearray(data)
        new[at:end] = bytes(end - at)
        if new != data:
            return _changed(files, path, bytes(new), f"zero bytes {at} to {end}", at, end)
    return _changed(files, path, b"", "empty", 0, size)


def _changed(files: Files, path: str, data: bytes, text: str, first: int, end: int) -> Damage:
    new = {**files, path: data}
    return Damage(f"{path}: {text}", path, new, first, end, (path,), len(data) >= end)


def _without(files: Files, path: str) -> Damage:
    new = {one: data for one, data in files.items() if one != path}
    return Damage(f"{path}: delete", path, new, 0, len(files[path]), (path,), keeps_bytes=False)


def _without_folder(files: Files, folder: str) -> Damage:
    gone = tuple(path for path in files if path.startswith(f"{folder}/"))
    new = {path: data for path, data in files.items() if path not in gone}
    return Damage(f"{folder}: delete the folder", folder, new, 0, 0, gone, keeps_bytes=False)


def exchanged(files: Files, path: str, other: str, *, both: bool) -> Damage:
    """Overwrite a file by another one, or exchange both."""
    new = {**files, path: files[other]}
    paths = (path, other) if both else (path,)
    if both:
        new[other] = files[path]
    verb = "swap with" if both else "overwrite by"
    return Damage(
        f"{path}: {verb} {other}", path, new, 0, len(files[path]), paths, keeps_bytes=False
    )
