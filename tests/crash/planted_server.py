"""`headrace serve` with bugs planted: `planted_server.py BUG[+BUG…] serve ...`."""

import sys
from pathlib import Path

import pytest

from headrace.cli.main import run


def main() -> None:
    """Plant the bugs and serve."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.crash import planted_stock
    from tests.sim import planted, planted_records

    for name in sys.argv.pop(1).split("+"):
        (module,) = (one for one in (planted, planted_records, planted_stock) if hasattr(one, name))
        getattr(module, name)(pytest.MonkeyPatch())
    run()


if __name__ == "__main__":
    main()
