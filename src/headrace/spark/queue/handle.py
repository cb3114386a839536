"""The `lease` column: whose records a batch holds, and where verdicts on them are staged."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from headrace.client.connection import Cluster, Patience
from headrace.client.errors import Unreachable
from headrace.client.leases import Lease
from headrace.wire.leases import Disposition

_REPLAYED = "replayed"
_PATIENCE = Patience(total_s=10.0)  # a driver that is gone does not come back


@dataclass(frozen=True, slots=True)
class Handle:
    """Number `seq` of a session, as its driver of that `epoch` acquired it.

    `address` (host:port) is where verdicts go when the broker itself does not keep them, "" when it
    does. `replayed`: the batch was another driver's, which may have died of a record in it.
    """

    session: str
    epoch: int
    seq: int
    address: str = ""
    replayed: bool = False

    @property
    def text(self) -> str:
        parts = [self.session, str(self.epoch), str(self.seq), self.address]
        return "/".join(filter(None, [*parts, _REPLAYED if self.replayed else ""]))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises: ValueError for what is no handle."""
        session, epoch, seq, *more = text.split("/")
        replayed = more[-1:] == [_REPLAYED]
        address = more[:-1] if replayed else more
        if len(address) > 1:
            raise ValueError(f"{text!r} is not what the source put in the column lease")
        return cls(session, int(epoch), int(seq), "".join(address), replayed)


def stage(
    broker: Cluster, group: str, lease: str, dispositions: Sequence[Disposition], part: str = ""
) -> None:
    """Stage verdicts on the batch of a `lease` where they are kept: at the broker or the driver.

    Raises: ValueError for what is no handle; as `Lease.stage`.
    """
    handle = Handle.parse(lease)
    said = tuple(dispositions)
    if not handle.address:
        Lease(broker, group, handle.session, handle.epoch).stage(handle.seq, said, part)
        return
    with Cluster(handle.address, client_id=f"headrace-spark-{group}", patience=_PATIENCE) as driver:
        try:
            Lease(driver, group, handle.session, handle.epoch).stage(handle.seq, said, part)
        except Unreachable as error:
            raise Unreachable(
                f"verdicts did not reach the driver of the query at {handle.address}: either it is "
                f"gone, or no connection to it is allowed from here ({error})"
            ) from None
