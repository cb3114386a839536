"""The failure matrix of a log: a driver killed at each point of a batch, and what comes of it.

As for a queue, but that the checkpoint alone is the truth: the group only hears how far it is. No
record may be missing or twice in a sink of one folder a batch, and the group ends where logs end.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from headrace.client.connection import Cluster
from headrace.client.group_offsets import list_group_offsets

from .crash_points import RECORDS, Aftermath, Point, check_batches, play_crash, writes_in
from .halting_driver import PARTITIONS, RECORDS_A_BATCH

pytestmark = pytest.mark.spark
BATCHES = -(-RECORDS // RECORDS_A_BATCH)
POINTS = [
    Point("acquired", 0, 0, batch=0, mode="log"),
    Point("planned", 1, 1, mode="log"),
    Point("task", 1, 1, mode="log"),
    Point("after write", 2, 1, mode="log"),
    Point("logged", 2, 2, mode="log"),
    Point("settled", 2, 1, uncommitted=True, mode="log"),
]


def unfinished(folder: Path, cluster: Cluster, names: Iterable[str]) -> list[str]:
    """Which queries have a batch to write, or a group that was not told the ends of its logs."""
    ends = [RECORDS // PARTITIONS] * PARTITIONS
    wanted = {one.name: one.written + BATCHES - one.resumes for one in POINTS}
    outputs = {one.name: one.heir.output(folder) for one in POINTS}
    return [
        name
        for name in names
        if len(writes_in(outputs[name])) < wanted[name] or committed(cluster, name) != ends
    ]


def committed(cluster: Cluster, group: str) -> list[int]:
    return [one.offset for one in list_group_offsets(cluster, group).values()]


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    folder = tmp_path_factory.mktemp("failures")
    with play_crash(folder, POINTS, partial(unfinished, folder)) as found:
        yield found


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_every_record_once_and_what_is_seen_twice_is_known(
    point: Point, aftermath: Aftermath
) -> None:
    after = check_batches(point, aftermath)
    found = Counter(one for batch in after.batches.values() for one in batch)
    assert found == Counter((one % PARTITIONS, one // PARTITIONS) for one in range(RECORDS))
