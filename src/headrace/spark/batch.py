"""Identify a micro-batch so that no two queries and no two checkpoints share a name.

Spark numbers the batches of each checkpoint from 0. A sink that names its output by that number
alone overwrites, or takes as written, what an earlier checkpoint or another query of the same group
wrote. Spark's query id is stored in the checkpoint: it survives restarts, and a new checkpoint has
a new one. The pair of query id and batch number is therefore unique.
Source: Spark's StreamExecution (`sql.streaming.queryId`).
"""

from typing import Self

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

_QUERY_ID = "sql.streaming.queryId"

# What messages about a new checkpoint say of sinks, and of the remedy.
SINK_BY_ID = (
    "a sink that knows batches by their id alone drops rows (Spark's file sinks) or overwrites "
    "them (a folder named for the batch id)"
)
APART = "a new output folder, or one folder for each query id and batch (Batch.path)"


class Batch(int):
    """The number of a micro-batch, with the id of the query that numbered it.

    It is an `int`, the batch id that Spark passes to a function for `foreachBatch`. `session` is
    Spark's query id, and not the lease session by which a share group knows the checkpoint.
    """

    session: str

    def __new__(cls, number: int, session: str = "") -> Self:
        """Make a batch; `session` is empty outside a streaming query."""
        found = super().__new__(cls, number)
        found.session = session
        return found

    @classmethod
    def of(cls, rows: DataFrame, number: int) -> Self:
        """Return the batch whose rows a function for `foreachBatch` is called with.

        Args:
            rows: the DataFrame that Spark passes to the function.
            number: the batch id that Spark passes to the function.

        """
        if isinstance(number, cls):
            return number
        try:
            session = rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        except PySparkException:  # Spark Connect has no context
            session = None
        return cls(number, session or "")

    @property
    def id(self) -> int:
        """The plain batch id."""
        return int(self)

    @property
    def path(self) -> str:
        """A relative path of this batch alone: `session=<id of the query>/batch=<batch id>`.

        Raises: RuntimeError outside a streaming query of a classic session, where Spark does not
        provide the id of the query.
        """
        if not self.session:
            raise RuntimeError(
                "the query id of this batch is unknown: it is available in foreachBatch of a "
                "classic Spark session only; elsewhere use the lease session, which is unique to "
                "a checkpoint too: split(lease, '/')[0], with option includeDelivery"
            )
        return f"session={self.session}/batch={self.id}"
