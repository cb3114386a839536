"""The words of a share consumer: verdicts, settings, results, and what goes wrong. KIP-932."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from headrace.client.connection import Address
from headrace.client.errors import ClientError

REASON_MAX = 1_024  # characters; a broker keeps as many bytes
Place = tuple[UUID, int]  # a topic's id and a partition: the names that share groups go by


class Verdict(IntEnum):
    """What is said of a record; Kafka's acknowledge types."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class LockLost(ClientError):
    """The record is not this consumer's any more: it is, or will be, delivered again.

    `why` says what took it away, without the offsets that the text names.
    """

    def __init__(self, text: str, why: str | None = None) -> None:
        super().__init__(text)
        self.why = text if why is None else why


class HandFull(ClientError):
    """So many records have no verdict yet that no more may be taken."""


class AlreadyAcknowledged(ClientError):
    """A verdict was given to this record before."""


def must_be_text(reason: object) -> None:
    """Raises: TypeError for a reason that is none, before it could end the consumer."""
    if not isinstance(reason, str | None):
        raise TypeError(f"a reason is text, not {reason!r}; give str() of it")


def sendable_text(reason: str) -> str:
    """As much of a reason as is kept, without what UTF-8 cannot say (halves of surrogates)."""
    return reason[:REASON_MAX].encode(errors="backslashreplace").decode()


class Reject(Exception):
    """Raised by a handler: the record cannot be processed, and must not be tried again.

    `reason` is kept with what becomes of it where the broker is Headrace. Raises: TypeError for
    what is no text, for an exception say: `str(error)` is its text.
    """

    def __init__(self, reason: str | None = None) -> None:
        must_be_text(reason)
        super().__init__(reason or "rejected")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class AcknowledgeResult:
    """What became of one verdict on the records `first` to `last`; `error` is None when it holds.

    `verdict` is "accept", "release", "reject" or "renew".
    """

    topic: str
    partition: int
    first: int
    last: int
    verdict: str
    error: ClientError | None


@dataclass(slots=True)
class ShareStats:
    """Counts of records since the consumer was opened.

    `accepted`, `released`, `rejected` and `renewed` count what the broker has confirmed, `lost` the
    verdicts that came too late; `in_hand` is a count of now, unconfirmed verdicts included.
    """

    acquired: int = 0
    accepted: int = 0
    released: int = 0
    rejected: int = 0
    renewed: int = 0
    lost: int = 0
    in_hand: int = 0
    reconnects: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """How a consumer was opened. `renew_s_max` is 0 where locks are renewed when asked only.

    `member_id` is for one that takes over the membership of a process that is gone.
    """

    bootstrap: tuple[Address, ...]
    group: str
    topics: tuple[str, ...]
    client_id: str
    client_rack: str | None
    max_poll_records: int
    max_in_hand: int
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    fetch_max_bytes: int
    renew_s_max: float
    timeout_s: float
    on_acknowledged: Callable[[AcknowledgeResult], None] | None
    member_id: str | None = None

    def __post_init__(self) -> None:
        """Raises: ValueError for what makes no sense."""
        if not self.group:
            raise ValueError("the name of the group is empty")
        if not self.topics:
            raise ValueError("no topic is given; name those to read from")
        for name in ("max_poll_records", "max_in_hand", "fetch_max_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give a number above 0")
        for name in ("fetch_max_wait_ms", "fetch_min_bytes", "renew_s_max"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; give 0 or more")
        if not 0 < self.timeout_s < math.inf:
            raise ValueError(f"timeout_s is {self.timeout_s}; give a number of seconds above 0")
