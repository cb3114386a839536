"""Crash points, and how a crash is played: all queries to their points, SIGKILL, and on again."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from headrace.client.connection import Cluster
from headrace.demo.server import Server

from .driver_process import driver, not_reached, prepare, until_none
from .halting_driver import Case

RECORDS = 160
# A driver that comes back is to find its locks, however long Spark takes to start; and locks that
# somebody waits for may last for as long as that takes in any case.
LOCK_MS, SHORT_LOCK_MS = 600_000, 8_000
SETTINGS = {"group.share.max.record.lock.duration.ms": str(LOCK_MS)}
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
    mode: str = "queue"

    @property
    def name(self) -> str:
        words = [*self.point.split(), str(self.batch)]
        words += ["uncommitted"] * self.uncommitted + ["gone"] * self.gone
        return "-".join([self.mode, *words])

    @property
    def doomed(self) -> Case:
        """The query that dies."""
        return Case(self.name, self.point, self.batch, mode=self.mode)

    @property
    def heir(self) -> Case:
        """The query that goes on."""
        return Case(self.name, "", life="second" if self.gone else "first", mode=self.mode)

    @property
    def waits_for_locks(self) -> bool:
        """Whether nobody knows the session of the dead driver any more."""
        return self.gone or (self.point, self.batch) == ("acquired", 0)


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


def writes_in(output: Path) -> list[int]:
    """Return the batches written so far, also while one of them is being replaced."""
    log = output / "writes"
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def seen(output: Path) -> Seen:
    writes = writes_in(output)
    folders = {one: list(output.glob(f"session=*/batch={one}")) for one in set(writes)}
    assert all(len(found) == 1 for found in folders.values())
    return Seen(writes, {one: records_in(folder) for one, (folder,) in folders.items()})


@contextmanager
def play_crash(
    folder: Path,
    points: list[Point],
    unfinished: Callable[[Cluster, Iterable[str]], list[str]],
) -> Iterator[Aftermath]:
    """A driver with all queries dies when each is at its point; another goes on with all of them
    until none is `unfinished`.
    """
    names = [point.name for point in points]
    locks = {one.name: SHORT_LOCK_MS if one.waits_for_locks else LOCK_MS for one in points}
    with Server(folder, settings=SETTINGS) as server, Cluster(server.bootstrap) as cluster:
        prepare(cluster, server.bootstrap, locks, RECORDS)
        with driver(server.bootstrap, folder, [one.doomed for one in points]) as check:
            until_none(lambda: not_reached(folder, names), check)
        at_crash = {one.name: seen(one.doomed.output(folder)) for one in points}
        for point in points:
            if point.uncommitted:
                lose_last_commit(point.doomed.checkpoint(folder))
        with driver(server.bootstrap, folder, [one.heir for one in points]) as check:
            until_none(lambda: unfinished(cluster, names), check)
        yield Aftermath(folder, server.bootstrap, at_crash)


def lose_last_commit(checkpoint: Path) -> None:
    last = max(int(one.name) for one in (checkpoint / "commits").glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()


def check_batches(point: Point, aftermath: Aftermath) -> Seen:
    """The batches before the crash and after it are those that `point` foretells, and a batch that
    ran again with its number had the same records. Returns what was seen after it.
    """
    before = aftermath.at_crash[point.name]
    assert before.writes == list(range(point.written))
    after = seen(point.heir.output(aftermath.folder))
    resumed = after.writes[0 if point.gone else point.written :]
    assert resumed == list(range(point.resumes, max(after.batches) + 1))
    if not point.gone:
        assert {batch: after.batches[batch] for batch in before.batches} == before.batches
    return after
