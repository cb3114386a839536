"""The options of the source as a queue; docs/spark.md has the table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from headrace.client.reset_settings import OUT_OF_RANGE
from headrace.spark.options import (
    READ_SPELLINGS,
    ReadOptions,
    Spelling,
    count,
    count32,
    flag,
    parsed,
    topics,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(ReadOptions):
    """What `readStream.format("headrace")` was given with `share.group.id`."""

    topics: tuple[str, ...]
    group: str
    start: str = "latest"
    max_offsets_per_trigger: int = 100_000
    min_partitions: int | None = None
    max_records_per_partition: int = 50_000
    include_delivery: bool = False
    include_redriven: bool = True
    acquire_wait_ms: int = 200
    new_checkpoint: str = "fail"
    fail_on_lost_locks: bool = True

    CAN_REJECT = True

    @property
    def who(self) -> str:
        return self.group

    @property
    def log_prefix(self) -> str:
        return f"share group {self.group}: "

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """The options in `given`, in any case. Raises: `OptionError`, one line with the remedy."""
        return cls(**parsed(given, _SPELLINGS, _ELSEWHERE))

    @staticmethod
    def wanted(given: Mapping[str, str]) -> bool:
        """Whether these are a queue's options, and not a log's."""
        return any(name.lower() in _GROUP for name in given)


def _start(text: str) -> str:
    if text.lower() not in {"earliest", "latest"}:
        raise ValueError("give 'earliest' or 'latest'; a share group keeps its own positions")
    return text.lower()


def _new_checkpoint(text: str) -> str:
    if text.lower() not in NEW_CHECKPOINT:
        raise ValueError(
            "give 'fail' to refuse a new checkpoint on a group that an earlier one has read, or "
            "'continue' to read on from the group's position, with batch ids from 0 again"
        )
    return text.lower()


NEW_CHECKPOINT = ("fail", "continue")
_GROUP = ("share.group.id", "kafka.share.group.id")
_SPELLINGS = (
    *READ_SPELLINGS,
    Spelling("subscribe", "topics", topics, "orders,payments"),
    Spelling("share.group.id", "group", str, "billing"),
    Spelling("kafka.share.group.id", "group", str),
    Spelling("startingOffsets", "start", _start),
    Spelling("maxOffsetsPerTrigger", "max_offsets_per_trigger", count),
    Spelling("minPartitions", "min_partitions", count32),
    Spelling("maxRecordsPerPartition", "max_records_per_partition", count),
    Spelling("includeDelivery", "include_delivery", flag),
    Spelling("includeRedriven", "include_redriven", flag),
    Spelling("acquireWaitMs", "acquire_wait_ms", count32),
    Spelling("newCheckpoint", "new_checkpoint", _new_checkpoint),
    Spelling("failOnDataLoss", "fail_on_data_loss", flag),
    Spelling("failOnLostLocks", "fail_on_lost_locks", flag),
)
_NO_POSITIONS = "it is of the source as a log; a share group keeps its own positions"
_NEW_TOPICS = "say with 'startingOffsets' where a topic starts that is new to the group"
_NO_END = "it is for batch queries; a queue streams"
_NO_WAITING = (
    "it is of the source as a log; a queue takes what is there: set the trigger's interval instead"
)
_NO_LOOKUP = "a queue looks up no offsets; 'retryTimeoutMs' says how long brokers are asked again"
_ELSEWHERE = {
    "path": "load() takes no path; name topics with option 'subscribe'",
    "subscribepattern": "name the topics with 'subscribe'",
    "assign": "a share group assigns ranges itself; name the topics with 'subscribe'",
    "kafka.group.id": "a share group is named by 'share.group.id'",
    "groupidprefix": "no group is made up; a share group is named by 'share.group.id'",
    "startingtimestamp": _NEW_TOPICS,
    "startingoffsetsbytimestamp": _NEW_TOPICS,
    "startingoffsetsbytimestampstrategy": _NEW_TOPICS,
    "endingoffsets": _NO_END,
    "endingtimestamp": _NO_END,
    "endingoffsetsbytimestamp": _NO_END,
    "minoffsetspertrigger": _NO_WAITING,
    "maxtriggerdelay": _NO_WAITING,
    "fetchoffset.numretries": _NO_LOOKUP,
    "fetchoffset.retryintervalms": _NO_LOOKUP,
    "kafkaconsumer.polltimeoutms": "it is 'requestTimeoutMs' here",
    "kafka.isolation.level": "a share group has one for all; set its 'share.isolation.level'",
    "kafka.auto.offset.reset": _NEW_TOPICS,
    OUT_OF_RANGE: _NO_POSITIONS,
    f"kafka.{OUT_OF_RANGE}": _NO_POSITIONS,
}
