"""What a program prints in other processes, where hashes of strings are others."""

import os
import subprocess
import sys
from collections.abc import Callable

from headrace.sim.world import Outcome


def of_other_processes(program: str) -> set[tuple[str, ...]]:
    """The words that each of two processes prints."""
    return {of_another_process(program, hash_seed) for hash_seed in ("1", "2")}


def of_another_process(program: str, hash_seed: str = "1") -> tuple[str, ...]:
    """Return the words that a process prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(done.stdout.split())


def described_failure(run: Callable[[], Outcome], outcome: Outcome) -> str:
    """Describe a failing history, after a second run of its seed.

    Args:
        run: runs the same history again.
    """
    again = run()
    is_same = (again.digest, again.events) == (outcome.digest, outcome.events)
    steps = "the same steps" if is_same else "other steps; the simulator is not deterministic"
    failures = "\n  ".join(outcome.failures)
    return f"headrace sim --seed {outcome.seed}: a second run has {steps}\n  {failures}"
