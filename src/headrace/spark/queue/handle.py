"""The `lease` column: whose records a batch holds, and where verdicts on them are staged."""

from dataclasses import dataclass
from typing import Self

_REPLAYED = "replayed"


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
