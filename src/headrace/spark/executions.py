"""Hears of the executions that carry a metric, and keeps the fullest, and what all of them say.

`pyspark.sql.Observation` would keep the first, which may be an `isEmpty` that saw one row, and
waits for ever when there is none. Spark tells listeners in order, from a thread of its own: once it
told of a marker that ran after the sink, it told of all that the sink ran.
Source: Spark's QueryExecutionListener and ListenerBus; PySpark's own use of py4j.
"""

import threading
import uuid
from collections.abc import Iterator
from typing import Any, Self

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.serializers import CPickleSerializer
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f

_HEARD_TIMEOUT_S = 60.0
# Operators that need a part of the rows below them only, by their names in Spark's logical plans.
_PARTIAL = frozenset({"GlobalLimit", "LocalLimit", "Tail"})


class Executions:
    """While open, hears of executions whose plan observes the metrics `name`, of which one must be
    called "rows" and count them.
    """

    def __init__(self, session: SparkSession) -> None:
        self.name = f"headrace-{uuid.uuid4().hex}"
        self._session = session
        self._marker = f"{self.name}-marker"
        self._heard = threading.Event()
        self._fullest: Row | None = None
        self._all: list[Row] = []
        self._listener: Any = None

    def __enter__(self) -> Self:
        # `foreachBatch` has started it already; a batch judged outside of a stream has not.
        start: Any = ensure_callback_server_started
        start(self._session.sparkContext._gateway)
        # py4j wraps a Python object anew for each call; unregistering needs the very same wrapper.
        jvm: Any = self._session.sparkContext._jvm
        told = _Listener(self)
        self._listener = jvm.java.util.concurrent.atomic.AtomicReference(told).get()
        self._manager().register(self._listener)
        return self

    def __exit__(self, *_: object) -> None:
        self._manager().unregister(self._listener)

    def fullest(self) -> Row | None:
        """The metrics of the execution that saw most rows, if one saw all there were to see.

        Raises: TimeoutError when Spark does not tell its listeners within a minute.
        """
        self._heard.clear()
        marker = self._session.range(1).observe(self._marker, f.count(f.lit(1)).alias("rows"))
        marker.collect()
        if not self._heard.wait(_HEARD_TIMEOUT_S):
            raise TimeoutError("Spark did not tell its listeners what was executed")
        return self._fullest

    def all(self) -> list[Row]:
        """The metrics of every execution told of so far, also of those that saw a part."""
        return list(self._all)

    def succeeded(self, action: str, execution: Any) -> None:
        """Called for every execution of the session."""
        metrics = execution.observedMetrics()
        if metrics.contains(self._marker):
            self._heard.set()
        if not metrics.contains(self.name):
            return
        found = self._row(metrics.apply(self.name))
        self._all.append(found)
        if action == "toLocalIterator" or self._is_partial(execution.optimizedPlan()):
            return
        if self._fullest is None or found["rows"] > self._fullest["rows"]:
            self._fullest = found

    def _is_partial(self, plan: Any) -> bool:
        """Whether an operator over the metrics, or any where they are not found, is partial."""
        found = self._partial_above(plan)
        return _is_partial_at_all(plan) if found is None else found

    def _partial_above(self, plan: Any) -> bool | None:
        name = plan.nodeName()
        if name == "CollectMetrics" and plan.name() == self.name:
            return False
        for below in _below(plan):
            found = self._partial_above(below)
            if found is not None:
                return found or name in _PARTIAL
        return None

    def _row(self, row: Any) -> Row:
        jvm: Any = self._session.sparkContext._jvm
        serializer: Any = CPickleSerializer()
        found = serializer.loads(jvm.org.apache.spark.sql.api.python.PythonSQLUtils.toPyRow(row))
        assert isinstance(found, Row)
        return found

    def _manager(self) -> Any:
        return self._session._jsparkSession.listenerManager()


def _is_partial_at_all(plan: Any) -> bool:
    return plan.nodeName() in _PARTIAL or any(map(_is_partial_at_all, _below(plan)))


def _below(plan: Any) -> Iterator[Any]:
    """The plans that one is made of; a view of a cached one shows none of it."""
    for found in (plan.children(), plan.innerChildren()):
        for index in range(found.size()):
            yield found.apply(index)


class _Listener:
    """What py4j hands to Spark."""

    def __init__(self, told: Executions) -> None:
        self._told = told

    def onSuccess(self, action: str, execution: Any, _duration_ns: int) -> None:
        self._told.succeeded(action, execution)

    def onFailure(self, action: str, execution: Any, error: Any) -> None:
        """Not our concern: the sink sees the error."""

    class Java:
        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)
