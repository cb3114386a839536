"""`headrace.Consumer`: confluent-kafka's Consumer with the reset strategies of KIP-842.

librdkafka is told to refuse (`auto.offset.reset=error`), and what it would have refused is decided
here: missing positions when partitions are assigned, positions outside the log when it reports
one. With values that librdkafka knows it decides by itself, and this class adds nothing.
Source: KIP-842; docs/reset.md.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka import Consumer as StockConsumer

from headrace.client.group_start import started
from headrace.client.marking import MarkingConsumer
from headrace.client.positions import (
    EARLIEST,
    LATEST,
    all_partitions,
    checked,
    inquirer,
    offsets_at,
    were_added,
)
from headrace.client.reset_settings import (
    OUT_OF_RANGE,
    STRATEGY,
    is_on,
    out_of_range_of,
    strategy_of,
)
from headrace.core.reset import Missing, OutOfRange, Outside, Reset, Strategy, decide
from headrace.core.types import WallMs

LOG = logging.getLogger(__name__)

_LOOK_S = 30.0
_LOOK_OUTSIDE_S = 5.0  # it holds a poll up
_LOOK_AGAIN_S = 1.0

Place = tuple[str, int]
Assigned = Callable[[Any, list[TopicPartition]], Any]


class Consumer(MarkingConsumer):
    """A drop-in for `confluent_kafka.Consumer` with two settings that know more values.

    `auto.offset.reset`: none, earliest, latest, earliest_on_start, latest_on_start, safe_latest.
    `offset.reset.strategy.offset-out-of-range`: none or nearest.

    Raises: ValueError for another value; otherwise as confluent-kafka.
    """

    def __init__(self, config: dict[str, Any] | None = None, /, **settings: Any) -> None:
        given = {**(config or {}), **settings}
        asked = given.pop(STRATEGY, None)
        self._strategy = strategy_of("latest" if asked is None else asked)
        self._out_of_range = out_of_range_of(given.pop(OUT_OF_RANGE, "none"))
        self._decides = self._out_of_range is not OutOfRange.NONE or self._strategy not in {
            Strategy.NONE, Strategy.EARLIEST, Strategy.LATEST,
        }  # fmt: skip
        native = "error" if self._decides or self._strategy is Strategy.NONE else self._strategy
        self._marks = self._strategy is Strategy.SAFE_LATEST
        self._stores = self._marks and is_on(given.get("enable.auto.offset.store", True))
        if self._stores:
            given["enable.auto.offset.store"] = False  # they are stored here, with the mark
        self._is_incremental = (
            "cooperative" in str(given.get("partition.assignment.strategy", ""))
            or str(given.get("group.protocol")).lower() == "consumer"
        )
        self._is_subscribed = False
        self._is_closing = False
        self._was_assigned = False  # by the application, in its own callback
        self._starts: dict[Place, int] = {}
        self._paused: set[Place] = set()
        self._sought: dict[Place, tuple[int, int]] = {}  # position then, and where it was sought
        self._outside: dict[Place, Message] = {}  # positions that nothing was decided on yet
        self._ahead: list[Message] = []  # what the application is told of next
        self._look_at = 0.0
        if self._decides or asked is not None:
            given[STRATEGY] = str(native)
        self._is_called_back = False
        self._config = given
        self._inquirer: StockConsumer | None = None
        super().__init__(given, is_marking=self._marks)

    # ---- assignment

    def subscribe(
        self,
        topics: list[str],
        on_assign: Assigned | None = None,
        on_revoke: Assigned | None = None,
        on_lost: Assigned | None = None,
    ) -> None:
        """As confluent-kafka's; `on_assign` may assign other offsets, as there."""
        others = {"on_revoke": on_revoke, "on_lost": on_lost}
        callbacks = {name: one for name, one in others.items() if one is not None}
        self._is_subscribed = True

        def assigned(consumer: Any, partitions: list[TopicPartition]) -> None:
            self._was_assigned, self._is_called_back = False, True
            try:
                if on_assign is not None:
                    on_assign(consumer, partitions)
                if not self._was_assigned:
                    (self.incremental_assign if self._is_incremental else self.assign)(partitions)
            finally:
                self._is_called_back = False

        if self._decides:
            callbacks["on_assign"] = assigned
        elif on_assign is not None:
            callbacks["on_assign"] = on_assign
        super().subscribe(topics, **callbacks)

    def unsubscribe(self) -> None:
        self._is_subscribed = False
        super().unsubscribe()

    def assign(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's; partitions without an offset begin where the strategy says."""
        self._was_assigned = True
        found = self._positioned(partitions)
        self._starts = {(one.topic, one.partition): one.offset for one in found}
        self._forget(set(self._outside) | self._paused | set(self._sought))
        super().assign(found)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's; partitions without an offset begin where the strategy says."""
        self._was_assigned = True
        found = self._positioned(partitions)
        added = {(one.topic, one.partition): one.offset for one in found}
        self._starts |= added
        self._forget(set(added))
        super().incremental_assign(found)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        self._forget({(one.topic, one.partition) for one in partitions})
        super().incremental_unassign(partitions)

    def _forget(self, places: set[Place]) -> None:
        """Partitions are assigned anew, or gone: librdkafka knows nothing of before either."""
        self._paused -= places
        for place in places:
            self._outside.pop(place, None)
            self._sought.pop(place, None)

    def close(self) -> None:
        """As confluent-kafka's; what is assigned meanwhile is not read any more."""
        self._is_closing = True
        super().close()
        if self._inquirer is not None:
            self._inquirer.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._paused |= {(one.topic, one.partition) for one in partitions}
        super().pause(partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        self._paused -= {(one.topic, one.partition) for one in partitions}
        super().resume(partitions)

    def seek(self, partition: TopicPartition) -> None:
        super().seek(partition)
        position = self.position([partition])[0].offset
        self._sought[partition.topic, partition.partition] = position, partition.offset

    # ---- records

    def poll(self, timeout: float = -1) -> Message | None:
        """As confluent-kafka's; a position outside the log is an error only if it is refused."""
        stock = super().poll
        if not self._decides:
            return stock(timeout)
        found = self._next(1, lambda s: [one for one in [stock(s)] if one is not None], timeout)
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """As confluent-kafka's; a position outside the log is an error only if it is refused."""
        stock = super().consume
        if not self._decides or num_messages < 1:
            return stock(num_messages, timeout)
        return self._next(num_messages, lambda wait_s: stock(num_messages, wait_s), timeout)

    def _next(
        self, count_max: int, ask: Callable[[float], list[Message]], timeout: float
    ) -> list[Message]:
        until = math.inf if timeout < 0 else time.monotonic() + timeout
        while not self._ahead:
            wait_s = max(until - time.monotonic(), 0)
            if self._outside:
                wait_s = min(wait_s, _LOOK_AGAIN_S)
            self._ahead = self._told(ask(-1 if wait_s == math.inf else wait_s))
            if time.monotonic() >= until:
                break
        told, self._ahead = self._ahead[:count_max], self._ahead[count_max:]
        return told

    # ---- where to begin

    def _positioned(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """The partitions with offsets: given, committed, or by the strategy, if that has one."""
        if not self._decides or self._is_closing:
            return partitions
        asked = [one for one in partitions if one.offset in (OFFSET_INVALID, OFFSET_STORED)]
        found = checked(self._commits(asked)) if asked else []
        missing = [one for one in found if one.offset < 0]
        if self._marks and partitions and (missing or self._since is None):
            self._since = self._started()
        chosen = to_keep = self._chosen(missing)
        if self._marks and partitions and self._since is None:
            self._since = self._now()
            to_keep = [*chosen, *(one for one in found if one.offset >= 0)]
        if self._marks and to_keep:
            self._keep(to_keep, at_once=not self._is_called_back)
        known = {(one.topic, one.partition): one for one in [*found, *chosen]}
        return [known.get((one.topic, one.partition), one) for one in partitions]

    def _started(self) -> WallMs | None:
        """When the group started; None: now. Members that joined at once may each have marked."""
        marks = started(one.metadata for one in self._commits(all_partitions(self._asking())))
        return min((one for one in (marks, self._since) if one is not None), default=None)

    def _chosen(self, missing: list[TopicPartition]) -> list[TopicPartition]:
        """Where partitions begin of which nothing is committed; none when it is refused."""
        if not missing:
            return []
        added = [False] * len(missing)
        if self._since is not None:
            added = were_added(self._asking(), missing, self._since)
        resets = [decide(Missing(one), self._strategy) for one in added]
        if Reset.REFUSE in resets:
            return []
        stamps = [EARLIEST if one is Reset.TO_EARLIEST else LATEST for one in resets]
        found = offsets_at(self._asking(), missing, stamps)
        for one, reset in zip(found, resets, strict=True):
            LOG.info(
                "group %s: nothing is committed for %s-%d; %s, from offset %d",
                self._group, one.topic, one.partition, reset.replace("_", " "), one.offset,
            )  # fmt: skip
        return found

    def _commits(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """What is committed, with the metadata as it is stored."""
        return self._asking().committed(partitions, _LOOK_S)

    def _now(self) -> WallMs:
        return WallMs(time.time_ns() // 1_000_000)

    def _asking(self) -> StockConsumer:
        if self._inquirer is None:
            self._inquirer = inquirer(self._config)
        return self._inquirer

    # ---- positions outside the log

    def _told(self, messages: list[Message]) -> list[Message]:
        """What the application is told of."""
        told = []
        for message in messages:
            error = message.error()
            is_reset = error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET
            if is_reset and (message.offset() or 0) >= 0 and message.topic() is not None:
                self._outside[str(message.topic()), int(message.partition() or 0)] = message
            else:
                told.append(message)
                self._sought.pop((str(message.topic()), int(message.partition() or 0)), None)
        if self._stores and told:
            self._store(told)
        return told + self._decided() if self._outside else told

    def _decided(self) -> list[Message]:
        """Decide on positions outside the log; the errors that the application is told of."""
        refused: list[Message] = []
        if time.monotonic() < self._look_at:
            return refused
        assigned = {(one.topic, one.partition) for one in self.assignment()}
        for place, message in list(self._outside.items()):
            try:
                if place in assigned and self._is_refused(place, int(message.offset() or 0)):
                    refused.append(message)
            except KafkaException as error:
                self._look_at = time.monotonic() + _LOOK_AGAIN_S
                LOG.warning("group %s: looking for an end of %s-%d: %s", self._group, *place, error)
                break
            del self._outside[place]
        return refused

    def _is_refused(self, place: Place, position: int) -> bool:
        """Read on where the strategy says, if it has a place."""
        start, end = self.get_watermark_offsets(TopicPartition(*place), _LOOK_OUTSIDE_S)
        reset = decide(Outside(position, start, end), self._strategy, self._out_of_range)
        if reset is Reset.REFUSE:
            return True
        to = {Reset.TO_EARLIEST: start, Reset.TO_LATEST: end, Reset.KEEP: position}[reset]
        self._go_on(place, to)
        LOG.warning(
            "group %s: position %d of %s-%d is outside the log (%d to %d); %s, from %d",
            self._group, position, *place, start, end, reset.replace("_", " "), to,
        )  # fmt: skip
        return False

    def _go_on(self, place: Place, offset: int) -> None:
        """Read on elsewhere: librdkafka stopped reading the partition with its error."""
        target = TopicPartition(*place, offset)
        self._starts[place] = offset
        if self._is_subscribed and self._is_incremental:
            super().incremental_unassign([target])
            super().incremental_assign([target])
        else:
            others = [one for one in self.assignment() if (one.topic, one.partition) != place]
            super().assign([*map(self._as_read, others), target])
        paused = self._paused & {(one.topic, one.partition) for one in self.assignment()}
        if paused:
            super().pause([TopicPartition(*one) for one in paused])

    def _as_read(self, partition: TopicPartition) -> TopicPartition:
        """A partition at what is read next of it."""
        place = partition.topic, partition.partition
        position = self.position([partition])[0].offset
        before, sought = self._sought.get(place, (None, OFFSET_STORED))
        if position == before:
            position = sought
        elif position < 0:
            position = self._starts.get(place, OFFSET_STORED)
        return TopicPartition(partition.topic, partition.partition, position)
