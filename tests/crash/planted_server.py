"""`headrace serve` with one of the simulator's bugs planted: `planted_server.py BUG serve ...`."""

import importlib.util
import sys
from pathlib import Path

import pytest

from headrace.cli.main import run


def main() -> None:
    """Plant the bug and serve."""
    path = Path(__file__).parents[1] / "sim" / "planted.py"
    spec = importlib.util.spec_from_file_location("planted", path)
    assert spec is not None
    assert spec.loader is not None
    planted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(planted)
    getattr(planted, sys.argv.pop(1))(pytest.MonkeyPatch())
    run()


if __name__ == "__main__":
    main()
