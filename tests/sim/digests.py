"""What a program prints in other processes, where hashes of strings are others."""

import os
import subprocess
import sys


def of_other_processes(program: str) -> set[tuple[str, ...]]:
    """The words that each of two processes prints."""
    found = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(tuple(done.stdout.split()))
    return found
