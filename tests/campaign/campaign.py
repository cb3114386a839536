"""The damage campaign: many damages to data folders of each sort, judged one by one.

python -m tests.campaign.campaign --cases 20000 --seed 7
"""

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.campaign import data
from tests.campaign.damage import Damage, draw, kind_of
from tests.campaign.judge import Judge, Outcome

SORTS = [(durability, clean) for durability in ("os", "fsync") for clean in (True, False)]


@dataclass(slots=True)
class Report:
    """Outcomes of a campaign: counts by outcome and kind of file, and what is not allowed."""

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    by_kind: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, sort: str, damage: Damage, outcome: Outcome) -> None:
        """Count one case."""
        self.cases += 1
        self.outcomes[outcome.name] += 1
        self.by_kind[kind_of(damage.path), outcome.name] += 1
        if not outcome.is_allowed:
            self.failures.append(f"[{sort}] {damage.text}: {outcome.name}: {outcome.detail}")


def judges(sorts: Sequence[tuple[str, bool]], seed: int = 0) -> list[tuple[data.Folder, Judge]]:
    """Build a folder of each sort, with its judge."""
    folders = [
        data.build(durability=one, clean=clean, seed=seed, is_interrupted=True)
        for one, clean in sorts
    ]
    return [(folder, Judge(folder)) for folder in folders]


def campaign(
    count: int, seed: int, sorts: Sequence[tuple[str, bool]] = SORTS, *, seconds: float = math.inf
) -> Report:
    """Judge `count` damages, of folders of each sort in turn; fewer when `seconds` are over."""
    report, rng, judged = Report(), Random(seed), judges(sorts, seed)
    until = time.monotonic() + seconds
    for number in range(count):
        if time.monotonic() > until:
            break
        folder, judge = judged[number % len(judged)]
        damage = draw(folder.files, rng)
        report.add(folder.name, damage, judge.judge(damage))
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description="Damage data folders and judge what happens.")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf)
    options = parser.parse_args()
    began = time.monotonic()
    report = campaign(options.cases, options.seed, seconds=options.seconds)
    for line in report.failures:
        sys.stderr.write(f"{line}\n")
    summary = {
        "cases": report.cases,
        "seed": options.seed,
        "seconds": round(time.monotonic() - began, 1),
        "outcomes": dict(report.outcomes),
        "failures": len(report.failures),
    }
    sys.stdout.write(f"{json.dumps(summary)}\n")
    sys.exit(bool(report.failures))


if __name__ == "__main__":
    main()
