"""A batch worked on in child processes: what kills one of them is found, and the rest goes on.

The parts of a batch are done in order. When the child dies, the part it was at is suspected: one
of several records is halved; a single record is tried alone in a fresh child, as what went before
it or came with it may have done the harm, and if that child dies too, the record has killed it.
After it, the child gets ever more at once: all of them may have been too much.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from headrace.spark.isolation.care import Care
from headrace.spark.isolation.child import Child, Death
from headrace.spark.isolation.outcomes import WorkerDied

LOG = logging.getLogger(__name__)

Span = tuple[int, int]
Attempt = Callable[[int, int], Any]
Opened = Callable[[pa.RecordBatch], Attempt]


class Halve:
    """What an attempt at several records answers when its halves shall be tried instead."""


class Children:
    """At most one child at a time, which outlives the batches that it survives.

    In the child `opened(batch)` makes the function that does records `start` to `stop`.
    """

    def __init__(self, opened: Opened, care: Care) -> None:
        self._opened = opened
        self._care = care
        self._child: Child | None = None
        self._done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def work(self, batch: pa.RecordBatch, spans: Sequence[Span]) -> Iterator[tuple[Span, Any]]:
        """Each span, or its parts, with its result, or with an exception such as `WorkerDied`."""
        pending = deque(spans)
        at_once = len(pending)
        while pending:
            job = list(islice(pending, at_once))
            try:
                yield from self._answers(batch, job, pending)
                at_once *= 2
            except Death as death:
                alone = self._done == 0 and len(job) == 1
                self._end()
                span = pending[0]
                if span[1] - span[0] > 1:
                    pending.popleft()
                    pending.extendleft(reversed(_halves(span)))
                elif alone:
                    LOG.warning(
                        "%s: the Python worker %s; the record is set aside, its neighbours go on",
                        _place(batch, span),
                        death,
                    )
                    yield pending.popleft(), WorkerDied(f"the Python worker {death}")
                else:
                    at_once = 1

    def _answers(
        self, batch: pa.RecordBatch, job: list[Span], pending: deque[Span]
    ) -> Iterator[tuple[Span, Any]]:
        if self._child is None:
            self._done = 0
            serve = _server(self._opened)
            self._child = Child(serve, self._care.timeout_s, self._care.memory_bytes)
        first, last = job[0][0], job[-1][1]
        part = dumped(batch.slice(first, last - first))
        self._child.ask((part, [(start - first, stop - first) for start, stop in job]))
        left = len(job)
        while left:
            try:
                result = self._child.result()
            except Death:
                raise
            except Exception as error:  # values of a type that only the child knew
                result = error
            self._done += 1
            span = pending.popleft()
            if result is Halve:
                pending.extendleft(reversed(_halves(span)))
                left += 1
            else:
                left -= 1
                yield span, result

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


def _server(opened: Opened) -> Callable[[Any], Iterator[Any]]:
    """What the child does with a job: the parts in order, halves in the place of their whole."""

    def serve(job: tuple[pa.Buffer, list[Span]]) -> Iterator[Any]:
        part, spans = job
        attempt = opened(loaded(part))
        pending = deque(spans)
        while pending:
            span = pending.popleft()
            result = attempt(*span)
            if result is Halve:
                pending.extendleft(reversed(_halves(span)))
            yield result

    return serve


def _halves(span: Span) -> tuple[Span, Span]:
    middle = (span[0] + span[1]) // 2
    return (span[0], middle), (middle, span[1])


def dumped(batch: pa.RecordBatch) -> pa.Buffer:
    """The batch as bytes; of a slice, its own rows only."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def loaded(part: pa.Buffer) -> pa.RecordBatch:
    """The batch of which `dumped` made `part`."""
    return pa.ipc.open_stream(part).read_next_batch()


def _place(batch: pa.RecordBatch, span: Span) -> str:
    if "offset" not in batch.schema.names:
        return "a record"
    topic, partition, offset = (
        batch.column(name)[span[0]].as_py() for name in ("topic", "partition", "offset")
    )
    return f"{topic}-{partition} offset {offset}"
