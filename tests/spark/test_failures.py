"""The failure matrix: a driver killed at each point of a batch, and what its group makes of it.

One real driver has a query for each crash point; when all stand at theirs, its process group is
killed with SIGKILL. A second driver goes on from what is on disk until nothing is left. Then the
account of each must close, and what the sink was given twice is known to the batch.
"""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.client.connection import Cluster
from headrace.demo.server import Server

from .driver_process import complaints, driver, not_reached, prepare, unfinished, until_none
from .halting_driver import Case

pytestmark = pytest.mark.spark
RECORDS = 240
LOCK_MS, SHORT_LOCK_MS = 60_000, 2_000
Batches = Mapping[int, list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Point:
    """A crash point of batch number `batch`, and what must be seen when all is over.

    `written` is how many batches the sink had written when the driver died, `resumes` the first one
    that it was given afterwards. `uncommitted`: Spark's commit log loses its last entry meanwhile.
    `gone`: the checkpoint is given up, and a query with another one gets the records.
    """

    point: str
    written: int
    resumes: int
    batch: int = 1
    uncommitted: bool = False
    gone: bool = False

    @property
    def name(self) -> str:
        words = [*self.point.split(), str(self.batch)]
        words += ["uncommitted"] * self.uncommitted + ["gone"] * self.gone
        return "-".join(words)

    @property
    def waits_for_locks(self) -> bool:
        """Whether nobody knows the session of the dead driver any more."""
        return self.gone or (self.point, self.batch) == ("acquired", 0)


POINTS = [
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


@dataclass(frozen=True, slots=True)
class Seen:
    """What a query's sink wrote: batches in the order of their writes, and records by batch."""

    writes: list[int]
    batches: Batches


@dataclass(frozen=True, slots=True)
class Aftermath:
    """All queries are through: where their output is, and what stood there at the crash."""

    folder: Path
    bootstrap: str
    at_crash: Mapping[str, Seen]


def records_in(folder: Path) -> list[tuple[int, int]]:
    """Partition and offset of every row of a folder."""
    found = []
    for file in folder.glob("*.parquet"):
        table = pq.ParquetFile(file).read(columns=["partition", "offset"])
        found += [(row["partition"], row["offset"]) for row in table.to_pylist()]
    return sorted(found)


def seen(output: Path) -> Seen:
    log = output / "writes"
    writes = [int(line) for line in log.read_text().split()] if log.exists() else []
    return Seen(writes, {one: records_in(output / f"batch_id={one}") for one in set(writes)})


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    folder = tmp_path_factory.mktemp("failures")
    names = [point.name for point in POINTS]
    locks = {one.name: SHORT_LOCK_MS if one.waits_for_locks else LOCK_MS for one in POINTS}
    with Server(folder) as server, Cluster(server.bootstrap) as cluster:
        prepare(cluster, server.bootstrap, locks, RECORDS)
        doomed = [Case(one.name, one.point, one.batch) for one in POINTS]
        with driver(server.bootstrap, folder, doomed) as check:
            until_none(lambda: not_reached(folder, names), check)
        at_crash = {name: seen(Case(name, "").output(folder)) for name in names}
        for point in POINTS:
            if point.uncommitted:
                lose_last_commit(Case(point.name, "").checkpoint(folder))
        heirs = [Case(one.name, "", life="second" if one.gone else "first") for one in POINTS]
        with driver(server.bootstrap, folder, heirs) as check:
            until_none(lambda: unfinished(cluster, names, RECORDS), check)
        yield Aftermath(folder, server.bootstrap, at_crash)


def lose_last_commit(checkpoint: Path) -> None:
    last = max(int(one.name) for one in (checkpoint / "commits").glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_the_account_closes_and_what_is_seen_twice_is_known(
    point: Point, aftermath: Aftermath
) -> None:
    before = aftermath.at_crash[point.name]
    assert before.writes == list(range(point.written))
    first, second = (Case(point.name, "", life=life) for life in ("first", "second"))
    after = seen((second if point.gone else first).output(aftermath.folder))
    resumed = after.writes[0 if point.gone else point.written :]
    assert resumed == list(range(point.resumes, max(after.batches) + 1))
    if point.gone:
        repeated(first.output(aftermath.folder), before, after)
    else:
        assert {batch: after.batches[batch] for batch in before.batches} == before.batches
    parquet = aftermath.folder / point.name / "parquet"
    assert complaints(aftermath.bootstrap, point.name, parquet, RECORDS) == ()


def repeated(output: Path, before: Seen, after: Seen) -> None:
    """What the dead query wrote and never settled comes once more: take the copy away."""
    again = {one for batch in after.batches.values() for one in batch}
    settled_before, *unsettled = before.writes
    for batch in unsettled:
        assert set(before.batches[batch]) <= again
        shutil.rmtree(output / f"batch_id={batch}")
    assert not again & set(before.batches[settled_before])


def test_a_driver_that_comes_back_waits_for_no_lock(aftermath: Aftermath) -> None:
    """Nothing but what was released is delivered a second time to a query with its checkpoint."""
    for point in POINTS:
        if not point.waits_for_locks:
            counts = delivery_counts(Case(point.name, "").output(aftermath.folder))
            assert counts == {1: RECORDS * 8 // 10, 2: RECORDS // 10}, point.name


def delivery_counts(output: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    for file in output.rglob("*.parquet"):
        for count in pq.ParquetFile(file).read(columns=["delivery_count"])[0].to_pylist():
            found[count] = found.get(count, 0) + 1
    return found
