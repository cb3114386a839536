"""Who reads share groups by lease: the sessions that the broker knows.

Source: ListLeaseSessions (20921) of Headrace, see `wire/lease_sessions.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.client.connection import Cluster
from headrace.client.own_apis import ask_own
from headrace.wire.lease_sessions import (
    KEY,
    UNKNOWN,
    VERSION,
    ListLeaseSessionsRequest,
    ListLeaseSessionsResponse,
    Session,
)


@dataclass(frozen=True, slots=True)
class LeaseSession:
    """A reader that holds records by lease, such as a Spark query by its checkpoint.

    Numbers are those of its batches: `committed` is the last that was settled, `outstanding` has
    the number of locked records of each that was not; `lapsed` counts the records of those whose
    locks have ended. `seen_ms` is how long ago its last call was, None when the
    broker has heard of none; `active` whether that counts as being at work.
    """

    group: str
    session: str
    epoch: int
    committed: int
    active: bool
    seen_ms: int | None
    topics: tuple[str, ...]
    outstanding: Mapping[int, int]
    lapsed: int

    @property
    def held(self) -> int:
        """Locked records of the batches that were not settled."""
        return sum(self.outstanding.values())


def list_lease_sessions(cluster: Cluster, group: str | None = None) -> list[LeaseSession]:
    """The sessions of a share group, or of all of them, by group and name.

    Raises: `BrokerError` 15; `Unsupported` on any other broker than Headrace; otherwise as
    `Cluster`.
    """
    found: list[LeaseSession] = []
    after, more = ("", ""), True
    while more:
        answer = _page(cluster, ListLeaseSessionsRequest(group or "", *after))
        found += map(_told, answer.sessions)
        if answer.sessions:
            after = (answer.sessions[-1].group, answer.sessions[-1].session)
        more = bool(answer.more)
    return found


def _page(cluster: Cluster, request: ListLeaseSessionsRequest) -> ListLeaseSessionsResponse:
    what = "listing lease sessions"

    def attempt() -> ListLeaseSessionsResponse:
        return ask_own(cluster, None, (KEY, VERSION), request, ListLeaseSessionsResponse, what)

    return cluster.retrying(what, attempt)


def _told(one: Session) -> LeaseSession:
    return LeaseSession(
        one.group,
        one.session,
        one.epoch,
        one.committed,
        bool(one.active),
        None if one.seen_ms == UNKNOWN else one.seen_ms,
        one.topics,
        {number.seq: number.records for number in one.outstanding},
        one.lapsed,
    )
