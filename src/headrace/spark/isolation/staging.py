"""What a function sets aside is told to the group by the task that judged it, at once.

The row goes no further: it would be null in every column of the user, and any sink would write it.
Where the records are from, and whose they are, stands in their lease. Rows that were made by hand
have no group to stage at; they are passed on with their disposition.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from headrace.client.connection import Cluster
from headrace.spark.dispositions import SetAside, Stager
from headrace.spark.queue.handle import Handle

Batches = Iterable[pa.RecordBatch]


def staging() -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """What passes on the judged batches of a task, and stages what they set aside.

    What a task stages stands under a name of its own, so that one that runs again replaces it. A
    batch that is judged anew, for another action of its sink, has other names: the sink may have
    done without a row for what the first judgement said of it.
    Raises, in the task: as `Lease`.
    """
    name = uuid.uuid4().hex[:8]

    def staged(batches: Batches) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        place = "0/0" if task is None else f"{task.stageId()}/{task.partitionId()}"
        with _Groups() as groups:
            for number, batch in enumerate(batches):
                kept = groups.stage(batch, f"{name}/{place}/{number}")
                if kept.num_rows:
                    yield kept

    return staged


class _Groups:
    """The groups that records of a task are from, with a connection for each."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._known: dict[str, tuple[Stager, Cluster] | None] = {}

    def __enter__(self) -> "_Groups":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def stage(self, batch: pa.RecordBatch, part: str) -> pa.RecordBatch:
        """Stage the rows of a batch that are set aside, and return the others.

        A part is staged also where nothing was set aside: the task may have run before, with other
        dispositions.
        """
        leases = batch.column("lease")
        staged = pa.repeat(pa.scalar(False), batch.num_rows)
        for lease in pc.unique(leases.drop_null()).to_pylist():
            group = self._group(lease)
            if group is None:
                continue
            ours = pc.and_(pc.equal(leases, lease), pc.is_valid(batch.column("disposition")))
            aside = batch.select(SetAside._fields).filter(pc.fill_null(ours, False)).to_pylist()
            stager, cluster = group
            stager.stage(cluster, [lease], [SetAside(**one) for one in aside], part)
            if aside:
                staged = pc.or_(staged, pc.fill_null(ours, False))
        return batch.filter(pc.invert(staged))

    def _group(self, lease: str) -> tuple[Stager, Cluster] | None:
        """None for rows that were made by hand, which no group holds."""
        if lease not in self._known:
            handle = Handle.parse(lease)
            self._known[lease] = None
            if handle.brokers:
                stager = Stager(handle.brokers, handle.group)
                self._known[lease] = stager, self._open.enter_context(stager.cluster())
        return self._known[lease]
