"""ListLeaseSessions (20921), of Headrace's own: who reads share groups by lease, and how far.

A session is a reader that the lease API names (`wire/leases.py`), such as the checkpoint of a Spark
query; it outlives its driver. Nothing is changed by asking. Messages are flexible (compact types,
request header 2, response header 1), version 0.
"""

from dataclasses import dataclass

from headrace.wire.structs import Int8, Int16, Int32, Int64, MaybeText, Struct, Text

KEY, VERSION = 20921, 0
SESSIONS_MAX = 1_000  # in one answer
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class ListLeaseSessionsRequest(Struct):
    """The sessions that come behind a group and a session, of one group unless that is ""."""

    group: Text = ""
    after_group: Text = ""
    after_session: Text = ""


@dataclass(frozen=True, slots=True)
class Outstanding(Struct):
    """An acquisition that is not committed, and how many records it holds: with locks."""

    seq: Int64
    records: Int64


@dataclass(frozen=True, slots=True)
class Session(Struct):
    """A session; `committed` is its last committed number.

    `active` is 1 while its driver is at work: for as long after each call as locks last. The last
    call was `seen_ms` ago, counted from the broker's start when that was later; -1 if there is
    none. `lapsed` counts the records of outstanding acquisitions whose locks have ended.
    """

    group: Text
    session: Text
    epoch: Int32
    committed: Int64
    active: Int8
    seen_ms: Int64
    topics: tuple[Text, ...]
    outstanding: tuple[Outstanding, ...]
    lapsed: Int64


@dataclass(frozen=True, slots=True)
class ListLeaseSessionsResponse(Struct):
    """Sessions by group and name; `more` is 1 when there are some behind these.

    `error_code` is 15 when the journal cannot be written.
    """

    error_code: Int16
    error_message: MaybeText
    sessions: tuple[Session, ...] = ()
    more: Int8 = 0
