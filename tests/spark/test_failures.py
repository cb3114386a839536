"""The failure matrix: a driver killed at each point of a batch of a queue or of a log.

One real driver has a query for each crash point; when all stand at theirs, its process group is
killed with SIGKILL. A second driver goes on from what is on disk until nothing is left. Then the
account of each queue must close, and what the sink was given twice is known to the batch.

The checkpoint of a log is the only truth, its group only hears how far it is: no record may be
missing or twice in a sink of one folder a batch, and the group ends where logs end.
"""

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.client.connection import Cluster
from headrace.client.group_offsets import list_group_offsets

from .crash_points import RECORDS, Aftermath, Point, Seen, check_batches, play_crash, writes_in
from .driver_process import complaints, unfinished
from .halting_driver import PARTITIONS, RECORDS_A_BATCH

pytestmark = pytest.mark.spark
BATCHES = -(-RECORDS // RECORDS_A_BATCH)
QUEUES = [
    Point("acquired", 0, 0, batch=0),
    Point("acquired", 1, 1),
    Point("planned", 1, 1),
    Point("task", 1, 1),
    Point("before write", 1, 1),
    Point("after write", 2, 1),
    Point("staged", 2, 1),
    Point("logged", 2, 2),
    Point("settled", 2, 2),
    Point("settled", 2, 1, uncommitted=True),
    Point("before write", 1, 0, gone=True),
    Point("after write", 2, 0, gone=True),
]
LOGS = [
    Point("acquired", 0, 0, batch=0, mode="log"),
    Point("planned", 1, 1, mode="log"),
    Point("task", 1, 1, mode="log"),
    Point("after write", 2, 1, mode="log"),
    Point("logged", 2, 2, mode="log"),
    Point("settled", 2, 1, uncommitted=True, mode="log"),
]


def to_do(folder: Path, cluster: Cluster, names: Iterable[str]) -> list[str]:
    """Return the queries with records left."""
    queues = [point.name for point in QUEUES]
    logs = {point.name: point for point in LOGS}
    assert set(names) == {*queues, *logs}
    left = [name for name, point in logs.items() if has_records_left(folder, cluster, point)]
    return unfinished(cluster, queues, RECORDS) + left


def has_records_left(folder: Path, cluster: Cluster, point: Point) -> bool:
    """Whether a log has a batch to write, or its group was not told the ends of the log."""
    wanted = point.written + BATCHES - point.resumes
    committed = [one.offset for one in list_group_offsets(cluster, point.name).values()]
    ends = [RECORDS // PARTITIONS] * PARTITIONS
    return len(writes_in(point.heir.output(folder))) < wanted or committed != ends


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    folder = tmp_path_factory.mktemp("failures")
    with play_crash(folder, QUEUES + LOGS, partial(to_do, folder)) as found:
        yield found


@pytest.mark.parametrize("point", QUEUES, ids=lambda point: point.name)
def test_the_account_closes_and_what_is_seen_twice_is_known(
    point: Point, aftermath: Aftermath
) -> None:
    after = check_batches(point, aftermath)
    if point.gone:
        before = aftermath.at_crash[point.name]
        repeated(point.doomed.output(aftermath.folder), before, after)
    parquet = aftermath.folder / point.name / "parquet"
    assert complaints(aftermath.bootstrap, point.name, parquet, RECORDS) == ()


def repeated(output: Path, before: Seen, after: Seen) -> None:
    """What the dead query wrote and never settled comes once more: take the copy away."""
    again = {one for batch in after.batches.values() for one in batch}
    settled_before, *unsettled = before.writes
    for batch in unsettled:
        assert set(before.batches[batch]) <= again
        (folder,) = output.glob(f"session=*/batch={batch}")
        shutil.rmtree(folder)
    assert not again & set(before.batches[settled_before])


def test_a_driver_that_comes_back_waits_for_no_lock(aftermath: Aftermath) -> None:
    """Nothing but what was released is delivered a second time to a query with its checkpoint."""
    for point in QUEUES:
        if not point.waits_for_locks:
            counts = delivery_counts(point.heir.output(aftermath.folder))
            assert counts == {1: RECORDS * 8 // 10, 2: RECORDS // 10}, point.name


def delivery_counts(output: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    for file in output.rglob("*.parquet"):
        for count in pq.ParquetFile(file).read(columns=["delivery_count"])[0].to_pylist():
            found[count] = found.get(count, 0) + 1
    return found


@pytest.mark.parametrize("point", LOGS, ids=lambda point: point.name)
def test_every_record_once_and_what_is_seen_twice_is_known(
    point: Point, aftermath: Aftermath
) -> None:
    after = check_batches(point, aftermath)
    found = Counter(one for batch in after.batches.values() for one in batch)
    assert found == Counter((one % PARTITIONS, one // PARTITIONS) for one in range(RECORDS))
