"""Scale the number of SIGKILLs for soak runs, and name their kinds.

`HEADRACE_CRASH_KILLS_FACTOR` multiplies the kills of the tests under clients. CI uses 1, where the
test under stock clients kills fewer times still; `make kills` uses 18. Each test adds its kills to
the summary of the run (`conftest.py`).
"""

import os
from pathlib import Path

KILLS_FACTOR = int(os.environ.get("HEADRACE_CRASH_KILLS_FACTOR", "1"))
STOCK = "under stock clients"
STAGED = "under clients that stop where stock clients cannot"
IN_STARTS = "after one of these, amid the start, before the broker listened"
AFTER_STARTS = "after one of these, just after the broker listened again"
DEMO = "during the demo"
DRIVERS = "of Spark drivers"
WITH_DRIVER = "of the broker just after its driver"
PLANTED_SERVER = Path(__file__).with_name("planted_server.py")
