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
from enum import StrEnum
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka import Consumer as StockConsumer

from headrace.client.group_start import marked, started, unmarked
from headrace.client.positions import (
    EARLIEST,
    LATEST,
    all_partitions,
    behind,
    checked,
    offsets_at,
    were_added,
    with_metadata,
)
from headrace.core.reset import Missing, OutOfRange, Outside, Reset, Strategy, decide
from headrace.core.types import WallMs

LOG = logging.getLogger(__name__)

STRATEGY = "auto.offset.reset"
OUT_OF_RANGE = "offset.reset.strategy.offset-out-of-range"
_LOOK_S = 30.0
_LOOK_AGAIN_S = 1.0
_STOCK = {
    "smallest": Strategy.EARLIEST,
    "beginning": Strategy.EARLIEST,
    "largest": Strategy.LATEST,
    "end": Strategy.LATEST,
    "error": Strategy.NONE,
}

Place = tuple[str, int]
E = TypeVar("E", bound=StrEnum)
Assigned = Callable[[Any, list[TopicPartition]], Any]


class Consumer(StockConsumer):
    """A drop-in for `confluent_kafka.Consumer` with two settings that know more values.

    `auto.offset.reset`: none, earliest, latest, earliest_on_start, latest_on_start, safe_latest.
    `offset.reset.strategy.offset-out-of-range`: none or nearest.

    Raises: ValueError for another value; otherwise as confluent-kafka.
    """

    def __init__(self, config: dict[str, Any] | None = None, /, **settings: Any) -> None:
        given = {**(config or {}), **settings}
        self._strategy = _strategy(given.pop(STRATEGY, "latest"))
        self._out_of_range = _one_of(OutOfRange, OUT_OF_RANGE, given.pop(OUT_OF_RANGE, "none"))
        self._decides = self._out_of_range is not OutOfRange.NONE or self._strategy not in {
            Strategy.NONE, Strategy.EARLIEST, Strategy.LATEST,
        }  # fmt: skip
        native = "error" if self._decides or self._strategy is Strategy.NONE else self._strategy
        self._group = given.get("group.id", "")
        self._marks = self._strategy is Strategy.SAFE_LATEST
        self._stores = self._marks and _switch(given.get("enable.auto.offset.store", True))
        if self._stores:
            given["enable.auto.offset.store"] = False  # they are stored here, with the mark
        self._is_incremental = (
            "cooperative" in str(given.get("partition.assignment.strategy", ""))
            or given.get("group.protocol") == "consumer"
        )
        self._is_subscribed = False
        self._is_closing = False
        self._was_assigned = False  # by the application, in its own callback
        self._since: WallMs | None = None
        self._starts: dict[Place, int] = {}
        self._paused: set[Place] = set()
        self._outside: dict[Place, Message] = {}  # positions that nothing was decided on yet
        self._look_at = 0.0
        super().__init__({**given, STRATEGY: str(native)})

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
            self._was_assigned = False
            if on_assign is not None:
                on_assign(consumer, partitions)
            if not self._was_assigned:
                (self.incremental_assign if self._is_incremental else self.assign)(partitions)

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
        self._outside.clear()
        super().assign(found)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's; partitions without an offset begin where the strategy says."""
        self._was_assigned = True
        found = self._positioned(partitions)
        self._starts |= {(one.topic, one.partition): one.offset for one in found}
        super().incremental_assign(found)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self._outside.pop((one.topic, one.partition), None)
        super().incremental_unassign(partitions)

    def close(self) -> None:
        """As confluent-kafka's; what is assigned meanwhile is not read any more."""
        self._is_closing = True
        super().close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._paused |= {(one.topic, one.partition) for one in partitions}
        super().pause(partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        self._paused -= {(one.topic, one.partition) for one in partitions}
        super().resume(partitions)

    # ---- records

    def poll(self, timeout: float = -1) -> Message | None:
        """As confluent-kafka's; a position outside the log is an error only if it is refused."""
        if not self._decides:
            return super().poll(timeout)
        until = math.inf if timeout < 0 else time.monotonic() + timeout
        while True:
            wait_s = max(until - time.monotonic(), 0)
            if self._outside:
                wait_s = min(wait_s, _LOOK_AGAIN_S)
            found = super().poll(-1 if wait_s == math.inf else wait_s)
            told = self._told([] if found is None else [found])
            if told:
                return told[0]
            if time.monotonic() >= until:
                return None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """As confluent-kafka's; a position outside the log is an error only if it is refused."""
        found = super().consume(num_messages, timeout)
        return self._told(found) if self._decides else found

    # ---- offsets

    def commit(self, *args: Any, **kwargs: Any) -> Any:
        """As confluent-kafka's."""
        message = kwargs.pop("message", None)
        if message is not None and self._since is not None:
            kwargs["offsets"] = [behind(message)]
        elif message is not None:
            kwargs["message"] = message
        if kwargs.get("offsets") is not None:
            kwargs["offsets"] = self._marked(kwargs["offsets"])
        return super().commit(*args, **kwargs)

    def store_offsets(
        self, message: Message | None = None, offsets: list[TopicPartition] | None = None
    ) -> None:
        """As confluent-kafka's."""
        given = [behind(message)] if message is not None else offsets or []
        super().store_offsets(offsets=self._marked(given))

    def committed(
        self, partitions: list[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """As confluent-kafka's."""
        found = super().committed(partitions, timeout)
        own = [unmarked(one.metadata) for one in found]
        return [
            one if one.metadata == told else with_metadata(one, told)
            for one, told in zip(found, own, strict=True)
        ]

    # ---- where to begin

    def _positioned(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """The partitions with offsets: given, committed, or by the strategy, if that has one."""
        asked = [one for one in partitions if one.offset in (OFFSET_INVALID, OFFSET_STORED)]
        if not self._decides or not asked or self._is_closing:
            return partitions
        committed = {(one.topic, one.partition): one for one in checked(self._commits(asked))}
        missing = [one for one in committed.values() if one.offset < 0]
        there = [one for one in committed.values() if one.offset >= 0]
        begun = self._since is None and self._marks
        if begun:
            everywhere = all_partitions(self, {one.topic for one in asked})
            self._since = started(one.metadata for one in self._commits(everywhere))
        chosen = to_keep = self._chosen(missing)
        if begun and self._since is None:
            self._since = WallMs(time.time_ns() // 1_000_000)
            to_keep = [*chosen, *there]
        if self._marks and to_keep:
            self._keep(to_keep)
        known = committed | {(one.topic, one.partition): one for one in chosen}
        return [known.get((one.topic, one.partition), one) for one in partitions]

    def _chosen(self, missing: list[TopicPartition]) -> list[TopicPartition]:
        """Where partitions begin of which nothing is committed; none when it is refused."""
        if not missing:
            return []
        added = [False] * len(missing)
        if self._since is not None:
            added = were_added(self, missing, self._since)
        resets = [decide(Missing(one), self._strategy) for one in added]
        if Reset.REFUSE in resets:
            return []
        stamps = [EARLIEST if one is Reset.TO_EARLIEST else LATEST for one in resets]
        found = offsets_at(self, missing, stamps)
        for one, reset in zip(found, resets, strict=True):
            LOG.info(
                "group %s: nothing is committed for %s-%d; %s, from offset %d",
                self._group, one.topic, one.partition, reset.replace("_", " "), one.offset,
            )  # fmt: skip
        return found

    def _commits(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """What is committed, with the metadata as it is stored."""
        return super().committed(partitions, _LOOK_S)

    def _keep(self, offsets: list[TopicPartition]) -> None:
        """Commit where the group begins, so that no start of a member is taken for the group's."""
        try:
            checked(super().commit(offsets=self._marked(offsets), asynchronous=False))
        except KafkaException as error:
            LOG.warning(
                "group %s: when it started is not committed yet (%s); a member that joins before "
                "the next commit may take itself for the first",
                self._group, error,
            )  # fmt: skip

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
        if self._stores and told:
            self._store(told)
        return told + self._decided() if self._outside else told

    def _decided(self) -> list[Message]:
        """Decide on positions outside the log; the errors that the application is told of."""
        now = time.monotonic()
        if now < self._look_at:
            return []
        refused = []
        for place, message in list(self._outside.items()):
            position = int(message.offset() or 0)
            try:
                start, end = self.get_watermark_offsets(TopicPartition(*place), _LOOK_S)
                reset = decide(Outside(position, start, end), self._strategy, self._out_of_range)
                if reset is Reset.REFUSE:
                    refused.append(message)
                else:
                    to = {Reset.TO_EARLIEST: start, Reset.TO_LATEST: end, Reset.KEEP: position}
                    self._go_on(place, to[reset])
                    LOG.warning(
                        "group %s: position %d of %s-%d is outside the log (%d to %d); %s, from %d",
                        self._group, position, *place, start, end, reset.replace("_", " "),
                        to[reset],
                    )  # fmt: skip
                del self._outside[place]
            except KafkaException as error:
                self._look_at = now + _LOOK_AGAIN_S
                LOG.warning("group %s: looking for an end of %s-%d: %s", self._group, *place, error)
        return refused

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
        position = self.position([partition])[0].offset
        if position < 0:
            position = self._starts.get((partition.topic, partition.partition), OFFSET_STORED)
        return TopicPartition(partition.topic, partition.partition, position)

    # ---- marks

    def _marked(self, offsets: list[TopicPartition]) -> list[TopicPartition]:
        since = self._since
        if since is None:
            return offsets
        return [with_metadata(one, marked(one.metadata, since)) for one in offsets]

    def _store(self, messages: list[Message]) -> None:
        """Store what was given to the application, as librdkafka does by itself."""
        last = {(one.topic(), one.partition()): one for one in messages if one.error() is None}
        try:
            super().store_offsets(offsets=self._marked([behind(one) for one in last.values()]))
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:  # the partition was revoked meanwhile
                raise


def _strategy(text: object) -> Strategy:
    if (stock := _STOCK.get(str(text))) is not None:
        return stock
    return _one_of(Strategy, STRATEGY, text)


def _one_of(values: type[E], name: str, text: object) -> E:
    try:
        return values(str(text))
    except ValueError:
        known = ", ".join(values)
        raise ValueError(f"{name} is {text!r}; it is one of {known}") from None


def _switch(value: object) -> bool:
    """As librdkafka reads a switch."""
    return str(value).lower() in {"true", "t", "1"}
