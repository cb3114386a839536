"""What can go wrong between a client and a broker, as exceptions that a reader can act on.

Three kinds: the broker cannot be reached (`Unreachable`), it refused (`BrokerError`, named as Kafka
names the code), or it cannot do what was asked (`Unsupported`, `DataLost`).
Source of names and of what may be tried again: Kafka's Errors.java, by way of kio.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.wire import data_folder_cut, lease_sessions, offset_expiry, share_records
from headrace.wire.error_codes import ErrorCode
from headrace.wire.leases import LeaseApi
from headrace.wire.share_archived import ArchivedApi

STORAGE_ERRORS = frozenset({int(ErrorCode.kafka_storage_error)})
"""Codes for files that the broker cannot read or write: consumers retry, administrators do not."""

_UNREADABLE = (
    "the broker cannot read files of the partition; see its log, and if it is Headrace, run "
    "`headrace check DATA_DIR` on its machine"
)
_REMEDIES = {
    ErrorCode.unknown_topic_or_partition: "create the topic, or correct its name",
    ErrorCode.offset_out_of_range: "the log no longer has, or not yet has, that offset",
    ErrorCode.invalid_group_id: "the name belongs to a group of another type, or is empty",
    ErrorCode.topic_already_exists: "use it, or delete it first",
    ErrorCode.non_empty_group: "stop its members first",
    # The text of KIP-496, and what to do.
    ErrorCode.group_subscribed_to_topic: (
        "The consumer group is actively subscribed to the topic; stop those members first"
    ),
}
# Kafka's own texts, for answers that have no room for one. Source: Errors.java.
_TEXTS = {
    3: "This server does not host this topic-partition.",
    12: "The metadata field of the offset request was too large.",
    14: "The coordinator is loading and hence can't process requests.",
    15: "The coordinator is not available.",
    16: "This is not the correct coordinator.",
    17: "The request attempted to perform an operation on an invalid topic.",
    22: "Specified group generation id is not valid.",
    24: "The group id is invalid.",
    25: "The coordinator is not aware of this member.",
    27: "The group is rebalancing, so a rejoin is needed.",
    29: "Topic authorization failed.",
    30: "Group authorization failed.",
    36: "Topic with this name already exists.",
    42: (
        "This most likely occurs because of a request being malformed by the client library or "
        "the message was sent to an incompatible broker. See the broker logs for more details."
    ),
    56: "Disk error when trying to access log file on the disk.",
    68: "The group is not empty.",
    69: "The group id does not exist.",
    82: (
        "The broker rejected this static consumer since another consumer with the same "
        "group.instance.id has registered with a different member.id."
    ),
    86: "The consumer group is actively subscribed to the topic",  # KIP-496
    113: (
        "The member epoch is stale. The member must retry after receiving its updated member "
        "epoch via the ConsumerGroupHeartbeat API."
    ),
}
# The APIs that are Headrace's own, and what uses them.
_OF_HEADRACE = {
    **dict.fromkeys(map(int, LeaseApi), ("the lease API", "share.group.id")),
    share_records.KEY: ("DescribeShareRecords", "browsing"),
    **dict.fromkeys(map(int, ArchivedApi), ("ListArchivedRecords", "the list of archived records")),
    lease_sessions.KEY: ("ListLeaseSessions", "the list of lease sessions"),
    offset_expiry.KEY: ("DescribeOffsetExpiry", "the forecast of offsets"),
    data_folder_cut.KEY: ("CutDataFolder", "a backup of a running broker"),
}
_OF_SHARE_GROUPS = frozenset({76, 77, 78, 79, 90, 91, 92})
SHARE_GROUPS_NEED = (
    "share groups need Headrace, or Apache Kafka 4.1 or newer, and have to be on "
    "(share.group.enable)"
)


class ClientError(Exception):
    """The base of all errors that the client raises on purpose."""


class Unreachable(ClientError):
    """No broker answered within the time allowed for trying again.

    Attributes:
        reason: the error of the last attempt, where there is one.
    """

    reason: Exception | None = None


class NotKafkaError(ConnectionError):
    """The peer answered in another protocol than Kafka's.

    Args:
        size: the first four bytes of the answer, which would be the size of a response.
    """

    def __init__(self, address: object, size: int) -> None:
        text = f"a frame of {size} bytes from {address}: not a Kafka broker?"
        if struct.pack(">i", size) == b"HTTP":
            text = f"{address} answers in HTTP, not in the Kafka protocol"
        super().__init__(text)


def unreachable(what: str, waited_s: float, servers: str, error: Exception) -> Unreachable:
    """Return the error of a client that gave up after `waited_s`, with a remedy.

    Args:
        error: the error of the last attempt.
    """
    remedy = "; is a broker running there?"
    if isinstance(error, BrokerError):
        remedy = ""
    elif isinstance(error, NotKafkaError):
        remedy = "; name the port of the broker's Kafka listener, not that of its metrics"
    found = Unreachable(f"{what}: gave up after {waited_s:g} s at {servers} ({error}){remedy}")
    found.reason = error
    return found


class Unsupported(ClientError):
    """The broker does not offer an API, or no version of it that this client speaks."""


class Unsendable(ClientError, ValueError):
    """What was given has no place in a request: a number too large, a text that is no Unicode."""


class Closed(ClientError):
    """The client was closed, before the call or during it, or the call was cancelled."""


class DataLost(ClientError):
    """Records that were promised are not in the log any more; names the offsets."""


class TopicLost(DataLost):
    """They are gone with their topic: no position in its log can be read."""


class BrokerError(ClientError):
    """The broker refused. `code` is Kafka's number, `name` its name, e.g. FENCED_MEMBER_EPOCH.

    `message` is what the broker said, or Kafka's text for the code where it said nothing. The
    text of the exception tells more: what was being done, and a remedy (one of ours for the code
    unless `remedy` is given).
    """

    def __init__(
        self, code: int, what: str, message: str | None = None, *, remedy: str | None = None
    ) -> None:
        self.code = int(code)
        self.name = _name(code)
        text = _TEXTS.get(self.code)
        self.message = message or text or f"{self.name}."
        remedy = _REMEDIES.get(_known(code)) if remedy is None else remedy
        parts = (message.rstrip(".") if message and remedy else message, remedy)
        told = "; ".join(part for part in parts if part) or text
        super().__init__(f"{what}: {self.name}" + (f": {told}" if told else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, which would give the text of the exception to `__init__` otherwise."""
        return _unpickled, (self.code, self.args[0], self.message)

    @property
    def retriable(self) -> bool:
        """Whether Kafka's clients would ask again. A missing topic is told at once instead."""
        known = _known(self.code)
        return known.retriable and known is not ErrorCode.unknown_topic_or_partition


