"""The parts of the campaign in CI: 2,000 cases in two files, which run beside each other."""

from tests.campaign.campaign import SORTS, campaign
from tests.campaign.judge import EQUAL, REFUSED_BROKER, REFUSED_PARTITION

CASES, PARTS = 2000, 8


def parts(*, clean: bool) -> list[int]:
    """The parts over folders that a broker left in order, or that of a killed one."""
    return [part for part in range(PARTS) if SORTS[part % len(SORTS)][1] is clean]


def check_part(part: int) -> None:
    """Judge the cases of a part; none may be refused in silence, or change what clients read."""
    report = campaign(CASES // PARTS, seed=part, sorts=[SORTS[part % len(SORTS)]])
    assert report.cases == CASES // PARTS
    assert report.failures == []
    assert {EQUAL, REFUSED_BROKER, REFUSED_PARTITION} <= report.outcomes.keys()
