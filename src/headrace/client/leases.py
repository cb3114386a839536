"""The lease API from the reader's side: acquire ranges, stage dispositions, commit.

Every call is idempotent on the broker (see `wire/leases.py`), so each is repeated across
reconnects. `open` gives a new epoch each time; the last answer counts and fences the others.
"""

from typing import TypeVar

from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.wire.error_codes import ErrorCode
from headrace.wire.leases import (
    AcquireRequest,
    AcquireResponse,
    Bound,
    CommitRequest,
    CommitResponse,
    DescribeRequest,
    DescribeResponse,
    Disposition,
    OpenRequest,
    OpenResponse,
    Range,
    RenewRequest,
    RenewResponse,
    SharePartition,
    StageRequest,
    StageResponse,
)
from headrace.wire.primitives import Writer

_VERSION = 0
_REMEDIES: dict[int, str] = {
    ErrorCode.fenced_member_epoch: ("stop one of the two, or give each its own checkpoint"),
    ErrorCode.unknown_member_id: (
        "the broker does not know the session in this checkpoint (another broker, or a new data "
        "folder?); use a new checkpoint and a new output folder, with option "
        "newCheckpoint=continue, to read on from the group's position"
    ),
}
Answer = TypeVar(
    "Answer",
    OpenResponse,
    AcquireResponse,
    RenewResponse,
    StageResponse,
    CommitResponse,
    DescribeResponse,
)
Request = (
    OpenRequest | AcquireRequest | RenewRequest | StageRequest | CommitRequest | DescribeRequest
)


class Lease:
    """What one session holds of a share group; not safe for use by several threads.

    `lock_ms` is how long locks last, as of the last response that has it, and 0 before.
    Raises: `BrokerError` 110 when a newer driver opened the session, 25 when the broker does not
    know it, 42 for a number out of order; otherwise as `Cluster`, from every method.
    """

    def __init__(self, cluster: Cluster, group: str, session: str, epoch: int = -1) -> None:
        self.cluster = cluster
        self.group = group
        self.session = session
        self.epoch = epoch
        self.lock_ms = 0

    def open(self, topics: tuple[str, ...], start: str) -> OpenResponse:
        """Open the session on `topics`; one that is new to the group starts "earliest"/"latest"."""
        request = OpenRequest(self.group, self.session, -1, topics, start)
        answer = _asked(self.cluster, request, OpenResponse, "opening the session")
        self.epoch = answer.epoch
        self.lock_ms = answer.lock_ms
        return answer

    def acquire(
        self, seq: int, max_records: int, max_wait_ms: int, bounds: tuple[Bound, ...] = ()
    ) -> tuple[Range, ...]:
        """The ranges held under `seq`, below `bounds` where there are some; none when nothing
        became available within `max_wait_ms`.
        """
        request = AcquireRequest(
            self.group, self.session, self.epoch, seq, max_records, max_wait_ms, bounds
        )
        wait_s = max_wait_ms / 1000
        what = f"acquiring number {seq}"
        answer = _asked(self.cluster, request, AcquireResponse, what, wait_s=wait_s)
        self.lock_ms = answer.lock_ms or self.lock_ms
        return answer.ranges

    def renew(self) -> RenewResponse:
        """Restart the locks of everything outstanding."""
        request = RenewRequest(self.group, self.session, self.epoch)
        answer = _asked(self.cluster, request, RenewResponse, "renewing locks")
        self.lock_ms = answer.lock_ms or self.lock_ms
        return answer

    def stage(self, seq: int, dispositions: tuple[Disposition, ...], part: str = "") -> None:
        """Replace what `part` staged under `seq`; returns once it is durable.

        What other parts staged stays; of what several say of a record the strictest holds.
        """
        request = StageRequest(self.group, self.session, self.epoch, seq, dispositions, part)
        _asked(self.cluster, request, StageResponse, f"staging for number {seq}")

    def commit(self, seq: int) -> CommitResponse:
        """Settle every number up to `seq`: as staged, the rest accepted."""
        request = CommitRequest(self.group, self.session, self.epoch, seq)
        return _asked(self.cluster, request, CommitResponse, f"committing number {seq}")


def describe(cluster: Cluster, group: str) -> tuple[SharePartition, ...]:
    """Every share-partition of the group with its in-flight runs. Raises: as `Lease`."""
    request = DescribeRequest(group, "", -1)
    return _asked(cluster, request, DescribeResponse, "describing the state").partitions


def _asked(
    cluster: Cluster, request: Request, answer: type[Answer], doing: str, *, wait_s: float = 0
) -> Answer:
    what = f"share group {request.group!r}: {doing}"
    body = _body(request)

    def attempt() -> Answer:
        source = cluster.exchange(None, request.KEY, _VERSION, body, flexible=True, wait_s=wait_s)
        found = answer.read(source)
        if code := found.error_code:
            raise BrokerError(code, what, found.error_message, remedy=_REMEDIES.get(code))
        return found

    return cluster.retrying(what, attempt)


def _body(request: Request) -> bytearray:
    out = Writer()
    request.write(out)
    return out.data
