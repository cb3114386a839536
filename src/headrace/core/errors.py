"""Refusals: values with a domain name. `broker/errors.py` turns each into Kafka's code."""

from dataclasses import dataclass
from enum import Enum, auto


class Why(Enum):
    """The reason of a refusal, in words of the domain."""

    TOPIC_EXISTS = auto()
    UNKNOWN_TOPIC = auto()
    UNKNOWN_PARTITION = auto()
    INVALID_TOPIC = auto()
    INVALID_PARTITIONS = auto()
    INVALID_CONFIG = auto()
    INVALID_REQUEST = auto()
    INVALID_GROUP = auto()
    UNKNOWN_GROUP = auto()
    UNKNOWN_MEMBER = auto()
    WRONG_EPOCH = auto()
    INSTANCE_IN_USE = auto()
    UNKNOWN_ASSIGNOR = auto()
    INVALID_REGEX = auto()
    OLD_PROTOCOL = auto()
    GROUP_FULL = auto()
    NON_EMPTY_GROUP = auto()
    OFFSET_OUT_OF_RANGE = auto()
    SUBSCRIBED_TO_TOPIC = auto()
    STALE_EPOCH = auto()
    NOT_THE_HOLDER = auto()
    INVALID_SESSION_TIMEOUT = auto()
    INCONSISTENT_PROTOCOL = auto()
    ILLEGAL_GENERATION = auto()
    REBALANCE_IN_PROGRESS = auto()
    FENCED_INSTANCE = auto()
    WRONG_GROUP_TYPE = auto()
    METADATA_TOO_LARGE = auto()
    COORDINATOR_GONE = auto()
    LOG_CLOSED = auto()
    OTHER_PROTOCOL = auto()
    SESSION_NOT_FOUND = auto()
    SESSION_EPOCH = auto()
    SESSION_LIMIT = auto()
    FETCH_SESSION_NOT_FOUND = auto()
    FETCH_SESSION_EPOCH = auto()
    FETCH_SESSION_TOPIC_IDS = auto()


@dataclass(frozen=True, slots=True)
class Refused:
    """A command that was understood and not carried out; nothing changed."""

    why: Why
    message: str
