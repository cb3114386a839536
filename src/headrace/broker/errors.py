"""Refusals as Kafka's error codes: the one place where a domain name becomes a number.

Source: Kafka protocol guide, "Error Codes".
"""

from enum import IntEnum
from typing import assert_never

from headrace.core.errors import Refused, Why


class Code(IntEnum):
    """Error codes that Headrace answers with."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC = 17
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TRANSACTION_TIMEOUT = 50
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    STORAGE_ERROR = 56
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    RESOURCE_NOT_FOUND = 91
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    INVALID_REGULAR_EXPRESSION = 128
    SHARE_SESSION_LIMIT_REACHED = 133


class Faulty(Exception):
    """A part of a request that cannot be carried out, with the code that tells the client so."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def error_code(refused: Refused | None) -> Code:
    """The code of a refusal; none without one."""
    return Code.NONE if refused is None else _code(refused.why)


def _code(why: Why) -> Code:  # noqa: C901  # one line a reason, and exhaustive
    match why:
        case Why.TOPIC_EXISTS:
            return Code.TOPIC_ALREADY_EXISTS
        case Why.UNKNOWN_TOPIC | Why.UNKNOWN_PARTITION:
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        case Why.INVALID_TOPIC:
            return Code.INVALID_TOPIC
        case Why.INVALID_PARTITIONS:
            return Code.INVALID_PARTITIONS
        case Why.INVALID_CONFIG:
            return Code.INVALID_CONFIG
        case Why.INVALID_REQUEST:
            return Code.INVALID_REQUEST
        case Why.INVALID_GROUP:
            return Code.INVALID_GROUP_ID
        case Why.UNKNOWN_GROUP | Why.WRONG_GROUP_TYPE:
            return Code.GROUP_ID_NOT_FOUND
        case Why.UNKNOWN_MEMBER:
            return Code.UNKNOWN_MEMBER_ID
        case Why.WRONG_EPOCH:
            return Code.STALE_MEMBER_EPOCH
        case Why.INSTANCE_IN_USE:
            return Code.UNRELEASED_INSTANCE_ID
        case Why.UNKNOWN_ASSIGNOR:
            return Code.UNSUPPORTED_ASSIGNOR
        case Why.INVALID_REGEX:
            return Code.INVALID_REGULAR_EXPRESSION
        case Why.OLD_PROTOCOL:
            return Code.UNSUPPORTED_VERSION
        case Why.GROUP_FULL:
            return Code.GROUP_MAX_SIZE_REACHED
        case Why.NON_EMPTY_GROUP:
            return Code.NON_EMPTY_GROUP
        case Why.SUBSCRIBED_TO_TOPIC:
            return Code.GROUP_SUBSCRIBED_TO_TOPIC
        case Why.STALE_EPOCH:
            return Code.FENCED_MEMBER_EPOCH
        case Why.NOT_THE_HOLDER:
            return Code.INVALID_RECORD_STATE
        case Why.INVALID_SESSION_TIMEOUT:
            return Code.INVALID_SESSION_TIMEOUT
        case Why.INCONSISTENT_PROTOCOL:
            return Code.INCONSISTENT_GROUP_PROTOCOL
        case Why.ILLEGAL_GENERATION:
            return Code.ILLEGAL_GENERATION
        case Why.REBALANCE_IN_PROGRESS:
            return Code.REBALANCE_IN_PROGRESS
        case Why.FENCED_INSTANCE:
            return Code.FENCED_INSTANCE_ID
        case Why.METADATA_TOO_LARGE:
            return Code.OFFSET_METADATA_TOO_LARGE
        case Why.COORDINATOR_GONE:
            return Code.COORDINATOR_NOT_AVAILABLE
        case Why.SESSION_NOT_FOUND:
            return Code.SHARE_SESSION_NOT_FOUND
        case Why.SESSION_EPOCH:
            return Code.INVALID_SHARE_SESSION_EPOCH
        case Why.SESSION_LIMIT:
            return Code.SHARE_SESSION_LIMIT_REACHED
        case Why.FETCH_SESSION_NOT_FOUND:
            return Code.FETCH_SESSION_ID_NOT_FOUND
        case Why.FETCH_SESSION_EPOCH:
            return Code.INVALID_FETCH_SESSION_EPOCH
        case Why.FETCH_SESSION_TOPIC_IDS:
            return Code.FETCH_SESSION_TOPIC_ID_ERROR
        case _:
            assert_never(why)