def _unpickled(code: int, text: str, message: str) -> BrokerError:
    error = BrokerError(code, "", message)
    error.args = (text,)
    return error


def _known(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.unknown_server_error


def _name(code: int) -> str:
    known = _known(code)
    return known.name.upper() if known == code else f"error {code}"


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise `BrokerError` unless `code` is 0; `what` says what was being done."""
    if code:
        raise BrokerError(code, what, message)


def check_log(code: int, what: str) -> None:
    """Raise as `check`, for a response about the log of a partition.

    Such responses have no text, so an error of the broker's files gets a remedy for those.
    """
    if code:
        raise BrokerError(code, what, remedy=_UNREADABLE if code in STORAGE_ERRORS else None)


def refusal(code: int, what: str, message: str | None = None) -> BrokerError | None:
    """As `check`, but as a value: None when `code` is 0."""
    return BrokerError(code, what, message) if code else None


def left_out(requested: str, what: str) -> BrokerError:
    """Return the error of a requested topic, partition or member that a response leaves out."""
    text = f"{requested} was not included in the response"
    return BrokerError(ErrorCode.unknown_server_error, what, text)


def lacking(address: object, key: int, version: int, offered: range) -> Unsupported:
    """What is told of a broker that does not offer this version of an API."""
    if key in _OF_HEADRACE:
        lacks, user = _OF_HEADRACE[key]
        share = "" if key == offset_expiry.KEY else ", with share groups on (share.group.enable)"
        return Unsupported(f"{address} lacks {lacks}; {user} needs Headrace{share}")
    needed = "a newer or older broker is needed"
    if key in _OF_SHARE_GROUPS and not offered:
        needed = SHARE_GROUPS_NEED
    return Unsupported(
        f"{address} does not offer API {key} in version {version}, only {offered or 'none'}; "
        f"{needed}"
    )


@contextmanager
def sendable() -> Iterator[None]:
    """Around the making of a request. Raises: `Unsendable` when a field cannot hold its value."""
    try:
        yield
    except (struct.error, UnicodeEncodeError) as error:
        raise Unsendable(f"a request cannot hold what was given: {error}") from error
