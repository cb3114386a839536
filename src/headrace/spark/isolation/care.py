"""When a function runs in a child process, and what the child may take."""

import os
import re
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from headrace.spark.isolation.outcomes import Errors

REPLAYED = "/replayed"
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True)
class Care:
    """`always`: in a child process from the first record on; None: once something died."""

    release_on: Errors = ()
    always: bool | None = None
    timeout_s: float | None = None
    memory_bytes: int | None = None

    @classmethod
    def of(
        cls,
        release_on: Errors,
        careful: bool | None,
        timeout_s: float | None,
        memory_limit: str | int | None,
    ) -> Self:
        """Raises: ValueError for a limit that is none, or one where children are ruled out."""
        limited = timeout_s is not None or memory_limit is not None
        if limited and careful is False:
            raise ValueError(
                "timeout_s and memory_limit hold for a child process: leave careful=False out"
            )
        if timeout_s is not None and not timeout_s > 0:
            raise ValueError(f"timeout_s is {timeout_s}: give seconds, more than none")
        if (careful or limited) and not hasattr(os, "fork"):
            raise ValueError("a child process for user functions needs os.fork: Linux or macOS")
        return cls(release_on, True if limited else careful, timeout_s, _size(memory_limit))

    @property
    def possible(self) -> bool:
        """Whether there may be child processes."""
        return self.always is not False and hasattr(os, "fork")

    def needed(self, batch: pa.RecordBatch, *, used: bool) -> bool:
        """Whether the records of `batch` shall be worked on in a child process.

        That is so in a task that runs again, in a batch that runs again after the query itself
        died, and for records delivered before when this worker process is new (not `used`): one
        of them may have ended the last one, with all its container.
        """
        if self.always or not self.possible:
            return bool(self.always)
        task = TaskContext.get()
        if task is not None and task.attemptNumber() > 0:
            return True
        if pc.any(pc.ends_with(batch.column("lease"), REPLAYED)).as_py():
            return True
        return not used and bool(pc.any(pc.greater(batch.column("delivery_count"), 1)).as_py())


def _size(given: str | int | None) -> int | None:
    if given is None:
        return None
    found = re.fullmatch(r"(\d+)\s*([bkmgt]?)b?", str(given).strip().lower())
    if found is None or not int(found[1]):
        raise ValueError(f"memory_limit is {given!r}: give bytes, or a size such as '512m' or '2g'")
    return int(found[1]) * _UNITS[found[2]]
