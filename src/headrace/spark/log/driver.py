"""The driver's side of one query over a log: what the next batch has, and what was lost."""

import logging
import time
from collections.abc import Mapping
from typing import Any

from headrace.client.errors import DataLost
from headrace.client.offsets import OffsetSpec, TopicPartition
from headrace.client.reset_settings import OUT_OF_RANGE
from headrace.client.resets import Strategy
from headrace.spark.log.group import Commits
from headrace.spark.log.options import LogOptions
from headrace.spark.log.plan import (
    Loss,
    Seen,
    begins,
    limited,
    must_wait,
    ranges_between,
    size_of,
    split,
    still_there,
    together,
)
from headrace.spark.log.position import Position
from headrace.spark.log.starts import Starts
from headrace.spark.log.topics import Topics, must_be_ordered
from headrace.spark.log_lines import show
from headrace.spark.options import connect
from headrace.wire.leases import Range

LOG = logging.getLogger(__name__)

_NS_PER_MS = 1_000_000


class Driver:
    """Connections and memory of one query.

    Args:
        slots: how many tasks run at once, where that is known and does not change.

    Raises, from every method: as `Cluster`; `DataLost` when records were lost, unless options say
    to go on; `OptionError` for options that do not fit what is there.
    """

    def __init__(self, options: LogOptions, slots: int | None = None) -> None:
        show(options.log_level)
        self._options = options
        self._slots = slots
        self._cluster = connect(options)
        self._topics = Topics(options, self._cluster)
        self._commits = Commits(self._cluster, options.group)
        self._starts: Starts | None = None
        if options.strategy is not None:
            self._starts = Starts(options.strategy, self._cluster, options.group)
        self._initial: Position | None = None
        self._started: int | None = None
        self._resets = 0  # positions outside the log that went on at an end of it
        self._until: dict[TopicPartition, int] | None = None
        self._seen: Seen | None = None
        self._last_batch: float | None = None
        if options.group_id_prefix is not None and options.group is None:
            LOG.warning(
                "groupIdPrefix %r has no effect: without 'kafka.group.id' no group is used",
                options.group_id_prefix,
            )

    def initial(self) -> Position:
        """Where the query starts when it has no checkpoint; the same when asked again."""
        if self._initial is None:
            self._commits.warn_of_history()
            start, seen = self._start(OffsetSpec.LATEST)
            self._initial = Position(start, start, seen.ids)
            LOG.info("without a checkpoint the query starts at %s", self._initial.to_json())
        return self._initial

    def until_now(self) -> None:
        """Have the query end where logs end now."""
        self._until = self._topics.look().ends

    def next_position(
        self, before: Position, *, fewest: int | None, most: int | None
    ) -> Position | None:
        """Where the batch ends that begins at `before`; None when there is none to be run.

        `fewest` offsets are waited for, as long as `maxTriggerDelay`; `most` are read.
        """
        seen = self._seen = self._topics.look(before.offsets)
        started = self._since(before)
        self._commit(before, seen, started)
        if self._until is not None:
            # The start may know partitions made since the end was fixed: nothing of them is read.
            self._until = {**before.offsets, **self._until}
            known = {at: log for at, log in seen.logs.items() if at in self._until}
            seen, fewest = Seen(known, seen.ids), None
        new = {} if self._starts is None else self._starts.added(before, seen, started)
        start, losses = begins(before, seen, new, self._options.when_outside)
        self._tell(losses)
        ends = self._ends(start, seen)
        waiting = sum(end - start[at] for at, end in ends.items())
        # Where partitions begin by a strategy is decided once: it is in the checkpoint at once.
        if not losses and not new and self._must_wait(waiting, fewest):
            return None
        if most is not None:
            ends = limited(start, ends, most)
        # A start that counts later is in the checkpoint at once, with a batch of no records.
        if ends == before.offsets and not losses and started == before.started:
            return None
        self._last_batch = time.monotonic()
        since = {
            at: first
            for at, first in start.items()
            if before.may_be_initial or before.offsets.get(at) != first
        }
        return Position(ends, since, seen.ids, started)

    def latest(self) -> dict[str, Any] | None:
        """Where logs ended when they were last looked at, in the form of a position; beside it
        how many positions were moved.
        """
        if self._seen is None:
            return None
        ends = Position(self._seen.ends).to_json()
        return ends | ({"resets": self._resets} if self._resets else {})

    def ranges(self, before: Position, after: Position) -> list[tuple[Range, ...]]:
        """What the tasks of the batch read that leads from `before` to `after`."""
        ranges = ranges_between(after.begins(before), after.offsets)
        if self._seen is None and ranges:  # the batch was planned before this process began
            seen = self._topics.look(after.offsets)
            ranges, losses = still_there(ranges, after.ids, seen, self._options.when_outside)
            self._tell(losses)
        return self.tasks(ranges)

    def batch(self) -> list[tuple[Range, ...]]:
        """What the tasks of a batch query read."""
        start, seen = self._start(OffsetSpec.EARLIEST)
        end = self._topics.end(seen)
        must_be_ordered(start, end, self._options.given_end)
        outside = self._options.when_outside
        there, losses = begins(Position(start), seen, {}, outside)
        ranges, more = still_there(ranges_between(there, end), {}, seen, outside)
        self._tell(losses + more)
        return self.tasks(ranges)

    def tasks(self, ranges: list[Range]) -> list[tuple[Range, ...]]:
        """The ranges cut as options say; where these say nothing, small ones share a task."""
        least, most = self._options.min_partitions, self._options.max_records_per_partition
        slots = self._slots if least is None and most is None else None
        found = together(split(ranges, least, most), slots)
        offsets = sum(map(size_of, ranges))
        LOG.info("%d offsets of %d partitions in %d tasks", offsets, len(ranges), len(found))
        LOG.debug("the tasks are %s", found)
        return found

    def close(self) -> None:
        """Close connections."""
        self._cluster.close()

    def _ends(self, start: Mapping[TopicPartition, int], seen: Seen) -> dict[TopicPartition, int]:
        until = seen.ends if self._until is None else self._until
        return {at: max(start[at], min(log.end, until[at])) for at, log in seen.logs.items()}

    def _must_wait(self, waiting: int, fewest: int | None) -> bool:
        since = None if self._last_batch is None else time.monotonic() - self._last_batch
        return must_wait(waiting, fewest, since, self._options.max_trigger_delay_s)

    def _start(self, default: OffsetSpec) -> tuple[dict[TopicPartition, int], Seen]:
        now = time.time_ns() // _NS_PER_MS
        seen = self._topics.look()
        self._topics.must_be_there(seen)
        if self._starts is None:
            return self._topics.start(seen, default), seen
        start, self._started = self._starts.first(seen, now)
        return start, seen

    def _since(self, before: Position) -> int | None:
        """When the query started; the checkpoint has it, unless nothing was read yet."""
        return self._started if before == self._initial else before.started

    def _commit(self, position: Position, seen: Seen, started: int | None) -> None:
        """Commit a position, but where a new topic has the name of the one that it is in."""
        offsets = {
            (topic, partition): offset
            for (topic, partition), offset in position.offsets.items()
            if (topic, partition) in seen.logs and not seen.made_again(topic, position.ids)
        }
        is_kept = self._options.strategy is Strategy.SAFE_LATEST
        self._commits.commit(offsets, started if is_kept else None)

    def _tell(self, losses: list[Loss]) -> None:
        fails = self._options.fail_on_data_loss
        refused = [one for one in losses if (fails if one.is_refused is None else one.is_refused)]
        if refused:
            raise DataLost(
                f"records were lost before they were read: {'; '.join(map(str, refused))}. Set "
                f"{self._remedy(refused)} to go on with what is there, or take a new checkpoint "
                "and a new output folder (Spark's file sinks drop batches whose id they have)"
            )
        for loss in losses:
            self._resets += loss.is_refused is not None
            LOG.warning(
                "records were lost before they were read: %s; %s, as %s",
                loss, loss.instead, self._reason(loss),
            )  # fmt: skip

    def _remedy(self, refused: list[Loss]) -> str:
        if any(one.is_refused is None for one in refused):
            return "failOnDataLoss to false"
        told = f"{OUT_OF_RANGE} to nearest"
        return told if self._options.out_of_range else f"{told}, or failOnDataLoss to false,"

    def _reason(self, loss: Loss) -> str:
        told = None if loss.is_refused is None else self._options.out_of_range
        return "failOnDataLoss is false" if told is None else f"{OUT_OF_RANGE} is {told}"
