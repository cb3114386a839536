"""Bugs of a broker that is killed under stock producers and consumers are found.

A sound broker is killed under these clients in `test_share_killed.py`, beside share consumers.
"""

import re
import sys
from pathlib import Path

import pytest

from headrace.demo.server import Server

from .group_crew import Stage
from .kills import PLANTED_SERVER
from .stock_crew import ASSIGNED, SETTINGS, StockCrew

KILLS_MAX = 8
LOST = ["records acknowledged, lost"]
TWICE = ["duplicate or out of order"]
SKIPPED = ["classic .* got .*, skipped", "consumer .* got .*, skipped"]
BACK = ["classic .* went back to", "consumer .* went back to", "begins at .*, committed was"]
AHEAD = ["classic .* never sent above", "consumer .* never sent above", "begins .*, skipped from"]
NEWEST = ["newest record .* is not there"]
MOVED = [r"'table', 0\): read record .* at offset .*"]


@pytest.mark.parametrize(
    ("bugs", "failures"),
    [
        ("recovery_cuts_the_last_batch+gaps_are_accepted", LOST),
        ("answers_are_late+producers_forgotten_in_recovery", TWICE),
        ("fetches_leave_out_batches", SKIPPED),
        ("commits_are_not_written+compaction_moves_offsets", BACK + MOVED),
        ("commits_recovered_too_high+compaction_drops_the_newest", AHEAD + NEWEST),
    ],
)
def test_a_bug_that_is_planted_is_found(bugs: str, failures: list[str], tmp_path: Path) -> None:
    command = (sys.executable, str(PLANTED_SERVER), bugs, "serve")
    with Server(tmp_path, settings=SETTINGS, command=command) as server:
        stage = Stage()
        stage.bootstrap = server.bootstrap
        crew = StockCrew(stage)
        try:
            missing = failures
            for _ in range(KILLS_MAX):
                stage.wait(crew.has_worked, lambda: stage.changes)
                stage.tell(gate=ASSIGNED, held=False)
                stage.wait(lambda: stage.held, lambda: "no member was assigned a partition")
                server.kill()
                stage.tell(gate="")
                server.start()
                stage.changes.clear()
                crew.check()
                found = "\n".join(crew.account.failures)
                missing = [one for one in missing if not re.search(one, found)]
                if not missing:
                    break
        finally:
            stage.tell(ended=True)
            crew.join()
    assert stage.failure is None
    assert missing == []
