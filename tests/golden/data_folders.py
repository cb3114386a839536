"""Golden data folders: what releases wrote, with everything that clients could read then.

    python -m tests.golden.data_folders format-2

writes the folders of the release that is checked out, to be committed with it. Every later release
must open them, and find the same (`test_data_folders.py`).
"""

import io
import json
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.campaign import account, data
from tests.campaign.judge import observe

HERE = Path(__file__).parent
SORTS = {"stopped": ("fsync", True), "killed": ("os", False)}


def names() -> Iterator[str]:
    """Every golden folder, e.g. `data-folder-format-0-stopped`."""
    return (path.name.removesuffix(".tar.xz") for path in sorted(HERE.glob("data-folder-*.tar.xz")))


def files_of(name: str) -> dict[str, bytes]:
    """The files of a folder."""
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        members = ((one.name, archive.extractfile(one)) for one in archive.getmembers())
        return {path: file.read() for path, file in members if file is not None}


def account_of(name: str) -> dict[str, Any]:
    """What clients could read of it."""
    found: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text())
    return found


def plain(found: account.Account) -> dict[str, Any]:
    """An account as JSON has it."""
    rows = {" ".join(key): value for key, value in found.items()}
    plain: dict[str, Any] = json.loads(json.dumps(rows, default=repr))
    return plain


def main() -> None:
    label = sys.argv[1]
    for sort, (durability, clean) in SORTS.items():
        folder = data.build(durability=durability, clean=clean, is_interrupted=True)
        found = observe(folder.disk(), folder, probes=-1)
        assert found.account is not None, (found.refusal, found.fault)
        name = f"data-folder-{label}-{sort}"
        _write(HERE / f"{name}.tar.xz", folder.files)
        text = json.dumps(plain(found.account), indent=0, sort_keys=True)
        (HERE / f"{name}.json").write_text(text + "\n")


def _write(path: Path, files: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:xz", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    main()
