"""Fuzz one target with atheris, guided by coverage; arguments after the name are libFuzzer's.

python -m tests.fuzz.coverage_guided records -max_total_time=60
"""

import logging
import sys

import atheris

with atheris.instrument_imports(include=["headrace"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    logging.getLogger("headrace").setLevel(logging.CRITICAL)
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
