"""Fuzz targets with atheris, guided by coverage, one after the other.

python -m tests.fuzz.coverage_guided records,frames FOLDER -max_total_time=60

`FOLDER/NAME` has the inputs to start from and gets what is found; what a target prints goes to
`FOLDER/NAME.log`, and `FOLDER/NAME.code` is its exit code. Further arguments are libFuzzer's.
"""

import logging
import os
import sys
from pathlib import Path

import atheris

# This takes ten times as long as a second of fuzzing, so one process does it for all targets.
with atheris.instrument_imports(include=["headrace"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    logging.getLogger("headrace").setLevel(logging.CRITICAL)
    names, folder, *options = sys.argv[1:]
    for name in names.split(","):
        found = Path(folder) / name
        # libFuzzer ends the process that it runs in.
        if child := os.fork():
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            found.with_suffix(".code").write_text(f"{code}")
            continue
        log = os.open(found.with_suffix(".log"), os.O_CREAT | os.O_WRONLY)
        os.dup2(log, sys.stderr.fileno())
        atheris.Setup([sys.argv[0], str(found), *options], TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
