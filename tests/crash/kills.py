"""Scale the number of SIGKILLs for soak runs.

`HEADRACE_CRASH_KILLS_FACTOR` multiplies the kills of every test here that repeats them. CI uses 1;
`make soak` uses more, so that at least 500 kills happen under stock clients.
"""

import os

KILLS_FACTOR = int(os.environ.get("HEADRACE_CRASH_KILLS_FACTOR", "1"))
