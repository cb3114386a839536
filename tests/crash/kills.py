"""Scale the number of SIGKILLs for soak runs.

`HEADRACE_CRASH_KILLS_FACTOR` multiplies the kills of every test here that repeats them. CI uses 1,
where the tests that take longest kill fewer times still; `make soak` uses 18: 504 kills under stock
clients of every kind, and 180 under clients that stop where a stock client cannot.
"""

import os
from pathlib import Path

KILLS_FACTOR = int(os.environ.get("HEADRACE_CRASH_KILLS_FACTOR", "1"))
PLANTED_SERVER = Path(__file__).with_name("planted_server.py")
