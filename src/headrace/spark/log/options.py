"""The options of the source as a log; docs/spark.md has the table."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from headrace.client.offsets import OffsetSpec, TopicPartition
from headrace.client.reset_settings import OUT_OF_RANGE
from headrace.client.resets import OutOfRange, Strategy
from headrace.spark.log.bounds import (
    Bound,
    Committed,
    Offsets,
    Time,
    Times,
    assignment,
    ending_offsets,
    starting_offsets,
    timestamp,
    timestamps,
)
from headrace.spark.log_lines import show
from headrace.spark.options import (
    INT64_MAX,
    READ_SPELLINGS,
    OptionError,
    ReadOptions,
    Spelling,
    at_most,
    count,
    count32,
    flag,
    parsed,
    topics,
)

LOG = logging.getLogger(__name__)

_DELAY_S = 900.0
_LATEST, _EARLIEST = int(OffsetSpec.LATEST), int(OffsetSpec.EARLIEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions(ReadOptions):
    """What `format("headrace")` was given without `share.group.id`.

    Of `topics`, `pattern` and `assigned` one is given. Bounds that are None have a default that
    depends on the use: `starts` and `ends` tell.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()
    group: str | None = None
    start: Bound | None = None
    start_times: Bound | None = None
    start_time: Bound | None = None
    end: Bound | None = None
    end_times: Bound | None = None
    end_time: Bound | None = None
    no_match: str = "error"
    out_of_range: OutOfRange | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_s: float = _DELAY_S
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    group_id_prefix: str | None = None
    offset_retries: int = 3
    offset_retry_ms: int = 1_000

    @property
    def who(self) -> str:
        return self.group or "log"

    @property
    def given_start(self) -> Bound | None:
        """The start that was given: a time counts before times, and these before offsets."""
        return self.start_time or self.start_times or self.start

    @property
    def strategy(self) -> Strategy | None:
        """The strategy of KIP-842 that was given as the start; None: a start of Spark's."""
        start = self.given_start
        return start if isinstance(start, Strategy) else None

    @property
    def when_outside(self) -> OutOfRange:
        """What becomes of positions outside the log: as told, or else as `failOnDataLoss` says."""
        if self.out_of_range is not None:
            return self.out_of_range
        return OutOfRange.NONE if self.fail_on_data_loss else OutOfRange.NEAREST

    @property
    def passes_removed(self) -> bool:
        return self.when_outside is OutOfRange.NEAREST

    @property
    def loss_remedy(self) -> str:
        is_given = self.out_of_range is not None
        return f"{OUT_OF_RANGE} to nearest" if is_given else "failOnDataLoss to false"

    @property
    def given_end(self) -> Bound | None:
        """The end that was given, in the same order."""
        return self.end_time or self.end_times or self.end

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """The options in `given`, in any case. Raises: `OptionError`, one line with the remedy."""
        found = cls(**parsed(given, _SPELLINGS, _ELSEWHERE))
        named = [bool(found.topics), found.pattern is not None, bool(found.assigned)]
        if sum(named) != 1:
            raise OptionError(
                "give 'share.group.id' to read as a queue, or one of 'subscribe', "
                "'subscribePattern' and 'assign' to read as a log"
                if not any(named)
                else "give one of 'subscribe', 'subscribePattern' and 'assign', not several"
            )
        if isinstance(found.given_start, Committed) and found.group is None:
            raise OptionError(
                "startingOffsets 'committed' are those of a group; name it with 'kafka.group.id'"
            )
        fewest, most = found.min_offsets_per_trigger, found.max_offsets_per_trigger
        if fewest is not None and most is not None and fewest > most:
            raise OptionError(
                f"minOffsetsPerTrigger ({fewest}) is more than maxOffsetsPerTrigger ({most}); "
                "lower the one or raise the other"
            )
        return found

    def for_stream(self) -> Self:
        """These options. Raises: `OptionError` when they are not those of a stream."""
        if self.given_end is not None:
            raise OptionError(
                "a stream has no end: leave out 'endingOffsets', 'endingTimestamp' and "
                "'endingOffsetsByTimestamp', or use spark.read"
            )
        return self

    def for_batch(self) -> Self:
        """These options. Raises: `OptionError` when they are not those of a batch query.

        Limits of triggers are no error, as with Spark's Kafka source: a warning says so.
        """
        start, end = self.given_start, self.given_end
        if start is OffsetSpec.LATEST or _names(start, _LATEST):
            raise OptionError(
                "a batch query cannot start at latest, it would have nothing to read: leave "
                "'startingOffsets' out, or use spark.readStream"
            )
        if self.strategy in {Strategy.LATEST_ON_START, Strategy.SAFE_LATEST} and not self.group:
            raise OptionError(
                f"a batch query that starts at {self.strategy} would have nothing to read: name "
                "the group whose offsets it starts at with 'kafka.group.id', leave "
                "'startingOffsets' out, or use spark.readStream"
            )
        if end is OffsetSpec.EARLIEST or _names(end, _EARLIEST):
            raise OptionError("a batch query cannot end at earliest: leave 'endingOffsets' out")
        for first, last in ((Offsets, Offsets), (Times, Times)):
            if isinstance(start, first) and isinstance(end, last):
                _must_fit(start.of, end.of)
        if isinstance(start, Time) and isinstance(end, Time) and start.ms > end.ms:
            raise OptionError(
                f"startingTimestamp {start.ms} is after endingTimestamp {end.ms}; exchange them"
            )
        self._tell_limits()
        return self

    def _tell_limits(self) -> None:
        limits = {
            "maxOffsetsPerTrigger": self.max_offsets_per_trigger is not None,
            "minOffsetsPerTrigger": self.min_offsets_per_trigger is not None,
            "maxTriggerDelay": self.max_trigger_delay_s != _DELAY_S,
        }
        given = [name for name, is_given in limits.items() if is_given]
        if given:
            show(self.log_level)
            LOG.warning(
                "%s: for streams, without effect in a batch query, which reads all between its "
                "bounds at once",
                ", ".join(given),
            )


