"""The `lease` column: whose records a batch holds, and where verdicts on them are staged."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Handle:
    """Number `seq` of a session, as its driver of that `epoch` acquired it.

    `address` (host:port) is where verdicts go when the broker itself does not keep them, "" when it
    does.
    """

    session: str
    epoch: int
    seq: int
    address: str = ""

    @property
    def text(self) -> str:
        parts = [self.session, str(self.epoch), str(self.seq)]
        return "/".join([*parts, self.address] if self.address else parts)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises: ValueError for what is no handle."""
        session, epoch, seq, *address = text.split("/")
        if len(address) > 1:
            raise ValueError(f"{text!r} is not what the source put in the column lease")
        return cls(session, int(epoch), int(seq), *address)
