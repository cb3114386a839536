"""`headrace.Consumer`: confluent-kafka's Consumer with the reset strategies of KIP-842.

librdkafka is told to refuse (`auto.offset.reset=error`), and what it would have refused is decided
here: missing positions when partitions are assigned, positions outside the log when it reports
one. With values that librdkafka knows it decides by itself, and this class adds nothing.

A lookup that fails never leaves an assignment callback: librdkafka would drop the record that the
same poll returns. The partition is assigned and paused instead (it is *held*), and the lookup is
repeated with back-off until the start position is known. librdkafka never looks a position up by
itself: it reports errors that pass, and then reads nothing more of the partition.

Lookups outside callbacks run in a thread, and `poll` takes their results: it returns in time, with
the records of other partitions, however long a broker does not answer. All decisions, commits and
assignments are made by the thread that polls. The first lookup of an assignment is made in its
callback, since partitions must not be read from anywhere else meanwhile.

librdkafka's bulk lookups fail as a whole if one partition fails. So each lookup that fails halves
the number of partitions in the next one, and puts its partitions behind the other held ones.
Source: KIP-842; docs/reset.md.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

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
    behind,
    checked,
    inquirer,
    is_of_topic,
    is_permanent,
    known_partitions,
    offsets_at,
    refresh_metadata,
    watermark_offsets,
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

_BACKOFF_S, _BACKOFF_S_MAX = 0.1, 1.0  # Kafka's retry.backoff.ms, retry.backoff.max.ms
_LOOKUP_S, _LOOKUP_S_MAX = 1.0, 8.0  # limits of a request of a lookup
_GLANCE_S = 0.02  # between two looks for the result of a lookup
_FAILURES_MAX = 10  # beyond that neither grows
_UNDECIDED = (OFFSET_INVALID, OFFSET_STORED)
_ANYWHERE = 0  # of partitions that are paused at once: an offset that needs no lookup

Place = tuple[str, int]
Assigned = Callable[[Any, list[TopicPartition]], Any]
T = TypeVar("T")


class _Starts(NamedTuple):
    """Where partitions begin. `since` is None if nothing shows that the group started before."""

    committed: list[TopicPartition]  # or without an offset
    chosen: list[TopicPartition]  # by the strategy
    since: WallMs | None


@dataclass
class _Lookup(Generic[T]):
    """A lookup in a thread; `places` are those whose result is of use, with their offsets."""

    places: dict[Place, int]
    result: "Future[T]"


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
        self._poll_stores = is_on(given.get("enable.auto.offset.store", True))
        self._stores = self._marks and self._poll_stores
        if self._stores:
            given["enable.auto.offset.store"] = False  # they are stored here, with the mark
        self._is_incremental = (
            "cooperative" in str(given.get("partition.assignment.strategy", ""))
            or str(given.get("group.protocol")).lower() == "consumer"
        )
        self._is_subscribed = False
        self._is_closing = self._is_closed = False
        self._is_polling = False
        self._began: WallMs | None = None  # the first lookup, if the group is new
        self._was_assigned = False  # by the application, in its own callback
        self._starts: dict[Place, int] = {}
        self._paused: set[Place] = set()
        self._sought: dict[Place, tuple[int, int]] = {}  # position then, and where it was sought
        self._outside: dict[Place, Message] = {}  # positions that nothing was decided on yet
        self._held: dict[Place, int] = {}  # assigned and paused, with the offsets as given
        self._lookup_partitions = 1  # held ones in the next lookup
        self._refused: set[Place] = set()  # the same, until the application seeks
        self._ahead: list[Message] = []  # what the application is told of next
        self._stored_offsets: dict[Place, int] = {}  # by the application
        self._cleared_offsets: dict[Place, int] = {}  # stored, until librdkafka assigned them again
        self._failures = 0  # lookups that failed one after the other
        self._look_at = 0.0
        self._reported: dict[Place, int] = {}  # permanent errors of held partitions
        if self._decides or asked is not None:
            given[STRATEGY] = str(native)
        self._held_lookup: _Lookup[_Starts] | None = None
        self._outside_lookup: _Lookup[tuple[int, int]] | None = None
        self._thread: ThreadPoolExecutor | None = None
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
            for one in partitions:  # another member may have committed something newer meanwhile
                self._unkept.pop((one.topic, one.partition), None)
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
        paused = self._stopped() | self._paused
        self._forget(
            {*self._outside, *self._sought, *paused, *self._stored_offsets, *self._cleared_offsets}
        )
        found = self._positioned(partitions)
        self._starts = {(one.topic, one.partition): one.offset for one in found}
        super().assign(found)
        self._pause_and_resume(self._starts, paused)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's; partitions without an offset begin where the strategy says."""
        self._was_assigned = True
        paused = self._stopped() | self._paused
        self._forget({(one.topic, one.partition) for one in partitions})
        found = self._positioned(partitions)
        added = {(one.topic, one.partition): one.offset for one in found}
        self._starts |= added
        super().incremental_assign(found)
        self._pause_and_resume(added, paused)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        self._forget({(one.topic, one.partition) for one in partitions})
        super().incremental_unassign(partitions)

    def _forget(self, places: set[Place]) -> None:
        """Partitions are assigned anew, or gone: librdkafka knows nothing of before either."""
        self._paused -= places
        for place in places:
            self._sought.pop(place, None)
            self._forget_undecided(place)
        self._forget_stored(places)
        self._refused -= places

    def _stopped(self) -> set[Place]:
        """Partitions that are assigned without a position."""
        return self._refused | self._held.keys()

    def _pause_and_resume(self, assigned: Iterable[Place], paused: set[Place]) -> None:
        """Pause what has no position in librdkafka, and resume what was paused before.

        librdkafka keeps a pause beyond the assignment. The application's own are in `_paused`.
        """
        stopped = self._stopped()
        halt = [TopicPartition(*one) for one in assigned if one in stopped | self._paused]
        go = [TopicPartition(*one) for one in assigned if one in paused - stopped - self._paused]
        if halt:
            super().pause(halt)
        if go:
            super().resume(go)

    def close(self) -> None:
        """As confluent-kafka's; what is assigned meanwhile is not read any more."""
        self._is_closing = True
        super().close()
        if self._is_closed:  # a second call changes nothing, as in confluent-kafka
            return
        self._is_closed = True
        if self._thread is not None:
            if self._inquirer is not None:  # behind a lookup that is under way
                self._thread.submit(self._inquirer.close)
            self._thread.shutdown(wait=False)
        elif self._inquirer is not None:
            self._inquirer.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._paused |= {(one.topic, one.partition) for one in partitions}
        super().pause(partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        self._paused -= {(one.topic, one.partition) for one in partitions}
        stopped = self._stopped()
        free = [one for one in partitions if (one.topic, one.partition) not in stopped]
        if free or not partitions:
            super().resume(free)

    def seek(self, partition: TopicPartition) -> None:
        place = partition.topic, partition.partition
        if place in self._stopped():
            self._refused.discard(place)
            self._forget_undecided(place)
            self._held[place], self._look_at = partition.offset, 0.0
            return
        super().seek(partition)
        position = self.position([partition])[0].offset
        self._forget_undecided(place)
        self._sought[place] = position, partition.offset

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
        until = math.inf if timeout < 0 else self._monotonic() + timeout
        while not self._ahead:
            wait_s = max(until - self._monotonic(), 0)
            if self._outside or self._held:
                wait_s = min(wait_s, max(self._look_at - self._monotonic(), 0))
            elif self._unkept or self._is_subscribed:
                # librdkafka waits on after an assignment that leaves partitions held or refused.
                wait_s = min(wait_s, _BACKOFF_S_MAX)
            messages = self._told(ask(-1 if wait_s == math.inf else wait_s))
            # Records first: their offsets are stored, and would be committed without being read.
            self._ahead = messages + self._ahead
            if self._outside or self._held:
                self._ahead += self._decided()
            if self._monotonic() >= until:
                break
        told, self._ahead = self._ahead[:count_max], self._ahead[count_max:]
        return told

    # ---- what to commit

    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """As confluent-kafka's; without arguments also offsets stored before a move.

        librdkafka clears them when another partition is moved and all are assigned again.
        """
        if message is not None or offsets is not None:
            if message is not None:
                self._forget_stored([(str(message.topic()), _number(message.partition()))])
            self._forget_stored([(one.topic, one.partition) for one in offsets or []])
            return super().commit(message, offsets, *args, **kwargs)
        cleared = self._still_cleared()
        if not cleared:
            return super().commit(None, None, *args, **kwargs)
        done = super().commit(None, cleared, *args, **kwargs)
        if done is not None:
            self._forget_stored([(one.topic, one.partition) for one in done if one.error is None])
        try:
            newer = super().commit(None, None, *args, **kwargs)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:
                raise
            newer = []
        return None if done is None else [*done, *(newer or [])]

    def store_offsets(
        self, message: Message | None = None, offsets: list[TopicPartition] | None = None
    ) -> None:
        """As confluent-kafka's."""
        super().store_offsets(message, offsets)
        stored = [behind(message)] if message is not None else offsets or []
        for one in stored:
            place = one.topic, one.partition
            self._stored_offsets[place] = one.offset
            self._cleared_offsets.pop(place, None)

    def _forget_stored(self, places: Iterable[Place]) -> None:
        for place in places:
            self._stored_offsets.pop(place, None)
            self._cleared_offsets.pop(place, None)

    def _keep_stored(self, partitions: list[TopicPartition]) -> None:
        """Remember what is stored of partitions that librdkafka is about to assign again."""
        for one in self.position(partitions):
            place = one.topic, one.partition
            offset = (
                one.offset if self._poll_stores else self._stored_offsets.get(place, OFFSET_INVALID)
            )
            if offset >= 0:
                self._cleared_offsets[place] = offset

    def _still_cleared(self) -> list[TopicPartition]:
        """The offsets of assigned partitions of which librdkafka has stored nothing newer."""
        if self._cleared_offsets:
            positions = self.position(self.assignment())
            offsets = {(one.topic, one.partition): one.offset for one in positions}
            for place in list(self._cleared_offsets):
                if place not in offsets or (self._poll_stores and offsets[place] >= 0):
                    del self._cleared_offsets[place]
        return [TopicPartition(*place, offset) for place, offset in self._cleared_offsets.items()]

    # ---- where to begin

    def _positioned(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """The partitions with offsets: given, committed, or by the strategy.

        Those whose offset cannot be found out now are held, those without one are refused.
        """
        if not self._decides or self._is_closing:
            return partitions
        needs_start = self._marks and self._since is None
        open_ones = [one for one in partitions if needs_start or one.offset in _UNDECIDED]
        if not open_ones:
            return partitions
        try:
            found = self._taken(self._look_up(open_ones), open_ones)
        except KafkaException as error:
            self._held |= {(one.topic, one.partition): one.offset for one in open_ones}
            self._lookup_partitions = max(len(open_ones) // 2, 1)
            self._failed(error, "the start of", open_ones)
            found = []
        else:
            self._failures = 0
            self._ahead += self._refusals(found)
        known = {(one.topic, one.partition): one for one in found}
        known |= {place: TopicPartition(*place, _ANYWHERE) for place in self._stopped()}
        return [known.get((one.topic, one.partition), one) for one in partitions]

    def _refusals(self, found: list[TopicPartition]) -> list[Message]:
        """An error of each partition that has no position, as librdkafka reports it."""
        missing = {(one.topic, one.partition) for one in found if one.offset in _UNDECIDED}
        self._refused |= missing
        error = KafkaError(
            KafkaError._AUTO_OFFSET_RESET,
            "no previously committed offset available; seek, or set another auto.offset.reset",
        )
        return [Message(topic=one, partition=part, error=error) for one, part in sorted(missing)]

    def _look_up(self, partitions: list[TopicPartition]) -> _Starts:
        """Look up where partitions start, in any thread. Raises: KafkaException on the 2nd failure.

        librdkafka keeps what it knows of partitions for minutes, so the second lookup comes after
        a refresh of its metadata.
        """
        try:
            return self._starts_of(partitions)
        except KafkaException as error:
            if is_permanent(error) or error.args[0].code() == KafkaError._TIMED_OUT:
                raise
        refresh_metadata(self._asking(), partitions, self._patience_s())
        return self._starts_of(partitions)

    def _starts_of(self, partitions: list[TopicPartition]) -> _Starts:
        undecided = [one for one in partitions if one.offset in _UNDECIDED]
        committed = checked(self._commits(undecided)) if undecided else []
        missing = [one for one in committed if one.offset < 0]
        since = self._since
        if self._marks and (missing or since is None):
            since = self._started()
        began = self._began
        if self._marks and began is None:
            self._began = self._now()
        # A partition added since the first attempt is newer than a new group.
        return _Starts(committed, self._chosen(missing, began if since is None else since), since)

    def _taken(self, starts: _Starts, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return partitions with their start offsets, which are kept for other members."""
        places = {(one.topic, one.partition) for one in partitions}
        committed, chosen = (
            [one for one in found if (one.topic, one.partition) in places] for found in starts[:2]
        )
        to_keep = chosen
        if self._marks:
            self._since = self._began if starts.since is None else starts.since
            if starts.since is None:
                to_keep = [*chosen, *(one for one in committed if one.offset >= 0)]
            if to_keep:
                self._keep(to_keep, at_once=not (self._is_called_back or self._is_polling))
        known = {(one.topic, one.partition): one for one in [*committed, *chosen]}
        return [known.get((one.topic, one.partition), one) for one in partitions]

    def _started(self) -> WallMs | None:
        """When the group started; None: now. Members that joined at once may each have marked."""
        everything = all_partitions(self._asking(), self._patience_s())
        marks = started(one.metadata for one in known_partitions(self._commits(everything)))
        return min((one for one in (marks, self._since) if one is not None), default=None)

    def _chosen(self, missing: list[TopicPartition], since: WallMs | None) -> list[TopicPartition]:
        """Where partitions begin of which nothing is committed; `none` has no place for them."""
        if not missing or self._strategy is Strategy.NONE:
            return []
        added = [False] * len(missing)
        if since is not None:
            added = were_added(self._asking(), missing, since, self._patience_s())
        resets = [decide(Missing(one), self._strategy) for one in added]
        stamps = [EARLIEST if one is Reset.TO_EARLIEST else LATEST for one in resets]
        found = offsets_at(self._asking(), missing, stamps, self._patience_s())
        for one, reset in zip(found, resets, strict=True):
            LOG.info(
                "group %s: nothing is committed for %s-%d; %s, from offset %d",
                self._group, one.topic, one.partition, reset.replace("_", " "), one.offset,
            )  # fmt: skip
        return found

    def _commits(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """What is committed, with the metadata as it is stored."""
        return self._asking().committed(partitions, self._patience_s())

    def _patience_s(self) -> float:
        patience_s: float = min(_LOOKUP_S * 2**self._failures, _LOOKUP_S_MAX)
        return patience_s

    def _failed(self, error: KafkaException, what: str, partitions: list[TopicPartition]) -> None:
        """Wait before the next lookup. The first failure of a series is logged."""
        delay_s = min(_BACKOFF_S * 2**self._failures, _BACKOFF_S_MAX)
        self._look_at = self._monotonic() + delay_s
        level = logging.DEBUG if self._failures else logging.WARNING
        self._failures = min(self._failures + 1, _FAILURES_MAX)
        LOG.log(
            level, "group %s: looking up %s %s failed, retrying: %s", self._group, what,
            ", ".join(f"{one.topic}-{one.partition}" for one in partitions), error,
        )  # fmt: skip

    def _now(self) -> WallMs:
        return WallMs(time.time_ns() // 1_000_000)

    def _asking(self) -> StockConsumer:
        if self._inquirer is None:
            self._inquirer = inquirer(self._config)
        return self._inquirer

    # ---- positions that are missing or outside the log

    def _told(self, messages: list[Message]) -> list[Message]:
        """What the application is told of."""
        told = []
        for message in messages:
            place = str(message.topic()), _number(message.partition())
            error = message.error()
            is_reset = error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET
            if is_reset and self._is_taken(place, message):
                continue
            told.append(message)
            self._sought.pop(place, None)
        if self._stores and told:
            self._store(told)
        if self._unkept:
            self._keep_again(self.assignment())
        return told

    def _is_taken(self, place: Place, message: Message) -> bool:
        """Whether a position that librdkafka gave up is decided on here, and not reported.

        librdkafka reports a position outside the log with its offset, and one that is missing
        without: after `seek` to OFFSET_STORED.
        """
        if place[1] < 0:
            return False
        if place in self._stopped():
            return True
        if _number(message.offset()) >= 0:
            self._outside[place] = message
        else:
            self._held[place] = OFFSET_STORED
            self._pause_and_resume([place], set())
        return True

    def _decided(self) -> list[Message]:
        """Decide on positions; the errors that the application is told of."""
        if self._monotonic() < self._look_at:
            return []
        assigned = {(one.topic, one.partition) for one in self.assignment()}
        for places in (self._held, self._outside):
            for place in places.keys() - assigned:
                self._forget_undecided(place)
        self._is_polling = True
        try:
            return self._decided_held() + self._decided_outside()
        finally:
            self._is_polling = False

    def _forget_undecided(self, place: Place) -> None:
        for lookup in (self._held_lookup, self._outside_lookup):
            if lookup is not None:  # others may have committed since it began
                lookup.places.pop(place, None)
        self._held.pop(place, None)
        self._outside.pop(place, None)
        self._reported.pop(place, None)

    def _decided_held(self) -> list[Message]:
        """Look up the start positions of held partitions, and read from there those found."""
        lookup = self._held_lookup
        if lookup is None:
            if not self._held:
                return []
            offsets = dict(islice(self._held.items(), self._lookup_partitions))
            held = [TopicPartition(*place, offset) for place, offset in offsets.items()]
            begun = self._in_thread(partial(self._look_up, held))
            lookup = self._held_lookup = _Lookup(offsets, begun)
        if not self._is_done(lookup):
            return []
        self._held_lookup, offsets = None, lookup.places
        held = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        try:
            starts = lookup.result.result()
        except KafkaException as error:
            if not held:
                return []
            self._failed(error, "the start of", held)
            return self._narrow(error, offsets)
        if not held:
            return []
        found = self._taken(starts, held)
        self._failures, self._lookup_partitions = 0, 2 * len(held)
        for place in offsets:
            self._held.pop(place)
            self._reported.pop(place, None)
        refusals = self._refusals(found)
        positioned = [one for one in found if one.offset not in _UNDECIDED]
        if positioned:
            try:
                self._go_on(positioned)
            except Exception:
                self._held |= {(one.topic, one.partition): one.offset for one in positioned}
                raise
        return refusals

    def _in_thread(self, work: Callable[[], T]) -> "Future[T]":
        self._asking()  # made here, where nobody else makes one
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "headrace-lookup")
        return self._thread.submit(work)

    def _is_done(self, lookup: "_Lookup[Any]") -> bool:
        """Return whether there is a result; if not, when to look again is set."""
        if lookup.result.done():
            return True
        self._look_at = max(self._look_at, self._monotonic() + _GLANCE_S)
        return False

    def _narrow(self, error: KafkaException, offsets: dict[Place, int]) -> list[Message]:
        """Look up fewer partitions next, others first; the errors that the lookup has shown."""
        for place in offsets:
            self._held[place] = self._held.pop(place)
        self._lookup_partitions = max(len(offsets) // 2, 1)
        if not is_permanent(error):
            return []
        if not is_of_topic(error):
            return self._reports(error, self._held)
        if len(offsets) == 1:
            return self._reports(error, offsets)
        self._look_at = 0.0  # one of them is refused; the others need not wait
        return []

    def _reports(self, error: KafkaException, places: Iterable[Place]) -> list[Message]:
        """An error of each partition that does not have it yet; the lookup goes on."""
        code = error.args[0].code()
        new = [place for place in places if self._reported.get(place) != code]
        self._reported |= dict.fromkeys(new, code)
        return [Message(topic=one, partition=part, error=error.args[0]) for one, part in new]

    def _decided_outside(self) -> list[Message]:
        """Look up the ends of the logs that positions are outside of, one by one; the refusals."""
        refused: list[Message] = []
        while True:
            lookup = self._outside_lookup
            if lookup is None:
                if not self._outside:
                    return refused
                place, message = next(iter(self._outside.items()))
                one = TopicPartition(*place)
                ends = partial(watermark_offsets, self._asking(), one, self._patience_s())
                places = {place: _number(message.offset())}
                lookup = self._outside_lookup = _Lookup(places, self._in_thread(ends))
            if not self._is_done(lookup):
                return refused
            self._outside_lookup = None
            for place in lookup.places:
                try:
                    start, end = lookup.result.result()
                except KafkaException as error:
                    self._failed(error, "an end of", [TopicPartition(*place)])
                    self._outside[place] = self._outside.pop(place)  # the others come first now
                    return refused
                self._failures = 0
                message = self._outside[place]
                if self._is_refused(place, _number(message.offset()), start, end):
                    refused.append(message)
                del self._outside[place]

    def _is_refused(self, place: Place, position: int, start: int, end: int) -> bool:
        """Read on where the strategy says, if it has a place."""
        reset = decide(Outside(position, start, end), self._strategy, self._out_of_range)
        if reset is Reset.REFUSE:
            return True
        to = {Reset.TO_EARLIEST: start, Reset.TO_LATEST: end, Reset.KEEP: position}[reset]
        self._go_on([TopicPartition(*place, to)])
        LOG.warning(
            "group %s: position %d of %s-%d is outside the log (%d to %d); %s, from %d",
            self._group, position, *place, start, end, reset.replace("_", " "), to,
        )  # fmt: skip
        return False

    def _go_on(self, targets: list[TopicPartition]) -> None:
        """Read on elsewhere: librdkafka stopped reading the partitions, or they are held."""
        moved = {(one.topic, one.partition): one.offset for one in targets}
        self._starts |= moved
        for place in moved:
            self._sought.pop(place, None)
        if self._is_subscribed and self._is_incremental:
            super().incremental_unassign(targets)
            super().incremental_assign(targets)
        else:
            others = [one for one in self.assignment() if (one.topic, one.partition) not in moved]
            kept = [self._as_read(one) for one in others]
            # librdkafka has no position of an assigned partition until a record of it is read.
            self._starts |= {(one.topic, one.partition): one.offset for one in kept}
            self._keep_stored(others)
            super().assign([*kept, *targets])
        self._pause_and_resume(
            [(one.topic, one.partition) for one in self.assignment()], set(moved)
        )

    def _as_read(self, partition: TopicPartition) -> TopicPartition:
        """A partition at what is read next of it."""
        place = partition.topic, partition.partition
        if place in self._stopped():
            return TopicPartition(*place, _ANYWHERE)
        position = self.position([partition])[0].offset
        before, sought = self._sought.get(place, (None, OFFSET_STORED))
        if position == before:
            position = sought
        elif position < 0:
            position = self._starts.get(place, OFFSET_STORED)
        return TopicPartition(partition.topic, partition.partition, position)


def _number(value: int | None) -> int:
    """A partition or an offset; negative if there is none, which confluent-kafka shows as None."""
    return -1 if value is None else value
