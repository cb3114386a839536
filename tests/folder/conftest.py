"""Data folders on a real disk, as `tests/campaign` builds them."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

import pytest
from tests.campaign.data import Folder, build, build_large

Write = Callable[[Mapping[str, bytes]], Path]


@lru_cache(maxsize=4)
def _built(durability: str, clean: bool) -> Folder:
    return build(durability=durability, clean=clean)


@lru_cache(maxsize=2)
def _built_large(clean: bool) -> Folder:
    return build_large(clean=clean)


@pytest.fixture
def large_stopped() -> Folder:
    """A folder with large segments of a broker that stopped in order."""
    return _built_large(clean=True)


@pytest.fixture
def large_killed() -> Folder:
    """The same of a broker that was killed."""
    return _built_large(clean=False)


@pytest.fixture
def stopped() -> Folder:
    """The folder of a broker that stopped in order."""
    return _built("os", clean=True)


@pytest.fixture
def killed() -> Folder:
    """The folder of a broker that was killed with unsynced records."""
    return _built("os", clean=False)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes files to a new data folder."""

    def write(files: Mapping[str, bytes]) -> Path:
        root = tmp_path / "data"
        for path, content in files.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        return root

    return write