def _names(bound: Bound | None, number: int) -> bool:
    return isinstance(bound, Offsets) and number in bound.of.values()


def _must_fit(start: dict[TopicPartition, int], end: dict[TopicPartition, int]) -> None:
    if start.keys() != end.keys():
        (topic, partition), *_ = sorted(start.keys() ^ end.keys())
        raise OptionError(
            f"start and end must name the same partitions, but {topic}-{partition} stands in one "
            "of them only"
        )
    for (topic, partition), first in sorted(start.items()):
        last = end[topic, partition]
        if min(first, last) >= 0 and first > last:
            raise OptionError(
                f"{topic}-{partition} starts at {first}, after its end {last}; exchange them"
            )


def _name(text: str) -> str:
    if not text:
        raise ValueError("give the name of a group")
    return text


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"it is no regular expression: {error}") from None
    if not text:
        raise ValueError("give a regular expression that whole topic names match, e.g. 'orders-.*'")
    return text


_MINUTE_MS = 60_000
_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": _MINUTE_MS, "min": _MINUTE_MS}
_UNITS_MS |= {"h": 60 * _MINUTE_MS, "d": 24 * 60 * _MINUTE_MS}


def _delay(text: str) -> float:
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
    if found is None or found[2] not in _UNITS_MS:
        raise ValueError("give a time with its unit (ms, s, m, h, d), e.g. '15m'")
    unit_ms = _UNITS_MS[found[2]]
    return at_most(int(found[1]), INT64_MAX // unit_ms) * unit_ms / 1000


def _no_match(text: str) -> str:
    if text.lower() not in {"error", "latest"}:
        raise ValueError("give 'error' or 'latest'")
    return text.lower()


def _isolation(text: str) -> bool:
    if text.lower() not in {"read_committed", "read_uncommitted"}:
        raise ValueError("give 'read_committed' or 'read_uncommitted'")
    return text.lower() == "read_committed"


def _out_of_range(text: str) -> OutOfRange:
    if text.lower() not in set(OutOfRange):
        raise ValueError("give 'none' or 'nearest'")
    return OutOfRange(text.lower())


_SPELLINGS = (
    *READ_SPELLINGS,
    Spelling("subscribe", "topics", topics),
    Spelling("subscribePattern", "pattern", _pattern),
    Spelling("assign", "assigned", assignment),
    Spelling("kafka.group.id", "group", _name),
    Spelling("startingOffsets", "start", starting_offsets),
    Spelling("startingOffsetsByTimestamp", "start_times", timestamps),
    Spelling("startingTimestamp", "start_time", timestamp),
    Spelling("startingOffsetsByTimestampStrategy", "no_match", _no_match),
    Spelling(OUT_OF_RANGE, "out_of_range", _out_of_range),
    Spelling(f"kafka.{OUT_OF_RANGE}", "out_of_range", _out_of_range),
    Spelling("endingOffsets", "end", ending_offsets),
    Spelling("endingOffsetsByTimestamp", "end_times", timestamps),
    Spelling("endingTimestamp", "end_time", timestamp),
    Spelling("failOnDataLoss", "fail_on_data_loss", flag),
    Spelling("maxOffsetsPerTrigger", "max_offsets_per_trigger", count),
    Spelling("minOffsetsPerTrigger", "min_offsets_per_trigger", count),
    Spelling("maxTriggerDelay", "max_trigger_delay_s", _delay),
    Spelling("minPartitions", "min_partitions", count32),
    Spelling("maxRecordsPerPartition", "max_records_per_partition", count),
    Spelling("kafka.isolation.level", "read_committed", _isolation),
    Spelling("groupIdPrefix", "group_id_prefix", str),
    Spelling("fetchOffset.numRetries", "offset_retries", count32),
    Spelling("fetchOffset.retryIntervalMs", "offset_retry_ms", count32),
    Spelling("kafkaConsumer.pollTimeoutMs", "request_timeout_ms", count32),
)
_QUEUE_ONLY = "it is of the source as a queue; name the share group with 'share.group.id'"
_BINARY = "keys and values are binary columns; decode them with DataFrame functions"
_TIMEOUT = "it is 'requestTimeoutMs' here, and 'retryTimeoutMs' for all tries together"
_PLAIN = "connections are not encrypted or authenticated yet; use a listener of type PLAINTEXT"
_RESET = (
    "say with 'startingOffsets' where to start, which takes 'safe_latest' and its like too, and "
    f"with '{OUT_OF_RANGE}' what becomes of a position outside the log"
)
_ELSEWHERE = {
    "path": "load() takes no path; name topics with option 'subscribe'",
    "includedelivery": _QUEUE_ONLY,
    "includeredriven": _QUEUE_ONLY,
    "acquirewaitms": _QUEUE_ONLY,
    "newcheckpoint": _QUEUE_ONLY,
    "failonlostlocks": _QUEUE_ONLY,
    "auto.offset.reset": _RESET,
    "kafka.auto.offset.reset": _RESET,
    "kafka.key.deserializer": _BINARY,
    "kafka.value.deserializer": _BINARY,
    "kafka.enable.auto.commit": "offsets are committed to 'kafka.group.id' after each batch",
    "kafka.interceptor.classes": "use DataFrame functions",
    "kafka.request.timeout.ms": _TIMEOUT,
    "kafka.default.api.timeout.ms": _TIMEOUT,
    "kafka.max.poll.records": "use 'maxOffsetsPerTrigger' or 'maxRecordsPerPartition'",
    "kafka.security.protocol": _PLAIN,
    "kafka.sasl.mechanism": _PLAIN,
    "kafka.sasl.jaas.config": _PLAIN,
}
