"""The `lease` column: whose records a batch holds, and where verdicts on them are staged."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, unquote

from headrace.client.connection import Cluster, Patience
from headrace.client.errors import Unreachable
from headrace.client.leases import Lease
from headrace.wire.leases import Disposition

_REPLAYED, _HELD = "replayed", "held="
_PATIENCE = Patience(total_s=10.0)  # a driver that is gone does not come back


@dataclass(frozen=True, slots=True)
class Handle:
    """Number `seq` of a session, as its driver of that `epoch` acquired it.

    `address` (host:port) is where verdicts go when the broker itself does not keep them, "" when it
    does. `replayed`: the batch was another driver's, which may have died of a record in it.
    `group` and `brokers` (host:port,host:port) tell whoever has nothing but a row whose it is; ""
    in rows that were made by hand, which nobody holds. `held` counts the records of the batch that
    the session held when the batch was planned, `left_out` those whose locks had ended; `held` is
    None where a lost lock does not fail the batch.
    """

    session: str
    epoch: int
    seq: int
    address: str = ""
    replayed: bool = False
    group: str = ""
    brokers: str = ""
    held: int | None = None
    left_out: int = 0

    @property
    def text(self) -> str:
        whose = f"{quote(self.group, safe='')}@{self.brokers}" if self.brokers else ""
        held = "" if self.held is None else f"{_HELD}{self.held}"
        if self.left_out:
            held += f"-{self.left_out}"
        parts = [self.session, str(self.epoch), str(self.seq), whose, self.address, held]
        return "/".join(filter(None, [*parts, _REPLAYED if self.replayed else ""]))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises: ValueError for what is no handle."""
        try:
            return cls._parsed(*text.split("/"))
        except (TypeError, ValueError):
            raise ValueError(
                f"invalid lease {text!r}: the column lease must reach acknowledge, accepted and "
                "the like as the source made it; do not change or fill it"
            ) from None

    @classmethod
    def _parsed(cls, session: str, epoch: str, seq: str, *rest: str) -> Self:
        more = list(rest)
        replayed = more[-1:] == [_REPLAYED]
        if replayed:
            more.pop()
        held, left_out = None, 0
        if more and more[-1].startswith(_HELD):
            counts = more.pop().removeprefix(_HELD).partition("-")
            held, left_out = int(counts[0]), int(counts[2] or 0)
        group, _, brokers = more.pop(0).partition("@") if more and "@" in more[0] else ("", "", "")
        if len(more) > 1:
            raise ValueError(more)
        address = "".join(more)
        numbers = int(epoch), int(seq)
        return cls(session, *numbers, address, replayed, unquote(group), brokers, held, left_out)


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
