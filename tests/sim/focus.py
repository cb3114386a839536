"""Histories that concentrate on what a planted bug breaks, and the search through them.

A focus sets some options and leaves the others to the seed, so that nearly every seed lets the bug
come into play; a search goes on until the bug is found.
"""

from dataclasses import fields, replace
from functools import cache
from random import Random
from typing import Any

from headrace.sim.options import Options
from headrace.sim.world import Outcome, World

Focus = dict[str, Any]
SEEDS_MAX = 200  # that a search tries; a focus shows its bug within some ten

_FLAGS = frozenset(one.name for one in fields(Options) if one.type in (bool, "bool"))
CALM: Focus = dict.fromkeys(_FLAGS, False) | {
    "fsync": True, "shards": 1, "partitions": 1, "in_flight": 1,
}  # fmt: skip
QUEUES: Focus = {
    **CALM, "queues": True, "groups": 1, "members": 3, "leases": 0, "seconds": 4, "lock_ms": 1000,
    "limit": 3, "updates_per_snapshot": 1,
}  # fmt: skip
LEASES: Focus = {**QUEUES, "members": 1, "leases": 1}
RECORDS: Focus = {
    **CALM, "records": True, "producers": 2, "members": 2, "consumers": ("classic", "consumer"),
    "seconds": 2,
}  # fmt: skip
GROUPS: Focus = {**RECORDS, "producers": 1, "members": 3, "seconds": 4}
QUIET: Focus = {**RECORDS, "producers": 1, "members": 1, "seconds": 1, "stays": True}
PIPELINES: Focus = {**RECORDS, "in_flight": 5, "members": 1, "seconds": 4}
CRASHES: Focus = {"kills": True, "stops": True}
UNSYNCED: Focus = {"fsync": False, "power_cuts": True}
# Every actor and every fault at once, for tests of the simulator itself.
EVERYTHING: Focus = {
    **dict.fromkeys(_FLAGS, True), "read_errors": False, "counts_work": False, "shards": 1,
    "groups": 2, "members": 3, "leases": 1, "seconds": 4, "partitions": 1, "lock_ms": 1000,
    "segment_bytes": 1024, "consumers": ("classic", "consumer"),
}  # fmt: skip
# As above, without faults that keep actors from their work.
EVERY_ACTOR: Focus = EVERYTHING | dict.fromkeys(
    ("full_disks", "write_errors", "sync_errors", "damages", "kills"), False
)


def options(seed: int, focus: Focus) -> Options:
    """Return the options of a seed with those of a focus in place."""
    return replace(Options.drawn(Random(f"{seed}/options")), **focus)


def history(seed: int, focus: Focus) -> Outcome:
    """Run the history of a seed under a focus."""
    return World(seed, options=options(seed, focus)).run()


@cache
def _is_sound(seed: int, focus: tuple[tuple[str, Any], ...]) -> bool:
    return not history(seed, dict(focus)).failures


def is_sound(seed: int, focus: Focus) -> bool:
    """Return whether the broker without a planted bug passes a history."""
    return _is_sound(seed, tuple(sorted(focus.items())))


def finding(focus: Focus) -> tuple[int, tuple[str, ...]] | None:
    """Search for a history with a failure. Returns: its seed and the failures."""
    for seed in range(SEEDS_MAX):
        failures = history(seed, focus).failures
        if failures:
            return seed, failures
    return None
